// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory that keeps profiles: one JSON file per device, kernel and scheduler.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::capability::profiled_release;

use super::{DeviceProfile, ProfileError, SCHEMA, damage};
use dwell::device::Device;

/// No profile is this long; what is, was never one.
const LONGEST_BYTES: u64 = 16 << 20;
/// Longest name of a profile; with a suffix it stays below the 255 bytes of a file name.
const LONGEST_NAME: usize = 200;

/// Keeps the profiles of a machine in one directory.
#[derive(Clone, Debug)]
pub struct ProfileStore {
    /// The directory; made when the first profile is saved.
    pub dir: PathBuf,
    /// Where a profile is looked for that is not in `dir`. Nothing is written there.
    pub machine: Option<PathBuf>,
}

/// One file of a store.
#[derive(Debug)]
pub struct Listed {
    /// Name of the profile: the file's, without `.json`.
    pub name: String,
    /// The profile, or why it cannot be used.
    pub profile: Result<DeviceProfile, ProfileError>,
}

impl Listed {
    /// Whether it is of the kernel that runs, as its name tells.
    pub fn is_of_this_kernel(&self) -> bool {
        self.name.split('@').nth(1) == Some(escape(&profiled_release()).as_str())
    }
}

impl ProfileStore {
    /// A store in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        ProfileStore { dir: dir.into(), machine: None }
    }

    /// The same, where a profile that is not kept there is looked for in `dir` too: what root has
    /// probed serves every user.
    #[must_use]
    pub fn or_machine(self, dir: impl Into<PathBuf>) -> Self {
        let machine = Some(dir.into()).filter(|dir| *dir != self.dir);
        ProfileStore { machine, ..self }
    }

    /// The profile of a device, or of the whole disk where `device` is a partition, as measured
    /// under this kernel and scheduler; `None` when none was.
    pub fn load(
        &self,
        device: &Device,
        kernel_release: &str,
        scheduler: &str,
    ) -> Result<Option<DeviceProfile>, ProfileError> {
        self.load_by_id(&device.whole().id, kernel_release, scheduler)
    }

    /// As [`ProfileStore::load`], by the identity that a profile carries.
    pub(super) fn load_by_id(
        &self,
        id: &str,
        kernel_release: &str,
        scheduler: &str,
    ) -> Result<Option<DeviceProfile>, ProfileError> {
        let name = name_of(id, kernel_release, scheduler);
        let mut path = self.path(&name);
        let mut found = read(&path, &name)?;
        if let (None, Some(machine)) = (&found, &self.machine) {
            path = ProfileStore::new(machine).path(&name);
            found = match read(&path, &name) {
                // What this user may not see is not there for him.
                Err(ProfileError::Io { error, .. })
                    if error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    None
                }
                read => read?,
            };
        }
        let Some(profile) = found else { return Ok(None) };
        for (field, found, expected) in [
            ("device_id", &profile.device_id, id),
            ("kernel_release", &profile.kernel_release, kernel_release),
            ("scheduler", &profile.scheduler, scheduler),
        ] {
            if found != expected {
                let (found, expected) = (found.clone(), expected.to_owned());
                return Err(ProfileError::Foreign { path, name, field, found, expected });
            }
        }
        Ok(Some(profile))
    }

    /// Keeps a profile, in place of an earlier one of the same device, kernel and scheduler, and
    /// returns its file. A crash leaves the earlier one or the new one, never a part of either.
    pub fn save(&self, profile: &DeviceProfile) -> Result<PathBuf, ProfileError> {
        static SAVES: AtomicU64 = AtomicU64::new(0);

        let name = name_of(&profile.device_id, &profile.kernel_release, &profile.scheduler);
        let path = self.path(&name);
        if let Err((field, why)) = profile.check() {
            return Err(ProfileError::Range { path, name, field, why });
        }
        let failed = |error| ProfileError::Io { path: path.clone(), action: "write", error };
        let mut text = serde_json::to_string_pretty(profile).map_err(|e| failed(e.into()))?;
        text.push('\n');
        fs::create_dir_all(&self.dir).map_err(failed)?;
        let number = SAVES.fetch_add(1, Ordering::Relaxed);
        let draft = self.dir.join(format!(".draft-{}-{number}", std::process::id()));
        let written = replace(&draft, &path, text.as_bytes());
        if written.is_err() {
            // The draft is of no use to anyone; the first error is the one to report.
            let _ = fs::remove_file(&draft);
        }
        written.map_err(failed)?;
        Ok(path)
    }

    /// All profiles, by name. One that cannot be used is listed with the reason.
    pub fn list(&self) -> Result<Vec<Listed>, ProfileError> {
        let failed = |error| ProfileError::Io { path: self.dir.clone(), action: "list", error };
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let Ok(file) = entry.map_err(failed)?.file_name().into_string() else { continue };
            let Some(name) = file.strip_suffix(".json").filter(|name| !name.starts_with('.'))
            else {
                continue;
            };
            // One that another process removed meanwhile is no longer there to be listed.
            if let Some(profile) = read(&self.path(name), name).transpose() {
                listed.push(Listed { name: name.to_owned(), profile });
            }
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    /// The profile of that name, or all of the device of that identity; damaged ones with the
    /// reason.
    pub fn find(&self, name_or_id: &str) -> Result<Vec<Listed>, ProfileError> {
        let mut found = self.list()?;
        if found.iter().any(|listed| listed.name == name_or_id) {
            found.retain(|listed| listed.name == name_or_id);
            return Ok(found);
        }
        let prefix = format!("{}@", escape(name_or_id));
        found.retain(|listed| match &listed.profile {
            Ok(profile) => profile.device_id == name_or_id,
            Err(_) => listed.name.starts_with(&prefix),
        });
        if found.is_empty() {
            return Err(ProfileError::Absent { dir: self.dir.clone(), asked: name_or_id.into() });
        }
        Ok(found)
    }

    /// Removes what [`ProfileStore::find`] finds, damaged profiles as well, and returns the names.
    pub fn remove(&self, name_or_id: &str) -> Result<Vec<String>, ProfileError> {
        let names: Vec<_> = self.find(name_or_id)?.into_iter().map(|listed| listed.name).collect();
        for name in &names {
            let path = self.path(name);
            fs::remove_file(&path).map_err(|error| ProfileError::Io {
                path,
                action: "remove",
                error,
            })?;
        }
        Ok(names)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }
}

fn replace(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(draft, path)?;
    // The rename itself survives a crash only once the directory is on disk.
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_all(),
        None => Ok(()),
    }
}

/// Reads and checks one file; `None` when it is not there.
fn read(path: &Path, name: &str) -> Result<Option<DeviceProfile>, ProfileError> {
    let damaged = |field: &str, why: String| ProfileError::Damaged {
        path: path.to_owned(),
        name: name.to_owned(),
        field: field.to_owned(),
        why,
    };
    let failed = |error| ProfileError::Io { path: path.to_owned(), action: "read", error };
    let facts = match fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !facts.is_file() || facts.len() > LONGEST_BYTES {
        return Err(damaged("the file", "is no profile of at most 16 MiB".into()));
    }
    let bytes = fs::read(path).map_err(failed)?;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            return Err(damaged(&format!("byte {}", error.valid_up_to()), "is no UTF-8".into()));
        }
    };

    // The version first: what follows it may have another shape.
    #[derive(serde::Deserialize)]
    struct Head {
        schema: u64,
    }
    let stumbled = |error: serde_json::Error| {
        // The place is told as a field; the message's own line and column would repeat it.
        let why = error.to_string();
        let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
        damaged(&damage::field_at(text, error.line(), error.column()), why.to_owned())
    };
    let head: Head = serde_json::from_str(text).map_err(stumbled)?;
    if head.schema != u64::from(SCHEMA) {
        return Err(ProfileError::Schema { path: path.to_owned(), found: head.schema });
    }
    let profile: DeviceProfile = serde_json::from_str(text).map_err(stumbled)?;
    profile.check().map_err(|(field, why)| ProfileError::Range {
        path: path.to_owned(),
        name: name.to_owned(),
        field,
        why,
    })?;
    Ok(Some(profile))
}

/// Name of the profile of a device under one kernel and scheduler. No two share a name, because
/// `@`, `%` and `~` are escaped inside the parts.
fn name_of(id: &str, kernel_release: &str, scheduler: &str) -> String {
    let name = [id, kernel_release, scheduler].map(escape).join("@");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    // Too long for a file name: what was cut off is told apart by its FNV-1a hash, and the
    // content of the file decides.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}~{hash:016x}", &name[..LONGEST_NAME - 17])
}

/// Letters, digits and `. _ : + -` stay; other bytes become `%2F`. A leading dot goes too: it
/// would hide the file.
fn escape(part: &str) -> String {
    let mut escaped = String::with_capacity(part.len());
    for (at, byte) in part.bytes().enumerate() {
        match byte {
            b'.' if at > 0 => escaped.push('.'),
            b'_' | b':' | b'+' | b'-' => escaped.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => escaped.push(byte.into()),
            // Writing to a String cannot fail.
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_different_triples_never_meet() {
        let names = [
            name_of("a", "b@c", "d"),
            name_of("a@b", "c", "d"),
            name_of("a%40b", "c", "d"),
            name_of("a/b", "c", "d"),
            name_of("a_b", "c", "d"),
            name_of(".a", "c", "d"),
            name_of(&"x".repeat(300), "c", "d"),
            name_of(&"x".repeat(300), "c", "e"),
            name_of(&"x".repeat(301), "c", "d"),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
            assert!(!name.contains('/') && !name.starts_with('.') && name.len() <= LONGEST_NAME);
        }
    }

    #[test]
    fn a_usual_name_can_be_read() {
        let name = name_of("nvme:Fast_Drive:S1:n1", "6.18.44", "mq-deadline");
        assert_eq!(name, "nvme:Fast_Drive:S1:n1@6.18.44@mq-deadline");
    }
}
