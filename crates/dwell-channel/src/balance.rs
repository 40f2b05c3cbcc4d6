// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many threads serve the channels: one as long as it keeps up. A thread that works all the
//! time gives half of its channels to another. Threads that one could replace become one.

use dwell_policy::{Load, Ns};

use crate::post::Post;

/// How long a thread watches itself before it decides, without the time in which it sleeps.
const WINDOW_NS: Ns = 20_000_000;
/// How old a reading of the load can be.
const READING_NS: Ns = 1_000_000_000;
/// Part of its time that a thread works, in thousandths, from which on it does not keep up; and
/// what two threads have to do together, if one of them is to do it.
const SATURATED: u32 = 900;
const ENOUGH_FOR_ONE: u32 = 500;

/// What a thread does with its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Stay,
    /// Half of those that are awake go to this post's thread, which has time left.
    HalfTo(usize),
    /// All of them go to the first thread.
    AllToFirst,
}

/// What the thread at post `own` does, which works `busy` thousandths of its time and has so many
/// channels awake.
pub(crate) fn decide(own: usize, busy: u32, awake: usize, posts: &[Post]) -> Move {
    if busy >= SATURATED && awake > 1 {
        let others = posts.iter().enumerate().filter(|(at, _)| *at != own);
        let least = others.min_by_key(|(_, post)| (post.busy(), post.channels()));
        return match least {
            Some((at, post)) if post.busy() < SATURATED / 2 => Move::HalfTo(at),
            _ => Move::Stay,
        };
    }
    match posts.first() {
        Some(first) if own > 0 && busy + first.busy() < ENOUGH_FOR_ONE => Move::AllToFirst,
        _ => Move::Stay,
    }
}

/// What a thread did with its time since it last decided.
#[derive(Debug)]
pub(crate) struct Window {
    began: Ns,
    idle: Ns,
    asleep: Ns,
}

impl Window {
    pub fn new(now: Ns) -> Window {
        Window { began: now, idle: 0, asleep: 0 }
    }

    /// It looked in vain for so long, and slept for so long.
    pub fn waited(&mut self, idle: Ns, asleep: Ns) {
        self.idle += idle;
        self.asleep += asleep;
    }

    /// How many thousandths of its time it worked, once the window has passed; a new one begins.
    pub fn passed(&mut self, now: Ns) -> Option<u32> {
        let awake = now.saturating_sub(self.began + self.asleep);
        if awake < WINDOW_NS {
            return None;
        }
        let busy = awake.saturating_sub(self.idle) * 1000 / awake;
        *self = Window::new(now);
        Some(busy as u32)
    }
}

/// The CPUs that serving threads took since the monitor last read the load.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    reading: u64,
    since: Ns,
    cpus: u32,
}

impl Taken {
    /// Takes one of the CPUs that were idle when the load was read; whether one is left.
    pub fn one(&mut self, load: Load, cpus: u32, now: Ns) -> bool {
        if load.pack() != self.reading || now.saturating_sub(self.since) >= READING_NS {
            *self = Taken { reading: load.pack(), since: now, cpus: 0 };
        }
        // A CPU is idle that is so for nine tenths of the time.
        let idle = (1.0 - load.total()) * cpus as f32 + 0.1;
        let left = self.cpus < idle as u32;
        self.cpus += u32::from(left);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posts(shown: &[(u32, u32)]) -> Vec<Post> {
        let post = |&(channels, busy): &(u32, u32)| {
            let post = Post::new().unwrap();
            post.show_busy(busy);
            post.show_channels(channels);
            post
        };
        shown.iter().map(post).collect()
    }

    #[test]
    fn a_thread_that_always_works_gives_half_of_it_to_one_that_has_time() {
        let three = posts(&[(4, 950), (2, 100), (0, 0)]);
        assert_eq!(decide(0, 950, 4, &three), Move::HalfTo(2));
        assert_eq!(decide(0, 950, 1, &three), Move::Stay, "one channel has one thread");
        assert_eq!(decide(0, 899, 4, &three), Move::Stay, "it keeps up");
        let busy = posts(&[(4, 950), (2, 450), (2, 700)]);
        assert_eq!(decide(0, 950, 4, &busy), Move::Stay, "nobody has time");
        assert_eq!(decide(2, 950, 2, &posts(&[(1, 440), (2, 700), (2, 950)])), Move::HalfTo(0));
        assert_eq!(decide(0, 950, 4, &posts(&[(4, 950)])), Move::Stay, "it is alone");
    }

    #[test]
    fn threads_that_one_could_replace_become_one() {
        let light = posts(&[(1, 240), (1, 240)]);
        assert_eq!(decide(1, 240, 1, &light), Move::AllToFirst);
        assert_eq!(decide(0, 240, 1, &light), Move::Stay, "the first keeps its own");
        assert_eq!(decide(1, 260, 1, &light), Move::Stay);
        assert_eq!(decide(1, 240, 1, &posts(&[(1, 260), (1, 240)])), Move::Stay);
    }

    #[test]
    fn a_window_tells_once_what_part_of_its_waking_time_a_thread_worked() {
        let mut window = Window::new(0);
        window.waited(WINDOW_NS / 4, 3 * WINDOW_NS);
        assert_eq!(window.passed(4 * WINDOW_NS - 1), None);
        assert_eq!(window.passed(4 * WINDOW_NS), Some(750));
        window.waited(WINDOW_NS, 0);
        assert_eq!(window.passed(5 * WINDOW_NS), Some(0));
    }

    #[test]
    fn threads_take_no_more_cpus_than_were_idle_when_the_load_was_read() {
        let (idle, busier) = (Load::new(0.0, 0.25, 0.5), Load::new(0.0, 0.5, 0.5));
        let mut taken = Taken::default();
        let first: Vec<bool> = (0..4).map(|_| taken.one(idle, 4, READING_NS)).collect();
        assert_eq!(first, [true, true, true, false]);
        let next: Vec<bool> = (0..3).map(|_| taken.one(busier, 4, READING_NS + 1)).collect();
        assert_eq!(next, [true, true, false]);
        assert!(taken.one(busier, 4, 2 * READING_NS + 1), "the same again, but read anew");
        assert!(!Taken::default().one(Load::new(0.0, 1.0, 0.5), 4, READING_NS));
    }
}
