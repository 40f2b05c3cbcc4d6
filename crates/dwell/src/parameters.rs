// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the engine knows of the device beneath an open source.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dwell_policy::{Backlog, Ns, Profile};

use crate::device::DiskQueue;
use crate::fork::OfProcess;
use crate::monitor::SystemMonitor;
use crate::ring::SpinMethod;
use crate::shared_atomics::SharedAtomics;

/// What a probe learned, as far as issuing requests needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceParameters {
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

impl DeviceParameters {
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

/// Requests in flight on one device: this process's, once somebody has asked, and others'. All its
/// files write to these words then. A forked child has none of its parent's.
///
/// Others' are what the kernel has under way beyond our own. The monitor looks once a window.
///
/// Without memory that forks wipe, nothing is counted: then nothing seems to be in flight.
#[derive(Debug)]
pub struct InFlight {
    words: Option<SharedAtomics>,
    counts: AtomicBool,
}

/// Where the words of [`InFlight`] stand: bytes and requests in one, the process, others' bytes and
/// requests, and whether a monitor looks at those.
const AHEAD: usize = 0;
const PROCESS: usize = 1;
const OTHERS: usize = 2;
const WATCHED: usize = 3;
/// Bits of the number of requests; the bytes have the rest.
const REQUESTS_BITS: u32 = 24;

/// A request that was counted. It leaves the count of the process in which it entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a request that entered has to leave"]
pub struct Entered {
    process: u64,
    bytes: u32,
}

impl Entered {
    /// No process has this number.
    pub const UNCOUNTED: Entered = Entered { process: u64::MAX, bytes: 0 };

    /// What it adds to the word.
    fn ahead(self) -> u64 {
        word(Backlog { bytes: self.bytes.into(), requests: 1 })
    }
}

fn word(backlog: Backlog) -> u64 {
    backlog.bytes << REQUESTS_BITS | u64::from(backlog.requests)
}

fn backlog(word: u64) -> Backlog {
    let requests = word & ((1 << REQUESTS_BITS) - 1);
    Backlog { bytes: word >> REQUESTS_BITS, requests: requests as u32 }
}

impl InFlight {
    fn new() -> Self {
        let words = SharedAtomics::wiped_on_fork(512).ok();
        InFlight { words, counts: AtomicBool::new(false) }
    }

    /// The device's count, shared by all its open files. Devices are told apart by `key`.
    pub fn of(key: &str) -> Arc<InFlight> {
        static DEVICES: OfProcess<HashMap<String, Weak<InFlight>>> = OfProcess::new();
        let mut devices = DEVICES.lock();
        if let Some(known) = devices.get(key).and_then(Weak::upgrade) {
            return known;
        }
        devices.retain(|_, device| device.strong_count() > 0);
        let fresh = Arc::new(InFlight::new());
        devices.insert(key.to_owned(), Arc::downgrade(&fresh));
        fresh
    }

    /// Returns the backlog ahead of a new request. The first call begins the count.
    pub fn ahead(&self) -> Backlog {
        if !self.counts.load(Ordering::Relaxed) {
            self.counts.store(true, Ordering::Relaxed);
        }
        let Some(words) = &self.words else { return Backlog::default() };
        let own = backlog(words[AHEAD].load(Ordering::Relaxed));
        let others = backlog(words[OTHERS].load(Ordering::Relaxed));
        Backlog { bytes: own.bytes + others.bytes, requests: own.requests + others.requests }
    }

    /// Has the monitor look at the disk of this number (`major:minor`) once a window, for as long
    /// as a file of the device is open.
    pub(crate) fn watch(self: &Arc<Self>, number: &str, monitor: &SystemMonitor) {
        let Some(words) = &self.words else { return };
        if words[WATCHED].swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let Some(mut queue) = DiskQueue::open(Path::new("/sys"), number) else { return };
        let watch = Watch(Arc::downgrade(self));
        monitor.each_window(Box::new(move |_| {
            let Some(device) = watch.0.upgrade() else { return false };
            let seen = queue.look();
            device.see(seen.unwrap_or_default());
            seen.is_some()
        }));
    }

    /// Notes what the kernel has under way.
    fn see(&self, under_way: Backlog) {
        let Some(words) = &self.words else { return };
        let own = backlog(words[AHEAD].load(Ordering::Relaxed));
        words[OTHERS].store(word(under_way.less(own)), Ordering::Relaxed);
    }

    /// Whether requests are counted: somebody looks at them.
    pub fn counts(&self) -> bool {
        self.words.is_some() && self.counts.load(Ordering::Relaxed)
    }

    /// A request goes in.
    #[inline]
    pub fn enter(&self, bytes: u32) -> Entered {
        let words = match &self.words {
            Some(words) if self.counts.load(Ordering::Relaxed) => words,
            _ => return Entered::UNCOUNTED,
        };
        let process = match words[PROCESS].load(Ordering::Relaxed) {
            0 => Self::name_process(words),
            known => known,
        };
        let entered = Entered { process, bytes };
        words[AHEAD].fetch_add(entered.ahead(), Ordering::Relaxed);
        entered
    }

    /// Its completion came out, or nobody waits for it any more.
    #[inline]
    pub fn leave(&self, entered: Entered) {
        let Some(words) = &self.words else { return };
        if entered != Entered::UNCOUNTED
            && words[PROCESS].load(Ordering::Relaxed) == entered.process
        {
            words[AHEAD].fetch_sub(entered.ahead(), Ordering::Relaxed);
        }
    }

    /// Nobody looks at others' requests any more.
    fn unwatch(&self) {
        if let Some(words) = &self.words {
            words[OTHERS].store(0, Ordering::Relaxed);
            words[WATCHED].store(0, Ordering::Relaxed);
        }
    }

    /// A number that none of the process's ancestors had, as each inherits how many were given.
    #[cold]
    fn name_process(words: &SharedAtomics) -> u64 {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let fresh = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        let named = words[PROCESS].compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
        named.map_or_else(|other| other, |_| fresh)
    }
}

/// The monitor's looks at a device, until it ends or has seen enough.
struct Watch(Weak<InFlight>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(device) = self.0.upgrade() {
            device.unwatch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Config;

    #[test]
    fn files_on_one_device_share_its_backlog() {
        let (one, same, other) = (InFlight::of("a"), InFlight::of("a"), InFlight::of("b"));
        // Nobody has asked yet.
        let early = one.enter(512);
        assert_eq!(same.ahead(), Backlog::default());
        one.leave(early);
        let entered = one.enter(4096);
        assert_eq!(same.ahead(), Backlog { bytes: 4096, requests: 1 });
        assert_eq!(other.ahead(), Backlog::default());
        same.leave(entered);
        assert_eq!(one.ahead(), Backlog::default());
    }

    /// A monitor whose first window is not over before the test is.
    fn monitor() -> SystemMonitor {
        let config = Config { window: std::time::Duration::from_secs(1), ..Config::default() };
        SystemMonitor::start(config).unwrap()
    }

    #[test]
    fn a_device_that_nobody_looks_at_any_more_has_no_backlog_of_others() {
        let Ok(disks) = std::fs::read_dir("/sys/dev/block") else {
            return println!("SKIP: no /sys/dev/block");
        };
        let numbers = disks.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut numbers =
            numbers.filter(|number| DiskQueue::open(Path::new("/sys"), number).is_some());
        let Some(number) = numbers.next() else { return println!("SKIP: no disk") };
        let device = InFlight::of("d");
        let three = Backlog { bytes: 3 * 4096, requests: 3 };
        for ends_early in [false, true] {
            let looks = monitor();
            device.watch(&number, &looks);
            device.see(three);
            assert_eq!(device.ahead(), three, "the second has to be asked too");
            if ends_early {
                looks.end();
                for _ in 0..60_000 {
                    if device.ahead() == Backlog::default() {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                assert_eq!(device.ahead(), Backlog::default(), "its thread is gone");
            }
            drop(looks);
            assert_eq!(device.ahead(), Backlog::default());
        }
    }

    #[test]
    fn the_kernels_count_beyond_our_own_is_others() {
        let device = InFlight::of("c");
        device.ahead();
        let own = device.enter(4096);
        device.see(Backlog { bytes: 3 * 8192, requests: 3 });
        assert_eq!(device.ahead(), Backlog { bytes: 3 * 8192, requests: 3 });
        device.leave(own);
        assert_eq!(device.ahead(), Backlog { bytes: 3 * 8192 - 4096, requests: 2 });
        // A merged request of the kernel's may be several of ours.
        let own = [device.enter(4096), device.enter(4096)];
        device.see(Backlog { bytes: 8192, requests: 1 });
        assert_eq!(device.ahead().requests, 2);
        own.into_iter().for_each(|entered| device.leave(entered));
        assert_eq!(device.ahead().requests, 0);
    }
}
