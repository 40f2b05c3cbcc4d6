// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many requests of each kind the kernel has made.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! requests {
    ($($variant:ident $name:literal),+ $(,)?) => {
        /// What the kernel asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Asked { $($variant),+ }

        const NAMES: &[&str] = &[$($name),+];
    };
}

requests! {
    Lookup "lookup", Forget "forget", GetAttr "getattr", SetAttr "setattr", ReadLink "readlink", MkNod "mknod",
    MkDir "mkdir", Unlink "unlink", RmDir "rmdir", SymLink "symlink", Rename "rename", Link "link",
    Create "create", Open "open", Read "read", Fill "fill", Write "write", Flush "flush", Release "release",
    FSync "fsync", OpenDir "opendir", ReadDir "readdir", ReleaseDir "releasedir", FSyncDir "fsyncdir",
    StatFs "statfs", SetXAttr "setxattr", GetXAttr "getxattr", ListXAttr "listxattr",
    RemoveXAttr "removexattr", FAllocate "fallocate", LSeek "lseek", CopyFileRange "copy_file_range",
    IoCtl "ioctl",
}

/// A counter for each.
#[derive(Debug)]
pub(super) struct Counts(Vec<AtomicU64>);

impl Default for Counts {
    fn default() -> Self {
        Counts(NAMES.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Counts {
    pub fn one(&self, asked: Asked) {
        self.0[asked as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that were made at all, by name.
    pub fn made(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let named = NAMES.iter().map(|name| (*name).to_owned()).zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_its_own_counter() {
        let counts = Counts::default();
        counts.one(Asked::Lookup);
        counts.one(Asked::IoCtl);
        counts.one(Asked::IoCtl);
        let made = counts.made();
        assert_eq!(made.len(), 2);
        assert_eq!((made["lookup"], made["ioctl"]), (1, 2));
    }
}
