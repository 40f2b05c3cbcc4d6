// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of the command share: the command itself, and what it wrote.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The command, which has nothing to read.
pub fn dwell() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.stdin(Stdio::null());
    command
}

/// The command with places of its own below `dir`.
pub fn dwell_in(dir: &Path) -> Command {
    let mut command = dwell();
    command.env("DWELL_PROFILES", dir.join("profiles")).env("DWELL_HOST_PAGE", dir.join("page"));
    command
}

/// What a command wrote.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// What a command wrote to stderr.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
