// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two fixed policies.

use super::{WaitPolicy, block, left, spin};
use crate::{Decision, Mode, Profile, Reason, Wait};

/// Always blocks: what an ordinary read call does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block;

impl WaitPolicy for Block {
    fn name(&self) -> &str {
        "block"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        block(wait, Reason::Fixed)
    }

    fn always_inline(&self, _: Option<&Profile>) -> Option<(Mode, Reason)> {
        Some((Mode::Block, Reason::Fixed))
    }

    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        left(self.choose(wait))
    }

    fn looks_at_backlog(&self) -> bool {
        false
    }
}

/// Always spins, whatever the device, the size or the load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin;

impl WaitPolicy for Spin {
    fn name(&self) -> &str {
        "spin"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        spin(wait, Reason::Fixed)
    }

    fn looks_at_backlog(&self) -> bool {
        false
    }
}
