// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device that exists only as figures: latency, parallelism, bandwidth, faults.
//!
//! It keeps its data in memory or in a file and completes requests at a deadline, so waits of any
//! length can be had, and repeated, on any machine. Everything on this side of the deadline is
//! real: the queue, the spin, the park and the wake-up. What a wake-up costs is measured
//! ([`wakeup`]) and belongs beside every result.

mod device;
mod queue;
mod spec;
mod units;
pub mod wakeup;

pub use device::{Fault, NEVER, Timing};
pub use queue::{Emulated, EmulatedQueue};
pub use spec::{Distribution, Spec, Stall};
