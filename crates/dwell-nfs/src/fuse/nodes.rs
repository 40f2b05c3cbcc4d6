// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel knows files by: a number for each handle, as long as it remembers it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::client::Found;
use crate::file::Writer;
use crate::nfs3::{Handle, Kind};

use super::freshness::Stamp;

/// The root's number.
pub(super) const ROOT: u64 = 1;
/// Numbers from here on are made up, for files whose own number another file has.
const MADE_UP: u64 = 1 << 63;

/// A file or directory that the kernel knows.
pub(super) struct Node {
    pub handle: Handle,
    pub kind: Kind,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
    /// How often it is open.
    pub opens: u32,
    /// Once it was written to.
    pub writer: Option<Rc<Writer>>,
    /// As it was when it was opened last.
    pub stamp: Option<Stamp>,
    /// Where it is, since its last name was removed while it was open.
    pub kept: Option<(Handle, Vec<u8>)>,
}

/// All that the kernel knows.
#[derive(Default)]
pub(super) struct Nodes {
    by_number: HashMap<u64, Node>,
    by_handle: HashMap<Handle, u64>,
    made_up: u64,
}

impl Nodes {
    /// The number of what was found, which the kernel is told of once more.
    pub fn told(&mut self, found: &Found) -> u64 {
        let number = self.number(found);
        if let Some(node) = self.by_number.get_mut(&number) {
            node.lookups += 1;
        }
        number
    }

    fn number(&mut self, found: &Found) -> u64 {
        let Found { handle, attributes } = found;
        if let Some(number) = self.by_handle.get(handle) {
            return *number;
        }
        let mut number = attributes.file;
        while number <= ROOT || self.by_number.contains_key(&number) {
            number = MADE_UP + self.made_up;
            self.made_up += 1;
        }
        self.put(number, found);
        number
    }

    fn put(&mut self, number: u64, found: &Found) {
        let (handle, kind) = (found.handle, found.attributes.kind);
        let (lookups, opens) = (0, 0);
        let (writer, stamp, kept) = (None, None, None);
        let node = Node { handle, kind, lookups, opens, writer, stamp, kept };
        self.by_handle.insert(handle, number);
        self.by_number.insert(number, node);
    }

    /// The directory that is mounted. It is never forgotten.
    pub fn put_root(&mut self, root: &Found) {
        self.put(ROOT, root);
        self.by_number.entry(ROOT).and_modify(|node| node.lookups = 1);
    }

    /// The kernel has forgotten it so often.
    pub fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.by_number.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        // The next program to open the file, or the end of the mount, makes the rest durable.
        // A killed program's writes that are on their way go before those of the next program.
        let is_over = |writer: &Rc<Writer>| writer.uncommitted_bytes() == 0 && !writer.is_writing();
        let is_over = node.writer.as_ref().is_none_or(is_over);
        if node.lookups == 0 && node.opens == 0 && is_over && number != ROOT {
            self.by_handle.remove(&node.handle);
            self.by_number.remove(&number);
        }
    }

    /// By its number.
    pub fn get(&self, number: u64) -> Option<&Node> {
        self.by_number.get(&number)
    }

    /// By its number.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Node> {
        self.by_number.get_mut(&number)
    }

    /// By its handle: its number.
    pub fn of(&self, handle: &Handle) -> Option<u64> {
        self.by_handle.get(handle).copied()
    }

    /// Files of which something that was written is not known to be durable.
    pub fn unfinished(&self) -> Vec<u64> {
        let is_unfinished =
            |node: &Node| node.writer.as_ref().is_some_and(|writer| writer.uncommitted_bytes() > 0);
        let unfinished = self.by_number.iter().filter(|(_, node)| is_unfinished(node));
        unfinished.map(|(number, _)| *number).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::nfs3::{Attributes, Time};

    pub(in crate::fuse) fn attributes(file: u64) -> Attributes {
        let time = Time::default();
        Attributes {
            kind: Kind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            bytes: 0,
            used_bytes: 0,
            device: (0, 0),
            file_system: 1,
            file,
            accessed: time,
            modified: time,
            changed: time,
        }
    }

    fn found(handle: &[u8], file: u64) -> Found {
        Found { handle: Handle::new(handle).unwrap(), attributes: attributes(file) }
    }

    #[test]
    fn a_file_keeps_its_number_until_the_kernel_forgets_it() {
        let mut nodes = Nodes::default();
        nodes.put_root(&found(b"root", 1));
        assert_eq!(nodes.told(&found(b"a", 7)), 7);
        assert_eq!(nodes.told(&found(b"a", 7)), 7);
        // Of another file system of the server.
        let other = nodes.told(&found(b"b", 7));
        assert!(other >= MADE_UP && nodes.told(&found(b"c", ROOT)) > other);
        nodes.forget(7, 1);
        assert!(nodes.get(7).is_some());
        nodes.get_mut(7).unwrap().opens = 1;
        nodes.forget(7, 1);
        assert!(nodes.get(7).is_some(), "it is open");
        nodes.get_mut(7).unwrap().opens = 0;
        nodes.forget(7, 0);
        assert!(nodes.get(7).is_none() && nodes.of(&Handle::new(b"a").unwrap()).is_none());
        nodes.forget(ROOT, 100);
        assert!(nodes.get(ROOT).is_some());
    }
}
