// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts of this machine: which are served by Dwell, which a killed daemon left behind, who uses
//! one.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

mod session;

pub use session::session;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub at: PathBuf,
    /// The kind of file system.
    pub kind: String,
    /// What it is mounted from.
    pub source: OsString,
    /// Its device's minor number, by which the kernel's FUSE knows its connection.
    pub minor: u32,
}

/// The start of the source that a served directory is mounted from, as in `dwell:/srv/data`.
pub const SERVED: &str = "dwell:";
/// The same for what hides a private backing directory.
pub const HIDDEN: &str = "dwell-private:";
/// The same for an export of an NFS server.
pub const EXPORT: &str = "dwell-nfs:";

impl Mounted {
    /// Whether a daemon that serves directories made it.
    pub fn is_ours(&self) -> bool {
        self.is_from(&[SERVED, HIDDEN])
    }

    /// Whether a daemon of Dwell made it, and its source has one of these starts.
    pub fn is_from(&self, starts: &[&str]) -> bool {
        let source = self.source.as_bytes();
        let fuse = self.kind == "fuse" || self.kind.starts_with("fuse.");
        fuse && starts.iter().any(|start| source.starts_with(start.as_bytes()))
    }

    /// Whether nobody answers for it any more.
    ///
    /// This may wait for a daemon that lives and does not answer.
    pub fn is_stale(&self) -> bool {
        let gone = |error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED);
        // The kernel may remember what stat shows; of the whole file system it asks again each
        // time.
        rustix::fs::statfs(&self.at).is_err_and(gone) || rustix::fs::stat(&self.at).is_err_and(gone)
    }
}

/// A name that mount options can carry: what shows in `df`, not what is looked up.
pub fn source(start: &str, backing: impl AsRef<OsStr>) -> String {
    let harmless = |c: char| if c.is_control() || matches!(c, ',' | '\\') { '_' } else { c };
    format!(
        "{start}{}",
        backing.as_ref().to_string_lossy().chars().map(harmless).collect::<String>()
    )
}

/// The topmost mount at a path; `None` where nothing is mounted.
///
/// # Errors
/// /proc cannot be read.
pub fn mounted_at(path: &Path) -> io::Result<Option<Mounted>> {
    Ok(all()?.into_iter().rev().find(|mounted| mounted.at == path))
}

/// All mounts of this thread's namespace, in their order.
pub fn all() -> io::Result<Vec<Mounted>> {
    let text = fs::read("/proc/thread-self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let behind = words.iter().position(|word| *word == b"-")?;
    let at = PathBuf::from(unescape(words.get(4)?));
    let kind = String::from_utf8_lossy(words.get(behind + 1)?).into_owned();
    let (_, minor) = std::str::from_utf8(words.get(2)?).ok()?.split_once(':')?;
    let (source, minor) = (unescape(words.get(behind + 2)?), minor.parse().ok()?);
    Some(Mounted { at, kind, source, minor })
}

/// Spaces and the like stand as three octal digits.
fn unescape(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| byte == b'\\');
        let value = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match value.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// A path as the table of mounts has it. A mount is not looked at: one whose daemon is gone cannot
/// be, and one whose daemon waits for its server would have the caller wait too.
///
/// # Errors
/// A parent that is not there.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else { return path.canonicalize() };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let joined = parent.canonicalize()?.join(name);
    if mounted_at(&joined)?.is_some() {
        return Ok(joined);
    }
    // A link to a directory is the directory; what cannot be looked at is itself.
    Ok(match fs::symlink_metadata(&joined) {
        Ok(facts) if facts.is_symlink() => joined.canonicalize()?,
        _ => joined,
    })
}

/// How a mount is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Only if nobody uses it.
    Idle,
    /// Out of sight at once; programs that use it get errors.
    Now,
}

/// Unmounts, by the system call or by the helper that lets users do it.
///
/// # Errors
/// `ResourceBusy`: somebody uses it. Else what system or helper say.
pub fn unmount(at: &Path, how: How) -> io::Result<()> {
    let flags = match how {
        How::Idle => UnmountFlags::NOFOLLOW,
        How::Now => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(at, flags) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    // Opened while the mount is there: later another may have its number.
    let abort = match how {
        How::Now => mounted_at(at)?.and_then(|Mounted { minor, .. }| {
            let path = format!("/sys/fs/fuse/connections/{minor}/abort");
            fs::File::options().write(true).open(path).ok()
        }),
        How::Idle => None,
    };
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args((how == How::Now).then_some("-z")).arg("--").arg(at);
    let said = helper.stdin(Stdio::null()).output().map_err(|error| {
        io::Error::new(error.kind(), format!("fusermount3 (package fuse3) cannot be run: {error}"))
    })?;
    if said.status.success() {
        // The helper leaves programs waiting for a daemon that does not answer. The user who
        // mounted it may end that, where the kernel's list of connections can be reached.
        if let Some(mut abort) = abort {
            let _ = abort.write_all(b"1");
        }
        return Ok(());
    }
    let text = String::from_utf8_lossy(&said.stderr).trim().to_owned();
    let kind =
        if text.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, text))
}

/// Processes that have something below a path open, as "PID (NAME)", at most `most`; those that
/// this user may look into.
pub fn users(of: &Path, most: usize) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbered = processes
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit));
    let using = numbered.filter(|entry| uses(&entry.path(), of));
    let named = using.map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        format!("{} ({})", entry.file_name().display(), name.trim())
    });
    named.take(most).collect()
}

fn uses(process: &Path, mount: &Path) -> bool {
    // Links are read, never followed: following one would ask the very mount.
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(mount));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|name| below(process.join(name)))
        || open.into_iter().any(|entry| below(entry.path()))
        || maps(process, mount.as_os_str())
}

fn maps(process: &Path, mount: &OsStr) -> bool {
    let text = fs::read(process.join("maps")).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let mut paths =
        lines.filter_map(|line| Some(&line[line.iter().position(|byte| *byte == b'/')?..]));
    paths.any(|path| Path::new(OsStr::from_bytes(path)).starts_with(mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line = b"41 29 0:38 / /srv/my\\040data rw,nosuid shared:5 - fuse.dwell dwell:/a\\040b rw,user_id=0";
        let found = parse(line).unwrap();
        assert_eq!(found.at, Path::new("/srv/my data"));
        assert_eq!(
            (found.kind.as_str(), found.source.as_os_str()),
            ("fuse.dwell", OsStr::new("dwell:/a b"))
        );
        assert!(found.is_ours() && found.minor == 38);
        let other = Mounted { kind: "ext4".to_owned(), ..found };
        assert!(!other.is_ours());
        assert_eq!(parse(b""), None);
        assert_eq!(unescape(b"a\\0"), "a\\0");
    }

    #[test]
    fn the_root_is_mounted_and_paths_are_made_absolute() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        assert_eq!(absolute(Path::new("/usr/../etc")).unwrap(), Path::new("/etc"));
        assert_eq!(absolute(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(
            absolute(Path::new("/etc/no-such-name")).unwrap(),
            Path::new("/etc/no-such-name")
        );
        assert!(absolute(Path::new("/no-such-directory/x")).is_err());
    }

    #[test]
    fn sources_carry_nothing_that_options_would_split_at() {
        assert_eq!(source(SERVED, Path::new("/a,b\\c\nd")), "dwell:/a_b_c_d");
    }

    #[test]
    fn this_process_uses_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let _open = fs::File::create(dir.path().join("file")).unwrap();
        let own = std::process::id().to_string();
        assert!(users(dir.path(), usize::MAX).iter().any(|user| user.starts_with(&own)));
        assert!(users(&dir.path().join("nothing"), 5).is_empty());
    }
}
