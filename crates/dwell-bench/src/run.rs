// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main job: policies × sizes × loads on any device, in interleaved rounds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dwell::monitor::SystemMonitor;

use crate::contender::{self, Contender, is_peer};
use crate::day::{self, Day};
use crate::entrant::Entrant;
use crate::fixture::Scheduler;
use crate::keep::{Keep, Keeper};
use crate::lane::{Ask, Lane};
use crate::loads::{self, Loads, Means};
use crate::machine::Machine;
use crate::measure::Measure;
use crate::program::Peers;
use crate::result::{Direction, Load, Pattern, Requests, Row, Run, Setting};
use crate::samples;
use crate::subject::Subject;
use crate::units;

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
    /// I/O schedulers; `None` leaves the device the one it has.
    pub schedulers: Vec<Option<String>>,
    /// Queue depths.
    pub depths: Vec<u32>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time for one contender in one round.
    pub batch: Duration,
    /// What the loads need.
    pub means: Means,
    /// What to keep beside the rows, and what ends the run.
    pub keep: Keep,
    /// The program that has the peers, where it is not near this one.
    pub peers_program: Option<PathBuf>,
    /// In place of all combinations of sizes, patterns, directions, depths, loads and schedulers:
    /// the phases of a day. Each contender lives through it once per round.
    pub day: Option<Day>,
}

impl Plan {
    /// Batches that it will run on `subjects`.
    pub fn batches(&self, subjects: usize) -> u64 {
        if let Some(day) = &self.day {
            return (subjects * day.phases.len() * self.contenders.len() * self.rounds) as u64;
        }
        let cells = subjects * self.loads.len() * self.schedulers.len() * self.requests().count();
        (cells * self.sizes.len() * self.contenders.len() * self.rounds) as u64
    }

    /// Fails unless it can be measured on these addresses, before a probe takes its time.
    ///
    /// # Errors
    /// A contender, scheduler or place for samples that is not there; requests that do not fit.
    pub fn check(&self, addresses: &[PathBuf]) -> Result<()> {
        self.contenders.iter().try_for_each(|name| contender::check_name(name))?;
        self.peers()?;
        self.keep.samples.as_deref().map_or(Ok(()), samples::check_name)?;
        self.check_schedulers(addresses)?;
        let sizes = self.sizes();
        addresses.iter().try_for_each(|address| Subject::check(address, self.writes(), &sizes))
    }

    /// Fails on a scheduler that a device with schedulers does not offer.
    fn check_schedulers(&self, addresses: &[PathBuf]) -> Result<()> {
        for name in self.schedulers.iter().flatten() {
            for address in addresses {
                if let Some(schedulers) = Scheduler::beneath(address)? {
                    schedulers.offers(name)?;
                }
            }
        }
        Ok(())
    }

    /// The program with the peers, where some of its peers take part.
    fn peers(&self) -> Result<Option<Peers>> {
        let names = self.contenders.iter().map(String::as_str).filter(|name| is_peer(name));
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            return Ok(None);
        }
        let peers = Peers::find(self.peers_program.as_deref())?;
        peers.check(names)?;
        Ok(Some(peers))
    }

    /// Sizes of all requests, in bytes.
    fn sizes(&self) -> Vec<u64> {
        match &self.day {
            Some(day) => day.phases.iter().map(|phase| phase.size_bytes).collect(),
            None => self.sizes.clone(),
        }
    }

    fn writes(&self) -> bool {
        match &self.day {
            Some(day) => day.phases.iter().any(|phase| phase.direction == Direction::Write),
            None => self.directions.contains(&Direction::Write),
        }
    }

    /// Kinds of requests, in the order in which they are measured.
    fn requests(&self) -> impl Iterator<Item = Requests> {
        self.patterns.iter().flat_map(move |&pattern| {
            self.directions.iter().flat_map(move |&direction| {
                self.depths.iter().map(move |&depth| Requests { pattern, direction, depth })
            })
        })
    }
}

/// So long a load runs before anything is measured beside it. What follows the load begins its
/// batches with a lead-in, so nothing else has to be waited for.
const SETTLE: Duration = Duration::from_millis(300);

/// Runs a plan; `progress` hears after each batch what is being measured. What ends it early, a
/// failure or [`Keep::stop`], is told in [`Run::ended`], and the complete rounds are kept.
///
/// # Errors
/// A plan that cannot be measured; what ended the run before any round was complete, which is
/// [`crate::keep::Interrupted`] where it was told to stop.
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
    let peers = plan.peers()?;
    ensure!(!plan.depths.contains(&0), "a queue depth of 0 sends nothing: 1 or more is wanted");
    ensure!(plan.rounds > 0, "no round measures nothing: 1 or more is wanted");
    if plan.writes()
        && let Some(subject) = subjects.iter().find(|subject| !subject.write)
    {
        let name = &subject.name;
        anyhow::bail!("{name} is opened for reading only: allow writes, or measure reads");
    }
    for size in plan.sizes() {
        subjects.iter().try_for_each(|subject| subject.check_size(size))?;
    }
    let addresses: Vec<_> = subjects.iter().map(|subject| subject.address.clone()).collect();
    plan.check_schedulers(&addresses)?;
    let devices = subjects.iter().map(Subject::describe).collect();
    let mut run = Run::new(Machine::gather(), command, devices);
    let mut keeper = Keeper::new(&plan.keep)?;
    let from = Sources { monitor, peers: peers.as_ref() };
    let outcome = measure(plan, subjects, from, &mut keeper, progress, &mut run);
    run.conditions = keeper.conditions();
    run.notes = keeper.finish();
    if let Err(why) = outcome {
        if run.rows.is_empty() {
            return Err(why);
        }
        run.ended = Some(format!("{why:#}").replace('\n', " "));
    }
    run.conclude(&plan.baseline);
    Ok(run)
}

/// All that a plan asks for; `run` has what was complete when it fails.
fn measure(
    plan: &Plan,
    subjects: &[Subject],
    from: Sources<'_>,
    keeper: &mut Keeper,
    progress: &mut dyn FnMut(&str),
    run: &mut Run,
) -> Result<()> {
    if let Some(day) = &plan.day {
        return live(plan, day, subjects, from, keeper, progress, run);
    }
    for &load in &plan.loads {
        for subject in subjects {
            if let Some(why) = loads::unfit(load, subject) {
                run.left_out.push(why);
                continue;
            }
            let mut loads = Loads::start(load, subject, &plan.means)?;
            if loads.count() > 0 {
                keeper.pause(SETTLE);
            }
            for scheduler in &plan.schedulers {
                let Some(_chosen) = choose(scheduler.as_deref(), subject, run)? else {
                    continue;
                };
                for requests in plan.requests() {
                    let setting = Setting {
                        scheduler: scheduler.clone(),
                        ..Setting::new(subject, load, requests)
                    };
                    for &size in &plan.sizes {
                        let mut entrants = enter(plan, subject, from)?;
                        let course = Course {
                            subject,
                            setting: &setting,
                            size_bytes: size,
                            rounds: plan.rounds,
                            batch: plan.batch,
                        };
                        let (raced, outcome) =
                            race_until(&mut entrants, &course, Some(&mut loads), keeper, progress);
                        run.rows.extend(raced);
                        for Entrant { name, contender, .. } in &entrants {
                            run.tell(contender.configured(name));
                        }
                        outcome?;
                    }
                }
            }
        }
    }
    let why = run.left_out.join("; ");
    ensure!(!run.rows.is_empty() || why.is_empty(), "nothing is left to measure: {why}");
    Ok(())
}

/// A day on each subject where all its phases can take place.
fn live(
    plan: &Plan,
    day: &Day,
    subjects: &[Subject],
    from: Sources<'_>,
    keeper: &mut Keeper,
    progress: &mut dyn FnMut(&str),
    run: &mut Run,
) -> Result<()> {
    for subject in subjects {
        if let Some(why) = day.phases.iter().find_map(|phase| phase.unfit(subject)) {
            run.left_out.push(why);
            continue;
        }
        let mut entrants = enter(plan, subject, from)?;
        let on = (subject, &plan.means);
        let (rows, outcome) = day::live(day, &mut entrants, on, plan.rounds, keeper, progress);
        run.rows.extend(rows);
        for Entrant { name, contender, .. } in &entrants {
            run.tell(contender.configured(name));
        }
        outcome?;
    }
    let why = run.left_out.join("; ");
    ensure!(!run.rows.is_empty() || why.is_empty(), "nothing is left to measure: {why}");
    Ok(())
}

/// Sets the scheduler of a subject's device, where one is wanted; `None` where the device has no
/// schedulers, which the run then says.
fn choose(
    name: Option<&str>,
    subject: &Subject,
    run: &mut Run,
) -> Result<Option<Option<Scheduler>>> {
    let Some(name) = name else { return Ok(Some(None)) };
    match Scheduler::beneath(&subject.address)? {
        Some(schedulers) => Ok(Some(Some(schedulers.choose(name)?))),
        None => {
            let why = format!("{} under {name}: it has no I/O scheduler", subject.name);
            if !run.left_out.contains(&why) {
                run.left_out.push(why);
            }
            Ok(None)
        }
    }
}

/// What all contenders of a race do.
#[derive(Clone, Copy, Debug)]
pub struct Course<'a> {
    /// On what.
    pub subject: &'a Subject,
    /// Device, load and workload, as the rows keep it.
    pub setting: &'a Setting,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time for one contender in one round.
    pub batch: Duration,
}

/// What contenders are opened with.
#[derive(Clone, Copy)]
struct Sources<'a> {
    monitor: &'a Arc<SystemMonitor>,
    peers: Option<&'a Peers>,
}

/// The contenders of a plan that can be measured on a subject.
fn enter(plan: &Plan, subject: &Subject, from: Sources<'_>) -> Result<Vec<Entrant>> {
    let scheme = dwell::open::is_scheme(&subject.address);
    let takes_part = |name: &&String| !(scheme && contender::is_foreign(name));
    let enter = |name: &String| match from.peers {
        Some(peers) if is_peer(name) => {
            let contender = Contender::peer(name, subject, peers)?;
            Ok(Entrant { name: name.clone(), contender, monitor: None })
        }
        _ => Entrant::open(name, subject, from.monitor),
    };
    plan.contenders.iter().filter(takes_part).map(enter).collect()
}

/// All entrants at one size in one setting, one row each. The order rotates from round to round,
/// so that none always runs after the same neighbour.
pub fn race(
    entrants: &mut [Entrant],
    course: &Course<'_>,
    loads: Option<&mut Loads>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let (rows, outcome) = race_until(entrants, course, loads, &mut Keeper::default(), progress);
    outcome.map(|()| rows)
}

/// A race that something may end: rows of the rounds that all entrants completed, none without
/// such a round, and what ended it.
fn race_until(
    entrants: &mut [Entrant],
    course: &Course<'_>,
    mut loads: Option<&mut Loads>,
    keeper: &mut Keeper,
    progress: &mut dyn FnMut(&str),
) -> (Vec<Row>, Result<()>) {
    let Course { subject, setting, size_bytes, rounds, batch } = *course;
    let mut rows: Vec<Row> = entrants
        .iter()
        .map(|entrant| Row {
            setting: setting.clone(),
            size_bytes,
            policy: entrant.name.clone(),
            rounds: Vec::with_capacity(rounds),
            emulated: subject.emulated.clone(),
        })
        .collect();
    let Some(requests) = setting.requests() else {
        return (vec![], Err(anyhow!("a race is run over requests of one kind")));
    };
    let (stop, counters) = (keeper.stop(), keeper.wants_counters());
    let mut measure = Measure::new(requests, size_bytes, subject.bytes, batch, keeper);
    let mut tally = measure.keeper.rounds(rounds);
    let outcome = std::thread::scope(|scope| {
        let start = |entrant| Lane::start(scope, entrant, stop.clone(), counters);
        let lanes: Vec<Lane> = entrants.iter_mut().map(start).collect();
        let mut outcome =
            lanes.iter().try_for_each(|lane| measure.ask(lane, Ask::WarmUp).map(drop));
        while outcome.is_ok() && tally.wants_more() {
            tally.begin();
            let round = tally.complete();
            outcome = one_round(&lanes, round, &mut measure, &mut loads, progress, &mut rows);
            if outcome.is_ok() {
                tally.end();
            }
        }
        outcome
    });
    tally.close();
    measure.keeper.add(&tally);
    let counting = tally.counting();
    for row in &mut rows {
        let mut counts = counting.iter().copied();
        row.rounds.retain(|_| counts.next().unwrap_or(false));
    }
    rows.retain(|row| !row.rounds.is_empty());
    // A signal may end CPU stressors too: what was asked for is the reason then.
    let outcome = outcome.with_context(|| setting.device.clone());
    (rows, measure.keeper.check().map_err(Into::into).and(outcome))
}

/// One batch of each entrant.
fn one_round(
    lanes: &[Lane],
    round: usize,
    measure: &mut Measure<'_>,
    loads: &mut Option<&mut Loads>,
    progress: &mut dyn FnMut(&str),
    rows: &mut [Row],
) -> Result<()> {
    for turn in 0..lanes.len() {
        let at = (turn + round) % lanes.len();
        let (lane, row) = (&lanes[at], &mut rows[at]);
        let name = row.policy.clone();
        progress(&format!("{}, {}, {name}", row.setting, units::bytes(row.size_bytes)));
        let _pause = contender::PauseChoice::of(&name);
        let measured = measure
            .ask(lane, Ask::LeadIn)
            .and_then(|_| measure.measure(&name, lane, loads.as_deref()))
            .with_context(|| format!("{name}, round {}", round + 1))?;
        row.rounds.push(measured);
        measure.keeper.write(row, round);
    }
    match loads {
        Some(loads) => loads.check(),
        None => Ok(()),
    }
}
