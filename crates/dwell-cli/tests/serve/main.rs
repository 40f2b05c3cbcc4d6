// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell serve`: what programs see through a served mount is what they would see without it.

mod fixture;
#[path = "../library/mod.rs"]
mod library;
mod life;
mod limits;
mod maps;
mod paged;
mod programs;
mod routed;
mod same;
mod step;
mod together;
mod users;

/// What directories are served with. The kernel passes requests through where it can.
const OPTIONS: &[&str] = &[];
