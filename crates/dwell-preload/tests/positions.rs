// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a program's descriptors stand is what the kernel would have made of its calls.

mod common;

use std::fs;
use std::process::Command;

use common::{Ended, Fast, Under, program, skip, untouched};

/// What a mode of the program came to under the library, after it was compared; `None` where it
/// cannot run.
fn compared(mode: &str) -> Option<Ended> {
    let (fast, positions) = match (Fast::new(), program("positions.c")) {
        (Ok(fast), Ok(positions)) => (fast, positions),
        (Err(why), _) | (_, Err(why)) => {
            skip(why);
            return None;
        }
    };
    let (file, other) = (fast.path().join("file"), fast.path().join("other"));
    let mut data = vec![0u8; 1 << 20];
    for (number, block) in data.chunks_mut(4096).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    fs::write(&file, data).unwrap();
    fs::write(&other, vec![b'x'; 1 << 20]).unwrap();
    let command = || {
        let mut command = Command::new(&positions);
        command.arg(mode).arg(&file).arg(&other);
        command
    };
    let without = untouched(&mut command());
    assert!(without.status.success(), "{}", without.stdout);
    let with = Under::policy("spin").run(&mut command());
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status, "{}", with.stderr);
    Some(with)
}

#[test]
fn a_read_that_outlives_its_descriptor_does_not_move_the_file_that_took_the_number() {
    if let Some(ended) = compared("outlived") {
        assert_eq!(ended.stdout, "the number was taken, 0 were moved\n");
        assert!(ended.on_rings() > 100, "{}", ended.on_rings());
    }
}

#[test]
fn flags_that_are_set_amid_a_read_repeat_no_data() {
    if let Some(ended) = compared("flags_amid") {
        assert_eq!(ended.stdout, "0 blocks were not read once each time\n");
        assert!(ended.on_rings() > 100, "{}", ended.on_rings());
    }
}
