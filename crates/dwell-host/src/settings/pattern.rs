// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns with `*`, `?`, `[…]` and `**`, as settings name devices, files and programs by them.

use std::fmt;
use std::path::Path;

use glob::MatchOptions;
use serde::{Deserialize, Serialize};

/// A pattern. Matching one neither allocates nor locks, unless a path is not UTF-8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(glob::Pattern);

/// In a path `*` stays within one component.
const OF_PATHS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};
/// In a device's names a slash is a character like any other.
const OF_NAMES: MatchOptions = MatchOptions { require_literal_separator: false, ..OF_PATHS };

impl Pattern {
    /// A pattern from its text.
    ///
    /// # Errors
    /// The fault of the pattern, and where it is.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern matches nothing; \"*\" matches everything".to_owned());
        }
        let wrong = |error: glob::PatternError| {
            format!("{text:?} is no pattern: {} (character {})", error.msg, error.pos + 1)
        };
        glob::Pattern::new(text).map(Pattern).map_err(wrong)
    }

    /// A pattern that a path may match at all: it begins with `/` or `**/`, or has no slash in it.
    ///
    /// # Errors
    /// The fault of the pattern.
    pub fn of_path(text: &str) -> Result<Self, String> {
        of_path(text)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether it matches a name of a device.
    pub(super) fn matches_name(&self, name: &str) -> bool {
        self.0.matches_with(name, OF_NAMES)
    }

    /// Whether it matches an absolute path, or, without a slash in it, the path's last component.
    pub fn matches_path(&self, path: &Path) -> bool {
        let part = match self.as_str().contains('/') {
            true => Some(path.as_os_str()),
            false => path.file_name(),
        };
        part.is_some_and(|part| self.0.matches_with(&part.to_string_lossy(), OF_PATHS))
    }
}

/// A pattern that a path may match at all.
pub(super) fn of_path(text: &str) -> Result<Pattern, String> {
    let pattern = Pattern::new(text)?;
    match text {
        _ if !text.contains('/') || text.starts_with('/') || text.starts_with("**/") => Ok(pattern),
        _ => Err(format!(
            "{text:?} matches no path; start it with / or **/, or name a file without any slash"
        )),
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Pattern::new(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.as_str().to_owned()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_a_component_of_a_path() {
        for (pattern, path, expected) in [
            ("/var/lib/*", "/var/lib/a", true),
            ("/var/lib/*", "/var/lib/a/b", false),
            ("/var/lib/**", "/var/lib/a/b", true),
            ("/var/lib/**", "/var/library", false),
            ("**/pg_wal/*", "/srv/pg/pg_wal/0001", true),
            ("*.log", "/var/log/a.log", true),
            ("*.log", "/var/a.log/b", false),
            ("redis-[a-z]*", "/usr/bin/redis-server", true),
            ("/usr/bin/redis", "/usr/bin/redis-server", false),
        ] {
            let matched = of_path(pattern).unwrap().matches_path(path.as_ref());
            assert_eq!(matched, expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_star_in_a_devices_name_crosses_slashes() {
        let pattern = Pattern::new("loop:*").unwrap();
        assert!(pattern.matches_name("loop:file:/srv/image"));
        assert!(!pattern.matches_name("nvme:x"));
    }

    #[test]
    fn a_pattern_that_cannot_match_is_refused() {
        assert!(of_path("lib/x").unwrap_err().contains("start it with /"));
        assert!(of_path("/a/**b").unwrap_err().contains("character"));
        assert!(Pattern::new("").unwrap_err().contains("empty"));
        assert!(Pattern::new("[a").is_err());
    }
}
