// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random numbers.

use std::hash::{BuildHasher, RandomState};

/// A number that nobody can foresee.
pub(crate) fn random() -> u32 {
    RandomState::new().hash_one(0) as u32
}
