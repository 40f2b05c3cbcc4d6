// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where profiles are kept and what the processes of this host share, as the command has it. Only
//! here is the environment read.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use dwell::capability::effective_uid;
use dwell::monitor::{Config, SystemMonitor};
use dwell::places;
use dwell::profile::ProfileStore;

/// A program with more rights than who started it does not believe that one's environment.
fn variable(name: &str) -> Option<OsString> {
    // SAFETY: asks for a word that the kernel gave this process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if raised { None } else { env::var_os(name) }
}

/// The profiles of this user, or of the machine for root; `None` where there is no place for them.
pub(crate) fn profiles() -> Option<ProfileStore> {
    places::profile_dir(effective_uid() == Some(0), &variable).map(ProfileStore::new)
}

/// The system monitor of this process.
pub(crate) fn monitor() -> std::io::Result<Arc<SystemMonitor>> {
    let host_page: PathBuf = places::host_page(effective_uid().unwrap_or(0), &variable);
    SystemMonitor::shared_with(Config { host_page: Some(host_page), ..Config::default() })
}
