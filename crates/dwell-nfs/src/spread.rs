// SPDX-License-Identifier: MIT OR Apache-2.0
//! Over how many connections a client spreads its requests: a fixed number, or as many as make it
//! faster. Nothing here reads a clock or opens a connection.

use dwell_policy::Ns;

/// How the number of connections is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Always so many.
    Fixed(u32),
    /// As many as make data move faster, found by trying; at most so many.
    Found {
        /// The bound.
        most: u32,
    },
}

impl Connections {
    /// The most that there can be.
    pub const fn most(self) -> u32 {
        match self {
            Connections::Fixed(count) | Connections::Found { most: count } => count,
        }
    }
}

/// A rate is taken from at least so many bytes and so long a time, in nanoseconds.
const EPOCH_BYTES: u64 = 8 << 20;
const EPOCH_NS: Ns = 30_000_000;
/// Twice as many connections have to be so much faster to be kept.
const GAIN: f64 = 1.05;
/// After a trial that did not pay, the next one waits so long, in nanoseconds.
const AGAIN_NS: Ns = 60_000_000_000;
/// Data that pauses for so long belongs to two transfers, in nanoseconds.
const PAUSE_NS: Ns = 100_000_000;

/// What was found so far.
#[derive(Clone, Debug)]
pub struct Spread {
    kind: Connections,
    count: u32,
    /// The number before a trial and its rate, in bytes a nanosecond; none where no trial is under
    /// way.
    before: Option<(u32, f64)>,
    /// The first epoch after a change is not counted: connections are made and windows found in it.
    settling: bool,
    not_before: Ns,
    epoch: Option<(Ns, u64)>,
    last: Ns,
}

impl Spread {
    /// Nothing was tried yet.
    pub fn new(kind: Connections) -> Self {
        let count = match kind {
            Connections::Fixed(count) => count.max(1),
            Connections::Found { .. } => 1,
        };
        let (before, settling, not_before, epoch, last) = (None, true, 0, None, 0);
        Spread { kind, count, before, settling, not_before, epoch, last }
    }

    /// How many connections requests are to go over now.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// So many bytes of data were moved by a call that ended now.
    pub fn moved(&mut self, now: Ns, bytes: u64) {
        let Connections::Found { most } = self.kind else { return };
        if bytes == 0 || (self.before.is_none() && now < self.not_before) {
            return;
        }
        let paused = now.saturating_sub(std::mem::replace(&mut self.last, now)) > PAUSE_NS;
        let (since, moved) = match self.epoch {
            Some((since, moved)) if !paused => (since, moved + bytes),
            _ => (now, 0),
        };
        let span = now.saturating_sub(since);
        if moved < EPOCH_BYTES || span < EPOCH_NS {
            self.epoch = Some((since, moved));
            return;
        }
        self.epoch = Some((now, 0));
        if std::mem::take(&mut self.settling) {
            return;
        }
        let rate = moved as f64 / span as f64;
        if let Some((count, before)) = self.before.take()
            && rate < before * GAIN
        {
            self.count = count;
            self.not_before = now.saturating_add(AGAIN_NS);
        } else if self.count < most {
            self.before = Some((self.count, rate));
            self.count = (self.count * 2).min(most);
            self.settling = true;
        } else {
            self.not_before = Ns::MAX;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    /// Moves data for so long, in milliseconds, at a rate by the number of connections, in MiB a
    /// millisecond.
    fn run(spread: &mut Spread, from_ms: Ns, ms: Ns, rate: impl Fn(u32) -> f64) -> Vec<u32> {
        let mut counts = vec![spread.count()];
        for at in from_ms..from_ms + ms {
            spread.moved(at * MS, (rate(spread.count()) * f64::from(1 << 20)) as u64);
            if counts.last() != Some(&spread.count()) {
                counts.push(spread.count());
            }
        }
        counts
    }

    #[test]
    fn connections_are_added_as_long_as_they_pay() {
        let found = || Spread::new(Connections::Found { most: 8 });
        // A server that has a thread for each of four connections.
        let counts = run(&mut found(), 0, 5000, |count| f64::from(count.min(4)) * 0.4);
        assert_eq!(counts, [1, 2, 4, 8, 4]);
        // One to which a second connection only costs.
        let mut spread = found();
        assert_eq!(run(&mut spread, 0, 5000, |count| 1.0 / f64::from(count)), [1, 2, 1]);
        // It is tried again later, and not while nothing moves.
        let later = AGAIN_NS / MS + 10_000;
        assert_eq!(run(&mut spread, later, 5000, |count| f64::from(count.min(2))), [1, 2, 4, 2]);
        // The bound holds, and a number that was fixed.
        let mut bound = Spread::new(Connections::Found { most: 3 });
        assert_eq!(run(&mut bound, 0, 5000, f64::from), [1, 2, 3]);
        let mut fixed = Spread::new(Connections::Fixed(5));
        assert_eq!(run(&mut fixed, 0, 5000, f64::from), [5]);
    }

    #[test]
    fn little_data_and_pauses_decide_nothing() {
        let mut spread = Spread::new(Connections::Found { most: 8 });
        for at in 0..1000 {
            spread.moved(at * 2 * PAUSE_NS, 4 << 20);
        }
        assert_eq!(spread.count(), 1);
    }
}
