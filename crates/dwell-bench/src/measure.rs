// SPDX-License-Identifier: MIT OR Apache-2.0
//! One contender's batches, and what ran beside them.

use std::time::Duration;

use anyhow::{Context, Result};
use dwell::monitor;

use crate::batch::Batch;
use crate::keep::Keeper;
use crate::lane::{Ask, Lane, Served, Work};
use crate::loads::{Loads, Seen};
use crate::machine;
use crate::result::{Requests, RoundResult};

/// What every contender of a race is asked for.
pub(crate) struct Measure<'k> {
    /// Away while a contender has it.
    work: Option<Work>,
    /// Keeps the samples of each request.
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
        Measure { work: Some(Work { batch, buffers, span }), keeper }
    }

    /// Has a contender do something with the work, which comes back.
    pub fn ask(&mut self, lane: &Lane, ask: Ask) -> Result<Option<Served>> {
        let work = self.work.take().context("a contender kept the work")?;
        let (work, done) = lane.ask(ask, work);
        self.work = work;
        done
    }

    /// One batch of the contender of this name; `loads` run beside it.
    pub fn measure(
        &mut self,
        name: &str,
        lane: &Lane,
        loads: Option<&Loads>,
    ) -> Result<RoundResult> {
        let seen = || loads.map_or(Seen::default(), Loads::seen);
        let (seen_before, iowait_before) = (seen(), machine::iowait_ns());
        let busy_before = monitor::busy_ns().unwrap_or(0);
        self.keeper.begin();
        let served = self.ask(lane, Ask::Measure);
        self.keeper.check()?;
        let served = served?.context("a contender measured nothing")?;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(busy_before);
        let beside = seen().since(&seen_before);
        let mut round = served.answer.round;
        round.other_cpu_ns = busy_ns.saturating_sub(round.user_ns + round.system_ns);
        round.iowait_ns = machine::iowait_ns().saturating_sub(iowait_before);
        round.stressor_ns = beside.cpu_ns;
        round.bystander_iterations = beside.iterations;
        round.bystander_user_ns = beside.user_ns;
        round.bystander_system_ns = beside.system_ns;
        round.counters = served.counters;
        let samples = match (served.told, &self.work) {
            (false, Some(work)) => work.batch.samples(),
            _ => served.answer.samples_ns.as_deref(),
        };
        self.keeper.samples(name, round.requests, samples);
        Ok(round)
    }
}
