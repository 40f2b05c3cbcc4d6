// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hall of Dwell: queues, the drivers that wait for them, files, and the monitors.
#![deny(unsafe_code)]

pub mod arch;
pub mod buffer;
pub mod clock;
pub mod emulated;
pub mod error;
mod mapping;
pub mod memory;
pub mod park;
pub mod queue;
pub mod source;
pub mod wait;
