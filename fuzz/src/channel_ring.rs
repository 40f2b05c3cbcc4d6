// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever lies in a channel's memory.
#![no_main]

#[path = "../../crates/dwell-channel/tests/common/fuzzed.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::ring(data));
