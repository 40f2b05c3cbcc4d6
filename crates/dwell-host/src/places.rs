// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the frontends keep things, so that all of them look in the same places. Environment
//! variables are asked of the frontend: the library reads none.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::profile::ProfileStore;
use dwell::monitor::HostPage;
use dwell::off::OffSwitch;

/// Answers with the value of an environment variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where root keeps the machine's profiles.
const OF_ROOT: &str = "/var/lib/dwell/profiles";

fn set(variables: Variables<'_>, name: &str) -> Option<PathBuf> {
    variables(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The profiles of this user, then those of the machine; for root only these. A directory that was
/// chosen stands alone. `None` where neither `DWELL_PROFILES` nor `HOME` is set.
pub fn profiles(root: bool, variables: Variables<'_>) -> Option<ProfileStore> {
    if let Some(chosen) = set(variables, "DWELL_PROFILES") {
        return Some(ProfileStore::new(chosen));
    }
    if root {
        return Some(ProfileStore::new(OF_ROOT));
    }
    // A relative one is to be ignored, says the XDG specification.
    let state = set(variables, "XDG_STATE_HOME").filter(|dir| dir.is_absolute());
    let state = state.or_else(|| set(variables, "HOME").map(|home| home.join(".local/state")))?;
    Some(ProfileStore::new(state.join("dwell/profiles")).or_machine(OF_ROOT))
}

/// As [`profiles`], for those who only read them: a service may have no home.
pub fn known_profiles(root: bool, variables: Variables<'_>) -> ProfileStore {
    profiles(root, variables).unwrap_or_else(|| ProfileStore::new(OF_ROOT))
}

/// Settings of the machine, then of this user. Where no user's can be told there is none.
pub fn settings(variables: Variables<'_>) -> (PathBuf, Option<PathBuf>) {
    let of_user = set(variables, "XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
    let of_user = of_user.or_else(|| set(variables, "HOME").map(|home| home.join(".config")));
    let system = set(variables, "DWELL_SYSTEM_CONFIG");
    let system = system.unwrap_or_else(|| "/etc/dwell/dwell.toml".into());
    (system, of_user.map(|dir| dir.join("dwell/dwell.toml")))
}

/// The page that this user's Dwell processes share.
pub fn host_page(uid: u32, variables: Variables<'_>) -> PathBuf {
    set(variables, "DWELL_HOST_PAGE").unwrap_or_else(|| HostPage::usual(uid))
}

/// Where Dwell is switched off: root's file for the machine, and this user's own beside the host
/// page. `DWELL_OFF` names another in place of root's.
pub fn off_switch(uid: u32, variables: Variables<'_>) -> OffSwitch {
    let usual = OffSwitch::beside(&host_page(uid, variables));
    let machine = set(variables, "DWELL_OFF").unwrap_or(usual.machine);
    OffSwitch { machine, ..usual }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn asked<'a>(set: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
    }

    fn kept(root: bool, set: &[(&str, &str)]) -> Option<(PathBuf, Option<PathBuf>)> {
        profiles(root, &asked(set)).map(|store| (store.dir, store.machine))
    }

    #[test]
    fn the_nearest_choice_wins_and_the_machines_profiles_come_last() {
        let machine = || Some(OF_ROOT.into());
        let home = ("HOME", "/home/a");
        let of_home = "/home/a/.local/state/dwell/profiles".into();
        assert_eq!(kept(false, &[home]), Some((of_home, machine())));
        let state = ("XDG_STATE_HOME", "/state");
        let of_state = "/state/dwell/profiles".into();
        assert_eq!(kept(false, &[home, state]), Some((of_state, machine())));
        assert_eq!(kept(true, &[home, state]), Some((OF_ROOT.into(), None)));
        let own = ("DWELL_PROFILES", "own");
        assert_eq!(kept(true, &[home, state, own]), Some(("own".into(), None)));
    }

    #[test]
    fn an_empty_or_relative_variable_does_not_count() {
        let set = [("DWELL_PROFILES", ""), ("XDG_STATE_HOME", "state"), ("HOME", "/h")];
        let dir = "/h/.local/state/dwell/profiles".into();
        assert_eq!(kept(false, &set), Some((dir, Some(OF_ROOT.into()))));
        assert_eq!(kept(false, &[]), None);
        assert_eq!(known_profiles(false, &|_| None).dir, Path::new(OF_ROOT));
    }

    #[test]
    fn settings_are_those_of_the_machine_and_of_the_user() {
        let of = |set: &[(&str, &str)]| {
            let (system, user) = settings(&asked(set));
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
    fn each_user_has_a_page() {
        assert_eq!(host_page(7, &|_| None), Path::new("/dev/shm/dwell-7"));
        assert_eq!(host_page(7, &|_| Some("/own".into())), Path::new("/own"));
    }

    #[test]
    fn each_user_has_an_off_switch_beside_that_of_the_machine() {
        let usual = off_switch(7, &|_| None);
        assert_eq!(usual.machine, Path::new("/run/dwell-off"));
        assert_eq!(usual.own, Path::new("/dev/shm/dwell-7-off"));
        let set = [("DWELL_HOST_PAGE", "/own"), ("DWELL_OFF", "/o")];
        let chosen = off_switch(7, &asked(&set));
        assert_eq!((chosen.machine, chosen.own), ("/o".into(), "/own-off".into()));
    }
}
