// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a reply and the results of every procedure.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    dwell_nfs::decoders::all(bytes);
});
