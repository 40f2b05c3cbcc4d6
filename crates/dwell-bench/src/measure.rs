// SPDX-License-Identifier: MIT OR Apache-2.0
//! One contender's batches, and what ran beside them.

use std::time::Duration;

use anyhow::Result;
use dwell::buffer::Aligned;
use dwell::monitor::{self, SystemMonitor};
use dwell::{Stats, clock};

use crate::batch::Batch;
use crate::contender::Contender;
use crate::loads::Crunchers;
use crate::result::{Requests, RoundResult};

/// Lead-in of a contender that follows the load: so many windows of the system monitor, each so
/// long. The first ends what others left behind, the second asks for a spinner's seat, the third
/// has it.
const LEAD_IN: (usize, u64) = (5, 60_000_000);
/// Requests before the first batch.
const WARM_UP: usize = 8;

/// What every contender of a race is asked for.
pub(crate) struct Measure {
    batch: Batch,
    buffers: Vec<Aligned>,
    span: Duration,
}

impl Measure {
    pub fn new(requests: Requests, size_bytes: u64, subject_bytes: u64, span: Duration) -> Self {
        let batch = Batch::new(requests, size_bytes, subject_bytes, size_bytes);
        let buffers = batch.buffers();
        Measure { batch, buffers, span }
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
                self.request(contender)?;
            }
            monitor.sample_once();
        }
        Ok(())
    }

    /// One batch; `crunchers` are those that run beside it.
    pub fn measure(
        &mut self,
        contender: &mut Contender,
        crunchers: Option<&Crunchers>,
    ) -> Result<RoundResult> {
        let crunched = || crunchers.map_or(0, Crunchers::cpu_ns);
        let crunched_before = crunched();
        // What the contender itself costs is read inside `serve`: reading what all CPUs did takes
        // long enough to show in it.
        let busy_before = monitor::busy_ns().unwrap_or(0);
        let before = contender.stats();
        let mut round = contender.serve(&mut self.batch, &mut self.buffers, self.span)?;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(busy_before);
        round.other_cpu_ns = busy_ns.saturating_sub(round.user_ns + round.system_ns);
        round.cruncher_ns = crunched().saturating_sub(crunched_before);
        count(&mut round, &before, &contender.stats());
        Ok(round)
    }
}

fn count(result: &mut RoundResult, before: &Stats, after: &Stats) {
    result.spin_ns = after.spun_ns.saturating_sub(before.spun_ns);
    for row in &after.rows {
        let earlier = before
            .rows
            .iter()
            .find(|r| (r.route, r.mode, r.why) == (row.route, row.mode, row.why))
            .map_or(0, |r| r.requests);
        if row.requests > earlier {
            let how = format!("{} {}: {}", row.route.as_str(), row.mode.as_str(), row.why);
            result.decisions.insert(how, row.requests - earlier);
        }
    }
}
