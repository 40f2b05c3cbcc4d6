// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers that live in a channel: requests on them copy nothing on the client's side.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use dwell::buffer::{IoBuf, IoBufMut};

use crate::shared::Shared;

/// The part of a channel's memory that buffers are allocated from.
#[derive(Debug)]
pub(crate) struct Arena {
    shared: Arc<Shared>,
    /// From here on nothing was ever given out.
    next: Mutex<(u32, Vec<(u32, u32)>)>,
}

const PAGE_BYTES: u32 = 4096;
/// Small buffers begin on cache lines of their own.
const LINE_BYTES: u32 = 64;

impl Arena {
    /// All of the data area from `first` on.
    pub fn new(shared: Arc<Shared>, first: u32) -> Arc<Arena> {
        Arc::new(Arena { shared, next: Mutex::new((first, Vec::new())) })
    }

    /// A buffer of `bytes` bytes; `None` where there is no room.
    pub fn buffer(self: &Arc<Arena>, bytes: u32) -> Option<ChannelBuffer> {
        let unit = if bytes >= PAGE_BYTES { PAGE_BYTES } else { LINE_BYTES };
        let room = bytes.max(1).checked_next_multiple_of(unit)?;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let place = match next.1.iter().position(|(_, free)| *free == room) {
            Some(at) => next.1.swap_remove(at).0,
            None => {
                let place = next.0.checked_next_multiple_of(unit)?;
                let end = place.checked_add(room)?;
                self.shared.data(place, room)?;
                next.0 = end;
                place
            }
        };
        let start = NonNull::new(self.shared.data(place, room)?)?;
        Some(ChannelBuffer { arena: self.clone(), start, place, room, bytes: bytes as usize })
    }
}

/// A buffer in a channel's memory.
///
/// The daemon can see and change what is in it, also while no request is in flight. A client trusts
/// its daemon, which serves it the files, as it would trust the kernel; whoever does not want that
/// has its requests copied.
#[derive(Debug)]
pub struct ChannelBuffer {
    arena: Arc<Arena>,
    start: NonNull<u8>,
    place: u32,
    room: u32,
    bytes: usize,
}

// SAFETY: it owns its part of the memory alone, on this side, as a Vec does.
unsafe impl Send for ChannelBuffer {}
// SAFETY: shared access is read-only.
unsafe impl Sync for ChannelBuffer {}

impl Deref for ChannelBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes of the mapping start there, which the arena keeps.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for ChannelBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

// SAFETY: the memory stays where it is while the buffer is moved, until it is dropped.
unsafe impl IoBuf for ChannelBuffer {
    fn data(&self) -> (*const u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }
}

// SAFETY: as above, and the buffer has its part of the arena alone.
unsafe impl IoBufMut for ChannelBuffer {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }
}

impl Drop for ChannelBuffer {
    fn drop(&mut self) {
        let mut next = self.arena.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.1.push((self.place, self.room));
    }
}
