// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon as a file system server: a directory served at a mount point through FUSE, for every program
//! and every call that takes no channel.

mod attributes;
mod caller;
pub mod control;
mod counts;
mod data;
mod directory;
mod filesystem;
mod hidden;
mod lock;
mod names;
mod node;
mod passthrough;
mod server;
mod slow;
mod tree;
mod xattr;

pub use passthrough::DataPath;
pub use server::{Channels, Error, Facts, Options, Server, Stopper, take_over};
