// SPDX-License-Identifier: MIT OR Apache-2.0
//! A short fuzzing run that is the same each time: noise, and replies with a few bytes changed.

use dwell_nfs::decoders::{all, engine, stream};

/// A small generator of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    let attributes = [1, 0o644, 1, 0, 0, 0, 9, 0, 9, 0, 0, 0, 1, 0, 7, 1, 0, 1, 0, 1, 0];
    let entry = [1, 0, 5, 1, 0x6100_0000, 0, 4, 1];
    let seeds = [
        words(&[1, 1, 0, 0, 0, 0, 0]),
        words(&[1, 1, 0, 0, 0, 2, 3, 4]),
        words(&[1, 1, 1, 1, 5]),
        words(&[0, 1].iter().copied().chain(attributes).collect::<Vec<_>>()),
        words(&[0, 0, 8, 1, 8, 1, 2]),
        words(
            &[0, 0, 0, 0, 9, 9].iter().copied().chain(entry).chain(attributes).collect::<Vec<_>>(),
        ),
        words(&[0, 4, 0x6162_6364, 0, 0]),
        words(&[0x8000_0018, 1, 1, 0, 0, 0, 0, 0x8000_0004, 7, 3, 0]),
    ];
    let mut random = Random(1);
    let mut taken = 0;
    for round in 0..12_000 {
        let mut bytes = match round % 3 {
            0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
            _ => seeds[random.below(seeds.len())].clone(),
        };
        for _ in 0..random.below(4) {
            if !bytes.is_empty() {
                let at = random.below(bytes.len());
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)];
            }
        }
        bytes.truncate(random.below(bytes.len() + 40));
        taken += all(&bytes);
        let piece = [random.next() as u8, 0][random.below(2)];
        let framed = [&[piece][..], &bytes].concat();
        taken += stream(&framed) + engine(&framed);
    }
    // Enough of it made sense for the deeper parts to be reached.
    assert!(taken > 20_000, "{taken}");
}
