// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results as the kernel wants them.

use fuser::{
    FileHandle, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use rustix::fs::StatVfs;
use rustix::io::Errno;

use super::tree::{Entry, Opened};

/// An error's number.
pub(super) fn out(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub(super) fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(out(error)),
    }
}

pub(super) fn entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(Entry { attr, generation, fresh, kept }) => {
            reply.entry_with_ttls(&fresh, &kept, &attr, generation);
        }
        Err(error) => reply.error(out(error)),
    }
}

pub(super) fn opened(reply: ReplyOpen, result: Result<Opened, Errno>) {
    match result {
        Ok(Opened { handle, backing, flags }) => match backing {
            Some(id) => reply.opened_passthrough(FileHandle(handle), flags, &id),
            None => reply.opened(FileHandle(handle), flags),
        },
        Err(error) => reply.error(out(error)),
    }
}

pub(super) fn created(reply: ReplyCreate, result: Result<(Entry, Opened), Errno>) {
    match result {
        Ok((Entry { attr, generation, fresh, .. }, Opened { handle, backing, flags })) => {
            let handle = FileHandle(handle);
            match backing {
                Some(id) => {
                    reply.created_passthrough(&fresh, &attr, generation, handle, flags, &id);
                }
                None => reply.created(&fresh, &attr, generation, handle, flags),
            }
        }
        Err(error) => reply.error(out(error)),
    }
}

pub(super) fn written(reply: ReplyWrite, result: Result<u32, Errno>) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(out(error)),
    }
}

pub(super) fn statfs(reply: ReplyStatfs, result: Result<StatVfs, Errno>) {
    match result {
        Ok(fs) => reply.statfs(
            fs.f_blocks,
            fs.f_bfree,
            fs.f_bavail,
            fs.f_files,
            fs.f_ffree,
            fs.f_bsize as u32,
            fs.f_namemax as u32,
            fs.f_frsize as u32,
        ),
        Err(error) => reply.error(out(error)),
    }
}

/// The value of an extended attribute or a list of them, or how long it is.
pub(super) fn listed(reply: ReplyXattr, room: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) if room == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= room as usize => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::ERANGE),
        Err(error) => reply.error(out(error)),
    }
}
