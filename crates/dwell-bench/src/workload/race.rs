// SPDX-License-Identifier: MIT OR Apache-2.0
//! One workload by every contender, in interleaved rounds on the same files.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell::Stats;
use dwell::monitor::{self, SystemMonitor};

use super::file::Variant;
use super::place::Place;
use super::player::Hand;
use super::set::Share;
use super::spec::Spec;
use super::stream::Stream;
use super::worker::{Content, Tally, Worker};
use crate::contender;
use crate::keep::Interrupted;
use crate::lane::count;
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::result::{Load, RoundResult, Row, Run, Setting, Work};
use crate::usage::Cost;

/// The largest share of a place's room that files take at the start.
const FULLEST: f64 = 0.6;
/// Parts of the lead-in, at the end of each of which the system monitor looks.
const LOOKS: u32 = 5;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of policies, and `pread`; ratios are taken against `baseline`.
    pub contenders: Vec<String>,
    /// The contender that others are held against.
    pub baseline: String,
    /// I/O schedulers of a device made for the run, one per contender; empty leaves it alone.
    pub schedulers: Vec<String>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time for one contender in one round, where the workload does not count its loops.
    pub batch: Duration,
    /// Unmeasured time before that, in which the system monitor sees this contender alone.
    pub lead_in: Duration,
    /// Setting it ends the run before its next turn; complete rounds are kept.
    pub stop: Arc<AtomicBool>,
}

impl Plan {
    /// The usual lead-in: a contender that follows the load may spin by then.
    pub const LEAD_IN: Duration = Duration::from_millis(300);

    /// Steps that `progress` will hear of for so many workloads.
    pub fn steps(&self, workloads: usize) -> u64 {
        (workloads * (1 + self.contenders.len() * self.rounds)) as u64
    }

    fn go_on(&self) -> Result<(), Interrupted> {
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.rounds > 0, "no round measures nothing: 1 or more is wanted");
        ensure!(!self.contenders.is_empty(), "no policy to play the workload");
        ensure!(
            self.schedulers.is_empty() || self.schedulers.len() == self.contenders.len(),
            "a scheduler for each contender is wanted, or none at all"
        );
        Ok(())
    }
}

/// Plays workloads on places; `progress` hears before each step what is done.
///
/// # Errors
/// Unknown contenders; a place without direct I/O for a workload that wants it; whatever the system
/// refuses; [`Interrupted`]: each only before the first round is complete.
pub fn run(
    plan: &Plan,
    variants: &[Variant],
    places: &[Place],
    monitor: &Arc<SystemMonitor>,
    command: Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Result<Run> {
    let devices = places.iter().map(Place::describe).collect();
    let mut run = Run::new(Machine::gather(), command, devices);
    for (place, variant) in places.iter().flat_map(|p| variants.iter().map(move |v| (p, v))) {
        let (rows, outcome) = race_until(plan, variant, place, monitor, progress);
        run.rows.extend(rows);
        if let Err(why) = outcome {
            if run.rows.is_empty() {
                return Err(why);
            }
            run.ended = Some(format!("{why:#}").replace('\n', " "));
            break;
        }
    }
    run.conclude_each(&plan.baseline);
    Ok(run)
}

/// One workload on one place, one row per contender. The order of the contenders rotates; before
/// each turn all files are what they were at the start, and in one round all contenders do the
/// same operations for as far as they get.
///
/// # Errors
/// As [`run`].
pub fn race(
    plan: &Plan,
    variant: &Variant,
    place: &Place,
    monitor: &Arc<SystemMonitor>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let (rows, outcome) = race_until(plan, variant, place, monitor, progress);
    outcome.map(|()| rows)
}

/// A race that something may end: rows of the rounds that all contenders completed, none without
/// such a round, and what ended it.
fn race_until(
    plan: &Plan,
    variant: &Variant,
    place: &Place,
    monitor: &Arc<SystemMonitor>,
    progress: &mut dyn FnMut(&str),
) -> (Vec<Row>, Result<()>) {
    let (spec, label) = fitted(variant, place);
    let row = |(at, name): (usize, &String)| Row {
        setting: Setting {
            device: place.name.clone(),
            load: Load::Idle,
            scheduler: plan.schedulers.get(at).cloned(),
            work: Work::Named { workload: label.clone() },
        },
        size_bytes: variant.size_bytes,
        policy: name.clone(),
        rounds: Vec::with_capacity(plan.rounds),
        emulated: None,
    };
    let mut rows: Vec<Row> = plan.contenders.iter().enumerate().map(row).collect();
    let outcome = play(plan, &spec, place, monitor, progress, &mut rows);
    let complete = rows.iter().map(|row| row.rounds.len()).min().unwrap_or(0);
    rows.iter_mut().for_each(|row| row.rounds.truncate(complete));
    rows.retain(|row| !row.rounds.is_empty());
    (rows, outcome)
}

fn play(
    plan: &Plan,
    spec: &Spec,
    place: &Place,
    monitor: &Arc<SystemMonitor>,
    progress: &mut dyn FnMut(&str),
    rows: &mut [Row],
) -> Result<()> {
    plan.check()?;
    if spec.direct {
        place.check_direct()?;
    }
    let hands = plan.contenders.iter().map(|name| Hand::of(name, spec, place, monitor));
    let hands = hands.collect::<Result<Vec<_>>>()?;
    let files = tempfile::Builder::new().prefix("files-").tempdir_in(place.path());
    let files = files.with_context(|| format!("cannot make a directory on {}", place.name))?;
    let content = Content::new();
    std::thread::scope(|scope| {
        let barrier = Arc::new(Barrier::new(workers(spec)));
        let crew = Crew::hire(spec, files.path(), &content, &hands, &barrier, |worker| {
            scope.spawn(worker);
        });
        progress(&format!("{}, making the files of {}", place.name, spec.name));
        crew.each(|_| Task::Make)?;
        for (round, turn) in (0..plan.rounds).flat_map(|r| (0..hands.len()).map(move |t| (r, t))) {
            plan.go_on()?;
            let at = (turn + round) % hands.len();
            progress(&format!("{}, {}", rows[at].setting, rows[at].policy));
            let _pause = contender::PauseChoice::of(&plan.contenders[at]);
            crew.each(|_| Task::Restore)?;
            settle(files.path())?;
            if let Some(scheduler) = plan.schedulers.get(at) {
                place.schedule(scheduler)?;
            }
            crew.lead_in(at, round, plan.lead_in, monitor)?;
            rows[at].rounds.push(crew.measure(at, round, plan.batch)?);
        }
        Ok(())
    })
}

/// The workload at the scale that fits the place, and its name, which says so.
fn fitted(variant: &Variant, place: &Place) -> (Spec, String) {
    let room = place.bytes as f64 * FULLEST;
    let scale = variant.spec.scale.min(room / variant.spec.bytes() as f64);
    if scale >= 1.0 {
        return (variant.spec.clone(), variant.label.clone());
    }
    // Rounded down to what is shown.
    let unit = 10f64.powf(scale.log10().floor() - 1.0);
    let scale = (scale / unit).floor() * unit;
    let digits = (-unit.log10()).round().max(0.0) as usize;
    (variant.spec.scaled(scale), format!("{}, scale {scale:.digits$}", variant.label))
}

fn workers(spec: &Spec) -> usize {
    spec.threads.iter().map(|threads| threads.instances as usize).sum()
}

/// Puts on the device what the files' making left behind.
fn settle(files: &Path) -> Result<()> {
    let synced = std::fs::File::open(files).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("cannot sync {}", files.display()))
}

/// What a thread is told to do.
#[derive(Clone, Copy)]
enum Task {
    Make,
    Restore,
    Play { contender: usize, seed: u64, span: Duration, count_loops: bool },
}

/// The threads of a workload, waiting for tasks; they end when this is dropped.
struct Crew {
    threads: Vec<(Sender<Task>, Receiver<Result<Tally>>)>,
}

impl Crew {
    fn hire<'s, 'f>(
        spec: &'s Spec,
        root: &Path,
        content: &'s Content,
        hands: &'s [Hand],
        barrier: &Arc<Barrier>,
        start: impl Fn(Box<dyn FnOnce() + Send + 's>) + 'f,
    ) -> Self {
        let mut crew = Crew { threads: Vec::new() };
        let mut before = std::collections::BTreeMap::new();
        for threads in &spec.threads {
            let Some(set) = spec.set(&threads.files) else { continue };
            for _ in 0..threads.instances {
                let instance: &mut u64 = before.entry(set.name.as_str()).or_default();
                let stream = Stream::new(spec, threads, Share::of(spec, set, *instance), 0);
                *instance += 1;
                let mut worker = Worker::new(spec, threads, stream, root, content);
                let (tell, told) = channel();
                let (answer, answers) = channel();
                let barrier = barrier.clone();
                start(Box::new(move || {
                    for task in told {
                        if answer.send(perform(&mut worker, task, hands, &barrier)).is_err() {
                            return;
                        }
                    }
                }));
                crew.threads.push((tell, answers));
            }
        }
        crew
    }

    /// Gives every thread a task and waits for all.
    fn each(&self, task: impl Fn(u64) -> Task) -> Result<Vec<Tally>> {
        self.tell(task)?;
        self.hear()
    }

    fn tell(&self, task: impl Fn(u64) -> Task) -> Result<()> {
        for ((tell, _), number) in self.threads.iter().zip(0..) {
            tell.send(task(number)).ok().context("a thread of the workload is gone")?;
        }
        Ok(())
    }

    fn hear(&self) -> Result<Vec<Tally>> {
        // All are heard before one fails: nobody works on while files are taken away.
        let heard = self.threads.iter().map(|(_, answers)| answers.recv());
        let heard: Vec<_> = heard.collect();
        heard.into_iter().map(|tally| tally.context("a thread of the workload is gone")?).collect()
    }

    fn lead_in(
        &self,
        contender: usize,
        round: usize,
        span: Duration,
        monitor: &SystemMonitor,
    ) -> Result<()> {
        monitor.sample_once();
        self.tell(|number| Task::Play {
            contender,
            seed: seed(round, number, 1),
            span,
            count_loops: false,
        })?;
        for _ in 0..LOOKS {
            std::thread::sleep(span / LOOKS);
            monitor.sample_once();
        }
        self.hear().map(drop)
    }

    fn measure(&self, contender: usize, round: usize, span: Duration) -> Result<RoundResult> {
        let busy_before = monitor::busy_ns().unwrap_or(0);
        let tallies = self.each(|number| Task::Play {
            contender,
            seed: seed(round, number, 0),
            span,
            count_loops: true,
        })?;
        let busy_ns = monitor::busy_ns().unwrap_or(0).saturating_sub(busy_before);
        Ok(sum(&tallies, busy_ns))
    }
}

/// The same for every contender, another for every round and thread.
fn seed(round: usize, number: u64, use_: u64) -> u64 {
    (round as u64) << 32 | number << 1 | use_
}

fn perform(
    worker: &mut Worker<'_>,
    task: Task,
    hands: &[Hand],
    barrier: &Barrier,
) -> Result<Tally> {
    match task {
        Task::Make => worker.make().map(|()| Tally::default()),
        Task::Restore => worker.restore().map(|()| Tally::default()),
        Task::Play { contender, seed, span, count_loops } => {
            barrier.wait();
            worker.play(&hands[contender], seed, span, count_loops)
        }
    }
}

/// What all threads did together. Wall time is from the first start to the last end.
fn sum(tallies: &[Tally], busy_ns: u64) -> RoundResult {
    let started = tallies.iter().map(|tally| tally.started).min().unwrap_or(0);
    let ended = tallies.iter().map(|tally| tally.ended).max().unwrap_or(0);
    let cost = tallies.iter().fold(Cost::default(), |sum, tally| sum.beside(tally.cost));
    let mut result = RoundResult { wall_ns: ended - started, ..cost.round() };
    let mut latencies = Latencies::new();
    for tally in tallies {
        result.bytes += tally.bytes;
        result.requests += tally.requests;
        for (name, times) in &tally.operations {
            *result.operations.entry((*name).into()).or_default() += times;
        }
        count(&mut result, &Stats::default(), &tally.stats);
        latencies.merge(&tally.latencies);
    }
    let latency = latencies.summary();
    result.p50_ns = latency.p50_ns;
    result.p99_ns = latency.p99_ns;
    result.p999_ns = latency.p999_ns;
    result.mean_ns = latency.mean_ns;
    result.other_cpu_ns = busy_ns.saturating_sub(cost.user_ns + cost.system_ns);
    result
}
