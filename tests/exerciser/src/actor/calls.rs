// SPDX-License-Identifier: MIT OR Apache-2.0
//! One line as the system calls that it names.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use io_uring::{opcode, types};

use super::memory::copied;
use super::{Actor, NUMBERS};
use crate::operation::{
    BLOCK_BYTES, CloseBy, CopyBy, DupBy, MAPS, Name, Op, OpenBy, RECORD_BYTES, StatBy, SyncBy, path,
};
use crate::pattern;
use crate::record::Seen;

/// The mappings of this process: where and how long.
static MAPPED: [(AtomicUsize, AtomicU64); MAPS] =
    [const { (AtomicUsize::new(0), AtomicU64::new(0)) }; MAPS];

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn number(slot: u8) -> &'static AtomicI32 {
    &NUMBERS[slot as usize]
}

pub(super) fn fd(slot: u8) -> i32 {
    number(slot).load(Ordering::Relaxed)
}

fn name(name: Name) -> CString {
    CString::new(path(name)).expect("no zeros")
}

/// What a call returned.
pub(super) fn of(ret: i64) -> Seen {
    if ret < 0 { Seen::error(errno()) } else { Seen::ok(ret) }
}

/// What a request returned that tells its error as a negative number.
pub(super) fn of_negative(ret: i32) -> Seen {
    if ret < 0 { Seen::error(-ret) } else { Seen::ok(ret.into()) }
}

impl Actor {
    pub(super) fn call(&mut self, op: &Op) -> Seen {
        // SAFETY (all blocks below): calls with numbers, strings that end with zero and memory that
        // outlives them; a descriptor that is not open makes a call fail and nothing else.
        match op {
            Op::Open { slot, name, flags, by } => self.open(*slot, *name, *flags, *by),
            Op::OpenUnnamed { slot } => {
                // SAFETY: see above.
                let fd =
                    unsafe { libc::open(c".".as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o644) };
                self.keep(*slot, fd.into())
            }
            Op::Close { slot, by } => self.close(*slot, *by),
            Op::Dup { from, to, by } => {
                // SAFETY: see above.
                let made = unsafe {
                    match by {
                        DupBy::Dup => libc::dup(fd(*from)).into(),
                        DupBy::Fcntl => libc::fcntl(fd(*from), libc::F_DUPFD_CLOEXEC, 0).into(),
                        DupBy::Raw => libc::syscall(libc::SYS_dup, fd(*from)),
                    }
                };
                self.keep(*to, made)
            }
            Op::DupOver { from, to } => {
                // SAFETY: see above.
                let made = of(unsafe { libc::dup2(fd(*from), fd(*to)) }.into());
                if made.failed() || self.is_serial() { made } else { Seen::ok(0) }
            }
            Op::SetFlags { slot, flags } => {
                // SAFETY: see above.
                of(unsafe { libc::fcntl(fd(*slot), libc::F_SETFL, *flags) }.into())
            }
            Op::GetFlags { slot } => {
                // SAFETY: see above.
                let got = of(unsafe { libc::fcntl(fd(*slot), libc::F_GETFL) }.into());
                let told = i64::from(libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT);
                Seen { ret: if got.failed() { -1 } else { got.ret & told }, ..got }
            }
            Op::Transfer(transfer) => self.transfer(transfer),
            Op::Batch { slot, by, parts, beside } => self.batch(*slot, *by, parts, *beside),
            // SAFETY: see above.
            Op::Seek { slot, whence, to } => of(unsafe { libc::lseek(fd(*slot), *to, *whence) }),
            Op::Truncate { name: of_name, to } => {
                // SAFETY: see above.
                of(unsafe { libc::truncate(name(*of_name).as_ptr(), *to) }.into())
            }
            // SAFETY: see above.
            Op::Ftruncate { slot, to } => of(unsafe { libc::ftruncate(fd(*slot), *to) }.into()),
            Op::Fallocate { slot, mode, at, bytes } => {
                // SAFETY: see above.
                of(unsafe { libc::fallocate(fd(*slot), *mode, *at, *bytes) }.into())
            }
            Op::Rename { from, to, flags } => {
                let (from, to, here) = (name(*from), name(*to), libc::AT_FDCWD);
                // SAFETY: see above.
                of(unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), *flags) }
                    .into())
            }
            Op::Unlink { name: of_name } => {
                // SAFETY: see above.
                of(unsafe { libc::unlink(name(*of_name).as_ptr()) }.into())
            }
            Op::Link { from, to } => {
                // SAFETY: see above.
                of(unsafe { libc::link(name(*from).as_ptr(), name(*to).as_ptr()) }.into())
            }
            Op::Map { map, slot, shared, write, at, bytes } => {
                map_file(*map, fd(*slot), *shared, *write, *at, *bytes)
            }
            Op::Unmap { map } => unmap(*map),
            Op::Peek { map, at, bytes } => self.peek(*map, *at, *bytes),
            Op::Poke { map, at, bytes, seed } => self.poke(*map, *at, *bytes, *seed),
            Op::Msync { map, flags } => {
                let (start, bytes) = &MAPPED[*map as usize];
                let start = start.load(Ordering::Relaxed) as *mut libc::c_void;
                // SAFETY: see above; of no mapping it is the empty range.
                of(unsafe { libc::msync(start, bytes.load(Ordering::Relaxed) as usize, *flags) }
                    .into())
            }
            Op::Sync { slot, by } => self.sync(fd(*slot), *by),
            Op::Advise { slot, advice } => {
                // SAFETY: see above. It returns the error itself.
                match unsafe { libc::posix_fadvise(fd(*slot), 0, 0, *advice) } {
                    0 => Seen::ok(0),
                    error => Seen::error(error),
                }
            }
            Op::Copy { from, to, from_at, to_at, bytes, by } => {
                self.copy(fd(*from), fd(*to), *from_at, *to_at, *bytes as usize, *by)
            }
            Op::StatOpen { slot, by } => stat(fd(*slot), None, *by),
            Op::StatName { name: of_name, by } => stat(libc::AT_FDCWD, Some(name(*of_name)), *by),
            Op::Record { slot, seed } => {
                let record = pattern::bytes(RECORD_BYTES, *seed);
                // SAFETY: see above.
                of(unsafe { libc::write(fd(*slot), record.as_ptr().cast(), RECORD_BYTES) } as i64)
            }
            Op::Block { slot, block, write, seed } => self.block(*slot, *block, *write, *seed),
            Op::Fork { .. } | Op::Kill { .. } | Op::Disturb => unreachable!("not a call"),
        }
    }

    /// Keeps a new descriptor. Among free actors its number is a matter of luck.
    fn keep(&self, slot: u8, ret: i64) -> Seen {
        let seen = of(ret);
        if seen.failed() {
            return seen;
        }
        number(slot).store(ret as i32, Ordering::Relaxed);
        if self.is_serial() { seen } else { Seen::ok(0) }
    }

    fn open(&mut self, slot: u8, name: Name, flags: i32, by: OpenBy) -> Seen {
        let relative = super::calls::name(name);
        let absolute = CString::new(format!("{}/{}", self.shared.directory, path(name)));
        let absolute = absolute.expect("no zeros");
        let here = libc::AT_FDCWD;
        // SAFETY: strings that end with zero and outlive the calls.
        let made = unsafe {
            match by {
                OpenBy::Open => libc::open(relative.as_ptr(), flags, 0o644).into(),
                OpenBy::Absolute => libc::open64(absolute.as_ptr(), flags, 0o644).into(),
                OpenBy::Openat => libc::openat(here, relative.as_ptr(), flags, 0o644).into(),
                OpenBy::Raw => {
                    libc::syscall(libc::SYS_openat, here, relative.as_ptr(), flags, 0o644)
                }
                OpenBy::Creat => libc::creat(relative.as_ptr(), 0o644).into(),
                OpenBy::Uring => {
                    let entry = opcode::OpenAt::new(types::Fd(here), relative.as_ptr());
                    let made = self
                        .queues
                        .ring_one(entry.flags(flags | libc::O_LARGEFILE).mode(0o644).build());
                    if made < 0 {
                        return Seen::error(-made);
                    }
                    made.into()
                }
            }
        };
        self.keep(slot, made)
    }

    fn close(&mut self, slot: u8, by: CloseBy) -> Seen {
        let fd = fd(slot);
        // SAFETY: whatever the number is, closing it is what the script says; the actor's own lie
        // elsewhere.
        let seen = unsafe {
            match by {
                CloseBy::Close => of(libc::close(fd).into()),
                CloseBy::Raw => of(libc::syscall(libc::SYS_close, fd)),
                CloseBy::Range => match fd {
                    0.. => of(libc::syscall(libc::SYS_close_range, fd, fd, 0)),
                    _ => Seen::error(libc::EBADF),
                },
                CloseBy::Uring => {
                    of_negative(self.queues.ring_one(opcode::Close::new(types::Fd(fd)).build()))
                }
                CloseBy::Stream => {
                    let flags = libc::fcntl(fd, libc::F_GETFL);
                    let mode = match flags & libc::O_ACCMODE {
                        libc::O_WRONLY => c"w",
                        libc::O_RDWR => c"r+",
                        _ => c"r",
                    };
                    match flags {
                        -1 => of(-1),
                        flags if flags & libc::O_PATH != 0 => of(libc::close(fd).into()),
                        _ => {
                            let stream = libc::fdopen(fd, mode.as_ptr());
                            if stream.is_null() { of(-1) } else { of(libc::fclose(stream).into()) }
                        }
                    }
                }
            }
        };
        if !self.is_serial() {
            // Its number may be another's by now.
            number(slot).store(-1, Ordering::Relaxed);
        }
        seen
    }

    fn peek(&mut self, map: u8, at: u64, bytes: u32) -> Seen {
        let start = MAPPED[map as usize].0.load(Ordering::Relaxed) as *const u8;
        if start.is_null() {
            return Seen::error(libc::ENOMEM);
        }
        let memory = self.memory.piece(0, bytes as usize, 0);
        // SAFETY: the script stays within the mapping.
        let there = copied(unsafe { start.add(at as usize) }, memory.as_mut_ptr(), memory.len());
        if !there {
            unmap(map);
            return Seen::error(libc::EFAULT);
        }
        let digest = pattern::digest(memory);
        let copy = memory.to_vec();
        self.dump(&copy);
        Seen { ret: bytes.into(), digest, ..Seen::default() }
    }

    fn poke(&mut self, map: u8, at: u64, bytes: u32, seed: u64) -> Seen {
        let start = MAPPED[map as usize].0.load(Ordering::Relaxed) as *mut u8;
        if start.is_null() {
            return Seen::error(libc::ENOMEM);
        }
        let memory = self.memory.piece(0, bytes as usize, 0);
        pattern::fill(memory, seed);
        // SAFETY: the script stays within the mapping, which may be written.
        let there = copied(memory.as_ptr(), unsafe { start.add(at as usize) }, memory.len());
        if !there {
            unmap(map);
            return Seen::error(libc::EFAULT);
        }
        Seen::ok(bytes.into())
    }

    fn sync(&mut self, fd: i32, by: SyncBy) -> Seen {
        // SAFETY: calls on numbers.
        unsafe {
            match by {
                SyncBy::Fsync => of(libc::fsync(fd).into()),
                SyncBy::Fdatasync => of(libc::fdatasync(fd).into()),
                SyncBy::Range => {
                    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                    of(libc::sync_file_range(fd, 0, 0, flags).into())
                }
                SyncBy::Syncfs => of(libc::syncfs(fd).into()),
                SyncBy::Uring => {
                    of_negative(self.queues.ring_one(opcode::Fsync::new(types::Fd(fd)).build()))
                }
            }
        }
    }

    fn copy(
        &mut self,
        from: i32,
        to: i32,
        mut from_at: Option<i64>,
        mut to_at: Option<i64>,
        bytes: usize,
        by: CopyBy,
    ) -> Seen {
        let pointer = |at: &mut Option<i64>| match at {
            Some(at) => &raw mut *at,
            None => std::ptr::null_mut(),
        };
        let (source, target) = (pointer(&mut from_at), pointer(&mut to_at));
        let none = std::ptr::null_mut();
        // SAFETY: offsets that outlive the calls, and a pipe of the actor's own.
        unsafe {
            match by {
                CopyBy::CopyFileRange => {
                    of(libc::copy_file_range(from, source, to, target, bytes, 0) as i64)
                }
                CopyBy::Sendfile => of(libc::sendfile(to, from, source, bytes) as i64),
                CopyBy::Splice => {
                    let [read, write] = self.pipe;
                    let taken = libc::splice(from, source, write, none, bytes.min(60 << 10), 0);
                    if taken <= 0 {
                        return of(taken as i64);
                    }
                    let (mut given, mut last) = (0, Seen::ok(0));
                    while given < taken {
                        let part =
                            libc::splice(read, none, to, target, (taken - given) as usize, 0);
                        if part <= 0 {
                            last = of(part as i64);
                            break;
                        }
                        given += part;
                    }
                    let mut rest = vec![0u8; (taken - given) as usize];
                    while !rest.is_empty() {
                        let read = libc::read(read, rest.as_mut_ptr().cast(), rest.len());
                        rest.truncate(rest.len() - read.max(0) as usize);
                    }
                    if given > 0 {
                        last = Seen::ok(given as i64);
                    }
                    Seen { more: taken as u64, ..last }
                }
            }
        }
    }

    fn block(&mut self, slot: u8, block: u64, write: bool, seed: u64) -> Seen {
        let fd = fd(slot);
        let at = (block * BLOCK_BYTES as u64) as i64;
        let memory = self.memory.piece(0, BLOCK_BYTES, 0);
        if write {
            pattern::fill(memory, seed);
            // SAFETY: a block of memory.
            return of(unsafe { libc::pwrite(fd, memory.as_ptr().cast(), BLOCK_BYTES, at) } as i64);
        }
        // SAFETY: as above.
        let mut seen =
            of(unsafe { libc::pread(fd, memory.as_mut_ptr().cast(), BLOCK_BYTES, at) } as i64);
        // Whatever order there was, every word is one that somebody wrote, or none yet.
        let written: Vec<Vec<u8>> = (self.shared.script.lines.iter())
            .filter_map(|line| match line.op {
                Op::Block { block: other, write: true, seed, .. } if other == block => {
                    Some(pattern::bytes(BLOCK_BYTES, seed))
                }
                _ => None,
            })
            .collect();
        for (place, word) in memory.chunks(8).enumerate() {
            let from = place * 8;
            let known = written.iter().any(|one| &one[from..from + 8] == word);
            if !known && word.iter().any(|byte| *byte != 0) {
                seen.more = 1;
            }
        }
        seen
    }
}

fn map_file(map: u8, fd: i32, shared: bool, write: bool, at: u64, bytes: u64) -> Seen {
    unmap(map);
    let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let rights = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, rights, kind, fd, at as i64) };
    if start == libc::MAP_FAILED {
        return of(-1);
    }
    let (place, length) = &MAPPED[map as usize];
    place.store(start as usize, Ordering::Relaxed);
    length.store(bytes, Ordering::Relaxed);
    Seen::ok(0)
}

/// Goes on without the mappings of a parent.
pub fn forget_mappings() {
    MAPPED.iter().for_each(|(start, _)| start.store(0, Ordering::Relaxed));
}

fn unmap(map: u8) -> Seen {
    let (place, length) = &MAPPED[map as usize];
    let start = place.swap(0, Ordering::Relaxed);
    let bytes = length.swap(0, Ordering::Relaxed);
    if start == 0 {
        return Seen::ok(0);
    }
    // SAFETY: a mapping of the script's, which no other actor uses.
    of(unsafe { libc::munmap(start as *mut libc::c_void, bytes as usize) }.into())
}

fn stat(fd: i32, name: Option<CString>, by: StatBy) -> Seen {
    let path = name.as_ref().map_or(c"".as_ptr(), |name| name.as_ptr());
    // SAFETY: room for a whole structure, and strings that end with zero.
    unsafe {
        match by {
            StatBy::Stat => {
                let mut stat: libc::stat = std::mem::zeroed();
                let ret = match &name {
                    None => libc::fstat(fd, &raw mut stat),
                    Some(_) => libc::stat(path, &raw mut stat),
                };
                let seen = of(ret.into());
                if seen.failed() {
                    return seen;
                }
                let more = stat.st_nlink << 16 | u64::from(stat.st_mode);
                Seen { digest: stat.st_size as u64, more, ..seen }
            }
            StatBy::Statx => {
                let mut stat: libc::statx = std::mem::zeroed();
                let flags = libc::AT_STATX_FORCE_SYNC | libc::AT_EMPTY_PATH;
                let mask = libc::STATX_BASIC_STATS;
                let seen = of(libc::statx(fd, path, flags, mask, &raw mut stat).into());
                if seen.failed() {
                    return seen;
                }
                let more = u64::from(stat.stx_nlink) << 16 | u64::from(stat.stx_mode);
                Seen { digest: stat.stx_size, more, ..seen }
            }
        }
    }
}
