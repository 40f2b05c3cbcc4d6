// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of file operations, the same for the same seed, over every surface of Dwell,
//! compared with a model and with the plain file system.
//!
//! A [script](operation) is made of a [seed](generate), carried out by [actors](actor) who know
//! nothing of Dwell, and held against the [model] and a run on the plain file system ([compare]).
//! What differs is [shrunk](shrink).

pub mod actor;
pub mod campaign;
pub mod compare;
pub mod generate;
pub mod log;
pub mod model;
pub mod nfs;
pub mod operation;
pub mod pager;
pub mod pattern;
pub mod record;
pub mod run;
pub mod server;
pub mod shrink;
pub mod surface;
