// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are kept. Only here is the environment read.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use dwell::capability::effective_uid;
use dwell::monitor::Config;
use dwell::profile::ProfileStore;

/// Where root keeps the machine's profiles.
const OF_ROOT: &str = "/var/lib/dwell/profiles";

/// The profiles of this user, then those of the machine; for root only these. A directory that was
/// chosen stands alone.
pub fn profiles() -> Result<ProfileStore> {
    let dir = profile_dir(effective_uid() == Some(0), &|name| env::var_os(name));
    let chosen = env::var_os("DWELL_PROFILES").is_some_and(|dir| !dir.is_empty());
    match dir {
        Some(dir) if chosen => Ok(ProfileStore::new(dir)),
        Some(dir) => Ok(ProfileStore::new(dir).or_machine(OF_ROOT)),
        None => bail!("no directory for profiles: neither DWELL_PROFILES nor HOME is set"),
    }
}

/// As [`profiles`], for those who only read them: a service may have no home.
pub fn known_profiles() -> ProfileStore {
    profiles().unwrap_or_else(|_| ProfileStore::new(OF_ROOT))
}

/// Settings of the machine, then of this user. Where no user's can be told there is none.
pub fn settings() -> (PathBuf, Option<PathBuf>) {
    settings_files(&|name| env::var_os(name))
}

fn settings_files(variable: &dyn Fn(&str) -> Option<OsString>) -> (PathBuf, Option<PathBuf>) {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = set("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let of_user = of_user.or_else(|| set("HOME").map(|home| home.join(".config")));
    let system = set("DWELL_SYSTEM_CONFIG").unwrap_or_else(|| "/etc/dwell/dwell.toml".into());
    (system, of_user.map(|dir| dir.join("dwell/dwell.toml")))
}

fn profile_dir(root: bool, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("DWELL_PROFILES") {
        return Some(dir);
    }
    if root {
        return Some(OF_ROOT.into());
    }
    // A relative one is to be ignored, says the XDG specification.
    let state = set("XDG_STATE_HOME").filter(|dir| dir.is_absolute());
    let state = state.or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("dwell/profiles"))
}

/// The page that this user's Dwell processes share.
pub fn host_page() -> PathBuf {
    let chosen = env::var_os("DWELL_HOST_PAGE").filter(|value| !value.is_empty());
    chosen.map_or_else(
        || Path::new("/dev/shm").join(format!("dwell-{}", effective_uid().unwrap_or(0))),
        PathBuf::from,
    )
}

/// How this program's monitor works.
pub fn monitor() -> Config {
    Config { host_page: Some(host_page()), ..Config::default() }
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
    // What is searched where no path is set.
    let search = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    !word.is_empty() && env::split_paths(&search).any(|directory| runs(&directory.join(path)))
}

/// Whether the environment asks for output without colours.
pub fn no_colour() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|value| value == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(root: bool, set: &[(&str, &str)]) -> Option<PathBuf> {
        profile_dir(root, &|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_nearest_choice_wins() {
        let home = ("HOME", "/home/a");
        assert_eq!(dir(false, &[home]), Some("/home/a/.local/state/dwell/profiles".into()));
        let state = ("XDG_STATE_HOME", "/state");
        assert_eq!(dir(false, &[home, state]), Some("/state/dwell/profiles".into()));
        assert_eq!(dir(true, &[home, state]), Some(OF_ROOT.into()));
        let own = ("DWELL_PROFILES", "own");
        assert_eq!(dir(true, &[home, state, own]), Some("own".into()));
    }

    #[test]
    fn settings_are_those_of_the_machine_and_of_the_user() {
        let of = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            let (system, user) = settings_files(&variable);
            (system.display().to_string(), user.map(|user| user.display().to_string()))
        };
        let system = "/etc/dwell/dwell.toml".to_owned();
        assert_eq!(of(&[]), (system.clone(), None));
        let home = ("HOME", "/h");
        assert_eq!(of(&[home]), (system.clone(), Some("/h/.config/dwell/dwell.toml".into())));
        let config = ("XDG_CONFIG_HOME", "/c");
        assert_eq!(of(&[home, config]), (system, Some("/c/dwell/dwell.toml".into())));
        assert_eq!(of(&[("DWELL_SYSTEM_CONFIG", "/s.toml")]).0, "/s.toml");
    }

    #[test]
    fn programs_are_found_by_path_and_by_name() {
        for (word, is) in [("sh", true), ("/bin/sh", true), ("/etc/passwd", false), ("/", false)] {
            assert_eq!(is_program(OsStr::new(word)), is, "{word}");
        }
        assert!(!is_program(OsStr::new("no-such-program")) && !is_program(OsStr::new("")));
    }

    #[test]
    fn what_is_empty_or_relative_does_not_count() {
        let set = [("DWELL_PROFILES", ""), ("XDG_STATE_HOME", "state"), ("HOME", "/h")];
        assert_eq!(dir(false, &set), Some("/h/.local/state/dwell/profiles".into()));
        assert_eq!(dir(false, &[]), None);
    }
}
