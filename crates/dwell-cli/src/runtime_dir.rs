// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory in which this user's processes under Dwell are found.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use dwell_host::capability::effective_uid;
use rustix::fs::{Access, access};

/// `$XDG_RUNTIME_DIR/dwell`, else `/dev/shm/dwell-run-UID`, else `/tmp/dwell-UID`, made if it is
/// missing. Nobody else may look in.
///
/// # Errors
/// A directory that cannot be made, or that belongs to somebody else.
pub fn runtime_dir() -> Result<PathBuf> {
    let uid = effective_uid();
    let chosen = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    private(&place(chosen, Path::new("/dev/shm"), uid), uid)
}

/// Where this user's daemons are found. Root's are in one place, whoever started them: a service,
/// or a person at a terminal.
///
/// # Errors
/// As [`runtime_dir`].
pub fn serve_dir() -> Result<PathBuf> {
    match effective_uid() {
        0 if Path::new("/run").is_dir() => private(Path::new("/run/dwell"), 0),
        _ => runtime_dir(),
    }
}

/// A runtime directory of another user (as after `su`) is none of ours. A directory that is not
/// memory is the last choice. There, a process that ends would wait for a disk, and one that
/// publishes for a journal.
fn place(chosen: Option<PathBuf>, memory: &Path, uid: u32) -> PathBuf {
    let own = |dir: &PathBuf| dir.is_absolute() && fs::metadata(dir).is_ok_and(|d| d.uid() == uid);
    match chosen.filter(own) {
        Some(dir) => dir.join("dwell"),
        None if access(memory, Access::WRITE_OK | Access::EXEC_OK).is_ok() => {
            memory.join(format!("dwell-run-{uid}"))
        }
        None => PathBuf::from(format!("/tmp/dwell-{uid}")),
    }
}

fn private(dir: &Path, uid: u32) -> Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("{}: cannot make it", dir.display()));
        }
        _ => {}
    }
    // Not what a link points to: anybody may put one into /tmp.
    let found = fs::symlink_metadata(dir).with_context(|| dir.display().to_string())?;
    let wrong = match (found.is_dir(), found.uid() == uid, found.mode() & 0o077) {
        (true, true, 0) => return Ok(dir.to_owned()),
        (false, ..) => "is no directory",
        (_, false, _) => "belongs to another user",
        _ => "is open to other users; chmod 700 it",
    };
    bail!("{} {wrong}", dir.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_is_made_private_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let uid = effective_uid();
        let made =
            private(&place(Some(dir.path().to_owned()), Path::new("/dev/shm"), uid), uid).unwrap();
        assert_eq!(made, dir.path().join("dwell"));
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        assert_eq!(private(&made, uid).unwrap(), made);
    }

    #[test]
    fn a_directory_that_others_could_have_planted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let uid = effective_uid();
        let of = |name: &str| dir.path().join(name);
        symlink(dir.path(), of("link")).unwrap();
        fs::write(of("file"), "").unwrap();
        fs::create_dir(of("open")).unwrap();
        fs::set_permissions(of("open"), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, owner, says) in [
            ("link", uid, "no directory"),
            ("file", uid, "no directory"),
            ("open", uid, "open to other users"),
            ("new", uid + 1, "another user"),
        ] {
            let said = format!("{:#}", private(&of(name), owner).unwrap_err());
            assert!(said.contains(says) && said.contains(name), "{said}");
        }
        assert!(private(&of("missing/dwell"), uid).is_err());
        let other = |memory: &Path| place(Some(dir.path().to_owned()), memory, uid + 1);
        assert_eq!(other(dir.path()), of(&format!("dwell-run-{}", uid + 1)));
        assert_eq!(other(&of("missing")), PathBuf::from(format!("/tmp/dwell-{}", uid + 1)));
    }
}
