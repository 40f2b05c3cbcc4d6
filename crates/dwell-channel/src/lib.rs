// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe user-space access: a daemon serves a directory, and programs reach the files in it
//! through channels of shared memory, every command of which it checks.
#![deny(unsafe_code)]

mod accept;
mod access;
mod balance;
mod calls;
mod channel;
pub mod client;
mod counts;
pub mod credentials;
pub mod daemon;
mod device;
mod file_mapping;
pub mod fs;
pub mod grants;
mod guarded;
pub mod layout;
mod options;
pub mod owners;
mod post;
pub mod ring;
mod service;
pub mod shared;
mod shares;
mod slow;
pub mod socket;
mod state;
pub mod table;
mod users;
pub mod wire;

pub use guarded::survive_lost_memory;
