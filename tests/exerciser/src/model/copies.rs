// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes from file to file.

use super::{Description, Model, judged, said};
use crate::operation::CopyBy;
use crate::record::Seen;

/// Most bytes that one splice takes.
const SPLICED: u64 = 60 << 10;

/// Where in its target a copy goes.
fn target_place(target: &Description, to_at: Option<i64>, by: CopyBy) -> u64 {
    to_at.filter(|_| by != CopyBy::Sendfile).unwrap_or(target.offset) as u64
}

impl Model {
    /// Notes a copy that failed: of a direct one the kernel may have written blocks.
    pub(super) fn half_copied(
        &mut self,
        target: Option<Description>,
        to_at: Option<i64>,
        bytes: u64,
        by: CopyBy,
    ) {
        if let Some(target) = target.filter(|target| target.writes() && self.goes_direct(target)) {
            let place = target_place(&target, to_at, by);
            self.inodes[target.inode].half_written(place..place.saturating_add(bytes));
        }
    }

    pub(super) fn copy(
        &mut self,
        process: u8,
        (from, from_at): (u8, Option<i64>),
        (to, to_at): (u8, Option<i64>),
        bytes: u64,
        by: CopyBy,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let bad = || Seen::error(libc::EBADF);
        if by == CopyBy::Splice && bytes == 0 {
            return judged(seen, Seen::ok(0), &[]);
        }
        let (source_id, target_id) = (self.id(process, from), self.id(process, to));
        let at = |id: Option<usize>| id.map(|id| self.descriptions[id].clone());
        let (source, target) = (at(source_id), at(target_id));
        let Some(source) = source.filter(Description::reads) else {
            return judged(seen, bad(), &[]);
        };
        // FUSE passthrough has no pages to send of a file that was opened to append, and where the
        // first two copies of a mount met, Linux 6.18 sends for copy_file_range too.
        if let Some(seen) = seen
            && seen.failed()
            && seen.more == 0
            && matches!(seen.errno, libc::EINVAL | libc::EIO)
            && self.through_fuse
            && source.writes()
            && source.opened & libc::O_APPEND != 0
        {
            self.free = true;
            self.half_copied(target, to_at, bytes, by);
            return Ok(seen);
        }
        let from_place = from_at.unwrap_or(source.offset) as u64;
        let file = &self.inodes[source.inode];
        let any_length = file.vague_length;
        let left = if any_length { bytes } else { file.len().saturating_sub(from_place) };
        let vague = file.vague_length || !file.knows(from_place..from_place + bytes);
        self.free |= vague;
        let mut most = bytes.min(left);
        if by == CopyBy::Splice {
            most = most.min(SPLICED);
        }
        // What leaves the source although nothing arrives.
        let mut taken = 0;
        if by == CopyBy::Splice {
            let refused = seen.filter(|seen| seen.more == 0);
            if let Some(seen) = refused
                && seen.failed()
                && self.goes_direct(&source)
                && seen.errno == libc::EINVAL
            {
                self.free |= self.alignment_is_luck();
                return Ok(seen);
            }
            self.free |= self.goes_direct(&source) && self.alignment_is_luck();
            taken = seen.map_or(most, |seen| seen.more);
            if taken > most || !any_length && (taken == 0) != (most == 0) {
                return Err(format!("expected a splice of {most} bytes, got {taken}"));
            }
            if taken == 0 {
                return judged(seen, Seen::ok(0), &[]);
            }
            // A pipe is filled as far as it has room.
            self.free |= taken < most;
            most = taken;
            if let (None, Some(id)) = (from_at, source_id) {
                self.descriptions[id].offset += taken as i64;
            }
        }
        let told = |seen: Seen| Seen { more: taken, ..seen };
        let Some(target) = target.filter(Description::writes) else {
            return judged(seen, told(bad()), &[]);
        };
        if target.appends() {
            let error = if by == CopyBy::CopyFileRange { libc::EBADF } else { libc::EINVAL };
            return judged(seen, told(Seen::error(error)), &[]);
        }
        let to_place = target_place(&target, to_at, by);
        let itself = by == CopyBy::CopyFileRange && source.inode == target.inode;
        // The kernel does not see that two mounts have one file, which grows while it is read.
        let unseen = itself && source.severed != target.severed;
        let any_length = any_length || unseen;
        let most = if unseen { bytes } else { most };
        let overlaps = to_place + most > from_place && to_place < from_place + most;
        let mut refusals = Vec::new();
        if itself && overlaps {
            if !any_length {
                return judged(seen, Seen::error(libc::EINVAL), &[]);
            }
            refusals.push(libc::EINVAL);
        }
        if self.goes_direct(&source) || self.goes_direct(&target) {
            refusals.push(libc::EINVAL);
            self.free |= self.alignment_is_luck();
        }
        if by == CopyBy::CopyFileRange && source.severed != target.severed {
            refusals.push(libc::EXDEV);
        }
        let done = match seen {
            Some(seen) if !seen.failed() => {
                let done = seen.ret as u64;
                if done > most || !any_length && (done == 0) != (most == 0) {
                    return Err(format!("expected {most} bytes, got {}", said(&seen)));
                }
                let direct = self.goes_direct(&source) || self.goes_direct(&target);
                self.free |= done < most && direct;
                done
            }
            _ => most,
        };
        let seen = judged(seen, told(Seen::ok(done as i64)), &refusals)?;
        if seen.failed() {
            if self.goes_direct(&target) {
                self.inodes[target.inode].half_written(to_place..to_place + most);
            }
            return Ok(seen);
        }
        let mut bytes = self.inodes[source.inode].read(from_place, done).to_vec();
        bytes.resize(done as usize, 0);
        let file = &mut self.inodes[target.inode];
        file.write(to_place, &bytes);
        if vague || unseen {
            file.vague.push(to_place..to_place + done);
        }
        if done < most && self.goes_direct(&target) {
            self.inodes[target.inode].half_written(to_place + done..to_place + most);
        }
        if let (None, Some(id), true) = (from_at, source_id, by != CopyBy::Splice) {
            self.descriptions[id].offset = (from_place + done) as i64;
        }
        if let (true, Some(id)) = (to_at.is_none() || by == CopyBy::Sendfile, target_id)
            && done > 0
        {
            self.descriptions[id].offset = (to_place + done) as i64;
        }
        Ok(seen)
    }
}
