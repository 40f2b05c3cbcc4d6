// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy needs to know of a device.

use crate::{Call, Ns};

/// How a device is waited for by default (SmartCon §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum DeviceClass {
    /// Served on the caller's own CPU (a memory copy): never worth leaving it.
    VeryFast,
    /// Decided per request.
    Fast,
    /// Waiting is long enough that blocking is always right.
    Mainstream,
}

impl DeviceClass {
    /// The word used in profiles, tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeviceClass::VeryFast => "very-fast",
            DeviceClass::Fast => "fast",
            DeviceClass::Mainstream => "mainstream",
        }
    }
}

impl core::fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The part of a device's profile that decisions read. All of it is measured by a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Profile {
    /// Device class (SmartCon §4.1).
    pub class: DeviceClass,
    /// Largest request, in bytes, for which spinning still beats blocking; equal still spins.
    pub size_threshold_bytes: u64,
    /// The same for a request that is one of several of its thread; 0 where spinning for such
    /// requests gains nothing. One wait serves several of them, so it can pay where a lone
    /// request should block, and the other way round.
    pub async_threshold_bytes: u64,
    /// Largest lone request, in bytes, that blocks better on a ring, sent first and waited for by a
    /// second call, than in a synchronous call; 0 where none does.
    pub ring_threshold_bytes: u64,
    /// Cost of blocking for one request and coming back to it, with nothing else to run:
    /// the self switch (SmartCon §3.3), in nanoseconds.
    pub switch_ns: Ns,
    /// Time to reload the working set that another process evicted meanwhile (SmartCon §3.2), in
    /// nanoseconds.
    pub reload_ns: Ns,
    /// By how much a timed sleep comes back late, in nanoseconds.
    pub sleep_overshoot_ns: Ns,
    /// Latency of a 4 KiB read that is spun for, in nanoseconds; 0 when unknown.
    pub latency_ns: Ns,
    /// Further latency per byte beyond the first 4 KiB, in picoseconds; 0 when unknown.
    pub latency_ps_per_byte: u64,
}

impl Profile {
    /// Latency that the probe would expect of a request of `size_bytes`, in nanoseconds.
    pub fn latency_of(&self, size_bytes: u64) -> Ns {
        let beyond_ns =
            size_bytes.saturating_sub(4096).saturating_mul(self.latency_ps_per_byte) / 1000;
        self.latency_ns.saturating_add(beyond_ns)
    }

    /// How a request issued by `call` is waited for by default. A device that serves on the
    /// caller's own CPU does so however it is called.
    pub const fn class_of(&self, call: Call) -> DeviceClass {
        match (self.class, call) {
            (DeviceClass::VeryFast, _) => DeviceClass::VeryFast,
            (class, Call::Blocking) => class,
            (_, Call::Async) if self.async_threshold_bytes > 0 => DeviceClass::Fast,
            (_, Call::Async) => DeviceClass::Mainstream,
        }
    }

    /// Largest request issued by `call`, in bytes, for which spinning still beats blocking.
    pub const fn threshold_of(&self, call: Call) -> u64 {
        match call {
            Call::Blocking => self.size_threshold_bytes,
            Call::Async => self.async_threshold_bytes,
        }
    }
}

impl Default for Profile {
    /// A fast device with the papers' threshold of 64 KiB and no measured latency.
    fn default() -> Self {
        Profile {
            class: DeviceClass::Fast,
            size_threshold_bytes: 64 << 10,
            async_threshold_bytes: 64 << 10,
            ring_threshold_bytes: 0,
            switch_ns: 5_000,
            reload_ns: 0,
            sleep_overshoot_ns: 50_000,
            latency_ns: 0,
            latency_ps_per_byte: 0,
        }
    }
}
