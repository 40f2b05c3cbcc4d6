// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs counted that V1 and V2 share.

use dwell_sim::flat::Counts;

/// What one program counted under both; or why not.
pub(super) type Beside = Vec<(String, Result<Pair, String>)>;

/// One program's counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub ours: Counts,
    pub theirs: Counts,
}
