// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency of each arm over request sizes, in interleaved rounds.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use dwell_policy::{Decision, Kind, Mode, Ns, Profile, Reason, Route, Wait, WaitPolicy};

use super::lane::{Ask, Batch, CIRCUMSTANCES, Lane, Random};
use super::switch::allowed_cpus;
use super::turn::{Before, SETTLED, both_states};
use crate::profile::{Curve, CurvePoint, States};
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::error::{Error, Result};
use dwell::file::File;
use dwell::open::Options;
use dwell::parameters::DeviceParameters;
use dwell::ring::SpinMethod;

/// Request sizes of SmartCon §4.1, in bytes.
pub const SIZES: [u64; 8] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// One arm that a sweep measures: a route, a wait mode and a spin method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arm {
    /// Route.
    pub route: Route,
    /// Mode; the sleep of a hybrid is chosen by its policy.
    pub mode: Mode,
    /// Spin method.
    pub method: SpinMethod,
}

impl Arm {
    /// A synchronous call.
    pub const INLINE: Arm =
        Arm { route: Route::Inline, mode: Mode::Block, method: SpinMethod::TaskrunFlag };

    /// Its name in profiles: route and mode.
    pub fn name(&self) -> &'static str {
        match (self.route, self.mode) {
            (Route::Inline, _) => "inline",
            (_, Mode::Hybrid { .. }) => "hybrid",
            (Route::Polled, _) => "polled-spin",
            (Route::Interrupt, Mode::Spin) => "interrupt-spin",
            (Route::Interrupt, Mode::Block) => "interrupt-block",
        }
    }
}

impl Arm {
    /// Whether devices are judged by it, so that both its states are measured.
    fn has_states(&self) -> bool {
        matches!(self.mode, Mode::Block | Mode::Spin)
    }

    /// What a file needs to know to take it.
    pub fn parameters(self, profile: Profile) -> DeviceParameters {
        DeviceParameters {
            profile: Some(profile),
            method: self.method,
            polled: self.route == Route::Polled,
            ..DeviceParameters::default()
        }
    }

    /// A policy that always takes it.
    pub fn policy(self) -> Arc<dyn WaitPolicy> {
        Arc::new(Fixed(self))
    }
}

/// Always takes one arm.
struct Fixed(Arm);

impl WaitPolicy for Fixed {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if let Mode::Hybrid { .. } = self.0.mode {
            return dwell_policy::policy::Hybrid.choose(wait);
        }
        let mut decision =
            Decision::new(self.0.route, self.0.mode, wait.predicted_ns(), Reason::Fixed);
        // A measurement of spinning must not turn into one of parking because of a slow device.
        decision.spin_limit_ns = Decision::MAX_SPIN_LIMIT_NS;
        decision
    }
}

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time before each arm in which it makes requests that are not measured, in nanoseconds. What
    /// ran before it has left traces: a busy CPU is waited on differently until it has been idle
    /// for a while.
    pub settle_ns: Ns,
    /// Time for one arm and size in one round, in nanoseconds; a slow device takes longer, because
    /// every batch has [`LEAST_REQUESTS`].
    pub batch_ns: Ns,
    /// Time for the whole sweep, in nanoseconds. Where it does not suffice, later rounds are left
    /// out, and then the larger sizes.
    pub limit_ns: Ns,
}

/// Requests of a batch, however long they take.
pub const LEAST_REQUESTS: usize = 5;
/// The spin that drives the kernel's worker away takes this part of the time in which an arm
/// settles.
const SPINS_FOR: Ns = 3;

/// The best state counts where one batch in this many was in it.
const BEST_ONE_IN: usize = 6;

/// What a sweep measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Swept {
    /// One curve per arm.
    pub curves: Vec<Curve>,
    /// What was left out to stay within the limit.
    pub left_out: Option<String>,
}

/// The file or device under test, opened once per arm.
pub struct Bench {
    arms: Vec<(Arm, File)>,
    kind: Kind,
    bytes: u64,
    random: Random,
}

impl Bench {
    /// Opens `address` once for each arm, to read.
    ///
    /// # Errors
    /// What opening refuses.
    pub fn open(address: &Path, arms: &[Arm], profile: Profile, direct: bool) -> Result<Bench> {
        Self::open_for(Kind::Read, address, arms, profile, direct)
    }

    /// Opens `address` once for each arm, to write: whatever it holds is lost.
    ///
    /// # Errors
    /// What opening refuses.
    pub fn overwriting(
        address: &Path,
        arms: &[Arm],
        profile: Profile,
        direct: bool,
    ) -> Result<Bench> {
        Self::open_for(Kind::Write, address, arms, profile, direct)
    }

    fn open_for(
        kind: Kind,
        address: &Path,
        arms: &[Arm],
        profile: Profile,
        direct: bool,
    ) -> Result<Bench> {
        let open = |arm: &Arm| {
            let parameters = arm.parameters(profile);
            let options = Options::new().direct(direct).parameters(parameters).policy(arm.policy());
            Ok((*arm, options.write(kind == Kind::Write).open(address)?))
        };
        let arms = arms.iter().map(open).collect::<Result<Vec<_>>>()?;
        let bytes = arms.first().map_or(Ok(0), |(_, file)| file.bytes())?;
        Ok(Bench { arms, kind, bytes, random: Random(0x2545_f491_4f6c_dd1d) })
    }

    /// Length of what is measured, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `bytes` from the start on and makes them durable, so that later writes overwrite.
    /// Past `until` on the monotonic clock it stops early, never below `least` bytes.
    ///
    /// # Errors
    /// What writing refuses.
    pub fn fill(&mut self, bytes: u64, least: u64, until: Ns) -> Result<()> {
        let mut buffer = Aligned::new(1 << 20);
        self.random.fill(&mut buffer);
        let mut done = 0;
        while done < bytes && (done < least || clock::now() < until) {
            self.arms[0].1.write_all_at(&buffer, done)?;
            done += buffer.len() as u64;
        }
        self.bytes = done;
        self.arms[0].1.sync()
    }

    /// Measures every arm at every size that fits, rounds interleaved; `progress` hears the share
    /// that is done, 0–1.
    ///
    /// # Errors
    /// What reading or writing refuses.
    pub fn sweep(
        &mut self,
        sizes: &[u64],
        effort: Effort,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Swept> {
        let mut sizes: Vec<u64> =
            sizes.iter().copied().filter(|&size| size <= self.bytes).collect();
        let asked = sizes.clone();
        // By size, then by arm.
        let mut batches: Vec<Vec<Vec<Batch>>> = Vec::new();
        let mut rounds = 0;
        let Bench { arms, kind, bytes, random } = self;
        let cpus = allowed_cpus();
        let spin = arms.iter().position(|(arm, _)| arm.mode == Mode::Spin);
        thread::scope(|scope| {
            let lanes: Vec<Lane> = arms
                .iter()
                .map(|(_, file)| Lane::start(scope, file, *kind, *bytes, random.next() | 1))
                .collect();
            let mut limit = Limit::new(effort.limit_ns);
            while rounds < effort.rounds && (rounds == 0 || limit.has_room_for_a_round()) {
                for (arm, lane) in lanes.iter().enumerate() {
                    let legs = match spin {
                        Some(_) if arms[arm].0.has_states() => both_states(rounds, &cpus),
                        _ => SETTLED.to_vec(),
                    };
                    let parts = legs.iter().map(|leg| leg.places.len()).sum::<usize>();
                    let mut part = 0;
                    for leg in &legs {
                        let (leads, span_ns, cpu) = match (leg.before, spin) {
                            (Before::Spinning(cpu), Some(spin)) => {
                                (&lanes[spin], effort.settle_ns / SPINS_FOR, Some(cpu))
                            }
                            _ => (lane, effort.settle_ns, None),
                        };
                        leads.batch(Ask { size_bytes: sizes[0], span_ns, least: 1, cpu })?;
                        for cpu in leg.places {
                            limit.settled();
                            let mut row = 0;
                            while row < sizes.len() {
                                // The first arm tells what the others will take.
                                let first = (rounds, arm, part) == (0, 0, 0);
                                let all = (lanes.len() * parts) as Ns;
                                if first && row > 0 && !limit.has_room_for_a_size(all) {
                                    sizes.truncate(row);
                                    break;
                                }
                                if first {
                                    batches.push(vec![Vec::new(); lanes.len()]);
                                }
                                let batch = lane.batch(Ask {
                                    size_bytes: sizes[row],
                                    span_ns: effort.batch_ns / parts as Ns,
                                    least: LEAST_REQUESTS,
                                    cpu,
                                })?;
                                batches[row][arm].push(Batch { part, ..batch });
                                limit.size_done();
                                row += 1;
                                let done = (part * sizes.len() + row) as f64;
                                let turns = (rounds * lanes.len() + arm) as f64;
                                let share = (turns + done / (parts * sizes.len()) as f64)
                                    / (effort.rounds * lanes.len()) as f64;
                                progress(share.max(limit.share()));
                            }
                            part += 1;
                        }
                    }
                }
                limit.round_done();
                rounds += 1;
            }
            Ok::<(), Error>(())
        })?;
        let suffix = if self.kind == Kind::Read { "" } else { "-write" };
        let curve = |(at, (arm, _)): (usize, &(Arm, File))| Curve {
            mode: format!("{}{suffix}", arm.name()),
            points: sizes
                .iter()
                .zip(&batches)
                .map(|(&size, arms)| point(size, arm, &arms[at]))
                .collect(),
        };
        Ok(Swept {
            curves: self.arms.iter().enumerate().map(curve).collect(),
            left_out: left_out(self.kind, rounds, effort.rounds, &sizes, &asked),
        })
    }
}

/// Watches over the time of a sweep: what the next size or round takes is told by the last one.
struct Limit {
    started: Ns,
    limit_ns: Ns,
    size_started: Ns,
    size_ns: Ns,
    round_started: Ns,
    round_ns: Ns,
}

impl Limit {
    fn new(limit_ns: Ns) -> Self {
        let started = clock::now();
        Limit {
            started,
            limit_ns,
            size_started: started,
            size_ns: 0,
            round_started: started,
            round_ns: 0,
        }
    }

    fn left_ns(&self) -> Ns {
        self.limit_ns.saturating_sub(clock::now() - self.started)
    }

    /// Each size is twice the one before, and takes at most twice as long; so it does by each of
    /// so many arms.
    fn has_room_for_a_size(&self, arms: Ns) -> bool {
        self.left_ns() >= self.size_ns * 2 * arms
    }

    /// What comes now is a size.
    fn settled(&mut self) {
        self.size_started = clock::now();
    }

    fn has_room_for_a_round(&self) -> bool {
        self.left_ns() >= self.round_ns
    }

    fn size_done(&mut self) {
        let now = clock::now();
        self.size_ns = now - self.size_started;
        self.size_started = now;
    }

    fn round_done(&mut self) {
        let now = clock::now();
        self.round_ns = self.round_ns.max(now - self.round_started);
        self.round_started = now;
    }

    /// Share of the time that is used up, 0–1.
    fn share(&self) -> f64 {
        1.0 - self.left_ns() as f64 / self.limit_ns.max(1) as f64
    }
}

/// A remark about what a slow device left no time for.
fn left_out(
    kind: Kind,
    rounds: usize,
    rounds_asked: usize,
    sizes: &[u64],
    sizes_asked: &[u64],
) -> Option<String> {
    let what = if kind == Kind::Read { "reads" } else { "writes" };
    let mut parts = Vec::new();
    if rounds < rounds_asked {
        parts.push(format!("{rounds} of {rounds_asked} rounds"));
    }
    if let (true, Some(last)) = (sizes.len() < sizes_asked.len(), sizes.last()) {
        parts.push(format!("no size above {} KiB", last / 1024));
    }
    (!parts.is_empty()).then(|| {
        format!("the device is slow, so that {what} were measured with {}", parts.join(" and "))
    })
}

/// Joins the batches of one arm and size. The states are those of all batches, the rest is how the
/// arm settles by itself. The median is the median of the batches' medians, so that one disturbed
/// batch does not count. The outer percentiles are those of all requests; a slow batch has fewer
/// than a fast one, so that its median may lie beyond them, which they then do not leave out.
pub(super) fn point(size_bytes: u64, arm: &Arm, batches: &[Batch]) -> CurvePoint {
    let sorted = |mut values: Vec<Ns>| {
        values.sort_unstable();
        values
    };
    let middle = |values: &[Ns]| values[values.len() / 2];
    let settled: Vec<&Batch> = batches.iter().filter(|batch| batch.is_settled()).collect();
    let all = sorted(settled.iter().flat_map(|batch| &batch.latencies_ns).copied().collect());
    let median_ns = middle(&sorted(settled.iter().map(|batch| batch.median()).collect()));
    let requests = all.len().max(1) as f64;
    CurvePoint {
        size_bytes,
        median_ns,
        mean_ns: middle(&sorted(settled.iter().map(|batch| batch.mean()).collect())),
        p10_ns: all[all.len() / 10].min(median_ns),
        p90_ns: all[all.len() * 9 / 10].max(median_ns),
        states: arm.has_states().then(|| states(batches)),
        voluntary_switches_per_request: settled.iter().map(|b| b.switches).sum::<u64>() as f64
            / requests,
        cpu_ns_per_request: settled.iter().map(|b| b.cpu_ns).sum::<Ns>() as f64 / requests,
    }
}

/// The best and the worst state. Noise only adds, so the best counts where one batch in six was in
/// it. The worst is the circumstance whose median is the highest.
fn states(batches: &[Batch]) -> States {
    let sorted = |batches: &mut dyn Iterator<Item = &Batch>| {
        let mut medians: Vec<Ns> = batches.map(Batch::median).collect();
        medians.sort_unstable();
        medians
    };
    let all = sorted(&mut batches.iter());
    let best_ns = all[(all.len() / BEST_ONE_IN).saturating_sub(1)];
    let of = |circumstance| {
        sorted(&mut batches.iter().filter(|batch| batch.circumstance() == circumstance))
    };
    let medians = (0..CIRCUMSTANCES).map(of).filter_map(|m| m.get(m.len() / 2).copied());
    States { best_ns, worst_ns: medians.max().unwrap_or(best_ns).max(best_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_slow_requests_beside_many_fast_ones_leave_the_percentiles_in_order() {
        let batch = |count, ns| Batch { latencies_ns: vec![ns; count], ..Batch::default() };
        for rounds in [[batch(100, 10), batch(2, 900)], [batch(2, 10), batch(100, 900)]] {
            let CurvePoint { median_ns, p10_ns, p90_ns, .. } = point(4096, &Arm::INLINE, &rounds);
            assert!(p10_ns <= median_ns && median_ns <= p90_ns, "{p10_ns} {median_ns} {p90_ns}");
        }
    }
}
