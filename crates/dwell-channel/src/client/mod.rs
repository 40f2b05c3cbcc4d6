// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's side: files under a served mount, reached through channels.

mod ask;
mod buffer;
mod copies;
mod flight;
mod grant;
mod inner;
mod link;
mod queue;
mod served;

pub use ask::{Asker, Granted, grant, place};
pub use buffer::ChannelBuffer;
pub use link::{Guest, Link, Shape};
pub use queue::ChannelQueue;
pub use served::{Mount, SCHEME, Served, parameters, register};
