// SPDX-License-Identifier: MIT OR Apache-2.0
//! What nobody can say any more: after a server that is gone, or of a process that was killed.

use super::{Inode, Model};
use crate::operation::{Line, Name, Op, SHARED};

impl Model {
    /// The file that a line writes to by descriptor, or changes the length of.
    pub(super) fn written(&self, line: &Line) -> Option<usize> {
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
    pub(super) fn resizes_severed(&self, line: &Line) -> bool {
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
    pub(super) fn undecided(&mut self, line: &Line) {
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
    pub(super) fn severed(&self, line: &Line) -> bool {
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
    pub(super) fn forget(&mut self, inode: usize) {
        let shared = self.names[SHARED as usize] == Some(inode);
        let inode = &mut self.inodes[inode];
        inode.vague.clear();
        inode.vague.push(0..u64::MAX);
        inode.vague_length = !shared;
    }
}
