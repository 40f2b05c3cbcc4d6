// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers for runtimes that take a `Vec` and give it back.

use std::ops::Range;

use dwell_bench::batch::fill;

/// Direct I/O on every device takes memory aligned so.
const ALIGNMENT: usize = 4096;

/// A vector whose last `size_bytes` bytes begin on a page, and where they are in it. They are
/// filled, for writes.
pub fn page_aligned(size_bytes: usize, seed: u64) -> (Vec<u8>, Range<usize>) {
    let mut buffer = vec![0; size_bytes + ALIGNMENT];
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    buffer.truncate(start + size_bytes);
    fill(&mut buffer[start..], seed);
    (buffer, start..start + size_bytes)
}
