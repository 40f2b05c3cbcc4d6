// SPDX-License-Identifier: MIT OR Apache-2.0
//! On which CPU the threads wait that answer the kernel.
//!
//! A program that waits for an answer sleeps. If the thread that answers it waits on another CPU, both
//! wake-ups cross CPUs, and each ends a halt. On the program's own CPU an answer takes two switches.
//! So the threads follow the programs as long as all of them are on one CPU. A thread that spins on another
//! CPU would be no cheaper: the program sleeps in the kernel and has to be woken across CPUs all the same.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// One request in so many is looked at closer: to find out a program's CPU takes as long as a request.
const LOOK_ONE_IN: u32 = 64;
/// Programs that must have been on one CPU, one after the other.
const AGREED: usize = 4;
/// No CPU in particular.
const ANY: u32 = u32::MAX;

/// Where the threads should wait.
#[derive(Debug)]
pub(super) struct Nearby {
    /// The CPUs that this process may use.
    all: CpuSet,
    home: AtomicU32,
    seen: Mutex<Seen>,
}

/// Where programs were lately.
#[derive(Clone, Copy, Debug)]
struct Seen {
    cpus: [u32; AGREED],
    next: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Seen { cpus: [ANY; AGREED], next: 0 }
    }
}

impl Seen {
    /// A program was on this CPU: the one where all were lately, or [`ANY`].
    fn at(&mut self, cpu: u32) -> u32 {
        self.cpus[self.next] = cpu;
        self.next = (self.next + 1) % AGREED;
        if self.cpus.iter().all(|seen| *seen == cpu) { cpu } else { ANY }
    }
}

thread_local! {
    /// Requests that this thread has answered, and the CPU to which it is bound.
    static OWN: Cell<(u32, u32)> = const { Cell::new((0, ANY)) };
}

impl Nearby {
    pub fn new() -> Nearby {
        let all = sched_getaffinity(None).unwrap_or_default();
        Nearby { all, home: AtomicU32::new(ANY), seen: Mutex::default() }
    }

    /// The calling thread answers a request of that thread (0: of nobody's), and will wait for the next one.
    pub fn answers(&self, tid: u32) {
        let (count, bound) = OWN.get();
        if count.is_multiple_of(LOOK_ONE_IN)
            && let Some(cpu) = cpu_of(tid)
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            self.home.store(seen.at(cpu), Ordering::Relaxed);
        }
        let home = self.home.load(Ordering::Relaxed);
        let moved = home != bound && self.bind(home);
        OWN.set((count.wrapping_add(1), if moved { home } else { bound }));
    }

    fn bind(&self, home: u32) -> bool {
        let mut one = CpuSet::new();
        let cpus = match home {
            ANY => &self.all,
            cpu if (cpu as usize) < CpuSet::MAX_CPU && self.all.is_set(cpu as usize) => {
                one.set(cpu as usize);
                &one
            }
            // A program may use CPUs that this process may not.
            _ => &self.all,
        };
        sched_setaffinity(None, cpus).is_ok()
    }
}

/// The CPU that a thread ran on last.
fn cpu_of(tid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok().filter(|_| tid > 0)?;
    // The name before may contain anything.
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_programs_that_are_all_on_one_cpu_and_no_others() {
        let mut seen = Seen::default();
        assert_eq!([3, 3, 3, 3, 3].map(|cpu| seen.at(cpu)), [ANY, ANY, ANY, 3, 3]);
        assert_eq!([1, 3, 3, 3, 3].map(|cpu| seen.at(cpu)), [ANY, ANY, ANY, ANY, 3]);
    }

    #[test]
    fn a_thread_waits_where_its_programs_are_and_anywhere_again() {
        std::thread::spawn(|| {
            let nearby = Nearby::new();
            let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let cpu = cpu_of(own).unwrap();
            assert!(nearby.all.is_set(cpu as usize));
            nearby.home.store(cpu, Ordering::Relaxed);
            OWN.set((1, ANY));
            nearby.answers(own);
            let bound = sched_getaffinity(None).unwrap();
            assert!(bound.count() == 1 && bound.is_set(cpu as usize));
            nearby.home.store(ANY, Ordering::Relaxed);
            nearby.answers(0);
            assert_eq!(sched_getaffinity(None).unwrap(), nearby.all);
        })
        .join()
        .unwrap();
    }
}
