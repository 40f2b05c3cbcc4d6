// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random scripts: the same seed makes the same script.

mod requests;

use crate::model::Model;
use crate::operation::{
    BLOCK_COUNT, BLOCKS, CloseBy, DupBy, Line, Name, Op, OpenBy, Order, RANGE_BYTES, RECORDS,
    SHARED, Script, StatBy, SyncBy,
};
use crate::pattern::Dice;

/// What a surface can do at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Abilities {
    /// Files without a name (`O_TMPFILE`).
    pub unnamed: bool,
    /// A server beneath that can be killed.
    pub disturb: bool,
    /// Requests of an io_uring at the descriptor's own position. The kernel does not move the
    /// position of a request that completes later: one past the page cache, as of FUSE with direct
    /// I/O and of `O_DIRECT`.
    pub ring_position: bool,
    /// `RWF_NOAPPEND`, of which a FUSE server is not told.
    pub no_append: bool,
}

/// An actor, and the files and ranges that are its own.
#[derive(Clone, Debug)]
struct Owner {
    process: u8,
    thread: u8,
    names: Vec<Name>,
    slots: Vec<u8>,
    maps: Vec<u8>,
    /// Their part of [`SHARED`], if not all is everybody's.
    range: Option<u64>,
}

struct Generator {
    dice: Dice,
    model: Model,
    order: Order,
    abilities: Abilities,
    lines: Vec<Line>,
    /// Number of what is written next.
    seed: u64,
}

/// Farthest that files grow by choice.
const REACH: u64 = 200 << 10;

/// Removes the lines that a script cannot have because others were removed.
pub fn sanitized(script: &Script) -> Script {
    let mut model = Model::new(script.order);
    let mut lines = Vec::new();
    for line in &script.lines {
        if model.allows(line) && model.apply(line, None).is_ok() {
            lines.push(line.clone());
        }
    }
    Script { order: script.order, lines }
}

/// Makes the script of a seed with so many lines.
pub fn script(seed: u64, lines: usize, abilities: Abilities) -> Script {
    let mut dice = Dice::new(seed);
    let order = if dice.chance(65) { Order::Serial } else { Order::Free };
    let (model, all) = (Model::new(order), Vec::with_capacity(lines));
    let mut generator = Generator { dice, model, order, abilities, lines: all, seed: seed << 20 };
    match order {
        Order::Serial => generator.serial(lines),
        Order::Free => generator.free(lines),
    }
    Script { order, lines: generator.lines }
}

impl Generator {
    fn serial(&mut self, lines: usize) {
        let all = |process, thread| Owner {
            process,
            thread,
            names: (0..=SHARED).collect(),
            slots: (0..10).collect(),
            maps: (0..4).collect(),
            range: None,
        };
        let threads = 1 + self.dice.below(3) as u8;
        let mut owner = all(0, 0);
        while self.lines.len() < lines {
            if self.dice.chance(30) {
                let alive: Vec<u8> = (0..5).filter(|one| self.model.is_alive(*one)).collect();
                let process = self.dice.one_of(&alive);
                owner = all(process, self.dice.below(threads.into()) as u8);
            }
            let op = match self.dice.below(1000) {
                0..4 => Op::Fork { child: self.dice.below(5) as u8 },
                4..7 => Op::Kill { child: self.dice.below(5) as u8 },
                7 if self.abilities.disturb && self.dice.chance(20) => Op::Disturb,
                _ => self.op(&owner),
            };
            self.push(&owner, op);
        }
    }

    fn free(&mut self, lines: usize) {
        // Processes with their threads; all but the first begin later.
        let shape: &[(u8, u8)] = match self.dice.below(4) {
            0 => &[(0, 0), (0, 1), (0, 2), (0, 3)],
            1 => &[(0, 0), (0, 1), (1, 0), (1, 1)],
            2 => &[(0, 0), (1, 0), (2, 0), (3, 0)],
            _ => &[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)],
        };
        let owners: Vec<Owner> = (shape.iter().enumerate())
            .map(|(place, (process, thread))| Owner {
                process: *process,
                thread: *thread,
                names: vec![2 * place as u8, 2 * place as u8 + 1],
                slots: (thread * 8..thread * 8 + 6).collect(),
                maps: (thread * 4..thread * 4 + 3).collect(),
                range: Some(place as u64 * RANGE_BYTES),
            })
            .collect();
        let mut blocks = 0;
        while self.lines.len() < lines {
            let there: Vec<usize> =
                (0..owners.len()).filter(|one| self.model.is_alive(owners[*one].process)).collect();
            let owner = &owners[self.dice.one_of(&there)];
            let first = (owner.process, owner.thread) == (0, 0);
            let op = match self.dice.below(1000) {
                0..30 if first => Op::Fork { child: 1 + self.dice.below(3) as u8 },
                30..33 if first => Op::Kill { child: 1 + self.dice.below(3) as u8 },
                40..90 => self.contended(owner, &mut blocks),
                _ => self.op(owner),
            };
            if let Op::Fork { child } = &op
                && !shape.iter().any(|(process, _)| process == child)
            {
                continue;
            }
            self.push(owner, op);
        }
    }

    fn push(&mut self, owner: &Owner, op: Op) {
        let line = Line { process: owner.process, thread: owner.thread, op };
        // Its own slots for what all touch: open before use.
        if self.model.allows(&line) && self.model.apply(&line, None).is_ok() {
            self.lines.push(line);
        }
    }

    /// Something that several do with one file at once.
    fn contended(&mut self, owner: &Owner, blocks: &mut u32) -> Op {
        let (records, of_blocks) = (owner.thread * 8 + 6, owner.thread * 8 + 7);
        let is_open = |model: &Model, slot| model.open(owner.process, slot).is_some();
        let by = OpenBy::Open;
        if !is_open(&self.model, records) {
            let flags = libc::O_WRONLY | libc::O_APPEND;
            return Op::Open { slot: records, name: RECORDS, flags, by };
        }
        if !is_open(&self.model, of_blocks) {
            return Op::Open { slot: of_blocks, name: BLOCKS, flags: libc::O_RDWR, by };
        }
        let seed = self.next_seed();
        if self.dice.chance(50) {
            return Op::Record { slot: records, seed };
        }
        *blocks += 1;
        let write = *blocks < 200 && self.dice.chance(60);
        Op::Block { slot: of_blocks, block: self.dice.below(BLOCK_COUNT), write, seed }
    }

    fn next_seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    /// A slot: mostly one that is open on a file.
    fn slot(&mut self, owner: &Owner) -> u8 {
        let open: Vec<u8> = (owner.slots.iter().copied())
            .filter(|slot| self.model.open(owner.process, *slot).is_some())
            .collect();
        if open.is_empty() || self.dice.chance(4) && self.order == Order::Serial {
            return self.dice.one_of(&owner.slots);
        }
        self.dice.one_of(&open)
    }

    fn slot_that(&mut self, owner: &Owner, reads: bool, writes: bool) -> u8 {
        let mut slot = self.slot(owner);
        for _ in 0..6 {
            let open = self.model.open(owner.process, slot);
            if open.is_some_and(|open| (!reads || open.reads()) && (!writes || open.writes())) {
                break;
            }
            slot = self.slot(owner);
        }
        slot
    }

    /// Whether a slot is open on the file of which everybody has a part.
    fn is_parted(&self, owner: &Owner, slot: u8) -> bool {
        let inode = self.model.open(owner.process, slot).map(|open| open.inode);
        owner.range.is_some() && inode.is_some() && inode == self.model.names[SHARED as usize]
    }

    fn length(&self, owner: &Owner, slot: u8) -> u64 {
        let open = self.model.open(owner.process, slot);
        open.map_or(0, |open| self.model.inodes[open.inode].len())
    }

    fn bytes(&mut self) -> u32 {
        match self.dice.below(20) {
            0 => 0,
            1..4 => self.dice.one_of(&[1, 7, 511, 513, 4095, 4097]),
            4..8 => 512 * (1 + self.dice.below(8) as u32),
            8..13 => 4096,
            13..16 => 4096 * (1 + self.dice.below(4) as u32),
            16..19 => 1 + self.dice.below(9000) as u32,
            _ => self.dice.one_of(&[65536, 32768 + 4096, 40000]),
        }
    }

    fn place(&mut self, length: u64, aligned: bool) -> u64 {
        let place = match self.dice.below(20) {
            0..8 => self.dice.below(length.max(1)),
            8..13 => self.dice.below(length / 4096 + 1) * 4096,
            13..15 => length,
            15 => length.saturating_sub(self.dice.below(5000)),
            16 => length + self.dice.below(20000),
            17 => 0,
            _ => self.dice.below(REACH),
        };
        let place = place.min(REACH);
        if aligned && self.dice.chance(92) { place & !4095 } else { place }
    }

    /// Where and how much, within the owner's part where there are parts.
    fn span(&mut self, owner: &Owner, slot: u8) -> (u64, u32) {
        let direct = self.model.open(owner.process, slot).is_some_and(|open| open.is_direct());
        let mut bytes = self.bytes();
        if direct && self.dice.chance(92) {
            bytes = bytes.next_multiple_of(4096);
        }
        match owner.range {
            Some(range) if self.is_parted(owner, slot) => {
                let bytes = bytes.min(RANGE_BYTES as u32);
                let mut at = self.dice.below(RANGE_BYTES - u64::from(bytes) + 1);
                if direct || self.dice.chance(50) {
                    at &= !4095;
                }
                (range + at, bytes)
            }
            _ => (self.place(self.length(owner, slot), direct), bytes),
        }
    }

    fn op(&mut self, owner: &Owner) -> Op {
        let name = self.dice.one_of(&owner.names);
        let other = self.dice.one_of(&owner.names);
        let slot = self.slot(owner);
        let parted = self.is_parted(owner, slot);
        let none_open = self.model.open(owner.process, slot).is_none();
        if none_open && self.dice.chance(70) {
            return self.open(owner);
        }
        match self.dice.below(1000) {
            0..70 => self.open(owner),
            70..120 => {
                let by = self.dice.one_of(&[
                    CloseBy::Close,
                    CloseBy::Close,
                    CloseBy::Raw,
                    CloseBy::Range,
                    CloseBy::Uring,
                    CloseBy::Stream,
                ]);
                Op::Close { slot, by }
            }
            120..135 => {
                let by = self.dice.one_of(&[DupBy::Dup, DupBy::Fcntl, DupBy::Raw]);
                Op::Dup { from: slot, to: self.dice.one_of(&owner.slots), by }
            }
            135..150 => Op::DupOver { from: slot, to: self.slot(owner) },
            150..160 => {
                let mut flags = 0;
                if !parted && self.dice.chance(30) {
                    flags |= libc::O_APPEND;
                }
                if self.dice.chance(40) {
                    flags |= libc::O_DIRECT;
                }
                Op::SetFlags { slot, flags }
            }
            160..165 => Op::GetFlags { slot },
            165..345 => self.transfer(owner, false),
            345..545 => self.transfer(owner, true),
            545..575 => self.batch(owner),
            575..625 => {
                let length = self.length(owner, slot) as i64;
                // Where holes are in parts of others changes meanwhile.
                let whence = self.dice.below(if parted { 3 } else { 5 }) as i32;
                let to = match whence {
                    libc::SEEK_END => -(self.dice.below(length as u64 + 10) as i64),
                    libc::SEEK_CUR => self.dice.one_of(&[0, 0, 100, -100, 4096]),
                    _ => self.place(length as u64, false) as i64,
                };
                Op::Seek { slot, whence, to }
            }
            625..640 => Op::Truncate { name: other, to: self.new_length() },
            640..665 if !parted => Op::Ftruncate { slot, to: self.new_length() },
            665..695 => {
                let (at, bytes) = self.span(owner, slot);
                let mut mode = self.dice.one_of(&[0, 1, 3, 3, 0x10, 0x11, 8, 0x20, 0x40]);
                let mut bytes = bytes.max(1).into();
                let mut at = at as i64;
                if parted {
                    mode = self.dice.one_of(&[3, 0x11, 1]);
                } else if mode == 8 || mode == 0x20 {
                    bytes = 4096 * (1 + self.dice.below(3) as i64);
                    at &= !4095;
                }
                Op::Fallocate { slot, mode, at, bytes }
            }
            695..720 => {
                let flags = [0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE];
                Op::Rename { from: name, to: other, flags: self.dice.one_of(&flags) }
            }
            720..735 => Op::Unlink { name },
            735..745 => Op::Link { from: name, to: other },
            745..835 => self.memory(owner),
            835..880 => {
                let by = self.dice.one_of(&[
                    SyncBy::Fsync,
                    SyncBy::Fsync,
                    SyncBy::Fdatasync,
                    SyncBy::Fdatasync,
                    SyncBy::Range,
                    SyncBy::Uring,
                ]);
                // All of a file system at once takes long where many use it.
                let by = if self.dice.chance(2) { SyncBy::Syncfs } else { by };
                Op::Sync { slot, by }
            }
            880..910 => {
                let advice = [
                    libc::POSIX_FADV_DONTNEED,
                    libc::POSIX_FADV_DONTNEED,
                    libc::POSIX_FADV_WILLNEED,
                    libc::POSIX_FADV_RANDOM,
                ];
                Op::Advise { slot, advice: self.dice.one_of(&advice) }
            }
            910..960 => self.copy(owner),
            960..980 => Op::StatOpen { slot, by: self.dice.one_of(&[StatBy::Stat, StatBy::Statx]) },
            _ => Op::StatName { name, by: self.dice.one_of(&[StatBy::Stat, StatBy::Statx]) },
        }
    }

    fn new_length(&mut self) -> i64 {
        match self.dice.below(30) {
            0 => -1,
            1..4 => 0,
            4..14 => 4096 * self.dice.below(40) as i64,
            _ => self.dice.below(150_000) as i64,
        }
    }
}
