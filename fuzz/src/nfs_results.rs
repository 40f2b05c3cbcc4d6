// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fuzzes `dwell_nfs::decoders::all`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dwell_nfs::decoders::all(bytes);
});
