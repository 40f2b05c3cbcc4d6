// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results and a description of the machine in one file that tells nothing of its owner.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// Version of the JSON of a [`Bundle`].
pub const SCHEMA: u32 = 1;

/// Directories whose paths are the same on every machine.
const COMMON: [&str; 7] = ["/dev/", "/sys/", "/proc/", "/usr/", "/bin/", "/lib", "/etc/dwell"];
/// Fields whose values name one piece of hardware, or one process.
const IDS: [&str; 3] = ["id", "serial", "pid"];

/// What a user attaches to an issue.
#[derive(Debug, Serialize)]
pub struct Bundle {
    /// [`SCHEMA`] of the code that wrote it.
    pub schema: u32,
    /// Version of Dwell.
    pub version: &'static str,
    /// What `dwell doctor --json` prints.
    pub doctor: Value,
    /// `result.json` of each measurement, in the order in which they were named.
    pub results: Vec<Value>,
}

impl Bundle {
    /// A bundle of which paths, hardware ids and `names` (of the user, the host, the home) are
    /// replaced. The same text gets the same replacement everywhere.
    pub fn new(doctor: Value, results: Vec<Value>, names: &[String]) -> Bundle {
        let mut hidden = Hidden { names, known: BTreeMap::new() };
        Bundle {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            doctor: hidden.value("", doctor),
            results: results.into_iter().map(|one| hidden.value("", one)).collect(),
        }
    }
}

struct Hidden<'a> {
    names: &'a [String],
    known: BTreeMap<String, String>,
}

impl Hidden<'_> {
    fn value(&mut self, field: &str, value: Value) -> Value {
        match value {
            Value::String(text) if IDS.contains(&field) => Value::String(self.instead("ID", &text)),
            Value::Number(_) if IDS.contains(&field) => Value::Null,
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(all) => all.into_iter().map(|one| self.value(field, one)).collect(),
            Value::Object(all) => all
                .into_iter()
                .map(|(name, one)| {
                    let hidden = self.value(&name, one);
                    (self.text(&name), hidden)
                })
                .collect(),
            other => other,
        }
    }

    fn instead(&mut self, kind: &str, text: &str) -> String {
        let next = self.known.len() + 1;
        self.known.entry(text.to_owned()).or_insert_with(|| format!("{kind}-{next}")).clone()
    }

    /// Words that are paths or have a name in them are replaced; what parts them stays.
    fn text(&mut self, text: &str) -> String {
        let parts = |c: char| c.is_whitespace() || "\"'`,;()=".contains(c);
        let mut hidden = String::new();
        for piece in text.split_inclusive(parts) {
            let word = piece.trim_end_matches(parts);
            let rest = &piece[word.len()..];
            let is_path = word.starts_with('/') && word.len() > 1;
            let is_common = COMMON.iter().any(|common| word.starts_with(common));
            let is_named = self.names.iter().any(|name| names(word, name));
            match (is_path && !is_common) || is_named {
                true => hidden += &self.instead("PATH", word),
                false => hidden += word,
            }
            hidden += rest;
        }
        hidden
    }
}

/// Whether a word has the name in it, not as a part of another one.
fn names(word: &str, name: &str) -> bool {
    let ends = |rest: Option<char>| !rest.is_some_and(char::is_alphanumeric);
    !name.is_empty()
        && word.match_indices(name).any(|(at, found)| {
            ends(word[..at].chars().next_back()) && ends(word[at + found.len()..].chars().next())
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bundle_tells_nothing_of_its_owner_and_keeps_what_was_measured() {
        let doctor = json!({
            "devices": [{"name": "nvme0n1", "id": "nvme-Vendor_S3RI4L", "why": "/dev/nvme0n1 is fast"}],
            "profiles": "/home/ada/.local/share/dwell",
        });
        let result = json!({
            "command": ["dwell", "bench", "io", "/srv/secret/data.db", "--out=/home/ada/x"],
            "devices": [{"name": "data.db", "description": "/srv/secret/data.db on turing, ext4"}],
            "rows": [{"iops": 12345.5, "policy": "adaptive"}],
        });
        let names = ["ada".to_owned(), "turing".to_owned()];
        let bundle = Bundle::new(doctor, vec![result], &names);
        let text = serde_json::to_string(&bundle).unwrap();
        for secret in ["ada/", "turing", "secret", "S3RI4L", "/home", "/srv"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        for kept in ["nvme0n1", "/dev/nvme0n1 is fast", "12345.5", "adaptive", "ext4"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        // The same path is the same word, so that a reader can follow it.
        let result = &bundle.results[0];
        let path = result["command"][3].as_str().unwrap();
        assert!(result["devices"][0]["description"].as_str().unwrap().starts_with(path));
    }
}
