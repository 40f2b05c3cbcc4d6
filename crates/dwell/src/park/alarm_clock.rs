// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timer that goes on running from one sleep to the next.

use std::io;
use std::os::fd::RawFd;

use dwell_policy::Ns;

use crate::timerfd::Timer;

/// Shorter sleeps are timed by the call that sleeps: they mostly last until they are over.
const LEAST_NS: Ns = 500_000;

/// Ends sleeps that are mostly ended by something else long before. Setting a timer for each, and
/// putting it back, costs as much as the rest of a wake-up where a machine's timer belongs to a
/// hypervisor. So it is left as it is while it rings soon enough, and not before half of the sleep
/// is over.
pub(super) struct AlarmClock {
    timer: Timer,
    rings_at: Ns,
}

impl AlarmClock {
    pub fn new() -> io::Result<Self> {
        Ok(AlarmClock { timer: Timer::new()?, rings_at: 0 })
    }

    /// Readable from when it rang.
    pub fn descriptor(&self) -> RawFd {
        self.timer.descriptor()
    }

    /// Has it ring at `until` or earlier; whether it will.
    pub fn ends_sleep(&mut self, now: Ns, until: Ns) -> bool {
        let span_ns = until.saturating_sub(now);
        if span_ns < LEAST_NS || !self.timer.is_ours() {
            return false;
        }
        let earliest = now + span_ns.div_ceil(2);
        if !(earliest..=until).contains(&self.rings_at) {
            self.rings_at = if self.timer.set(until) { until } else { 0 };
        }
        self.rings_at != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn it_is_set_anew_only_when_it_would_ring_too_late_or_much_too_early() {
        let mut alarm = AlarmClock::new().unwrap();
        let now = clock::now();
        let (ms, hour) = (1_000_000, 3_600_000_000_000);
        let begin = now + hour;
        assert!(!alarm.ends_sleep(begin, begin + LEAST_NS - 1));
        assert_eq!(alarm.rings_at, 0);
        let mut set = Vec::new();
        for passed in [0, ms / 2, ms, 2 * ms, 5 * ms] {
            assert!(alarm.ends_sleep(begin + passed, begin + passed + 2 * ms));
            set.push((alarm.rings_at - begin) / ms);
        }
        assert_eq!(set, [2, 2, 2, 4, 7]);
        // Something is due before it rings.
        assert!(alarm.ends_sleep(begin + 5 * ms, begin + 6 * ms));
        assert_eq!(alarm.rings_at, begin + 6 * ms);
    }
}
