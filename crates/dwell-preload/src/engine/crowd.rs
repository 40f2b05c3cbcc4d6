// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether so many threads want the CPUs that nobody will spin for a while: then an engine costs more than it brings.
#![allow(unsafe_code)]

use std::fs;

/// So many threads that can run for each CPU are a crowd.
const PER_CPU: i64 = 2;

/// One look at the machine as a whole.
pub fn is_here() -> bool {
    let told = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // SAFETY: asks for a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    cpus > 0 && runnable(&told).is_some_and(|threads| threads > PER_CPU * cpus)
}

/// Threads that run or could, the calling one among them.
fn runnable(told: &str) -> Option<i64> {
    told.split(' ').nth(3)?.split('/').next()?.parse().ok()
}
