// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as what a server sends to an engine with requests outstanding, over TCP or UDP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dwell_nfs::decoders::engine(bytes);
});
