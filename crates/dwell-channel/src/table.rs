// SPDX-License-Identifier: MIT OR Apache-2.0
//! The permission table of one channel: which open files its commands reach.

use std::collections::HashMap;
use std::sync::Arc;

use crate::grants::{Inode, OpenFile};

/// One entry.
#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// Used since the last eviction looked at it.
    used: bool,
    grant: Option<(Arc<OpenFile>, T)>,
}

/// A table of fixed capacity. An entry is named by its number and by its generation, which changes
/// with every use that is made of it; when all are taken, one that was not used lately makes room.
#[derive(Debug)]
pub struct Table<T> {
    entries: Vec<Entry<T>>,
    capacity: usize,
    by_open: HashMap<u64, u32>,
    free: Vec<u32>,
    hand: usize,
}

impl<T> Table<T> {
    /// An empty table for up to `capacity` open files.
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1) as usize;
        let (entries, free) = (Vec::new(), Vec::new());
        Table { entries, capacity, by_open: HashMap::new(), free, hand: 0 }
    }

    /// Enters an open file, in place of an entry that it has already: number and generation.
    pub fn insert(&mut self, open: Arc<OpenFile>, with: T) -> (u32, u32) {
        let at = match self.by_open.get(&open.id()) {
            Some(at) => *at,
            None => self.free_entry(),
        };
        self.by_open.insert(open.id(), at);
        let entry = &mut self.entries[at as usize];
        // 0 is never valid, so that zeroes name nothing.
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        // Not before a command has named it.
        entry.used = false;
        entry.grant = Some((open, with));
        (at, entry.generation)
    }

    fn free_entry(&mut self) -> u32 {
        if let Some(at) = self.free.pop() {
            return at;
        }
        if self.entries.len() < self.capacity {
            self.entries.push(Entry { generation: 0, used: false, grant: None });
            return self.entries.len() as u32 - 1;
        }
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[at];
            if !std::mem::take(&mut entry.used) {
                if let Some((open, _)) = entry.grant.take() {
                    self.by_open.remove(&open.id());
                }
                return at as u32;
            }
        }
    }

    /// What an entry grants; `None` where it is not, or no more, what the two numbers say.
    #[inline]
    pub fn get(&mut self, entry: u32, generation: u32) -> Option<(&Arc<OpenFile>, &mut T)> {
        let entry = self.entries.get_mut(entry as usize)?;
        if entry.generation != generation {
            return None;
        }
        entry.used = true;
        entry.grant.as_mut().map(|(open, with)| (&*open, with))
    }

    /// Takes back what was granted of an open file.
    pub fn remove_open(&mut self, id: u64) {
        if let Some(at) = self.by_open.remove(&id) {
            self.entries[at as usize].grant = None;
            self.free.push(at);
        }
    }

    /// Takes back what was granted of any open file on `inode`.
    pub fn remove_inode(&mut self, inode: &Arc<Inode>) {
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if let Some((open, _)) = &entry.grant
                && Arc::ptr_eq(&open.inode, inode)
            {
                self.by_open.remove(&open.id());
                entry.grant = None;
                self.free.push(at as u32);
            }
        }
    }

    /// Takes everything back.
    pub fn clear(&mut self) {
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if entry.grant.take().is_some() {
                self.free.push(at as u32);
            }
        }
        self.by_open.clear();
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.by_open.len()
    }

    /// Whether none is in use.
    pub fn is_empty(&self) -> bool {
        self.by_open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grants::Inodes;

    fn opened(inodes: &Inodes) -> Arc<OpenFile> {
        let file = tempfile::tempfile().unwrap();
        let inode = inodes.of(&file).unwrap();
        Arc::new(OpenFile::new(file, libc::O_RDWR, inode))
    }

    #[test]
    fn an_entry_is_gone_when_its_generation_is() {
        let inodes = Inodes::default();
        let mut table = Table::new(4);
        let open = opened(&inodes);
        let (entry, generation) = table.insert(open.clone(), ());
        assert!(table.get(entry, generation).is_some());
        assert!(table.get(entry, generation + 1).is_none() && table.get(9, generation).is_none());
        let (again, newer) = table.insert(open.clone(), ());
        assert!(again == entry && newer != generation);
        assert!(table.get(entry, generation).is_none() && table.get(entry, newer).is_some());
        table.remove_open(open.id());
        assert!(table.get(entry, newer).is_none() && table.is_empty());
    }

    #[test]
    fn zeroes_name_nothing() {
        let inodes = Inodes::default();
        let mut table = Table::new(4);
        assert!(table.get(0, 0).is_none());
        table.insert(opened(&inodes), ());
        assert!(table.get(0, 0).is_none());
    }

    #[test]
    fn a_flood_of_grants_evicts_and_stays_within_the_capacity() {
        let inodes = Inodes::default();
        let mut table = Table::new(4);
        let hot = opened(&inodes);
        let (hot_entry, hot_generation) = table.insert(hot, ());
        for _ in 0..100 {
            assert!(table.get(hot_entry, hot_generation).is_some(), "what is used stays");
            let (entry, _) = table.insert(opened(&inodes), ());
            assert!(entry < 4);
        }
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn a_drained_file_loses_all_its_entries_and_no_other_does() {
        let inodes = Inodes::default();
        let mut table = Table::new(8);
        let (one, other) = (opened(&inodes), opened(&inodes));
        let file = one.file.try_clone().unwrap();
        let twin = Arc::new(OpenFile::new(file, libc::O_RDONLY, one.inode.clone()));
        let first = table.insert(one.clone(), ());
        let second = table.insert(twin, ());
        let kept = table.insert(other, ());
        table.remove_inode(&one.inode);
        assert!(table.get(first.0, first.1).is_none() && table.get(second.0, second.1).is_none());
        assert!(table.get(kept.0, kept.1).is_some());
    }
}
