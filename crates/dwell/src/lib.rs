// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of Dwell: queues, the drivers that wait for them, files, and the monitors.
//!
//! A [`File`] decides for each of its requests whether the calling thread spins or blocks. Its
//! [`WaitPolicy`] decides from what was learned of the device and what the system monitor sees of
//! the machine. Begin with [`open()`].
//!
//! # Features
//! - `bytes`: requests own `Bytes` and `BytesMut` of the crate bytes.
//! - `serde`: statistics and devices are `Serialize`.
#![deny(unsafe_code)]

pub mod buffer;
pub mod device;
pub mod executor;
pub mod monitor;
pub mod pipeline;
pub mod policies;
pub mod queue;
pub mod source;
pub mod stats;

// Dwell's own crates use these modules. They are no part of the public API, and change without
// notice.
#[doc(hidden)]
pub mod any;
#[doc(hidden)]
pub mod arch;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod emulated;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod external;
#[doc(hidden)]
pub mod file;
#[doc(hidden)]
pub mod fork;
#[doc(hidden)]
pub mod kernel;
#[doc(hidden)]
pub mod latency;
#[doc(hidden)]
pub mod learner;
#[doc(hidden)]
pub mod mapping;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod off;
#[doc(hidden)]
pub mod open;
#[doc(hidden)]
pub mod parameters;
#[doc(hidden)]
pub mod park;
#[doc(hidden)]
pub mod ring;
#[doc(hidden)]
pub mod seccomp;
#[doc(hidden)]
pub mod share;
#[doc(hidden)]
pub mod shared_atomics;
#[doc(hidden)]
pub mod spelling;
#[doc(hidden)]
pub mod timers;
#[doc(hidden)]
pub mod wait;

mod admission;
mod async_submission;
mod eventfd;
mod in_flight;
mod poll;
mod remembered;
mod request_path;
mod timerfd;

#[doc(no_inline)]
pub use dwell_policy::WaitPolicy;
pub use dwell_policy::{self, Decision, DeviceClass, Kind, Mode, Reason, Route, policy};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use open::{Options, open, options};
pub use stats::Stats;
