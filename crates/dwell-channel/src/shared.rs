// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a channel, mapped: cursors and entries as atomic words, data as bytes that are
//! only copied.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use dwell::mapping::Mapping;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::guarded::Guarded;
use crate::layout::{BESIDE, COMMAND_WORDS, COMPLETION_WORDS, Layout, Mark};
use crate::ring::Beside;
use crate::shares::Share;

/// A channel's memory. The other side may change any byte of it at any time.
#[derive(Debug)]
pub struct Shared {
    memory: Guarded,
    layout: Layout,
    /// A user's part of the memory of channels. Given back after the memory is.
    _share: Option<Share>,
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Shared {
    /// Fresh zeroed memory that can become neither shorter nor longer, and the descriptor that
    /// another process maps it by.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(layout: Layout) -> io::Result<(Shared, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("dwell-channel", flags)?;
        rustix::fs::ftruncate(&memory, layout.bytes())?;
        rustix::fs::fcntl_add_seals(&memory, SEALS)?;
        let file = File::from(memory);
        let shared = Shared::over(&file, layout)?;
        Ok((shared, file.into()))
    }

    /// Memory that another process made: exactly as long as the layout says, and sealed, so that no
    /// access to it can fault.
    ///
    /// # Errors
    /// What the system says, or memory that is not so.
    pub fn adopt(memory: OwnedFd, layout: Layout) -> io::Result<Shared> {
        let seals = rustix::fs::fcntl_get_seals(&memory)?;
        let length = rustix::fs::fstat(&memory)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || length as u64 != layout.bytes() {
            let what = "the channel's memory is not sealed, or of another length than agreed on";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let file = File::from(memory);
        Shared::over(&file, layout)
    }

    fn over(file: &File, layout: Layout) -> io::Result<Shared> {
        let memory = Guarded::new(Mapping::of_file(file, layout.bytes(), true)?);
        Ok(Shared { memory, layout, _share: None })
    }

    /// Counts as this part of the memory of channels, for as long as anybody keeps it.
    #[must_use]
    pub(crate) fn counted(self, share: Share) -> Self {
        Shared { _share: Some(share), ..self }
    }

    /// Whether the other side has taken pages of it away.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Memory that can become shorter, as a client's cannot.
    #[cfg(test)]
    pub fn unsealed(file: &File, layout: Layout) -> Shared {
        file.set_len(layout.bytes()).unwrap();
        Shared::over(file, layout).unwrap()
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// One of the words that both sides look at.
    #[inline]
    pub fn mark(&self, mark: Mark) -> &AtomicU32 {
        // SAFETY: a mark lies within the first page, which every layout has, aligned; any bytes are
        // a valid word, and the mapping lives as long as `self`.
        unsafe { &*self.memory.start().add(mark as usize).cast::<AtomicU32>() }
    }

    /// The copy of a command beside the cursor of commands.
    #[inline]
    pub fn beside_commands(&self) -> Beside<'_, AtomicU32, AtomicU64> {
        self.beside(Mark::CommandTail, COMMAND_WORDS)
    }

    /// The copy of a completion beside the cursor of completions.
    #[inline]
    pub fn beside_completions(&self) -> Beside<'_, AtomicU32, AtomicU64> {
        self.beside(Mark::CompletionTail, COMPLETION_WORDS)
    }

    #[inline]
    fn beside(&self, tail: Mark, words: usize) -> Beside<'_, AtomicU32, AtomicU64> {
        let at = tail as u64 + BESIDE;
        // SAFETY: both lie between a mark and the next, in the first page, aligned; any bytes are
        // valid words.
        unsafe {
            let start = self.memory.start();
            let belongs_to = &*start.add(at as usize - size_of::<u32>()).cast::<AtomicU32>();
            let copy = start.add(at as usize).cast::<AtomicU64>();
            Beside { belongs_to, words: std::slice::from_raw_parts(copy, words) }
        }
    }

    /// The words of the submission ring.
    #[inline]
    pub fn commands(&self) -> &[AtomicU64] {
        self.words(self.layout.commands(), COMMAND_WORDS)
    }

    /// The words of the completion ring.
    #[inline]
    pub fn completions(&self) -> &[AtomicU64] {
        self.words(self.layout.completions(), COMPLETION_WORDS)
    }

    #[inline]
    fn words(&self, at: u64, per_entry: usize) -> &[AtomicU64] {
        let words = self.layout.entries() as usize * per_entry;
        // SAFETY: the layout keeps so many words there, page-aligned and within the mapping; any
        // bytes are valid words.
        unsafe {
            let start = self.memory.start().add(at as usize).cast::<AtomicU64>();
            std::slice::from_raw_parts(start, words)
        }
    }

    /// Where `bytes` bytes of the data area lie, from `place`; `None` where they are not all in it.
    #[inline]
    pub fn data(&self, place: u32, bytes: u32) -> Option<*mut u8> {
        let start = self.memory.start();
        self.layout.holds(place, bytes).then(|| {
            // SAFETY: within the mapping, because it is within the data area.
            unsafe { start.add(self.layout.data() as usize + place as usize) }
        })
    }

    /// The place in the data area of `bytes` bytes at `memory`; `None` where they are not all in
    /// it.
    #[inline]
    pub fn place_of(&self, memory: *const u8, bytes: u32) -> Option<u32> {
        let start = self.memory.start() as u64 + self.layout.data();
        let place = u32::try_from((memory as u64).checked_sub(start)?).ok()?;
        self.layout.holds(place, bytes).then_some(place)
    }

    /// Keeps the memory out of forked children: a child is no party to its parent's channel.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep_from_children(&self) -> io::Result<()> {
        let (start, bytes) = (self.memory.start().cast(), self.layout.bytes() as usize);
        // SAFETY: the range is this mapping; nothing of this process changes.
        match unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_sides_see_one_memory_that_cannot_shrink() {
        let layout = Layout::new(4, 4096).unwrap();
        let (ours, descriptor) = Shared::create(layout).unwrap();
        assert!(rustix::fs::ftruncate(&descriptor, 0).is_err());
        let theirs = Shared::adopt(descriptor, layout).unwrap();
        ours.mark(Mark::ClientAsleep).store(9, Relaxed);
        ours.commands()[15].store(7, Relaxed);
        assert_eq!(theirs.mark(Mark::ClientAsleep).load(Relaxed), 9);
        assert_eq!(theirs.commands()[15].load(Relaxed), 7);
        let place = ours.data(4095, 1).unwrap();
        assert_eq!(ours.place_of(place, 1), Some(4095));
        assert_eq!(ours.place_of(place, 2), None);
        assert_eq!(ours.place_of(theirs.data(0, 1).unwrap(), 1), None);
    }

    #[test]
    fn memory_that_could_shrink_is_not_adopted() {
        let layout = Layout::new(4, 4096).unwrap();
        let open = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&open, layout.bytes()).unwrap();
        assert!(Shared::adopt(open, layout).is_err());
        let (_, other) = Shared::create(Layout::new(8, 8192).unwrap()).unwrap();
        assert!(Shared::adopt(other, layout).is_err());
    }
}
