// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's requests: each is counted, carried out by the tree and answered.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use rustix::io::Errno;

use super::attributes::Change;
use super::caller::Caller;
use super::counts::Asked;
use super::flags::FS_IOC_SETFLAGS;
use super::negotiation::agree;
use super::replies::{created, empty, entry, listed, opened, out, statfs, written};
use super::served::Served;
use super::tree::{By, Tree};
use crate::grants::ioctl::GRANT;

impl Filesystem for Served {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        agree(&self.tree, config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.count(Asked::Lookup);
        self.look_up(request, parent.0, name, reply);
    }

    fn forget(&self, _request: &Request, id: INodeNo, lookups: u64) {
        self.count(Asked::Forget).nodes.forget(id.0, lookups);
    }

    fn getattr(&self, _request: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let tree = self.count(Asked::GetAttr);
        match tree.nodes.get(id.0).and_then(|node| tree.attr(&node)) {
            Ok((attr, fresh)) => reply.attr(&fresh, &attr),
            Err(error) => reply.error(out(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { bytes: size, mode, uid, gid, accessed: atime, modified: mtime };
        let caller = request.into();
        let set = move |tree: &Tree| match tree.setattr(caller, id.0, handle, &change) {
            Ok((attr, fresh)) => reply.attr(&fresh, &attr),
            Err(error) => reply.error(out(error)),
        };
        let tree = self.count(Asked::SetAttr);
        self.answer(request, tree.setattr_may_take_long(id.0, size), set);
    }

    fn readlink(&self, _request: &Request, id: INodeNo, reply: ReplyData) {
        match self.count(Asked::ReadLink).readlink(id.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(out(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        self.count(Asked::MkNod);
        let (caller, name) = (request.into(), name.to_owned());
        self.with_room(request, move |tree, room| {
            let make = |room| tree.mknod(caller, (parent.0, &name), (mode, umask), device, room);
            entry(reply, room.and_then(make));
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.count(Asked::MkDir);
        let (caller, name) = (request.into(), name.to_owned());
        self.with_room(request, move |tree, room| {
            let make = |room| tree.mkdir(caller, (parent.0, &name), (mode, umask), room);
            entry(reply, room.and_then(make));
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let tree = self.count(Asked::Unlink);
        let (waits, name) = (tree.is_name_granted(parent.0, name), name.to_owned());
        self.answer(request, waits, move |tree| empty(reply, tree.unlink(parent.0, &name)));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.count(Asked::RmDir).rmdir(parent.0, name));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.count(Asked::SymLink);
        let (caller, name, target) = (request.into(), name.to_owned(), target.to_owned());
        self.with_room(request, move |tree, room| {
            let make = |room| tree.symlink(caller, (parent.0, &name), &target, room);
            entry(reply, room.and_then(make));
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let tree = self.count(Asked::Rename);
        let waits = tree.is_name_granted(newparent.0, newname);
        let (name, newname) = (name.to_owned(), newname.to_owned());
        self.answer(request, waits, move |tree| {
            let to = (newparent.0, newname.as_os_str());
            empty(reply, tree.rename((parent.0, &name), to, flags.bits()));
        });
    }

    fn link(
        &self,
        _request: &Request,
        id: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        entry(reply, self.count(Asked::Link).link(id.0, parent.0, name));
    }

    fn open(&self, request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let register = |file: BorrowedFd<'_>| reply.open_backing(file);
        let by = By { caller: request.into(), register: &register };
        let opens = self.count(Asked::Open).open(id.0, flags.0, by);
        opened(reply, opens);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.count(Asked::Create);
        let (caller, name) = (request.into(), name.to_owned());
        self.with_room(request, move |tree, room| {
            let register = |file: BorrowedFd<'_>| reply.open_backing(file);
            let by = By { caller, register: &register };
            let make = |room| tree.create((parent.0, &name), (mode, umask), flags, by, room);
            let made = room.and_then(make);
            created(reply, made);
        });
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let tree = self.count(if owner.is_some() { Asked::Read } else { Asked::Fill });
        let (bytes, by_call) = (size as usize, owner.is_some());
        let answered = move |read: Result<&[u8], Errno>| match read {
            Ok(data) => reply.data(data),
            Err(error) => reply.error(out(error)),
        };
        self.answer(request, !by_call && tree.mapping_may_take_long(handle), move |tree| {
            tree.read(handle, offset, bytes, by_call, answered);
        });
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (tree, caller, flags) = (self.count(Asked::Write), request.into(), flags.0);
        if let Some(_waits) = self.wait() {
            return written(reply, tree.write(caller, handle, offset, data, how, flags));
        }
        match tree.keep(caller, data) {
            Ok(kept) => self.slowly(request, move |tree| {
                written(reply, tree.write(caller, handle, offset, &kept.data, how, flags));
            }),
            Err(full) => reply.error(out(full)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.count(Asked::Flush).flush(handle));
    }

    fn release(
        &self,
        _request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Release).release(handle);
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::FSync);
        self.slowly(request, move |tree| empty(reply, tree.fsync(handle, data_only)));
    }

    fn opendir(&self, request: &Request, id: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.count(Asked::OpenDir).opendir(request.into(), id.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(out(error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _: INodeNo,
        handle: FileHandle,
        place: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut any = false;
        let read = self.count(Asked::ReadDir).readdir(handle, place, |number, next, kind, name| {
            let room = !reply.add(INodeNo(number), next, kind, name);
            any |= room;
            room
        });
        match read {
            // What was found before the error is handed out first; asked for the rest, it comes
            // again.
            Err(error) if !any => reply.error(out(error)),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        place: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.count(Asked::ReadDir);
        self.list(request, handle, place, reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::ReleaseDir).releasedir(handle);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::FSyncDir);
        self.slowly(request, move |tree| empty(reply, tree.fsyncdir(handle, data_only)));
    }

    fn statfs(&self, request: &Request, id: INodeNo, reply: ReplyStatfs) {
        statfs(reply, self.count(Asked::StatFs).statfs(request.pid(), id.0));
    }

    fn setxattr(
        &self,
        request: &Request,
        id: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (tree, caller) = (self.count(Asked::SetXAttr), request.into());
        let waits = tree.setxattr_may_take_long(id.0, name);
        let (name, value) = (name.to_owned(), value.to_owned());
        self.answer(request, waits, move |tree| {
            empty(reply, tree.setxattr(caller, id.0, &name, &value, flags));
        });
    }

    fn getxattr(
        &self,
        _request: &Request,
        id: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        listed(reply, size, self.count(Asked::GetXAttr).getxattr(id.0, name, size as usize));
    }

    fn listxattr(&self, request: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        listed(reply, size, self.count(Asked::ListXAttr).listxattr(request.into(), id.0));
    }

    fn removexattr(&self, _request: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.count(Asked::RemoveXAttr).removexattr(id.0, name));
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::FAllocate);
        let caller = request.into();
        self.slowly(request, move |tree| {
            empty(reply, tree.fallocate(caller, handle, offset, length, mode));
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.count(Asked::LSeek).lseek(handle, offset, whence) {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(out(error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        bytes: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.count(Asked::CopyFileRange);
        let (caller, from, to) = (request.into(), (from, from_offset), (to, to_offset));
        self.slowly(request, move |tree| {
            written(reply, tree.copy_file_range(caller, from, to, bytes, flags));
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        id: INodeNo,
        handle: FileHandle,
        flags: IoctlFlags,
        command: u32,
        argument: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let tree = self.count(Asked::IoCtl);
        let answered = move |reply: ReplyIoctl, answer: Result<Vec<u8>, Errno>| match answer {
            Ok(answer) => reply.ioctl(0, &answer[..answer.len().min(room as usize)]),
            Err(error) => reply.error(out(error)),
        };
        let caller = Caller::from(request);
        if flags.contains(IoctlFlags::FUSE_IOCTL_DIR) {
            answered(reply, tree.ioctl_on_directory(caller, handle, command, argument));
        } else if matches!(command, GRANT | FS_IOC_SETFLAGS) {
            // They wait while the file is held or its commands are in flight, so for a device.
            let argument = argument.to_vec();
            self.slowly(request, move |tree| {
                answered(reply, tree.ioctl(caller, id, handle, command, &argument));
            });
        } else {
            answered(reply, tree.ioctl(caller, id, handle, command, argument));
        }
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        // Files are always ready, which the kernel then says by itself.
        reply.error(fuser::Errno::ENOSYS);
    }
}
