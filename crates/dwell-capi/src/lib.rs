// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dwell for C programs: what `dwell.h` declares.
//!
//! A frontend: it checks what C passes in, calls the engine, and tells errors by `errno`. The
//! header is generated from these files (`tests/header.rs`).
#![deny(unsafe_code)]

mod cancellation;
mod failure;
mod file;
mod map;
mod options;
mod places;
mod queue;
mod report;
mod versioned;
