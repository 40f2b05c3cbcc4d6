// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzzes `dwell_nfs::decoders::engine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dwell_nfs::decoders::engine(bytes);
});
