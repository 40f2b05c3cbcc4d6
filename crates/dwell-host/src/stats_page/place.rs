// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of stats_pages: whose it may be, what lies in it, and how its files are opened.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dwell::error::{Error, Result};
use dwell::monitor::sys::effective_uid;

/// How long somebody waits for the directory's lock: its holders need microseconds, but one may
/// have been stopped.
const PATIENCE: (u32, Duration) = (50, Duration::from_millis(4));

/// Makes the directory if it is missing, for its owner alone.
pub(super) fn made(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("make the directory", dir, None, error))
        }
        _ => checked(dir),
    }
}

/// Refuses a directory that somebody else could have prepared or could write to.
pub(super) fn checked(dir: &Path) -> Result<()> {
    let found =
        fs::symlink_metadata(dir).map_err(|error| Error::io("look at", dir, None, error))?;
    let (owner, me, mode) = (found.uid(), effective_uid(), found.mode() & 0o7777);
    let what = if !found.is_dir() {
        "is no directory; remove it, or choose another place for stats_pages".to_owned()
    } else if owner != me {
        format!("belongs to user {owner}, not to {me}; choose another place for stats_pages")
    } else if mode & 0o022 != 0 {
        format!("may be written by others (mode {mode:04o}); chmod 700 it")
    } else {
        return Ok(());
    };
    Err(Error::invalid(dir, what))
}

/// A lock that whoever changes several things in the directory holds.
pub(super) fn locked(dir: &Path) -> Result<File> {
    let refused = |error| Error::io("lock", dir, None, error);
    let handle = File::open(dir).map_err(refused)?;
    for _ in 0..PATIENCE.0 {
        match handle.try_lock() {
            Ok(()) => return Ok(handle),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PATIENCE.1),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
    }
    Err(Error::invalid(dir, "somebody keeps it locked; look for a stopped process of Dwell's"))
}

/// The name of a process's stats page.
pub(super) fn name_of(pid: u32, start_ticks: u64) -> String {
    format!("{pid}-{start_ticks}")
}

/// All stats_pages in the directory, by pid, start and path.
pub(super) fn stats_pages(dir: &Path) -> Result<Vec<(u32, u64, PathBuf)>> {
    let named = |name: &str| {
        let (pid, ticks) = name.split_once('-')?;
        let whose = (pid.parse::<u32>().ok()?, ticks.parse::<u64>().ok()?);
        (name_of(whose.0, whose.1) == name).then_some(whose)
    };
    let mut found: Vec<_> = names(dir)?
        .into_iter()
        .filter_map(|name| named(&name).map(|(pid, ticks)| (pid, ticks, dir.join(name))))
        .collect();
    found.sort();
    Ok(found)
}

/// The names in the directory; none where it is missing.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io("list", dir, None, error);
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
        Ok(entries) => {
            checked(dir)?;
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            let names = names.collect::<io::Result<Vec<_>>>().map_err(failed)?;
            Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
        }
    }
}

/// An existing file of our own.
pub(super) fn opened(path: &Path, write: bool) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| Error::io("open", path, None, error))?;
    let found = file.metadata().map_err(|error| Error::io("stat", path, None, error))?;
    if !found.is_file() || found.uid() != effective_uid() {
        return Err(Error::invalid(path, "is no file of this user's; remove it"));
    }
    Ok(file)
}

/// A new file, for its owner alone.
pub(super) fn fresh(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| Error::io("create", path, None, error))
}

/// The bytes of a file, if it has at most so many.
pub(super) fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    opened(path, false)?
        .take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io("read", path, None, error))?;
    if bytes.len() as u64 > most {
        return Err(Error::invalid(path, format!("is longer than {most} bytes; remove it")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_could_write_or_made_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("dwell");
        made(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
        made(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o720)).unwrap();
        let error = made(&dir).unwrap_err().to_string();
        assert!(error.contains("0720") && error.contains(dir.to_str().unwrap()), "{error}");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();

        let link = base.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(made(&link).unwrap_err().to_string().contains("no directory"));
        let error = made(&base.path().join("no/dwell")).unwrap_err().to_string();
        assert!(error.contains("no/dwell") && error.contains("make"), "{error}");
        if effective_uid() == 0 {
            std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
            assert!(made(&dir).unwrap_err().to_string().contains("user 12345, not to 0"));
        } else {
            println!("SKIP: only root can give a directory away");
        }
    }

    #[test]
    fn only_names_of_stats_pages_count() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["12-34", "run-00", "012-34", "12-", "x", "12-34-5", "99999999999-1"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(stats_pages(dir.path()).unwrap(), [(12, 34, dir.path().join("12-34"))]);
        assert!(names(&dir.path().join("missing")).unwrap().is_empty());
    }
}
