// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that results are measured with.

include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The hash of one source: a crate, or a part of this one, as `bench/batch`.
pub fn source(name: &str) -> Option<u64> {
    SOURCES.iter().find(|(known, _)| *known == name).map(|(_, hash)| *hash)
}

/// Its tests run here: a build script has none.
#[cfg(test)]
#[path = "../hash.rs"]
#[allow(dead_code)]
mod hash;
