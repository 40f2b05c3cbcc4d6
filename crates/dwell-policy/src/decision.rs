// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy answers.

use crate::{Ns, Route};

/// Whether the thread spins or blocks while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Block; a context switch brings the thread back.
    Block,
    /// Stay: busy-wait for the completion. On [`Route::Inline`] the driver does the work on this
    /// CPU and there is nothing to wait for; such a request is never counted as polled.
    Spin,
    /// Sleep for a stated time, then spin.
    Hybrid {
        /// How long to ask the timer for, in nanoseconds: the overshoot is already taken off.
        sleep_ns: Ns,
    },
}

impl Mode {
    /// The word used in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Block => "block",
            Mode::Spin => "spin",
            Mode::Hybrid { .. } => "hybrid",
        }
    }
}

/// Why a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// The policy always decides so.
    Fixed,
    /// The device was never probed: the request passes through.
    Unprobed,
    /// The device is very fast: served on this CPU.
    VeryFast,
    /// The device is mainstream: always blocks.
    Mainstream,
    /// The request itself is larger than the size threshold.
    Size,
    /// The request and the backlog ahead of it are larger than the size threshold.
    Backlog,
    /// More requests are ahead than the queue limit allows.
    QueueLength,
    /// Others use more of the CPUs than the CPU threshold.
    CpuBusy,
    /// The host's spinner limit is reached.
    SpinnerLimit,
    /// Every check passed, or the prediction says so: spinning pays.
    Pays,
    /// The prediction says that a switch costs less than the wait.
    SwitchCheaper,
    /// Another arm was tried, to compare it with the best known.
    Explored,
    /// A sync flushes for as long as the device likes: it blocks.
    Sync,
    /// The queue offers only synchronous calls: nobody can spin.
    NoQueue,
    /// The page cache had the data: there was nothing to wait for.
    Cached,
    /// The spin passed its deadline and the thread parked.
    SpinExpired,
    /// This arm cost least of those that such requests tried.
    Measured,
    /// What could run next has a higher priority: the CPU is given away.
    Sacrificed,
    /// The thread that serves the queue sleeps: it needs a CPU before there is anything to spin
    /// for.
    Asleep,
    /// Dwell is switched off: the request goes the kernel's own way.
    Off,
    /// Only a part of the requests is steered, and this one is not of it: it goes the kernel's own
    /// way.
    HeldBack,
    /// Waiting has used the CPU time that it may use.
    SpinCap,
    /// Steered requests of the device took longer than those held back: all go the kernel's own
    /// way.
    Regressed,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Reason; 23] = [
        Reason::Fixed,
        Reason::Unprobed,
        Reason::VeryFast,
        Reason::Mainstream,
        Reason::Size,
        Reason::Backlog,
        Reason::QueueLength,
        Reason::CpuBusy,
        Reason::SpinnerLimit,
        Reason::Pays,
        Reason::SwitchCheaper,
        Reason::Explored,
        Reason::Sync,
        Reason::NoQueue,
        Reason::Cached,
        Reason::SpinExpired,
        Reason::Measured,
        Reason::Sacrificed,
        Reason::Asleep,
        Reason::Off,
        Reason::HeldBack,
        Reason::SpinCap,
        Reason::Regressed,
    ];

    /// The word used in statistics and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Fixed => "fixed",
            Reason::Unprobed => "unprobed",
            Reason::VeryFast => "very-fast",
            Reason::Mainstream => "mainstream",
            Reason::Size => "size",
            Reason::Backlog => "backlog",
            Reason::QueueLength => "queue-length",
            Reason::CpuBusy => "cpu-busy",
            Reason::SpinnerLimit => "spinner-limit",
            Reason::Pays => "pays",
            Reason::SwitchCheaper => "switch-cheaper",
            Reason::Explored => "explored",
            Reason::Sync => "sync",
            Reason::NoQueue => "no-queue",
            Reason::Cached => "cached",
            Reason::SpinExpired => "spin-expired",
            Reason::Measured => "measured",
            Reason::Sacrificed => "sacrificed",
            Reason::Asleep => "asleep",
            Reason::Off => "off",
            Reason::HeldBack => "held-back",
            Reason::SpinCap => "spin-cap",
            Reason::Regressed => "regressed",
        }
    }
}

impl core::fmt::Display for Reason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.as_str())
    }
}

/// How many completions end the wait of a pipeline for its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MinComplete {
    /// As many as come in the time of a context switch; the first one at least.
    #[default]
    Few,
    /// Half of what is in flight: fewer submissions and wake-ups for as many requests.
    Half,
}

/// How one request is issued and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it is issued.
    pub route: Route,
    /// What the thread does meanwhile.
    pub mode: Mode,
    /// Predicted latency, in nanoseconds; 0 when unknown.
    pub expected_ns: Ns,
    /// Longest spin, in nanoseconds; past it the wait parks.
    pub spin_limit_ns: Ns,
    /// How many completions the wait is for, where many requests are in flight.
    pub min_complete: MinComplete,
    /// The reason for it.
    pub reason: Reason,
}

impl Decision {
    /// Shortest deadline a spin is given: tails of this length are ordinary on fast devices.
    pub const MIN_SPIN_LIMIT_NS: Ns = 50_000;
    /// Longest deadline a spin is given, whatever was predicted.
    pub const MAX_SPIN_LIMIT_NS: Ns = 10_000_000;
    /// Deadline of a spin whose latency nobody can predict.
    pub const BLIND_SPIN_LIMIT_NS: Ns = 200_000;

    /// A decision whose spin may last four times the predicted latency, within the limits above.
    pub fn new(route: Route, mode: Mode, expected_ns: Ns, reason: Reason) -> Self {
        let spin_limit_ns = match expected_ns {
            0 => Self::BLIND_SPIN_LIMIT_NS,
            expected_ns => expected_ns
                .saturating_mul(4)
                .clamp(Self::MIN_SPIN_LIMIT_NS, Self::MAX_SPIN_LIMIT_NS),
        };
        Decision { route, mode, expected_ns, spin_limit_ns, min_complete: MinComplete::Few, reason }
    }

    /// The same, until half of what is in flight has completed.
    #[must_use]
    pub const fn for_half(self) -> Self {
        Decision { min_complete: MinComplete::Half, ..self }
    }

    /// Whether the thread may give the CPU away because of this decision.
    pub const fn may_leave_cpu(&self) -> bool {
        !matches!(self.mode, Mode::Spin)
    }
}

impl core::fmt::Display for Decision {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.route, self.mode) {
            (Route::Inline, Mode::Spin) => f.write_str("inline, on this CPU"),
            (route, Mode::Hybrid { sleep_ns }) => {
                write!(f, "{}, sleep {sleep_ns} ns then spin", route.as_str())
            }
            (route, mode) => write!(f, "{}, {}", route.as_str(), mode.as_str()),
        }?;
        match self.min_complete {
            MinComplete::Few => Ok(()),
            MinComplete::Half => f.write_str(", for half of what is in flight"),
        }
    }
}
