// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of requests: what direct I/O accepts, and what a request in flight can own.

mod aligned;
mod exclusive;
mod io_buf;
mod spare;

pub(crate) use aligned::PoolRef;
pub use aligned::{Aligned, Pool};
pub use exclusive::Exclusive;
pub(crate) use io_buf::Filled;
pub use io_buf::{IoBuf, IoBufMut};
pub use spare::Spare;
