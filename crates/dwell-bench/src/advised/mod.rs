// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was seen of a program's storage waits, what would help, and what was measured of it: as
//! JSON and as a page.

mod observed;
mod page;
mod recorded;

use std::path::Path;

use anyhow::Result;
pub use observed::seen_by_calls;
pub use recorded::seen_in_recording;

use dwell_advise::{Advice, Remedy, Seen, Total};
use dwell_host::stats_page::ProcessIo;
use serde::Serialize;

use crate::machine::Machine;
use crate::stats::Paired;
use crate::{result, units};

/// Of fewer bytes it does not matter where they came from.
const LEAST_READ: u64 = 1 << 20;

/// All that `dwell advise` found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this form.
    pub schema: u32,
    /// The command, process or machine that was followed.
    pub whom: String,
    /// Where.
    pub machine: Machine,
    /// A sentence for each device.
    pub advice: Vec<Advice>,
    /// The gain, measured.
    pub confirmed: Option<Confirmed>,
    /// Waits by device, operation and way of issuing.
    pub totals: Vec<Total>,
    /// Bytes that calls moved meanwhile, and bytes that devices moved for them; of a command or a
    /// process.
    pub moved: Option<ProcessIo>,
    /// Everything that was seen.
    pub seen: Seen,
}

/// A measured gain beside the estimate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Confirmed {
    /// Estimated speed under `dwell run`, as a ratio to the untouched command.
    pub estimated: f64,
    /// Measured speed, with its 95 % interval.
    pub measured: Paired,
    /// Measured speed of the untouched command against itself.
    pub control: Paired,
}

impl Confirmed {
    /// Keeps both.
    pub fn new(estimated: f64, measured: &Paired, control: &Paired) -> Confirmed {
        Confirmed { estimated, measured: *measured, control: *control }
    }

    /// Both, and whether they agree.
    pub fn sentence(&self) -> String {
        let ratio = |paired: &Paired| {
            format!("{:.2}× [{:.2}–{:.2}]", paired.median, paired.low, paired.high)
        };
        format!(
            "Measured: {} of the untouched command, estimated {:.2}× (untouched against itself {}).",
            ratio(&self.measured),
            self.estimated,
            ratio(&self.control)
        )
    }
}

/// The estimated speed of a command of which all was seen, if each device's advice to spin is
/// taken. What its threads save while others work is shared among them.
pub fn gain_of_command(advice: &[Advice], seen: &Seen) -> f64 {
    let spun = advice.iter().filter(|advice| advice.remedy == Remedy::Spin);
    let share: f64 = spun.map(|advice| 1.0 - 1.0 / advice.gain).sum();
    let saved = share * seen.thread_seconds / seen.thread_seconds.max(seen.seconds).max(1e-9);
    1.0 / (1.0 - saved.min(0.99))
}

impl Report {
    /// A report without a confirmation. `closed` says why `dwell run` leaves the program alone,
    /// where it does.
    pub fn new(whom: String, seen: Seen, closed: Option<String>) -> Report {
        let mut advice = dwell_advise::advise(&seen);
        if let Some(why) = closed {
            for advice in advice.iter_mut().filter(|advice| advice.remedy == Remedy::Spin) {
                advice.remedy = Remedy::Library;
                let text = advice.text.trim_end_matches(" Try: dwell run -- COMMAND").to_owned();
                advice.text = format!(
                    "{text} dwell run cannot do it: {why} cannot be preloaded. Use Dwell's library."
                );
            }
        }
        Report {
            schema: 1,
            whom,
            machine: Machine::gather(),
            advice,
            confirmed: None,
            totals: dwell_advise::totals(&seen),
            moved: None,
            seen,
        }
    }

    /// The estimated speed of the command if each device's advice to spin is taken.
    pub fn estimated_gain(&self) -> f64 {
        gain_of_command(&self.advice, &self.seen)
    }

    /// How long was looked, how much of it was waiting, and what looking took.
    pub fn aside(&self) -> String {
        let seen = &self.seen;
        let waited: u64 = self.totals.iter().map(|total| total.parts.total_ns()).sum();
        let cost = match seen.cost.events {
            0 => String::new(),
            events => format!(
                "; tracing took {} of CPU time, {} an event",
                units::time_ns(seen.cost.nanos as f64),
                units::time_ns(seen.cost.nanos as f64 / events as f64)
            ),
        };
        let cached = match self.moved {
            Some(moved) if moved.rchar >= LEAST_READ && moved.read_bytes < moved.rchar => format!(
                "; {:.0} % of {} read came from memory",
                100.0 * (1.0 - moved.read_bytes as f64 / moved.rchar as f64),
                units::bytes(moved.rchar)
            ),
            _ => String::new(),
        };
        format!(
            "{}: {:.1} s, {} in {} waits for storage{cached}{cost}",
            self.whom,
            seen.seconds,
            units::time_ns(waited as f64),
            units::count(seen.waits.iter().map(|wait| wait.count).sum())
        )
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_json(&self, path: &Path) -> Result<()> {
        result::write(path, &self.json()?)
    }

    /// Writes the page.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_html(&self, path: &Path) -> Result<()> {
        result::write(path, &page::html(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_of_a_command_is_a_share_of_all_its_time() {
        let of = |thread_seconds: f64| Seen {
            seconds: 10.0,
            thread_seconds,
            waits: vec![],
            other_waits: 0,
            other_seconds: 0.0,
            devices: vec![],
            cost: dwell_advise::Cost::default(),
            notes: vec![],
        };
        let spin =
            Advice { device: "loop0".into(), remedy: Remedy::Spin, gain: 2.0, text: String::new() };
        let nothing = Advice { remedy: Remedy::Library, ..spin.clone() };
        let gain = |seconds: f64| gain_of_command(&[spin.clone(), nothing.clone()], &of(seconds));
        // Half of the one thread that waited, which waited half of the time; or of two that did all
        // the time.
        assert!((gain(5.0) - 1.0 / 0.75).abs() < 1e-9);
        assert!((gain(20.0) - 2.0).abs() < 1e-9);
        assert_eq!(gain_of_command(std::slice::from_ref(&nothing), &of(5.0)), 1.0);
    }
}
