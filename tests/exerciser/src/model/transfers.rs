// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading and writing by descriptor.

use super::{Description, Model, judged, said};
use crate::operation::{By, Line, Order, Part, Transfer};
use crate::pattern;
use crate::record::Seen;

/// Requests from so many bytes on reach beyond what a program can address.
const ADDRESSES: u64 = 1 << 47;
const RWF_HIPRI: i32 = 1;
const RWF_NOWAIT: i32 = 8;
const RWF_APPEND: i32 = 0x10;
const RWF_NOAPPEND: i32 = 0x20;

impl Model {
    /// Whether requests go past the page cache. What FUSE passes through keeps the flags that it
    /// was opened with.
    pub(super) fn goes_direct(&self, open: &Description) -> bool {
        open.is_direct() || self.through_fuse && open.opened & libc::O_DIRECT != 0
    }

    /// Whether a direct request that is not aligned may succeed in one run and fail in another.
    /// Through FUSE it may be buffered. On a disk's file system a read succeeds where nothing was
    /// written to the disk yet, and a write is buffered where pages cannot be dropped: beside free
    /// actors both are a matter of time.
    pub(super) fn alignment_is_luck(&self) -> bool {
        self.through_fuse || self.order == Order::Free
    }

    pub(super) fn transfer(
        &mut self,
        line: &Line,
        transfer: &Transfer,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Transfer { by, at, rwf, .. } = *transfer;
        let positional_minus_one = matches!(by, By::Vector2 | By::Uring) && at == Some(-1);
        let at = at.filter(|_| !positional_minus_one);
        if at.is_some_and(|at| at < 0) {
            let also = if by == By::Aio { &[libc::EBADF][..] } else { &[] };
            return judged(seen, Seen::error(libc::EINVAL), also);
        }
        let id = self.id(line.process, transfer.slot);
        let allowed = id.filter(|id| match transfer.write {
            true => self.descriptions[*id].writes(),
            false => self.descriptions[*id].reads(),
        });
        let Some(id) = allowed else {
            return judged(seen, Seen::error(libc::EBADF), &[]);
        };
        if transfer.claim >= ADDRESSES {
            return judged(seen, Seen::error(libc::EFAULT), &[]);
        }
        let open = self.descriptions[id].clone();
        let length = transfer.length() as u64;
        let mut refusals = Vec::new();
        if rwf & RWF_NOWAIT != 0 {
            refusals.extend([libc::EAGAIN, libc::EOPNOTSUPP]);
            self.free = true;
        }
        if rwf & (RWF_HIPRI | RWF_NOAPPEND) != 0 {
            refusals.extend([libc::EINVAL, libc::EOPNOTSUPP]);
        }
        let appends =
            transfer.write && (open.appends() && rwf & RWF_NOAPPEND == 0 || rwf & RWF_APPEND != 0);
        let file = &self.inodes[open.inode];
        let place = match at {
            _ if appends => file.len(),
            Some(at) => at as u64,
            None => open.offset as u64,
        };
        let odd = (transfer.pieces.iter())
            .fold(place | u64::from(transfer.skew), |odd, piece| odd | u64::from(*piece));
        let is_direct = self.goes_direct(&open);
        // An append goes to an unknown place where the length is unknown.
        let may_be_odd = transfer.claim > 0 || appends && file.vague_length;
        if is_direct && (odd % 4096 != 0 || may_be_odd) {
            refusals.push(libc::EINVAL);
            self.free |= self.alignment_is_luck();
        }
        let may_be_less = rwf & RWF_NOWAIT != 0 || transfer.claim > 0;
        if transfer.claim > 0 {
            refusals.push(libc::EFAULT);
            self.free = true;
        }
        let most = match transfer.write {
            true => length,
            false => file.read(place, length).len() as u64,
        };
        let done = match seen {
            Some(seen) if !seen.failed() => {
                let least = if may_be_less { most.min(1) } else { most };
                let vague = file.vague_length && !transfer.write;
                if !vague && !(least..=most).contains(&(seen.ret as u64)) {
                    return Err(format!("expected {most} bytes, got {}", said(&seen)));
                }
                seen.ret as u64
            }
            _ => most,
        };
        let mut expected = Seen::ok(done as i64);
        if !transfer.write && done > 0 {
            if file.knows(place..place + done) && !file.vague_length {
                expected.digest = pattern::digest(file.read(place, done));
            } else {
                self.free = true;
                expected.digest = seen.map_or(0, |seen| seen.digest);
            }
        }
        let seen = judged(seen, expected, &refusals)?;
        if seen.failed() {
            if transfer.write && is_direct && !odd.is_multiple_of(4096) {
                self.inodes[open.inode].half_written(place..place + length);
            }
            return Ok(seen);
        }
        if transfer.write && done > 0 {
            let bytes = pattern::bytes(transfer.length(), transfer.seed);
            let file = &mut self.inodes[open.inode];
            file.write(place, &bytes[..done as usize]);
            if file.vague_length && (appends || at.is_none()) {
                // Nobody can say where.
                file.vague.push(0..u64::MAX);
            }
        }
        if at.is_none() && (done > 0 || !transfer.write && length > 0) {
            self.descriptions[id].offset = (place + done) as i64;
        }
        Ok(seen)
    }

    pub(super) fn batch(
        &mut self,
        process: u8,
        slot: u8,
        parts: &[Part],
        beside: Option<u64>,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(open) = self.open(process, slot).cloned() else {
            return judged(seen, Seen::error(libc::EBADF), &[]);
        };
        let odd = |part: &Part| !(part.at | u64::from(part.bytes)).is_multiple_of(4096);
        if self.goes_direct(&open) && (parts.iter().any(odd)) || open.severed {
            // Some are refused and some are not: nothing is known of what is written to.
            self.free = true;
            for part in parts.iter().filter(|part| part.write && open.writes()) {
                let end = part.at + u64::from(part.bytes);
                self.inodes[open.inode].half_written(part.at..end);
            }
            return Ok(seen.unwrap_or_default());
        }
        let mut told = Vec::new();
        let mut expected = Seen::ok(0);
        // Reads behind the end depend on which request comes first.
        let length = self.inodes[open.inode].len();
        let mut known = parts.iter().all(|part| part.at + u64::from(part.bytes) <= length);
        for part in parts {
            let end = part.at + u64::from(part.bytes);
            if !(if part.write { open.writes() } else { open.reads() }) {
                expected.errno = libc::EBADF;
                told.extend((-i64::from(libc::EBADF)).to_le_bytes());
                continue;
            }
            expected.ret += 1;
            let file = &mut self.inodes[open.inode];
            if part.write {
                file.write(part.at, &pattern::bytes(part.bytes as usize, part.seed));
                told.extend(i64::from(part.bytes).to_le_bytes());
            } else {
                known &= file.knows(part.at..end) && !file.vague_length;
                let read = file.read(part.at, u64::from(part.bytes));
                told.extend((read.len() as i64).to_le_bytes());
                told.extend(read);
            }
        }
        if let Some(at) = beside
            && open.reads()
        {
            let file = &self.inodes[open.inode];
            known &= file.knows(at..at + 1) && !file.vague_length;
            // A lone byte of a file that is opened for direct requests may be refused.
            let refused = open.is_direct();
            self.free |= refused;
            known &= !refused;
            let read = file.read(at, 1);
            told.extend([read.len() as u8, read.first().copied().unwrap_or(0)]);
        }
        self.free |= !known;
        expected.digest = match seen {
            Some(seen) if !known => seen.digest,
            _ => pattern::digest(&told),
        };
        if expected.ret == 0 && expected.errno != 0 {
            expected = Seen::error(expected.errno);
        }
        judged(seen, expected, &[])
    }
}
