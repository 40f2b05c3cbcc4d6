// SPDX-License-Identifier: MIT OR Apache-2.0
//! Power cuts, without a power switch. A dm-log-writes device records every write that reached the
//! medium, in the order in which flushes made the writes durable. Replaying the record up to any
//! entry gives what a disk would hold if the power had failed there and everything in its volatile
//! cache had been lost.

pub mod device;
pub mod log;
pub mod records;
