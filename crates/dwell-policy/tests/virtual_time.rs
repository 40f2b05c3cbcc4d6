// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait machine over a queue in virtual time: exact steps, exact nanoseconds.

use dwell_policy::{Decision, Driver, Mode, Ns, Outcome, Reason, Route, WaitMachine, Woken, drive};
use proptest::prelude::*;

/// What one look, one reading of the clock and one wake-up cost in this world.
const LOOK_NS: Ns = 10;
const WAKE_NS: Ns = 2_000;
const OVERSHOOT_NS: Ns = 500;

/// One completion at a fixed time, and a clock that only the driver's own acts move.
struct World {
    now: Ns,
    completes_at: Ns,
    wakeable: bool,
    /// Pieces of other work left, and how long each takes.
    work: (u32, Ns),
    /// What was done, one letter each: look, offer, sleep, park.
    did: String,
    /// Whether a look found the completion, a park's own included.
    taken: bool,
}

impl World {
    fn new(completes_at: Ns) -> Self {
        World {
            now: 0,
            completes_at,
            wakeable: true,
            work: (0, 0),
            did: String::new(),
            taken: false,
        }
    }

    fn look(&mut self) -> bool {
        self.taken |= self.now >= self.completes_at;
        self.taken
    }

    fn run(&mut self, decision: &Decision) -> Outcome {
        drive(WaitMachine::new(decision, 0, 0), self)
    }
}

impl Driver for World {
    fn now(&mut self) -> Ns {
        self.now
    }
    fn poll(&mut self) -> bool {
        self.did.push('l');
        self.now += LOOK_NS;
        self.look()
    }
    fn offer(&mut self, _: Ns) -> bool {
        let (left, each_ns) = self.work;
        self.did.push('o');
        self.work.0 = left.saturating_sub(1);
        self.now += if left > 0 { each_ns } else { 0 };
        left > 0
    }
    fn sleep(&mut self, until: Ns) {
        self.did.push('s');
        self.now = self.now.max(until) + OVERSHOOT_NS;
    }
    fn park(&mut self, until: Option<Ns>) -> Woken {
        self.did.push('p');
        if !self.wakeable {
            return Woken::Unwakeable;
        }
        if !self.look() {
            let wakes_at = until.unwrap_or(Ns::MAX).min(self.completes_at);
            assert_ne!(wakes_at, Ns::MAX, "parked for ever");
            self.now = self.now.max(wakes_at) + WAKE_NS;
        }
        Woken::Look
    }
}

fn decision(mode: Mode) -> Decision {
    Decision {
        spin_limit_ns: 50_000,
        ..Decision::new(Route::Interrupt, mode, 10_000, Reason::Fixed)
    }
}

const READY: Outcome = Outcome {
    ready: true,
    expired: false,
    spun_ns: 0,
    offered_ns: 0,
    slept_ns: 0,
    parked_ns: 0,
    parks: 0,
    ended: 0,
};

#[test]
fn a_spin_ends_with_the_look_that_finds_it() {
    let mut world = World::new(10_000);
    let outcome = world.run(&decision(Mode::Spin));
    // The look that begins at 9,990 ends at 10,000 and finds it.
    assert_eq!(outcome, Outcome { spun_ns: 10_000, ended: 10_000, ..READY });
    assert_eq!(world.did, format!("lo{}", "l".repeat(999)));
}

#[test]
fn a_block_parks_at_once_and_looks_once() {
    let mut world = World::new(10_000);
    let outcome = world.run(&decision(Mode::Block));
    let ended = 10_000 + WAKE_NS + LOOK_NS;
    let expected =
        Outcome { spun_ns: LOOK_NS, parked_ns: 10_000 + WAKE_NS, parks: 1, ended, ..READY };
    assert_eq!(outcome, expected);
    assert_eq!(world.did, "opl");
}

#[test]
fn a_hybrid_sleeps_then_spins() {
    let mut world = World::new(10_000);
    let outcome = world.run(&decision(Mode::Hybrid { sleep_ns: 7_000 }));
    let expected = Outcome { slept_ns: 7_500, spun_ns: 2_500, ended: 10_000, ..READY };
    assert_eq!(outcome, expected);
    assert_eq!(world.did, format!("slo{}", "l".repeat(249)));
}

#[test]
fn a_hybrid_counts_its_sleep_from_submission() {
    let mut world = World::new(10_000);
    world.now = 6_900;
    let hybrid = decision(Mode::Hybrid { sleep_ns: 7_000 });
    let outcome = drive(WaitMachine::new(&hybrid, 0, 6_900), &mut world);
    assert_eq!((outcome.slept_ns, outcome.spun_ns), (600, 2_500));
    let mut world = World::new(10_000);
    world.now = 8_000;
    let outcome = drive(WaitMachine::new(&hybrid, 0, 8_000), &mut world);
    assert_eq!((outcome.slept_ns, outcome.spun_ns), (0, 2_000));
}

#[test]
fn a_spin_past_its_deadline_parks() {
    for mode in [Mode::Spin, Mode::Hybrid { sleep_ns: 1_500 }] {
        let mut world = World::new(9_000_000);
        let outcome = world.run(&decision(mode));
        let slept_ns = if mode == Mode::Spin { 0 } else { 2_000 };
        let expected = Outcome {
            expired: true,
            slept_ns,
            // The limit, and the look after the wake-up.
            spun_ns: 50_000 + LOOK_NS,
            parked_ns: 9_000_000 + WAKE_NS - 50_000 - slept_ns,
            parks: 1,
            ended: 9_000_000 + WAKE_NS + LOOK_NS,
            ..READY
        };
        assert_eq!(outcome, expected);
        assert!(world.did.ends_with("lpl"));
    }
}

#[test]
fn a_queue_that_wakes_nobody_is_looked_at_ever_more_slowly() {
    let mut world = World { wakeable: false, ..World::new(1_000_000) };
    let outcome = world.run(&decision(Mode::Block));
    assert_eq!(world.did, "oplslslslslsl");
    let naps_ns = 50_000 * (1 + 2 + 4 + 8 + 16);
    let slept_ns = naps_ns + 5 * OVERSHOOT_NS;
    let spun_ns = 6 * LOOK_NS;
    assert_eq!(outcome, Outcome { slept_ns, spun_ns, ended: slept_ns + spun_ns, ..READY });
}

#[test]
fn offered_work_fills_the_wait_between_looks() {
    let mut world = World { work: (3, 3_000), ..World::new(10_000) };
    let outcome = world.run(&decision(Mode::Spin));
    let expected = Outcome { offered_ns: 9_000, spun_ns: 1_000, ended: 10_000, ..READY };
    assert_eq!(outcome, expected);
    assert!(
        world.did.starts_with("lololollol") || world.did.starts_with("lolololol"),
        "{}",
        world.did
    );
}

#[test]
fn a_blocked_thread_works_before_it_parks() {
    let mut world = World { work: (2, 3_000), ..World::new(10_000) };
    let outcome = world.run(&decision(Mode::Block));
    assert_eq!(world.did, "ololopl");
    assert_eq!((outcome.offered_ns, outcome.parks), (6_000, 1));
}

#[test]
fn work_that_outlasts_the_deadline_is_no_stall() {
    let mut world = World { work: (1, 80_000), ..World::new(10_000) };
    let outcome = world.run(&decision(Mode::Spin));
    let expected =
        Outcome { offered_ns: 80_000, spun_ns: 2 * LOOK_NS, ended: 80_000 + 2 * LOOK_NS, ..READY };
    assert_eq!(outcome, expected);
}

#[test]
fn a_time_limit_ends_the_wait_in_every_mode() {
    for mode in [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 90_000 }] {
        for wakeable in [true, false] {
            let mut world = World { wakeable, ..World::new(9_000_000) };
            let machine = WaitMachine::new(&decision(mode), 0, 0).until(60_000);
            let outcome = drive(machine, &mut world);
            assert!(!outcome.ready);
            let latest = 60_000 + WAKE_NS + OVERSHOOT_NS + 2 * LOOK_NS;
            assert!((60_000..=latest).contains(&outcome.ended), "{mode:?} {outcome:?}");
        }
    }
}

#[test]
fn a_completion_that_the_last_park_found_is_not_lost_at_the_time_limit() {
    // The completion comes after the look before the park, and the limit passes while waking up.
    let mut world = World::new(5_000);
    let machine = WaitMachine::new(&decision(Mode::Block), 0, 0).until(6_000);
    assert!(drive(machine, &mut world).ready);
    let mut world = World { work: (1, 7_000), ..World::new(5_000) };
    let machine = WaitMachine::new(&decision(Mode::Spin), 0, 0).until(6_000);
    assert!(drive(machine, &mut world).ready);
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Block),
        Just(Mode::Spin),
        (0u64..200_000).prop_map(|sleep_ns| Mode::Hybrid { sleep_ns })
    ]
}

proptest! {
    #[test]
    fn every_wait_ends_and_accounts_for_all_its_time(
        mode in any_mode(),
        spin_limit_ns in 0u64..100_000,
        completes_at in 0u64..20_000_000,
        wakeable in any::<bool>(),
        work in (0u32..20, 0u64..100_000),
        limit in proptest::option::of(0u64..20_000_000),
    ) {
        let decision = Decision { spin_limit_ns, ..decision(mode) };
        let mut world = World { wakeable, work, ..World::new(completes_at) };
        let mut machine = WaitMachine::new(&decision, 0, 0);
        if let Some(limit) = limit {
            machine = machine.until(limit);
        }
        let outcome = drive(machine, &mut world);
        prop_assert!(outcome.ready || limit.is_some_and(|limit| outcome.ended >= limit));
        prop_assert_eq!(outcome.ready, world.taken, "a completion was taken and not told");
        let parts = outcome.spun_ns + outcome.offered_ns + outcome.slept_ns + outcome.parked_ns;
        prop_assert_eq!(parts, outcome.ended);
        prop_assert!(wakeable || outcome.parks == 0);
        prop_assert!(mode != Mode::Block || !outcome.expired);
        if wakeable {
            prop_assert_eq!(outcome.parks as usize, world.did.matches('p').count());
        }
        prop_assert!(!outcome.expired || outcome.ended >= spin_limit_ns);
    }

    /// The machine alone, told arbitrary times and answers: clocks that stand still or leap, and
    /// completions that come at any look.
    #[test]
    fn no_interleaving_holds_the_cpu_past_the_deadline(
        mode in any_mode(),
        spin_limit_ns in 0u64..100_000,
        leaps in proptest::collection::vec(0u64..30_000, 1..200),
        accepts in proptest::collection::vec(any::<bool>(), 200),
        wakes in proptest::collection::vec(any::<bool>(), 200),
        ready_at in 0usize..200,
    ) {
        use dwell_policy::Step;
        let decision = Decision { spin_limit_ns, ..decision(mode) };
        let mut machine = WaitMachine::new(&decision, 0, 0);
        let (mut now, mut last) = (0, None);
        // When the present spin must be over; a hybrid's begins with its first look.
        let mut deadline = (mode == Mode::Spin).then_some(spin_limit_ns);
        for (at, leap) in leaps.iter().enumerate() {
            now += leap;
            let step = machine.step(now, at >= ready_at);
            if at >= ready_at {
                prop_assert_eq!(step, Step::Done);
                prop_assert!(machine.outcome().ready);
                return Ok(());
            }
            match step {
                Step::Done => prop_assert!(false, "over without a completion"),
                Step::Poll => {
                    if matches!(mode, Mode::Hybrid { .. }) {
                        deadline = deadline.or(Some(now + spin_limit_ns));
                    }
                    // Past the deadline two looks in a row would be a spin.
                    let past = deadline.is_none_or(|deadline| now >= deadline);
                    prop_assert!(!(past && last == Some(Step::Poll)), "spins on");
                }
                Step::Offer { .. } => {
                    if !accepts[at] {
                        machine.declined();
                    }
                }
                // A spin naps only past its deadline, where parking was refused.
                Step::Sleep { .. } => prop_assert!(mode != Mode::Spin || deadline < Some(now + 1)),
                Step::Park { until } => {
                    prop_assert_eq!(until, None);
                    if !wakes[at] {
                        machine.unwakeable();
                    }
                }
            }
            last = Some(step);
        }
        prop_assert_eq!(machine.step(now + 1, true), Step::Done);
    }
}
