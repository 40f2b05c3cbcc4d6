// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders on a device, sampled by [`crate::pairs`] in a state of the machine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dwell::monitor::SystemMonitor;

use crate::contender::PauseChoice;
use crate::fixture::{Made, State};
use crate::keep::Keeper;
use crate::lane::{Ask, Lane};
use crate::loads::{Loads, Means};
use crate::measure::Measure;
use crate::pairs::{self, Sampled, Trial, Until};
use crate::quiet::{Noise, Window};
use crate::result::{Load, Metric, Requests};
use crate::run::Entrant;
use crate::subject::Subject;

/// What is sampled.
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
    /// What is compared.
    pub metrics: &'a [Metric],
    /// Length of one measured part.
    pub part: Duration,
    /// When to stop.
    pub until: Until,
}

/// Samples; the inner error is why the state cannot be made here.
///
/// # Errors
/// A device or process that failed; a machine that was never quiet.
pub fn ask(
    question: &Question<'_>,
    monitor: &Arc<SystemMonitor>,
    means: &Means,
    progress: &mut dyn FnMut(f64),
) -> Result<Result<Sampled, String>> {
    let Question { subject, requests, size_bytes, part, .. } = *question;
    // Before its threads are started: they have the CPU that it chooses.
    let made = match question.state.make() {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let twice = [question.baseline; 2];
    let names: Vec<&str> = twice.iter().chain(question.contenders).copied().collect();
    let open = |name: &&str| Entrant::open(name, subject, monitor);
    let mut entrants: Vec<Entrant> = names.iter().map(open).collect::<Result<_>>()?;
    let loads = match question.load {
        Load::Idle => None,
        load => Some(Loads::start(load, subject, means)?),
    };
    let mut keeper = Keeper::default();
    let stop = keeper.stop();
    let mut measure = Measure::new(requests, size_bytes, subject.bytes, part, &mut keeper);
    std::thread::scope(|scope| {
        let start = |entrant| Lane::start(scope, entrant, stop.clone(), false);
        let lanes: Vec<Lane> = entrants.iter_mut().map(start).collect();
        lanes.iter().try_for_each(|lane| measure.ask(lane, Ask::WarmUp).map(drop))?;
        let metrics = question.metrics;
        let loads = loads.as_ref();
        let mut race = Race { names, lanes, measure, metrics, loads, made: &made, window: None };
        pairs::sample(question.contenders.len(), question.until, &mut race, progress).map(Ok)
    })
}

struct Race<'a> {
    names: Vec<&'a str>,
    lanes: Vec<Lane>,
    measure: Measure<'a>,
    metrics: &'a [Metric],
    loads: Option<&'a Loads>,
    made: &'a Made,
    window: Option<Window>,
}

impl Trial for Race<'_> {
    fn part(&mut self, contender: usize) -> Result<Vec<f64>> {
        let (name, lane) = (self.names[contender], &self.lanes[contender]);
        let _pause = PauseChoice::of(name);
        self.measure.ask(lane, Ask::LeadIn)?;
        let round = self.measure.measure(name, lane, self.loads)?;
        Ok(self.metrics.iter().map(|metric| metric.of(&round)).collect())
    }

    fn begin(&mut self) {
        self.window = Window::begin();
    }

    fn noise(&mut self) -> Noise {
        self.window.map_or(Noise::default(), |window| window.noise())
    }

    fn in_state(&mut self) -> bool {
        self.made.holds()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dwell::monitor::Config;
    use dwell::profile::SwitchCosts;

    use super::*;
    use crate::subject::Probing;

    #[test]
    fn contenders_are_sampled_beside_the_baseline_and_its_second_self() {
        let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
        let probing = Probing::hasty(SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() });
        let address = Path::new("emu:z-nand");
        let subject = Subject::new("emu", address, false, None, &probing).unwrap();
        let means =
            Means { hidden: vec![], crunchers: 0, bystanders: 0, directory: std::env::temp_dir() };
        let question = Question {
            subject: &subject,
            baseline: "block",
            contenders: &["spin"],
            requests: Requests::random_reads(),
            size_bytes: 4096,
            load: Load::Idle,
            state: State::Free,
            metrics: &[Metric::Throughput, Metric::CpuPerRequest],
            part: Duration::from_millis(2),
            until: Until { width: 10.0, limit: Duration::from_secs(2), block: Duration::ZERO },
        };
        match ask(&question, &monitor, &means, &mut |_| ()) {
            Ok(sampled) => {
                let sampled = sampled.unwrap();
                assert_eq!((sampled.ratios.len(), sampled.ratios[0].len()), (1, 2));
                assert_eq!(sampled.control.len(), 2);
                assert!(sampled.narrow && sampled.blocks >= 8, "{sampled:?}");
            }
            // Beside a compiler no block is quiet, and then it says so.
            Err(why) => assert!(why.to_string().contains("not quiet"), "{why:#}"),
        }
    }
}
