// SPDX-License-Identifier: MIT OR Apache-2.0
//! SCHED_RR over one CPU: time slices by nice value, a ready queue, and who sleeps until when.

use std::collections::VecDeque;

use dwell_policy::Ns;

use crate::params::{Priorities, WakeTo};
use crate::rng::Rng;

/// The time slice of a nice value: 800 ms at -20, 100 ms at 0, 5 ms at 19 (§4.1; Linux's rule for
/// static priorities), times `scale`.
pub fn slice_ns(nice: i8, scale: f64) -> Ns {
    let nice = nice.clamp(-20, 19);
    let steps = 20 - i64::from(nice);
    let ms = if nice < 0 { steps * 20 } else { steps * 5 };
    ((ms * 1_000_000) as f64 * scale).round().max(1.0) as Ns
}

/// Nice values for the processes that have none, all different as long as there are at most 40.
pub fn assign(given: &[Option<i8>], how: Priorities, seed: u64) -> Vec<i8> {
    let mut rng = Rng::new(seed ^ 0x6e69_6365);
    let open = given.iter().filter(|nice| nice.is_none()).count();
    let mut drawn: Vec<i8> = match how {
        Priorities::Spread if open > 1 => {
            (0..open).map(|at| (at * 39 / (open - 1)) as i8 - 20).collect()
        }
        Priorities::Spread => vec![0; open],
        Priorities::Random => {
            let mut all: Vec<i8> = (-20..20).collect();
            rng.shuffle(&mut all);
            all.into_iter().cycle().take(open).collect()
        }
    };
    rng.shuffle(&mut drawn);
    let mut drawn = drawn.into_iter();
    given.iter().map(|nice| nice.or_else(|| drawn.next()).unwrap_or(0)).collect()
}

/// The queue of ready processes, and the sleepers.
#[derive(Clone, Debug)]
pub struct Scheduler {
    ready: VecDeque<usize>,
    /// Sleepers by when they wake, the next one last.
    asleep: Vec<(Ns, usize)>,
    wake_to: WakeTo,
}

impl Scheduler {
    /// A scheduler whose processes are all ready, in this order.
    pub fn new(processes: usize, wake_to: WakeTo) -> Self {
        Scheduler { ready: (0..processes).collect(), asleep: Vec::new(), wake_to }
    }

    /// Makes ready who woke up by `now`, in the order of waking.
    pub fn admit(&mut self, now: Ns) {
        while let Some(&(at, process)) = self.asleep.last()
            && at <= now
        {
            self.asleep.pop();
            match self.wake_to {
                WakeTo::Tail => self.ready.push_back(process),
                WakeTo::Head => self.ready.push_front(process),
            }
        }
    }

    /// The process to run next; `None` where none is ready.
    pub fn next(&self) -> Option<usize> {
        self.ready.front().copied()
    }

    /// Takes who is to run next.
    pub fn take(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// A process whose slice is over goes to the end.
    pub fn yields(&mut self, process: usize) {
        self.ready.push_back(process);
    }

    /// A process sleeps until `at`.
    pub fn sleeps(&mut self, process: usize, at: Ns) {
        let place = self.asleep.partition_point(|&(other, _)| other > at);
        self.asleep.insert(place, (at, process));
    }

    /// When the next sleeper wakes.
    pub fn next_wake(&self) -> Option<Ns> {
        self.asleep.last().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_go_from_800_to_5_ms() {
        let ms = |nice| slice_ns(nice, 1.0) / 1_000_000;
        assert_eq!([-20, -10, -1, 0, 10, 19].map(ms), [800, 600, 420, 100, 50, 5]);
        assert_eq!(slice_ns(-20, 0.001), 800_000);
    }

    #[test]
    fn priorities_reach_from_highest_to_lowest_in_an_order_that_the_seed_gives() {
        let spread = |seed| assign(&[None; 6], Priorities::Spread, seed);
        let mut sorted = spread(1);
        sorted.sort();
        assert_eq!(sorted, [-20, -13, -5, 3, 11, 19]);
        assert_eq!(spread(1), spread(1));
        assert!((0..9).any(|seed| spread(seed) != spread(1)));
        let mut random = assign(&[None; 40], Priorities::Random, 7);
        random.sort();
        assert_eq!(random, (-20..20).collect::<Vec<_>>());
        assert_eq!(assign(&[Some(3), None], Priorities::Spread, 1), [3, 0]);
    }

    #[test]
    fn sleepers_wake_in_the_order_of_their_times_and_ties_in_the_order_of_sleeping() {
        let mut scheduler = Scheduler::new(0, WakeTo::Tail);
        [(0, 50), (1, 20), (2, 50)].iter().for_each(|&(process, at)| scheduler.sleeps(process, at));
        assert_eq!(scheduler.next_wake(), Some(20));
        scheduler.admit(50);
        assert_eq!(
            [scheduler.take(), scheduler.take(), scheduler.take()],
            [Some(1), Some(0), Some(2)]
        );
    }
}
