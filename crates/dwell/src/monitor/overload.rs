// SPDX-License-Identifier: MIT OR Apache-2.0
//! One look at the machine for those who have no monitor yet.

use std::fs;

use super::sys;

/// So many threads that can run for each CPU are an overload.
const PER_CPU: u32 = 2;

/// Whether so many threads want the CPUs of this machine that nobody will spin for a while: then a
/// monitor, with what goes with it, costs more than it brings. Cheap enough to ask now and then,
/// not per request.
pub fn is_overloaded() -> bool {
    let told = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    runnable(&told).zip(sys::online_cpus()).is_some_and(|(threads, cpus)| threads > PER_CPU * cpus)
}

/// Threads that run or could, the calling one among them.
fn runnable(told: &str) -> Option<u32> {
    told.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runnable_threads_stand_before_all_others() {
        assert_eq!(runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for damaged in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 3", "0.20 0.18 0.12 x/80 1"] {
            assert_eq!(runnable(damaged), None, "{damaged:?}");
        }
    }
}
