// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmartCon: device class, size, backlog, CPU.

use super::{WaitPolicy, block, spin};
use crate::{Decision, DeviceClass, Kind, Mode, Profile, Reason, Route, Wait};

/// Which utilisation is held against the CPU threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuSignal {
    /// CPU time used by others (our default: a spinner must not be put off by itself).
    #[default]
    Others,
    /// CPU time used by everybody, this process included (SmartCon §4.2, read literally).
    Total,
}

/// Decides per request, cheapest check first (SmartCon §5.1): device class, request size, size
/// with the backlog ahead of it, optionally the number of requests ahead, and the CPU last.
///
/// A request of exactly the threshold still spins. Very fast devices are served inline,
/// mainstream ones always block, and a device that was never probed passes through.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmartCon {
    /// CPU threshold, 0–1, in place of the system monitor's.
    pub cpu_threshold: Option<f32>,
    /// Largest number of requests ahead at which it still spins (Q in SmartCon Fig. 7).
    pub queue_limit: Option<u32>,
    /// Which utilisation counts.
    pub signal: CpuSignal,
}

impl WaitPolicy for SmartCon {
    fn name(&self) -> &str {
        "smartcon"
    }

    #[inline]
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        let Some(profile) = wait.profile else {
            return block(wait, Reason::Unprobed);
        };
        match profile.class {
            DeviceClass::Mainstream => return block(wait, Reason::Mainstream),
            DeviceClass::VeryFast if wait.routes.has(Route::Inline) => {
                return Decision::new(
                    Route::Inline,
                    Mode::Spin,
                    wait.predicted_ns(),
                    Reason::VeryFast,
                );
            }
            DeviceClass::VeryFast => return spin(wait, Reason::VeryFast),
            DeviceClass::Fast => {}
        }
        if wait.kind == Kind::Sync {
            return block(wait, Reason::Sync);
        }
        if wait.size_bytes > profile.size_threshold_bytes {
            return block(wait, Reason::Size);
        }
        if wait.size_bytes.saturating_add(wait.backlog.bytes) > profile.size_threshold_bytes {
            return block(wait, Reason::Backlog);
        }
        if self.queue_limit.is_some_and(|limit| wait.backlog.requests > limit) {
            return block(wait, Reason::QueueLength);
        }
        let load = match self.cpu_threshold {
            Some(threshold) => wait.load.with_threshold(threshold),
            None => wait.load,
        };
        let busy = match self.signal {
            CpuSignal::Others => load.others_above(),
            CpuSignal::Total => load.total_above(),
        };
        if busy {
            return block(wait, Reason::CpuBusy);
        }
        if !load.may_spin {
            return block(wait, Reason::SpinBudget);
        }
        spin(wait, Reason::Pays)
    }

    fn always_inline(&self, profile: Option<&Profile>) -> Option<(Mode, Reason)> {
        match profile.map(|p| p.class) {
            None => Some((Mode::Block, Reason::Unprobed)),
            Some(DeviceClass::Mainstream) => Some((Mode::Block, Reason::Mainstream)),
            Some(DeviceClass::VeryFast) => Some((Mode::Spin, Reason::VeryFast)),
            Some(DeviceClass::Fast) => None,
        }
    }
}
