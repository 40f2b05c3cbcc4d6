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

/// The profiles of this user, or of the machine for root.
pub fn profiles() -> Result<ProfileStore> {
    let dir = profile_dir(effective_uid() == Some(0), &|name| env::var_os(name));
    match dir {
        Some(dir) => Ok(ProfileStore::new(dir)),
        None => bail!("no directory for profiles: neither DWELL_PROFILES nor HOME is set"),
    }
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
