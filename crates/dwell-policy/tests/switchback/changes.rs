// SPDX-License-Identifier: MIT OR Apache-2.0
//! How soon a change of the machine is answered, and what is taken for one.

use dwell_policy::switchback::{Seen, Switchback};
use dwell_policy::{Arm, Goal, Ns};

use super::world::Random;
use super::{SECOND, begun, lone};

/// Latency and CPU time of each arm of a lone request.
type Costs = [(f64, f64); 3];

/// A program that makes such requests, and how its looks scatter.
struct Program {
    search: Switchback,
    now: Ns,
    random: Random,
    scatter: f64,
    trials: u32,
}

impl Program {
    fn new(seed: u64, scatter: f64, goal: Goal) -> Program {
        let search = begun(SECOND, Arm::Call, lone(), goal);
        Program { search, now: SECOND, random: Random(seed), scatter, trials: 0 }
    }

    /// Ends, and another that begins with what it found takes its place.
    fn begin_anew(&mut self, goal: Goal) {
        let saved = self.search.save();
        self.search = Switchback::idle(goal, false);
        assert!(self.search.restore(self.now, &saved, lone()));
    }

    /// Makes requests for a while.
    fn go_on(&mut self, costs: Costs, span_ns: Ns) {
        let until = self.now + span_ns;
        while self.now < until {
            self.make(costs);
        }
    }

    /// Makes requests until the search is done with its step.
    fn make(&mut self, costs: Costs) {
        self.make_beside(costs, true);
    }

    fn make_beside(&mut self, costs: Costs, may_try: bool) {
        let step = self.search.now();
        self.trials += u32::from(step.trial);
        let (latency_ns, cpu_ns) = costs[step.arm as usize];
        let counted_ns = step.until - step.from;
        let requests = (counted_ns as f64 / latency_ns).max(1.0) as u64;
        let metered = requests.min(counted_ns / 500_000 + 4);
        let chance = 1.0 + self.random.normal() * self.scatter;
        let sum = |each_ns: f64, of: u64| (each_ns * chance * of as f64) as u64;
        let (latency_ns, cpu_ns) = (sum(latency_ns, requests), sum(cpu_ns, metered));
        self.now = step.until;
        let seen = Seen { requests, latency_ns, slow_ns: 0, metered, cpu_ns };
        self.search.step(self.now, seen, may_try);
    }
}

/// Long enough that trials are rare.
const LONG: Ns = 300 * SECOND;

#[test]
fn a_change_that_shows_only_in_the_incumbents_cpu_time_is_answered() {
    // A spin beside a kernel worker: the worker has a CPU to itself, and then shares the spinner's.
    const APART: Costs = [(37_000.0, 16_000.0), (40_000.0, 17_000.0), (18_000.0, 18_000.0)];
    const TOGETHER: Costs = [(10_000.0, 4_000.0), (10_500.0, 6_000.0), (18_000.0, 10_000.0)];
    for seed in 0..20 {
        let mut program = Program::new(seed, 0.03, Goal::Balanced);
        program.go_on(APART, LONG);
        assert_eq!(program.search.incumbent(), Arm::Spin);
        program.go_on(TOGETHER, 5 * SECOND);
        assert_eq!(program.search.incumbent(), Arm::Call);
    }
}

const APART: Costs = [(10_700.0, 5_000.0), (11_500.0, 6_000.0), (7_000.0, 7_000.0)];

/// The state in which calls are twice as fast, and a spin is so much slower.
fn together(slower: f64) -> Costs {
    [(4_800.0, 4_000.0), (5_300.0, 5_000.0), (7_000.0 * slower, 7_000.0)]
}

#[test]
fn a_change_by_a_quarter_is_answered_within_two_seconds() {
    for scatter in [0.02, 0.05, 0.08] {
        for slower in [1.25, 1.35] {
            // As it goes on, soon after a process began, and before it made a request.
            for begins_before in [None, Some(SECOND), Some(0)] {
                let mut late = Vec::new();
                for seed in 0..20 {
                    let mut program = Program::new(seed, scatter, Goal::Latency);
                    program.go_on(APART, LONG);
                    if let Some(before) = begins_before {
                        program.begin_anew(Goal::Latency);
                        program.go_on(APART, before);
                    }
                    assert_eq!(program.search.incumbent(), Arm::Spin);
                    program.go_on(together(slower), 2 * SECOND);
                    late.extend((program.search.incumbent() == Arm::Spin).then_some(seed));
                }
                assert!(late.is_empty(), "{scatter} {slower} {begins_before:?}: {late:?}");
            }
        }
    }
}

#[test]
fn a_change_in_the_wake_of_a_trial_is_answered_within_two_seconds() {
    for seed in 0..20 {
        let mut program = Program::new(seed, 0.03, Goal::Latency);
        program.go_on(APART, LONG);
        while !program.search.now().trial {
            program.make(APART);
        }
        program.make(APART);
        program.go_on(together(1.35), 2 * SECOND);
        assert_eq!(program.search.incumbent(), Arm::Call, "{seed}");
    }
}

#[test]
fn scatter_is_no_change() {
    for scatter in [0.02, 0.1, 0.25] {
        let (mut trials, mut switches) = (Vec::new(), 0);
        for seed in 0..20 {
            let mut program = Program::new(seed, scatter, Goal::Latency);
            program.go_on(APART, LONG);
            let before = program.trials;
            program.go_on(APART, LONG);
            assert_eq!(program.search.incumbent(), Arm::Spin);
            switches += program.search.switches() - 1;
            trials.push(program.trials - before);
        }
        println!("scatter {scatter}: {trials:?} trials, {switches} switches");
        // In these hundred minutes an arm takes over five times at most, and is given back.
        assert!(switches <= 10, "{scatter}: {switches}");
        // A trial takes 15 ms: of 300 s, so many are 0.3 %.
        assert!(trials.iter().sum::<u32>() <= 60 * 20, "{scatter}: {trials:?}");
    }
}

#[test]
fn processes_side_by_side_share_their_trials() {
    let mut alone = Program::new(1, 0.03, Goal::Latency);
    alone.go_on(APART, LONG);
    let mut all: Vec<_> = (0..4).map(|seed| Program::new(seed, 0.03, Goal::Latency)).collect();
    let mut saved = all[0].search.save();
    while all.iter().any(|program| program.now < LONG) {
        // The one that is behind makes requests until its step is over. One tries at a time.
        let next = (0..4).min_by_key(|at| all[*at].now).unwrap();
        let may_try = (0..4).all(|at| at == next || !all[at].search.is_trying());
        let next = &mut all[next];
        next.search.hear_of(next.now, &saved);
        next.make_beside(APART, may_try);
        saved = next.search.save();
    }
    let trials: Vec<_> = all.iter().map(|program| program.trials).collect();
    println!("{} trials alone, {trials:?} beside others", alone.trials);
    assert!(all.iter().all(|program| program.search.incumbent() == Arm::Spin));
    assert!(trials.iter().all(|trials| trials * 2 <= alone.trials));
}

#[test]
fn an_arm_that_was_given_back_because_the_state_changed_takes_over_in_its_own() {
    for seed in 0..20 {
        let mut program = Program::new(seed, 0.03, Goal::Latency);
        program.go_on(APART, LONG);
        while program.search.incumbent() == Arm::Spin {
            program.make(together(1.35));
        }
        // It is on probation.
        program.go_on(APART, 4 * SECOND);
        assert_eq!(program.search.incumbent(), Arm::Spin, "{seed}");
        program.go_on(together(1.35), 4 * SECOND);
        assert_eq!(program.search.incumbent(), Arm::Call, "{seed}");
    }
}

#[test]
fn cpu_times_that_scatter_keep_no_change_from_being_answered() {
    for seed in 0..20 {
        let mut program = Program::new(seed, 0.03, Goal::Balanced);
        program.go_on(APART, LONG);
        let until = program.now + 3 * SECOND;
        while program.now < until {
            let mut costs = together(0.85);
            // A request is metered with the worker's time between, or without.
            costs[Arm::Spin as usize].1 =
                [1_400.0, 3_400.0, 5_400.0][program.random.next() as usize % 3];
            program.make(costs);
        }
        assert_eq!(program.search.incumbent(), Arm::Call, "{seed}");
    }
}
