// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the machine in the last window, small enough for one atomic.

/// Which utilisation is held against the CPU threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum CpuSignal {
    /// CPU time used by others (our default: a spinner must not be put off by itself).
    #[default]
    Others,
    /// CPU time used by everybody, this process included (SmartCon §4.2, read literally).
    Total,
}

/// What the system monitor saw (SmartCon §4.2). Fractions are of the CPUs this process may use.
///
/// Fractions are kept in steps of 1/65535, so that [`Load::pack`] loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    others: u16,
    total: u16,
    threshold: u16,
    /// Runnable threads of others, saturating at 255.
    pub competitors: u8,
    /// Whether this host's spinner limit has room for one more.
    pub may_spin: bool,
    /// Whether this host's spinner limit is above 0, whoever spins.
    pub limit_permits: bool,
    /// Whether somebody has switched Dwell off on this machine.
    pub off: bool,
    /// Whether one more thread fits beside others or takes little from them, as long as no kernel
    /// thread works for it.
    pub fits_one: bool,
}

fn to_steps(fraction: f32) -> u16 {
    // A NaN casts to 0, and the cast saturates.
    (fraction * 65535.0 + 0.5) as u16
}

fn from_steps(steps: u16) -> f32 {
    f32::from(steps) / 65535.0
}

impl Load {
    /// A load from fractions 0–1: CPU time used by others, CPU time used by all, and the
    /// utilisation above which a thread must not spin.
    pub fn new(others: f32, total: f32, threshold: f32) -> Self {
        Load {
            others: to_steps(others),
            total: to_steps(total),
            threshold: to_steps(threshold),
            competitors: 0,
            may_spin: true,
            limit_permits: true,
            off: false,
            fits_one: others <= threshold,
        }
    }

    /// Utilisation by others, 0–1: iowait counts as idle, steal as busy, our own spinning and the
    /// kernel workers that serve our own requests as nothing.
    pub fn others(&self) -> f32 {
        from_steps(self.others)
    }

    /// Utilisation by everybody, 0–1: the paper's literal reading.
    pub fn total(&self) -> f32 {
        from_steps(self.total)
    }

    /// CPU threshold in force, 0–1, hysteresis included.
    pub fn threshold(&self) -> f32 {
        from_steps(self.threshold)
    }

    /// Whether others use more than the threshold.
    pub fn others_above(&self) -> bool {
        self.others > self.threshold
    }

    /// Whether everybody together uses more than the threshold.
    pub fn total_above(&self) -> bool {
        self.total > self.threshold
    }

    /// This load with another threshold, 0–1.
    #[must_use]
    pub fn with_threshold(mut self, threshold: f32) -> Self {
        self.threshold = to_steps(threshold);
        self
    }

    /// This load as it counts for requests of a device: for one that needs no kernel thread, others
    /// are above the threshold only where not even one more thread fits.
    #[inline]
    #[must_use]
    pub fn beside_worker(mut self, worker: bool) -> Self {
        if self.others_above() {
            if self.fits_one && !worker {
                self.threshold = self.others;
            } else {
                (self.may_spin, self.limit_permits) = (false, false);
            }
        }
        self
    }

    /// One word, for an atomic.
    pub const fn pack(self) -> u64 {
        self.others as u64
            | (self.total as u64) << 16
            | (self.threshold as u64) << 32
            | (self.competitors as u64) << 48
            | (self.may_spin as u64) << 56
            | (self.limit_permits as u64) << 57
            | (self.off as u64) << 58
            | (self.fits_one as u64) << 59
    }

    /// The inverse of [`Load::pack`].
    pub const fn unpack(word: u64) -> Self {
        Load {
            others: word as u16,
            total: (word >> 16) as u16,
            threshold: (word >> 32) as u16,
            competitors: (word >> 48) as u8,
            may_spin: (word >> 56) & 1 == 1,
            limit_permits: (word >> 57) & 1 == 1,
            off: (word >> 58) & 1 == 1,
            fits_one: (word >> 59) & 1 == 1,
        }
    }
}

impl Default for Load {
    /// An idle machine on which spinning is allowed up to half of its CPUs.
    fn default() -> Self {
        Load::new(0.0, 0.0, 0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_load_unpacks_to_itself() {
        for bit in 0..4 {
            let [may_spin, limit_permits, off, fits_one] = core::array::from_fn(|at| at == bit);
            let load = Load::new(0.25, 1.0, 0.75);
            let load = Load { competitors: 17, may_spin, limit_permits, off, fits_one, ..load };
            assert_eq!(Load::unpack(load.pack()), load);
        }
    }

    #[test]
    fn where_one_more_thread_fits_only_a_kernel_worker_would_take_from_others() {
        let spins = |load: Load, worker| {
            let load = load.beside_worker(worker);
            !load.others_above() && load.may_spin && load.limit_permits
        };
        let below = Load::new(0.4, 0.4, 0.5);
        assert!(spins(below, false) && spins(below, true));
        let above = Load { fits_one: true, ..Load::new(0.51, 0.51, 0.5) };
        assert!(spins(above, false) && !spins(above, true));
        let full = Load::new(0.9, 0.9, 0.5);
        assert!(!spins(full, false) && !spins(full, true));
    }

    #[test]
    fn fractions_out_of_range_saturate() {
        let load = Load::new(-1.0, 7.0, f32::NAN);
        assert_eq!((load.others(), load.total(), load.threshold()), (0.0, 1.0, 0.0));
    }
}
