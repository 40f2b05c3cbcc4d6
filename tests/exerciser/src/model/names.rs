// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of files.

use super::{Inode, Model, judged};
use crate::operation::{Line, Name};
use crate::record::Seen;

impl Model {
    pub(super) fn open_name(
        &mut self,
        line: &Line,
        slot: u8,
        name: Name,
        flags: i32,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let only_path = flags & libc::O_PATH != 0;
        let creates = flags & libc::O_CREAT != 0 && !only_path;
        let there = self.names[name as usize];
        if there.is_none() && !creates {
            return judged(seen, Seen::error(libc::ENOENT), &[]);
        }
        if there.is_some() && creates && flags & libc::O_EXCL != 0 {
            return judged(seen, Seen::error(libc::EEXIST), &[]);
        }
        let inode = there.unwrap_or_else(|| {
            self.inodes.push(Inode { links: 1, ..Inode::default() });
            self.names[name as usize] = Some(self.inodes.len() - 1);
            self.inodes.len() - 1
        });
        let refusal = if flags & libc::O_DIRECT != 0 { [libc::EINVAL] } else { [0] };
        let id = self.described(inode, flags);
        let seen = self.keep(line, slot, id, seen, &refusal)?;
        if !seen.failed() && flags & libc::O_TRUNC != 0 && !only_path {
            self.set_length(inode, 0);
        }
        Ok(seen)
    }

    pub(super) fn rename(
        &mut self,
        from: Name,
        to: Name,
        flags: u32,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let (source, target) = (self.names[from as usize], self.names[to as usize]);
        let error = match (source, target) {
            (None, _) => libc::ENOENT,
            (_, Some(_)) if flags & libc::RENAME_NOREPLACE != 0 => libc::EEXIST,
            (_, None) if flags & libc::RENAME_EXCHANGE != 0 => libc::ENOENT,
            _ => 0,
        };
        if error != 0 {
            return judged(seen, Seen::error(error), &[]);
        }
        let seen = judged(seen, Seen::ok(0), &[])?;
        if source == target {
            // Two names of one file stay both.
            return Ok(seen);
        }
        if flags & libc::RENAME_EXCHANGE != 0 {
            self.names.swap(from as usize, to as usize);
            return Ok(seen);
        }
        if let Some(lost) = target {
            self.inodes[lost].links -= 1;
        }
        self.names[to as usize] = self.names[from as usize].take();
        Ok(seen)
    }

    pub(super) fn unlink(&mut self, name: Name, seen: Option<Seen>) -> Result<Seen, String> {
        let Some(inode) = self.names[name as usize] else {
            return judged(seen, Seen::error(libc::ENOENT), &[]);
        };
        let seen = judged(seen, Seen::ok(0), &[])?;
        self.names[name as usize] = None;
        self.inodes[inode].links = self.inodes[inode].links.saturating_sub(1);
        Ok(seen)
    }

    pub(super) fn link(
        &mut self,
        from: Name,
        to: Name,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(inode) = self.names[from as usize] else {
            return judged(seen, Seen::error(libc::ENOENT), &[]);
        };
        if self.names[to as usize].is_some() {
            return judged(seen, Seen::error(libc::EEXIST), &[]);
        }
        let seen = judged(seen, Seen::ok(0), &[])?;
        self.names[to as usize] = Some(inode);
        self.inodes[inode].links += 1;
        Ok(seen)
    }
}
