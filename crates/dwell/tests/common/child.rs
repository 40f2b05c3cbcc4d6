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

/// Runs `work` in a forked child of the calling thread; whether it came to its end.
pub fn forked(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs `work`, which takes no lock that another thread could hold but the
    // allocator's, which glibc makes usable (and there is none: it is alone in its process); then
    // it ends without running anything of the parent's.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            // SAFETY: as above.
            unsafe { libc::_exit(if done { 0 } else { 1 }) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: a child of this process and a live integer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status == 0
        }
    }
}
