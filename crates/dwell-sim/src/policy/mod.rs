// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy decides at a page fault, and the five policies by name.

mod async_io;
mod its;
mod sync;
mod sync_prefetch;
mod sync_runahead;

pub use async_io::Async;
pub use its::Its;
pub use sync::Sync;
pub use sync_prefetch::SyncPrefetch;
pub use sync_runahead::SyncRunahead;

use dwell_policy::{Backlog, Decision, Kind, Latency, Ns, Routes, Wait, WaitPolicy};
use serde::{Deserialize, Serialize};

use crate::Params;

/// A page fault whose page is on its way, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Nice value of the process.
    pub nice: i8,
    /// Nice value of the process that would run next; `None` when nobody is ready.
    pub next_nice: Option<i8>,
    /// How long the page will take.
    pub expected_ns: Ns,
    /// What the device was reading before.
    pub backlog: Backlog,
}

impl Fault {
    /// The decision of one of the ground's policies on this request.
    pub fn decide(&self, policy: &impl WaitPolicy) -> Decision {
        let mut wait = Wait::new(Kind::Read, crate::params::PAGE_BYTES, None);
        wait.routes = Routes::POLLED | Routes::INTERRUPT;
        wait.backlog = self.backlog;
        wait.nice = self.nice;
        wait.estimate.spun = Latency { mean_ns: self.expected_ns, deviation_ns: 0 };
        policy.choose(&wait)
    }
}

/// Which further pages are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// None.
    Nothing,
    /// The absent pages of the aligned group of so many pages.
    Group {
        /// Pages of a group.
        pages: u64,
    },
    /// So many absent pages behind the victim, by walking the page table.
    Behind {
        /// Pages.
        pages: u64,
    },
}

/// The handling of one fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Whether the process spins.
    pub decision: Decision,
    /// CPU time to get from the fault handler to the thread that uses the idle time, or that lets
    /// the process block.
    pub entry_ns: Ns,
    /// The pages fetched meanwhile.
    pub prefetch: Prefetch,
    /// Whether the rest of the wait goes to pre-execution.
    pub preexecutes: bool,
}

impl Plan {
    /// A plan that only waits.
    pub const fn wait(decision: Decision) -> Plan {
        Plan { decision, entry_ns: 0, prefetch: Prefetch::Nothing, preexecutes: false }
    }

    /// Whether there is anything to do during the wait.
    pub fn uses_idle_time(&self) -> bool {
        self.preexecutes || self.prefetch != Prefetch::Nothing
    }
}

/// One of the ways to spend the wait for a page.
pub trait Policy: Send + std::marker::Sync {
    /// What to do about a fault.
    fn plan(&self, fault: &Fault) -> Plan;

    /// Whether a part of the last-level cache is the pre-execute cache.
    fn has_preexecute_cache(&self) -> bool {
        false
    }

    /// Whether it also pre-executes while the last-level cache misses.
    fn preexecutes_at_misses(&self) -> bool {
        false
    }
}

/// The five policies (§4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Every process blocks.
    Async,
    /// Every process spins.
    Sync,
    /// Every process spins and pre-executes.
    SyncRunahead,
    /// Every process spins, and more pages are fetched.
    SyncPrefetch,
    /// Idle-time stealing.
    Its,
}

impl PolicyKind {
    /// All five, in the paper's order.
    pub const ALL: [PolicyKind; 5] = [
        PolicyKind::Async,
        PolicyKind::Sync,
        PolicyKind::SyncRunahead,
        PolicyKind::SyncPrefetch,
        PolicyKind::Its,
    ];

    /// The word in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            PolicyKind::Async => "async",
            PolicyKind::Sync => "sync",
            PolicyKind::SyncRunahead => "sync_runahead",
            PolicyKind::SyncPrefetch => "sync_prefetch",
            PolicyKind::Its => "its",
        }
    }

    /// The policy with these parameters.
    pub fn build(self, params: &Params) -> Box<dyn Policy> {
        match self {
            PolicyKind::Async => Box::new(Async),
            PolicyKind::Sync => Box::new(Sync),
            PolicyKind::SyncRunahead => Box::new(SyncRunahead::new(params)),
            PolicyKind::SyncPrefetch => Box::new(SyncPrefetch::new(params)),
            PolicyKind::Its => Box::new(Its::new(params)),
        }
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let word = text.to_ascii_lowercase().replace('-', "_");
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("no simulated policy is called `{text}`; there are {all}")
        })
    }
}

impl std::fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
