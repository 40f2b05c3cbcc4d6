// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hashes the experiments.

#[path = "../dwell-bench/hash.rs"]
mod hash;

use std::io;

fn main() -> io::Result<()> {
    hash::write_table(&hash::below(&hash::here().join("src/experiments"), "experiment")?)
}
