// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one measured process does.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead as _, Write as _};

use anyhow::{Context, Result, bail, ensure};
use dwell::buffer::Aligned;
use dwell::clock;
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::memory::Memory;
use super::method::{Handler, Kind};
use super::task::{LINE, READY, Task, Told};
use super::work::{Done, PAGE_BYTES, Work, sort};
use crate::contender::policy_of;
use crate::fixture::enter;
use crate::usage::{self, Meter, Scope};

fn say(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    // A harness may have begun a line.
    writeln!(stdout, "\n{LINE}{text}").and_then(|()| stdout.flush()).context("telling the bench")
}

impl Task {
    /// Sets up, says so, waits for a line, does the work and tells what it cost.
    ///
    /// # Errors
    /// What the system refuses; work that does not fit the memory.
    pub(crate) fn serve(&self) -> Result<()> {
        if let Some(group) = &self.group {
            enter(group).with_context(|| format!("entering {}", group.display()))?;
        }
        if self.nice != 0 {
            setpriority_process(None, self.nice).context("setting the nice value")?;
        }
        if let Some(cpu) = self.cpu {
            run_on(cpu)?;
        }
        if let Kind::Device { policy } = &self.method.kind {
            return self.serve_reads(policy);
        }
        let own = match &self.method.kind {
            Kind::Region { handler: Handler::SameCpu, .. } => {
                let [own, _] = two_cpus()?;
                run_on(own)?;
                Some(own)
            }
            Kind::Region { handler: Handler::OtherCpu | Handler::OtherCpuSpins, .. } => {
                let [own, other] = two_cpus()?;
                // The handler's thread inherits where this one is.
                run_on(other)?;
                Some(own)
            }
            _ => None,
        };
        let mut memory = Memory::of(self)?;
        if let Some(own) = own {
            run_on(own)?;
        }
        let registered = memory.register()?;
        if let (Kind::Region { stages: true, .. }, Some(registered)) =
            (&self.method.kind, &registered)
        {
            return self.serve_stages(&memory, registered);
        }
        if self.work.writes() {
            let sorted = |_| {
                memory.advise()?;
                Ok(sort(memory.words()?))
            };
            return self.measured(sorted, || None);
        }
        let hint = self.method.hints.then_some(|bytes| memory.hint(bytes));
        let bytes = memory.bytes();
        let perform = |until_ns| {
            memory.advise()?;
            self.work.perform(bytes, hint, self.seed, until_ns)
        };
        self.measured(perform, || memory.statistics())
    }

    /// Reads of single pages in place of memory.
    fn serve_reads(&self, policy: &str) -> Result<()> {
        let Work::Visits(visits) = self.work else {
            bail!("a device by itself is only visited, page by page")
        };
        let file = self.open(&policy_of(policy)?)?;
        let pages = file.bytes()? as usize / PAGE_BYTES;
        ensure!(pages > 0, "{}: no page to read", self.address.display());
        let mut buffer = Aligned::new(PAGE_BYTES);
        let mut failed = None;
        let read = |page: usize| {
            let offset = (page * PAGE_BYTES) as u64;
            failed = file.read_exact_at(&mut buffer, offset).err().or(failed.take());
            visits.touch(&buffer)
        };
        self.measured(
            |until_ns| visits.perform(pages, read, None::<fn(_)>, self.seed, until_ns),
            || None,
        )?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Visits of a region, of which each stage of each fault is timed.
    fn serve_stages(&self, memory: &Memory, registered: &dwell_pager::Registered) -> Result<()> {
        let Work::Visits(visits) = self.work else { bail!("stages are those of visits") };
        let bytes = memory.bytes();
        // Little memory: the limit counts it.
        const KEPT: usize = 4096;
        let mut times: [Vec<u32>; STAGES.len()] = std::array::from_fn(|_| Vec::with_capacity(KEPT));
        let touch = |page: usize| {
            let began = clock::now();
            let found = black_box(visits.touch(&bytes[page * PAGE_BYTES..][..PAGE_BYTES]));
            let ended = clock::now();
            if let Some(stages) = registered.last_fault().filter(|stages| stages.entered >= began) {
                times.iter_mut().zip(spans(began, &stages, ended)).for_each(|(times, span)| {
                    if times.len() < KEPT {
                        times.push(u32::try_from(span).unwrap_or(u32::MAX));
                    }
                });
            }
            found
        };
        let pages = bytes.len() / PAGE_BYTES;
        let perform = |until_ns| visits.perform(pages, touch, None::<fn(_)>, self.seed, until_ns);
        let mut told = match self.performed(perform, || memory.statistics())? {
            Some(told) => told,
            None => return Ok(()),
        };
        for (name, mut times) in STAGES.into_iter().zip(times) {
            times.sort_unstable();
            let median = times.get(times.len() / 2).copied().unwrap_or(0);
            told.round.paging.insert(format!("{name}_ns"), median.into());
        }
        say(&serde_json::to_string(&told)?)
    }

    fn measured(
        &self,
        perform: impl FnOnce(u64) -> Result<Done>,
        counted: impl Fn() -> Option<dwell_pager::Statistics>,
    ) -> Result<()> {
        match self.performed(perform, counted)? {
            Some(told) => say(&serde_json::to_string(&told)?),
            None => Ok(()),
        }
    }

    /// Says that all is set up, waits for a line and does the work; `None` where nobody wants it
    /// any more.
    fn performed(
        &self,
        perform: impl FnOnce(u64) -> Result<Done>,
        counted: impl Fn() -> Option<dwell_pager::Statistics>,
    ) -> Result<Option<Told>> {
        say(READY)?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line).context("waiting for the bench")? == 0 {
            return Ok(None);
        }
        let (before, faults_before) = (counted(), usage::faults());
        let meter = Meter::start(Scope::Process);
        let done = perform(clock::now().saturating_add(self.most_ns))?;
        let cost = meter.stop();
        let ended_ns = clock::now();
        let faults = usage::faults();
        let mut round = cost.round();
        let visits = match self.work {
            Work::Visits(_) => done.operations,
            Work::Graph(_) | Work::Sort => 0,
        };
        (round.requests, round.bytes) = (visits, visits * PAGE_BYTES as u64);
        round.operations = BTreeMap::from([("done".to_owned(), done.operations)]);
        let latency = done.latency;
        (round.p50_ns, round.p99_ns) = (latency.p50_ns, latency.p99_ns);
        (round.p999_ns, round.mean_ns) = (latency.p999_ns, latency.mean_ns);
        round.paging = match (before, counted()) {
            (Some(before), Some(after)) => {
                let counted = after.since(&before);
                round.spin_ns = counted.spun_ns;
                of_region(&counted)
            }
            _ => BTreeMap::from([
                ("major_faults".to_owned(), faults.major - faults_before.major),
                ("minor_faults".to_owned(), faults.minor - faults_before.minor),
            ]),
        };
        Ok(Some(Told { done, round, began_ns: meter.started_ns(), ended_ns }))
    }
}

/// The stages of a fault, as its program sees them.
pub const STAGES: [&str; 7] = ["signal", "look-up", "frame", "request", "wait", "move", "return"];

/// How long each stage took of a touch from `began` to `ended`.
fn spans(began: u64, stages: &dwell_pager::Stages, ended: u64) -> [u64; STAGES.len()] {
    let passed = [
        began,
        stages.entered,
        stages.looked_up,
        stages.framed,
        stages.requested,
        stages.arrived,
        stages.moved,
        ended,
    ];
    std::array::from_fn(|at| passed[at + 1].saturating_sub(passed[at]))
}

/// What a region counted, by the names of a result. A major fault is one that had to wait for the
/// source, whoever asked it.
fn of_region(counted: &dwell_pager::Statistics) -> BTreeMap<String, u64> {
    let major = counted.reads_awaited + counted.joined;
    [
        ("major_faults", major),
        ("minor_faults", counted.faults.saturating_sub(major)),
        ("pages_read", counted.pages_read),
        ("read_ahead", counted.prefetched),
        ("read_ahead_used", counted.prefetched_used),
        ("read_ahead_wasted", counted.prefetched_wasted),
        ("hints", counted.hints),
        ("evicted", counted.evicted),
        ("over_budget", counted.over_budget),
        ("waits_parked", counted.waits_parked),
        ("sacrificed", counted.sacrificed),
        ("waited_ns", counted.waited_ns),
        ("stolen_ns", counted.stolen_ns),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into()
}

/// Lets the calling thread, and those that it starts, run on one CPU alone.
fn run_on(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("running on CPU {cpu} alone"))
}

/// The first two CPUs that this thread may use.
fn two_cpus() -> Result<[usize; 2]> {
    let set = sched_getaffinity(None).context("which CPUs may be used")?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    match (cpus.next(), cpus.next()) {
        (Some(one), Some(other)) => Ok([one, other]),
        _ => bail!("one CPU: a handler on another needs two"),
    }
}
