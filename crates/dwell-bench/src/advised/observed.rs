// SPDX-License-Identifier: MIT OR Apache-2.0
//! What Dwell's own library saw of a program that nobody may trace: calls of dynamically linked
//! programs, timed and not split.

use std::path::Path;

use anyhow::{Context, Result};
use dwell::latency::Histogram;
use dwell_advise::{Cost, Issued, Operation, Parts, Seen, Wait};
use dwell_host::stats_page::{Device, Snapshot};

/// Powers of two of a wait's length that [`Wait::latency`] tells apart.
const BUCKETS: usize = 28;

/// Reads what `dwell run --shadow --stats FILE` wrote. `why` says why the program was not traced.
///
/// # Errors
/// The file cannot be read, or is none of those.
pub fn seen_by_calls(stats: &Path, seconds: f64, why: &str) -> Result<Seen> {
    let text = std::fs::read(stats).with_context(|| stats.display().to_string())?;
    let snapshot: Snapshot = serde_json::from_slice(&text)
        .with_context(|| format!("{}: not what dwell run --stats writes", stats.display()))?;
    let waits: Vec<Wait> = snapshot.devices.iter().filter_map(wait).collect();
    let waited_ns: u64 = waits.iter().map(|wait| wait.parts.total_ns()).sum();
    Ok(Seen {
        seconds,
        thread_seconds: (waited_ns as f64 / 1e9).max(seconds),
        waits,
        other_waits: 0,
        other_seconds: 0.0,
        devices: vec![],
        cost: Cost::default(),
        notes: vec![format!(
            "{why}. Seen instead are calls of dynamically linked programs, by Dwell's library: not where their time went, no page \
             faults, io_uring, libaio or syncs"
        )],
    })
}

fn wait(device: &Device) -> Option<Wait> {
    let latency = device.stats.latencies();
    let count = latency.count();
    let reads = device.stats.bytes_read >= device.stats.bytes_written;
    (count > 0).then(|| Wait {
        process: 0,
        program: String::new(),
        device: device.name.clone(),
        operation: if reads { Operation::Read } else { Operation::Write },
        issued: Issued::Call,
        size_bytes: (device.stats.bytes_read + device.stats.bytes_written) / count,
        through_thread: false,
        count,
        parts: Parts { other_ns: latency.sum_ns(), ..Parts::default() },
        latency: by_power(&latency),
    })
}

fn by_power(latency: &Histogram) -> Vec<u64> {
    let mut powers = vec![0; BUCKETS];
    let mut before = 0;
    for (end_ns, cumulated) in latency.cumulated() {
        let power = (end_ns.max(1).ilog2() as usize).saturating_sub(7).min(BUCKETS - 1);
        powers[power] += cumulated - before;
        before = cumulated;
    }
    powers
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn seen(json: &str) -> Result<Seen> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(json.as_bytes()).unwrap();
        seen_by_calls(file.path(), 1.0, "no rights")
    }

    #[test]
    fn calls_are_counted_and_not_split() {
        let seen = seen(
            r#"{"devices": [{"name": "loop0", "stats": {"bytes_read": 8192, "latency":
                {"inline": {"count": 2, "max_ns": 9000, "sum_ns": 17000, "buckets": [[8192, 2]]}}}}]}"#,
        )
        .unwrap();
        let wait = &seen.waits[0];
        assert_eq!((wait.count, wait.parts.other_ns, wait.size_bytes), (2, 17000, 4096));
        assert_eq!(wait.latency.iter().sum::<u64>(), 2);
        let advice = dwell_advise::advise(&Seen { seconds: 17e-6, ..seen });
        assert!(advice[0].text.ends_with("it is not known where it went."), "{advice:?}");
    }

    #[test]
    fn a_file_of_another_kind_is_named() {
        let error = seen("[1, 2]").unwrap_err();
        assert!(format!("{error:#}").contains("not what dwell run --stats writes"), "{error:#}");
    }
}
