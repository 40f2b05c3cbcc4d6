// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the faces keep things, so that all of them look in the same places. Environment variables
//! are asked of the face: the library reads none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Answers with the value of an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where root keeps the machine's profiles.
const OF_ROOT: &str = "/var/lib/dwell/profiles";

fn set(variables: Variables<'_>, name: &str) -> Option<PathBuf> {
    variables(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The directory that keeps the profiles of this user, or of the machine for root; `None` where
/// neither `DWELL_PROFILES` nor `HOME` is set.
pub fn profile_dir(root: bool, variables: Variables<'_>) -> Option<PathBuf> {
    if let Some(dir) = set(variables, "DWELL_PROFILES") {
        return Some(dir);
    }
    if root {
        return Some(OF_ROOT.into());
    }
    // A relative one is to be ignored, says the XDG specification.
    let state = set(variables, "XDG_STATE_HOME").filter(|dir| dir.is_absolute());
    let state = state.or_else(|| set(variables, "HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("dwell/profiles"))
}

/// The page that this user's Dwell processes share.
pub fn host_page(uid: u32, variables: Variables<'_>) -> PathBuf {
    set(variables, "DWELL_HOST_PAGE")
        .unwrap_or_else(|| Path::new("/dev/shm").join(format!("dwell-{uid}")))
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

    #[test]
    fn each_user_has_a_page() {
        assert_eq!(host_page(7, &|_| None), Path::new("/dev/shm/dwell-7"));
        assert_eq!(host_page(7, &|_| Some("/own".into())), Path::new("/own"));
    }
}
