// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of zeros, which a copy does not write where its source has holes.

use std::ops::Range;

/// Holes are found in blocks of so many bytes: those of most file systems.
const BLOCK_BYTES: usize = 4096;

/// The parts of `data` that are not blocks of zeros, in whole blocks of `data`.
pub(crate) fn runs(data: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let is_hole = |start: usize| {
        let block = &data[start..data.len().min(start + BLOCK_BYTES)];
        block.iter().all(|byte| *byte == 0)
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < data.len() && is_hole(at) {
            at += BLOCK_BYTES;
        }
        let start = at;
        while at < data.len() && !is_hole(at) {
            at += BLOCK_BYTES;
        }
        at = at.min(data.len());
        (start < at).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zero_and_as_large_as_can_be() {
        let mut data = vec![0; 10 * BLOCK_BYTES + 5];
        let found = |data: &[u8]| runs(data).collect::<Vec<_>>();
        assert_eq!(found(&data), []);
        assert_eq!(found(&[]), []);
        data[3 * BLOCK_BYTES] = 1;
        data[5 * BLOCK_BYTES - 1] = 1;
        *data.last_mut().unwrap() = 1;
        let end = data.len();
        let tail = 10 * BLOCK_BYTES..end;
        assert_eq!(found(&data), [3 * BLOCK_BYTES..5 * BLOCK_BYTES, tail]);
        assert_eq!(found(&[1; 7])[0], 0..7);
    }
}
