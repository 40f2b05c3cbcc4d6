// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations with many arguments: opening, reads and writes, mappings, copies.

use super::{Generator, Owner, REACH};
use crate::operation::{
    BatchBy, By, CopyBy, Op, OpenBy, Part, RANGE_BYTES, SHARED, StatBy, Transfer,
};

impl Generator {
    pub(super) fn open(&mut self, owner: &Owner) -> Op {
        let slot = self.dice.one_of(&owner.slots);
        if self.abilities.unnamed && self.dice.chance(3) {
            return Op::OpenUnnamed { slot };
        }
        let by = self.dice.one_of(&[
            OpenBy::Open,
            OpenBy::Open,
            OpenBy::Absolute,
            OpenBy::Openat,
            OpenBy::Raw,
            OpenBy::Uring,
            OpenBy::Creat,
        ]);
        if owner.range.is_some() && self.dice.chance(25) {
            let direct = if self.dice.chance(30) { libc::O_DIRECT } else { 0 };
            let by = if by == OpenBy::Creat { OpenBy::Open } else { by };
            return Op::Open { slot, name: SHARED, flags: libc::O_RDWR | direct, by };
        }
        let name = self.dice.one_of(&owner.names);
        if by == OpenBy::Creat {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            return Op::Open { slot, name, flags, by };
        }
        let mut flags = self.dice.one_of(&[libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, 0, 1]);
        for (flag, of_100) in [
            (libc::O_CREAT, 75),
            (libc::O_TRUNC, 6),
            (libc::O_APPEND, 12),
            (libc::O_DIRECT, 20),
            (libc::O_SYNC, 4),
            (libc::O_DSYNC, 4),
            (libc::O_NOATIME, 4),
            (libc::O_NONBLOCK, 4),
            (libc::O_CLOEXEC, 30),
            (libc::O_NOFOLLOW, 5),
        ] {
            if self.dice.chance(of_100) {
                flags |= flag;
            }
        }
        if flags & libc::O_CREAT != 0 && self.dice.chance(6) {
            flags |= libc::O_EXCL;
        }
        if self.dice.chance(3) {
            flags = libc::O_PATH | libc::O_CLOEXEC;
        }
        Op::Open { slot, name, flags, by }
    }

    pub(super) fn transfer(&mut self, owner: &Owner, write: bool) -> Op {
        let slot = self.slot_that(owner, !write, write);
        let parted = self.is_parted(owner, slot);
        let direct = self.model.open(owner.process, slot).is_some_and(|open| open.is_direct());
        let (place, bytes) = self.span(owner, slot);
        let by = self.dice.one_of(&[
            By::Plain,
            By::Plain,
            By::Plain,
            By::Wide,
            By::Vector,
            By::Vector2,
            By::Raw,
            By::Uring,
            By::Aio,
        ]);
        let mut at = Some(place as i64);
        let no_position =
            by == By::Aio || by == By::Uring && (direct || !self.abilities.ring_position);
        if !parted && !no_position && self.dice.chance(30) {
            at = None;
        } else if !parted && by != By::Uring && by != By::Vector2 && self.dice.chance(1) {
            at = Some(-(1 + self.dice.below(5000) as i64));
        }
        let mut pieces = vec![bytes];
        if matches!(by, By::Vector | By::Vector2) {
            let unit = if direct { 4096 } else { 1 };
            let cuts = self.dice.below(4);
            for _ in 0..cuts {
                let last = pieces.pop().unwrap_or(0);
                let cut = (self.dice.below(u64::from(last) + 1) as u32) / unit * unit;
                pieces.extend([cut, last - cut]);
            }
        }
        let mut rwf = 0;
        if by == By::Vector2 && self.dice.chance(60) {
            rwf = match write {
                true => self.dice.one_of(&[1, 2, 4, 8, 0x10, 0x12, 0x20]),
                false => self.dice.one_of(&[1, 8]),
            };
        } else if by == By::Uring && write && self.dice.chance(40) {
            rwf = self.dice.one_of(&[2, 4, 0x10]);
        }
        if parted {
            rwf &= !0x10;
        }
        if rwf == 0x20 && !self.abilities.no_append {
            rwf = 0;
        }
        let skew = match self.dice.below(10) {
            0..6 => 0,
            6..8 => 512,
            _ if direct && self.dice.chance(80) => 0,
            _ => self.dice.below(4096) as u16,
        };
        let mut claim = 0;
        if by == By::Plain && bytes > 0 && !parted && self.dice.chance(3) {
            let beyond = u64::from(bytes) + 4096 + self.dice.below(100_000);
            claim = self.dice.one_of(&[i64::MAX as u64, 1 << 48, beyond]);
            // ext4 itself loses its way after a write whose memory ends.
            if write && claim == beyond {
                claim = 0;
            }
        }
        let seed = self.next_seed();
        Op::Transfer(Transfer { slot, write, at, pieces, by, rwf, seed, skew, claim })
    }

    pub(super) fn batch(&mut self, owner: &Owner) -> Op {
        let slot = self.slot_that(owner, true, true);
        let (from, to) = match owner.range {
            Some(range) if self.is_parted(owner, slot) => (range, range + RANGE_BYTES),
            _ => (0, self.length(owner, slot).min(REACH)),
        };
        let count = 2 + self.dice.below(5);
        let share = ((to - from) / (count + 1)) & !4095;
        let direct = self.model.open(owner.process, slot).is_some_and(|open| open.is_direct());
        let mut parts = Vec::new();
        for place in 0..count {
            let bytes = self.dice.below(share.min(16 << 10) + 1) as u32;
            let bytes = if direct { bytes & !4095 } else { bytes };
            let at = from + place * share;
            let (write, seed) = (self.dice.chance(50), self.next_seed());
            if bytes > 0 {
                parts.push(Part { write, at, bytes, seed });
            }
        }
        let beside = (self.dice.chance(50) && share > 0).then_some(from + count * share);
        let by = self.dice.one_of(&[BatchBy::Uring, BatchBy::Aio]);
        if parts.is_empty() {
            return self.transfer(owner, true);
        }
        Op::Batch { slot, by, parts, beside }
    }

    pub(super) fn memory(&mut self, owner: &Owner) -> Op {
        let map = self.dice.one_of(&owner.maps);
        let Some(mapping) = self.model.mapping(owner.process, map).cloned() else {
            let slot = self.slot_that(owner, true, true);
            let pages = 1 + self.dice.below(12);
            let at = match owner.range {
                Some(range) if self.is_parted(owner, slot) => {
                    range + self.dice.below(RANGE_BYTES / 4096 - pages + 1) * 4096
                }
                _ => self.dice.below(self.length(owner, slot) / 4096 + 1) * 4096,
            };
            let (shared, write) = (self.dice.chance(65), self.dice.chance(80));
            return Op::Map { map, slot, shared, write, at, bytes: pages * 4096 };
        };
        let there = self.model.inodes[mapping.inode].len().saturating_sub(mapping.at);
        let there = there.min(mapping.bytes);
        let at = self.dice.below(there.max(1));
        let bytes = (1 + self.dice.below(6000)).min(there - at.min(there)) as u32;
        match self.dice.below(10) {
            0 => Op::Unmap { map },
            1..3 => {
                let flags = [libc::MS_SYNC, libc::MS_ASYNC, libc::MS_SYNC | libc::MS_INVALIDATE];
                Op::Msync { map, flags: self.dice.one_of(&flags) }
            }
            3..6 => Op::Peek { map, at, bytes },
            _ => Op::Poke { map, at, bytes, seed: self.next_seed() },
        }
    }

    pub(super) fn copy(&mut self, owner: &Owner) -> Op {
        let from = self.slot_that(owner, true, false);
        let to = self.slot_that(owner, false, true);
        let by = self.dice.one_of(&[CopyBy::CopyFileRange, CopyBy::Sendfile, CopyBy::Splice]);
        let (place, mut bytes) = self.span(owner, from);
        let mut from_at = Some(place as i64);
        if !self.is_parted(owner, from) && self.dice.chance(40) {
            from_at = None;
        }
        let mut to_at = None;
        if self.is_parted(owner, to) {
            let (place, most) = self.span(owner, to);
            bytes = bytes.min(most);
            to_at = Some(place as i64);
            if by == CopyBy::Sendfile {
                return Op::StatOpen { slot: to, by: StatBy::Stat };
            }
        } else if self.dice.chance(60) {
            to_at = Some(self.place(self.length(owner, to), false) as i64);
        }
        Op::Copy { from, to, from_at, to_at, bytes: bytes.into(), by }
    }
}
