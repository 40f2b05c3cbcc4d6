// SPDX-License-Identifier: MIT OR Apache-2.0
//! Yesterday's recording, judged: fio's JSON, or the text of blkparse. Neither knows how long
//! waking took, so it is taken to be what blocking costs on this machine.

mod blkparse;
mod fio;

use std::path::Path;

use anyhow::{Context, Result, bail};
use dwell_advise::{Cost, DeviceLoad, Issued, Operation, Parts, Seen, Wait};

use crate::units;

/// Reads a recording. `waking_ns` is what blocking and coming back costs.
///
/// # Errors
/// The file cannot be read; it is neither; it holds no request.
pub fn seen_in_recording(path: &Path, waking_ns: u64) -> Result<Seen> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    // fio may say something before its JSON.
    let seen = match text.find('{').map(|start| serde_json::from_str(&text[start..])) {
        Some(Ok(recording)) => fio::seen(&recording, waking_ns),
        _ => blkparse::seen(&text, waking_ns),
    };
    let Some(mut seen) = seen else {
        bail!(
            "{}: neither fio's JSON (--output-format=json) nor the text of blkparse, or without requests",
            path.display()
        );
    };
    seen.notes.push(format!(
        "a recording does not tell how long waking took: {} a wait is what it costs on this machine",
        units::time_ns(waking_ns as f64)
    ));
    Ok(seen)
}

/// `count` waits of `mean_ns` each, of which `waking_ns` are waking if there is so much.
fn waits(
    device: &str,
    (operation, issued): (Operation, Issued),
    (count, mean_ns, size_bytes): (u64, u64, u64),
    waking_ns: u64,
) -> Wait {
    let wake_ns = waking_ns.min(mean_ns);
    let mut latency = vec![0; 28];
    let power = (mean_ns.max(1).ilog2() as usize).saturating_sub(7);
    latency[power.min(27)] = count;
    Wait {
        process: 0,
        program: String::new(),
        device: device.to_owned(),
        operation,
        issued,
        size_bytes,
        through_thread: false,
        count,
        parts: Parts {
            wake_ns: wake_ns * count,
            device_ns: (mean_ns - wake_ns) * count,
            ..Parts::default()
        },
        latency,
    }
}

fn seen(
    waits: Vec<Wait>,
    devices: Vec<DeviceLoad>,
    seconds: f64,
    thread_seconds: f64,
) -> Option<Seen> {
    (!waits.is_empty()).then(|| Seen {
        seconds,
        thread_seconds,
        waits,
        other_waits: 0,
        other_seconds: 0.0,
        devices,
        cost: Cost::default(),
        notes: vec![],
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use dwell_advise::{Remedy, advise};

    use super::*;

    fn recording(text: &str) -> Result<Seen> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        seen_in_recording(file.path(), 4_000)
    }

    fn fio(engine: &str, clat_ns: u64) -> String {
        format!(
            r#"fio: a warning
            {{"jobs": [{{"jobname": "a", "job options": {{"ioengine": "{engine}"}}, "ctx": 1000,
               "read": {{"io_bytes": 4096000, "runtime": 20, "total_ios": 1000,
                 "clat_ns": {{"mean": {clat_ns}.5}}}},
               "write": {{"io_bytes": 0, "runtime": 0, "total_ios": 0, "clat_ns": {{"mean": 0.0}}}}}}],
              "disk_util": [{{"name": "nvme0n1", "util": 90.0}}]}}"#
        )
    }

    #[test]
    fn blocking_reads_in_fios_json_are_judged_by_the_cost_of_waking() {
        let seen = recording(&fio("psync", 16_000)).unwrap();
        assert_eq!((seen.waits[0].count, seen.waits[0].size_bytes), (1000, 4096));
        let advice = advise(&seen);
        assert_eq!((advice[0].remedy, advice[0].device.as_str()), (Remedy::Spin, "nvme0n1"));
        // 1,000 reads in 20 ms, 4 µs of each.
        assert!((advice[0].gain - 20.0 / 16.0).abs() < 1e-3, "{advice:?}");
        assert!(seen.notes[0].contains("4.00 µs a wait"), "{:?}", seen.notes);
    }

    #[test]
    fn rings_and_slow_devices_in_fios_json_are_told_apart() {
        let advice = advise(&recording(&fio("io_uring", 16_000)).unwrap());
        assert_eq!(advice[0].remedy, Remedy::Library);
        let slow = recording(&fio("psync", 4_000_000)).unwrap();
        assert_eq!(advise(&slow)[0].remedy, Remedy::Nothing);
    }

    #[test]
    fn reads_in_blkparses_text_are_timed_from_issue_to_completion() {
        let text = "\
  8,0    3        1     0.000000000   697  Q   R 223490 + 8 [cat]
  8,0    3        2     0.000001000   697  D   R 223490 + 8 [cat]
  8,0    3        3     0.000013000     0  C   R 223490 + 8 [0]
  8,0    3        4     0.000020000   697  D  WS 400000 + 16 [cat]
  8,0    3        5     0.000070000     0  C  WS 400000 + 16 [0]
CPU0 (8,0):
 Reads Queued:           1,        4KiB\t Writes Queued:           1,        8KiB
";
        let seen = recording(text).unwrap();
        assert_eq!(seen.waits.len(), 1, "nobody need wait for a write: {seen:?}");
        let load =
            |operation| seen.devices.iter().find(|load| load.operation == operation).unwrap();
        let read = load(Operation::Read);
        assert_eq!((read.queue_ns, read.device_ns, read.size_bytes), (1000, 12_000, 4096));
        assert_eq!(load(Operation::Write).device_ns, 50_000);
        assert!((advise(&seen)[0].gain - 17.0 / 13.0).abs() < 1e-9);
    }

    #[test]
    fn a_recording_of_neither_kind_is_named() {
        for text in ["", "hello", "{\"jobs\": []}", "[1]", "8,0 3 1"] {
            let error = format!("{:#}", recording(text).unwrap_err());
            assert!(error.contains("neither fio's JSON"), "{text}: {error}");
        }
    }
}
