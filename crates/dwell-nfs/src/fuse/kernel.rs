// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's requests as they come: each is handed to the thread that carries it out, and
//! answered from there.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};

use crate::nfs3::{SetAttributes, SetTime, Time};

use super::export::{DOTS, Entry, Errno, Export, Outcome, file_type, name_of};
use super::post::Post;

/// Bytes that one write may carry, and that the kernel may read ahead.
const MAX_BYTES: u32 = 1 << 20;
/// Numbers of files are not used again while the kernel knows them.
const GENERATION: Generation = Generation(0);

/// What the kernel talks to.
pub(super) struct Kernel(Arc<Post>);

impl Kernel {
    pub fn new(post: Arc<Post>) -> Self {
        Kernel(post)
    }
}

fn out(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno)
}

fn empty(reply: ReplyEmpty, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(out(errno)),
    }
}

fn entry(reply: ReplyEntry, outcome: Outcome<Entry>) {
    match outcome {
        Ok(entry) => reply.entry(&entry.fresh, &entry.attr, GENERATION),
        Err(errno) => reply.error(out(errno)),
    }
}

fn attributes(reply: ReplyAttr, outcome: Outcome<Entry>) {
    match outcome {
        Ok(entry) => reply.attr(&entry.fresh, &entry.attr),
        Err(errno) => reply.error(out(errno)),
    }
}

/// The protocol has times from 1970 to 2106 alone.
fn set_time(time: Option<TimeOrNow>) -> Outcome<SetTime> {
    Ok(match time {
        None => SetTime::Keep,
        Some(TimeOrNow::Now) => SetTime::Now,
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| libc::EOVERFLOW)?;
            let seconds = u32::try_from(since.as_secs()).map_err(|_| libc::EOVERFLOW)?;
            SetTime::To(Time { seconds, nanoseconds: since.subsec_nanos() })
        }
    })
}

impl Filesystem for Kernel {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_AUTO_INVAL_DATA
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO;
        let there = wanted & config.capabilities();
        let refused = |flags: InitFlags| {
            let what = format!("the kernel's FUSE has no {flags:?}");
            io::Error::new(io::ErrorKind::Unsupported, what)
        };
        config.add_capabilities(there).map_err(refused)?;
        // A value beyond what the kernel takes is set to what it takes.
        let _ = config.set_max_write(MAX_BYTES);
        let _ = config.set_max_readahead(MAX_BYTES);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, asked: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.0
            .answer(asked, async move |export| entry(reply, export.lookup(parent.0, &name).await));
    }

    fn forget(&self, _: &Request, id: INodeNo, lookups: u64) {
        self.0.run(async move |export| export.forget(id.0, lookups));
    }

    fn getattr(&self, asked: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.0.answer(asked, async move |export| attributes(reply, export.attributes(id.0).await));
    }

    fn setattr(
        &self,
        asked: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mode = mode.map(|mode| mode & 0o7777);
        let (accessed, modified) = match (set_time(atime), set_time(mtime)) {
            (Ok(accessed), Ok(modified)) => (accessed, modified),
            (Err(errno), _) | (_, Err(errno)) => return reply.error(out(errno)),
        };
        let to = SetAttributes { mode, uid, gid, bytes: size, accessed, modified };
        self.0.answer(asked, async move |export| attributes(reply, export.change(id.0, to).await));
    }

    fn readlink(&self, asked: &Request, id: INodeNo, reply: ReplyData) {
        self.0.answer(asked, async move |export| match export.link_target(id.0).await {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(out(errno)),
        });
    }

    fn mknod(
        &self,
        asked: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let name = name.to_owned();
        self.0.answer(asked, async move |export| {
            entry(reply, export.make_node(parent.0, &name, mode, device).await);
        });
    }

    fn mkdir(
        &self,
        asked: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let name = name.to_owned();
        self.0.answer(asked, async move |export| {
            entry(reply, export.make_directory(parent.0, &name, mode).await);
        });
    }

    fn unlink(&self, asked: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.0
            .answer(asked, async move |export| empty(reply, export.remove(parent.0, &name).await));
    }

    fn rmdir(&self, asked: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.0.answer(asked, async move |export| {
            empty(reply, export.remove_directory(parent.0, &name).await);
        });
    }

    fn symlink(
        &self,
        asked: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, target) = (name.to_owned(), target.as_os_str().as_bytes().to_vec());
        self.0.answer(asked, async move |export| {
            entry(reply, export.make_link(parent.0, &name, &target).await);
        });
    }

    fn rename(
        &self,
        asked: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // The protocol has neither an exchange nor a rename that replaces nothing.
        if flags.bits() != 0 {
            return reply.error(fuser::Errno::EINVAL);
        }
        let (name, newname) = (name.to_owned(), newname.to_owned());
        self.0.answer(asked, async move |export| {
            let (from, to) = ((parent.0, &*name), (newparent.0, &*newname));
            empty(reply, export.rename(from, to).await);
        });
    }

    fn link(&self, asked: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.0.answer(asked, async move |export| {
            entry(reply, export.link(id.0, parent.0, &name).await)
        });
    }

    fn open(&self, asked: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.0.answer(asked, async move |export| match export.open(id.0, flags.0).await {
            Ok(true) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Ok(false) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(out(errno)),
        });
    }

    fn create(
        &self,
        asked: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.to_owned();
        self.0.answer(asked, async move |export| {
            match export.create(parent.0, &name, mode, flags).await {
                Ok(Entry { attr, fresh }) => {
                    let flags = FopenFlags::empty();
                    reply.created(&fresh, &attr, GENERATION, FileHandle(0), flags);
                }
                Err(errno) => reply.error(out(errno)),
            }
        });
    }

    fn read(
        &self,
        asked: &Request,
        id: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.answer(asked, async move |export| match export.read(id.0, offset, size).await {
            Ok(data) => reply.data(data.as_ref()),
            Err(errno) => reply.error(out(errno)),
        });
    }

    fn write(
        &self,
        asked: &Request,
        id: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Kept until the server has made it durable.
        let (data, unheard) = (data.to_vec(), asked.pid() == 0);
        let work =
            async move |export: Rc<Export>| match export.write(id.0, offset, data, unheard).await {
                Ok(bytes) => reply.written(bytes),
                Err(errno) => reply.error(out(errno)),
            };
        match unheard {
            true => self.0.run(work),
            false => self.0.answer(asked, work),
        }
    }

    fn flush(&self, asked: &Request, id: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.answer(asked, async move |export| empty(reply, export.commit(id.0).await));
    }

    fn release(
        &self,
        _: &Request,
        id: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.run(async move |export| {
            export.release(id.0).await;
            reply.ok();
        });
    }

    fn fsync(&self, asked: &Request, id: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.answer(asked, async move |export| empty(reply, export.commit(id.0).await));
    }

    fn fsyncdir(&self, asked: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // Servers make names durable before they answer.
        self.0.answer(asked, async move |export| empty(reply, export.commit_all().await));
    }

    fn opendir(&self, asked: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.answer(asked, async move |export| {
            reply.opened(FileHandle(export.open_directory()), FopenFlags::empty());
        });
    }

    fn readdir(
        &self,
        asked: &Request,
        id: INodeNo,
        handle: FileHandle,
        from: u64,
        mut reply: ReplyDirectory,
    ) {
        self.0.answer(asked, async move |export| {
            let items = match export.list(id.0, handle.0, from).await {
                Ok(items) => items,
                Err(errno) => return reply.error(out(errno)),
            };
            for (place, dot) in [".", ".."].iter().enumerate().skip(from as usize) {
                if reply.add(id, place as u64 + 1, FileType::Directory, dot) {
                    return reply.ok();
                }
            }
            let first = from.saturating_sub(DOTS);
            for (place, item) in items.iter().enumerate().skip(first as usize) {
                let attributes = &item.found.attributes;
                let (number, kind) = (INodeNo(attributes.file), file_type(attributes.kind));
                if reply.add(number, place as u64 + DOTS + 1, kind, name_of(item)) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        asked: &Request,
        id: INodeNo,
        handle: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.0.answer(asked, async move |export| {
            let (items, own) = match export.list(id.0, handle.0, from).await {
                Ok(items) => match export.attributes(id.0).await {
                    Ok(own) => (items, own),
                    Err(errno) => return reply.error(out(errno)),
                },
                Err(errno) => return reply.error(out(errno)),
            };
            for (place, dot) in [".", ".."].iter().enumerate().skip(from as usize) {
                let next = place as u64 + 1;
                if reply.add(id, next, dot, &own.fresh, &own.attr, GENERATION) {
                    return reply.ok();
                }
            }
            let first = from.saturating_sub(DOTS);
            for (place, item) in items.iter().enumerate().skip(first as usize) {
                let (next, told) = (place as u64 + DOTS + 1, export.told(&item.found));
                let number = told.attr.ino;
                if reply.add(number, next, name_of(item), &told.fresh, &told.attr, GENERATION) {
                    // No room: the kernel was not told of it.
                    export.forget(number.0, 1);
                    break;
                }
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.run(async move |export| {
            export.release_directory(handle.0);
            reply.ok();
        });
    }

    fn statfs(&self, asked: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.0.answer(asked, async move |export| match export.space().await {
            Ok((space, names, transfer)) => {
                const BLOCK: u64 = 4096;
                let blocks = |bytes: u64| bytes / BLOCK;
                reply.statfs(
                    blocks(space.total_bytes),
                    blocks(space.free_bytes),
                    blocks(space.available_bytes),
                    space.total_files,
                    space.free_files,
                    transfer,
                    names,
                    BLOCK as u32,
                );
            }
            Err(errno) => reply.error(out(errno)),
        });
    }

    fn access(&self, asked: &Request, id: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.0.answer(asked, async move |export| empty(reply, export.may(id.0, mask.bits()).await));
    }
}
