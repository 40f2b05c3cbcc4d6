// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each operation does to the model.

use super::{Inode, Model, judged};
use crate::operation::{BLOCK_BYTES, CloseBy, Line, MAPS, Op, Order, RECORD_BYTES, SLOTS, SyncBy};
use crate::record::Seen;

impl Model {
    pub(super) fn carried_out(&mut self, line: &Line, seen: Option<Seen>) -> Result<Seen, String> {
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
}
