// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders on a device, sampled by [`crate::pairs`] in a state of the machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dwell::monitor::SystemMonitor;

use crate::contender::{PauseChoice, learns};
use crate::entrant::Entrant;
use crate::fixture::State;
use crate::keep::{Keep, Keeper};
use crate::lane::{Ask, Lane};
use crate::loads::{Loads, Means};
use crate::measure::Measure;
use crate::pairs::{self, Parts, Sampled, Until};
use crate::result::{Load, Metric, Requests, RoundResult, Row, Setting};
use crate::stand::Kind;
use crate::subject::Subject;

/// A number that each measured part gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// By its name in runs.
    Metric(Metric),
    /// Events per request, by their name in [`crate::counters`].
    Counter(&'static str),
}

impl Number {
    fn of(self, round: &RoundResult) -> f64 {
        match self {
            Number::Metric(metric) => metric.of(round),
            Number::Counter(name) => {
                let count = round.counters.get(name).copied().unwrap_or(f64::NAN);
                count / round.requests as f64
            }
        }
    }
}

/// One question to sample: the subject, the contenders, and the numbers compared.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// On what.
    pub subject: &'a Subject,
    /// The contender that the others are held against; it takes part twice.
    pub baseline: &'a str,
    /// The others.
    pub contenders: &'a [&'a str],
    /// Order, direction and queue depth of the requests.
    pub requests: Requests,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// What runs beside.
    pub load: Load,
    /// Where the kernel's workers run.
    pub state: State,
    /// The numbers compared.
    pub numbers: &'a [Number],
    /// Length of one measured part.
    pub part: Duration,
    /// When to stop.
    pub until: Until,
    /// So long each policy that learns works before anything is measured: it is compared as it is
    /// once it has learned.
    pub learn: Duration,
}

/// Length of one measured part on a device. Before it the contender works unmeasured, as long, or
/// until the scheduler and the monitor have seen it. These are estimates until figure R0 is
/// measured.
pub fn part(kind: Kind, load: Load) -> Duration {
    // Time slices are milliseconds long: a part must hold many of them.
    const BESIDE_LOAD: Duration = Duration::from_secs(1);
    match (load, kind) {
        (Load::Idle, Kind::Emulated | Kind::Zram) => Duration::from_millis(10),
        (Load::Idle, Kind::Loop | Kind::Disk) => Duration::from_millis(200),
        _ => BESIDE_LOAD,
    }
}

/// What a question gave.
pub struct Asked {
    /// Ratios of all contenders.
    pub sampled: Sampled,
    /// All that each did in the blocks that count: the baseline, its second self, the others.
    pub rows: Vec<Row>,
}

/// So long a load runs before anything is measured beside it.
const SETTLE: Duration = Duration::from_millis(300);

/// Samples; the inner error is why the state cannot be made here.
///
/// # Errors
/// A device or process that failed; a machine that was never quiet, as [`pairs::Restless`].
pub fn ask(
    question: &Question<'_>,
    monitor: &Arc<SystemMonitor>,
    means: &Means,
    progress: &mut dyn FnMut(f64),
) -> Result<Result<Asked, String>> {
    let Question { subject, requests, size_bytes, part, load, until, numbers, .. } = *question;
    // Before its threads are started: they have the CPU that it chooses.
    let mut made = match question.state.make() {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let twice = [question.baseline; 2];
    let names: Vec<&str> = twice.iter().chain(question.contenders).copied().collect();
    let open = |name: &&str| Entrant::open(name, subject, monitor);
    let mut entrants: Vec<Entrant> = names.iter().map(open).collect::<Result<_>>()?;
    let mut loads = match load {
        Load::Idle => None,
        load => Some(Loads::start(load, subject, means)?),
    };
    let counters = numbers.iter().any(|number| matches!(number, Number::Counter(_)));
    let mut keeper = Keeper::new(&Keep { counters, ..Keep::default() })?;
    if loads.is_some() {
        keeper.pause(SETTLE.min(part));
    }
    let stop = keeper.stop();
    let mut measure = Measure::new(requests, size_bytes, subject.bytes, part, &mut keeper);
    std::thread::scope(|scope| {
        let start = |entrant| Lane::start(scope, entrant, stop.clone(), counters);
        let lanes: Vec<Lane> = entrants.iter_mut().map(start).collect();
        lanes.iter().try_for_each(|lane| measure.ask(lane, Ask::WarmUp).map(drop))?;
        for (lane, _) in lanes.iter().zip(&names).filter(|(_, name)| learns(name)) {
            let began = Instant::now();
            while began.elapsed() < question.learn {
                measure.ask(lane, Ask::LeadIn)?;
            }
        }
        let setting = Setting::new(subject, load, requests);
        let row = |name: &&str| Row {
            setting: setting.clone(),
            size_bytes,
            policy: name.to_string(),
            rounds: Vec::new(),
            emulated: subject.emulated.clone(),
        };
        let parts = |contender: usize| {
            let (name, lane) = (names[contender], &lanes[contender]);
            let _pause = PauseChoice::of(name);
            let measured = measure
                .ask(lane, Ask::LeadIn)
                .and_then(|_| measure.measure(name, lane, loads.as_ref()));
            let round = measured.with_context(|| name.to_owned())?;
            if let Some(loads) = &mut loads {
                loads.check()?;
            }
            Ok((numbers.iter().map(|number| number.of(&round)).collect(), round))
        };
        let contenders = question.contenders.len();
        let mut parts = Parts::new(contenders, until, parts).in_state(|| made.holds());
        let sampled = pairs::sample(contenders, until, &mut parts, progress)?;
        let rows = names.iter().map(row).zip(std::mem::take(&mut parts.kept));
        let rows = rows.map(|(row, rounds)| Row { rounds, ..row }).collect();
        Ok(Ok(Asked { sampled, rows }))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dwell::monitor::Config;
    use dwell_host::profile::SwitchCosts;

    use super::*;
    use crate::subject::Probing;

    #[test]
    fn contenders_are_sampled_beside_the_baseline_and_its_second_self() {
        let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
        let probing = Probing::hasty(SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() });
        let address = Path::new("emu:z-nand");
        let subject = Subject::new("emu", address, false, None, &probing).unwrap();
        let means =
            Means { hidden: vec![], stressors: 0, bystanders: 0, directory: std::env::temp_dir() };
        let question = Question {
            subject: &subject,
            baseline: "block",
            contenders: &["spin"],
            requests: Requests::random_reads(),
            size_bytes: 4096,
            load: Load::Idle,
            state: State::Free,
            numbers: &[Number::Metric(Metric::Throughput), Number::Metric(Metric::CpuPerRequest)],
            part: Duration::from_millis(2),
            until: Until::within(10.0).with_effort(0.01, true),
            learn: Duration::from_millis(10),
        };
        let Asked { sampled, rows } =
            ask(&question, &monitor, &means, &mut |_| ()).unwrap().unwrap();
        assert_eq!((sampled.ratios.len(), sampled.ratios[0].len()), (1, 2));
        assert_eq!(sampled.control.len(), 2);
        assert!(sampled.narrow && sampled.blocks >= 1, "{sampled:?}");
        let policies: Vec<&str> = rows.iter().map(|row| row.policy.as_str()).collect();
        assert_eq!(policies, ["block", "block", "spin"]);
        // There and back in each turn.
        let parts = 2 * sampled.control[0].rounds;
        assert!(rows.iter().all(|row| row.rounds.len() == parts), "{rows:?}");
    }
}
