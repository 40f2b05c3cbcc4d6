// SPDX-License-Identifier: MIT OR Apache-2.0
//! What files, descriptors and mappings must be like after every line: a file system of vectors.
//!
//! The model says what a call returns. Where the standard leaves a choice (an alignment that a file
//! system refuses, how much of a copy is done at once), it is told what was seen, checks that this
//! was allowed, and goes on from there.

mod carried;
mod content;
mod copies;
mod mapped;
mod names;
mod transfers;
mod undecided;

use std::collections::BTreeMap;

use crate::operation::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCKS, Line, MAPS, NAMES, Op, Order, PROCESSES, RANGE_BYTES,
    RECORDS, SHARED, SLOTS,
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
}
