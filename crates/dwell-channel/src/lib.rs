// SPDX-License-Identifier: MIT OR Apache-2.0
//! Safe user-space access: a daemon serves a directory, and programs reach the files in it
//! through channels of shared memory, every command of which it checks.
#![deny(unsafe_code)]

mod accept;
pub mod client;
pub mod controller;
pub mod credentials;
mod device;
pub mod fs;
pub mod grants;
mod guarded;
mod lane;
pub mod layout;
pub mod ring;
mod service;
pub mod shared;
mod shares;
pub mod socket;
pub mod table;
mod view;
mod way;
pub mod wire;

pub use guarded::survive_lost_memory;
