// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of a device: compares what was decided with the kernel's own way, and gives way to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use dwell_policy::guard::{
    FEWEST, STALE_NS, Turn, WINDOW_NS, Watch, is_worse, ranks_about_p99, turn,
};
use dwell_policy::{Call, Decision, Kind, Ns, Reason, Route, Wait, policy};

use crate::latency::Counted;
use crate::ledger::GuardState;

/// Largest request of each size class but the last, in bytes.
const SIZES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
const CELLS: usize = 2 * (SIZES.len() + 1);

/// One device's guard, shared by all its open files that want one. For each kind and size of
/// request one in 64 goes the kernel's own way; where the others turn out slower, all do for a
/// while. It judges only when a request comes, so an idle file costs nothing.
///
/// Nothing here allocates or waits for a lock: a request may come from a signal handler.
#[derive(Debug, Default)]
pub struct Guard {
    cells: [Cell; CELLS],
    falls: AtomicU64,
}

/// One kind and size of request.
#[derive(Debug, Default)]
struct Cell {
    decided: Counted,
    control: Counted,
    decided_count: AtomicU64,
    control_count: AtomicU64,
    /// When the first of these latencies was noted; 0 when there is none.
    began: AtomicU64,
    /// Until when requests go the kernel's own way.
    until: AtomicU64,
    watch: Mutex<Watch>,
}

/// A request whose latency the guard wants to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    cell: usize,
    control: bool,
}

impl Timed {
    /// Whether the request still goes the way that it stands for.
    pub fn holds_for(&self, decision: &Decision) -> bool {
        self.control || decision.route != Route::Inline
    }
}

fn cell_of(kind: Kind, size_bytes: u64) -> Option<usize> {
    let first = match kind {
        Kind::Read => 0,
        Kind::Write => SIZES.len() + 1,
        Kind::Sync => return None,
    };
    Some(first + SIZES.iter().filter(|largest| size_bytes > **largest).count())
}

impl Guard {
    /// The guard of the device that files call by this name.
    pub fn of(device: &str) -> Arc<Guard> {
        static DEVICES: OnceLock<Mutex<HashMap<String, Weak<Guard>>>> = OnceLock::new();
        let devices = DEVICES.get_or_init(Default::default);
        let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = devices.get(device).and_then(Weak::upgrade) {
            return known;
        }
        devices.retain(|_, guard| guard.strong_count() > 0);
        let fresh = Arc::new(Guard::default());
        devices.insert(device.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// Looks at a decision before it is carried out: may turn it into the kernel's own way, and may
    /// want to know how long the request takes.
    #[inline]
    pub(crate) fn look(&self, wait: &Wait<'_>, decision: &mut Decision, now: Ns) -> Option<Timed> {
        if decision.route == Route::Inline
            || wait.call != Call::Blocking
            || !wait.routes.has(Route::Inline)
        {
            return None;
        }
        let cell = cell_of(wait.kind, wait.size_bytes)?;
        if now < self.cells[cell].until.load(Relaxed) {
            *decision = policy::block(wait, Reason::Guard);
            return None;
        }
        match turn(wait.sequence) {
            Turn::Plain => None,
            Turn::Sample => Some(Timed { cell, control: false }),
            Turn::Control => {
                *decision = policy::block(wait, Reason::Guard);
                Some(Timed { cell, control: true })
            }
        }
    }

    /// Hears how long it took.
    pub(crate) fn hear(&self, timed: Timed, latency_ns: Ns, now: Ns) {
        let cell = &self.cells[timed.cell];
        if !timed.control {
            cell.decided.note_shared(latency_ns);
            cell.decided_count.fetch_add(1, Relaxed);
            return;
        }
        cell.control.note_shared(latency_ns);
        let controls = cell.control_count.fetch_add(1, Relaxed) + 1;
        let began = cell.began.load(Relaxed);
        if began == 0 {
            cell.began.store(now, Relaxed);
            return;
        }
        let age_ns = now.saturating_sub(began);
        let enough = controls >= FEWEST && cell.decided_count.load(Relaxed) >= FEWEST;
        if age_ns < WINDOW_NS || !(enough || age_ns >= STALE_NS) {
            return;
        }
        // Somebody else who judges at this moment does so for all.
        let Ok(mut watch) = cell.watch.try_lock() else { return };
        if !enough {
            watch.interrupted();
        } else if watch.compared(now, cell.is_worse()) {
            cell.until.store(watch.until(), Relaxed);
            self.falls.fetch_add(1, Relaxed);
        }
        cell.begin_again();
    }

    /// What it has found, for a ledger.
    pub fn state(&self, now: Ns) -> GuardState {
        let fallen = self.cells.iter().filter(|cell| now < cell.until.load(Relaxed)).count();
        GuardState { watches: true, fallen_back: fallen as u32, falls: self.falls.load(Relaxed) }
    }
}

impl Cell {
    fn is_worse(&self) -> bool {
        let (low, _) = ranks_about_p99(self.decided.count());
        let (_, high) = ranks_about_p99(self.control.count());
        is_worse(self.decided.at_rank(low), self.control.at_rank(high))
    }

    /// Latencies that others note meanwhile may be lost.
    fn begin_again(&self) {
        self.decided.clear();
        self.control.clear();
        self.decided_count.store(0, Relaxed);
        self.control_count.store(0, Relaxed);
        self.began.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use dwell_policy::{Mode, WaitPolicy};

    use super::*;

    const MS: Ns = 1_000_000;
    const SECOND: Ns = 1000 * MS;

    /// A device in virtual time, used by one thread without a pause.
    struct World {
        guard: Guard,
        now: Ns,
        sequence: u64,
        /// Latency as decided and by the kernel's own way, from a number that looks random.
        decided: fn(u64) -> Ns,
        control: fn(u64) -> Ns,
    }

    impl World {
        fn new(decided: fn(u64) -> Ns, control: fn(u64) -> Ns) -> World {
            World { guard: Guard::default(), now: SECOND, sequence: 0, decided, control }
        }

        fn request(&mut self, kind: Kind, size_bytes: u64) -> Decision {
            let wait = Wait { sequence: self.sequence, ..Wait::new(kind, size_bytes, None) };
            let mut decision = policy::Spin.choose(&wait);
            let timed = self.guard.look(&wait, &mut decision, self.now);
            let luck = random(self.sequence);
            let takes = if decision.route == Route::Inline { self.control } else { self.decided };
            let latency_ns = takes(luck);
            self.now += latency_ns;
            if let Some(timed) = timed {
                assert!(timed.holds_for(&decision));
                self.guard.hear(timed, latency_ns, self.now);
            }
            self.sequence += 1;
            decision
        }

        /// Share of the requests of the next `span_ns` that went the kernel's own way.
        fn share_of_control(&mut self, span_ns: Ns) -> f64 {
            let until = self.now + span_ns;
            let (mut all, mut control) = (0u64, 0u64);
            while self.now < until {
                let decision = self.request(Kind::Read, 4096);
                assert_eq!(decision.why == Reason::Guard, decision.mode == Mode::Block);
                all += 1;
                control += u64::from(decision.why == Reason::Guard);
            }
            control as f64 / all as f64
        }

        fn falls(&self) -> u64 {
            self.guard.state(self.now).falls
        }
    }

    fn random(seed: u64) -> u64 {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5a5a;
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 32)
    }

    /// 20 µs, and one in 64 takes 80 µs.
    fn ordinary(luck: u64) -> Ns {
        if luck.is_multiple_of(64) { 80_000 } else { 20_000 + luck % 1000 }
    }

    /// The same in the middle, but one in 64 takes 200 µs.
    fn long_tailed(luck: u64) -> Ns {
        if luck.is_multiple_of(64) { 200_000 } else { 20_000 + luck % 1000 }
    }

    #[test]
    fn a_longer_tail_is_given_way_to_for_a_while_and_tried_again() {
        let mut world = World::new(long_tailed, ordinary);
        let mut shares = Vec::new();
        for _ in 0..40 {
            shares.push(world.share_of_control(SECOND));
        }
        assert!(world.falls() >= 2, "{shares:?}");
        let first = shares.iter().position(|share| *share > 0.5).unwrap();
        assert!(first <= 4, "{shares:?}");
        // Ten seconds, then it is tried again, then twenty.
        let back = shares.iter().skip(first + 1).position(|share| *share < 0.5).unwrap();
        assert!((8..=11).contains(&back), "{shares:?}");
        assert!(shares[39] > 0.9, "{shares:?}");
        assert_eq!(world.guard.state(world.now).fallen_back, 1);
    }

    #[test]
    fn it_comes_back_for_good_when_the_reason_is_gone() {
        let mut world = World::new(long_tailed, ordinary);
        while world.falls() == 0 {
            world.share_of_control(100 * MS);
        }
        world.decided = ordinary;
        world.share_of_control(11 * SECOND);
        assert!(world.share_of_control(60 * SECOND) < 0.03);
        assert_eq!((world.falls(), world.guard.state(world.now).fallen_back), (1, 0));
    }

    #[test]
    fn noise_and_what_is_little_slower_are_borne() {
        // A heavy tail on both sides: the sampled 99th percentiles differ widely by chance.
        fn heavy(luck: u64) -> Ns {
            let rarity = (luck | 1 << 40).trailing_zeros();
            20_000 << rarity.min(9)
        }
        fn a_fifth_slower(luck: u64) -> Ns {
            ordinary(luck) + ordinary(luck) / 5
        }
        for (decided, control) in [
            (heavy as fn(u64) -> Ns, heavy as fn(u64) -> Ns),
            (a_fifth_slower, ordinary),
            (ordinary, long_tailed),
        ] {
            let mut world = World::new(decided, control);
            assert!(world.share_of_control(120 * SECOND) < 0.03);
            assert_eq!(world.falls(), 0);
        }
    }

    #[test]
    fn an_idle_file_is_left_alone_and_too_few_requests_are_no_reason() {
        let world = World::new(long_tailed, ordinary);
        let state = GuardState { watches: true, ..GuardState::default() };
        assert_eq!(world.guard.state(1_000 * SECOND), state);
        fn rare(luck: u64) -> Ns {
            long_tailed(luck) + SECOND
        }
        let mut world = World::new(rare, ordinary);
        world.share_of_control(3_000 * SECOND);
        assert_eq!(world.falls(), 0);
    }

    #[test]
    fn each_kind_and_size_is_judged_for_itself() {
        let mut world = World::new(long_tailed, ordinary);
        while world.falls() == 0 {
            world.request(Kind::Read, 4096);
        }
        for (kind, size_bytes, why) in [
            (Kind::Read, 512, Reason::Guard),
            (Kind::Read, 16 << 10, Reason::Fixed),
            (Kind::Write, 4096, Reason::Fixed),
            (Kind::Sync, 0, Reason::Fixed),
        ] {
            let whys: Vec<Reason> = (0..200).map(|_| world.request(kind, size_bytes).why).collect();
            let share = whys.iter().filter(|w| **w == why).count();
            assert!(share > 150, "{kind:?} {size_bytes}: {share}");
        }
        let mut cells: Vec<_> = [1, 4096, 4097, 65536, 65537, u64::MAX]
            .into_iter()
            .flat_map(|size| [cell_of(Kind::Read, size), cell_of(Kind::Write, size)])
            .collect();
        cells.sort();
        cells.dedup();
        assert_eq!((cells.len(), cells.last()), (CELLS, Some(&Some(CELLS - 1))));
    }

    #[test]
    fn what_blocks_anyway_or_cannot_is_not_compared() {
        let guard = Guard::default();
        let wait = Wait::new(Kind::Read, 4096, None);
        let queued = Wait { call: Call::Queued, ..wait.clone() };
        let routes = wait.routes.without(Route::Inline);
        let ring_only = Wait { routes, ..wait.clone() };
        for sequence in 0..1000 {
            let inline = Decision::new(Route::Inline, Mode::Block, 0, Reason::Size);
            let spun = Decision::new(Route::Polled, Mode::Spin, 0, Reason::Pays);
            for (wait, decided) in [(&wait, inline), (&queued, spun), (&ring_only, spun)] {
                let wait = Wait { sequence, ..wait.clone() };
                let mut decision = decided;
                assert!(guard.look(&wait, &mut decision, 1).is_none());
                assert_eq!(decision, decided);
            }
        }
    }
}
