// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a region is to be like.

use std::path::PathBuf;
use std::sync::Arc;

use dwell_policy::WaitPolicy;
use dwell_policy::policy::Its;

use crate::board::Board;
use crate::budget::Budget;
use crate::group::usual_budget_bytes;

/// The thread that handles a page fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// The faulting thread itself, in a handler of SIGBUS. System calls on absent pages fail with
    /// EFAULT: pin such ranges, or have them brought in before.
    #[default]
    Inline,
    /// A thread of the region's. System calls may touch absent pages too; a fault costs two
    /// switches.
    Thread,
}

/// What the program may do with the memory, and what becomes of what it writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading. A write all the same changes a copy. The source never sees the change, which is
    /// lost once the page leaves memory.
    #[default]
    ReadOnly,
    /// Reading and writing; nothing that is written reaches the source.
    Private {
        /// A directory for an unnamed file that takes the written pages that the budget has no room
        /// for. Without one they stay in memory, beyond the budget if need be.
        spill: Option<PathBuf>,
    },
    /// Reading and writing; what is written reaches the source when its page leaves memory, and at
    /// [`Region::sync`](crate::Region::sync).
    Shared,
}

impl Access {
    /// Whether the program may write.
    pub fn writes(&self) -> bool {
        !matches!(self, Access::ReadOnly)
    }
}

/// How far is read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// Not at all; hints are still followed.
    Nothing,
    /// As far as earlier reading ahead was of use, at most so many pages.
    UpTo(u32),
}

/// How much one fault reads, if nothing was read ahead: a *granule* is a run of pages, aligned to
/// its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granule {
    /// One page at first. Faults whose neighbours are in memory make it longer, others shorter;
    /// where [`Ahead::Nothing`] or [`Advice::Random`](crate::Advice::Random) holds, it stays one
    /// page.
    #[default]
    Auto,
    /// So many bytes, a power of two from 4 KiB to 2 MiB, and at most an eighth of the budget.
    Bytes(usize),
}

/// What happens where a region cannot be had: this process may not have a userfaultfd, the kernel
/// lacks what a region needs, or too many regions are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// Opening fails, with a line that says what is missing.
    #[default]
    Fail,
    /// The source is mapped by the kernel (`mmap`): no budget, no hints, no statistics. Sources
    /// without a descriptor cannot be.
    Map,
}

/// What pages the memory: a region or the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// A region.
    #[default]
    Region,
    /// The kernel (`mmap`): no budget, no hints, no statistics.
    Kernel,
    /// The kernel where its mapping is better: the source fits in the budget, is read through the
    /// page cache, or completes a read before a region's fault is handled. A region elsewhere, and
    /// for sources without a descriptor. [`Region::why_mapped`](crate::Region::why_mapped) tells.
    /// The order of access is not known: if it is random or sequential, and the kernel is advised
    /// of that, [`Backing::Kernel`] is as fast or faster.
    Auto,
}

/// Choices for [`Region::open`](crate::Region::open).
#[derive(Clone)]
pub struct Options {
    /// Memory for pages, in bytes.
    pub budget_bytes: usize,
    /// Memory that this region shares with others, in place of a budget of its own.
    pub shared_budget: Option<Arc<Budget>>,
    /// The nice value by which the region's share of that is decided.
    pub nice: i8,
    /// The thread that handles faults.
    pub faults: Faults,
    /// What the program may do.
    pub access: Access,
    /// Whether the thread that waits for a page spins or blocks; asked once per fault.
    pub policy: Arc<dyn WaitPolicy>,
    /// How far is read ahead.
    pub ahead: Ahead,
    /// How much one fault reads.
    pub granule: Granule,
    /// Requests in flight per thread.
    pub depth: u32,
    /// Where the threads that page tell each other their priorities.
    pub board: Arc<Board>,
    /// What pages the memory.
    pub backing: Backing,
    /// What to do where a region cannot be had.
    pub otherwise: Otherwise,
    /// How long the handler thread ([`Faults::Thread`]) spins for the next fault before it blocks,
    /// in nanoseconds.
    pub handler_spins_ns: u64,
    /// Whether pages are installed by copying although the kernel can move them.
    pub copies: bool,
    /// Whether faults of registered threads note when they pass their stages
    /// ([`Registered::last_fault`](crate::Registered::last_fault)).
    pub stages: bool,
}

impl Options {
    /// A read-only region of at most `budget_bytes` of memory, with faults inline.
    pub fn new(budget_bytes: usize) -> Self {
        Options {
            budget_bytes,
            shared_budget: None,
            nice: 0,
            faults: Faults::default(),
            access: Access::default(),
            policy: Arc::new(Its),
            ahead: Ahead::UpTo(1024),
            granule: Granule::default(),
            depth: 64,
            board: Board::of_process(),
            backing: Backing::default(),
            otherwise: Otherwise::default(),
            handler_spins_ns: 0,
            copies: false,
            stages: false,
        }
    }

    /// Read-only memory by whichever of region and kernel is better. All such regions share half of
    /// the memory that this process can have when the first of them is opened.
    pub fn auto() -> Self {
        let usual = Budget::usual();
        let options = usual
            .map_or_else(|_| Options::new(usual_budget_bytes()), |budget| Options::within(&budget));
        options.backing(Backing::Auto)
    }

    /// A read-only region, with faults inline, that takes its memory from what others share too.
    pub fn within(budget: &Arc<Budget>) -> Self {
        Options { shared_budget: Some(budget.clone()), ..Options::new(budget.bytes()) }
    }

    /// Chooses the nice value by which a shared budget is divided.
    #[must_use]
    pub fn nice(mut self, nice: i8) -> Self {
        self.nice = nice;
        self
    }

    /// Chooses who handles faults.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Chooses what the program may do.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Chooses the wait policy.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn WaitPolicy>) -> Self {
        self.policy = policy;
        self
    }

    /// Chooses how far is read ahead.
    #[must_use]
    pub fn ahead(mut self, ahead: Ahead) -> Self {
        self.ahead = ahead;
        self
    }

    /// Chooses how much one fault reads.
    #[must_use]
    pub fn granule(mut self, granule: Granule) -> Self {
        self.granule = granule;
        self
    }

    /// Chooses how many requests a thread may have in flight, 1 to 256.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Chooses with whom priorities are compared.
    #[must_use]
    pub fn board(mut self, board: Arc<Board>) -> Self {
        self.board = board;
        self
    }

    /// Chooses who pages.
    #[must_use]
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Chooses what to do where a region cannot be had.
    #[must_use]
    pub fn otherwise(mut self, otherwise: Otherwise) -> Self {
        self.otherwise = otherwise;
        self
    }

    /// Chooses how long the handler thread spins for the next fault, in nanoseconds.
    #[must_use]
    pub fn handler_spins_ns(mut self, ns: u64) -> Self {
        self.handler_spins_ns = ns;
        self
    }

    /// Has pages installed by copying, as kernels before 6.8 must.
    #[must_use]
    pub fn copies(mut self, on: bool) -> Self {
        self.copies = on;
        self
    }

    /// Has faults note when they pass their stages, which reads the clock five times more.
    #[must_use]
    pub fn stages(mut self, on: bool) -> Self {
        self.stages = on;
        self
    }
}
