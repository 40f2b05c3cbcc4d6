// SPDX-License-Identifier: MIT OR Apache-2.0
//! R2: how long the default policy takes until it waits in the arm that costs least, and what its
//! trials cost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::policy::Adaptive;
use dwell::{Decision, File, Options, Reason, WaitPolicy};
use dwell_policy::{Arm, Arms, Call, Goal, Kind as Request, Load, Ns, Wait};

use super::lab::skip;
use super::sampled::step;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::State;
use dwell_bench::loads::Loads;
use dwell_bench::quiet::Window;
use dwell_bench::stand::Kind;
use dwell_bench::stats::{SplitMix, Summary};
use dwell_bench::subject::Subject;
use dwell_bench::units;

/// What begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// The first request on a device that was never probed.
    Unprobed,
    /// The first request after a probe.
    Probed,
    /// Requests of another size.
    Size,
    /// A state of the machine in which another arm is best, after these in turn.
    After(&'static [State]),
    /// Another process of the same user, in a state in which another arm is best than before.
    NextProcess(&'static [State]),
    /// A load.
    Load,
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    case: &'static str,
    on: Kind,
    state: State,
    begins: Begins,
}

const SCENES: [Scene; 9] = [
    Scene::new("emulated 10 µs, never probed", Kind::Emulated, State::Free, Begins::Unprobed),
    Scene::new("emulated 10 µs, probed", Kind::Emulated, State::Free, Begins::Probed),
    Scene::new("emulated 10 µs, another size", Kind::Emulated, State::Free, Begins::Size),
    Scene::new("loop apart, never probed", Kind::Loop, State::Apart, Begins::Unprobed),
    Scene::new("loop together, never probed", Kind::Loop, State::Together, Begins::Unprobed),
    Scene::new("loop, together and then apart", Kind::Loop, State::Apart, AFTER_ONE),
    Scene::new("loop, apart and together in turn", Kind::Loop, State::Together, AFTER_THREE),
    Scene::new("loop, apart, the next process together", Kind::Loop, State::Together, NEXT),
    Scene::new("loop, idle and then stressors", Kind::Loop, State::Free, Begins::Load),
];

const AFTER_ONE: Begins = Begins::After(&[State::Together]);
const NEXT: Begins = Begins::NextProcess(&[State::Apart]);
/// The last change soon follows another.
const AFTER_THREE: Begins = Begins::After(&[State::Apart, State::Together, State::Apart]);

impl Scene {
    const fn new(case: &'static str, on: Kind, state: State, begins: Begins) -> Scene {
        Scene { case, on, state, begins }
    }

    /// The rows: how long it took, and what the trials cost.
    fn cases(self) -> [String; 2] {
        [self.case.to_owned(), format!("{}: trials", self.case)]
    }
}

/// An arm that costs at most so much more than the best is as good.
const AS_GOOD: f64 = 1.05;
const BLOCK_BYTES: u64 = 4096;

/// One arm only.
struct Only(Arm);

impl WaitPolicy for Only {
    fn name(&self) -> &str {
        self.0.as_str()
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.0.decide(wait, Reason::Fixed)
    }
    fn looks_at_backlog(&self) -> bool {
        false
    }
}

/// R2.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    for (at, scene) in SCENES.into_iter().enumerate() {
        let cases = scene.cases();
        if !lab.wants(result, &cases) {
            continue;
        }
        progress(&format!("making {}", scene.on.as_str()), at as f64 / SCENES.len() as f64);
        let subject = match subject(lab, scene)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let mut step = step(progress, &cases[0], at, SCENES.len());
        let times = lab.times(5);
        let found = lab.sample(result, &cases, || {
            let mut found = Vec::new();
            for time in 0..times {
                step.show(time as f64 / times as f64);
                match once(lab, &subject, scene)? {
                    Ok(one) => found.push(one),
                    Err(why) => return Ok(Err(why)),
                }
            }
            Ok(Ok(found))
        })?;
        let Some(found) = found else { continue };
        let until_s: Vec<f64> = found.iter().filter_map(|one| one.until_s).collect();
        let never = found.len() - until_s.len();
        let trials = found.iter().map(|one| 100.0 * one.trials).collect();
        for (case, numbers) in cases.iter().zip([until_s, trials]) {
            if let Some(of_all) = Summary::of(numbers) {
                let (value, low, high) = (of_all.median, of_all.min, of_all.max);
                result.measured(case, Measured { value, low, high })?;
            }
        }
        let mut best: Vec<&str> = found.iter().map(|one| one.best.as_str()).collect();
        best.dedup();
        let restless = found.iter().filter(|one| !one.quiet).count();
        let horizon = units::time_ns(lab.span(HORIZON_MS).as_nanos() as f64);
        let mut note = format!("best: {}; {times} times {horizon}", best.join(", then "));
        if restless > 0 {
            note += &format!("; {restless} not quiet");
        }
        result.note(&cases[0], &note)?;
        if never > 0 {
            // Watched for less than the target, it would meet it by never being right.
            result.forget(|case| case == cases[0])?;
            result.postpone(&cases[0], &format!("{never} times still wrong at the end; {note}"))?;
        }
        lab.keep(result)?;
    }
    Ok(None)
}

/// How long the default policy is watched.
const HORIZON_MS: u64 = 40_000;
/// How long each arm is measured, after half as long that is not.
const ARM_MS: u64 = 2_000;
/// CPU stressors, where a load begins.
const STRESSORS: usize = 10;
/// What comes before a change.
const BEFORE_MS: u64 = 12_000;

fn subject(lab: &mut Lab, scene: Scene) -> Result<Result<Subject, String>> {
    Ok(match (lab.subject(scene.on)?, scene.on) {
        (Ok(_), Kind::Emulated) => {
            let address = Path::new("emu:latency=10us,size=64MiB");
            Ok(Subject::new("emulated 10 µs", address, false, None, &lab.probing())?)
        }
        (found, _) => found,
    })
}

/// What one run showed.
struct Found {
    /// Until it was right and stayed so, in seconds; `None` where it was wrong at the end.
    until_s: Option<f64>,
    /// Time that the trials cost ÷ all time.
    trials: f64,
    best: Arm,
    quiet: bool,
}

fn once(lab: &Lab, subject: &Subject, scene: Scene) -> Result<Result<Found, String>> {
    // It shares no page but its own, so that nothing is remembered from elsewhere.
    let pages = tempfile::tempdir_in("/dev/shm").context("making host pages")?;
    let host_page =
        matches!(scene.begins, Begins::NextProcess(_)).then(|| pages.path().join("host"));
    let monitor = Arc::new(SystemMonitor::start(Config { host_page, ..Config::default() })?);
    let parameters = if scene.begins == Begins::Probed {
        subject.parameters
    } else {
        DeviceParameters::default()
    };
    let open = |policy: Arc<dyn WaitPolicy>| {
        let options = Options::new().direct(subject.direct).parameters(parameters).policy(policy);
        options.monitor(monitor.clone()).open(&subject.address)
    };
    let make = |state: State| state.make().map_err(|why| why.to_string());
    let window = Window::begin();
    let mut made = match make(scene.state) {
        Ok(made) => Some(made),
        Err(why) => return Ok(Err(why)),
    };
    let load = || match scene.begins {
        Begins::Load => Loads::stressors(STRESSORS, &lab.hidden).map(Some),
        _ => Ok(None),
    };
    let mut loads = load()?;
    let size_bytes = if scene.begins == Begins::Size { 2 * BLOCK_BYTES } else { BLOCK_BYTES };
    let mut reads = Reads::new(subject, size_bytes);
    let (span, half) = (lab.span(ARM_MS), lab.span(ARM_MS / 2));
    let mut costs: Vec<(Arm, Took)> = Vec::new();
    let offered = {
        let file = open(Arc::new(Adaptive::default()))?;
        Arms::of(&file.wait_of(Request::Read, size_bytes, Call::Blocking), 1)
    };
    // Beside a load, time slices decide what a short while shows.
    let rounds = if loads.is_some() { 4 } else { 1 };
    for arm in (0..rounds).flat_map(|_| Arm::ALL).filter(|arm| offered.has(*arm)) {
        let file = open(Arc::new(Only(arm)))?;
        reads.during(half, &file, &mut |_| ())?;
        let took = reads.during(span, &file, &mut |_| ())?.of(rounds);
        match costs.iter_mut().find(|(known, _)| *known == arm) {
            Some((_, sum)) => sum.add(took),
            None => costs.push((arm, took)),
        }
    }
    let blocking = costs.iter().filter(|(arm, _)| !arm.spins());
    let least_cpu_ns = blocking.map(|(_, took)| took.cpu_ns).fold(f64::INFINITY, f64::min);
    // Beside others, a spin may take no more CPU time than blocking (docs/explanation/policies.md).
    let may_serve = |(arm, took): &&(Arm, Took)| {
        !(loads.is_some() && arm.spins()) || took.cpu_ns <= least_cpu_ns * AS_GOOD
    };
    let fit: Vec<_> = costs.iter().filter(may_serve).collect();
    let best = fit.iter().min_by(|a, b| a.1.cost_ns.total_cmp(&b.1.cost_ns));
    let (best, least_ns) =
        best.map_or((Arm::Call, f64::INFINITY), |(arm, took)| (*arm, took.cost_ns));
    let is_good = |took: &Took| took.cost_ns <= least_ns * AS_GOOD;
    let good: Arms = fit.iter().filter(|(_, took)| is_good(took)).map(|(arm, _)| *arm).collect();
    drop(loads.take());

    let mut file = open(Arc::new(Adaptive::default()))?;
    match scene.begins {
        Begins::Unprobed | Begins::Probed => {}
        Begins::Size => {
            Reads::new(subject, BLOCK_BYTES).during(lab.span(BEFORE_MS), &file, &mut |_| ())?;
        }
        Begins::Load => {
            reads.during(lab.span(BEFORE_MS), &file, &mut |_| ())?;
            loads = load()?;
        }
        Begins::After(states) | Begins::NextProcess(states) => {
            drop(made.take());
            for state in states {
                let before = match make(*state) {
                    Ok(before) => before,
                    Err(why) => return Ok(Err(why)),
                };
                let each = lab.span(BEFORE_MS / states.len() as u64);
                reads.during(each, &file, &mut |_| ())?;
                drop(before);
            }
            made = match make(scene.state) {
                Ok(made) => Some(made),
                Err(why) => return Ok(Err(why)),
            };
            if matches!(scene.begins, Begins::NextProcess(_)) {
                // It begins with what this one has found.
                drop(file);
                file = open(Arc::new(Adaptive::default()))?;
            }
        }
    }
    let (began, spent) = (clock::now(), reads.regret_ns(&file));
    let (mut wrong_until, mut right) = (began, true);
    reads.during(lab.span(HORIZON_MS), &file, &mut |now| {
        right = good.has(incumbent(&file, size_bytes));
        if !right {
            wrong_until = now;
        }
    })?;
    let took_ns = clock::now().saturating_sub(began).max(1) as f64;
    drop((made, loads));
    Ok(Ok(Found {
        until_s: right.then(|| wrong_until.saturating_sub(began) as f64 / 1e9),
        trials: (reads.regret_ns(&file) - spent) / took_ns,
        best,
        quiet: window.is_none_or(|window| window.noise().is_quiet()),
    }))
}

/// How requests are served but for trials.
fn incumbent(file: &File, size_bytes: u64) -> Arm {
    let wait = file.wait_of(Request::Read, size_bytes, Call::Blocking);
    let known = file.learner().and_then(|learner| learner.told(&wait, 1));
    let prior = || Arm::of(&file.policy().choose(&wait));
    known.map_or_else(prior, |known| known.incumbent)
}

/// What a request took.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// By the price that the default goal puts on CPU time.
    cost_ns: f64,
    cpu_ns: f64,
}

impl Took {
    /// Its part of so many rounds' mean.
    fn of(self, rounds: u32) -> Took {
        let [cost_ns, cpu_ns] = [self.cost_ns, self.cpu_ns].map(|ns| ns / f64::from(rounds));
        Took { cost_ns, cpu_ns }
    }

    fn add(&mut self, other: Took) {
        self.cost_ns += other.cost_ns;
        self.cpu_ns += other.cpu_ns;
    }
}

/// Random reads of one size, one at a time.
struct Reads {
    buffer: Aligned,
    places: usize,
    size_bytes: u64,
    random: SplitMix,
}

impl Reads {
    fn new(subject: &Subject, size_bytes: u64) -> Reads {
        let places = (subject.bytes / size_bytes).max(1) as usize;
        Reads { buffer: Aligned::new(size_bytes as usize), places, size_bytes, random: SplitMix(7) }
    }

    /// Reads for so long; what one of them took on average. `look` is called every few
    /// milliseconds.
    fn during(&mut self, span: Duration, file: &File, look: &mut dyn FnMut(Ns)) -> Result<Took> {
        const LOOK_NS: Ns = 5_000_000;
        let (began, cpu_before) = (clock::now(), clock::thread_cpu());
        let until = began + span.as_nanos() as Ns;
        let (mut now, mut looked, mut requests) = (began, began, 0u64);
        while now < until {
            let offset = self.random.below(self.places) as u64 * self.size_bytes;
            file.read_exact_at(&mut self.buffer, offset)?;
            requests += 1;
            now = clock::now();
            if now - looked >= LOOK_NS {
                look(now);
                looked = now;
            }
        }
        let each = |sum: Ns| sum as f64 / requests.max(1) as f64;
        let cpu_ns = each(clock::thread_cpu().saturating_sub(cpu_before));
        Ok(Took { cost_ns: each(now - began) + Goal::default().cpu_price() * cpu_ns, cpu_ns })
    }

    /// What trials of this size have cost so far.
    fn regret_ns(&self, file: &File) -> f64 {
        let wait = file.wait_of(Request::Read, self.size_bytes, Call::Blocking);
        // The two states of load are searched apart.
        let of = |load| {
            let known = file.learner().and_then(|learner| learner.told(&Wait { load, ..wait }, 1));
            known.map_or(0.0, |known| known.arms.iter().map(|told| told.regret_ns).sum::<f64>())
        };
        of(Load::new(0.0, 0.0, 0.5)) + of(Load::new(1.0, 1.0, 0.5))
    }
}
