// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of Dwell: queues, the drivers that wait for them, files, and the monitors.
//!
//! A [`File`] decides for each of its requests whether the calling thread keeps the CPU or leaves
//! it, by a [`WaitPolicy`], from what a probe learned of the device and
//! what the system monitor sees of the machine. [`open()`] is the way in.
//!
//! # Features
//! - `bytes`: requests own `Bytes` and `BytesMut` of the crate bytes.
//! - `serde`: statistics and devices are `Serialize`.
#![deny(unsafe_code)]

mod admission;
pub mod any;
pub mod arch;
mod async_submission;
pub mod buffer;
pub mod clock;
pub mod device;
pub mod emulated;
pub mod error;
mod eventfd;
pub mod executor;
pub mod external;
pub mod file;
pub mod fork;
mod in_flight;
pub mod kernel;
pub mod latency;
pub mod learner;
pub mod mapping;
pub mod memory;
pub mod monitor;
pub mod off;
pub mod open;
pub mod parameters;
pub mod park;
pub mod pipeline;
pub mod policies;
pub mod queue;
mod remembered;
mod request_path;
pub mod ring;
pub mod seccomp;
pub mod share;
pub mod shared_atomics;
pub mod source;
pub mod spelling;
pub mod stats;
mod timerfd;
pub mod timers;
pub mod wait;

pub use dwell_policy::{
    self, Decision, DeviceClass, Kind, Mode, Reason, Route, WaitPolicy, policy,
};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use open::{Options, open, options};
pub use stats::Stats;
