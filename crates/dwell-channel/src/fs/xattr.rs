// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, XattrFlags};
use rustix::io::Errno;

use super::caller::Caller;
use super::node::{Node, key};
use super::tree::Tree;
use crate::grants::Why;

/// How the attributes of a file are reached.
enum Address {
    /// By its descriptor's path, which has to be followed to the file.
    Descriptor(String),
    /// A symbolic link by where it was seen last, because a followed path would lead on.
    Name(PathBuf),
}

impl Address {
    fn get(&self, name: &OsStr, room: &mut [u8]) -> Result<usize, Errno> {
        match (self, room.len()) {
            (Address::Descriptor(path), 0) => rustix::fs::getxattr_query(path, name),
            (Address::Descriptor(path), _) => rustix::fs::getxattr(path, name, room),
            (Address::Name(path), 0) => rustix::fs::lgetxattr_query(path, name),
            (Address::Name(path), _) => rustix::fs::lgetxattr(path, name, room),
        }
    }

    fn list(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match (self, room.len()) {
            (Address::Descriptor(path), 0) => rustix::fs::listxattr_query(path),
            (Address::Descriptor(path), _) => rustix::fs::listxattr(path, room),
            (Address::Name(path), 0) => rustix::fs::llistxattr_query(path),
            (Address::Name(path), _) => rustix::fs::llistxattr(path, room),
        }
    }
}

/// Whether setting it keeps channels off the file meanwhile.
fn drains(name: &OsStr) -> bool {
    name.as_bytes() == b"security.capability"
}

impl Tree {
    /// Whether setting an attribute waits for what channels have in flight.
    pub fn setxattr_may_take_long(&self, id: u64, name: &OsStr) -> bool {
        drains(name) && self.nodes.get(id).is_ok_and(|node| self.is_granted(node.key))
    }

    pub fn setxattr(
        &self,
        caller: Caller,
        id: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        let node = self.nodes.get(id)?;
        let _guard = drains(name).then(|| self.drain(node.key, Why::Attributes));
        // An access list may change the mode, and whose group it is decides about set-group-id.
        let acl = name.as_bytes().starts_with(b"system.posix_acl_");
        let _acting = acl.then(|| self.callers.become_caller(caller)).transpose()?;
        let flags = XattrFlags::from_bits_retain(flags as u32);
        match self.address(&node)? {
            Address::Descriptor(path) => rustix::fs::setxattr(path, name, value, flags),
            Address::Name(path) => rustix::fs::lsetxattr(path, name, value, flags),
        }
    }

    /// The value, or with a `room` of 0 as many zeroes as it has bytes.
    pub fn getxattr(&self, id: u64, name: &OsStr, room: usize) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.get(id)?;
        let mut value = vec![0; room];
        match self.address(&node)?.get(name, &mut value) {
            Ok(bytes) => {
                value.resize(bytes, 0);
                Ok(value)
            }
            // The kernel asks for access lists whenever it checks rights: a file system that has
            // none says that this file has none.
            Err(Errno::OPNOTSUPP) if name.as_bytes().starts_with(b"system.posix_acl_") => {
                Err(Errno::NODATA)
            }
            Err(error) => Err(error),
        }
    }

    /// All names, each ended by a zero byte.
    pub fn listxattr(&self, caller: Caller, id: u64) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.get(id)?;
        let address = self.address(&node)?;
        let names = loop {
            let mut names = vec![0; address.list(&mut [])?];
            if names.is_empty() {
                return Ok(names);
            }
            match address.list(&mut names) {
                // It grew meanwhile.
                Err(Errno::RANGE) => {}
                Err(error) => return Err(error),
                Ok(bytes) => {
                    names.truncate(bytes);
                    break names;
                }
            }
        };
        if caller.uid == 0 {
            return Ok(names);
        }
        // What only the privileged may read, only they see.
        let visible = names.split_inclusive(|byte| *byte == 0);
        Ok(visible.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect())
    }

    pub fn removexattr(&self, id: u64, name: &OsStr) -> Result<(), Errno> {
        let node = self.nodes.get(id)?;
        match self.address(&node)? {
            Address::Descriptor(path) => rustix::fs::removexattr(path, name),
            Address::Name(path) => rustix::fs::lremovexattr(path, name),
        }
    }

    fn address(&self, node: &Node) -> Result<Address, Errno> {
        if !node.is_symlink() {
            return Ok(Address::Descriptor(node.path()));
        }
        let (parent, name) = node.place();
        let parent = self.nodes.get(parent)?;
        let stat = rustix::fs::statat(&*parent, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        match key(&stat) == node.key {
            true => Ok(Address::Name(Path::new(&parent.path()).join(name))),
            false => Err(Errno::STALE),
        }
    }
}
