// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of requests: what direct I/O accepts, and what a request in flight can own.
#![allow(unsafe_code)]

mod exclusive;
mod io_buf;
mod spare;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

pub use exclusive::Exclusive;
pub(crate) use io_buf::Filled;
pub use io_buf::{IoBuf, IoBufMut};
pub use spare::Spare;

/// A page-aligned buffer, zeroed when made: direct I/O on every device takes it.
///
/// ```
/// let mut buffer = dwell::buffer::Aligned::new(5000);
/// assert_eq!(buffer.as_ptr() as usize % dwell::buffer::Aligned::ALIGNMENT, 0);
/// buffer[4999] = 7;
/// assert_eq!(buffer.len(), 5000);
/// ```
pub struct Aligned {
    start: NonNull<u8>,
    bytes: usize,
    alignment: usize,
}

// SAFETY: an Aligned owns its memory alone, as a Vec does.
unsafe impl Send for Aligned {}
// SAFETY: shared access is read-only.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// Alignment in bytes, unless more was asked for.
    pub const ALIGNMENT: usize = 4096;

    fn layout(bytes: usize, alignment: usize) -> Layout {
        Layout::from_size_align(bytes.max(1), alignment).expect("a buffer fits the address space")
    }

    /// A buffer of `bytes` zero bytes.
    ///
    /// # Panics
    /// If `bytes` does not fit the address space.
    pub fn new(bytes: usize) -> Self {
        Self::for_blocks_of(bytes, Self::ALIGNMENT)
    }

    /// A buffer of `bytes` zero bytes for a device whose blocks may be larger than a page; aligned
    /// to at least [`Aligned::ALIGNMENT`].
    ///
    /// # Panics
    /// If `bytes` does not fit the address space, or `block_bytes` is not a power of two.
    pub fn for_blocks_of(bytes: usize, block_bytes: usize) -> Self {
        let alignment = block_bytes.max(Self::ALIGNMENT);
        let layout = Self::layout(bytes, alignment);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Aligned { start, bytes, alignment }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.bytes, self.alignment)) }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes start there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl std::fmt::Debug for Aligned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aligned").field("bytes", &self.bytes).finish()
    }
}
