// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests in a process of their own, with one thread, so that it may fork, install handlers and die.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// What tells a test's own process that it is one.
pub const CHILD: &str = "DWELL_PAGER_TEST_CHILD";

/// Whether this process is a test's own.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// What the test's own process was told.
pub fn told() -> String {
    std::env::var(CHILD).unwrap_or_default()
}

fn run(test: &str, word: &str) -> (ExitStatus, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, word)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if let Some(line) = text.lines().find(|line| line.contains("SKIP: ")) {
        println!("{line}");
    }
    (output.status, text.into_owned())
}

/// Runs this test in a process of its own, which is to succeed.
pub fn succeeds(test: &str, word: &str) {
    let (status, text) = run(test, word);
    assert!(status.success() && text.contains("1 passed"), "{status}: {text}");
}

/// Runs this test in a process of its own, which is to die of a signal (or to skip).
pub fn dies(test: &str, word: &str, signals: &[i32]) {
    let (status, text) = run(test, word);
    let signal = status.signal();
    let skipped = text.contains("SKIP: ");
    assert!(skipped || signal.is_some_and(|signal| signals.contains(&signal)), "{status}: {text}");
}

/// Starts this test in a process of its own and does not wait for it.
pub fn started(test: &str, word: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, word)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs `work` in a forked child; its exit status, or the negative signal that ended it.
pub fn forked(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: this process has one thread; the child runs `work` and ends without running anything
    // of the parent's.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
            // SAFETY: as above.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: a child of this process and a live integer.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            if libc::WIFSIGNALED(status) {
                -libc::WTERMSIG(status)
            } else {
                libc::WEXITSTATUS(status)
            }
        }
    }
}
