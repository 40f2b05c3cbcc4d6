// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sixty-four processes share a limit in virtual time: the real table and member, without a clock,
//! a file or a thread.

use super::limit::{Demand, WindowUse, scatter};
use super::member::{Ask, Member, Report};
use super::sync::WORDS;
use super::table::{Identity, Table};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;

const WINDOW_MS: u64 = 100;
const TURN_MS: u64 = 1000;
const CPUS: u32 = 16;

struct Process {
    member: Member,
    demand: Demand,
    next_ms: u64,
    held: u32,
    /// Threads that want to spin all the time.
    threads: u32,
    alive: bool,
    /// Whether it ever might spin.
    had_one: bool,
}

struct Host {
    page: Vec<AtomicU64>,
    processes: Vec<Process>,
    now_ms: u64,
    limit: Cell<u32>,
}

impl Host {
    fn new(processes: usize, limit: u32) -> Host {
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
                had_one: false,
            }
        };
        Host {
            page: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            processes: (0..processes).map(process).collect(),
            now_ms: 0,
            limit: Cell::new(limit),
        }
    }

    fn taken(&self) -> u32 {
        self.processes.iter().map(|p| p.held).sum()
    }

    /// Runs until `until_ms`, calling `watch` after every process's window.
    fn run(&mut self, until_ms: u64, watch: impl Fn(&Host)) {
        while self.now_ms < until_ms {
            self.now_ms += 1;
            for i in 0..self.processes.len() {
                if self.processes[i].alive && self.processes[i].next_ms <= self.now_ms {
                    self.tick(i);
                    watch(self);
                } else if self.is_refused(i) {
                    self.take_first(i);
                    watch(self);
                }
            }
        }
    }

    /// Whether a thread wants to spin now, in the middle of a window, and none may.
    fn is_refused(&self, i: usize) -> bool {
        let process = &self.processes[i];
        process.alive
            && process.held == 0
            && process.threads > 0
            && self.now_ms % 97 == i as u64 % 97
    }

    fn take_first(&mut self, i: usize) {
        let table = Table::new(&self.page).unwrap();
        let (window_ms, turn_ms) = (WINDOW_MS as u32, TURN_MS as u32);
        let ask = Ask { limit: self.limit.get(), wanted: 1, window_ms, turn_ms };
        let process = &mut self.processes[i];
        let gone = |_| false;
        process.held =
            process.member.take_first(table, self.now_ms * 1_000_000, &ask, &gone).into();
    }

    fn tick(&mut self, i: usize) {
        let alive: Vec<bool> = self.processes.iter().map(|p| p.alive).collect();
        let gone = |who: Identity| !alive[who.pid() as usize - 1000];
        let table = Table::new(&self.page).unwrap();
        let (now_ms, limit) = (self.now_ms, self.limit.get());
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
            limit,
            wanted: process.demand.update(&window, process.held),
            window_ms: WINDOW_MS as u32,
            turn_ms: TURN_MS as u32,
        };
        let held = process.member.share(table, now_ns, &ask, &gone);
        process.had_one |= held > 0;
        process.held = held;
        let jitter = scatter(now_ms << 8 | i as u64) % (WINDOW_MS / 5);
        process.next_ms = now_ms + WINDOW_MS * 9 / 10 + jitter;
    }
}

/// Until all have seen each other.
const JOINED_MS: u64 = 3 * WINDOW_MS;

#[test]
fn spinners_never_exceed_the_limit_and_nobody_starves() {
    for (processes, limit) in [(12, 1u32), (64, 3), (64, 6), (64, 12)] {
        let mut host = Host::new(processes, limit);
        host.run(JOINED_MS, |_| ());
        let turns = 3 * processes.div_ceil(limit as usize) as u64;
        host.run(JOINED_MS + turns * TURN_MS, |host| {
            assert!(host.taken() <= limit, "{} at {} ms", host.taken(), host.now_ms);
        });
        for (i, process) in host.processes.iter().enumerate() {
            assert!(process.had_one, "{limit}: {i} had no turn");
        }
    }
}

#[test]
fn a_limit_that_changes_is_kept_two_windows_later_and_used_within_a_turn() {
    let mut host = Host::new(64, 12);
    host.run(5_000, |_| ());
    for (limit, until_ms) in [(4, 10_000), (0, 15_000), (12, 20_000)] {
        let changed_ms = host.now_ms;
        host.limit.set(limit);
        host.run(until_ms, |host| {
            let since_ms = host.now_ms - changed_ms;
            assert!(since_ms <= 2 * WINDOW_MS || host.taken() <= limit);
            let in_turn = host.now_ms % TURN_MS > 5 * WINDOW_MS;
            assert!(since_ms <= TURN_MS || !in_turn || host.taken() == limit);
        });
    }
}

#[test]
fn a_killed_process_counts_no_more_and_its_slot_is_reclaimed() {
    let mut host = Host::new(8, 4);
    host.run(2_500, |_| ());
    let killed: Vec<usize> = (0..8).filter(|&i| host.processes[i].held > 0).collect();
    assert_eq!(killed.len(), 4);
    for &i in &killed {
        host.processes[i].alive = false;
        host.processes[i].held = 0;
    }
    // A silent window, one in which the others look, and one after which a turn counts.
    host.run(2_500 + 3 * WINDOW_MS, |_| ());
    assert_eq!(host.taken(), 4);
    host.run(2_500 + 15 * WINDOW_MS, |_| ());
    let table = Table::new(&host.page).unwrap();
    let pids: Vec<u32> = (0..=255).filter_map(|s| table.identity(s)).map(Identity::pid).collect();
    assert!(pids.len() == 4 && killed.iter().all(|&i| !pids.contains(&(1000 + i as u32))));
}

#[test]
fn a_process_that_stops_spinning_leaves_the_limit_to_one_that_waits() {
    let mut host = Host::new(2, 1);
    host.processes[1].threads = 0;
    host.run(2_000, |_| ());
    assert_eq!(host.processes[0].held, 1);
    host.processes[0].threads = 0;
    host.processes[1].threads = 1;
    host.run(2_000 + 10 * WINDOW_MS, |_| ());
    assert_eq!((host.processes[0].held, host.processes[1].held), (0, 1));
    host.processes[1].threads = 0;
    host.run(5_000, |_| ());
    assert_eq!(host.taken(), 0);
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
    host.run(10_000, |_| ());
    host.run(15_000, |host| {
        let held: Vec<u32> = host.processes.iter().map(|p| p.held).collect();
        assert_eq!(held, [2, 2, 2]);
    });
}

#[test]
fn processes_on_other_cpus_have_a_limit_of_their_own() {
    let mut host = Host::new(4, 1);
    for i in [2, 3] {
        host.processes[i].member.set_cpus(CPUS..2 * CPUS);
    }
    host.run(3_500, |_| ());
    assert_eq!(host.taken(), 2);
    // They are moved.
    for i in [2, 3] {
        host.processes[i].member.set_cpus(0..CPUS);
    }
    host.run(5_500, |_| ());
    assert_eq!(host.taken(), 1);
}
