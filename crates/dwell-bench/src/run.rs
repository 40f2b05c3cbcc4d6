// SPDX-License-Identifier: MIT OR Apache-2.0
//! The main job: policies × sizes × loads on any device, in interleaved rounds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell::monitor::SystemMonitor;

use crate::contender::{self, Contender, is_peer};
use crate::loads::Crunchers;
use crate::machine::Machine;
use crate::measure::Measure;
use crate::program::Peers;
use crate::result::{Direction, Load, Pattern, Requests, Row, Run, Setting};
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
    /// Number crunchers of [`Load::Cpu`].
    pub crunchers: usize,
    /// Command that runs one number cruncher.
    pub cruncher: Vec<String>,
    /// The program that has the peers, where it is not near this one.
    pub peers_program: Option<PathBuf>,
}

impl Plan {
    /// Batches that it will run on `subjects`.
    pub fn batches(&self, subjects: usize) -> u64 {
        let cells = subjects * self.loads.len() * self.schedulers.len() * self.requests().count();
        (cells * self.sizes.len() * self.contenders.len() * self.rounds) as u64
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
    let peers = plan.peers()?;
    ensure!(!plan.depths.contains(&0), "a queue depth of 0 sends nothing: 1 or more is wanted");
    ensure!(plan.rounds > 0, "no round measures nothing: 1 or more is wanted");
    if plan.directions.contains(&Direction::Write)
        && let Some(subject) = subjects.iter().find(|subject| !subject.write)
    {
        let name = &subject.name;
        anyhow::bail!("{name} is opened for reading only: allow writes, or measure reads");
    }
    for (subject, &size) in
        subjects.iter().flat_map(|s| plan.sizes.iter().map(move |size| (s, size)))
    {
        subject.check_size(size)?;
    }
    let devices = subjects.iter().map(Subject::describe).collect();
    let mut run = Run::new(Machine::gather(), command, devices);
    for &load in &plan.loads {
        let mut crunchers = match load {
            Load::Idle => None,
            Load::Cpu => Some(Crunchers::start(plan.crunchers, &plan.cruncher)?),
            other => anyhow::bail!("no programs make the load {other}"),
        };
        if crunchers.is_some() {
            std::thread::sleep(SETTLE);
        }
        for subject in subjects {
            for scheduler in &plan.schedulers {
                for requests in plan.requests() {
                    let setting = Setting {
                        scheduler: scheduler.clone(),
                        ..Setting::new(subject, load, requests)
                    };
                    for &size in &plan.sizes {
                        let mut entrants = enter(plan, subject, monitor, peers.as_ref())?;
                        let course = Course {
                            subject,
                            setting: &setting,
                            size_bytes: size,
                            rounds: plan.rounds,
                            batch: plan.batch,
                        };
                        let crunchers = crunchers.as_mut();
                        run.rows.extend(race(&mut entrants, &course, crunchers, progress)?);
                        for Entrant { name, contender, .. } in &entrants {
                            run.tell(contender.configured(name));
                        }
                    }
                }
            }
        }
        drop(crunchers);
    }
    run.compare_with(&plan.baseline);
    Ok(run)
}

/// A contender in a race, by the name under which its row is kept.
pub struct Entrant {
    /// Name of the row.
    pub name: String,
    /// What is measured.
    pub contender: Contender,
    /// For a contender that follows the load, the monitor that it asks: its batches begin with
    /// unmeasured requests until that monitor has seen it alone.
    pub monitor: Option<Arc<SystemMonitor>>,
}

impl Entrant {
    /// Opens a subject for a contender of this name.
    pub fn open(name: &str, subject: &Subject, monitor: &Arc<SystemMonitor>) -> Result<Self> {
        Ok(Entrant {
            name: name.into(),
            contender: Contender::open(name, subject, monitor)?,
            monitor: contender::follows_load(name).then(|| monitor.clone()),
        })
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

/// The contenders of a plan that can be measured on a subject.
fn enter(
    plan: &Plan,
    subject: &Subject,
    monitor: &Arc<SystemMonitor>,
    peers: Option<&Peers>,
) -> Result<Vec<Entrant>> {
    let scheme = dwell::open::is_scheme(&subject.address);
    let takes_part = |name: &&String| !(scheme && contender::is_foreign(name));
    let enter = |name: &String| match peers {
        Some(peers) if is_peer(name) => {
            let contender = Contender::peer(name, subject, peers)?;
            Ok(Entrant { name: name.clone(), contender, monitor: None })
        }
        _ => Entrant::open(name, subject, monitor),
    };
    plan.contenders.iter().filter(takes_part).map(enter).collect()
}

/// All entrants at one size in one setting, one row each. The order rotates from round to round,
/// so that none always runs after the same neighbour.
pub fn race(
    entrants: &mut [Entrant],
    course: &Course<'_>,
    mut crunchers: Option<&mut Crunchers>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
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
    let requests = setting.requests().context("a race is run over requests of one kind")?;
    let mut measure = Measure::new(requests, size_bytes, subject.bytes, batch);
    for entrant in entrants.iter_mut() {
        measure.warm_up(&mut entrant.contender)?;
    }
    for round in 0..rounds {
        for turn in 0..entrants.len() {
            let at = (turn + round) % entrants.len();
            let Entrant { name, contender, monitor } = &mut entrants[at];
            progress(&format!("{setting}, {}, {name}", units::bytes(size_bytes)));
            if let Some(monitor) = monitor {
                measure.lead_in(contender, monitor)?;
            }
            rows[at].rounds.push(measure.measure(contender, crunchers.as_deref())?);
        }
        if let Some(crunchers) = &mut crunchers {
            crunchers.check()?;
        }
    }
    Ok(rows)
}
