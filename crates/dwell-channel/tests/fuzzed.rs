// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzzer's targets on a small corpus that is the same every time.

#[path = "common/fuzzed.rs"]
mod fuzzed;

struct Dice(u64);

impl Dice {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u8
    }
}

fn corpus(inputs: u64, most: usize) -> impl Iterator<Item = Vec<u8>> {
    (1..=inputs).map(move |seed| {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bytes = most * seed as usize / inputs as usize;
        (0..bytes).map(|_| dice.byte()).collect()
    })
}

#[test]
fn whatever_lies_in_the_ring_hurts_nobody_else() {
    corpus(150, 33 * 40).for_each(|data| fuzzed::ring(&data));
}

#[test]
fn whatever_comes_over_the_socket_hurts_nobody_else() {
    corpus(150, 300).for_each(|data| fuzzed::messages(&data));
}
