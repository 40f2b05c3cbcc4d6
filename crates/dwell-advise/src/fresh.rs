// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a completion explains a wake-up on its CPU, unless another task ran there meanwhile.

use std::os::unix::process::parent_id;
use std::time::Instant;

/// On a real processor: where it was idle or ran a thread of the kernel, and where it ran a
/// program, in nanoseconds.
const IDLE_NS: u64 = 100_000;
const IN_PROGRAM_NS: u64 = 20_000;
/// A system call takes no longer than this on a real processor, in nanoseconds.
const CALL_NS: u64 = 400;
const CALLS: u64 = 256;
const SLOWEST: u64 = 50;

/// Limits in nanoseconds, longer where this machine is emulated and all that it does takes longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub idle_ns: u64,
    pub in_program_ns: u64,
}

impl Default for Fresh {
    fn default() -> Fresh {
        Fresh { idle_ns: IDLE_NS, in_program_ns: IN_PROGRAM_NS }
    }
}

impl Fresh {
    pub fn here() -> Fresh {
        let began = Instant::now();
        (0..CALLS).for_each(|_| {
            std::hint::black_box(parent_id());
        });
        Fresh::of_call(began.elapsed().as_nanos() as u64 / CALLS)
    }

    fn of_call(call_ns: u64) -> Fresh {
        let times = (call_ns / CALL_NS).clamp(1, SLOWEST);
        Fresh { idle_ns: times * IDLE_NS, in_program_ns: times * IN_PROGRAM_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_emulated_machine_has_longer_limits() {
        let limits = |call_ns| Fresh::of_call(call_ns).in_program_ns;
        assert_eq!([0, 200, 799].map(limits), [IN_PROGRAM_NS; 3]);
        assert_eq!(limits(3_200), 8 * IN_PROGRAM_NS);
        assert_eq!(limits(u64::MAX), SLOWEST * IN_PROGRAM_NS);
    }
}
