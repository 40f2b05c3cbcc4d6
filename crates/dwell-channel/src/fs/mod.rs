// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon as a file system server: a directory served at a mount point through FUSE, for every
//! program and every call that takes no channel.

mod attributes;
mod caller;
mod charges;
pub mod control;
mod counts;
mod data;
mod directory;
mod error;
mod facts;
mod filesystem;
mod flags;
mod forget;
mod hidden;
mod listing;
mod lock;
mod names;
mod negotiation;
mod node;
mod options;
mod passthrough;
mod preconditions;
mod replies;
mod served;
mod server;
mod tree;
mod watch;
mod xattr;

pub use error::Error;
pub use facts::{Channels, Facts};
pub use options::Options;
pub use passthrough::DataPath;
pub use preconditions::take_over;
pub use server::{Server, Stopper};
