// SPDX-License-Identifier: MIT OR Apache-2.0
//! What it costs to be woken at a deadline, by each way there is.
//!
//! A real device wakes a blocked thread by an interrupt; an emulated one has only timers. They
//! fire late, and a result measured on an emulated device contains that lateness. It is therefore
//! measured and printed beside the result. It is *not* hidden by arming a timer early: then a
//! blocked thread could be back before its completion, and blocking would look cheaper than any
//! interrupt is.
#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use dwell_policy::{Backlog, Ns, Route};

use crate::queue::{Completion, Full, Queue, Ticket, Wake};
use crate::timerfd::Timer;
use crate::{clock, park};

/// A way to be woken at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeMethod {
    /// clock_nanosleep to the deadline ([`Wake::At`]). Subject to the thread's timer slack.
    Sleep,
    /// ppoll on a timerfd ([`Wake::Descriptor`]). Not subject to the thread's timer slack.
    TimerFd,
    /// A futex wait with a time limit. Measured to compare; a queue cannot hand it out, since
    /// [`Wake::Word`] carries no deadline of its own. Subject to the thread's timer slack.
    Futex,
}

impl WakeMethod {
    /// All ways.
    pub const ALL: [WakeMethod; 3] = [WakeMethod::Sleep, WakeMethod::TimerFd, WakeMethod::Futex];

    /// The word used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            WakeMethod::Sleep => "sleep",
            WakeMethod::TimerFd => "timerfd",
            WakeMethod::Futex => "futex",
        }
    }

    /// Whether a queue can be armed with it.
    pub const fn arms_queues(self) -> bool {
        !matches!(self, WakeMethod::Futex)
    }
}

/// How late a thread comes back that was parked until a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeCost {
    /// The way it was woken.
    pub method: WakeMethod,
    /// Median lateness, in nanoseconds.
    pub median_ns: Ns,
    /// Lateness that nine of ten wake-ups keep below, in nanoseconds.
    pub p90_ns: Ns,
}

impl std::fmt::Display for WakeCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |ns: Ns| ns as f64 / 1e3;
        let (median, p90) = (us(self.median_ns), us(self.p90_ns));
        write!(
            f,
            "woken by {}: {median:.1} µs late (median), {p90:.1} µs (p90)",
            self.method.as_str()
        )
    }
}

/// Wake-ups measured per method.
const ROUNDS: usize = 65;

/// Measures every way on the calling thread, with its timer slack and priority as they are, by
/// parking as any blocked wait does. Takes some 20 ms.
pub fn calibrate() -> Vec<WakeCost> {
    WakeMethod::ALL.into_iter().filter_map(|method| measure(method).ok()).collect()
}

/// What [`calibrate`] said when first asked in this process.
pub fn costs() -> &'static [WakeCost] {
    static COSTS: OnceLock<Vec<WakeCost>> = OnceLock::new();
    COSTS.get_or_init(calibrate)
}

/// The cheapest way that a queue can be armed with. The timerfd is kept unless another is cheaper
/// by a tenth: less would be noise, and what it costs does not depend on which thread measured.
pub fn cheapest() -> &'static WakeCost {
    const UNKNOWN: WakeCost = WakeCost { method: WakeMethod::Sleep, median_ns: 0, p90_ns: 0 };
    choose(costs()).unwrap_or(&UNKNOWN)
}

fn choose(costs: &[WakeCost]) -> Option<&WakeCost> {
    let usable = || costs.iter().filter(|cost| cost.method.arms_queues());
    let least = usable().min_by_key(|cost| cost.median_ns)?;
    let steady = usable().find(|cost| cost.method == WakeMethod::TimerFd).unwrap_or(least);
    let clearly = least.median_ns < steady.median_ns - steady.median_ns / 10;
    Some(if clearly { least } else { steady })
}

/// The measured cost of one way.
pub fn cost_of(method: WakeMethod) -> Option<&'static WakeCost> {
    costs().iter().find(|cost| cost.method == method)
}

fn measure(method: WakeMethod) -> io::Result<WakeCost> {
    let timer = if method == WakeMethod::TimerFd { Some(Timer::new()?) } else { None };
    let mut deadline = Deadline { method, timer, word: AtomicU32::new(0), due: 0 };
    let mut late_ns: Vec<Ns> = (0..ROUNDS)
        .map(|round| {
            // Different spans, so that no periodic tick falls on all of them.
            let due = clock::now() + 20_000 + 700 * round as Ns;
            deadline.due = due;
            let until = (method == WakeMethod::Futex).then_some(due);
            loop {
                park::park(&mut deadline, until, 1, &mut |_| {});
                let now = clock::now();
                if now >= due {
                    return now - due;
                }
            }
        })
        .collect();
    late_ns.sort_unstable();
    let at = |share: usize| late_ns[(ROUNDS - 1) * share / 100];
    Ok(WakeCost { method, median_ns: at(50), p90_ns: at(90) })
}

/// A queue on which nothing is ever found, and a deadline passes.
struct Deadline {
    method: WakeMethod,
    timer: Option<Timer>,
    word: AtomicU32,
    due: Ns,
}

// SAFETY: its requests name no memory, and it takes none.
unsafe impl Queue for Deadline {
    type Op = ();

    fn submit(&mut self, op: (), _: Route) -> Result<Ticket, (Full, ())> {
        Err((Full, op))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: &mut dyn FnMut(Completion)) -> usize {
        0
    }

    fn arm(&mut self, _: u32) -> Wake<'_> {
        match (&self.timer, self.method) {
            (Some(timer), _) if timer.set(self.due) => Wake::Descriptor(timer.descriptor()),
            (_, WakeMethod::Futex) => Wake::Word { word: &self.word, seen: 0 },
            _ => Wake::At(self.due),
        }
    }

    fn cancel(&mut self, _: Ticket) {}

    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_measured_and_one_that_arms_is_chosen() {
        let costs = calibrate();
        assert_eq!(costs.iter().map(|cost| cost.method).collect::<Vec<_>>(), WakeMethod::ALL);
        assert!(costs.iter().all(|cost| cost.median_ns <= cost.p90_ns));
        assert!(cheapest().method.arms_queues());
    }

    #[test]
    fn a_clearly_cheaper_way_is_chosen_and_never_one_that_arms_nothing() {
        let costs = |sleep_ns, timer_ns, futex_ns| {
            [
                (WakeMethod::Sleep, sleep_ns),
                (WakeMethod::TimerFd, timer_ns),
                (WakeMethod::Futex, futex_ns),
            ]
            .map(|(method, median_ns)| WakeCost {
                method,
                median_ns,
                p90_ns: median_ns,
            })
        };
        let chosen = |costs: &[WakeCost]| choose(costs).map(|cost| cost.method);
        assert_eq!(chosen(&costs(70_000, 20_000, 1_000)), Some(WakeMethod::TimerFd));
        assert_eq!(chosen(&costs(19_000, 20_000, 1_000)), Some(WakeMethod::TimerFd));
        assert_eq!(chosen(&costs(10_000, 20_000, 1_000)), Some(WakeMethod::Sleep));
        assert_eq!(chosen(&costs(10_000, 20_000, 1_000)[..1]), Some(WakeMethod::Sleep));
        assert_eq!(chosen(&[]), None);
    }
}
