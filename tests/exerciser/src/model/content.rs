// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a file.

use std::ops::Range;

use super::{Model, PAGE, judged, said};
use crate::record::Seen;

/// A file.
#[derive(Clone, Debug, Default)]
pub struct Inode {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its names.
    pub links: u32,
    /// Bytes of which nobody can say what they are.
    pub vague: Vec<Range<u64>>,
    /// Bytes written through shared memory and not synced since.
    pub unsynced: Vec<Range<u64>>,
    /// Whether nobody can say how long it is.
    pub vague_length: bool,
    /// Whether nobody can say which names it has.
    pub vague_name: bool,
    /// Whether its bytes are looked at by other means.
    pub untracked: bool,
}

impl Inode {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Whether these bytes are known.
    pub fn knows(&self, range: Range<u64>) -> bool {
        let touches = |vague: &Range<u64>| vague.start < range.end && range.start < vague.end;
        !self.untracked && !self.vague.iter().any(touches)
    }

    /// The bytes from `at` on, `bytes` at most.
    pub fn read(&self, at: u64, bytes: u64) -> &[u8] {
        let from = at.min(self.len()) as usize;
        let to = at.saturating_add(bytes).min(self.len()) as usize;
        &self.data[from..to]
    }

    /// Whether a mapping has memory there; `seen` tells if nobody can say how long the file is.
    pub(super) fn has_page_of(&self, from: u64, bytes: u64, seen: Option<Seen>) -> bool {
        match seen {
            Some(seen) if self.vague_length => !seen.failed(),
            _ => bytes == 0 || from + bytes <= self.len().next_multiple_of(PAGE),
        }
    }

    /// Puts bytes, making the file longer if need be.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at as usize + bytes.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[at as usize..end].copy_from_slice(bytes);
    }

    /// A direct write that was refused or cut short for its alignment: the kernel may have written
    /// whole blocks of it before it came to the odd rest.
    pub fn half_written(&mut self, range: Range<u64>) {
        self.vague_length |= range.end > self.len();
        self.vague.push(range.start..range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX));
    }

    /// What lies behind `from` moves, and with it what is vague.
    fn vague_moves(&mut self, from: u64) {
        if self.vague.iter().any(|vague| vague.end > from) {
            self.vague.push(from..u64::MAX);
        }
    }
}

impl Model {
    pub(super) fn set_length(&mut self, inode: usize, to: u64) {
        let file = &mut self.inodes[inode];
        let was = file.len();
        file.data.resize(to as usize, 0);
        if to < was {
            file.vague.iter_mut().for_each(|vague| vague.end = vague.end.min(to.max(vague.start)));
            file.vague.retain(|vague| !vague.is_empty());
            self.lost_pages(inode, to.div_ceil(PAGE));
        }
    }

    pub(super) fn fallocate(
        &mut self,
        process: u8,
        slot: u8,
        mode: i32,
        at: i64,
        bytes: i64,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(open) = self.open(process, slot).cloned().filter(|open| !open.only_path()) else {
            return judged(seen, Seen::error(libc::EBADF), &[]);
        };
        let unlucky = [libc::EBADF, libc::EINVAL, libc::EOPNOTSUPP];
        self.free |= self.through_fuse && (!open.writes() || at < 0 || bytes <= 0);
        if !open.writes() {
            return judged(seen, Seen::error(libc::EBADF), &unlucky);
        }
        if at < 0 || bytes <= 0 {
            return judged(seen, Seen::error(libc::EINVAL), &unlucky);
        }
        let plain = [0, libc::FALLOC_FL_KEEP_SIZE].contains(&mode);
        let shifts = libc::FALLOC_FL_COLLAPSE_RANGE
            | libc::FALLOC_FL_INSERT_RANGE
            | libc::FALLOC_FL_UNSHARE_RANGE;
        self.free |= self.through_fuse && mode & shifts != 0;
        let refusals: &[i32] = if plain { &[] } else { &[libc::EINVAL, libc::EOPNOTSUPP] };
        let seen = judged(seen, Seen::ok(0), refusals)?;
        if seen.failed() {
            return Ok(seen);
        }
        let (from, to) = (at as u64, (at + bytes) as u64);
        let length = self.inodes[open.inode].len();
        let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        if mode & libc::FALLOC_FL_COLLAPSE_RANGE != 0 {
            if to < length {
                self.inodes[open.inode].data.drain(from as usize..to as usize);
            }
            self.inodes[open.inode].vague_moves(from);
            self.shifted(open.inode);
        } else if mode & libc::FALLOC_FL_INSERT_RANGE != 0 {
            if from < length {
                let zeros = std::iter::repeat_n(0, bytes as usize);
                self.inodes[open.inode].data.splice(from as usize..from as usize, zeros);
            }
            self.inodes[open.inode].vague_moves(from);
            self.shifted(open.inode);
        } else {
            let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
            let file = &mut self.inodes[open.inode];
            if !keeps && to > length {
                file.data.resize(to as usize, 0);
            }
            if mode & zeroes != 0 {
                let end = to.min(file.len()) as usize;
                if (from as usize) < end {
                    file.data[from as usize..end].fill(0);
                }
            }
        }
        Ok(seen)
    }

    pub(super) fn seek(
        &mut self,
        process: u8,
        slot: u8,
        whence: i32,
        to: i64,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(id) = self.id(process, slot).filter(|id| !self.descriptions[*id].only_path())
        else {
            return judged(seen, Seen::error(libc::EBADF), &[]);
        };
        let open = self.descriptions[id].clone();
        let file = &self.inodes[open.inode];
        let (length, vague) = (file.len() as i64, file.untracked || file.vague_length);
        let place = match whence {
            libc::SEEK_SET => to,
            // After a write to its end, too.
            libc::SEEK_CUR if file.vague_length => seen.map_or(0, |seen| seen.ret),
            libc::SEEK_CUR => open.offset + to,
            libc::SEEK_END if vague => seen.map_or(0, |seen| seen.ret),
            libc::SEEK_END => length + to,
            _ => return self.seek_holes(id, whence, to, seen),
        };
        self.free |= vague;
        if place < 0 {
            return judged(seen, Seen::error(libc::EINVAL), &[]);
        }
        let seen = judged(seen, Seen::ok(place), &[])?;
        self.descriptions[id].offset = place;
        Ok(seen)
    }

    /// File systems choose how exact they are; they may not jump over data.
    fn seek_holes(
        &mut self,
        id: usize,
        whence: i32,
        to: i64,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let file = &self.inodes[self.descriptions[id].inode];
        let length = file.len() as i64;
        if let Some(seen) = seen.filter(|_| to >= 0 && (file.untracked || file.vague_length)) {
            self.free = true;
            let fine = match seen.failed() {
                true => seen.errno == libc::ENXIO,
                false => seen.ret >= to,
            };
            if !fine {
                return Err(format!("{} is no answer, asked from {to}", said(&seen)));
            }
            if !seen.failed() {
                self.descriptions[id].offset = seen.ret;
            }
            return Ok(seen);
        }
        if to < 0 || to >= length {
            return judged(seen, Seen::error(libc::ENXIO), &[]);
        }
        self.free = true;
        let Some(seen) = seen else {
            let place = if whence == libc::SEEK_DATA { to } else { length };
            self.descriptions[id].offset = place;
            return Ok(Seen::ok(place));
        };
        let through_fuse = self.through_fuse;
        let empty = |to: i64, end: i64| {
            let touches = |range: &Range<u64>| range.start < end as u64 && (to as u64) < range.end;
            through_fuse && file.unsynced.iter().any(touches)
                || !file.knows(to as u64..end as u64)
                || file.data[to as usize..end as usize].iter().all(|byte| *byte == 0)
        };
        if seen.failed() {
            let fine = seen.errno == libc::ENXIO && whence == libc::SEEK_DATA && empty(to, length);
            return if fine {
                Ok(seen)
            } else {
                Err(format!("errno {} where data follow", seen.errno))
            };
        }
        let within = (to..=length).contains(&seen.ret);
        if !within || whence == libc::SEEK_DATA && !empty(to, seen.ret) {
            return Err(format!("{} is no place that it can answer, asked from {to}", seen.ret));
        }
        self.descriptions[id].offset = seen.ret;
        Ok(seen)
    }
}
