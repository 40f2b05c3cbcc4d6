// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data, places and chance.
#![allow(dead_code)]

/// The byte at `at` of what `seed` names.
pub fn byte_at(at: u64, seed: u64) -> u8 {
    let mixed = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0xbf58_476d));
    (mixed >> (8 * (at % 8))) as u8
}

/// Bytes from `at` on.
pub fn data(bytes: usize, at: u64, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|byte| byte_at(at + byte, seed)).collect()
}

/// A directory on a file system that may have direct I/O.
pub fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Numbers that follow from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
