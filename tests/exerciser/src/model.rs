// SPDX-License-Identifier: MIT OR Apache-2.0
//! What files, descriptors and mappings must be like after every line: a file system of vectors.
//!
//! The model says what a call returns. Where the standard leaves a choice (an alignment that a file
//! system refuses, how much of a copy is done at once), it is told what was seen, checks that this
//! was allowed, and goes on from there.

mod content;
mod copies;
mod mapped;
mod names;
mod transfers;

use std::collections::BTreeMap;

use crate::operation::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCKS, CloseBy, Line, MAPS, NAMES, Name, Op, Order, PROCESSES,
    RANGE_BYTES, RECORD_BYTES, RECORDS, SHARED, SLOTS, SyncBy,
};
use crate::pattern;
use crate::record::{SPILLED, Seen};

pub use content::Inode;
pub use mapped::Mapping;

/// Bytes of [`SHARED`] at the beginning.
pub const SHARED_BYTES: u64 = 6 * RANGE_BYTES;
/// What [`SHARED`] has at the beginning.
pub const SHARED_SEED: u64 = 1;
const PAGE: u64 = 4096;

/// An open file description.
#[derive(Clone, Debug)]
pub struct Description {
    /// Which file.
    pub inode: usize,
    /// Its flags.
    pub flags: i32,
    /// The flags that it was opened with.
    pub opened: i32,
    /// Its position.
    pub offset: i64,
    /// The server that it was opened through is gone.
    pub severed: bool,
}

impl Description {
    fn only_path(&self) -> bool {
        self.flags & libc::O_PATH != 0
    }

    /// Whether it may be read.
    pub fn reads(&self) -> bool {
        !self.only_path() && self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Whether it may be written.
    pub fn writes(&self) -> bool {
        !self.only_path() && self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether writes go to the end.
    pub fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }

    /// Whether it goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.flags & libc::O_DIRECT != 0
    }
}

#[derive(Clone, Debug)]
struct Process {
    parent: Option<u8>,
    alive: bool,
    table: BTreeMap<i32, usize>,
    slots: [i32; SLOTS],
    maps: Vec<Option<Mapping>>,
}

/// What the model says of one line.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// What was seen, or what would be.
    pub seen: Seen,
    /// Another run may see something else.
    pub free: bool,
}

/// Everything that the lines so far have made.
#[derive(Clone, Debug)]
pub struct Model {
    order: Order,
    /// The files by name.
    pub names: [Option<usize>; NAMES],
    /// All files that ever were.
    pub inodes: Vec<Inode>,
    descriptions: Vec<Description>,
    processes: Vec<Option<Process>>,
    next_number: i32,
    free: bool,
    /// Whether FUSE lies between: it takes direct requests of any alignment, knows fewer modes of
    /// `fallocate`, and looks for holes past mapped memory that was not synced.
    pub through_fuse: bool,
    /// What was appended to [`RECORDS`], by actor.
    pub records: BTreeMap<(u8, u8), Vec<(u64, bool)>>,
    /// What was written last to each block of [`BLOCKS`], by actor.
    pub blocks: BTreeMap<(u64, u8, u8), Vec<u64>>,
}

/// Errors of a file whose server is gone.
const GONE: [i32; 6] =
    [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO, libc::ENODEV, libc::ESTALE, libc::EINTR];

/// What was seen is what was to be expected, or one of these errors.
fn judged(seen: Option<Seen>, expected: Seen, also: &[i32]) -> Result<Seen, String> {
    match seen {
        None => Ok(expected),
        Some(seen) if seen == expected => Ok(seen),
        Some(seen) if seen.failed() && also.contains(&seen.errno) => Ok(seen),
        Some(seen) => Err(format!("expected {}, got {}", said(&expected), said(&seen))),
    }
}

/// A result as a person reads it.
pub fn said(seen: &Seen) -> String {
    let spilled =
        if seen.more & SPILLED != 0 { ", BYTES BEHIND THE BUFFER WERE WRITTEN" } else { "" };
    match seen.failed() {
        true => format!("errno {}{spilled}", std::io::Error::from_raw_os_error(seen.errno)),
        false => format!(
            "{} (digest {:016x}, more {:#x}{}){spilled}",
            seen.ret,
            seen.digest,
            seen.more & !SPILLED,
            if seen.errno != 0 { format!(", errno {}", seen.errno) } else { String::new() },
        ),
    }
}

impl Model {
    /// The state at the beginning of every run.
    pub fn new(order: Order) -> Self {
        let mut model = Model {
            order,
            names: [None; NAMES],
            inodes: Vec::new(),
            descriptions: Vec::new(),
            processes: (0..PROCESSES).map(|_| None).collect(),
            next_number: 10_000,
            free: false,
            through_fuse: false,
            records: BTreeMap::new(),
            blocks: BTreeMap::new(),
        };
        for (name, bytes) in [
            (SHARED, pattern::bytes(SHARED_BYTES as usize, SHARED_SEED)),
            (RECORDS, Vec::new()),
            (BLOCKS, vec![0; BLOCK_BYTES * BLOCK_COUNT as usize]),
        ] {
            model.names[name as usize] = Some(model.inodes.len());
            let untracked = name != SHARED;
            model.inodes.push(Inode { data: bytes, links: 1, untracked, ..Inode::default() });
        }
        model.processes[0] = Some(Process {
            parent: None,
            alive: true,
            table: BTreeMap::new(),
            slots: [-1; SLOTS],
            maps: vec![None; MAPS],
        });
        model
    }

    fn process(&mut self, line: &Line) -> &mut Process {
        self.processes[line.process as usize].as_mut().expect("a process that was forked")
    }

    /// Whether a process is there.
    pub fn is_alive(&self, process: u8) -> bool {
        self.processes[process as usize].as_ref().is_some_and(|process| process.alive)
    }

    /// Whether a process was there once.
    pub fn has_been(&self, process: u8) -> bool {
        self.processes[process as usize].is_some()
    }

    fn number(&self, process: u8, slot: u8) -> i32 {
        self.processes[process as usize].as_ref().map_or(-1, |one| one.slots[slot as usize])
    }

    fn id(&self, process: u8, slot: u8) -> Option<usize> {
        let table = &self.processes[process as usize].as_ref()?.table;
        table.get(&self.number(process, slot)).copied()
    }

    /// What a slot of a process is open on.
    pub fn open(&self, process: u8, slot: u8) -> Option<&Description> {
        self.id(process, slot).map(|id| &self.descriptions[id])
    }

    /// A mapping of a process.
    pub fn mapping(&self, process: u8, map: u8) -> Option<&Mapping> {
        self.processes[process as usize].as_ref()?.maps[map as usize].as_ref()
    }

    /// Whether a line can be carried out without an outcome that nobody can foretell.
    pub fn allows(&self, line: &Line) -> bool {
        if !self.is_alive(line.process) || self.resizes_severed(line) {
            return false;
        }
        let within = |map: u8, at: u64, bytes: u32, writes: bool| {
            let Some(mapping) = self.mapping(line.process, map) else { return true };
            let inode = &self.inodes[mapping.inode];
            let end = at + u64::from(bytes);
            !mapping.severed
                && !mapping.vague
                && end <= mapping.bytes
                && (!writes || mapping.write)
                && mapping.at + end <= inode.len()
        };
        match &line.op {
            Op::Fork { child } => {
                line.process != *child && self.processes[*child as usize].is_none()
            }
            Op::Kill { child } => {
                let parent = self.processes[*child as usize].as_ref().and_then(|one| one.parent);
                let mut others = self.processes.iter().flatten();
                parent == Some(line.process)
                    && self.is_alive(*child)
                    && !others.any(|other| other.alive && other.parent == Some(*child))
            }
            Op::Peek { map, at, bytes } => within(*map, *at, *bytes, false),
            Op::Poke { map, at, bytes, .. } => within(*map, *at, *bytes, true),
            Op::Msync { map, .. } => {
                self.mapping(line.process, *map).is_none_or(|mapping| !mapping.severed)
            }
            Op::Copy { from, to, by, .. } => {
                let inode = |slot| self.open(line.process, slot).map(|one| one.inode);
                *by == crate::operation::CopyBy::CopyFileRange
                    || inode(*from).is_none()
                    || inode(*from) != inode(*to)
            }
            // Nothing says how much of a direct request is carried out where its memory ends.
            Op::Transfer(transfer) if transfer.claim > 0 => {
                self.open(line.process, transfer.slot).is_none_or(|open| !open.is_direct())
            }
            Op::Batch { slot, parts, .. } => {
                self.open(line.process, *slot).is_none_or(|description| {
                    let length = self.inodes[description.inode].len();
                    let inside =
                        |part: &crate::operation::Part| part.at + u64::from(part.bytes) <= length;
                    !description.appends() && parts.iter().all(inside)
                })
            }
            _ => true,
        }
    }

    /// The next free number of a process.
    fn free_number(&mut self, process: u8) -> i32 {
        if self.order == Order::Free {
            self.next_number += 1;
            return self.next_number;
        }
        let table = &self.processes[process as usize].as_ref().expect("a process").table;
        (3..).find(|number| !table.contains_key(number)).expect("a number")
    }

    /// A new descriptor in a slot.
    fn keep(
        &mut self,
        line: &Line,
        slot: u8,
        id: usize,
        seen: Option<Seen>,
        also: &[i32],
    ) -> Result<Seen, String> {
        let number = self.free_number(line.process);
        let told = if self.order == Order::Free { 0 } else { number };
        let seen = judged(seen, Seen::ok(told.into()), also)?;
        if !seen.failed() {
            let process = self.process(line);
            process.table.insert(number, id);
            process.slots[slot as usize] = number;
        }
        Ok(seen)
    }

    /// Carries out a line; `seen` is what became of it, or nothing to have the model say so.
    ///
    /// # Errors
    /// What was seen cannot be.
    pub fn apply(&mut self, line: &Line, seen: Option<Seen>) -> Result<Verdict, String> {
        self.free = false;
        if seen.is_some_and(|seen| seen.more & SPILLED != 0) {
            return Err("bytes behind the buffer were written".into());
        }
        if let Some(seen) = seen
            && self.severed(line)
        {
            // The mount is another one: errors do nothing, and what succeeds must be right.
            let copies = matches!(line.op, Op::Copy { .. });
            if seen.failed() && (copies || GONE.contains(&seen.errno)) {
                // A splice has taken from its source all the same.
                if let Op::Copy { from, from_at: None, .. } = line.op
                    && let Some(id) = self.id(line.process, from)
                {
                    self.descriptions[id].offset += seen.more as i64;
                }
                if let Op::Close { slot, .. } = line.op {
                    self.close(line, slot);
                }
                self.undecided(line);
                return Ok(Verdict { seen, free: true });
            }
            // The length that a dead mount remembers may lie before the place that is looked for.
            let looks = matches!(line.op, Op::Seek { whence, .. } if whence >= libc::SEEK_END);
            if looks && [libc::EINVAL, libc::ENXIO].contains(&seen.errno) {
                return Ok(Verdict { seen, free: true });
            }
            // The kernel answers some by what it knew last.
            let remembered = match &line.op {
                _ if seen.failed() => false,
                Op::Transfer(transfer) => !transfer.write && seen.ret == 0,
                Op::Copy { .. } => seen.ret == 0,
                Op::StatOpen { .. } | Op::Advise { .. } => true,
                Op::Seek { slot, whence, .. } if *whence >= libc::SEEK_END => {
                    if let Some(id) = self.id(line.process, *slot) {
                        self.descriptions[id].offset = seen.ret;
                    }
                    true
                }
                _ => false,
            };
            if remembered {
                return Ok(Verdict { seen, free: true });
            }
            self.free = true;
            if !seen.failed() && self.resizes_severed(line) {
                // Scripts do that only where a position was not to be foretold.
                if let Some(inode) = self.written(line) {
                    self.forget(inode);
                    self.inodes[inode].vague_length = true;
                }
            }
        }
        let seen = self.carried_out(line, seen)?;
        Ok(Verdict { seen, free: self.free })
    }

    /// The file that a line writes to by descriptor, or changes the length of.
    fn written(&self, line: &Line) -> Option<usize> {
        let of = |slot: u8| self.open(line.process, slot).map(|open| open.inode);
        match &line.op {
            Op::Transfer(transfer) if transfer.write => of(transfer.slot),
            Op::Batch { slot, .. } | Op::Ftruncate { slot, .. } | Op::Fallocate { slot, .. } => {
                of(*slot)
            }
            Op::Copy { to, .. } => of(*to),
            _ => None,
        }
    }

    /// Whether a line may change a file through a dead mount by more than bytes within its length.
    /// Another mount sees a new length late, and of a request that failed nobody can say what it
    /// did.
    fn resizes_severed(&self, line: &Line) -> bool {
        let writable =
            |slot: u8| self.open(line.process, slot).filter(|open| open.severed && open.writes());
        match &line.op {
            Op::Transfer(transfer) if transfer.write => {
                writable(transfer.slot).is_some_and(|open| {
                    let end = transfer
                        .at
                        .filter(|at| *at >= 0)
                        .map(|at| (at as u64).saturating_add(transfer.length() as u64));
                    open.appends()
                        || transfer.rwf & libc::RWF_APPEND != 0
                        || transfer.claim > 0
                        || end.is_none_or(|end| end > self.inodes[open.inode].len())
                })
            }
            Op::Batch { slot, parts, .. } => {
                writable(*slot).is_some() && parts.iter().any(|part| part.write)
            }
            Op::Ftruncate { slot, .. } | Op::Fallocate { slot, .. } => writable(*slot).is_some(),
            Op::Copy { to, .. } => writable(*to).is_some(),
            _ => false,
        }
    }

    /// Notes a write through a dead mount that failed: it may have been carried out all the same.
    fn undecided(&mut self, line: &Line) {
        if let Op::Transfer(transfer) = &line.op
            && let (true, Some(at)) = (transfer.write, transfer.at.filter(|at| *at >= 0))
            && let Some(inode) = self.open(line.process, transfer.slot).map(|open| open.inode)
        {
            let end = (at as u64).saturating_add(transfer.length() as u64);
            let file = &mut self.inodes[inode];
            file.vague.push(at as u64..end);
            file.vague_length |= end > file.len();
        }
        if let Op::Copy { to, to_at, bytes, by, .. } = line.op {
            let target = self.open(line.process, to).cloned();
            self.half_copied(target, to_at, bytes, by);
        }
    }

    /// Whether a line touches something whose server is gone.
    fn severed(&self, line: &Line) -> bool {
        let of = |slot: u8| self.open(line.process, slot).is_some_and(|one| one.severed);
        match &line.op {
            Op::Close { slot, .. }
            | Op::SetFlags { slot, .. }
            | Op::Batch { slot, .. }
            | Op::Seek { slot, .. }
            | Op::Ftruncate { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::Map { slot, .. }
            | Op::Sync { slot, .. }
            | Op::Advise { slot, .. }
            | Op::StatOpen { slot, .. } => of(*slot),
            Op::Transfer(transfer) => of(transfer.slot),
            Op::Copy { from, to, .. } | Op::DupOver { from, to } => of(*from) || of(*to),
            _ => false,
        }
    }

    fn carried_out(&mut self, line: &Line, seen: Option<Seen>) -> Result<Seen, String> {
        let process = line.process;
        match &line.op {
            Op::Open { slot, name, flags, .. } => self.open_name(line, *slot, *name, *flags, seen),
            Op::OpenUnnamed { slot } => {
                let inode = self.inodes.len();
                self.inodes.push(Inode::default());
                let id = self.described(inode, libc::O_RDWR);
                self.keep(line, *slot, id, seen, &[libc::EOPNOTSUPP])
            }
            Op::Close { slot, by } => {
                let is_open = self.id(process, *slot).is_some();
                let number = self.number(process, *slot);
                // A range of numbers may have none in it.
                let fine = is_open || *by == CloseBy::Range && number >= 0;
                let expected = if fine { Seen::ok(0) } else { Seen::error(libc::EBADF) };
                let seen = judged(seen, expected, &[])?;
                self.close(line, *slot);
                Ok(seen)
            }
            Op::Dup { from, to, .. } => match self.id(process, *from) {
                Some(id) => self.keep(line, *to, id, seen, &[]),
                None => judged(seen, Seen::error(libc::EBADF), &[]),
            },
            Op::DupOver { from, to } => {
                let number = self.number(process, *to);
                let Some(id) = self.id(process, *from).filter(|_| number >= 0) else {
                    return judged(seen, Seen::error(libc::EBADF), &[]);
                };
                let told = if self.order == Order::Free { 0 } else { number };
                let seen = judged(seen, Seen::ok(told.into()), &[])?;
                self.process(line).table.insert(number, id);
                Ok(seen)
            }
            Op::SetFlags { slot, flags } => {
                let Some(id) = self.id(process, *slot) else {
                    return judged(seen, Seen::error(libc::EBADF), &[]);
                };
                if self.descriptions[id].only_path() {
                    return judged(seen, Seen::error(libc::EBADF), &[]);
                }
                let refusal = if flags & libc::O_DIRECT != 0 { [libc::EINVAL] } else { [0] };
                let seen = judged(seen, Seen::ok(0), &refusal)?;
                if !seen.failed() {
                    let changeable = libc::O_APPEND | libc::O_DIRECT;
                    let old = &mut self.descriptions[id].flags;
                    *old = *old & !changeable | flags & changeable;
                }
                Ok(seen)
            }
            Op::GetFlags { slot } => {
                let told = libc::O_ACCMODE | libc::O_APPEND | libc::O_DIRECT;
                let expected = match self.open(process, *slot) {
                    None => Seen::error(libc::EBADF),
                    Some(open) if open.only_path() => Seen::ok(0),
                    Some(open) => Seen::ok(i64::from(open.flags & told)),
                };
                judged(seen, expected, &[])
            }
            Op::Transfer(transfer) => self.transfer(line, transfer, seen),
            Op::Batch { slot, parts, beside, .. } => {
                self.batch(process, *slot, parts, *beside, seen)
            }
            Op::Seek { slot, whence, to } => self.seek(process, *slot, *whence, *to, seen),
            Op::Truncate { name, to } => {
                let inode = self.names[*name as usize];
                match inode {
                    _ if *to < 0 => judged(seen, Seen::error(libc::EINVAL), &[]),
                    None => judged(seen, Seen::error(libc::ENOENT), &[]),
                    Some(inode) => {
                        let seen = judged(seen, Seen::ok(0), &[])?;
                        self.set_length(inode, *to as u64);
                        Ok(seen)
                    }
                }
            }
            Op::Ftruncate { slot, to } => {
                let open = self.open(process, *slot).cloned();
                let error = match &open {
                    _ if *to < 0 => libc::EINVAL,
                    None => libc::EBADF,
                    Some(open) if open.only_path() => libc::EBADF,
                    Some(open) if !open.writes() => libc::EINVAL,
                    Some(_) => 0,
                };
                if error != 0 {
                    return judged(seen, Seen::error(error), &[]);
                }
                let seen = judged(seen, Seen::ok(0), &[])?;
                if let Some(open) = open {
                    self.set_length(open.inode, *to as u64);
                }
                Ok(seen)
            }
            Op::Fallocate { slot, mode, at, bytes } => {
                self.fallocate(process, *slot, *mode, *at, *bytes, seen)
            }
            Op::Rename { from, to, flags } => self.rename(*from, *to, *flags, seen),
            Op::Unlink { name } => self.unlink(*name, seen),
            Op::Link { from, to } => self.link(*from, *to, seen),
            Op::Map { map, slot, shared, write, at, bytes } => {
                self.map(line, *map, *slot, *shared, *write, (*at, *bytes), seen)
            }
            Op::Unmap { map } => {
                self.process(line).maps[*map as usize] = None;
                judged(seen, Seen::ok(0), &[])
            }
            Op::Peek { map, at, bytes } => self.peek(line, *map, *at, u64::from(*bytes), seen),
            Op::Poke { map, at, bytes, seed } => {
                self.poke(line, *map, *at, u64::from(*bytes), *seed, seen)
            }
            Op::Msync { map, flags } => {
                let inode = self.mapping(process, *map).map(|mapping| mapping.inode);
                if let Some(inode) = inode.filter(|_| flags & libc::MS_SYNC != 0) {
                    self.inodes[inode].unsynced.clear();
                }
                judged(seen, Seen::ok(0), &[])
            }
            Op::Sync { slot, by } => {
                let open = self.open(process, *slot);
                let refused = match open {
                    None => true,
                    Some(open) => open.only_path(),
                };
                let inode = open.map(|open| open.inode);
                let expected = if refused { Seen::error(libc::EBADF) } else { Seen::ok(0) };
                let seen = judged(seen, expected, &[])?;
                let whole = matches!(by, SyncBy::Fsync | SyncBy::Fdatasync | SyncBy::Uring);
                if let Some(inode) = inode.filter(|_| whole && !seen.failed()) {
                    self.inodes[inode].unsynced.clear();
                }
                Ok(seen)
            }
            Op::Advise { slot, .. } => {
                let fine = self.open(process, *slot).is_some_and(|open| !open.only_path());
                judged(seen, if fine { Seen::ok(0) } else { Seen::error(libc::EBADF) }, &[])
            }
            Op::Copy { from, to, from_at, to_at, bytes, by } => {
                self.copy(process, (*from, *from_at), (*to, *to_at), *bytes, *by, seen)
            }
            Op::StatOpen { slot, .. } => match self.open(process, *slot).map(|open| open.inode) {
                None => judged(seen, Seen::error(libc::EBADF), &[]),
                Some(inode) => self.attributes(inode, seen),
            },
            Op::StatName { name, .. } => match self.names[*name as usize] {
                None => judged(seen, Seen::error(libc::ENOENT), &[]),
                Some(inode) => self.attributes(inode, seen),
            },
            Op::Record { slot, seed } => {
                if self.id(process, *slot).is_none() {
                    return judged(seen, Seen::error(libc::EBADF), &[]);
                }
                let seen = judged(seen, Seen::ok(RECORD_BYTES as i64), &[])?;
                let actor = (line.process, line.thread);
                self.records.entry(actor).or_default().push((*seed, true));
                Ok(seen)
            }
            Op::Block { slot, block, write, seed } => {
                if self.id(process, *slot).is_none() {
                    return judged(seen, Seen::error(libc::EBADF), &[]);
                }
                let seen = judged(seen, Seen::ok(BLOCK_BYTES as i64), &[])?;
                if *write {
                    let place = (*block, line.process, line.thread);
                    self.blocks.insert(place, vec![*seed]);
                }
                Ok(seen)
            }
            Op::Fork { child } => {
                let mut copy = self.process(line).clone();
                copy.parent = Some(process);
                if self.order == Order::Free {
                    copy.slots = [-1; SLOTS];
                    copy.table.clear();
                    copy.maps = vec![None; MAPS];
                }
                self.processes[*child as usize] = Some(copy);
                judged(seen, Seen::ok(0), &[])
            }
            Op::Kill { child } => {
                if let Some(child) = &mut self.processes[*child as usize] {
                    child.alive = false;
                }
                judged(seen, Seen::ok(0), &[])
            }
            Op::Disturb => {
                // Nobody promised that mapped memory reached the server.
                for inode in &mut self.inodes {
                    let unsynced = std::mem::take(&mut inode.unsynced);
                    inode.vague.extend(unsynced);
                }
                self.descriptions.iter_mut().for_each(|one| one.severed = true);
                for process in self.processes.iter_mut().flatten() {
                    process.maps.iter_mut().flatten().for_each(|map| map.severed = true);
                }
                judged(seen, Seen::ok(0), &[])
            }
        }
    }

    fn described(&mut self, inode: usize, flags: i32) -> usize {
        self.descriptions.push(Description {
            inode,
            flags,
            opened: flags,
            offset: 0,
            severed: false,
        });
        self.descriptions.len() - 1
    }

    fn close(&mut self, line: &Line, slot: u8) {
        let free = self.order == Order::Free;
        let process = self.process(line);
        let number = process.slots[slot as usize];
        process.table.remove(&number);
        if free {
            process.slots[slot as usize] = -1;
        }
    }

    fn attributes(&mut self, inode: usize, seen: Option<Seen>) -> Result<Seen, String> {
        let inode = &self.inodes[inode];
        let more = u64::from(inode.links) << 16 | u64::from(libc::S_IFREG | 0o644);
        let mut expected = Seen { digest: inode.len(), more, ..Seen::default() };
        if inode.untracked || inode.vague_length {
            self.free = true;
            expected.digest = seen.map_or(0, |seen| seen.digest);
        }
        judged(seen, expected, &[])
    }

    /// Notes a line that its process may have been killed in.
    pub fn interrupted(&mut self, line: &Line) {
        let all = match &line.op {
            Op::Poke { map, .. } => self.mapping(line.process, *map).map(|map| map.inode),
            Op::Record { seed, .. } => {
                let actor = (line.process, line.thread);
                self.records.entry(actor).or_default().push((*seed, false));
                None
            }
            Op::Block { block, write: true, seed, .. } => {
                let place = (*block, line.process, line.thread);
                self.blocks.entry(place).or_default().push(*seed);
                None
            }
            Op::Open { name, .. } | Op::Truncate { name, .. } | Op::Unlink { name } => {
                self.forget_name(*name)
            }
            Op::Rename { from, to, .. } | Op::Link { from, to } => {
                self.forget_name(*to);
                self.forget_name(*from)
            }
            _ => self.written(line),
        };
        if let Some(inode) = all {
            self.forget(inode);
        }
    }

    /// The model knows nothing more of a file and its name.
    fn forget_name(&mut self, name: Name) -> Option<usize> {
        let inode = self.names[name as usize].unwrap_or_else(|| {
            self.inodes.push(Inode::default());
            self.names[name as usize] = Some(self.inodes.len() - 1);
            self.inodes.len() - 1
        });
        self.inodes[inode].vague_name = true;
        Some(inode)
    }

    /// In [`SHARED`] the ranges of all other actors stand.
    fn forget(&mut self, inode: usize) {
        let shared = self.names[SHARED as usize] == Some(inode);
        let inode = &mut self.inodes[inode];
        inode.vague.clear();
        inode.vague.push(0..u64::MAX);
        inode.vague_length = !shared;
    }
}
