// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the learner hears, says and keeps, in virtual time.

use dwell_policy::policy::Adaptive;
use dwell_policy::{ARMS, Load, Routes, WaitPolicy};

use super::*;
use crate::monitor::Sharing;

const SECOND: Ns = 1_000_000_000;

/// A device in virtual time, used by one thread without a pause.
struct World {
    learner: Learner,
    hearing: Hearing,
    now: Ns,
    /// Latency of a call, on a ring, and spun for, and the thread's CPU time.
    takes_ns: [Ns; 3],
    cpu_ns: [Ns; 3],
    load: Load,
    routes: Routes,
    /// Whether the server of these requests looks for them by itself.
    awake: bool,
    calls: u64,
}

impl World {
    fn new(remembered: Option<Place>, takes_ns: [Ns; 3]) -> World {
        World {
            learner: Learner::new(Goal::Latency, remembered),
            hearing: Hearing::default(),
            now: SECOND,
            takes_ns,
            cpu_ns: [5_000, 6_000, takes_ns[2]],
            load: Load::default(),
            routes: Routes::INLINE | Routes::INTERRUPT,
            awake: true,
            calls: 0,
        }
    }

    fn wait(&self, kind: Kind, size_bytes: u64) -> Wait<'static> {
        let (load, routes, awake) = (self.load, self.routes, self.awake);
        Wait { load, routes, awake, ..Wait::new(kind, size_bytes, None) }
    }

    /// Serves one request and says how.
    fn request(&mut self, kind: Kind, size_bytes: u64) -> Arm {
        let mut wait = self.wait(kind, size_bytes);
        let asked = self.learner.ask(&wait, 1);
        wait.learned = asked.and_then(Asked::learned);
        let decision = Adaptive::default().choose(&wait);
        let arm = Arm::of(&decision);
        let (began, latency_ns) = (self.now, self.takes_ns[arm as usize]);
        self.now += latency_ns;
        self.calls += u64::from(arm == Arm::Call);
        let times = |asked| match arm {
            Arm::Call => self.learner.times(asked, self.calls),
            _ => Some(1),
        };
        if let Some((asked, stands_for)) = asked.and_then(|asked| Some((asked, times(asked)?))) {
            let cpu_ns = Some(self.cpu_ns[arm as usize]);
            let counted = Some(asked.arm(&decision));
            let (arm, took_ns) = (counted, latency_ns);
            let taken = Taken { arm, requests: 1, stands_for, began, took_ns, cpu_ns };
            self.learner.hear(&mut self.hearing, asked, taken);
        }
        arm
    }

    /// Requests for so long, and how many of them each arm served.
    fn requests(&mut self, kind: Kind, size_bytes: u64, span_ns: Ns) -> [u64; 3] {
        let until = self.now + span_ns;
        let mut served = [0; 3];
        while self.now < until {
            served[self.request(kind, size_bytes) as usize] += 1;
        }
        served
    }

    /// Calls of which no CPU time is measured, whatever is asked for, and what is known then.
    fn only_calls(&mut self) -> LearnerSummary {
        let wait = self.wait(Kind::Read, 4096);
        for _ in 0..100_000 {
            let asked = self.learner.ask(&wait, 1).unwrap();
            let (began, took_ns) = (self.now, self.takes_ns[0]);
            self.now += took_ns;
            let arm = Some(Arm::Call);
            let taken = Taken { arm, requests: 1, stands_for: 1, began, took_ns, cpu_ns: None };
            self.learner.hear(&mut self.hearing, asked, taken);
        }
        self.learner.told(&wait, 1).unwrap()
    }

    fn incumbent(&self, kind: Kind, size_bytes: u64) -> Option<Arm> {
        self.learner.told(&self.wait(kind, size_bytes), 1).map(|known| known.incumbent)
    }
}

#[test]
fn each_direction_and_size_is_searched_for_itself() {
    let mut world = World::new(None, [30_000, 40_000, 10_000]);
    assert_eq!(world.request(Kind::Read, 4096), Arm::Call);
    world.requests(Kind::Read, 4096, 2 * SECOND);
    assert_eq!(world.incumbent(Kind::Read, 4096), Some(Arm::Spin));
    assert_eq!(world.incumbent(Kind::Write, 4096), None);
    assert_eq!(world.incumbent(Kind::Read, 8192), None);
    world.takes_ns = [10_000, 40_000, 30_000];
    world.requests(Kind::Write, 4096, 2 * SECOND);
    assert_eq!(world.incumbent(Kind::Write, 4096), Some(Arm::Call));
    assert_eq!(world.incumbent(Kind::Read, 4096), Some(Arm::Spin));
    let state = world.learner.state();
    assert_eq!((state.kinds, state.spins, state.switches), (2, 1, 1));
}

#[test]
fn a_new_size_begins_with_what_was_found_of_the_nearest() {
    let mut world = World::new(None, [30_000, 40_000, 10_000]);
    world.requests(Kind::Read, 4096, 10 * SECOND);
    for size_bytes in [1024, 2048, 8192, 16384] {
        world.request(Kind::Read, size_bytes);
        assert_eq!(world.incumbent(Kind::Read, size_bytes), Some(Arm::Spin), "{size_bytes}");
    }
    // Too far from the only size that has found something, or in the other direction.
    for (kind, size_bytes) in
        [(Kind::Read, 32768), (Kind::Read, 512), (Kind::Write, 4096), (Kind::Read, 65536)]
    {
        world.request(kind, size_bytes);
        assert_eq!(world.incumbent(kind, size_bytes), Some(Arm::Call), "{kind:?} {size_bytes}");
    }
}

#[test]
fn a_pipelines_requests_are_compared_by_how_fast_they_come_out() {
    let mut world = World::new(None, [0; 3]);
    // As long as each arm takes, a call aside.
    let takes_ns = [0, 4_000, 3_000, 3_500, 2_500];
    let depth = 8;
    let until = world.now + 10 * SECOND;
    let mut arms = [0; ARMS];
    while world.now < until {
        let queued = Wait { call: Call::Async, ..world.wait(Kind::Read, 4096) };
        let asked = world.learner.ask(&queued, depth).unwrap();
        let arm = asked.learned().map_or(Arm::Ring, |learned| learned.arm);
        arms[arm as usize] += 1;
        let (began, took_ns) = (world.now, 2 * takes_ns[arm as usize]);
        world.now += took_ns;
        let arm = Some(arm);
        let taken = Taken { arm, requests: 2, stands_for: 1, began, took_ns, cpu_ns: None };
        world.learner.hear(&mut world.hearing, asked, taken);
    }
    let queued = Wait { call: Call::Async, ..world.wait(Kind::Read, 4096) };
    let known = world.learner.told(&queued, depth).unwrap();
    assert_eq!((known.incumbent, arms[Arm::Call as usize]), (Arm::SpinHalf, 0));
    assert_eq!(known.arms[Arm::SpinHalf as usize].cost_ns.round(), 2_500.0);
    // Half of three is no other number than the first.
    assert!(known.offered.has(Arm::RingHalf) && !Arms::of(&queued, 3).has(Arm::RingHalf));
    // Neither lone requests nor deeper pipelines have begun to know.
    assert_eq!(world.learner.told(&queued, 64), None);
    assert_eq!(world.incumbent(Kind::Read, 8 * 4096), None);
}

#[test]
fn once_settled_few_requests_try_anything() {
    let mut world = World::new(None, [30_000, 40_000, 10_000]);
    world.requests(Kind::Read, 4096, 300 * SECOND);
    let [call, ring, spin] = world.requests(Kind::Read, 4096, 300 * SECOND);
    assert!((call + ring) * 1000 < 3 * spin, "{call} {ring} {spin}");
}

#[test]
fn of_many_calls_few_are_timed_and_of_few_all() {
    let cases =
        [(2_500, 50..=75), (11_000, 110..=140), (30_000, 490..=510), (100_000, 1000..=1000)];
    for (latency_ns, expected) in cases {
        let mut world = World::new(None, [latency_ns, 400_000, 500_000]);
        world.requests(Kind::Read, 4096, SECOND / 4);
        let asked = world.learner.ask(&world.wait(Kind::Read, 4096), 1).unwrap();
        assert_eq!(asked.learned(), Some(Learned { arm: Arm::Call, trial: false }));
        // Also of those of one kind that come between others in a pattern.
        for step in 1..10 {
            let timed =
                (0..1000).filter(|call| world.learner.times(asked, call * step).is_some()).count();
            assert!(expected.contains(&timed), "{latency_ns} ns, every {step}: {timed}");
        }
    }
}

#[test]
fn requests_that_find_no_spinner_count_for_the_spin_as_many_as_they_stand_for() {
    let mut world = World::new(None, [2_500, 400_000, 2_000]);
    world.requests(Kind::Read, 4096, 2 * SECOND);
    assert_eq!(world.incumbent(Kind::Read, 4096), Some(Arm::Spin));
    // In half of all requests a thread finds one.
    let until = world.now + SECOND;
    let mut limited = false;
    while world.now < until {
        limited = !limited;
        world.load.may_spin = !limited;
        world.request(Kind::Read, 4096);
    }
    let known = world.learner.told(&world.wait(Kind::Read, 4096), 1).unwrap();
    let spin = known.arms[Arm::Spin as usize];
    assert!((2_150.0..2_350.0).contains(&spin.cost_ns), "{spin:?}");
}

#[test]
fn cpu_time_is_measured_every_half_millisecond() {
    let world = World { learner: Learner::new(Goal::Balanced, None), ..World::new(None, [0; 3]) };
    let asked = world.learner.ask(&world.wait(Kind::Read, 4096), 1).unwrap();
    let metered = |now: &Ns| world.learner.meters(asked, *now);
    let metered = (0..1000).map(|at| SECOND + at * 3_000).filter(metered).count();
    assert_eq!(metered, 6);
}

#[test]
fn beside_others_a_thread_spins_only_where_that_takes_no_more_of_the_cpus() {
    for (takes_ns, cpu_ns, found) in [
        ([30_000, 20_000, 10_000], [5_000, 6_000, 10_000], Arm::Ring),
        ([30_000, 20_000, 10_000], [5_000, 6_000, 5_000], Arm::Spin),
        // No latency makes up for what others lose.
        ([3_000_000, 2_000_000, 10_000], [5_000, 6_000, 10_000], Arm::Ring),
        // A kernel worker does the work of what only seems to take less.
        ([20_000, 60_000, 60_000], [16_000, 5_000, 60_000], Arm::Call),
    ] {
        let mut world = World::new(None, [30_000, 20_000, 10_000]);
        world.requests(Kind::Read, 4096, 2 * SECOND);
        world.load = Load::new(1.0, 1.0, 0.5);
        world.load.may_spin = false;
        (world.takes_ns, world.cpu_ns) = (takes_ns, cpu_ns);
        world.requests(Kind::Read, 4096, 60 * SECOND);
        let before = world.learner.told(&world.wait(Kind::Read, 4096), 1).unwrap().switches;
        let served = world.requests(Kind::Read, 4096, 60 * SECOND);
        assert_eq!(world.incumbent(Kind::Read, 4096), Some(found));
        let took_ns = served[found as usize] * takes_ns[found as usize];
        assert!(took_ns > 59 * SECOND, "{served:?}");
        let after = world.learner.told(&world.wait(Kind::Read, 4096), 1).unwrap().switches;
        assert_eq!(before, after);
        // Afterwards what was known holds.
        world.load = Load::default();
        assert_eq!(world.request(Kind::Read, 4096), Arm::Spin);
    }
}

#[test]
fn beside_others_nothing_is_tried_before_cpu_time_was_measured() {
    let mut world = World::new(None, [30_000, 20_000, 10_000]);
    world.load = Load::new(1.0, 1.0, 0.5);
    let known = world.only_calls();
    assert_eq!((known.incumbent, known.arms.map(|told| told.trials)), (Arm::Call, [0; ARMS]));
}

/// It never gets as far as spinning for it. Trials of that once went on for two seconds each.
#[test]
fn a_server_that_always_sleeps_is_seldom_woken() {
    let mut world = World::new(None, [1_500, 9_000, 800]);
    world.awake = false;
    assert_eq!(world.request(Kind::Write, 4096), Arm::Call);
    let [calls, woken, spun] = world.requests(Kind::Write, 4096, 6 * SECOND);
    assert!(spun == 0 && woken > 0 && woken * 100 < calls, "{woken} of {calls} woke it");
    // One that fell asleep is found out too.
    let mut world = World::new(None, [1_500, 9_000, 800]);
    world.requests(Kind::Write, 4096, 6 * SECOND);
    assert_eq!(world.incumbent(Kind::Write, 4096), Some(Arm::Spin));
    world.awake = false;
    world.requests(Kind::Write, 4096, 3 * SECOND);
    assert_eq!(world.incumbent(Kind::Write, 4096), Some(Arm::Call));
}

#[test]
fn a_sync_and_what_only_a_call_can_do_are_not_compared() {
    let mut world = World::new(None, [30_000, 20_000, 10_000]);
    assert_eq!(world.learner.ask(&world.wait(Kind::Sync, 0), 1), None);
    world.routes = Routes::INLINE;
    assert_eq!(world.requests(Kind::Read, 4096, SECOND)[1..], [0, 0]);
    assert_eq!(world.incumbent(Kind::Read, 4096), None);
}

#[test]
fn a_request_served_otherwise_is_not_heard_of() {
    let mut world = World::new(None, [30_000, 20_000, 10_000]);
    world.request(Kind::Read, 4096);
    // The policy is another: it calls whatever is asked for.
    let known = world.only_calls();
    assert_eq!((known.incumbent, known.arms[Arm::Spin as usize].trials), (Arm::Call, 0));
}

#[test]
fn the_next_process_begins_with_what_this_one_found_and_only_one_tries_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Remembered::open(&dir.path().join("learned"), Sharing::SameUser).unwrap();
    let place = || Arc::new(open()).place("7:0 direct").unwrap();
    let mut one = World::new(Some(place()), [30_000, 20_000, 10_000]);
    one.requests(Kind::Read, 4096, 10 * SECOND);
    let mut other = World::new(Some(place()), [30_000, 20_000, 10_000]);
    other.now = one.now;
    assert_eq!(other.incumbent(Kind::Read, 4096), Some(Arm::Spin));
    other.request(Kind::Read, 4096);
    assert_eq!(other.request(Kind::Read, 4096), Arm::Spin);
    let now = one.now;
    let turn = one.learner.claim(3, now, now + SECOND).unwrap();
    assert_eq!(other.learner.claim(4, now + SECOND, now + SECOND), None);
    assert!(one.learner.claim(3, now, now + SECOND).is_some());
    // Its holder may have gone.
    let late = now + 2 * SECOND;
    assert!(other.learner.claim(4, late, late).is_some());
    // Nobody can hold on to a turn that is over.
    one.learner.hold(turn, 3, late + SECOND);
    assert!(other.learner.claim(4, late, late).is_some());
}
