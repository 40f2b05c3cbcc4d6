// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the commands of one grant reach their file, and what they may do.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::file_mapping::FileMapping;
use crate::grants::OpenFile;
use crate::shares::Shares;

/// The way to a file.
#[derive(Debug)]
pub enum Access {
    /// By copying, here and now.
    Memory {
        /// The file, mapped.
        mapping: Arc<FileMapping>,
        /// Whether channels may write.
        write: bool,
    },
    /// Through a queue.
    Device {
        /// The file opened past the page cache, where its program asked for that, and the alignment
        /// that this demands, in bytes.
        direct: Option<(Arc<File>, u32)>,
        /// Whether channels may write.
        write: bool,
        /// Whether its file system makes whoever submits a request wait for it.
        may_block: bool,
    },
}

impl Access {
    /// The way to an open file, while its inode has been held `epoch` times; `None` where only the
    /// kernel may go: what is no regular file. `account` is the user whose share of `mapped` it
    /// takes.
    pub(crate) fn to(
        open: &OpenFile,
        epoch: u64,
        account: u32,
        mapped: &Arc<Shares>,
    ) -> Option<Access> {
        let facts = open.file.metadata().ok()?;
        if !facts.is_file() {
            return None;
        }
        // A write by the kernel takes such a file's special rights away.
        let special = facts.mode() & (libc::S_ISUID | libc::S_ISGID) != 0
            || rustix::fs::fgetxattr(&open.file, "security.capability", &mut [0u8; 0][..]).is_ok();
        let write = open.rights.write && !open.rights.append && !special;
        if let Some(mapping) =
            open.inode.mapping(&open.file, epoch, |bytes| mapped.take(account, bytes))
        {
            return Some(Access::Memory { mapping, write });
        }
        // A write that must be durable at once needs a file opened so, or is left to the kernel.
        let durable = open.flags & (libc::O_SYNC | libc::O_DSYNC);
        let own = rustix::fs::fcntl_getfl(&open.file).ok()?.bits() as i32;
        let write = write && durable & !own == 0;
        let direct = open.direct.get_or_init(|| direct(open)).clone();
        Some(Access::Device { direct, write, may_block: may_block(&open.file) })
    }
}

/// Whether requests on a file may block, whatever they ask for: its file system says so of one that
/// must not.
fn may_block(file: &File) -> bool {
    let asked = |file: &File| {
        let mut byte = [0];
        let room = &mut [IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(file, room, 0, ReadWriteFlags::NOWAIT)
    };
    let answer = match asked(file) {
        // Opened for writing alone.
        Err(Errno::BADF) => match File::open(path_of(file)) {
            Ok(file) => asked(&file),
            Err(_) => return true,
        },
        answer => answer,
    };
    answer == Err(Errno::OPNOTSUPP)
}

/// Length of a file in bytes, as far as the kernel knows without asking anybody: who asks must not
/// wait.
pub fn length(file: &File) -> u64 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", flags, StatxFlags::SIZE).map_or(0, |facts| facts.stx_size)
}

/// Leads to the file itself.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The file once more, past the page cache.
fn direct(open: &OpenFile) -> Option<(Arc<File>, u32)> {
    if open.flags & libc::O_DIRECT == 0 {
        return None;
    }
    let durable = open.flags & (libc::O_SYNC | libc::O_DSYNC);
    let file = File::options()
        .read(open.rights.read)
        .write(open.rights.write)
        .custom_flags(libc::O_DIRECT | durable)
        .open(path_of(&open.file))
        .ok()?;
    Some((Arc::new(file), 4096))
}
