// SPDX-License-Identifier: MIT OR Apache-2.0
//! How sizes are distributed.

use serde::{Deserialize, Serialize};

use crate::stats::SplitMix;

/// What direct I/O moves: whole blocks of so many bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// A distribution of sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Size {
    /// Always the same.
    Fixed(u64),
    /// Any whole number from the first to the second, both included, equally likely.
    Uniform(u64, u64),
    /// Gamma distributed: many small ones, few large ones.
    Gamma {
        /// Mean, in bytes.
        mean_bytes: f64,
        /// Shape, above 0; 1.5 is Filebench's default. The smaller, the further they scatter.
        #[serde(default = "Size::default_shape")]
        shape: f64,
    },
}

impl Size {
    fn default_shape() -> f64 {
        1.5
    }

    /// Draws one; never 0.
    pub fn draw(&self, random: &mut SplitMix) -> u64 {
        let bytes = match *self {
            Size::Fixed(bytes) => bytes,
            Size::Uniform(low, high) => low + random.below((high - low) as usize + 1) as u64,
            Size::Gamma { mean_bytes, shape } => {
                (gamma(shape, random) * mean_bytes / shape).round() as u64
            }
        };
        bytes.max(1)
    }

    /// Mean, in bytes.
    pub fn mean(&self) -> f64 {
        match *self {
            Size::Fixed(bytes) => bytes as f64,
            Size::Uniform(low, high) => (low + high) as f64 / 2.0,
            Size::Gamma { mean_bytes, .. } => mean_bytes,
        }
    }

    /// The same distribution of sizes `scale` times as large.
    pub fn scaled(self, scale: f64) -> Self {
        let times = |bytes: u64| match (bytes as f64 * scale) as u64 {
            large if large >= 1 << 20 => large & !((1 << 20) - 1),
            small => small.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES).min(bytes),
        };
        match self {
            _ if scale >= 1.0 => self,
            Size::Fixed(bytes) => Size::Fixed(times(bytes)),
            Size::Uniform(low, high) => Size::Uniform(times(low).min(times(high)), times(high)),
            Size::Gamma { mean_bytes, shape } => {
                Size::Gamma { mean_bytes: mean_bytes * scale, shape }
            }
        }
    }

    /// Checks the distribution; the error says what is wrong with it.
    pub(super) fn check(&self) -> Result<(), String> {
        const MOST: f64 = (1u64 << 40) as f64;
        match *self {
            Size::Uniform(low, high) if low > high => {
                Err(format!("uniform = [{low}, {high}]: the first must not exceed the second"))
            }
            Size::Gamma { shape, .. } if !(0.01..=1000.0).contains(&shape) => {
                Err(format!("gamma shape {shape}: 0.01 to 1000 is wanted"))
            }
            _ if (1.0..=MOST).contains(&self.mean()) => Ok(()),
            _ => Err(format!("a mean of {} bytes: 1 byte to 1 TiB is wanted", self.mean())),
        }
    }
}

/// A number in 0..1, never 0.
pub(super) fn unit(random: &mut SplitMix) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A gamma variate of scale 1, by the method of Marsaglia and Tsang (2000).
fn gamma(shape: f64, random: &mut SplitMix) -> f64 {
    if shape < 1.0 {
        return gamma(shape + 1.0, random) * unit(random).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && unit(random).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// A standard normal variate, by the method of Box and Muller.
fn normal(random: &mut SplitMix) -> f64 {
    let (radius, turn) = ((-2.0 * unit(random).ln()).sqrt(), unit(random));
    radius * (std::f64::consts::TAU * turn).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(size: Size, count: usize) -> Vec<f64> {
        let mut random = SplitMix(3);
        (0..count).map(|_| size.draw(&mut random) as f64).collect()
    }

    fn mean_and_variance(values: &[f64]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count)
    }

    #[test]
    fn gamma_has_its_mean_and_variance() {
        for (mean, shape) in [(131_072.0, 1.5), (16_384.0, 1.5), (4096.0, 0.5), (1e6, 20.0)] {
            let values = drawn(Size::Gamma { mean_bytes: mean, shape }, 200_000);
            let (is, variance) = mean_and_variance(&values);
            assert!((is / mean - 1.0).abs() < 0.02, "mean {is}, not {mean}");
            let expected = mean * mean / shape;
            assert!((variance / expected - 1.0).abs() < 0.05, "{variance}, not {expected}");
        }
    }

    #[test]
    fn gamma_of_shape_one_is_exponential() {
        let values = drawn(Size::Gamma { mean_bytes: 1e6, shape: 1.0 }, 100_000);
        for at in [0.5f64, 1.0, 2.0] {
            let above = values.iter().filter(|v| **v > at * 1e6).count() as f64 / 1e5;
            assert!((above - (-at).exp()).abs() < 0.01, "{above} above {at} means");
        }
    }

    #[test]
    fn uniform_reaches_both_ends_and_all_between() {
        let values = drawn(Size::Uniform(3, 6), 10_000);
        for wanted in 3..=6 {
            let share = values.iter().filter(|v| **v == f64::from(wanted)).count() as f64 / 1e4;
            assert!((share - 0.25).abs() < 0.03, "{wanted}: {share}");
        }
        assert!(drawn(Size::Fixed(7), 3).iter().all(|v| *v == 7.0));
        assert!(drawn(Size::Uniform(0, 0), 3).iter().all(|v| *v == 1.0));
    }

    #[test]
    fn scaling_keeps_whole_blocks_and_never_grows() {
        assert_eq!(Size::Fixed(5 << 30).scaled(0.1), Size::Fixed(512 << 20));
        assert_eq!(Size::Fixed(100_000).scaled(0.1), Size::Fixed(12_288));
        assert_eq!(Size::Fixed(5000).scaled(2.0), Size::Fixed(5000));
        assert_eq!(Size::Fixed(1000).scaled(0.5), Size::Fixed(1000));
        let half = Size::Gamma { mean_bytes: 100.0, shape: 1.5 }.scaled(0.5);
        assert_eq!(half.mean(), 50.0);
    }
}
