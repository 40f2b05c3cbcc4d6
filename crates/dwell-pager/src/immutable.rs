// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether anybody may change a file while it is mapped.
#![allow(unsafe_code)]

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::mask::Quiet;

/// Why a file may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mutable {
    /// It is no regular file.
    #[error("it is no regular file")]
    NoFile,
    /// A process has it open for writing.
    #[error("a process has it open for writing")]
    Written,
    /// The kernel does not say whether a process has it open for writing.
    #[error(
        "the kernel does not tell this user whether a process has it open for writing; be its owner, or give it \
         fs-verity"
    )]
    Untold,
    /// A process may open it for writing.
    #[error(
        "it may be written; make it immutable (chattr +i), give it fs-verity, seal it (F_SEAL_WRITE), or mount \
         its file system read-only"
    )]
    Writable,
}

const ATTR_IMMUTABLE: u64 = 0x10;
const ATTR_VERITY: u64 = 0x10_0000;
const MNT_ID: u32 = 0x1000;

const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_OWNER_TID: i32 = 0;

/// The owner of an open file's signals, as these commands have it.
#[repr(C)]
struct Owner {
    kind: i32,
    id: libc::pid_t,
}

/// Checks that nobody may write to a file. Such a file has the attribute immutable or fs-verity, is
/// sealed against writing, or lies on a block device whose file system is read-only as a whole. A
/// read-only bind mount of a writable file system does not count, nor does a file system of the
/// network. A process that may lift such a protection may still do so later.
///
/// # Errors
/// Why the file may change.
pub fn check_immutable(file: BorrowedFd<'_>) -> Result<(), Mutable> {
    let fd = file.as_raw_fd();
    let mut told = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an open descriptor, an empty path that ends, and room for what is told.
    let rc = unsafe {
        let wanted = libc::STATX_BASIC_STATS | MNT_ID;
        libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, wanted, told.as_mut_ptr())
    };
    // SAFETY: zeroed before.
    let told = unsafe { told.assume_init() };
    if rc != 0 || u32::from(told.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return Err(Mutable::NoFile);
    }
    let attributes = told.stx_attributes & told.stx_attributes_mask;
    let is_on_read_only = || {
        told.stx_dev_major != 0
            && told.stx_mask & MNT_ID != 0
            && is_read_only(
                told.stx_mnt_id,
                &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
            )
    };
    // Of these, the kernel has made sure that nobody had them open for writing.
    if is_sealed(fd) || attributes & ATTR_VERITY != 0 || is_on_read_only() {
        return Ok(());
    }
    match is_open_for_writing(fd) {
        Some(true) => Err(Mutable::Written),
        _ if attributes & ATTR_IMMUTABLE == 0 => Err(Mutable::Writable),
        Some(false) => Ok(()),
        None => Err(Mutable::Untold),
    }
}

/// Whether a process has a file open for writing; `None` where the kernel does not say. A second
/// descriptor of the file could not be closed: the process would lose its record locks.
///
/// The kernel sends SIGIO if somebody opens the file for writing meanwhile, which would end the
/// process. It sends it to a thread that keeps it out and ends.
fn is_open_for_writing(fd: i32) -> Option<bool> {
    let _quiet = Quiet::new();
    let asking = std::thread::Builder::new().name("dwell-lease".into());
    asking.spawn(move || is_lease_refused(fd)).ok()?.join().ok()?
}

/// Asks for a lease for reading, which the kernel grants nobody while the file is open for writing.
/// By a thread of its own, with all signals kept out.
fn is_lease_refused(fd: i32) -> Option<bool> {
    // SAFETY: asks about an open descriptor.
    match unsafe { libc::fcntl(fd, libc::F_GETLEASE) } {
        libc::F_UNLCK => {}
        // The program has one itself.
        held => return Some(held != libc::F_RDLCK),
    }
    let mut owner = Owner { kind: F_OWNER_TID, id: 0 };
    // SAFETY: as above, and a live structure of the kind that both commands take.
    let is_ours = unsafe {
        let own = Owner { kind: F_OWNER_TID, id: libc::gettid() };
        libc::fcntl(fd, F_GETOWN_EX, &mut owner) == 0 && libc::fcntl(fd, F_SETOWN_EX, &own) == 0
    };
    if !is_ours {
        return None;
    }
    // SAFETY: a lease that is given up at once; then whoever had the signals before has them again.
    unsafe {
        let refused = match libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) {
            0 => {
                libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
                Some(false)
            }
            _ => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN) => Some(true),
                _ => None,
            },
        };
        libc::fcntl(fd, F_SETOWN_EX, &owner);
        refused
    }
}

fn is_sealed(fd: i32) -> bool {
    // SAFETY: asks about an open descriptor.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_WRITE != 0
}

/// Whether the file system of a mount is read-only as a whole, by the text of
/// `/proc/self/mountinfo`.
fn is_read_only(mount: u64, mounts: &str) -> bool {
    let of = |line: &str| {
        let number = line.split(' ').next()?.parse::<u64>().ok()?;
        let (_, file_system) = line.split_once(" - ")?;
        let options = file_system.split(' ').nth(2)?;
        (number == mount).then(|| options.split(',').any(|option| option == "ro"))
    };
    mounts.lines().find_map(of) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_file_that_somebody_may_write_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(check_immutable(file.as_file().as_fd()), Err(Mutable::Written));
        let path = file.into_temp_path();
        let read = fs::File::open(&path).unwrap();
        assert_eq!(check_immutable(read.as_fd()), Err(Mutable::Writable));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
        assert_eq!(check_immutable(read.as_fd()), Err(Mutable::Writable), "root may write it");
        assert_eq!(check_immutable(fs::File::open("/").unwrap().as_fd()), Err(Mutable::NoFile));
    }

    #[test]
    fn sealed_memory_is_taken() {
        let Some(mut file) = memfd() else { return println!("SKIP: no memfd") };
        file.write_all(b"data").unwrap();
        // SAFETY: seals of this test's own file.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        let again = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(check_immutable(again.as_fd()), Ok(()));
    }

    fn memfd() -> Option<fs::File> {
        use std::os::fd::FromRawFd as _;
        // SAFETY: a name that ends, and a descriptor of this test's own.
        unsafe {
            let fd =
                libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            (fd >= 0).then(|| fs::File::from_raw_fd(fd))
        }
    }

    #[test]
    fn only_a_file_system_that_is_read_only_as_a_whole_counts() {
        let mounts = "\
36 35 7:0 / /ro ro,noatime shared:1 - squashfs /dev/loop0 ro,errors=continue
37 35 8:1 /data /bind ro,relatime - ext4 /dev/sda1 rw,errors=remount-ro
";
        assert!(is_read_only(36, mounts));
        assert!(!is_read_only(37, mounts) && !is_read_only(38, mounts));
    }
}
