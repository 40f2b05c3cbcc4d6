// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits on a device that is not here: threads, CPUs and a device in virtual time, under any wait
//! policy.
//!
//! Every wait is stepped by the ground's [`WaitMachine`], as in a blocking call; time, load and
//! estimates that a policy sees are those of the simulated machine.

mod cpus;
mod learner;
mod report;
mod scenario;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use dwell_policy::{
    Backlog, Call, Decision, Estimator, Kind, Load, Mode, Ns, Profile, Route, Routes, Step, Wait,
    WaitMachine, WaitPolicy,
};

use crate::rng::Rng;
use cpus::{Cpus, Role, Tick, Work};
use learner::{Asked, Learner};
use report::Latencies;
pub use report::{CpuTime, WaitReport};
pub use scenario::{Device, Distribution, Scenario, ScenarioError};

/// How far the threshold drops, as a fraction of the CPUs, once others are above it.
const HYSTERESIS: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick {
        cpu: usize,
        generation: u64,
    },
    /// The device is done with a thread's request.
    Served {
        thread: usize,
    },
    /// A thread whose timer fired, or whom an idle CPU took so long to wake.
    Wake {
        thread: usize,
        paid: bool,
    },
    Window,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Thinking,
    /// The request is served on this CPU.
    Serving,
    /// It waits, stepping its machine.
    Waiting,
    Parked,
    Asleep,
}

struct Caller {
    phase: Phase,
    machine: Option<WaitMachine>,
    decision: Option<Decision>,
    asked: Option<Asked>,
    submitted: Ns,
    served: bool,
    only_looks: bool,
    deadline: Option<Ns>,
    left_cpu: bool,
    estimator: Estimator,
    sequence: u64,
    /// Latency drawn for the present request.
    latency_ns: Ns,
    worker: Option<usize>,
}

struct Machine<'a> {
    scenario: &'a Scenario,
    profile: Profile,
    policy: &'a dyn WaitPolicy,
    /// For a policy that compares arms.
    learner: Option<Learner>,
    rng: Rng,
    now: Ns,
    events: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    numbered: u64,
    cpus: Cpus,
    callers: Vec<Caller>,
    /// Requests that wait for a place on the device.
    queue: VecDeque<usize>,
    in_service: u32,
    in_flight: u32,
    link_free: Ns,
    load: Load,
    above: bool,
    budget: u32,
    seen: cpus::Spent,
    latencies: Latencies,
    report: WaitReport,
}

/// Simulates a scenario under one policy. The same scenario, policy and seed give the same report.
pub fn simulate(scenario: &Scenario, policy: &dyn WaitPolicy, seed: u64) -> WaitReport {
    let mut machine = Machine::new(scenario, policy, seed);
    machine.run();
    machine.finish()
}

impl<'a> Machine<'a> {
    fn new(scenario: &'a Scenario, policy: &'a dyn WaitPolicy, seed: u64) -> Self {
        let mut cpus = Cpus::new(
            scenario.cores,
            scenario.slice_ns,
            scenario.wakeup_granularity_ns,
            scenario.switch_ns,
        );
        let caller = |_| Caller {
            phase: Phase::Thinking,
            machine: None,
            decision: None,
            asked: None,
            submitted: 0,
            served: false,
            only_looks: false,
            deadline: None,
            left_cpu: false,
            estimator: Estimator::new(),
            sequence: 0,
            latency_ns: 0,
            worker: None,
        };
        let mut callers: Vec<Caller> = (0..scenario.threads).map(caller).collect();
        for _ in &callers {
            cpus.add(Role::Thread);
        }
        if scenario.device.worker_ns > 0 {
            for caller in &mut callers {
                caller.worker = Some(cpus.add(Role::Worker));
            }
        }
        let others = scenario.stressors.min(scenario.cores) as f32 / scenario.cores as f32;
        let mut machine = Machine {
            scenario,
            profile: scenario.profile(),
            policy,
            learner: policy.goal().map(Learner::new),
            rng: Rng::new(seed),
            now: 0,
            events: BinaryHeap::new(),
            numbered: 0,
            cpus,
            callers,
            queue: VecDeque::new(),
            in_service: 0,
            in_flight: 0,
            link_free: 0,
            load: Load::default(),
            above: false,
            budget: 0,
            seen: cpus::Spent::default(),
            latencies: Latencies::default(),
            report: WaitReport { policy: policy.name().into(), ..WaitReport::default() },
        };
        // The machine was like this before: what the first window will say is known.
        machine.assess(f64::from(others), f64::from(others));
        for id in 0..machine.callers.len() {
            machine.cpus.does(id, Work::Run(scenario.think_ns.max(1)), 0);
            machine.cpus.wake(id, 0, true);
        }
        for _ in 0..scenario.stressors {
            let id = machine.cpus.add(Role::Stressor);
            machine.cpus.does(id, Work::Run(Ns::MAX / 2), 0);
            machine.cpus.wake(id, 0, true);
        }
        machine.at(scenario.window_ms * 1_000_000, Event::Window);
        machine
    }

    fn at(&mut self, at: Ns, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn run(&mut self) {
        let end = self.scenario.duration_ms * 1_000_000;
        loop {
            for tick in std::mem::take(&mut self.cpus.ticks) {
                self.at(tick.at, Event::Tick { cpu: tick.cpu, generation: tick.generation });
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            if at >= end {
                break;
            }
            self.now = at;
            match event {
                Event::Tick { cpu, generation } => self.tick(Tick { at, cpu, generation }),
                Event::Served { thread } => self.served(thread),
                Event::Wake { thread, paid } => self.cpus.wake(thread, at, paid),
                Event::Window => self.window(),
            }
        }
        self.now = end;
    }

    fn tick(&mut self, tick: Tick) {
        let Some(id) = self.cpus.ticked(tick) else { return };
        let thread = &self.cpus.threads[id];
        match (thread.role, thread.work) {
            (Role::Thread, Work::Run(0)) => self.went_on(id),
            (Role::Thread, Work::Spin(until)) if self.now >= until => self.step(id, false),
            (Role::Worker, Work::Run(0)) => self.worked(id),
            _ => self.cpus.slice(id, self.now),
        }
    }

    /// A thread computed what it had to.
    fn went_on(&mut self, id: usize) {
        match self.callers[id].phase {
            Phase::Thinking => self.submit(id),
            Phase::Serving => self.end(id),
            Phase::Waiting | Phase::Parked | Phase::Asleep => {
                self.callers[id].phase = Phase::Waiting;
                self.step(id, false);
            }
        }
    }

    fn submit(&mut self, id: usize) {
        let scenario = self.scenario;
        let size_bytes = scenario.size_bytes;
        let spinning = self.callers.iter().filter(|caller| caller.deadline.is_some()).count();
        let mut load = self.load;
        load.may_spin = (spinning as u32) < self.budget;
        let routes = Routes::INLINE | Routes::INTERRUPT;
        let caller = &mut self.callers[id];
        let requests = self.in_flight;
        let mut wait = Wait {
            kind: Kind::Read,
            size_bytes,
            backlog: Backlog { bytes: u64::from(requests) * size_bytes, requests },
            call: Call::Blocking,
            routes: if scenario.device.polled { routes | Routes::POLLED } else { routes },
            profile: Some(&self.profile),
            estimate: caller.estimator.of(Kind::Read, size_bytes),
            awake: true,
            load,
            nice: 0,
            next_nice: None,
            sequence: caller.sequence,
            learned: None,
        };
        let asked = self.learner.as_ref().and_then(|learner| learner.ask(&wait));
        wait.learned = asked.and_then(Asked::learned);
        let decision = self.policy.choose(&wait);
        *self.report.reasons.entry(decision.reason.as_str().into()).or_default() += 1;
        caller.sequence += 1;
        caller.submitted = self.now;
        caller.decision = Some(decision);
        caller.asked = asked;
        caller.served = false;
        caller.only_looks = false;
        caller.left_cpu = false;
        caller.deadline = None;
        caller.latency_ns = scenario.device.latency.draw(&mut self.rng);
        let on_this_cpu = decision.route == Route::Inline && decision.mode == Mode::Spin;
        if scenario.device.in_caller || on_this_cpu {
            caller.phase = Phase::Serving;
            let serves_ns = caller.latency_ns + scenario.device.transfer_ns(size_bytes);
            return self.cpus.does(id, Work::Run(serves_ns.max(1)), self.now);
        }
        if decision.mode == Mode::Block {
            let less_ns = scenario.device.block_extra_ns.min(0).unsigned_abs();
            caller.latency_ns = caller.latency_ns.saturating_sub(less_ns);
        }
        caller.phase = Phase::Waiting;
        caller.machine = Some(WaitMachine::new(&decision, self.now, self.now));
        self.in_flight += 1;
        match self.in_service < scenario.device.parallel {
            true => self.serve(id),
            false => self.queue.push_back(id),
        }
        self.step(id, false);
    }

    /// The device takes a request.
    fn serve(&mut self, id: usize) {
        self.in_service += 1;
        if let Some(worker) = self.callers[id].worker {
            self.cpus.does(worker, Work::Run(self.scenario.device.worker_ns), self.now);
            // What an idle CPU takes to wake up is in the latency.
            return self.cpus.wake(worker, self.now, self.cpus.has_idle());
        }
        self.transfer(id, self.now + self.callers[id].latency_ns);
    }

    /// Its data crosses the link from then on.
    fn transfer(&mut self, id: usize, from: Ns) {
        let takes_ns = self.scenario.device.transfer_ns(self.scenario.size_bytes);
        self.link_free = self.link_free.max(from) + takes_ns;
        let done = if takes_ns == 0 { from } else { self.link_free };
        self.at(done, Event::Served { thread: id });
    }

    /// A worker did its part; what is left of the latency follows.
    fn worked(&mut self, worker: usize) {
        self.cpus.sleep(worker, self.now);
        let owner = self.callers.iter().position(|caller| caller.worker == Some(worker));
        if let Some(id) = owner {
            let due = self.callers[id].submitted + self.callers[id].latency_ns;
            self.transfer(id, due.max(self.now));
        }
    }

    fn served(&mut self, id: usize) {
        self.in_service -= 1;
        self.in_flight -= 1;
        if let Some(next) = self.queue.pop_front() {
            self.serve(next);
        }
        self.callers[id].served = true;
        match self.callers[id].phase {
            Phase::Parked if self.cpus.has_idle() => {
                // Waking an idle CPU and what the thread does for the switch, together the extra.
                let extra_ns = self.scenario.device.block_extra_ns.max(0).unsigned_abs();
                let own_ns = self.scenario.device.block_cpu_ns.min(extra_ns);
                self.cpus.does(id, Work::Run(own_ns), self.now);
                let wakes = self.now + extra_ns - own_ns;
                self.at(wakes, Event::Wake { thread: id, paid: true });
            }
            Phase::Parked => {
                self.cpus.does(id, Work::Run(self.scenario.device.block_cpu_ns), self.now);
                self.cpus.wake(id, self.now, false);
            }
            Phase::Waiting if self.cpus.threads[id].cpu.is_some() => self.step(id, false),
            // A thread that spins and was taken off its CPU, or sleeps by a timer, looks when it is
            // back.
            Phase::Waiting => self.cpus.does(id, Work::Run(0), self.now),
            _ => {}
        }
    }

    /// Steps the wait of a running thread until it is over or takes time.
    fn step(&mut self, id: usize, mut ready: bool) {
        loop {
            let now = self.now;
            let caller = &mut self.callers[id];
            let Some(machine) = &mut caller.machine else { return };
            match machine.step(now, ready) {
                Step::Poll if caller.served => ready = true,
                Step::Poll if !caller.only_looks => {}
                Step::Poll => {
                    let limit_ns = caller.decision.map_or(0, |decision| decision.spin_limit_ns);
                    let until = *caller.deadline.get_or_insert(now.saturating_add(limit_ns));
                    return self.cpus.does(id, Work::Spin(until.max(now + 1)), now);
                }
                Step::Offer { .. } => {
                    machine.declined();
                    caller.only_looks = true;
                }
                Step::Sleep { until } => {
                    caller.phase = Phase::Asleep;
                    caller.left_cpu = true;
                    let wakes = until.max(now) + self.scenario.device.sleep_overshoot_ns;
                    self.cpus.does(id, Work::Run(0), now);
                    self.cpus.sleep(id, now);
                    return self.at(wakes, Event::Wake { thread: id, paid: true });
                }
                Step::Park { .. } => {
                    caller.phase = Phase::Parked;
                    caller.left_cpu = true;
                    caller.deadline = None;
                    return self.cpus.sleep(id, now);
                }
                Step::Done => return self.end(id),
            }
        }
    }

    /// A request is over; the thread thinks.
    fn end(&mut self, id: usize) {
        let caller = &mut self.callers[id];
        let latency_ns = self.now - caller.submitted;
        if let Some(decision) = caller.decision {
            let mode = decision.mode;
            caller.estimator.record(Kind::Read, self.scenario.size_bytes, mode, latency_ns);
            if let (Some(learner), Some(asked)) = (&mut self.learner, caller.asked) {
                let cpu_ns = match caller.left_cpu {
                    true => self.scenario.device.block_cpu_ns,
                    false => latency_ns,
                };
                learner.hear(asked, &decision, caller.submitted, cpu_ns, self.now);
            }
        }
        if let Some(machine) = caller.machine.take() {
            self.report.expired += u64::from(machine.outcome().expired);
        }
        self.report.left_cpu += u64::from(caller.left_cpu);
        self.report.requests += 1;
        self.latencies.add(latency_ns);
        caller.phase = Phase::Thinking;
        caller.deadline = None;
        let thinks_ns = self.scenario.think_ns.max(1);
        self.cpus.does(id, Work::Run(thinks_ns), self.now);
    }

    /// What the system monitor does at the end of a window.
    fn window(&mut self) {
        self.cpus.account_all(self.now);
        let spent = self.cpus.spent;
        let window_ns = (self.scenario.window_ms * 1_000_000) as f64;
        let of_all = |ns: Ns| ns as f64 / window_ns / f64::from(self.scenario.cores);
        let others = of_all(spent.stressors_ns - self.seen.stressors_ns);
        let own = |spent: &cpus::Spent| spent.work_ns + spent.spin_ns + spent.worker_ns;
        let total = others + of_all(own(&spent) - own(&self.seen));
        self.seen = spent;
        self.assess(others, total);
        self.at(self.now + self.scenario.window_ms * 1_000_000, Event::Window);
    }

    fn assess(&mut self, others: f64, total: f64) {
        let cores = f64::from(self.scenario.cores);
        // One more spinner would take CPU time from somebody above this.
        let natural = if cores > 1.0 { 1.0 - 1.0 / cores } else { 0.0 };
        let lowered = (natural - HYSTERESIS).max(0.0);
        let threshold = if self.above { lowered } else { natural };
        self.above = others > threshold;
        let threshold = if self.above { lowered } else { natural };
        self.load = Load::new(others as f32, total as f32, threshold as f32);
        self.load.competitors = self.cpus.waiting().min(255) as u8;
        // A CPU each for a spinner and, where the device has one, its worker.
        let latency_ns = self.profile.latency_of(self.scenario.size_bytes).max(1);
        let worker = (self.scenario.device.worker_ns as f64 / latency_ns as f64).min(1.0);
        let room = (cores * (1.0 - others) / (1.0 + worker)).clamp(0.0, 255.0);
        self.budget = if self.above { 0 } else { (room as u32).max(u32::from(others < 0.4)) };
    }

    fn finish(mut self) -> WaitReport {
        self.cpus.account_all(self.now);
        let spent = self.cpus.spent;
        let mut report = self.report;
        report.elapsed_ns = self.now;
        report.mean_ns = self.latencies.mean_ns();
        report.p50_ns = self.latencies.at(0.5);
        report.p99_ns = self.latencies.at(0.99);
        report.switches = spent.switches;
        let all_ns = self.now * Ns::from(self.scenario.cores);
        let mut cpu = CpuTime {
            work_ns: spent.work_ns,
            spin_ns: spent.spin_ns,
            worker_ns: spent.worker_ns,
            stressors_ns: spent.stressors_ns,
            switch_ns: self.cpus.switched_ns(self.now),
            idle_ns: 0,
        };
        cpu.idle_ns = all_ns.saturating_sub(cpu.total_ns());
        report.cpu = cpu;
        report
    }
}

#[cfg(test)]
mod tests;
