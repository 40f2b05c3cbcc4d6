// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sixty-four processes share a budget in virtual time: the real table, member and lease logic,
//! without a clock, a file or a thread.

use super::lease::{Demand, WindowUse, age_ms, scatter};
use super::member::{Ask, Member, Report};
use super::sync::WORDS;
use super::table::{Identity, Table};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;

const WINDOW_MS: u64 = 100;
const HOLD_MS: u64 = 1000;
const CPUS: u32 = 16;

struct Process {
    member: Member,
    demand: Demand,
    next_ms: u64,
    held: u32,
    /// Threads that want to spin all the time.
    threads: u32,
    alive: bool,
    first_lease_ms: Option<u64>,
    last_lease_ms: u64,
    longest_wait_ms: u64,
}

struct Host {
    page: Vec<AtomicU64>,
    processes: Vec<Process>,
    now_ms: u64,
    budget: Cell<u32>,
    /// (when, by whom, seats gained or lost)
    changes: Vec<(u64, usize, i32)>,
}

impl Host {
    fn new(processes: usize, budget: u32) -> Host {
        let process = |i: usize| {
            let mut member = Member::new(Identity::new(1000 + i as u32, 5, 1));
            member.set_cpus(0..CPUS);
            Process {
                member,
                demand: Demand::default(),
                next_ms: 1 + scatter(i as u64) % WINDOW_MS,
                held: 0,
                threads: 1,
                alive: true,
                first_lease_ms: None,
                last_lease_ms: 0,
                longest_wait_ms: 0,
            }
        };
        Host {
            page: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            processes: (0..processes).map(process).collect(),
            now_ms: 0,
            budget: Cell::new(budget),
            changes: Vec::new(),
        }
    }

    fn taken(&self) -> u32 {
        self.processes.iter().map(|p| p.held).sum()
    }

    /// Seats that somebody holds, as the page says.
    fn seats_taken(&self) -> usize {
        let table = Table::new(&self.page).unwrap();
        (0..=255).filter(|&cpu| table.seat(cpu).owner().is_some()).count()
    }

    /// Runs until `until_ms`, calling `watch` after every process's window.
    fn run(&mut self, until_ms: u64, watch: impl Fn(&Host)) {
        while self.now_ms < until_ms {
            self.now_ms += 1;
            for i in 0..self.processes.len() {
                if self.processes[i].alive && self.processes[i].next_ms <= self.now_ms {
                    self.tick(i);
                    watch(self);
                }
            }
        }
    }

    fn tick(&mut self, i: usize) {
        let alive: Vec<bool> = self.processes.iter().map(|p| p.alive).collect();
        let gone = |who: Identity| !alive[who.pid() as usize - 1000];
        let table = Table::new(&self.page).unwrap();
        let (now_ms, budget) = (self.now_ms, self.budget.get());
        let process = &mut self.processes[i];
        let spinning = process.held.min(process.threads);
        let window = WindowUse {
            starts: spinning * 1000,
            active: 0,
            refused: process.threads > process.held,
            spin_ns: u64::from(spinning) * WINDOW_MS * 1_000_000,
            elapsed_ns: WINDOW_MS * 1_000_000,
        };
        let own = Report {
            spin_ns: window.spin_ns,
            elapsed_ns: window.elapsed_ns,
            period_ms: WINDOW_MS as u32,
            ..Report::default()
        };
        let now_ns = now_ms * 1_000_000;
        assert!(process.member.report(table, now_ns, &own, &gone));
        let ask = Ask {
            budget,
            wanted: process.demand.update(&window, process.held),
            stuck: 0,
            window_ms: WINDOW_MS as u32,
            max_hold_ms: HOLD_MS as u32,
        };
        let held = process.member.settle(table, now_ns, &ask, &gone);
        if held != process.held {
            self.changes.push((now_ms, i, held as i32 - process.held as i32));
        }
        if held > 0 {
            process.first_lease_ms.get_or_insert(now_ms);
            process.longest_wait_ms = process.longest_wait_ms.max(now_ms - process.last_lease_ms);
            process.last_lease_ms = now_ms;
        }
        process.held = held;
        let jitter = scatter(now_ms << 8 | i as u64) % (WINDOW_MS / 5);
        process.next_ms = now_ms + WINDOW_MS * 9 / 10 + jitter;
    }

    /// Seats gained and lost in the busiest stretch of one window, from `from_ms` on.
    fn most_changes_per_window(&self, from_ms: u64) -> (i32, i32) {
        let mut most = (0, 0);
        for &(start, ..) in self.changes.iter().filter(|c| c.0 >= from_ms) {
            let within = self.changes.iter().filter(|c| (start..start + WINDOW_MS).contains(&c.0));
            let (mut gained, mut lost) = (0, 0);
            for &(.., by) in within {
                gained += by.max(0);
                lost -= by.min(0);
            }
            most = (most.0.max(gained), most.1.max(lost));
        }
        most
    }
}

#[test]
fn leases_never_exceed_the_budget_and_nobody_starves() {
    for (processes, budget) in [(12, 1u32), (64, 3), (64, 6), (64, 12)] {
        let mut host = Host::new(processes, budget);
        let rounds = processes.div_ceil(budget as usize) as u64;
        // A seat changes hands after at most 1.25 holds, and its new holder finds it a window
        // later.
        let turn_ms = rounds * (HOLD_MS * 5 / 4 + 3 * WINDOW_MS);
        host.run(2 * turn_ms, |host| {
            assert!(host.taken() <= budget, "{} at {} ms", host.taken(), host.now_ms);
            assert!(host.seats_taken() <= budget as usize);
        });
        for (i, process) in host.processes.iter().enumerate() {
            let first = process.first_lease_ms.unwrap_or(u64::MAX);
            assert!(first <= turn_ms, "budget {budget}: {i} got its first lease at {first} ms");
            let longest = process.longest_wait_ms;
            assert!(longest <= turn_ms, "budget {budget}: {i} waited {longest} ms");
        }
        assert_eq!(host.seats_taken() as u32, budget);
    }
}

#[test]
fn processes_neither_start_nor_stop_in_unison() {
    let budget = 12;
    let mut host = Host::new(64, budget);
    host.run(20_000, |_| ());
    let (gained, lost) = host.most_changes_per_window(0);
    // A quarter of the budget is granted per window; a hand-over shows up to a window later.
    assert!(gained <= 2 * 3 && lost <= 2 * 3, "{gained} gained, {lost} lost in one window");

    // The budget shrinks: half of what is too much goes in each window, and all within ten.
    host.budget.set(4);
    host.run(20_000 + 10 * WINDOW_MS, |_| ());
    let (_, lost) = host.most_changes_per_window(20_000);
    assert!((4..=6).contains(&lost), "{lost} lost in one window");
    assert!(host.seats_taken() <= 4);

    // Others need all CPUs: every lease is given up, and not all at once.
    host.budget.set(0);
    host.run(23_000, |_| ());
    assert_eq!((host.taken(), host.seats_taken()), (0, 0));
    host.budget.set(budget);
    host.run(26_000, |_| ());
    let (gained, _) = host.most_changes_per_window(23_000);
    assert!(gained <= 2 * 3, "{gained} gained in one window");
    assert_eq!(host.seats_taken() as u32, budget);
}

#[test]
fn the_leases_of_a_killed_process_are_reclaimed_and_so_is_its_slot() {
    let mut host = Host::new(64, 4);
    host.run(3_000, |_| ());
    let killed: Vec<usize> = (0..64).filter(|&i| host.processes[i].held > 0).collect();
    assert!(!killed.is_empty());
    for &i in &killed {
        host.processes[i].alive = false;
        host.processes[i].held = 0;
    }
    // Three silent windows raise the suspicion; turns and steps take a few more.
    host.run(3_000 + 15 * WINDOW_MS, |_| ());
    let table = Table::new(&host.page).unwrap();
    let holders: Vec<usize> = (0..=255)
        .filter_map(|cpu| table.identity(table.seat(cpu).owner()?.slot))
        .map(|who| who.pid() as usize - 1000)
        .collect();
    assert!(holders.len() == 4 && holders.iter().all(|i| !killed.contains(i)), "{holders:?}");
    let pids: Vec<u32> = (0..=255).filter_map(|s| table.identity(s)).map(Identity::pid).collect();
    assert!(killed.iter().all(|&i| !pids.contains(&(1000 + i as u32))));
    assert_eq!(pids.len(), 64 - killed.len());
}

#[test]
fn a_process_that_stops_spinning_gives_its_lease_to_one_that_waits() {
    let mut host = Host::new(2, 1);
    host.processes[1].threads = 0;
    host.run(2_000, |_| ());
    assert_eq!(host.processes[0].held, 1);
    host.processes[0].threads = 0;
    host.processes[1].threads = 1;
    host.run(2_000 + 10 * WINDOW_MS, |_| ());
    assert_eq!((host.processes[0].held, host.processes[1].held), (0, 1));
    // Nobody wants to spin: the seat lies free.
    host.processes[1].threads = 0;
    host.run(5_000, |_| ());
    assert_eq!((host.taken(), host.seats_taken()), (0, 0));
}

#[test]
fn a_process_with_many_threads_yields_to_one_that_has_nothing() {
    let mut host = Host::new(3, 6);
    host.processes[0].threads = 10;
    for i in [1, 2] {
        host.processes[i].threads = 0;
    }
    host.run(5_000, |_| ());
    assert_eq!(host.processes[0].held, 6);
    for i in [1, 2] {
        host.processes[i].threads = 3;
    }
    host.run(15_000, |host| assert!(host.taken() <= 6));
    let held: Vec<u32> = host.processes.iter().map(|p| p.held).collect();
    assert!(held.iter().all(|&h| (1..=3).contains(&h)), "{held:?}");
}

#[test]
fn processes_on_other_cpus_have_a_budget_of_their_own() {
    let mut host = Host::new(4, 1);
    for i in [2, 3] {
        host.processes[i].member.set_cpus(CPUS..2 * CPUS);
    }
    host.run(3_000, |_| ());
    assert_eq!((host.taken(), host.seats_taken()), (2, 2));
    // One of them is moved: what it holds elsewhere is freed.
    for i in [2, 3] {
        host.processes[i].member.set_cpus(0..CPUS);
    }
    host.run(5_000, |_| ());
    assert_eq!(host.seats_taken(), 1);
}

#[test]
fn clocks_that_wrap_and_fellows_ahead_of_us_have_no_age() {
    assert_eq!(age_ms(5, u32::MAX - 4), 10);
    assert_eq!(age_ms(100, 103), 0);
    let mut host = Host::new(8, 2);
    // The milliseconds wrap in the middle of the run.
    host.now_ms = u64::from(u32::MAX) - 3_000;
    for process in &mut host.processes {
        process.next_ms += host.now_ms;
        process.last_lease_ms = host.now_ms;
    }
    let until = host.now_ms + 20_000;
    host.run(until, |host| assert!(host.taken() <= 2));
    assert!(host.processes.iter().all(|p| p.longest_wait_ms < 8_000));
}
