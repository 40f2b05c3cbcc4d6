// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a settings file, and what may be wrong with it.

use std::path::{Path, PathBuf};

use dwell_policy::policy::CpuSignal;
use dwell_policy::{DeviceClass, Goal};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::pattern::{self, Pattern};
use super::{DeviceRule, Origin, Set, Settings, Waiting};
use dwell::share::Share;
use dwell::{policies, spelling};

const LARGEST_REQUEST_BYTES: u64 = dwell::file::MAX_TRANSFER_BYTES as u64;

/// An error in a settings file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{origin}:{line}: {}{what}", key.as_deref().map(|key| format!("{key}: ")).unwrap_or_default())]
pub struct SettingsError {
    /// The file.
    pub origin: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The key, such as `device[1].size_threshold`; `None` where the text is not TOML.
    pub key: Option<String>,
    /// The fault, and what is allowed.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    policy: Option<Spanned<Policy>>,
    goal: Option<Spanned<Goal>>,
    cpu_threshold: Option<Spanned<Fraction>>,
    queue_limit: Option<Spanned<u32>>,
    cpu_signal: Option<Spanned<CpuSignal>>,
    steer: Option<Spanned<Share>>,
    leave_alone_ms: Option<Spanned<u32>>,
    #[serde(alias = "observe")]
    shadow: Option<Spanned<bool>>,
    spin_cap: Option<Spanned<Fraction>>,
    #[serde(default)]
    device: Vec<RawDevice>,
    #[serde(default)]
    exclude: RawExclude,
    #[serde(default)]
    probe: RawProbe,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    r#match: Spanned<Pattern>,
    policy: Option<Spanned<Policy>>,
    goal: Option<Spanned<Goal>>,
    cpu_threshold: Option<Spanned<Fraction>>,
    queue_limit: Option<Spanned<u32>>,
    cpu_signal: Option<Spanned<CpuSignal>>,
    steer: Option<Spanned<Share>>,
    class: Option<Spanned<DeviceClass>>,
    size_threshold: Option<Spanned<Bytes>>,
    largest_threshold: Option<Spanned<Bytes>>,
    exclude: Option<Spanned<bool>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawExclude {
    paths: Vec<Spanned<PathPattern>>,
    programs: Vec<Spanned<PathPattern>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawProbe {
    on_add: Option<Spanned<bool>>,
}

/// The name of a policy that is known.
struct Policy(String);

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        match policies::by_name(&name) {
            Some(_) => Ok(Policy(name)),
            None => {
                let known = policies::names().join(", ");
                Err(de::Error::custom(format!("{name:?} is no policy; there are {known}")))
            }
        }
    }
}

/// A pattern of paths.
struct PathPattern(Pattern);

impl<'de> Deserialize<'de> for PathPattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        pattern::of_path(&text).map(PathPattern).map_err(de::Error::custom)
    }
}

/// A size: a number of bytes, or a text with a unit.
struct Bytes(u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = u64;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a size such as 65536 or \"64KiB\"")
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
                u64::try_from(bytes).map_err(|_| E::custom("a size is not negative"))
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<u64, E> {
                Ok(bytes)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
                spelling::bytes(text).map_err(E::custom)
            }
        }
        let bytes = from.deserialize_any(Size)?;
        match bytes {
            0 => Err(de::Error::custom(
                "a request has at least 1 byte; policy = \"block\" never spins",
            )),
            1..=LARGEST_REQUEST_BYTES => Ok(Bytes(bytes)),
            _ => Err(de::Error::custom("one request moves less than 2GiB; write a smaller size")),
        }
    }
}

/// A fraction: a number 0–1, or a text in percent.
struct Fraction(f32);

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Share;
        impl Visitor<'_> for Share {
            type Value = f32;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a fraction such as 0.3 or \"30%\"")
            }
            fn visit_f64<E: de::Error>(self, share: f64) -> Result<f32, E> {
                match (0.0..=1.0).contains(&share) {
                    true => Ok(share as f32),
                    false => Err(E::custom(format!("{share} is out of range; write 0 to 1"))),
                }
            }
            fn visit_i64<E: de::Error>(self, share: i64) -> Result<f32, E> {
                self.visit_f64(share as f64)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<f32, E> {
                spelling::fraction(text).map_err(E::custom)
            }
        }
        from.deserialize_any(Share).map(Fraction)
    }
}

/// Turns places in a text into origins.
struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn error(&self, span: Option<std::ops::Range<usize>>, path: &str, what: &str) -> SettingsError {
        let at = span.map_or(0, |span| span.start);
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let path: Vec<&str> =
            path.split('.').filter(|part| !part.is_empty() && !part.starts_with('$')).collect();
        let mut key = path.join(".");
        // An unknown key is named by the message; the path may end at the table that holds it.
        if let Some(name) = what.strip_prefix("unknown field `").and_then(|w| w.split('`').next())
            && path.last() != Some(&name)
        {
            key = if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        }
        let what = match nearest(&what) {
            Some(near) => format!("there is no such key; did you mean `{near}`?"),
            None => what,
        };
        SettingsError {
            origin: self.file.to_owned(),
            line: self.line(at),
            key: (!key.is_empty()).then_some(key),
            what,
        }
    }

    fn set<T, U>(&self, spanned: Spanned<T>, value: impl FnOnce(T) -> U) -> Set<U> {
        let line = self.line(spanned.span().start);
        let origin = Origin::File { path: self.file.to_owned(), line };
        Set { value: value(spanned.into_inner()), origin }
    }

    fn maybe<T, U>(
        &self,
        spanned: Option<Spanned<T>>,
        value: impl FnOnce(T) -> U,
    ) -> Option<Set<U>> {
        spanned.map(|spanned| self.set(spanned, value))
    }

    fn patterns(&self, patterns: Vec<Spanned<PathPattern>>) -> Vec<Set<Pattern>> {
        patterns.into_iter().map(|pattern| self.set(pattern, |p| p.0)).collect()
    }

    fn device(&self, raw: RawDevice) -> DeviceRule {
        DeviceRule {
            pattern: self.set(raw.r#match, |pattern| pattern),
            waiting: Waiting {
                policy: self.maybe(raw.policy, |policy| policy.0),
                goal: self.maybe(raw.goal, |goal| goal),
                cpu_threshold: self.maybe(raw.cpu_threshold, |share| share.0),
                queue_limit: self.maybe(raw.queue_limit, |limit| limit),
                cpu_signal: self.maybe(raw.cpu_signal, |signal| signal),
                steer: self.maybe(raw.steer, |share| share),
            },
            class: self.maybe(raw.class, |class| class),
            size_threshold_bytes: self.maybe(raw.size_threshold, |size| size.0),
            largest_threshold_bytes: self.maybe(raw.largest_threshold, |size| size.0),
            exclude: self.maybe(raw.exclude, |on| on),
        }
    }
}

/// For a key that the message calls unknown: the one of those expected that it was meant to be.
fn nearest(what: &str) -> Option<&str> {
    let mut names = what.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = names.next()?;
    let (far, near) = names.map(|name| (distance(unknown, name), name)).min()?;
    (far <= unknown.len().div_ceil(3)).then_some(near)
}

/// How many letters differ: inserted, left out, replaced, or exchanged with the next one.
fn distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut before: Vec<usize> = vec![0; to.len() + 1];
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = last[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

/// Reads the text of the file `origin`.
pub(super) fn parse(text: &str, origin: &Path) -> Result<Settings, SettingsError> {
    let reader = Reader { file: origin, text };
    let document = toml::Deserializer::parse(text)
        .map_err(|error| reader.error(error.span(), "", error.message()))?;
    let raw: Raw = serde_path_to_error::deserialize(document).map_err(|error| {
        let path = error.path().to_string();
        reader.error(error.inner().span(), &path, error.inner().message())
    })?;
    Ok(Settings {
        waiting: Waiting {
            policy: reader.maybe(raw.policy, |policy| policy.0),
            goal: reader.maybe(raw.goal, |goal| goal),
            cpu_threshold: reader.maybe(raw.cpu_threshold, |share| share.0),
            queue_limit: reader.maybe(raw.queue_limit, |limit| limit),
            cpu_signal: reader.maybe(raw.cpu_signal, |signal| signal),
            steer: reader.maybe(raw.steer, |share| share),
        },
        leave_alone_ms: reader.maybe(raw.leave_alone_ms, |ms| ms),
        shadow: reader.maybe(raw.shadow, |on| on),
        spin_cap: reader.maybe(raw.spin_cap, |share| share.0),
        probe_on_add: reader.maybe(raw.probe.on_add, |on| on),
        devices: raw.device.into_iter().map(|device| reader.device(device)).collect(),
        excluded_paths: reader.patterns(raw.exclude.paths),
        excluded_programs: reader.patterns(raw.exclude.programs),
    })
}
