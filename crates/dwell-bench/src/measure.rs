// SPDX-License-Identifier: MIT OR Apache-2.0
//! One contender's batches, and what ran beside them.

use std::time::Duration;

use anyhow::Result;
use dwell::buffer::Aligned;
use dwell::monitor::{self, SystemMonitor};
use dwell::{Stats, clock};

use crate::batch::Batch;
use crate::contender::Contender;
use crate::keep::Keeper;
use crate::loads::{Loads, Seen};
use crate::machine;
use crate::program::Answer;
use crate::result::{Requests, RoundResult};

/// Lead-in of a contender that follows the load: so many windows of the system monitor, each so
/// long. The first ends what others left behind, the second asks for a spinner's seat, the third
/// has it.
const LEAD_IN: (usize, u64) = (5, 60_000_000);
/// Requests before the first batch.
const WARM_UP: usize = 8;

/// What every contender of a race is asked for.
pub(crate) struct Measure<'k> {
    batch: Batch,
    buffers: Vec<Aligned>,
    span: Duration,
    /// What is kept of each request.
    pub keeper: &'k mut Keeper,
}

impl<'k> Measure<'k> {
    pub fn new(
        requests: Requests,
        size_bytes: u64,
        subject_bytes: u64,
        span: Duration,
        keeper: &'k mut Keeper,
    ) -> Self {
        let mut batch = Batch::new(requests, size_bytes, subject_bytes, size_bytes);
        batch.stop_at(keeper.stop());
        if keeper.wants_samples() {
            batch.keep_samples();
        }
        let buffers = batch.buffers();
        Measure { batch, buffers, span, keeper }
    }

    fn request(&mut self, contender: &mut Contender) -> Result<()> {
        let offset = self.batch.offset();
        contender.request(self.batch.requests().direction, &mut self.buffers[0], offset)
    }

    pub fn warm_up(&mut self, contender: &mut Contender) -> Result<()> {
        if let Contender::Program(program) = contender {
            return program.serve(&mut self.batch, Duration::ZERO).map(drop);
        }
        (0..WARM_UP).try_for_each(|_| self.request(contender))
    }

    /// Unmeasured requests until the monitor has seen this contender alone. What ran before it
    /// (a hand-written spin, or a blocking policy under which the seats of spinners lapse) would
    /// otherwise count as the load of its first window, and a batch is only a few windows long.
    pub fn lead_in(&mut self, contender: &mut Contender, monitor: &SystemMonitor) -> Result<()> {
        monitor.sample_once();
        for _ in 0..LEAD_IN.0 {
            let until = clock::now() + LEAD_IN.1;
            while clock::now() < until {
                self.keeper.check()?;
                self.request(contender)?;
            }
            monitor.sample_once();
        }
        Ok(())
    }

    /// One batch of the contender of this name; `loads` run beside it.
    pub fn measure(
        &mut self,
        name: &str,
        contender: &mut Contender,
        loads: Option<&Loads>,
    ) -> Result<RoundResult> {
        let seen = || loads.map_or(Seen::default(), Loads::seen);
        let (seen_before, iowait_before) = (seen(), machine::iowait_ns());
        // What the contender itself costs is read inside `serve`: reading what all CPUs did takes
        // long enough to show in it.
        let busy_before = monitor::busy_ns().unwrap_or(0);
        let before = contender.stats();
        self.keeper.begin();
        let served = contender.serve(&mut self.batch, &mut self.buffers, self.span);
        let counters = self.keeper.end();
        self.keeper.check()?;
        let Answer { mut round, samples_ns } = served?;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(busy_before);
        let beside = seen().since(&seen_before);
        round.other_cpu_ns = busy_ns.saturating_sub(round.user_ns + round.system_ns);
        round.iowait_ns = machine::iowait_ns().saturating_sub(iowait_before);
        round.cruncher_ns = beside.cpu_ns;
        round.bystander_iterations = beside.iterations;
        round.bystander_user_ns = beside.user_ns;
        round.bystander_system_ns = beside.system_ns;
        // They are this thread's.
        if contender.serves_in_caller(self.batch.depth()) {
            round.counters = counters;
        }
        let told = match contender {
            Contender::Program(_) => samples_ns.as_deref(),
            _ => self.batch.samples(),
        };
        self.keeper.samples(name, round.requests, told);
        count(&mut round, &before, &contender.stats());
        Ok(round)
    }
}

/// Adds what Dwell counted between two looks.
pub(crate) fn count(result: &mut RoundResult, before: &Stats, after: &Stats) {
    result.spin_ns += after.spun_ns.saturating_sub(before.spun_ns);
    for row in &after.rows {
        let earlier = before
            .rows
            .iter()
            .find(|r| (r.route, r.mode, r.why) == (row.route, row.mode, row.why))
            .map_or(0, |r| r.requests);
        if row.requests > earlier {
            let how = format!("{} {}: {}", row.route.as_str(), row.mode.as_str(), row.why);
            *result.decisions.entry(how).or_default() += row.requests - earlier;
        }
    }
}
