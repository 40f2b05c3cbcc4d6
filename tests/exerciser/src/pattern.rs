// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reproducible numbers and bytes: what is drawn, what is written, and how contents are compared.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Numbers that look random and are the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts a stream of numbers.
    pub fn new(seed: u64) -> Self {
        Dice(mixed(seed.wrapping_add(GOLDEN)))
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mixed(self.0)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.word() % bound }
    }

    /// True in `of_100` of 100 cases.
    pub fn chance(&mut self, of_100: u64) -> bool {
        self.below(100) < of_100
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }
}

/// Fills `bytes` with the content that belongs to `seed`. No byte is zero, so a hole is never
/// mistaken for data.
pub fn fill(bytes: &mut [u8], seed: u64) {
    for (place, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = mixed(seed.wrapping_mul(GOLDEN).wrapping_add(place as u64));
        let word = word | 0x0101_0101_0101_0101;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// The content that belongs to `seed`.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut bytes, seed);
    bytes
}

/// A digest of contents and length.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64 ^ GOLDEN;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    mixed(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_reproducible_differ_by_seed_and_are_never_zero() {
        assert_eq!(bytes(100, 7), bytes(100, 7));
        assert_ne!(bytes(100, 7), bytes(100, 8));
        assert!(bytes(10_000, 3).iter().all(|byte| *byte != 0));
        assert_ne!(digest(&[0; 8]), digest(&[0; 9]));
    }
}
