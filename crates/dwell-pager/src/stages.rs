// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the time of one fault goes, by the clock of the thread that handles it.

use dwell_policy::Ns;

/// When a fault passed its stages, by the monotonic clock ([`dwell::clock::now`]) in nanoseconds. A
/// stage that the fault skipped has the time of the stage before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// The handler began: before this the processor and the kernel delivered the signal.
    pub entered: Ns,
    /// Region, thread and page were looked up.
    pub looked_up: Ns,
    /// A frame was taken, and the wait was decided about.
    pub framed: Ns,
    /// The request was submitted.
    pub requested: Ns,
    /// The page was in its frame.
    pub arrived: Ns,
    /// The page was in the region.
    pub moved: Ns,
    /// The handler ended: after this the kernel restored the program's registers.
    pub left: Ns,
}

impl Stages {
    /// A fault that has just begun.
    pub(crate) fn begun(entered: Ns, looked_up: Ns) -> Stages {
        let framed = looked_up;
        Stages {
            entered,
            looked_up,
            framed,
            requested: framed,
            arrived: framed,
            moved: framed,
            left: framed,
        }
    }

    /// The request was submitted at this time, or the page was found at it.
    pub(crate) fn framed(&mut self, at: Ns) {
        (self.framed, self.requested) = (at, at);
        self.arrived(at);
    }

    pub(crate) fn requested(&mut self, at: Ns) {
        self.requested = at;
        self.arrived(at);
    }

    pub(crate) fn arrived(&mut self, at: Ns) {
        (self.arrived, self.moved, self.left) = (at, at, at);
    }

    pub(crate) fn moved(&mut self, at: Ns) {
        (self.moved, self.left) = (at, at);
    }
}
