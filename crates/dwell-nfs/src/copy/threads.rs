// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many threads copy: a fixed number, or one more as long as CPU time is what they lack.

use std::time::Duration;

use dwell::clock;
use dwell::executor::Handle as Tasks;
use dwell_policy::Ns;

/// How many threads copy files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Always so many, but no more than there are files.
    Fixed(u32),
    /// One, and one more as often as all of them lack CPU time and CPUs are free.
    Found,
}

/// For so long it is measured how much a thread computes.
pub(super) const WINDOW: Duration = Duration::from_millis(200);
/// A thread that computes for a larger share of the time lacks CPU time.
const BUSY: f64 = 0.9;

/// Whether one more thread makes a copy faster. `busy` has, for each thread, the share of the time
/// that it computes; `cpus` are those that the process may use, and `files` those that no thread
/// has begun to copy.
pub(super) fn pays(busy: &[f64], cpus: usize, files: usize) -> bool {
    // One CPU is left to a server on this machine.
    busy.len() + 1 < cpus && files > 0 && busy.iter().all(|share| *share > BUSY)
}

/// Measures how much the calling thread computes.
pub(super) struct Meter {
    tasks: Tasks,
    last: (Ns, Ns),
}

impl Meter {
    /// From now on; `tasks` are those of the calling thread.
    pub fn new(tasks: &Tasks) -> Meter {
        Meter { tasks: tasks.clone(), last: Self::read(tasks) }
    }

    /// The time, and what was computed until then: busy-waiting is not part of it.
    fn read(tasks: &Tasks) -> (Ns, Ns) {
        (tasks.now(), clock::thread_cpu().saturating_sub(tasks.counts().spun_ns))
    }

    /// The share of the time since the last call.
    pub fn share(&mut self) -> f64 {
        let now = Self::read(&self.tasks);
        let last = std::mem::replace(&mut self.last, now);
        now.1.saturating_sub(last.1) as f64 / now.0.saturating_sub(last.0).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use dwell::executor::Executor;

    use super::*;

    #[test]
    fn a_thread_is_added_where_all_lack_cpu_time_and_a_cpu_is_left_beside_it() {
        assert!(pays(&[0.95], 3, 1) && pays(&[0.95, 0.91], 4, 100));
        // One of them waits.
        assert!(!pays(&[0.95, 0.5], 8, 100) && !pays(&[0.9], 8, 100));
        // One that was just started has computed nothing yet.
        assert!(!pays(&[1.0, 0.0], 8, 100));
        // There is nothing to do for it.
        assert!(!pays(&[1.0], 8, 0));
    }

    #[test]
    fn a_server_on_a_small_machine_keeps_its_cpu() {
        for cpus in 0..=2 {
            assert!(!pays(&[1.0], cpus, 100), "{cpus} CPUs");
        }
        let most = |cpus| (1..).find(|threads| !pays(&vec![1.0; *threads], cpus, 100)).unwrap();
        assert_eq!([3, 4, 16].map(most), [2, 3, 15]);
    }

    #[test]
    fn a_thread_that_computes_is_busy_and_one_that_sleeps_is_not() {
        let executor = Executor::new().unwrap();
        let mut meter = Meter::new(&executor.handle());
        executor.block_on(executor.sleep(Duration::from_millis(50)));
        let asleep = meter.share();
        let until = clock::thread_cpu() + 20_000_000;
        while clock::thread_cpu() < until {}
        let awake = meter.share();
        assert!(asleep < awake && asleep < BUSY, "{asleep} {awake}");
    }
}
