// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main job: policies × sizes × loads on any device, in interleaved rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use dwell::Stats;
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::monitor::{self, SystemMonitor};

use crate::contender::{self, Contender};
use crate::latency::Latencies;
use crate::loads::Crunchers;
use crate::machine::Machine;
use crate::result::{Direction, Load, Pattern, RoundResult, Row, Run, Setting};
use crate::stats::SplitMix;
use crate::subject::Subject;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of policies and hand-written loops; ratios are taken against `baseline`.
    pub contenders: Vec<String>,
    /// The contender that others are held against.
    pub baseline: String,
    /// Request sizes, in bytes.
    pub sizes: Vec<u64>,
    /// Orders of offsets.
    pub patterns: Vec<Pattern>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Loads.
    pub loads: Vec<Load>,
    /// Queue depth.
    pub depth: u32,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time for one contender in one round.
    pub batch: Duration,
    /// Number crunchers of [`Load::Cpu`].
    pub crunchers: usize,
    /// Command that runs one number cruncher.
    pub cruncher: Vec<String>,
}

impl Plan {
    /// Batches that it will run on `subjects`.
    pub fn batches(&self, subjects: usize) -> u64 {
        let cells = subjects * self.loads.len() * self.patterns.len() * self.directions.len();
        (cells * self.sizes.len() * self.contenders.len() * self.rounds) as u64
    }
}

/// After a load starts or stops, the system monitor needs a few of its windows to see it.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs a plan; `progress` hears after each batch what is being measured.
pub fn run(
    plan: &Plan,
    subjects: &[Subject],
    monitor: &Arc<SystemMonitor>,
    command: Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Result<Run> {
    for name in &plan.contenders {
        contender::check_name(name)?;
    }
    for (subject, &size) in
        subjects.iter().flat_map(|s| plan.sizes.iter().map(move |size| (s, size)))
    {
        subject.check_size(size)?;
    }
    let devices = subjects.iter().map(Subject::describe).collect();
    let mut run = Run::new(Machine::gather(), command, devices);
    for &load in &plan.loads {
        let crunchers = match load {
            Load::Idle => None,
            Load::Cpu => Some(Crunchers::start(plan.crunchers, &plan.cruncher)?),
        };
        std::thread::sleep(SETTLE);
        for subject in subjects {
            for &pattern in &plan.patterns {
                for &direction in &plan.directions {
                    let setting = Setting {
                        device: subject.name.clone(),
                        load,
                        pattern,
                        direction,
                        depth: plan.depth,
                    };
                    for &size in &plan.sizes {
                        run.rows.extend(cell(plan, subject, &setting, size, monitor, progress)?);
                    }
                }
            }
        }
        drop(crunchers);
    }
    run.compare_with(&plan.baseline);
    Ok(run)
}

/// All contenders at one size in one setting. The order rotates from round to round, so that none
/// always runs after the same neighbour.
fn cell(
    plan: &Plan,
    subject: &Subject,
    setting: &Setting,
    size_bytes: u64,
    monitor: &Arc<SystemMonitor>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let takes_part = |name: &&String| {
        let hand_written = contender::HAND_WRITTEN.contains(&name.as_str());
        !(hand_written && (dwell::open::is_scheme(&subject.address) || setting.depth > 1))
    };
    let names: Vec<&String> = plan.contenders.iter().filter(takes_part).collect();
    let mut contenders = names
        .iter()
        .map(|name| Contender::open(name, subject, monitor))
        .collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<Row> = names
        .iter()
        .map(|name| Row {
            setting: setting.clone(),
            size_bytes,
            policy: name.to_string(),
            rounds: Vec::with_capacity(plan.rounds),
            emulated: subject.emulated.clone(),
        })
        .collect();
    let mut batch = Batch::new(setting, size_bytes, subject.bytes, plan.batch);
    for contender in &mut contenders {
        batch.warm_up(contender)?;
    }
    for round in 0..plan.rounds {
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            progress(&format!("{setting}, {} KiB, {}", size_bytes / 1024, names[at]));
            rows[at].rounds.push(batch.measure(&mut contenders[at])?);
        }
    }
    Ok(rows)
}

/// Requests of one kind, for a span of time.
struct Batch<'s> {
    setting: &'s Setting,
    buffer: Aligned,
    places: u64,
    next: u64,
    random: SplitMix,
    span: Duration,
    latencies: Latencies,
}

impl<'s> Batch<'s> {
    fn new(setting: &'s Setting, size_bytes: u64, subject_bytes: u64, span: Duration) -> Self {
        let mut buffer = Aligned::new(size_bytes as usize);
        let mut random = SplitMix(size_bytes);
        // Writes carry bytes that do not compress to nothing.
        buffer
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
        Batch {
            setting,
            buffer,
            places: (subject_bytes / size_bytes).max(1),
            next: 0,
            random,
            span,
            latencies: Latencies::new(),
        }
    }

    fn offset(&mut self) -> u64 {
        let place = match self.setting.pattern {
            Pattern::Seq => {
                self.next = (self.next + 1) % self.places;
                self.next
            }
            Pattern::Rand => self.random.next_u64() % self.places,
        };
        place * self.buffer.len() as u64
    }

    fn warm_up(&mut self, contender: &mut Contender) -> Result<()> {
        for _ in 0..8 {
            let offset = self.offset();
            contender.request(self.setting.direction, &mut self.buffer, offset)?;
        }
        Ok(())
    }

    fn measure(&mut self, contender: &mut Contender) -> Result<RoundResult> {
        self.latencies.clear();
        let before =
            (contender.stats(), Usage::now(), monitor::busy_ns().unwrap_or(0), clock::now());
        let requests = match self.setting.depth {
            1 => self.one_by_one(contender)?,
            depth => self.in_flight(contender, depth)?,
        };
        let wall_ns = clock::now() - before.3;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(before.2);
        let usage = Usage::now().since(&before.1);
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
            other_cpu_ns: busy_ns.saturating_sub(usage.user_ns + usage.system_ns),
            ..RoundResult::default()
        };
        count(&mut result, &before.0, &contender.stats());
        Ok(result)
    }

    fn one_by_one(&mut self, contender: &mut Contender) -> Result<u64> {
        let direction = self.setting.direction;
        let started = clock::now();
        let (mut now, mut requests) = (started, 0);
        while now - started < self.span.as_nanos() as u64 || requests < 3 {
            let offset = self.offset();
            contender.request(direction, &mut self.buffer, offset)?;
            let then = std::mem::replace(&mut now, clock::now());
            self.latencies.record(now - then);
            requests += 1;
        }
        Ok(requests)
    }

    fn in_flight(&mut self, contender: &mut Contender, depth: u32) -> Result<u64> {
        let Some(mut pipeline) = contender.pipeline(depth)? else { return Ok(0) };
        let mut idle: Vec<Aligned> = (0..depth).map(|_| Aligned::new(self.buffer.len())).collect();
        let mut started = std::collections::HashMap::with_capacity(depth as usize);
        let until = Instant::now() + self.span;
        let mut requests = 0;
        loop {
            if Instant::now() < until {
                while let Some(buffer) = idle.pop() {
                    let offset = self.offset();
                    let submitted = match self.setting.direction {
                        Direction::Read => pipeline.read_at(buffer, offset),
                        Direction::Write => pipeline.write_at(buffer, offset),
                    };
                    let ticket = submitted.map_err(|(error, _)| error)?;
                    started.insert(ticket, clock::now());
                }
            }
            let Some(done) = pipeline.next() else { return Ok(requests) };
            done.result?;
            if let Some(at) = started.remove(&done.ticket) {
                self.latencies.record(clock::now() - at);
            }
            idle.extend(done.buffer);
            requests += 1;
        }
    }
}

fn count(result: &mut RoundResult, before: &Stats, after: &Stats) {
    result.spin_ns = after.spun_ns - before.spun_ns;
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

/// What the kernel accounts to the calling thread.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    user_ns: u64,
    system_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Usage {
    fn now() -> Self {
        // SAFETY: a zeroed rusage is a valid buffer.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a live buffer; RUSAGE_THREAD exists since Linux 2.6.26.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Usage {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
        }
    }

    fn since(self, earlier: &Self) -> Self {
        Usage {
            user_ns: self.user_ns - earlier.user_ns,
            system_ns: self.system_ns - earlier.system_ns,
            voluntary: self.voluntary - earlier.voluntary,
            involuntary: self.involuntary - earlier.involuntary,
        }
    }
}
