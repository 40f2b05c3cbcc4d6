// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pseudo-random numbers, the same on every machine (splitmix64).

/// A generator with its state.
pub struct Random(u64);

impl Random {
    /// One that begins at a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.draw()) * end as u128) >> 64) as usize
    }
}
