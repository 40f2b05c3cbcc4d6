// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the threads that page tell each other their priorities, and whether they want the CPU.

use std::path::Path;
use std::sync::Arc;

use dwell::Result;

/// Threads that page, with their nice values. Threads of one process share one by default; processes share
/// one by naming the same file.
#[derive(Debug)]
pub struct Board {}

impl Board {
    /// The calling process's own.
    pub fn of_process() -> Arc<Board> {
        unimplemented!()
    }
    /// One that all processes share that name this file; it is made where it is missing.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn shared(path: &Path) -> Result<Arc<Board>> {
        let _ = path;
        unimplemented!()
    }
}
