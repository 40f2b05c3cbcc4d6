// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's mapping in the place of a region.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use dwell::any::AnySource;
use dwell::{Error, Result};

use crate::region::{Mode, Region};
use crate::signal;

impl Region {
    /// Ends a read-only region and leaves the kernel's mapping of its file at the same addresses,
    /// for reading: who faults meanwhile waits for that. The mapping stays until somebody unmaps
    /// it.
    ///
    /// # Errors
    /// A region that is written to, or a source without a descriptor: such a region ends as if
    /// dropped.
    pub fn hand_back(mut self) -> Result<()> {
        let Mode::Paged { shared, known, handler, budget } = &mut self.mode else {
            self.area().forget();
            return Ok(());
        };
        shared.here()?;
        let kernel = match shared.file.source() {
            AnySource::Kernel(kernel) if !shared.writes => kernel,
            _ => {
                return Err(Error::invalid(shared.path(), "only the kernel's files, for reading"));
            }
        };
        if let Some(budget) = budget.take() {
            budget.leave(shared);
        }
        shared.closing.store(true, Ordering::Release);
        if let Some(handler) = handler.take() {
            handler.stop();
        }
        let fd = kernel.descriptor().as_raw_fd();
        let replaced = shared.area.replace_by(fd);
        shared.wake_all();
        if let Some(known) = known.take() {
            signal::leave(known);
        }
        replaced.map_err(|error| Error::io("mmap", shared.path(), None, error))
    }
}
