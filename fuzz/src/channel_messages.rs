// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever comes over a channel's socket.
#![no_main]

#[path = "../../crates/dwell-channel/tests/common/fuzzed.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::messages(data));
