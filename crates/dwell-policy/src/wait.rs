// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request as a policy sees it: what is asked of a device, and what is known at that moment.

use crate::{Backlog, Call, Estimate, Kind, Learned, Load, Ns, Profile, Routes};

/// One request about to be submitted, and everything a policy may look at.
#[derive(Clone, Debug)]
pub struct Wait<'a> {
    /// Read, write or sync.
    pub kind: Kind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The requests in flight ahead of it.
    pub backlog: Backlog,
    /// Alone, or one of several.
    pub call: Call,
    /// Routes that the queue offers.
    pub routes: Routes,
    /// What the probe learned of the device; `None` when it was never probed.
    pub profile: Option<&'a Profile>,
    /// What this queue's own completions say of requests like this one.
    pub estimate: Estimate,
    /// Whether who serves the queue is on a CPU. A device always is; a process may sleep, and is
    /// woken by the request.
    pub awake: bool,
    /// The machine in the last window.
    pub load: Load,
    /// The caller's nice value; policies that weigh priorities compare it with others'.
    pub nice: i8,
    /// Nice value of the thread that could have this CPU next, where one is known to want it.
    pub next_nice: Option<i8>,
    /// Running number of this request on its queue; policies that explore draw from it.
    pub sequence: u64,
    /// What comparing found for requests like this one; `None` where nothing was compared yet.
    pub learned: Option<Learned>,
}

impl<'a> Wait<'a> {
    /// A lone request on an idle machine, with no backlog and no history, for a queue that offers
    /// every route.
    pub fn new(kind: Kind, size_bytes: u64, profile: Option<&'a Profile>) -> Self {
        Wait {
            kind,
            size_bytes,
            backlog: Backlog::default(),
            call: Call::Blocking,
            routes: Routes::INLINE | Routes::INTERRUPT | Routes::POLLED,
            profile,
            estimate: Estimate::default(),
            awake: true,
            load: Load::default(),
            nice: 0,
            next_nice: None,
            sequence: 0,
            learned: None,
        }
    }

    /// Whether a probe found that requests like this one block better on a ring.
    pub fn blocks_on_ring(&self) -> bool {
        self.call == Call::Blocking
            && self.kind != Kind::Sync
            && self.profile.is_some_and(|p| self.size_bytes <= p.ring_threshold_bytes)
    }

    /// Best prediction of the latency when spun for: the queue's own estimate, else the probe's
    /// curve; 0 when nothing is known.
    pub fn predicted_ns(&self) -> Ns {
        if self.estimate.spun.mean_ns > 0 {
            self.estimate.spun.mean_ns
        } else {
            self.profile.map_or(0, |p| p.latency_of(self.size_bytes))
        }
    }
}
