// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one process of a load does, and how it is told.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell::buffer::Aligned;
use serde::{Deserialize, Serialize};

use super::bystander;
use super::calls::Calls;
use super::counts::Counts;
use super::sharer::Sharer;
use crate::pager::Task;
use crate::stats::SplitMix;

/// A reader's memory holds so many pieces, as a page cache would.
const PIECES: u64 = 16;

/// The job of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Job {
    /// Integer work in registers: takes CPU time and leaves caches and memory alone.
    Crunch,
    /// All four operations on integers and fractions.
    Arithmetic,
    /// Makes calls, tells their rate and ends.
    Calls(Calls),
    /// Reads and sums up.
    Read(Reader),
    /// Uses memory that is paged in, tells what it cost and ends.
    Page(Box<Task>),
    /// Turns of [`bystander::Bystander`], counted.
    Bystand {
        /// [`Counts::path`] of whoever wants to know.
        counts: PathBuf,
        /// Place among the counts.
        slot: usize,
    },
    /// Shares a host page.
    Share(Box<Sharer>),
}

/// What a reader reads, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reader {
    /// File or block device.
    pub(super) path: PathBuf,
    /// Whether the page cache is bypassed.
    pub(super) direct: bool,
    /// Where its part begins.
    pub(super) from_bytes: u64,
    /// How long its part is.
    pub(super) span_bytes: u64,
    /// How much it reads at once.
    pub(super) piece_bytes: u64,
    /// Random pieces from this seed on; one after the other without.
    pub(super) random_seed: Option<u64>,
    /// How long it waits after each piece.
    pub(super) pause_us: u64,
}

impl Job {
    /// The argument that [`serve`] understands.
    pub(super) fn word(&self) -> Result<String> {
        serde_json::to_string(self).context("a job cannot be written as an argument")
    }
}

impl Calls {
    /// The argument that makes [`serve`] do it.
    pub fn word(&self) -> Result<String> {
        Job::Calls(self.clone()).word()
    }
}

/// The argument that makes [`serve`] do a pager's task.
pub(crate) fn pager_word(task: &Task) -> Result<String> {
    Job::Page(Box::new(task.clone())).word()
}

/// Does the job that the last of `words` names: what a hidden subcommand of the frontend runs. A
/// load's job goes on until the process is killed.
///
/// # Errors
/// No job; a file that cannot be read.
pub fn serve(words: &[String]) -> Result<()> {
    let word = words.last().context("no job is named: this is for Dwell's own use")?;
    let job = serde_json::from_str(word).with_context(|| format!("{word:?} is no job"))?;
    match job {
        Job::Crunch => crunch(),
        Job::Arithmetic => arithmetic(),
        Job::Calls(calls) => calls.make(),
        Job::Read(reader) => reader.read_on(),
        Job::Page(task) => task.serve(),
        Job::Share(sharer) => sharer.go_on(),
        Job::Bystand { counts, slot } => {
            let counts = Counts::open(&counts, slot + 1)?;
            let mut bystander = bystander::Bystander::new();
            for turn in 1.. {
                bystander.turn();
                counts.set(slot, turn);
            }
            unreachable!("turns are counted in 64 bits")
        }
    }
}

fn crunch() -> ! {
    let mut number: u64 = 1;
    loop {
        for _ in 0..1 << 20 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        black_box(number);
    }
}

fn arithmetic() -> ! {
    let (mut whole, mut fraction) = (1i64, 1.0f64);
    for step in 1i64.. {
        whole = whole.wrapping_mul(31).wrapping_add(step).wrapping_sub(whole / (step % 97 + 1));
        fraction = (fraction * 1.000_1 + step as f64 / 3.0 - 1.5) % 1e9;
        black_box((whole, fraction));
    }
    unreachable!("steps are counted in 63 bits")
}

impl Reader {
    fn read_on(&self) -> Result<()> {
        let pieces = self.span_bytes.checked_div(self.piece_bytes).unwrap_or(0) as usize;
        ensure!(pieces > 0, "{}: nothing to read", self.path.display());
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(if self.direct { libc::O_DIRECT } else { 0 })
            .open(&self.path)
            .with_context(|| format!("open {}", self.path.display()))?;
        let mut memory = Aligned::new((self.piece_bytes * PIECES) as usize);
        let mut random = self.random_seed.map(SplitMix);
        let mut next = 0;
        loop {
            for room in memory.chunks_exact_mut(self.piece_bytes as usize) {
                next = random.as_mut().map_or(next + 1, |random| random.below(pieces)) % pieces;
                let offset = self.from_bytes + next as u64 * self.piece_bytes;
                file.read_exact_at(room, offset)
                    .with_context(|| format!("read {}", self.path.display()))?;
                black_box(room.iter().map(|&byte| u64::from(byte)).sum::<u64>());
                if self.pause_us > 0 {
                    std::thread::sleep(Duration::from_micros(self.pause_us));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_its_word() {
        let reader = Reader {
            path: "/dev/a b".into(),
            direct: true,
            from_bytes: 4096,
            span_bytes: 8192,
            piece_bytes: 512,
            random_seed: Some(7),
            pause_us: 3,
        };
        let bystander = Job::Bystand { counts: "/proc/1/fd/3".into(), slot: 2 };
        let sharer = Job::Share(Box::new(Sharer {
            page: "/dev/shm/a b".into(),
            policy: "adaptive".into(),
            path: "/dev/a b".into(),
            bytes: 4096,
            direct: true,
            profile: None,
            counts: "/proc/1/fd/3".into(),
            slot: 2,
        }));
        for job in [Job::Crunch, Job::Arithmetic, Job::Read(reader), bystander, sharer] {
            let word = job.word().unwrap();
            assert!(!word.starts_with('-'));
            assert_eq!(serde_json::from_str::<Job>(&word).unwrap(), job);
        }
    }

    #[test]
    fn a_word_that_is_no_job_is_said_in_one_line() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            format!("{:#}", serve(&words).unwrap_err())
        };
        assert!(of(&[]).contains("no job"));
        assert!(of(&["crunch", "dance"]).contains("\"dance\" is no job"));
        let empty = r#"{"read":{"path":"/dev/null","direct":false,"from_bytes":0,"span_bytes":9,
            "piece_bytes":0,"random_seed":null,"pause_us":0}}"#;
        assert!(of(&[empty]).contains("nothing to read"));
        let missing = empty.replace("null\"", "none\"").replace(":0,\"ran", ":1,\"ran");
        assert!(of(&[&missing]).contains("open /dev/none"));
    }
}
