// SPDX-License-Identifier: MIT OR Apache-2.0
//! Execution traces: which instructions a program ran and which memory they touched.
//!
//! A trace has a static side, a [`Dictionary`] of blocks of code with their bytes, and a dynamic
//! side, the sequence of blocks that ran with the addresses of their accesses. One file holds one
//! process. `docs/reference/trace-format.md` draws the bytes.
//!
//! ```no_run
//! # fn main() -> dwell_trace::Result<()> {
//! let mut trace = dwell_trace::Reader::open("xz.dwt")?;
//! let operands = dwell_trace::registers::operands(trace.dictionary());
//! while let Some(event) = trace.next_event()? {
//!     if let dwell_trace::Event::Block(run) = event {
//!         for executed in run.instructions() {
//!             let _ = (operands[executed.number].reads, executed.addresses);
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod chunk;
pub mod cut;
mod dictionary;
mod error;
pub mod export;
mod format;
pub mod import;
pub mod info;
mod reader;
pub mod record;
pub mod registers;
pub mod reuse;
mod writer;

pub use dictionary::{
    AccessKind, Block, Dictionary, Instruction, MAX_IN_BLOCK, MAX_INSTRUCTION_BYTES, NewBlock,
    NewInstruction, Site,
};
pub use error::{Error, Result};
pub use format::About;
pub use reader::{Event, Executed, Reader, Run, Source};
pub use writer::{Writer, Written};
