// SPDX-License-Identifier: MIT OR Apache-2.0
//! One contender's requests for a span of time, and what they cost.

use std::time::Duration;

use anyhow::{Result, ensure};
use dwell::buffer::Aligned;
use dwell::monitor::{self, SystemMonitor};
use dwell::{Stats, clock};

use crate::contender::Contender;
use crate::keep::Keeper;
use crate::latency::Latencies;
use crate::loads::{Loads, Seen};
use crate::machine;
use crate::result::{Direction, Pattern, Requests, RoundResult};
use crate::stats::SplitMix;

/// Fewest requests of a batch, however short its span.
const LEAST: u64 = 3;
/// Lead-in of a contender that follows the load: so many windows of the system monitor, each so
/// long. The first ends what others left behind, the second asks for a spinner's seat, the third
/// has it.
const LEAD_IN: (usize, u64) = (5, 60_000_000);

/// Requests of one kind, for a span of time.
pub(crate) struct Batch<'k> {
    requests: Requests,
    buffer: Aligned,
    places: u64,
    next: u64,
    random: SplitMix,
    span: Duration,
    latencies: Latencies,
    /// What is kept of each request.
    pub keeper: &'k mut Keeper,
}

impl<'k> Batch<'k> {
    pub fn new(
        requests: Requests,
        size_bytes: u64,
        subject_bytes: u64,
        span: Duration,
        keeper: &'k mut Keeper,
    ) -> Self {
        let mut buffer = Aligned::new(size_bytes as usize);
        let mut random = SplitMix(size_bytes);
        // Writes carry bytes that do not compress to nothing.
        buffer
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
        Batch {
            requests,
            buffer,
            places: (subject_bytes / size_bytes).max(1),
            next: 0,
            random,
            span,
            latencies: Latencies::new(),
            keeper,
        }
    }

    fn offset(&mut self) -> u64 {
        let place = match self.requests.pattern {
            Pattern::Seq => {
                self.next = (self.next + 1) % self.places;
                self.next
            }
            Pattern::Rand => self.random.next_u64() % self.places,
        };
        place * self.buffer.len() as u64
    }

    pub fn warm_up(&mut self, contender: &mut Contender) -> Result<()> {
        for _ in 0..8 {
            let offset = self.offset();
            contender.request(self.requests.direction, &mut self.buffer, offset)?;
        }
        Ok(())
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
                let offset = self.offset();
                contender.request(self.requests.direction, &mut self.buffer, offset)?;
            }
            monitor.sample_once();
        }
        Ok(())
    }

    /// One batch; `loads` run beside it.
    pub fn measure(
        &mut self,
        contender: &mut Contender,
        loads: Option<&Loads>,
    ) -> Result<RoundResult> {
        self.latencies.clear();
        let seen = || loads.map_or(Seen::default(), Loads::seen);
        let (seen_before, iowait_before) = (seen(), machine::iowait_ns());
        // What the kernel accounts to this thread is read last and first: reading what all CPUs
        // did takes long enough to show in it.
        let busy_before = monitor::busy_ns().unwrap_or(0);
        self.keeper.begin();
        let before = (contender.stats(), Usage::now(), clock::now());
        let requests = match self.requests.depth {
            1 => self.one_by_one(contender)?,
            depth => self.in_flight(contender, depth)?,
        };
        let wall_ns = clock::now() - before.2;
        let usage = Usage::now().since(&before.1);
        let counters = self.keeper.end();
        self.keeper.check()?;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(busy_before);
        let iowait_ns = machine::iowait_ns().saturating_sub(iowait_before);
        let beside = seen().since(&seen_before);
        let latency = self.latencies.summary();
        let mut result = RoundResult {
            bytes: requests * self.buffer.len() as u64,
            requests,
            wall_ns,
            p50_ns: latency.p50_ns,
            p99_ns: latency.p99_ns,
            p999_ns: latency.p999_ns,
            mean_ns: latency.mean_ns,
            voluntary_switches: usage.voluntary,
            involuntary_switches: usage.involuntary,
            user_ns: usage.user_ns,
            system_ns: usage.system_ns,
            cruncher_ns: beside.cpu_ns,
            iowait_ns,
            bystander_iterations: beside.iterations,
            bystander_user_ns: beside.user_ns,
            bystander_system_ns: beside.system_ns,
            other_cpu_ns: busy_ns.saturating_sub(usage.cpu_ns),
            counters,
            ..RoundResult::default()
        };
        count(&mut result, &before.0, &contender.stats());
        Ok(result)
    }

    fn one_by_one(&mut self, contender: &mut Contender) -> Result<u64> {
        let direction = self.requests.direction;
        let started = clock::now();
        let (mut now, mut requests) = (started, 0);
        let span_ns = self.span.as_nanos() as u64;
        while (now - started < span_ns || requests < LEAST) && !self.keeper.stopped() {
            let offset = self.offset();
            contender.request(direction, &mut self.buffer, offset)?;
            let then = std::mem::replace(&mut now, clock::now());
            self.latencies.record(now - then);
            self.keeper.sample(then, now - then);
            requests += 1;
        }
        Ok(requests)
    }

    fn in_flight(&mut self, contender: &mut Contender, depth: u32) -> Result<u64> {
        let Some(mut pipeline) = contender.pipeline(depth)? else { return Ok(0) };
        let mut idle: Vec<Aligned> = (0..depth).map(|_| Aligned::new(self.buffer.len())).collect();
        let mut started = std::collections::HashMap::with_capacity(depth as usize);
        let until = clock::now() + self.span.as_nanos() as u64;
        let (mut requests, mut submitted) = (0, 0);
        loop {
            if (clock::now() < until || submitted < LEAST) && !self.keeper.stopped() {
                while let Some(buffer) = idle.pop() {
                    let offset = self.offset();
                    let at = clock::now();
                    let taken = match self.requests.direction {
                        Direction::Read => pipeline.read_at(buffer, offset),
                        Direction::Write => pipeline.write_at(buffer, offset),
                    };
                    let ticket = taken.map_err(|(error, _)| error)?;
                    started.insert(ticket, at);
                    submitted += 1;
                }
            }
            let Some(done) = pipeline.next() else { return Ok(requests) };
            let (done_bytes, wanted) = (done.result?, self.buffer.len());
            ensure!(done_bytes == wanted, "{done_bytes} of {wanted} bytes were transferred");
            if let Some(at) = started.remove(&done.ticket) {
                let latency_ns = clock::now() - at;
                self.latencies.record(latency_ns);
                self.keeper.sample(at, latency_ns);
            }
            idle.extend(done.buffer);
            requests += 1;
        }
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

/// What the kernel accounts to the calling thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time, to the nanosecond.
    pub cpu_ns: u64,
    /// Its parts as getrusage tells them: brought up to date only by ticks and switches, so they
    /// say how the time splits and not how long it was.
    pub user_ns: u64,
    pub system_ns: u64,
    pub voluntary: u64,
    pub involuntary: u64,
}

impl Usage {
    pub fn now() -> Self {
        // SAFETY: a zeroed rusage is a valid buffer.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a live buffer; RUSAGE_THREAD exists since Linux 2.6.26.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Usage {
            cpu_ns: clock::thread_cpu(),
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
        }
    }

    /// The difference, with the CPU time split as getrusage splits it; all of it is user time
    /// where getrusage saw none pass.
    pub fn since(self, earlier: &Self) -> Self {
        let cpu_ns = self.cpu_ns.saturating_sub(earlier.cpu_ns);
        let user_ns = self.user_ns.saturating_sub(earlier.user_ns);
        let system_ns = self.system_ns.saturating_sub(earlier.system_ns);
        let seen_ns = u128::from(user_ns + system_ns);
        let part_ns = u128::from(cpu_ns) * u128::from(system_ns);
        let system_ns = part_ns.checked_div(seen_ns).unwrap_or(0) as u64;
        Usage {
            cpu_ns,
            user_ns: cpu_ns - system_ns,
            system_ns,
            voluntary: self.voluntary - earlier.voluntary,
            involuntary: self.involuntary - earlier.involuntary,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_exact_and_split_as_the_kernel_splits_it() {
        let earlier = Usage { cpu_ns: 100, user_ns: 10, system_ns: 20, ..Usage::default() };
        let now = Usage { cpu_ns: 1100, user_ns: 110, system_ns: 320, ..Usage::default() };
        let used = now.since(&earlier);
        assert_eq!((used.cpu_ns, used.user_ns, used.system_ns), (1000, 250, 750));
        let unseen = Usage { cpu_ns: 1100, ..earlier }.since(&earlier);
        assert_eq!((unseen.user_ns, unseen.system_ns), (1000, 0));
        let started = Usage::now();
        while clock::thread_cpu() < started.cpu_ns + 300_000 {}
        assert!(Usage::now().since(&started).cpu_ns >= 300_000);
    }
}
