// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a thread came to wait: the system call in which it slept.

use serde::Serialize;

// The C library of some Debians has no name for it on x86-64.
#[cfg(target_arch = "x86_64")]
const IO_PGETEVENTS: libc::c_long = 333;
#[cfg(not(target_arch = "x86_64"))]
const IO_PGETEVENTS: libc::c_long = 292;

/// The interface by which a program asked for storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Issued {
    /// `read`, `pwrite`, `preadv2`, `sendfile` and the like.
    Call,
    /// `fsync`, `fdatasync`, `msync`, `sync_file_range` and the like.
    Sync,
    /// `io_uring_enter`.
    IoUring,
    /// `io_getevents`, `io_submit`.
    Libaio,
    /// A page fault on mapped memory, or on swapped memory.
    Fault,
    /// `open`, `unlink`, `rename`, `stat` and other calls that take a file name.
    Name,
    /// Any other call, such as a lock that a waiting thread held.
    Other,
}

impl Issued {
    /// Every way, in the order of tables.
    pub const ALL: [Issued; 7] = [
        Issued::Call,
        Issued::Sync,
        Issued::IoUring,
        Issued::Libaio,
        Issued::Fault,
        Issued::Name,
        Issued::Other,
    ];

    /// The way behind a system call's number; -1 is a page fault.
    pub fn of_call(number: i16) -> Issued {
        use libc::*;
        #[cfg(target_arch = "x86_64")]
        let named = [
            SYS_open,
            SYS_stat,
            SYS_lstat,
            SYS_unlink,
            SYS_rename,
            SYS_mkdir,
            SYS_rmdir,
            SYS_creat,
            SYS_getdents,
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let named = [];
        let is = |calls: &[c_long]| calls.contains(&c_long::from(number));
        if number == -1 {
            Issued::Fault
        } else if is(&[
            SYS_read,
            SYS_pread64,
            SYS_readv,
            SYS_preadv,
            SYS_preadv2,
            SYS_write,
            SYS_pwrite64,
            SYS_writev,
            SYS_pwritev,
            SYS_pwritev2,
            SYS_sendfile,
            SYS_splice,
            SYS_copy_file_range,
        ]) {
            Issued::Call
        } else if is(&[
            SYS_fsync,
            SYS_fdatasync,
            SYS_sync,
            SYS_syncfs,
            SYS_msync,
            SYS_sync_file_range,
        ]) {
            Issued::Sync
        } else if is(&[SYS_io_uring_enter]) {
            Issued::IoUring
        } else if is(&[SYS_io_getevents, IO_PGETEVENTS, SYS_io_submit]) {
            Issued::Libaio
        } else if is(&named)
            || is(&[
                SYS_openat,
                SYS_openat2,
                SYS_newfstatat,
                SYS_statx,
                SYS_unlinkat,
                SYS_renameat,
                SYS_renameat2,
                SYS_mkdirat,
                SYS_getdents64,
                SYS_linkat,
                SYS_symlinkat,
                SYS_truncate,
                SYS_ftruncate,
                SYS_fallocate,
                SYS_execve,
                SYS_close,
            ])
        {
            Issued::Name
        } else {
            Issued::Other
        }
    }

    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Issued::Call => "call",
            Issued::Sync => "sync",
            Issued::IoUring => "io_uring",
            Issued::Libaio => "libaio",
            Issued::Fault => "fault",
            Issued::Name => "file name",
            Issued::Other => "other",
        }
    }
}
