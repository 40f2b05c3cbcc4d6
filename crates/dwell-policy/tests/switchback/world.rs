// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine and a device that somebody drew.

use dwell_policy::switchback::Seen;
use dwell_policy::{ARMS, Arm, Arms, Ns};

use super::{SECOND, lone};

/// SplitMix64, and what is drawn from it.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal: mean 0, standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Between the two, evenly on a logarithmic scale.
    pub fn span(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }
}

/// A machine and a device: what each arm costs once it has settled, and what the arm before it
/// leaves behind meanwhile.
pub struct World {
    pub random: Random,
    pub offered: Arms,
    pub cost_ns: [f64; ARMS],
    /// By what factor an arm's cost is off right after another.
    pub left_behind: [[f64; ARMS]; ARMS],
    /// How fast that fades, in seconds.
    pub fades_s: f64,
    /// Standard deviation of one request's cost ÷ its mean.
    pub noise: f64,
    /// How far all costs wander together.
    pub wander: f64,
    pub wandered: f64,
    /// Share of the time in which a thread asks for anything.
    pub asks: f64,
    pub arm: Arm,
    pub before: Arm,
    pub since_s: f64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut world = World {
            random: Random(seed),
            offered: lone(),
            cost_ns: [0.0; ARMS],
            left_behind: [[1.0; ARMS]; ARMS],
            fades_s: 1.0,
            noise: 0.0,
            wander: 0.0,
            wandered: 0.0,
            asks: 1.0,
            arm: Arm::Call,
            before: Arm::Call,
            since_s: 1e9,
        };
        world.change();
        world
    }

    /// Another device, another load, another size.
    pub fn change(&mut self) {
        let random = &mut self.random;
        let base_ns = random.span(1_000.0, 400_000.0);
        self.cost_ns = core::array::from_fn(|_| base_ns * random.span(1.0, 5.0));
        for row in &mut self.left_behind {
            *row = core::array::from_fn(|_| random.span(0.5, 1.5));
        }
        self.fades_s = random.span(0.000_2, 0.5);
        self.noise = random.span(0.05, 1.0);
        self.wander = random.span(0.002, 0.03);
        self.asks = random.span(0.1, 1.0);
    }

    pub fn best(&self) -> f64 {
        let offered = Arm::ALL.into_iter().filter(|arm| self.offered.has(*arm));
        offered.map(|arm| self.cost_ns[arm as usize]).fold(f64::MAX, f64::min)
    }

    /// Requests that begin within a span under `arm`, and their latency in all.
    pub fn serve(&mut self, arm: Arm, span_ns: Ns) -> Seen {
        if arm != self.arm {
            (self.before, self.arm, self.since_s) = (self.arm, arm, 0.0);
        }
        let span_s = span_ns as f64 / SECOND as f64;
        let left = self.left_behind[self.before as usize][arm as usize] - 1.0;
        // The mean of what fades over the span.
        let ends_s = self.since_s + span_s;
        let fade = |s: f64| (-s / self.fades_s).exp();
        let faded = (fade(self.since_s) - fade(ends_s)) * self.fades_s / span_s.max(1e-9);
        self.since_s = ends_s;
        let drawn = self.random.normal();
        self.wandered = self.wandered * 0.95 + drawn * self.wander * 0.3;
        let mean_ns = self.cost_ns[arm as usize] * (1.0 + left * faded) * self.wandered.exp();
        let requests = (span_ns as f64 * self.asks / mean_ns).max(1.0).round();
        let chance = 1.0 + self.random.normal() * self.noise / requests.sqrt();
        let latency_ns = (mean_ns * chance.max(0.3) * requests) as u64;
        Seen { requests: requests as u64, latency_ns, ..Seen::default() }
    }
}
