// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hashes the crates and the parts of the bench that results are measured with.

mod hash;

use std::io;

/// Crates whose sources a figure or a sweep may name.
const CRATES: [&str; 12] = [
    "dwell",
    "dwell-advise",
    "dwell-channel",
    "dwell-host",
    "dwell-mounts",
    "dwell-nfs",
    "dwell-pager",
    "dwell-policy",
    "dwell-preload",
    "dwell-sim",
    "dwell-trace",
    "dwell-workloads",
];

fn main() -> io::Result<()> {
    let here = hash::here();
    let crates = CRATES.map(|name| (name.to_owned(), vec![here.join("..").join(name).join("src")]));
    let parts = hash::below(&here.join("src"), "bench")?;
    hash::write_table(&[&crates[..], &parts].concat())
}
