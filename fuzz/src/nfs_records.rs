// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a stream of records, cut into pieces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dwell_nfs::decoders::stream(bytes);
});
