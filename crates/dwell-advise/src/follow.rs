// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom a trace follows.

/// The processes whose waits are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Processes that this process starts from now on, and theirs.
    Children,
    /// A running process, and those that it has started or will start.
    Process(u32),
    /// Every process of the machine but this one.
    Everything,
}
