// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a probe says of a simulated device whose blocking has two states.

use dwell_policy::{DeviceClass, Mode, Ns, Route};

use super::judge::{Bounds, Judgement, judge};
use super::lane::Batch;
use super::lane::Random;
use super::sweep::{Arm, SIZES, point};
use super::turn::{Before, both_states};
use crate::profile::{Curve, SpinMethod};

/// Two CPUs, and the kernel's worker on one of them.
struct Machine {
    random: Random,
    worker: usize,
}

impl Machine {
    fn chance(&mut self, percent: u64) -> bool {
        (self.random.next() >> 33) % 100 < percent
    }

    /// A batch whose requests take so many microseconds at 4 KiB, each a tenth more or less.
    fn batch(&mut self, size_bytes: u64, us: u64, part: usize) -> Batch {
        let transfer_ns = size_bytes / 16;
        let latency_ns = |random: &mut Random| us * (900 + (random.next() >> 33) % 200);
        let latencies_ns = (0..30).map(|_| latency_ns(&mut self.random) + transfer_ns).collect();
        Batch { latencies_ns, switches: 30, cpu_ns: 0, part }
    }

    /// An arm's curve; a request takes so many microseconds with the worker on the same CPU, and on
    /// another.
    fn curve(&mut self, arm: Arm, [together_us, apart_us]: [u64; 2], rounds: usize) -> Curve {
        let mut batches = vec![Vec::new(); SIZES.len()];
        for round in 0..rounds {
            for (leg, parts) in both_states(round, &[0, 1]).iter().zip([[0, 1], [2, 3]]) {
                self.worker = match leg.before {
                    // The worker blocks of a thread that spins, as a rule.
                    Before::Spinning(cpu) if self.chance(90) => 1 - cpu,
                    Before::Spinning(cpu) => cpu,
                    Before::Itself => usize::from(self.chance(50)),
                };
                for (part, place) in parts.into_iter().zip(leg.places) {
                    for (&size_bytes, batches) in SIZES.iter().zip(&mut batches) {
                        if self.chance(2) {
                            self.worker = 1 - self.worker;
                        }
                        let is_together = place.unwrap_or(0) == self.worker;
                        let us = if is_together { together_us } else { apart_us };
                        batches.push(self.batch(size_bytes, us, part));
                    }
                }
            }
        }
        let points = SIZES.iter().zip(&batches).map(|(&size, batches)| point(size, &arm, batches));
        Curve { mode: arm.name().into(), points: points.collect() }
    }
}

const BOUNDS: Bounds =
    Bounds { switches_ns: 4_000, largest_threshold_bytes: 64 << 10, before: None };

fn probe(seed: u64, rounds: usize) -> Judgement {
    let scattered: Ns = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut machine = Machine { random: Random(scattered), worker: 0 };
    let spin = Arm { route: Route::Interrupt, mode: Mode::Spin, method: SpinMethod::default() };
    let block = machine.curve(Arm::INLINE, [5, 60], rounds);
    judge(Some(&block), &block, Some(&machine.curve(spin, [7, 15], rounds)), BOUNDS)
}

#[test]
fn twenty_probes_of_a_device_whose_blocking_has_two_states_say_one_class() {
    for rounds in [3, 7] {
        for seed in 1..=20 {
            let Judgement { class, size_threshold_bytes, contested, because } = probe(seed, rounds);
            let found = (class, size_threshold_bytes, contested);
            assert_eq!(found, (DeviceClass::Fast, 64 << 10, true), "{rounds} {seed}: {because}");
        }
    }
}
