// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `fio --output-format=json` writes.

use dwell_advise::{Issued, Operation, Seen};
use serde_json::Value;

/// The requests of all jobs; `None` where there are none.
pub fn seen(recording: &Value, waking_ns: u64) -> Option<Seen> {
    let device =
        recording.pointer("/disk_util/0/name").and_then(Value::as_str).unwrap_or("the device");
    let (mut waits, mut longest_ms, mut sum_ms) = (vec![], 0, 0);
    for job in recording.get("jobs")?.as_array()? {
        let engine = job
            .pointer("/job options/ioengine")
            .or_else(|| recording.pointer("/global options/ioengine"));
        let issued = issued(engine.and_then(Value::as_str).unwrap_or("psync"));
        let switches = job.get("ctx").and_then(Value::as_u64);
        let mut job_ms = 0;
        for (direction, operation) in [("read", Operation::Read), ("write", Operation::Write)] {
            let Some(of) = job.get(direction) else { continue };
            let number = |name: &str| of.get(name).and_then(Value::as_u64).unwrap_or(0);
            let requests = number("total_ios");
            let mean = of.pointer("/clat_ns/mean").and_then(Value::as_f64).unwrap_or(0.0);
            if requests == 0 || mean < 1.0 {
                continue;
            }
            // A request that no switch of context belongs to was not slept for.
            let slept = switches.unwrap_or(requests).min(requests) as f64 / requests as f64;
            let numbers = (requests, mean as u64, number("io_bytes") / requests);
            let waking_ns = (waking_ns as f64 * slept) as u64;
            waits.push(super::waits(device, (operation, issued), numbers, waking_ns));
            job_ms = job_ms.max(number("runtime"));
        }
        longest_ms = longest_ms.max(job_ms);
        sum_ms += job_ms;
    }
    // Jobs that keep several requests in flight wait longer than they run.
    let waited: u64 = waits.iter().map(|wait| wait.parts.total_ns()).sum();
    let thread_seconds = (sum_ms as f64 / 1e3).max(waited as f64 / 1e9);
    super::seen(waits, vec![], longest_ms as f64 / 1e3, thread_seconds)
}

fn issued(engine: &str) -> Issued {
    match engine {
        "io_uring" | "io_uring_cmd" => Issued::IoUring,
        "libaio" => Issued::Libaio,
        "mmap" => Issued::Fault,
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Issued::Call,
        _ => Issued::Other,
    }
}
