// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where things are kept. Only here is the environment read.

use std::env;
use std::ffi::OsString;
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

/// The directory with the Valgrind tool: as chosen, or beside this program, or beside its directory.
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
        None => bail!(
            "the Valgrind tool {tool} is not beside {}: make trace-tool, or set DWELL_VALGRIND",
            here.display()
        ),
    }
}

/// Where programs are looked for.
pub fn search_path() -> String {
    env::var("PATH").unwrap_or_default()
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
    fn what_is_empty_or_relative_does_not_count() {
        let set = [("DWELL_PROFILES", ""), ("XDG_STATE_HOME", "state"), ("HOME", "/h")];
        assert_eq!(dir(false, &set), Some("/h/.local/state/dwell/profiles".into()));
        assert_eq!(dir(false, &[]), None);
    }
}
