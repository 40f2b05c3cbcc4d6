// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long the answers of one class of procedures take: mean, variation, and when to send again.

use dwell_policy::Ns;

const MOST_NS: Ns = 5_000_000_000;
/// For so long the shortest time that was seen counts as the time of an idle server.
const REMEMBERED_NS: Ns = 10_000_000_000;

/// Round-trip times, in nanoseconds: smoothed as TCP does it (RFC 6298), without its coarse clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    smoothed_ns: Ns,
    variation_ns: Ns,
    least_ns: Ns,
    /// The least of the span of time before this one, and when this one began.
    before_ns: Ns,
    since: Ns,
    samples: u64,
}

impl Rtt {
    /// An answer to a request that was sent once came after `ns`.
    pub fn sample(&mut self, now: Ns, ns: Ns) {
        if self.samples == 0 {
            (self.smoothed_ns, self.variation_ns) = (ns, ns / 2);
            (self.least_ns, self.before_ns, self.since) = (ns, ns, now);
        } else {
            let off = self.smoothed_ns.abs_diff(ns);
            self.variation_ns = (3 * self.variation_ns + off) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
            if now.saturating_sub(self.since) > REMEMBERED_NS {
                (self.before_ns, self.least_ns, self.since) = (self.least_ns, ns, now);
            }
            self.least_ns = self.least_ns.min(ns);
        }
        self.samples += 1;
    }

    /// The smoothed time; 0 before the first answer.
    pub const fn smoothed_ns(&self) -> Ns {
        self.smoothed_ns
    }

    /// The shortest time lately; 0 before the first answer.
    pub fn least_ns(&self) -> Ns {
        self.least_ns.min(self.before_ns)
    }

    /// When to send a request again that was sent `sends` times: after `first_ns` where nothing was
    /// measured, after `least_ns` at the earliest, because a server that was switched away answers
    /// late.
    pub fn resend_after_ns(&self, sends: u32, first_ns: Ns, least_ns: Ns) -> Ns {
        let first = match self.samples {
            0 => first_ns,
            _ => (self.smoothed_ns + 4 * self.variation_ns).max(least_ns),
        };
        first.saturating_mul(1 << sends.saturating_sub(1).min(16)).min(MOST_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_send_again_follows_the_answers_and_doubles() {
        let mut rtt = Rtt::default();
        let after = |rtt: &Rtt, sends| rtt.resend_after_ns(sends, 100_000_000, 1_000_000);
        assert_eq!(after(&rtt, 1), 100_000_000);
        for at in 0..100 {
            rtt.sample(at * 1000, 2_000_000);
        }
        assert_eq!(rtt.smoothed_ns(), 2_000_000);
        assert!(after(&rtt, 1) < 2_100_000);
        assert_eq!(after(&rtt, 3), 4 * after(&rtt, 1));
        assert_eq!(rtt.resend_after_ns(1, 0, 10_000_000), 10_000_000);
        assert_eq!(after(&rtt, 40), MOST_NS);
        rtt.sample(0, 50_000);
        assert_eq!(rtt.least_ns(), 50_000);
        // What was once an idle server's time is forgotten in the end.
        for at in 1..5 {
            rtt.sample(at * (REMEMBERED_NS + 1), 300_000);
        }
        assert_eq!(rtt.least_ns(), 300_000);
    }
}
