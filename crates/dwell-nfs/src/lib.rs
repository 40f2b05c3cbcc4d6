// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NFSv3 client in which one thread keeps many requests outstanding.
//!
//! The lowest layer comes first: [`xdr`] and [`rpc`] are the encoding, [`nfs3`] and [`mount`] the
//! procedures. [`engine`] is the state of outstanding requests without any I/O, [`link`] the engine
//! over a socket. Files and trees are above that.
#![deny(unsafe_code)]

pub mod client;
pub mod connection;
pub mod copy;
#[doc(hidden)]
pub mod decoders;
pub mod directory;
pub mod engine;
pub mod error;
pub mod file;
pub mod fuse;
mod holes;
mod keep;
mod lineage;
pub mod link;
pub mod memory;
pub mod mount;
pub mod nfs3;
mod nodes;
mod paths;
mod pool;
pub mod procedure;
pub mod queue;
mod random;
mod ranges;
mod removal;
mod replay;
mod resume;
pub mod rpc;
mod socket;
mod spread;
mod transfer;
pub mod tree;
mod uncommitted;
pub mod url;
pub mod xdr;

pub use error::{Error, Result};
