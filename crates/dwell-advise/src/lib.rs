// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a program's storage time goes, seen from outside the program, and what would help.
//!
//! [`Tracer`] loads BPF programs that follow a command, a process or the whole machine. They sum
//! up, in the kernel, every sleep that a storage request ended. A sum tells how long the request
//! was queued and how long the device took. It also tells which kernel threads passed the answer
//! on, and how long the woken thread needed to run again. [`Seen`] is what they found. [`advise`]
//! says in sentences what would help and what would not; it reads no clock and traces nothing.
//!
//! ```no_run
//! use dwell_advise::{Follow, Tracer, advise};
//!
//! let tracer = Tracer::start(Follow::Process(1234))?;
//! std::thread::sleep(std::time::Duration::from_secs(10));
//! for advice in advise(&tracer.finish()?) {
//!     println!("{}: {}", advice.device, advice.text);
//! }
//! # Ok::<(), dwell_advise::Error>(())
//! ```

mod advice;
mod error;
mod follow;
mod issued;
mod names;
mod perf;
mod raw;
mod seen;
mod sums;
mod tracer;

pub use advice::{Advice, ProcessTotal, Remedy, Total, advise, totals, totals_by_process};
pub use error::{Error, Result};
pub use follow::Follow;
pub use issued::Issued;
pub use names::device_name;
pub use seen::{Cost, DeviceLoad, Operation, Parts, Seen, Wait};
pub use tracer::Tracer;
