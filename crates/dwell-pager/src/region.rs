// SPDX-License-Identifier: MIT OR Apache-2.0
//! A region: the memory, and what a program may ask of it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use dwell::{File, Result};

use crate::options::Options;
use crate::stats::Statistics;

/// What the program says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: reading ahead follows what is seen.
    Normal,
    /// Read in order: reading ahead begins at the first fault and goes as far as it may.
    Sequential,
    /// Read in no order: nothing is read ahead but what hints name.
    Random,
    /// Wanted soon: read in the background by the next faults, as far as the budget reaches.
    WillNeed,
    /// Not wanted any more: leaves memory now. What was written to a shared region is written back, to a
    /// private one lost.
    DontNeed,
}

/// An opened source as memory. Threads share it by reference.
pub struct Region {
    _todo: Arc<()>,
}

/// The calling thread may fault on the region by a queue of its own, for as long as this lives.
pub struct Registered {
    _region: Arc<()>,
    _this_thread: PhantomData<*const ()>,
}

/// A range that stays in memory while this lives, so that system calls may be given it.
pub struct Pin {
    _region: Arc<()>,
    _range: Range<usize>,
}

impl Region {
    /// Makes `file` memory.
    ///
    /// # Errors
    /// An empty source, a budget too small, a source that cannot be read in a signal handler (inline), one
    /// that cannot be written (shared); where userfaultfd is missing or restricted, one line that says so.
    pub fn open(file: impl Into<Arc<File>>, options: &Options) -> Result<Region> {
        let _ = (file.into(), options);
        unimplemented!()
    }
    /// Start of the memory, page-aligned.
    pub fn as_ptr(&self) -> *mut u8 {
        unimplemented!()
    }
    /// Length of the source in bytes; the memory goes on with zeros to the end of the page.
    pub fn len(&self) -> usize {
        unimplemented!()
    }
    /// Always `false`: an empty source cannot be opened.
    pub fn is_empty(&self) -> bool {
        false
    }
    /// Gives the calling thread a queue of its own.
    ///
    /// # Errors
    /// What the source refuses.
    pub fn register_thread(&self) -> Result<Registered> {
        unimplemented!()
    }
    /// Brings a range of bytes into memory.
    ///
    /// # Errors
    /// A range past the end, or what the source refuses.
    pub fn prefault(&self, range: Range<usize>) -> Result<()> {
        let _ = range;
        unimplemented!()
    }
    /// Brings a range of bytes into memory and keeps it there.
    ///
    /// # Errors
    /// As [`Region::prefault`]; more than the budget can hold.
    pub fn pin(&self, range: Range<usize>) -> Result<Pin> {
        let _ = range;
        unimplemented!()
    }
    /// Says how a range of bytes will be used.
    ///
    /// # Errors
    /// A range past the end.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        let _ = (range, advice);
        unimplemented!()
    }
    /// Publishes that the byte at `offset` will be touched soon; hints are followed in their order.
    /// `false` when the ring is full. Costs some nanoseconds; never waits.
    pub fn hint(&self, offset: usize) -> bool {
        let _ = offset;
        unimplemented!()
    }
    /// Writes all that was written to the region back and makes it durable.
    ///
    /// # Errors
    /// What the source refused, now or since the last sync; those pages stay in memory and are tried again.
    pub fn sync(&self) -> Result<()> {
        unimplemented!()
    }
    /// As [`Region::sync`], for a range of bytes.
    ///
    /// # Errors
    /// As [`Region::sync`]; a range past the end.
    pub fn sync_range(&self, range: Range<usize>) -> Result<()> {
        let _ = range;
        unimplemented!()
    }
    /// What was counted so far.
    pub fn statistics(&self) -> Statistics {
        unimplemented!()
    }
    /// The file beneath.
    pub fn file(&self) -> &File {
        unimplemented!()
    }
    /// How pages are installed and dirty ones found, for a table: `move`, `copy`, or `mmap` where the kernel
    /// maps the source.
    pub fn method(&self) -> &'static str {
        unimplemented!()
    }
    /// Ends the region, as dropping it does, and says what a last sync could not write.
    ///
    /// # Errors
    /// As [`Region::sync`].
    pub fn close(self) -> Result<()> {
        self.sync()
    }
}
