// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are kept. Only here is the environment read.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use dwell::monitor::Config;
use dwell::off::OffSwitch;
use dwell_host::capability::effective_uid;
use dwell_host::places;
use dwell_host::profile::ProfileStore;

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name)
}

fn is_root() -> bool {
    effective_uid() == 0
}

/// The profiles of this user, then those of the machine; for root only these. A directory that was
/// chosen stands alone.
pub fn profiles() -> Result<ProfileStore> {
    places::profiles(is_root(), &variable)
        .context("no directory for profiles: neither DWELL_PROFILES nor HOME is set")
}

/// As [`profiles`], for those who only read them: a service may have no home.
pub fn known_profiles() -> ProfileStore {
    places::known_profiles(is_root(), &variable)
}

/// Settings of the machine, then of this user. Where no user's can be told there is none.
pub fn settings() -> (PathBuf, Option<PathBuf>) {
    places::settings(&variable)
}

/// The page that this user's Dwell processes share.
pub fn host_page() -> PathBuf {
    places::host_page(effective_uid(), &variable)
}

/// Where Dwell is switched off, for the machine and for this user.
pub fn off_switch() -> OffSwitch {
    places::off_switch(effective_uid(), &variable)
}

/// Names the person at the keyboard, as far as that can be told.
pub fn who() -> String {
    let names = ["SUDO_USER", "LOGNAME", "USER"];
    let name = names.into_iter().find_map(|name| env::var(name).ok().filter(|who| !who.is_empty()));
    name.unwrap_or_else(|| format!("user {}", effective_uid()))
}

/// What this program uses, by name.
pub fn used() -> [(&'static str, String); 4] {
    let profiles = known_profiles();
    let (machine, user) = settings();
    let there = |path: PathBuf| match path.exists() {
        true => path.display().to_string(),
        false => format!("{} (not there)", path.display()),
    };
    let listed = |places: [Option<PathBuf>; 2]| {
        places.into_iter().flatten().map(there).collect::<Vec<_>>().join(", ")
    };
    [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("settings", listed([Some(machine), user])),
        ("profiles", listed([Some(profiles.dir), profiles.machine])),
        ("host page", host_page().display().to_string()),
    ]
}

/// How this program's monitor works.
pub fn monitor() -> Config {
    Config { host_page: Some(host_page()), off_switch: off_switch(), ..Config::default() }
}

/// The names of this user, their home and this host, as a bundle must not tell them.
pub fn names() -> Vec<String> {
    let of = |variable| env::var(variable).ok();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    [of("HOME").filter(|home| home != "/"), of("USER"), of("LOGNAME"), Some(host)]
        .into_iter()
        .flatten()
        .filter(|name| !["", "root", "localhost"].contains(&name.as_str()))
        .collect()
}

/// Whether a command's first word names a program, by itself or on the search path.
pub fn is_program(word: &OsStr) -> bool {
    let path = Path::new(word);
    let runs = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if word.as_encoded_bytes().contains(&b'/') {
        return runs(path);
    }
    // Directories to search where no path is set.
    let search = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    !word.is_empty() && env::split_paths(&search).any(|directory| runs(&directory.join(path)))
}

/// What was built or installed with this program: beside it, or in the directories for libraries
/// that belong to its own.
pub fn installed(name: &str) -> Result<PathBuf> {
    let here = own_program()?;
    let dir = here.parent().unwrap_or(Path::new("/"));
    let places = [dir.to_owned(), dir.join("../lib"), dir.join("../lib/dwell")];
    places.iter().map(|place| place.join(name)).find(|file| file.is_file()).with_context(|| {
        format!(
            "{name} is neither beside {} nor in ../lib nor in ../lib/dwell from there; install it",
            here.display()
        )
    })
}

/// The file of this program.
pub fn own_program() -> Result<PathBuf> {
    env::current_exe().context("finding this program's own file")
}

/// The directory with the Valgrind tool: as chosen, or beside this program, or beside its
/// directory.
pub fn trace_tool() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("DWELL_VALGRIND").filter(|value| !value.is_empty()) {
        return Ok(dir.into());
    }
    let here = env::current_exe().unwrap_or_default();
    let tool = dwell_trace::record::TOOL;
    let above = here.ancestors().skip(1).take(3);
    let dirs = above.flat_map(|dir| [dir.join("valgrind"), dir.join("lib/dwell/valgrind")]);
    match dirs.into_iter().find(|dir| dir.join(tool).is_file()) {
        Some(dir) => Ok(dir),
        None => anyhow::bail!(
            "the Valgrind tool {tool} is not beside {}: make trace-tool, or set DWELL_VALGRIND",
            here.display()
        ),
    }
}

/// Where programs are looked for.
pub fn search_path() -> String {
    env::var("PATH").unwrap_or_default()
}

/// Tells the service manager that started this program, if one wants to know.
pub fn tell_service_manager(word: &str) {
    let Some(place) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match place.as_encoded_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&place),
    };
    // A manager that is not there has nothing to learn.
    let _ = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(word.as_bytes(), &to));
}

/// How often the service manager wants to hear that all is well (`WatchdogSec=` of systemd), if it
/// does.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let mine = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|usec| mine && *usec > 0).map(Duration::from_micros)
}

/// Whether the environment asks for output without colours.
pub fn no_colour() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|value| value == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_path_and_by_name() {
        for (word, is) in [("sh", true), ("/bin/sh", true), ("/etc/passwd", false), ("/", false)] {
            assert_eq!(is_program(OsStr::new(word)), is, "{word}");
        }
        assert!(!is_program(OsStr::new("no-such-program")) && !is_program(OsStr::new("")));
    }
}
