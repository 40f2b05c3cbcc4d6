// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to read ahead: from the pages of a thread's faults alone, without a clock or a device.
//!
//! A *stream* is a stride that faults were seen to follow. Its window reaches some number of pages
//! beyond the last fault. Half of it is brought into the region at once, and the other half waits
//! beside it. So the next fault comes at the beginning of that half, finds it there, and has the
//! window moved on. Without a stream the next pages by address are read, as long as that turns out
//! to be of use.

/// Streams followed at once: a program reads several arrays in turn.
const STREAMS: usize = 8;
/// Faults remembered.
const HISTORY: usize = 32;
/// Largest stride that three faults alone make a stream of, in pages; larger ones need a majority.
const NEAR: i64 = 64;
/// Pages that a new stream reads ahead.
const FIRST_DEPTH: u32 = 4;
/// Success of reading ahead by address, of 256: from this on it is done at each miss.
const USEFUL: u32 = 128;
/// Where it is of no use it is tried again at one miss in this many.
const TRY_ONE_IN: u32 = 64;
/// Faults within which a stream that is still followed has one.
const FOLLOWED_WITHIN: u64 = 64;
/// Pages read ahead whose use is judged together, before the longest window changes.
const JUDGED_PAGES: u64 = 64;

/// What one fault asks for, besides its own page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Distance of two pages of the plan.
    pub stride: i64,
    /// First page to be read.
    pub first: i64,
    /// Pages to be read.
    pub count: u32,
    /// Pages behind the faulting one, at the stride, to be brought in with it if they are there.
    pub install: u32,
}

impl Plan {
    /// Takes the next page to be read off, if it is one of the region's `pages`.
    pub fn next(&mut self, pages: u32) -> Option<u32> {
        while self.count > 0 {
            self.count -= 1;
            let page = self.first;
            self.first += self.stride;
            if (0..i64::from(pages)).contains(&page) {
                return Some(page as u32);
            }
            self.count = 0;
        }
        None
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    stride: i64,
    /// The page of its last fault.
    at: i64,
    /// First page that is not read yet, and pages that the window holds.
    next: i64,
    depth: u32,
    /// Made by address, not by what was seen.
    guessed: bool,
    /// A fault has followed it.
    followed: bool,
    used: u64,
}

impl Stream {
    /// Steps from the last fault to this page, if the page is the stream's.
    fn reaches(&self, page: i64) -> Option<i64> {
        if self.stride == 0 {
            return None;
        }
        let distance = page - self.at;
        let steps = distance / self.stride;
        let whole = distance % self.stride == 0;
        (whole && steps > 0 && steps <= i64::from(self.depth) + 1).then_some(steps)
    }
}

/// The reading ahead of one thread.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    streams: [Stream; STREAMS],
    history: [i64; HISTORY],
    /// Faults that were of no stream so far.
    misses: u32,
    clock: u64,
    /// How often reading by address was of use lately, of 256.
    success: u32,
    /// Longest window, which halves where much is read in vain and doubles where little is.
    longest: u32,
    /// Longest window of pages that do not follow each other: each is a request.
    requests: u32,
    /// Pages that had been used and wasted when the longest window was judged last.
    judged: (u64, u64),
}

impl Prefetcher {
    /// For a thread that may have so many requests in flight.
    pub const fn new(requests: u32) -> Self {
        const NONE: Stream = Stream {
            stride: 0,
            at: 0,
            next: 0,
            depth: 0,
            guessed: false,
            followed: false,
            used: 0,
        };
        Prefetcher {
            streams: [NONE; STREAMS],
            history: [i64::MIN / 2; HISTORY],
            misses: 0,
            clock: 0,
            success: 256,
            longest: u32::MAX,
            requests,
            judged: (0, 0),
        }
    }

    /// Hears how many pages that were read ahead have been used so far, and how many were not, by
    /// all threads.
    pub fn heed(&mut self, used: u64, wasted: u64, limit: u32) {
        let (used_before, wasted_before) = self.judged;
        let (now_used, now_wasted) = (used - used_before, wasted - wasted_before);
        if now_used + now_wasted < JUDGED_PAGES {
            return;
        }
        self.judged = (used, wasted);
        // Leap keeps a window that a half of its pages justify.
        self.longest = match now_wasted > now_used {
            true => (self.longest.min(limit) / 2).max(FIRST_DEPTH),
            false => self.longest.saturating_mul(2),
        };
    }

    /// A fault on `page`, which is in the source alone if `absent`: what to read ahead when all
    /// windows together may hold `limit` pages. `sequential` says that the program announced to
    /// read in order.
    pub fn fault(&mut self, page: u32, absent: bool, limit: u32, sequential: bool) -> Plan {
        let page = i64::from(page);
        self.clock += 1;
        if limit == 0 {
            return Plan::default();
        }
        // Where one took all, it would push out what others have read and need next.
        let limit = (limit.min(self.longest) / self.followed(page)).max(1);
        for at in 0..STREAMS {
            let Some(mut steps) = self.streams[at].reaches(page) else { continue };
            let stream = &mut self.streams[at];
            if stream.guessed && steps > 1 {
                // A guess that was right about the direction only.
                stream.stride = page - stream.at;
                (stream.next, steps) = (page, 1);
            }
            if absent && !stream.guessed {
                // Its window was not read, or has left memory.
                (stream.next, stream.depth) = (page + stream.stride, stream.depth / 4);
            }
            return self.go_on(at, page, steps, limit);
        }
        let (stride, depth, guessed) = match self.trend(page) {
            _ if sequential => (1, limit, false),
            Some(stride) => (stride, FIRST_DEPTH, false),
            None if self.guesses() => (1, FIRST_DEPTH / 2, true),
            None => {
                self.note(page);
                return Plan::default();
            }
        };
        self.note(page);
        self.begin(page, stride, depth.min(limit), guessed)
    }

    /// Streams that are followed, one at least; that of this page is one.
    fn followed(&self, page: i64) -> u32 {
        let lives = |stream: &&Stream| {
            stream.followed
                && self.clock - stream.used < FOLLOWED_WITHIN
                && stream.reaches(page).is_none()
        };
        1 + self.streams.iter().filter(lives).count() as u32
    }

    fn note(&mut self, page: i64) {
        self.history[self.misses as usize % HISTORY] = page;
        self.misses = self.misses.wrapping_add(1);
    }

    fn guesses(&self) -> bool {
        self.success >= USEFUL || self.misses.is_multiple_of(TRY_ONE_IN)
    }

    fn go_on(&mut self, at: usize, page: i64, steps: i64, limit: u32) -> Plan {
        let stream = &mut self.streams[at];
        if stream.guessed {
            stream.guessed = false;
            self.success += (256 - self.success) / 16;
        }
        // Used up to here, or waited for: either way it was not too long.
        let stride = stream.stride;
        let limit = if stride == 1 { limit } else { limit.min(self.requests) };
        stream.depth = stream.depth.saturating_mul(2).clamp(1, limit);
        (stream.at, stream.used, stream.followed) = (page, self.clock, true);
        let end = page + stride * (i64::from(stream.depth) + 1);
        let unread = (stream.next - page) * stride.signum() > 0;
        let begin = if unread { stream.next } else { page + stride };
        let mut count = ((end - begin) / stride).max(0) as u32;
        // Half a window at once: many small requests cost more than a few large ones.
        let installs = stream.depth / 2;
        if count < installs && steps < i64::from(installs) {
            count = 0;
        } else if count > 0 {
            stream.next = end;
        }
        Plan { stride, first: begin, count, install: installs }
    }

    fn begin(&mut self, page: i64, stride: i64, depth: u32, guessed: bool) -> Plan {
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used);
        let Some(stream) = oldest else { return Plan::default() };
        if stream.guessed {
            self.success -= self.success / 16;
        }
        let next = page + stride * (i64::from(depth) + 1);
        let used = self.clock;
        *stream = Stream { stride, at: page, next, depth, guessed, followed: false, used };
        Plan { stride, first: page + stride, count: depth, install: 0 }
    }

    /// The stride that this fault continues: a near one of three faults among the last ones, or
    /// that of most steps between faults lately (Leap's majority trend, over ever longer stretches
    /// of the history).
    fn trend(&self, page: i64) -> Option<i64> {
        let held = (self.misses as usize).min(HISTORY);
        let back = |steps: usize| self.history[(self.misses as usize - steps) % HISTORY];
        for steps in 1..=held.min(HISTORY / 2) {
            let stride = page - back(steps);
            if stride != 0
                && stride.abs() <= NEAR
                && (steps + 1..=held).any(|earlier| back(earlier) == page - 2 * stride)
            {
                return Some(stride);
            }
        }
        let mut stretch = HISTORY / 8;
        while stretch <= held {
            if let Some(stride) = majority(page, stretch, &back) {
                return Some(stride).filter(|stride| *stride != 0);
            }
            stretch *= 2;
        }
        None
    }
}

/// The step that more than half of the last `stretch` ones are (Boyer and Moore's vote, then a
/// count).
fn majority(page: i64, stretch: usize, back: &impl Fn(usize) -> i64) -> Option<i64> {
    let step = |at: usize| if at == 1 { page - back(1) } else { back(at - 1) - back(at) };
    let (mut candidate, mut votes) = (0, 0usize);
    for at in 1..=stretch {
        if votes == 0 {
            candidate = step(at);
        }
        if step(at) == candidate { votes += 1 } else { votes -= 1 }
    }
    let count = (1..=stretch).filter(|at| step(*at) == candidate).count();
    (count > stretch / 2).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    /// Plays accesses against a memory that holds what was brought in, and `limit` pages read ahead
    /// beside it, of which the oldest make room: misses, faults, pages read for nothing.
    fn play(accesses: impl IntoIterator<Item = u32>, limit: u32) -> (u32, u32, u32) {
        let mut prefetcher = Prefetcher::new(64);
        let (mut present, mut beside, mut asked) = (HashSet::new(), HashSet::new(), HashSet::new());
        let mut order = VecDeque::new();
        let (mut misses, mut faults, mut ahead) = (0, 0, 0u32);
        for page in accesses {
            asked.insert(page);
            if present.contains(&page) {
                continue;
            }
            faults += 1;
            let absent = !beside.remove(&page);
            misses += u32::from(absent);
            present.insert(page);
            let mut plan = prefetcher.fault(page, absent, limit, false);
            let (stride, install) = (plan.stride, plan.install);
            while let Some(next) = plan.next(u32::MAX) {
                if !present.contains(&next) && beside.insert(next) {
                    ahead += 1;
                    order.push_back(next);
                }
            }
            while beside.len() > limit as usize {
                beside.remove(&order.pop_front().unwrap());
            }
            for step in 1..=i64::from(install) {
                let next = (i64::from(page) + step * stride) as u32;
                if beside.remove(&next) {
                    present.insert(next);
                }
            }
        }
        let used = present.union(&beside).filter(|page| asked.contains(page)).count() as u32;
        let wasted = (present.len() + beside.len()) as u32 - used;
        assert!(ahead >= wasted);
        (misses, faults, wasted)
    }

    #[test]
    fn in_order_one_fault_in_many_pages_is_left_and_none_waits() {
        let (misses, faults, wasted) = play(0..10_000, 64);
        assert!(misses < 10 && faults < 400 && wasted <= 64, "{misses} {faults} {wasted}");
        let (misses, faults, _) = play((0..10_000).rev(), 64);
        assert!(misses < 10 && faults < 400, "{misses} {faults}");
    }

    #[test]
    fn strides_near_and_far_are_caught() {
        for stride in [2, 7, 63, 64, 1000, 4097] {
            let (misses, _, wasted) = play((0..2000).map(|at| at * stride), 32);
            assert!(misses < 20 && wasted <= 36, "stride {stride}: {misses} {wasted}");
        }
    }

    #[test]
    fn a_stride_with_noise_is_caught_by_the_majority() {
        let mut state = 1u32;
        let accesses = (0..4000u32).map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if state >> 29 == 0 { 50_000_000 + (state >> 8) } else { at * 200 }
        });
        let (misses, _, _) = play(accesses, 32);
        assert!(misses < 1000, "{misses} of 4000 missed");
    }

    #[test]
    fn several_arrays_read_in_turn_are_each_followed() {
        let arrays = [0u32, 100_000, 200_000, 300_000];
        let (misses, faults, _) = play((0..2000).flat_map(|at| arrays.map(|a| a + at)), 256);
        assert!(misses < 40 && faults < 600, "{misses} {faults}");
    }

    #[test]
    fn a_fast_stream_leaves_a_slow_one_its_window() {
        // A page of one array for each 40 of the other, as a graph's offsets beside its edges.
        let accesses = (0..8_000).flat_map(|at| {
            let slow = (at % 40 == 0).then_some(at / 40);
            slow.into_iter().chain([100_000 + at])
        });
        let (misses, faults, _) = play(accesses, 64);
        assert!(misses < 20 && faults < 800, "{misses} {faults}");
    }

    #[test]
    fn more_streams_than_pages_for_windows_are_each_followed() {
        let mut prefetcher = Prefetcher::new(64);
        let mut planned = 0;
        for (round, array) in (0..40).flat_map(|round| (0..6).map(move |array| (round, array))) {
            let plan = prefetcher.fault(array * 100_000 + round, true, 4, false);
            planned = if round == 0 { 0 } else { planned + u32::from(plan.count > 0) };
        }
        assert!(planned > 200, "{planned} of 234 faults");
    }

    #[test]
    fn a_window_that_has_left_memory_is_read_again() {
        let mut prefetcher = Prefetcher::new(64);
        let planned = |plan: Plan| (plan.first, plan.count);
        for page in [0, 1, 2, 4, 8] {
            prefetcher.fault(page, page < 2, 64, false);
        }
        let window = planned(prefetcher.fault(16, false, 64, false));
        assert!(window.0 > 17 && window.1 > 0, "{window:?}");
        // The next page is not there, so those behind it were lost too.
        let again = planned(prefetcher.fault(17, true, 64, false));
        assert!(again.0 == 18 && (1..window.1).contains(&again.1), "{again:?} after {window:?}");
    }

    #[test]
    fn random_access_soon_reads_next_to_nothing_ahead() {
        let mut state = 7u64;
        let accesses: Vec<u32> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as u32
            })
            .collect();
        let (_, _, wasted) = play(accesses, 64);
        assert!(wasted < 1500, "{wasted}");
    }

    #[test]
    fn the_longest_window_halves_where_more_is_wasted_than_used_and_comes_back() {
        let mut prefetcher = Prefetcher::new(64);
        let mut window = |heard: Option<(u64, u64)>| {
            if let Some((used, wasted)) = heard {
                prefetcher.heed(used, wasted, 64);
            }
            let start = prefetcher.clock as u32 * 100_000;
            prefetcher.fault(start, true, 64, true).count
        };
        assert_eq!(window(None), 64);
        assert_eq!(window(Some((10, 20))), 64, "too few pages to judge by");
        assert_eq!(window(Some((20, 100))), 32);
        assert_eq!(window(Some((30, 500))), 16);
        assert_eq!((0..9).map(|round| window(Some((30, 1000 + round * 100)))).last(), Some(4));
        assert_eq!(window(Some((200, 1800))), 8);
        assert_eq!((0..9).map(|round| window(Some((300 + round * 100, 1800)))).last(), Some(64));
    }

    #[test]
    fn a_plan_stays_within_the_region() {
        let mut plan = Plan { stride: -3, first: 4, count: 9, install: 0 };
        assert_eq!((plan.next(100), plan.next(100), plan.next(100)), (Some(4), Some(1), None));
        let mut plan = Plan { stride: 1, first: 8, count: 9, install: 0 };
        assert_eq!((plan.next(10), plan.next(10), plan.next(10)), (Some(8), Some(9), None));
    }
}
