// SPDX-License-Identifier: MIT OR Apache-2.0
//! S5: counting what is already in flight on the device, beside a thread with larger requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result};
use dwell::buffer::Aligned;
use dwell::policy::{Block, SmartCon};
use dwell::{Decision, DeviceClass, WaitPolicy, clock};
use dwell_policy::Wait;

use super::lab::{both, cpu_text, put, skip, skip_all, unless_class};
use super::sums::spun;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::contender::Contender;
use dwell_bench::entrant::Entrant;
use dwell_bench::fixture::State;
use dwell_bench::result::{Direction, Load, Metric, Requests, Row, Setting, pair};
use dwell_bench::run::{Course, race};
use dwell_bench::stand::Kind;
use dwell_bench::stats::SplitMix;
use dwell_bench::subject::Subject;

const SIZE_BYTES: u64 = 4096;
/// Requests in flight ahead of one, on average, at the papers' mean queue of 1.09.
const AHEAD: f64 = 0.09;

const COUNTED: &str = "backlog counted ÷ not counted";
const GAIN: &str = "backlog counted ÷ block";
const LIMITS: &str = "queue limit 1 ÷ queue limit 0";
const SEEN: &str = "mean queue seen";

/// What a policy may see of the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    All,
    NumberOnly,
    Nothing,
}

/// A policy that sees part of the backlog, and counts what was there.
struct Watched {
    inner: Box<dyn WaitPolicy>,
    sight: Sight,
    asked: AtomicU64,
    ahead: AtomicU64,
}

impl Watched {
    fn new(inner: impl WaitPolicy + 'static, sight: Sight) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Watched { inner: Box::new(inner), sight, asked: zero(), ahead: zero() })
    }

    /// Requests ahead of one on average, since the last call.
    fn mean_ahead(&self) -> f64 {
        let asked = self.asked.swap(0, Relaxed);
        self.ahead.swap(0, Relaxed) as f64 / asked.max(1) as f64
    }
}

impl WaitPolicy for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.asked.fetch_add(1, Relaxed);
        self.ahead.fetch_add(wait.backlog.requests.into(), Relaxed);
        let mut wait = wait.clone();
        match self.sight {
            Sight::All => {}
            Sight::NumberOnly => wait.backlog.bytes = 0,
            Sight::Nothing => wait.backlog = dwell_policy::Backlog::default(),
        }
        self.inner.choose(&wait)
    }
}

/// The other thread: large requests with a pause between, until told to stop.
struct Neighbour<'a> {
    subject: &'a Subject,
    size_bytes: u64,
    pause_ns: AtomicU64,
    requests: AtomicU64,
    stop: AtomicBool,
}

impl Neighbour<'_> {
    fn run(&self) -> Result<()> {
        // Watched, because a file that always blocks is not asked, and then counts nothing.
        let policy = Watched::new(Block, Sight::All);
        let mut contender = Contender::under(policy, self.subject, self.subject.parameters, None)?;
        let mut buffer = Aligned::new(self.size_bytes as usize);
        let places = (self.subject.bytes / self.size_bytes).max(1) as usize;
        let mut random = SplitMix(5);
        while !self.stop.load(Relaxed) {
            let offset = random.below(places) as u64 * self.size_bytes;
            contender.request(Direction::Read, &mut buffer, offset)?;
            self.requests.fetch_add(1, Relaxed);
            match self.pause_ns.load(Relaxed) {
                0 => {}
                pause_ns => clock::sleep_until(clock::now() + pause_ns),
            }
        }
        Ok(())
    }
}

/// S5.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let odd = unless_class(&subject, DeviceClass::Fast);
    let threshold = subject.parameters.profile.map_or(0, |p| p.size_threshold_bytes).min(512 << 10);
    let size_bytes = (threshold * 2).max(128 << 10);
    beside(&subject, size_bytes, |neighbour| {
        let pause_ns = calibrate(lab, neighbour)?;
        progress("mean queue 1.09", 0.1);
        let remark = both(odd.clone(), Some(format!("a pause of {} µs", pause_ns / 1000)));
        compare(lab, result, neighbour, "mean queue 1.09", remark, &mut |what, share| {
            progress(what, 0.1 + 0.3 * share);
        })?;
        neighbour.pause_ns.store(0, Relaxed);
        compare(lab, result, neighbour, "mean queue near 2", odd.clone(), &mut |what, share| {
            progress(what, 0.4 + 0.3 * share);
        })
    })?;
    // Whether a spin keeps somebody from what it waits for: the worker and the other thread want
    // the reader's CPU.
    let queue = "one CPU, queue near 2";
    let _made = match State::Together.make() {
        Ok(made) => made,
        Err(why) => return skip(result, &cases(queue), &why.to_string()).map(|()| None),
    };
    beside(&subject, size_bytes, |neighbour| {
        neighbour.pause_ns.store(0, Relaxed);
        compare(lab, result, neighbour, queue, odd, &mut |what, share| {
            progress(what, 0.7 + 0.3 * share);
        })
    })?;
    Ok(None)
}

/// Does something while another thread works on the same device.
fn beside(
    subject: &Subject,
    size_bytes: u64,
    work: impl FnOnce(&Neighbour<'_>) -> Result<()>,
) -> Result<()> {
    let neighbour = Neighbour {
        subject,
        size_bytes,
        pause_ns: AtomicU64::new(1_000_000),
        requests: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| neighbour.run());
        let measured = work(&neighbour);
        neighbour.stop.store(true, Relaxed);
        let ended = other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
        ended.context("the other thread")?;
        measured
    })
}

/// Cases of one mean queue.
fn cases(queue: &str) -> [String; 4] {
    [COUNTED, GAIN, LIMITS, SEEN].map(|case| format!("{queue}: {case}"))
}

/// Finds the pause at which a request under smartcon meets 0.09 others on average.
fn calibrate(lab: &Lab, neighbour: &Neighbour<'_>) -> Result<u64> {
    let watched = Watched::new(SmartCon::default(), Sight::All);
    let subject = neighbour.subject;
    let mut contender = Contender::under(watched.clone(), subject, subject.parameters, None)?;
    let mut buffer = Aligned::new(SIZE_BYTES as usize);
    let mut pause_ns = 1_000_000.0f64;
    for _ in 0..lab.times(16) {
        neighbour.pause_ns.store(pause_ns as u64, Relaxed);
        watched.mean_ahead();
        let until = clock::now() + lab.span(150).as_nanos() as u64;
        while clock::now() < until {
            contender.request(Direction::Read, &mut buffer, 0)?;
        }
        pause_ns *= (watched.mean_ahead() / AHEAD).clamp(0.5, 2.0);
        pause_ns = pause_ns.clamp(20_000.0, 50_000_000.0);
    }
    neighbour.pause_ns.store(pause_ns as u64, Relaxed);
    Ok(pause_ns as u64)
}

/// Fills the cases of one mean queue. No monitor is asked: the backlog alone is to decide.
fn compare(
    lab: &Lab,
    result: &mut FigureResult,
    neighbour: &Neighbour<'_>,
    queue: &str,
    remark: Option<String>,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let limited = |limit| SmartCon { queue_limit: Some(limit), ..SmartCon::default() };
    let watched = [
        ("block", Watched::new(Block, Sight::All)),
        ("backlog counted", Watched::new(SmartCon::default(), Sight::All)),
        ("backlog not counted", Watched::new(SmartCon::default(), Sight::Nothing)),
        ("queue limit 0", Watched::new(limited(0), Sight::NumberOnly)),
        ("queue limit 1", Watched::new(limited(1), Sight::NumberOnly)),
    ];
    let subject = neighbour.subject;
    let mut entrants = Vec::new();
    for (name, policy) in &watched {
        let contender = Contender::under(policy.clone(), subject, subject.parameters, None)?;
        entrants.push(Entrant { name: name.to_string(), contender, monitor: None });
    }
    let setting = Setting::new(subject, Load::Idle, Requests::random_reads());
    let (rounds, batch) = (lab.times(31), lab.span(150));
    let course = Course { subject, setting: &setting, size_bytes: SIZE_BYTES, rounds, batch };
    let all = (rounds * entrants.len()) as f64;
    let mut done = 0.0;
    let before = neighbour.requests.load(Relaxed);
    let rows = race(&mut entrants, &course, None, &mut |what| {
        progress(what, done / all);
        done += 1.0;
    })?;
    let others = neighbour.requests.load(Relaxed) - before;
    let row = |name: &str| rows.iter().find(|row| row.policy == name);
    let ratio = |ours, base| pair(row(ours)?, row(base)?, Metric::Throughput);
    let spun = |row: &Row| format!("{:.0} % spun for", 100.0 * spun(row));
    let [counted, gain, limits, seen] = cases(queue);
    for (case, ours, base) in [
        (counted, "backlog counted", "backlog not counted"),
        (gain, "backlog counted", "block"),
        (limits, "queue limit 1", "queue limit 0"),
    ] {
        let cpu = row(ours).zip(row(base)).and_then(|(ours, base)| cpu_text(ours, base));
        let note = both(both(row(ours).map(spun), cpu), remark.clone());
        put(result, &case, ratio(ours, base), note)?;
    }
    let means: Vec<f64> = watched.iter().map(|(_, policy)| 1.0 + policy.mean_ahead()).collect();
    let (low, high) = means.iter().fold((f64::MAX, 0.0f64), |(l, h), &m| (l.min(m), h.max(m)));
    let mean = Measured { value: means[1], low, high };
    let size = dwell_bench::units::bytes(neighbour.size_bytes);
    let note = format!(
        "counted; interval: lowest to highest variation; {others} requests of {size} beside"
    );
    put(result, &seen, Some(mean), Some(note))
}

#[cfg(test)]
mod tests {
    use dwell::Reason;
    use dwell_policy::{Backlog, Kind, Profile};

    use super::*;

    #[test]
    fn a_watched_policy_sees_what_it_may_and_counts_all() {
        let profile = Profile::default();
        let mut wait = Wait::new(Kind::Read, 4096, Some(&profile));
        wait.backlog = Backlog { bytes: 64 << 10, requests: 1 };
        let why = |sight, queue_limit| {
            let policy = Watched::new(SmartCon { queue_limit, ..SmartCon::default() }, sight);
            let why = policy.choose(&wait).reason;
            assert_eq!((policy.mean_ahead(), policy.mean_ahead()), (1.0, 0.0));
            why
        };
        assert_eq!(why(Sight::All, None), Reason::Backlog);
        assert_eq!(why(Sight::Nothing, Some(0)), Reason::Pays);
        assert_eq!(why(Sight::NumberOnly, Some(0)), Reason::QueueLength);
        assert_eq!(why(Sight::NumberOnly, Some(1)), Reason::Pays);
    }
}
