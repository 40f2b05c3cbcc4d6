// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may end a run early, and what is kept of it beside its rows.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use dwell::clock;

use crate::batch::Sample;
use crate::conditions::{Conditions, Rounds, Watch};
use crate::counters::Counters;
use crate::result::Row;
use crate::samples::Samples;

/// What to keep beside the rows, and a way to end the run.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// Setting it ends the run before its next request; complete rounds are kept.
    pub stop: Arc<AtomicBool>,
    /// File for the latency of every request: `.csv` or `.parquet`.
    pub samples: Option<PathBuf>,
    /// Whether the CPU's event counters are read.
    pub counters: bool,
    /// Whether it looks what else runs: rounds that were not quiet are then measured again, but
    /// none whose samples are kept.
    pub watch: bool,
}

/// A run was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Does for a run what its [`Keep`] asks for.
#[derive(Default)]
pub(crate) struct Keeper {
    stop: Arc<AtomicBool>,
    samples: Option<Samples>,
    counters: bool,
    watch: Option<Watch>,
    notes: Vec<String>,
}

/// So long a pause lasts at most before it looks whether the run shall end.
const NAP: Duration = Duration::from_millis(20);

impl Keeper {
    /// Fails where the samples cannot go: better before the measurement than in it.
    pub fn new(keep: &Keep) -> Result<Self> {
        let watch = keep.watch.then(|| Watch::begin(keep.samples.is_none()));
        let mut keeper = Keeper { stop: keep.stop.clone(), watch, ..Keeper::default() };
        if let Some(path) = &keep.samples {
            keeper.samples = Some(Samples::create(path)?);
        }
        if keep.counters {
            match Counters::open() {
                Ok(counters) => {
                    keeper.notes.extend(counters.remark().map(|why| format!("counters: {why}")));
                    keeper.counters = true;
                }
                Err(why) => keeper.notes.push(format!("counters: {why}")),
            }
        }
        Ok(keeper)
    }

    /// What ends the run when it is set.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Whether the run was told to stop. Cheap enough for every request.
    #[inline]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Fails if the run was told to stop.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.stopped() { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not once the run was told to stop.
    pub fn pause(&self, span: Duration) {
        let until = clock::now() + span.as_nanos() as u64;
        while !self.stopped() && clock::now() < until {
            std::thread::sleep(NAP.min(Duration::from_nanos(until.saturating_sub(clock::now()))));
        }
    }

    /// The rounds of a race of which so many are wanted.
    pub fn rounds(&self, wanted: usize) -> Rounds {
        Rounds::new(wanted, self.watch.as_ref())
    }

    /// Takes note of what ran beside them.
    pub fn add(&mut self, rounds: &Rounds) {
        if let Some(watch) = &mut self.watch {
            watch.add(rounds);
        }
    }

    /// What was met on the machine so far.
    pub fn conditions(&self) -> Option<Conditions> {
        self.watch.as_ref()?.conditions()
    }

    /// Begins a batch.
    pub fn begin(&mut self) {
        if let Some(samples) = &mut self.samples {
            samples.clear();
        }
    }

    /// Whether event counters are read.
    pub fn wants_counters(&self) -> bool {
        self.counters
    }

    /// Whether the latency of every request is kept.
    pub fn wants_samples(&self) -> bool {
        self.samples.is_some()
    }

    /// What a batch of so many requests took: when each began and how long it was, where `name`
    /// tells that.
    pub fn samples(&mut self, name: &str, requests: u64, told: Option<&[Sample]>) {
        let Some(samples) = &mut self.samples else { return };
        let Some(told) = told else {
            let note = format!("samples: {name} does not tell them");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
            return;
        };
        told.iter().for_each(|&(start_ns, latency_ns)| samples.push(start_ns, latency_ns));
        samples.lose(requests.saturating_sub(told.len() as u64));
    }

    /// Keeps the batch's samples: those of `row` in this round. Where that fails, the run goes on
    /// without them and a note says so.
    pub fn write(&mut self, row: &Row, round: usize) {
        if let Some(samples) = &mut self.samples
            && let Err(why) = samples.write(row, round)
        {
            self.notes.push(why);
            self.samples = None;
        }
    }

    /// Completes what is kept in files; what to know about it.
    pub fn finish(mut self) -> Vec<String> {
        if let Some(samples) = self.samples {
            self.notes.extend(samples.finish());
        }
        self.notes
    }
}
