// SPDX-License-Identifier: MIT OR Apache-2.0
//! A loop of one file call, timed: what a call costs as a program makes it.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use dwell::clock;
use serde::{Deserialize, Serialize};

/// What the line begins with that tells the rate.
const TOLD: &str = "calls per second: ";
/// Most bytes of one call.
const MOST_BYTES: usize = 1 << 20;

/// Which calls, and how many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// File.
    pub path: PathBuf,
    /// Writes in place of reads, both at offset 0.
    pub write: bool,
    /// Bytes of each call.
    pub bytes: usize,
    /// Calls that are timed together.
    pub calls: u32,
    /// How often they are; the median is told.
    pub batches: u32,
}

impl Calls {
    /// Makes the calls, which are those of the C library, and prints their rate.
    pub(super) fn make(&self) -> Result<()> {
        let name = self.path.display();
        ensure!(
            self.calls > 0 && self.batches > 0 && self.bytes <= MOST_BYTES,
            "{name}: {} calls of {} bytes cannot be timed",
            self.calls,
            self.bytes
        );
        let file = OpenOptions::new().read(!self.write).write(self.write).open(&self.path);
        let file = file.with_context(|| format!("open {name}"))?;
        let mut buffer = vec![0; self.bytes];
        let mut batch = |calls: u32| -> Result<f64> {
            let began = clock::now();
            for _ in 0..calls {
                let moved = match self.write {
                    true => file.write_at(black_box(&buffer), 0),
                    false => file.read_at(black_box(&mut buffer), 0),
                };
                let moved = moved.with_context(|| format!("a call on {name}"))?;
                ensure!(moved == self.bytes, "{name}: {moved} bytes of {}", self.bytes);
            }
            Ok((clock::now() - began) as f64 / f64::from(calls))
        };
        // Brings the file into the cache, and the code too.
        batch(self.calls.min(1000))?;
        let mut each_ns =
            (0..self.batches).map(|_| batch(self.calls)).collect::<Result<Vec<_>>>()?;
        each_ns.sort_by(f64::total_cmp);
        let median_ns = each_ns[each_ns.len() / 2];
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "\n{TOLD}{}", 1e9 / median_ns).context("telling the rate")?;
        stdout.flush().context("telling the rate")
    }
}

/// The rate in what such a process printed.
pub fn calls_per_second(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(TOLD)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_found_among_other_lines() {
        assert_eq!(
            calls_per_second("\nrunning 1 test\n\ncalls per second: 1.5e6\nok"),
            Some(1.5e6)
        );
        assert_eq!(calls_per_second("calls per second: many"), None);
    }

    #[test]
    fn calls_are_made_or_it_is_said_why_not() {
        let calls = |path: &str, bytes| Calls {
            path: path.into(),
            write: false,
            bytes,
            calls: 5,
            batches: 2,
        };
        calls("/dev/zero", 16).make().unwrap();
        Calls { write: true, ..calls("/dev/null", 1) }.make().unwrap();
        for (wrong, says) in [
            (calls("/nonexistent", 1), "open /nonexistent"),
            (calls("/dev/null", 1), "0 bytes of 1"),
            (Calls { calls: 0, ..calls("/dev/zero", 1) }, "cannot be timed"),
        ] {
            let error = format!("{:#}", wrong.make().unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
