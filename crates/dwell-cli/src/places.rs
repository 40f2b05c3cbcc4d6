// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are kept. Only here is the environment read.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};
use dwell::capability::effective_uid;
use dwell::monitor::Config;
use dwell::places;
use dwell::profile::ProfileStore;

/// The profiles of this user, or of the machine for root.
pub fn profiles() -> Result<ProfileStore> {
    let dir = places::profile_dir(effective_uid() == Some(0), &|name| env::var_os(name));
    match dir {
        Some(dir) => Ok(ProfileStore::new(dir)),
        None => bail!("no directory for profiles: neither DWELL_PROFILES nor HOME is set"),
    }
}

/// The page that this user's Dwell processes share.
pub fn host_page() -> PathBuf {
    places::host_page(effective_uid().unwrap_or(0), &|name| env::var_os(name))
}

/// How this program's monitor works.
pub fn monitor() -> Config {
    Config { host_page: Some(host_page()), ..Config::default() }
}

/// Whether the environment asks for output without colours.
pub fn no_colour() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|value| value == "dumb")
}
