// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that make life hard for a library beneath them: each goes as without it, and where the
//! engine should be used, it is.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{Ended, Fast, Under, program, skip, untouched};

fn numbered_blocks(path: &Path) {
    let mut data = vec![0u8; 1 << 20];
    for (number, block) in data.chunks_mut(4096).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    fs::write(path, data).unwrap();
}

/// What a scenario came to under the library, after it was compared; `None` where it cannot run.
fn scenario(name: &str) -> Option<Ended> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let (fast, scenarios) = match (Fast::new(), PROGRAM.get_or_init(|| program("scenarios.c"))) {
        (Ok(fast), Ok(scenarios)) => (fast, scenarios),
        (Err(why), _) => {
            skip(why);
            return None;
        }
        (_, Err(why)) => {
            skip(why);
            return None;
        }
    };
    let (file, other) = (fast.path().join("file"), fast.path().join("other"));
    let command = || {
        let mut command = Command::new(scenarios);
        command.arg(name).arg(&file).arg(&other);
        command
    };
    numbered_blocks(&file);
    let without = untouched(&mut command());
    let left = || {
        // Two who append do so in any order.
        let mut other = fs::read(&other).ok();
        if let Some(other) = &mut other {
            other.sort_unstable();
        }
        (fs::read(&file).unwrap(), other)
    };
    let left_without = left();
    numbered_blocks(&file);
    let with = Under::policy("spin").beneath_filters(1).run(&mut command());
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status, "{}", with.stderr);
    assert!(left() == left_without, "a file is another");
    println!("{}", with.stderr);
    Some(with)
}

macro_rules! scenarios {
    ($($name:ident: $ended:pat => $holds:expr;)*) => {$(
        #[test]
        fn $name() {
            let Some(ended) = scenario(stringify!($name)) else { return };
            let $ended = &ended;
            assert!($holds, "{}\n{}", ended.stdout, ended.stderr);
        }
    )*};
}

scenarios! {
    // Only what was read before the first child is the parent's alone.
    shared_offset: ended => ended.on_rings() == 1;
    children: ended => ended.on_rings() > 2500;
    forks_amid_threads: ended => ended.on_rings() > 5000;
    vforks: ended => ended.on_rings() > 80;
    spawns: ended => ended.on_rings() > 800;
    inherits: ended => ended.on_rings() > 150;
    threads_share: ended => ended.on_rings() > 100;
    reads_in_handlers: ended => ended.on_rings() > 300;
    jumps_out: ended => ended.on_rings() > 1000;
    cancels: ended => ended.on_rings() > 400;
    reused: ended => ended.on_rings() > 150;
    rings_forbidden: ended => ended.on_rings() == 0;
    rings_deadly: ended => ended.on_rings() == 0;
    deadly_later: _ended => true;
    few_descriptors: _ended => true;
    closes_everything: ended => !ended.stdout.contains("dwell");
    lowest_numbers: ended => ended.on_rings() > 100;
    appends: _ended => true;
    file_limit: ended => ended.decided() > 2;
    small_stacks: ended => ended.on_rings() > 500;
    leaves_at_once: ended => ended.on_rings() > 200;
}
