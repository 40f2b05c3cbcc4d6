// SPDX-License-Identifier: MIT OR Apache-2.0
//! Children that end with their parent.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets what the command starts end with the *thread* that starts it, however that ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two system calls and builds an error without
    // allocating, all of which is allowed there.
    unsafe { command.pre_exec(move || die_with(parent)) };
}

/// In a child before exec: asks for SIGKILL when the parent ends, and fails if it already has.
pub(crate) fn die_with(parent: u32) -> std::io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    match std::os::unix::process::parent_id() {
        id if id == parent => Ok(()),
        _ => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}
