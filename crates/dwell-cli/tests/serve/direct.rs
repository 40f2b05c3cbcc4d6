// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same as in `main.rs`, where the kernel asks the server for every read and write.

mod fixture;
#[path = "../library/mod.rs"]
mod library;
mod maps;
mod programs;
mod routed;
mod same;
mod step;
mod together;
mod users;

/// What directories are served with.
const OPTIONS: &[&str] = &["--no-passthrough"];
