// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPUs and the threads that share them: whoever had the least CPU time runs next, whoever wakes up
//! makes somebody with more of it give way.

use std::collections::BTreeSet;

use dwell_policy::Ns;

/// What a thread does on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Computes for so long.
    Run(Ns),
    /// Busy-waits, at most until then.
    Spin(Ns),
}

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Thread,
    Stressor,
    Worker,
}

pub(super) struct Thread {
    pub role: Role,
    pub work: Work,
    /// CPU time, raised to what others had when it wakes up.
    virtual_ns: Ns,
    pub cpu: Option<usize>,
    ready: bool,
}

#[derive(Default)]
struct Cpu {
    running: Option<usize>,
    last: Option<usize>,
    /// From when on its time is not accounted yet; in the future during a switch.
    since: Ns,
    slice_end: Ns,
    generation: u64,
}

/// Time spent, by role.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub work_ns: Ns,
    pub spin_ns: Ns,
    pub worker_ns: Ns,
    pub stressors_ns: Ns,
    pub switch_ns: Ns,
    pub switches: u64,
}

/// When a CPU is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub at: Ns,
    pub cpu: usize,
    pub generation: u64,
}

pub(super) struct Cpus {
    cpus: Vec<Cpu>,
    pub threads: Vec<Thread>,
    ready: BTreeSet<(Ns, usize)>,
    least_ns: Ns,
    slice_ns: Ns,
    granularity_ns: Ns,
    switch_ns: Ns,
    pub spent: Spent,
    /// To be put into the event queue.
    pub ticks: Vec<Tick>,
}

impl Cpus {
    pub fn new(cores: u32, slice_ns: Ns, granularity_ns: Ns, switch_ns: Ns) -> Self {
        Cpus {
            cpus: (0..cores).map(|_| Cpu::default()).collect(),
            threads: Vec::new(),
            ready: BTreeSet::new(),
            least_ns: 0,
            slice_ns,
            granularity_ns,
            switch_ns,
            spent: Spent::default(),
            ticks: Vec::new(),
        }
    }

    /// A new thread, asleep.
    pub fn add(&mut self, role: Role) -> usize {
        let virtual_ns = self.least_ns;
        self.threads.push(Thread { role, work: Work::Run(0), virtual_ns, cpu: None, ready: false });
        self.threads.len() - 1
    }

    pub fn has_idle(&self) -> bool {
        self.cpus.iter().any(|cpu| cpu.running.is_none())
    }

    /// Threads that wait for a CPU.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Charges what a CPU did since it was last looked at.
    fn account(&mut self, at: usize, now: Ns) {
        let cpu = &mut self.cpus[at];
        let Some(id) = cpu.running else {
            cpu.since = now;
            return;
        };
        let took_ns = now.saturating_sub(cpu.since);
        cpu.since = cpu.since.max(now);
        let thread = &mut self.threads[id];
        thread.virtual_ns += took_ns;
        match (thread.role, &mut thread.work) {
            (Role::Thread, Work::Spin(_)) => self.spent.spin_ns += took_ns,
            (role, work) => {
                if let Work::Run(left_ns) = work {
                    *left_ns = left_ns.saturating_sub(took_ns);
                }
                *match role {
                    Role::Thread => &mut self.spent.work_ns,
                    Role::Stressor => &mut self.spent.stressors_ns,
                    Role::Worker => &mut self.spent.worker_ns,
                } += took_ns;
            }
        }
    }

    /// What switches took until now; one that is under way is paid for beforehand.
    pub fn switched_ns(&self, now: Ns) -> Ns {
        let ahead: Ns = self.cpus.iter().map(|cpu| cpu.since.saturating_sub(now)).sum();
        self.spent.switch_ns - ahead
    }

    /// Charges what all CPUs did.
    pub fn account_all(&mut self, now: Ns) {
        (0..self.cpus.len()).for_each(|at| self.account(at, now));
    }

    fn tick(&mut self, at: usize) {
        let cpu = &mut self.cpus[at];
        cpu.generation += 1;
        let Some(id) = cpu.running else { return };
        let ends = match self.threads[id].work {
            Work::Run(left_ns) => cpu.since.saturating_add(left_ns),
            Work::Spin(until) => until.max(cpu.since),
        };
        let at_ns = ends.min(cpu.slice_end.max(cpu.since + 1));
        self.ticks.push(Tick { at: at_ns, cpu: at, generation: cpu.generation });
    }

    /// The thread that a tick is about, if the CPU still runs it.
    pub fn ticked(&mut self, tick: Tick) -> Option<usize> {
        if self.cpus[tick.cpu].generation != tick.generation {
            return None;
        }
        self.account(tick.cpu, tick.at);
        self.cpus[tick.cpu].running
    }

    /// Puts a thread on a CPU that has none. What the switch costs is left out where it was paid.
    fn dispatch(&mut self, at: usize, id: usize, now: Ns, paid: bool) {
        let cpu = &mut self.cpus[at];
        let switch_ns = if cpu.last == Some(id) || paid { 0 } else { self.switch_ns };
        if cpu.last != Some(id) {
            self.spent.switches += 1;
        }
        self.spent.switch_ns += switch_ns;
        cpu.running = Some(id);
        cpu.last = Some(id);
        cpu.since = now + switch_ns;
        cpu.slice_end = cpu.since + self.slice_ns;
        let thread = &mut self.threads[id];
        thread.cpu = Some(at);
        thread.ready = false;
        self.least_ns = self.least_ns.max(thread.virtual_ns);
        self.tick(at);
    }

    /// Gives a CPU to whoever waits for one.
    fn next(&mut self, at: usize, now: Ns) {
        match self.ready.pop_first() {
            Some((_, id)) => self.dispatch(at, id, now, false),
            None => self.tick(at),
        }
    }

    fn take_off(&mut self, at: usize, now: Ns) -> Option<usize> {
        self.account(at, now);
        let cpu = &mut self.cpus[at];
        // A switch that was paid for and not used is no work of anybody.
        self.spent.switch_ns -= cpu.since.saturating_sub(now);
        cpu.since = now;
        let id = cpu.running.take()?;
        self.threads[id].cpu = None;
        Some(id)
    }

    fn enqueue(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.ready = true;
        self.ready.insert((thread.virtual_ns, id));
    }

    /// A thread wants a CPU: an idle one, that of somebody who had more, or it waits.
    pub fn wake(&mut self, id: usize, now: Ns, paid: bool) {
        let thread = &mut self.threads[id];
        if thread.cpu.is_some() || thread.ready {
            return;
        }
        thread.virtual_ns = thread.virtual_ns.max(self.least_ns.saturating_sub(self.slice_ns / 2));
        let virtual_ns = thread.virtual_ns;
        let idle = |cpu: &Cpu| cpu.running.is_none();
        let own = self.cpus.iter().position(|cpu| idle(cpu) && cpu.last == Some(id));
        if let Some(at) = own.or_else(|| self.cpus.iter().position(idle)) {
            self.account(at, now);
            return self.dispatch(at, id, now, paid);
        }
        self.account_all(now);
        let had = |at: &usize| self.cpus[*at].running.map(|id| self.threads[id].virtual_ns);
        let most = (0..self.cpus.len()).max_by_key(had).unwrap_or(0);
        let gives_way = had(&most).is_some_and(|had| had > virtual_ns + self.granularity_ns);
        match if gives_way { self.take_off(most, now) } else { None } {
            Some(other) => {
                self.dispatch(most, id, now, false);
                self.enqueue(other);
            }
            None => self.enqueue(id),
        }
    }

    /// A running thread leaves its CPU.
    pub fn sleep(&mut self, id: usize, now: Ns) {
        if let Some(at) = self.threads[id].cpu {
            self.take_off(at, now);
            self.next(at, now);
        }
    }

    /// A running thread does something else from now on.
    pub fn does(&mut self, id: usize, work: Work, now: Ns) {
        if let Some(at) = self.threads[id].cpu {
            self.account(at, now);
            self.threads[id].work = work;
            self.tick(at);
        } else {
            self.threads[id].work = work;
        }
    }

    /// The slice of a running thread may be over: whoever had less runs now.
    pub fn slice(&mut self, id: usize, now: Ns) {
        let Some(at) = self.threads[id].cpu else { return };
        let had = self.threads[id].virtual_ns;
        let over = now >= self.cpus[at].slice_end;
        if over && self.ready.first().is_some_and(|(least, _)| *least < had) {
            self.take_off(at, now);
            self.enqueue(id);
            return self.next(at, now);
        }
        if over {
            self.cpus[at].slice_end = now + self.slice_ns;
        }
        self.tick(at);
    }
}
