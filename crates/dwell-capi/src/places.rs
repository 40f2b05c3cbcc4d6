// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where profiles and settings are kept, and what the processes of this host share, as the command
//! has it. Only here is the environment read.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::sync::Arc;

use dwell::monitor::{Config, SystemMonitor};
use dwell_host::capability::effective_uid;
use dwell_host::places;
use dwell_host::profile::ProfileStore;
use dwell_host::settings::{LayerError, Settings};

/// A program with more rights than who started it does not believe that one's environment.
fn variable(name: &str) -> Option<OsString> {
    // SAFETY: asks for a word that the kernel gave this process.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if raised { None } else { env::var_os(name) }
}

/// The profiles of this user, then those of the machine.
pub(crate) fn profiles() -> ProfileStore {
    places::known_profiles(effective_uid() == 0, &variable)
}

/// What the settings of the machine and of this user say.
pub(crate) fn settings() -> Result<Settings, LayerError> {
    let (system, user) = places::settings(&variable);
    let mut settings = Settings::default();
    for path in [Some(system), user].into_iter().flatten() {
        settings = settings.under(Settings::of_file(&path)?.unwrap_or_default());
    }
    Ok(settings)
}

/// The system monitor of this process.
pub(crate) fn monitor(settings: &Settings) -> std::io::Result<Arc<SystemMonitor>> {
    let user = effective_uid();
    let host_page = Some(places::host_page(user, &variable));
    let off_switch = places::off_switch(user, &variable);
    let spin_cap = settings.general().spin_cap.map(|set| set.value);
    SystemMonitor::shared_with(Config { host_page, off_switch, spin_cap, ..Config::default() })
}
