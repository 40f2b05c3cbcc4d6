// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directories that a directory is in. A server can have one that is in itself.

use std::rc::Rc;

use crate::error::{Error, Result};
use crate::nfs3::Handle;

/// More than paths have on any system, and few enough to hold.
const DEEPEST: usize = 4096;

/// What a directory is known by: its handle, if it is on a server, its file system and its number.
pub(crate) type Identity = (Handle, u64, u64);

/// The directories that something is in, the nearest first.
#[derive(Clone, Default)]
pub(crate) struct Lineage(Option<Rc<Above>>);

struct Above {
    directory: Identity,
    depth: usize,
    above: Lineage,
}

impl Lineage {
    /// The lineage of what is in a directory, whose own is this.
    ///
    /// # Errors
    /// That the directory is in itself, or too deep.
    pub fn enter(&self, directory: Identity, path: &impl ToString) -> Result<Lineage> {
        let mut next = &self.0;
        while let Some(above) = next {
            if above.directory == directory {
                return Err(Error::invalid(path.to_string(), "the directory contains itself"));
            }
            next = &above.above.0;
        }
        let depth = self.0.as_ref().map_or(0, |above| above.depth) + 1;
        if depth > DEEPEST {
            let what = format!("more than {DEEPEST} directories are in each other");
            return Err(Error::invalid(path.to_string(), what));
        }
        Ok(Lineage(Some(Rc::new(Above { directory, depth, above: self.clone() }))))
    }
}
