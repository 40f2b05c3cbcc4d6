// SPDX-License-Identifier: MIT OR Apache-2.0
//! The summary of a run that is over.

use std::fmt::Write as _;

use dwell_policy::Reason;

use super::Snapshot;
use dwell::latency::Histogram;
use dwell::stats::Stats;

impl Snapshot {
    /// Share of the bytes that the processes moved of which Dwell knows, 0–1: decided or passed.
    /// The rest went by calls inside the C library, by mapped files, or by asynchronous I/O that
    /// the program does itself. `None` where nothing moved.
    ///
    /// A lower bound where a program does several of these: the kernel's counts overlap.
    pub fn coverage(&self) -> Option<f64> {
        let stats = self.stats();
        let known = [stats.bytes_read, stats.bytes_written, self.passed.bytes]
            .into_iter()
            .fold(0, u64::saturating_add);
        let by_calls = self.io.rchar.saturating_add(self.io.wchar);
        let on_storage = self.io.read_bytes.saturating_add(self.io.write_bytes);
        let all = known.max(by_calls).max(on_storage);
        (all > 0).then(|| known as f64 / all as f64)
    }
}

/// A smaller share of the bytes leaves open what a program waited for.
const LITTLE: f64 = 0.5;
/// So much was moved from or to storage that it matters.
const WORTH_BYTES: u64 = 1 << 20;

/// A few lines for a person: what was decided and why, what it saved and cost, and how much of all
/// that the processes did was seen.
pub fn closing(run: &Snapshot) -> String {
    let stats = run.stats();
    let mut text = String::new();
    let mut line = |label: &str, what: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "dwell: {label:<9} {what}");
    };
    let is_shadow = run.header.shadow;
    let changed = if is_shadow { " (a shadow: nothing was changed)" } else { "" };
    line(
        "requests",
        format!(
            "{} decided, {}; {} passed, {}; {}{changed}",
            stats.requests(),
            bytes(stats.bytes_read.saturating_add(stats.bytes_written)),
            counted(run.passed.calls, "call", "calls"),
            bytes(run.passed.bytes),
            counted(run.processes, "process", "processes"),
        ),
    );
    let mut rows = stats.rows.clone();
    rows.sort_by_key(|row| std::cmp::Reverse(row.requests));
    for row in &rows {
        let arm = format!("{} {}", row.route.as_str(), row.mode.as_str());
        line("", format!("{arm:<16} {:<14} {:>12}", row.reason.as_str(), row.requests));
    }
    if is_shadow {
        line("shadow", shadow(&stats));
    } else if stats.requests() > 0 {
        line(
            "waits",
            format!(
                "{} avoided; spun {}, parked {}",
                counted(stats.switches_avoided(), "switch", "switches"),
                time(stats.spun_ns),
                time(stats.parked_ns)
            ),
        );
    }
    for device in run.devices.iter().filter(|device| device.regressed_percent > 0) {
        let percent = device.regressed_percent;
        let what = "longer when steered than when held back: it turned itself off";
        line("off", format!("requests of {} took {percent} % {what}", device.name));
    }
    let latency = &stats.latency;
    for (label, of) in [
        ("spun", &latency.spun),
        ("blocked", &latency.blocked),
        ("inline", &latency.inline),
        ("cached", &latency.cached),
        ("withheld", &latency.withheld),
    ] {
        if of.count() > 0 {
            line("latency", format!("{label:<8} {}", percentiles(of)));
        }
    }
    if let Some(share) = run.coverage() {
        let hint = if share < LITTLE && run.io.read_bytes + run.io.write_bytes > WORTH_BYTES {
            "; the rest is io_uring, libaio or mapped files: dwell advise -- CMD shows its waits"
        } else {
            ""
        };
        line("coverage", format!("{:.1} % of the bytes moved were seen{hint}", share * 100.0));
    }
    text
}

/// What a run would have done, as far as that is known without doing it.
fn shadow(stats: &Stats) -> String {
    let spins = stats.spins();
    let mut text = format!("{spins} of {} requests would have been spun for", stats.requests());
    let unprobed = stats.because(Reason::Unprobed);
    if unprobed > 0 {
        text += &format!(
            "; of {unprobed} the device was never probed, and a shadow tries nothing: \
             dwell probe tells more"
        );
    }
    text
}

fn percentiles(of: &Histogram) -> String {
    let at = |share| time(of.percentile(share));
    format!("p50 {}, p99 {}, p99.9 {} ({} timed)", at(0.5), at(0.99), at(0.999), of.count())
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

fn bytes(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_024 => format!("{count} B"),
        1_024..1_048_576 => format!("{:.1} KiB", value / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", value / 1_048_576.0),
        _ => format!("{:.2} GiB", value / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use dwell_policy::{Mode, Route};

    use super::super::{Device, Header, Passed, ProcessIo};
    use super::*;
    use dwell::stats::{Row, Stats};

    #[test]
    fn a_run_is_told_in_a_few_lines_and_what_was_not_seen_shows() {
        let (route, mode, why) = (Route::Interrupt, Mode::Spin, Reason::Pays);
        let mut stats = Stats::default();
        stats.rows = vec![Row::new(route, mode, why, 3)];
        (stats.bytes_read, stats.spun_ns) = (12_288, 45_000);
        let run = Snapshot {
            processes: 2,
            devices: vec![Device { stats, ..Device::default() }],
            passed: Passed { calls: 5, bytes: 100 },
            io: ProcessIo { rchar: 100, read_bytes: 24_776, ..ProcessIo::default() },
            ..Snapshot::default()
        };
        let text = closing(&run);
        for part in [
            "3 decided, 12.0 KiB; 5 calls passed, 100 B; 2 processes",
            "interrupt spin   pays                      3",
            "3 switches avoided; spun 45.0 µs, parked 0 ns",
            "50.0 % of the bytes moved were seen",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.lines().all(|line| line.starts_with("dwell: ")), "{text}");
        assert!(!text.contains("dwell advise"), "{text}");
        let mut unseen = run.clone();
        unseen.io.read_bytes = 1 << 30;
        assert!(closing(&unseen).contains("dwell advise -- CMD shows its waits"));
        let mut regressed = run.clone();
        (regressed.devices[0].name, regressed.devices[0].regressed_percent) = ("loop0".into(), 12);
        let text = closing(&regressed);
        assert!(text.contains("off       requests of loop0 took 12 % longer when"), "{text}");
        let header = Header { shadow: true, ..Header::default() };
        let text = closing(&Snapshot { header, ..run });
        assert!(text.contains("2 processes (a shadow: nothing was changed)"), "{text}");
        assert!(text.contains("shadow    3 of 3 requests would have been spun for\n"), "{text}");
        assert!(!text.contains("avoided"), "{text}");
        assert_eq!(Snapshot::default().coverage(), None);
        assert_eq!(closing(&Snapshot::default()).lines().count(), 1);
    }
}
