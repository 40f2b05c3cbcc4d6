// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a request to the emulated device is over: a function of when it came and of what came
//! before it.

use std::sync::atomic::{AtomicU64, Ordering};

use dwell_policy::{Kind, Ns};

use super::spec::{Distribution, Spec, Stall};
use super::units::MILLION;

/// The due time of a request that never completes.
pub const NEVER: Ns = i64::MAX as Ns;

/// What happens to a request besides taking its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails with EIO.
    Error,
    /// It transfers half of what was asked.
    Short,
}

/// A word that others write often, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Word(AtomicU64);

/// The timing of one device, shared by all its queues and free of locks. It reads no clock: the
/// caller says what time it is, so a test or a simulator may use any clock, virtual ones included.
///
/// The medium has `parallel` servers; a request waits for the one that is free first and takes it
/// for its latency. The link is a clock of its own that each transfer pushes on by bytes over
/// bandwidth, from the moment the request comes. A request is over when the medium and its own
/// transfer are done and the link has caught up: a lone request takes latency plus transfer, and
/// many together never exceed the bandwidth.
///
/// Used by one thread, the same calls give the same answers for the same seed. Several threads
/// share the device in the order in which they come.
#[derive(Debug)]
pub struct Timing {
    latency_ns: Ns,
    write_latency_ns: Ns,
    distribution: Distribution,
    bandwidth: u64,
    seed: u64,
    stall: Option<Stall>,
    error_every: u64,
    short_every: u64,
    /// Requests so far.
    requests: Word,
    /// When the stall ends; 0 before it begins.
    stalled_until: Word,
    /// When the link has carried everything that came so far.
    link_free: Word,
    /// When each server is free.
    servers: Box<[Word]>,
}

impl Timing {
    /// An idle device.
    pub fn new(spec: &Spec) -> Self {
        Timing {
            latency_ns: spec.latency_ns,
            write_latency_ns: spec.write_latency_ns,
            distribution: spec.distribution,
            bandwidth: spec.bandwidth,
            seed: spec.seed,
            stall: spec.stall,
            error_every: spec.error_every,
            short_every: spec.short_every,
            requests: Word::default(),
            stalled_until: Word::default(),
            link_free: Word::default(),
            servers: (0..spec.parallel.max(1)).map(|_| Word::default()).collect(),
        }
    }

    /// The running number of a new request, from 1.
    #[inline]
    pub fn number(&self) -> u64 {
        self.requests.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What happens to the request of this number.
    #[inline]
    pub fn fault(&self, number: u64) -> Fault {
        if self.error_every > 0 && number.is_multiple_of(self.error_every) {
            Fault::Error
        } else if self.short_every > 0 && number.is_multiple_of(self.short_every) {
            Fault::Short
        } else {
            Fault::None
        }
    }

    /// Admits a request at `now` and says when it is over; [`NEVER`] where it is never.
    ///
    /// A sync is over when everything admitted before it is, and a write's latency after that.
    pub fn admit(&self, now: Ns, number: u64, kind: Kind, bytes: u64) -> Ns {
        let now = match self.stall {
            Some(stall) if number > stall.after => {
                let Some(for_ns) = stall.for_ns else { return NEVER };
                now.max(self.stall_end(now.saturating_add(for_ns)))
            }
            _ => now,
        };
        let latency_ns = self.draw(number, kind);
        if kind == Kind::Sync {
            let busy_until = self.servers.iter().chain([&self.link_free]);
            let idle_at = busy_until.map(|word| word.0.load(Ordering::Acquire)).max().unwrap_or(0);
            return now.max(idle_at).saturating_add(latency_ns).min(NEVER);
        }
        let medium_done = self.occupy(now, latency_ns);
        let transfer_ns = self.transfer_ns(bytes);
        if transfer_ns == 0 {
            return medium_done.min(NEVER);
        }
        let link_done = advance(&self.link_free.0, now, transfer_ns);
        medium_done.saturating_add(transfer_ns).max(link_done).min(NEVER)
    }

    /// Time that `bytes` take on the link, rounded up.
    #[inline]
    pub fn transfer_ns(&self, bytes: u64) -> Ns {
        if self.bandwidth == 0 {
            return 0;
        }
        match bytes.checked_mul(1_000_000_000) {
            Some(product) => product.div_ceil(self.bandwidth),
            None => {
                let product = u128::from(bytes) * 1_000_000_000;
                Ns::try_from(product.div_ceil(u128::from(self.bandwidth))).unwrap_or(NEVER)
            }
        }
    }

    /// The end of the stall; the first request of it fixes the end for all.
    fn stall_end(&self, end: Ns) -> Ns {
        let word = &self.stalled_until.0;
        match word.compare_exchange(0, end.max(1), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => end,
            Err(fixed) => fixed,
        }
    }

    /// Takes the server that is free first, and says when it is done. Lock-free: an exchange fails
    /// only because another request got in.
    fn occupy(&self, now: Ns, latency_ns: Ns) -> Ns {
        loop {
            let mut first = (&self.servers[0].0, Ns::MAX);
            for server in &self.servers {
                let free = server.0.load(Ordering::Acquire);
                if free < first.1 {
                    first = (&server.0, free);
                }
                if free <= now {
                    break;
                }
            }
            let (server, free) = first;
            let done = now.max(free).saturating_add(latency_ns);
            if server.compare_exchange(free, done, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return done;
            }
        }
    }

    /// The latency of the request of this number.
    fn draw(&self, number: u64, kind: Kind) -> Ns {
        let stated_ns = match kind {
            Kind::Read => self.latency_ns,
            Kind::Write | Kind::Sync => self.write_latency_ns,
        };
        let share = |ppm: u32| f64::from(ppm) / f64::from(MILLION);
        let even = || unit_interval(self.seed, number, 0);
        let factor = match self.distribution {
            Distribution::Constant => return stated_ns,
            Distribution::Bimodal { tail } => {
                let in_tail = even() < 0.01;
                return if in_tail { stated_ns.saturating_mul(u64::from(tail)) } else { stated_ns };
            }
            Distribution::Uniform { jitter_ppm } => 1.0 + share(jitter_ppm) * (2.0 * even() - 1.0),
            Distribution::Exponential { jitter_ppm } => {
                1.0 - share(jitter_ppm) - share(jitter_ppm) * (1.0 - even()).ln()
            }
            Distribution::Lognormal { jitter_ppm } => {
                let sigma = share(jitter_ppm);
                let angle = std::f64::consts::TAU * unit_interval(self.seed, number, 1);
                let normal = (-2.0 * (1.0 - even()).ln()).sqrt() * angle.cos();
                (sigma * normal - sigma * sigma / 2.0).exp()
            }
        };
        // The cast saturates.
        (stated_ns as f64 * factor).round() as Ns
    }
}

/// Pushes a clock on by `span_ns` from `now` or from where it stands, and says where it stands
/// then.
fn advance(clock: &AtomicU64, now: Ns, span_ns: Ns) -> Ns {
    let mut seen = clock.load(Ordering::Acquire);
    loop {
        let next = now.max(seen).saturating_add(span_ns);
        match clock.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return next,
            Err(newer) => seen = newer,
        }
    }
}

/// An evenly distributed number in [0, 1), fixed by its arguments (SplitMix64's finaliser).
fn unit_interval(seed: u64, number: u64, stream: u64) -> f64 {
    let mut x = seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(
        number.wrapping_mul(2).wrapping_add(stream).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    );
    for multiplier in [0xbf58_476d_1ce4_e5b9u64, 0x94d0_49bb_1331_11eb] {
        x = (x ^ (x >> 30)).wrapping_mul(multiplier);
    }
    x ^= x >> 31;
    (x >> 11) as f64 / (1u64 << 53) as f64
}
