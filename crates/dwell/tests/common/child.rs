// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests in a process of their own.

use std::path::PathBuf;
use std::process::Command;

use super::machine::{disk, pattern_file};

const CHILD: &str = "DWELL_TEST_CHILD";

/// Runs one test of this program again, in a process of its own, where it finds `CHILD` set to the
/// path of a file.
pub fn in_a_child_with_a_file(test: &str) {
    let place = disk();
    let file = place.path().join("file");
    pattern_file(&file, 64 << 10, 5);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, &file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
    if let Some(line) = text.lines().find(|line| line.contains("SKIP: ")) {
        println!("{line}");
    }
}

/// The path, where this process is such a child.
pub fn child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}
