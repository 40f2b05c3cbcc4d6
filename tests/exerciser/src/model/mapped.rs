// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files as memory.

use std::collections::BTreeMap;

use super::{Model, PAGE, judged};
use crate::operation::Line;
use crate::pattern;
use crate::record::Seen;

/// A mapping of a process.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Of which file.
    pub inode: usize,
    /// Whether writes reach it.
    pub shared: bool,
    /// Whether it may be written.
    pub write: bool,
    /// From which byte of the file.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The server beneath is gone.
    pub severed: bool,
    /// Which pages are still copies is not known.
    pub vague: bool,
    /// Pages that were written to and are copies since, by their number in the file.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    #[allow(clippy::too_many_arguments)] // Those of mmap.
    pub(super) fn map(
        &mut self,
        line: &Line,
        map: u8,
        slot: u8,
        shared: bool,
        write: bool,
        (at, bytes): (u64, u64),
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        self.process(line).maps[map as usize] = None;
        let open = self.open(line.process, slot).cloned();
        let error = match &open {
            None => libc::EBADF,
            Some(open) if open.only_path() => libc::EBADF,
            Some(open) if !open.reads() || shared && write && !open.writes() => libc::EACCES,
            Some(_) => 0,
        };
        if error != 0 {
            return judged(seen, Seen::error(error), &[]);
        }
        let seen = judged(seen, Seen::ok(0), &[])?;
        if let Some(open) = open {
            let (inode, pages) = (open.inode, BTreeMap::new());
            let severed = open.severed;
            let mapping = Mapping { inode, shared, write, at, bytes, severed, vague: false, pages };
            self.process(line).maps[map as usize] = Some(mapping);
        }
        Ok(seen)
    }

    /// The pages of all private mappings from this one on are gone: the file became shorter.
    pub(super) fn lost_pages(&mut self, inode: usize, first: u64) {
        for mapping in self.mappings(inode) {
            mapping.pages.retain(|page, _| *page < first);
        }
    }

    /// The file's pages have other numbers.
    pub(super) fn shifted(&mut self, inode: usize) {
        self.mappings(inode).filter(|mapping| !mapping.shared).for_each(|one| one.vague = true);
    }

    fn mappings(&mut self, inode: usize) -> impl Iterator<Item = &mut Mapping> {
        let processes = self.processes.iter_mut().flatten();
        let all = processes.flat_map(|process| process.maps.iter_mut().flatten());
        all.filter(move |mapping| mapping.inode == inode)
    }

    pub(super) fn peek(
        &mut self,
        line: &Line,
        map: u8,
        at: u64,
        bytes: u64,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(mapping) = self.mapping(line.process, map).cloned() else {
            return judged(seen, Seen::error(libc::ENOMEM), &[]);
        };
        let file = &self.inodes[mapping.inode];
        let from = mapping.at + at;
        if !file.has_page_of(from, bytes, seen) {
            self.process(line).maps[map as usize] = None;
            self.free = true;
            return judged(seen, Seen::error(libc::EFAULT), &[]);
        }
        let mut memory = file.read(from, bytes).to_vec();
        memory.resize(bytes as usize, 0);
        for (place, byte) in memory.iter_mut().enumerate() {
            let offset = from + place as u64;
            if let Some(page) = mapping.pages.get(&(offset / PAGE)) {
                *byte = page[(offset % PAGE) as usize];
            }
        }
        let known = file.knows(from..from + bytes) && from + bytes <= file.len();
        let digest = match seen {
            Some(seen) if !known || mapping.vague => seen.digest,
            _ => pattern::digest(&memory),
        };
        self.free |= !known || mapping.vague;
        judged(seen, Seen { ret: bytes as i64, digest, ..Seen::default() }, &[])
    }

    pub(super) fn poke(
        &mut self,
        line: &Line,
        map: u8,
        at: u64,
        bytes: u64,
        seed: u64,
        seen: Option<Seen>,
    ) -> Result<Seen, String> {
        let Some(mapping) = self.mapping(line.process, map).cloned() else {
            return judged(seen, Seen::error(libc::ENOMEM), &[]);
        };
        let from = mapping.at + at;
        let file = &mut self.inodes[mapping.inode];
        let end = file.len().next_multiple_of(PAGE);
        let there = file.has_page_of(from, bytes, seen);
        let expected = if there { Seen::ok(bytes as i64) } else { Seen::error(libc::EFAULT) };
        let seen = judged(seen, expected, &[])?;
        let mut memory = pattern::bytes(bytes as usize, seed);
        memory.truncate(end.saturating_sub(from) as usize);
        if mapping.shared && file.vague_length {
            file.vague.push(from..from + bytes);
        }
        if mapping.shared {
            let length = file.len();
            let inside = length.saturating_sub(from).min(memory.len() as u64);
            file.write(from, &memory[..inside as usize]);
            // The kernel writes whole pages.
            let pages = from / PAGE * PAGE..(from + inside).next_multiple_of(PAGE);
            file.unsynced.push(pages);
            if from + memory.len() as u64 > length {
                file.vague.push(length..end);
            }
        } else {
            let content = file.clone();
            let Some(mapping) = &mut self.process(line).maps[map as usize] else { return Ok(seen) };
            for (place, byte) in memory.iter().enumerate() {
                let offset = from + place as u64;
                let page = mapping.pages.entry(offset / PAGE).or_insert_with(|| {
                    let mut page = content.read(offset / PAGE * PAGE, PAGE).to_vec();
                    page.resize(PAGE as usize, 0);
                    page
                });
                page[(offset % PAGE) as usize] = *byte;
            }
        }
        if !there {
            self.process(line).maps[map as usize] = None;
        }
        Ok(seen)
    }
}
