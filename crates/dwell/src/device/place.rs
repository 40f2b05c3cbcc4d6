// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a path lives: on which file system, or which block device it names.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{DeviceError, statfs};

/// What a path names.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A block device's node.
    Block {
        /// The device it stands for.
        dev_t: u64,
    },
    /// A regular file on a mounted file system.
    File(Mount),
}

/// A mounted file system.
#[derive(Clone, Debug)]
pub(super) struct Mount {
    /// Device number that its files carry.
    pub dev_t: u64,
    /// Type, such as `ext4`; `unknown` when the kernel does not tell.
    pub fs: String,
    /// What was mounted: a device, a server's export, any word.
    pub source: String,
    /// Capacity in bytes; 0 when unlimited or unknown.
    pub size_bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// Looks paths up. The seam at which tests put a machine of their own.
pub(super) trait Locate {
    /// What `path` names.
    fn locate(&self, path: &Path) -> Result<Place, DeviceError>;
}

/// The machine this process runs on.
pub(super) struct Machine;

impl Locate for Machine {
    fn locate(&self, path: &Path) -> Result<Place, DeviceError> {
        // O_PATH opens nothing: no driver runs, no permission on the file itself is needed.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    DeviceError::Missing { path: path.to_owned() }
                }
                _ => DeviceError::Unreachable { path: path.to_owned(), error },
            })?;
        let facts = file
            .metadata()
            .map_err(|error| DeviceError::Unreachable { path: path.to_owned(), error })?;
        let kind = facts.file_type();
        if kind.is_block_device() {
            return Ok(Place::Block { dev_t: facts.rdev() });
        }
        if kind.is_file() {
            return Ok(Place::File(mount_of(&file, facts.dev())));
        }
        let (what, remedy) = if kind.is_dir() {
            ("directory", "name a file in it, or the block device that holds it")
        } else if kind.is_char_device() {
            (
                "character device",
                "name a block device (of an NVMe drive the namespace, such as /dev/nvme0n1)",
            )
        } else if kind.is_socket() {
            ("socket", "name a regular file or a block device")
        } else {
            ("pipe", "name a regular file or a block device")
        };
        Err(DeviceError::NotStorage { path: path.to_owned(), what, remedy })
    }
}

/// As [`Machine`], but what is asked for are the files of a directory.
pub(super) struct FilesIn;

impl Locate for FilesIn {
    fn locate(&self, path: &Path) -> Result<Place, DeviceError> {
        let unreachable = |error| DeviceError::Unreachable { path: path.to_owned(), error };
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(path)
            .map_err(unreachable)?;
        let facts = directory.metadata().map_err(unreachable)?;
        Ok(Place::File(mount_of(&directory, facts.dev())))
    }
}

fn mount_of(file: &File, dev_t: u64) -> Mount {
    let found = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))
        .ok()
        .and_then(|info| mount_id(&info))
        .zip(fs::read_to_string("/proc/self/mountinfo").ok())
        .and_then(|(id, table)| find_mount(&table, id));
    let (fs, source, read_only) = found.unwrap_or_else(|| ("unknown".into(), String::new(), false));
    Mount { dev_t, fs, source, size_bytes: statfs::capacity_bytes(file), read_only }
}

fn mount_id(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Type, source and whether read-only of the mount `id` in `/proc/self/mountinfo`.
///
/// By the mount's id, because the device number in a btrfs or overlay file is not in the table.
fn find_mount(table: &str, id: u64) -> Option<(String, String, bool)> {
    let line = table
        .lines()
        .find(|line| line.split(' ').next().and_then(|first| first.parse().ok()) == Some(id))?;
    // A variable number of optional fields ends with a lone dash.
    let (before, after) = line.split_once(" - ")?;
    let options = before.split(' ').nth(5)?;
    let mut after = after.split(' ');
    let (fs, source) = (after.next()?, after.next()?);
    let super_options = after.next().unwrap_or("");
    let read_only = [options, super_options].iter().any(|list| list.split(',').any(|o| o == "ro"));
    Some((unescape(fs), unescape(source), read_only))
}

/// Undoes the octal escapes (`\040`) of the mount table.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = |b: u8| b.checked_sub(b'0').filter(|digit| *digit < 8).map(u32::from);
        let escaped = match tail {
            [a, b, c, ..] if *first == b'\\' => octal(*a)
                .zip(octal(*b))
                .zip(octal(*c))
                .and_then(|((a, b), c)| u8::try_from(a * 64 + b * 8 + c).ok()),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
2 27 0:40 / /a\\040b ro,relatime - nfs4 host:/my\\040files rw
";

    #[test]
    fn a_mount_is_found_by_its_whole_id() {
        let root = find_mount(TABLE, 27).unwrap();
        assert_eq!(root, ("ext4".into(), "/dev/vda".into(), false));
        assert_eq!(find_mount(TABLE, 7), None);
    }

    #[test]
    fn a_blank_in_a_source_does_not_cut_it() {
        let nfs = find_mount(TABLE, 2).unwrap();
        assert_eq!(nfs, ("nfs4".into(), "host:/my files".into(), true));
    }

    #[test]
    fn a_half_escape_is_left_as_it_is() {
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("a\\777\\"), "a\\777\\");
    }

    #[test]
    fn a_path_that_is_not_storage_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let cases: [(PathBuf, &str); 4] = [
            (dir.path().join("absent"), "no such file"),
            (dir.path().to_owned(), "is a directory; name a file"),
            ("/dev/null".into(), "is a character device; name a block device"),
            (socket, "is a socket; name a regular file"),
        ];
        for (path, expected) in cases {
            let said = Machine.locate(&path).unwrap_err().to_string();
            assert!(said.contains(expected), "{said}");
            assert!(said.starts_with(path.to_str().unwrap()), "{said}");
            assert!(!said.contains('\n'));
        }
    }
}
