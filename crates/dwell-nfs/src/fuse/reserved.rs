// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a mount that counts into its bound as long as it is kept.

use std::cell::Cell;
use std::rc::Rc;

/// So many bytes of what a mount keeps.
pub(super) struct Reserved {
    kept: Rc<Cell<u64>>,
    bytes: u64,
}

impl Reserved {
    /// Adds them to what is kept already.
    pub fn new(kept: &Rc<Cell<u64>>, bytes: u64) -> Self {
        kept.set(kept.get() + bytes);
        Reserved { kept: kept.clone(), bytes }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.kept.set(self.kept.get() - self.bytes);
    }
}
