// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the hall knows of the device beneath an open source.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use dwell_policy::{Backlog, Ns, Profile};

use crate::ring::SpinMethod;

/// What a probe learned, as far as issuing requests needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Known {
    /// What policies read; `None` when the device was never probed.
    pub profile: Option<Profile>,
    /// The spin method that measured faster.
    pub method: SpinMethod,
    /// Whether its polling was seen to be real: no interrupts.
    pub polled: bool,
    /// CPU time of kernel workers for a 4 KiB request, in nanoseconds: their time is our own I/O,
    /// not a competitor's.
    pub worker_ns: Ns,
    /// Further worker time per byte beyond 4 KiB, in picoseconds.
    pub worker_ps_per_byte: u64,
}

impl Known {
    /// Kernel workers' time for one request.
    pub fn worker_ns_of(&self, bytes: u64) -> Ns {
        self.worker_ns + bytes.saturating_sub(4096).saturating_mul(self.worker_ps_per_byte) / 1000
    }

    /// Longest that a request takes of which the page cache has all bytes.
    pub fn hit_ns(&self, bytes: u64) -> Ns {
        let device_ns = self.profile.map_or(0, |profile| profile.latency_of(bytes));
        (device_ns / 2).max(2_000)
    }
}

/// Requests that this process has in flight on one device.
#[derive(Debug, Default)]
pub struct InFlight {
    bytes: AtomicU64,
    requests: AtomicU32,
}

impl InFlight {
    /// The device's count, shared by all its open files. Devices are told apart by `key`.
    pub fn of(key: &str) -> Arc<InFlight> {
        static DEVICES: OnceLock<Mutex<HashMap<String, Weak<InFlight>>>> = OnceLock::new();
        let devices = DEVICES.get_or_init(Default::default);
        let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = devices.get(key).and_then(Weak::upgrade) {
            return known;
        }
        devices.retain(|_, device| device.strong_count() > 0);
        let fresh = Arc::new(InFlight::default());
        devices.insert(key.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// What is ahead of a new request.
    pub fn ahead(&self) -> Backlog {
        Backlog {
            bytes: self.bytes.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    /// A request goes in.
    pub fn enter(&self, bytes: u32) {
        self.bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Its completion came out.
    pub fn leave(&self, bytes: u32) {
        self.bytes.fetch_sub(u64::from(bytes), Ordering::Relaxed);
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_on_one_device_share_its_backlog() {
        let (one, same, other) = (InFlight::of("a"), InFlight::of("a"), InFlight::of("b"));
        one.enter(4096);
        assert_eq!(same.ahead(), Backlog { bytes: 4096, requests: 1 });
        assert_eq!(other.ahead(), Backlog::default());
        same.leave(4096);
        assert_eq!(one.ahead(), Backlog::default());
    }
}
