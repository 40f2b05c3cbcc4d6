// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread of its own for each contender.
//!
//! The scheduler judges a thread by its past: how busy it was, and on which CPU those ran that woke
//! it. A thread that blocks right after it spun is woken more slowly, and for a long time, than one
//! that only blocks. So every contender keeps a thread through all rounds of a race, as it would
//! have in a program of its own, and this thread sleeps while others are measured.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use dwell::Stats;
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::monitor::SystemMonitor;

use crate::batch::Batch;
use crate::contender::Contender;
use crate::counters::Counters;
use crate::entrant::Entrant;
use crate::keep::Interrupted;
use crate::program::Answer;
use crate::result::RoundResult;

/// Lead-in of a contender that follows the load: so many windows of the system monitor, each so
/// long. The first ends what others left behind, the second asks for a spinner, the third
/// has it. A window is no longer than so many batches: where they are hardly any, nothing is
/// measured.
const LEAD_IN: (usize, u64) = (5, 60_000_000);
const LEAD_IN_BATCHES: u64 = 5;
/// Requests before the first batch.
const WARM_UP: usize = 8;

/// The requests of a batch, and the memory that they need.
pub(crate) struct Work {
    pub batch: Batch,
    pub buffers: Vec<Aligned>,
    pub span: Duration,
}

/// What a contender is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A few requests, not measured.
    WarmUp,
    /// Requests, not measured, until what ran before it shows no more: to the scheduler, and to the
    /// monitor of a contender that follows the load.
    LeadIn,
    /// The batch.
    Measure,
}

/// What a measured batch gave.
pub(crate) struct Served {
    pub answer: Answer,
    pub counters: BTreeMap<String, f64>,
    /// Whether the contender tells its own samples, or the batch has them.
    pub told: bool,
}

/// One contender's thread. It ends when this is dropped.
pub(crate) struct Lane {
    asks: Sender<(Ask, Work)>,
    replies: Receiver<(Work, Result<Option<Served>>)>,
}

impl Lane {
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        entrant: &'scope mut Entrant,
        stop: Arc<AtomicBool>,
        counters: bool,
    ) -> Self {
        let (asks, asked) = channel::<(Ask, Work)>();
        let (reply, replies) = channel();
        scope.spawn(move || {
            // They count for the thread that opens them.
            let mut counters = if counters { Counters::open().ok() } else { None };
            for (ask, mut work) in asked {
                let done = serve(entrant, ask, &mut work, &stop, counters.as_mut());
                if reply.send((work, done)).is_err() {
                    break;
                }
            }
        });
        Lane { asks, replies }
    }

    /// Has it done, and waits for that.
    pub fn ask(&self, ask: Ask, work: Work) -> (Option<Work>, Result<Option<Served>>) {
        let gone = || anyhow!("a contender's thread has ended");
        if self.asks.send((ask, work)).is_err() {
            return (None, Err(gone()));
        }
        match self.replies.recv() {
            Ok((work, done)) => (Some(work), done),
            Err(_) => (None, Err(gone())),
        }
    }
}

fn serve(
    entrant: &mut Entrant,
    ask: Ask,
    work: &mut Work,
    stop: &AtomicBool,
    counters: Option<&mut Counters>,
) -> Result<Option<Served>> {
    let Entrant { contender, monitor, .. } = entrant;
    match (ask, monitor) {
        (Ask::WarmUp, _) => warm_up(contender, work).map(|()| None),
        (Ask::LeadIn, Some(monitor)) => lead_in(contender, work, monitor, stop).map(|()| None),
        (Ask::LeadIn, None) => settle(contender, work).map(|()| None),
        (Ask::Measure, _) => measure(contender, work, counters).map(Some),
    }
}

fn request(contender: &mut Contender, work: &mut Work) -> Result<()> {
    let offset = work.batch.offset();
    contender.request(work.batch.requests().direction, &mut work.buffers[0], offset)
}

fn warm_up(contender: &mut Contender, work: &mut Work) -> Result<()> {
    if let Contender::Program(program) = contender {
        return program.serve(&mut work.batch, Duration::ZERO).map(drop);
    }
    (0..WARM_UP).try_for_each(|_| request(contender, work))
}

/// What ran before has left traces in the scheduler that fade in so long a time, in nanoseconds.
const SETTLE_NS: u64 = 150_000_000;

fn settle(contender: &mut Contender, work: &mut Work) -> Result<()> {
    let span = Duration::from_nanos(SETTLE_NS).min(work.span);
    if let Contender::Program(program) = contender {
        return program.serve(&mut work.batch, span).map(drop);
    }
    let until = clock::now() + span.as_nanos() as u64;
    while clock::now() < until {
        request(contender, work)?;
    }
    Ok(())
}

fn lead_in(
    contender: &mut Contender,
    work: &mut Work,
    monitor: &SystemMonitor,
    stop: &AtomicBool,
) -> Result<()> {
    let window_ns = LEAD_IN.1.min(LEAD_IN_BATCHES * work.span.as_nanos() as u64);
    monitor.sample_once();
    for _ in 0..LEAD_IN.0 {
        let until = clock::now() + window_ns;
        while clock::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            request(contender, work)?;
        }
        monitor.sample_once();
    }
    Ok(())
}

fn measure(
    contender: &mut Contender,
    work: &mut Work,
    mut counters: Option<&mut Counters>,
) -> Result<Served> {
    // They are this thread's.
    let in_caller = contender.serves_in_caller(work.batch.depth());
    let before = contender.stats();
    if let Some(counters) = &mut counters {
        counters.start();
    }
    let served = contender.serve(&mut work.batch, &mut work.buffers, work.span);
    let counters = counters.map(Counters::stop).filter(|_| in_caller).unwrap_or_default();
    let mut answer = served.context("measuring")?;
    count(&mut answer.round, &before, &contender.stats());
    let told = matches!(contender, Contender::Program(_));
    Ok(Served { answer, counters, told })
}

/// Adds what Dwell counted between two looks.
pub(crate) fn count(result: &mut RoundResult, before: &Stats, after: &Stats) {
    result.spin_ns += after.spun_ns.saturating_sub(before.spun_ns);
    for row in &after.rows {
        let earlier = before
            .rows
            .iter()
            .find(|r| (r.route, r.mode, r.reason) == (row.route, row.mode, row.reason))
            .map_or(0, |r| r.requests);
        if row.requests > earlier {
            let how = format!("{} {}: {}", row.route.as_str(), row.mode.as_str(), row.reason);
            *result.decisions.entry(how).or_default() += row.requests - earlier;
        }
    }
}
