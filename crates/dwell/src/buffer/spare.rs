// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that nobody has initialised, for reads to fill.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Deref;

use super::{IoBuf, IoBufMut};

/// The memory between a buffer's length and its capacity. A read fills it without zeroing it first,
/// and the length grows by what was read.
///
/// It is made of a `Vec<u8>`, or of a `BytesMut` with the feature `bytes`.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// use dwell::buffer::Spare;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, b"hello").unwrap();
/// let file = dwell::open(&path)?;
/// let mut pipeline = file.pipeline(1)?;
/// let buffer = Spare::new(Vec::with_capacity(4096));
/// pipeline.read_at(buffer, 0).map_err(|(error, _)| error)?;
/// let done = pipeline.next().unwrap();
/// assert_eq!(done.result?, 5);
/// assert_eq!(done.buffer.unwrap().into_inner(), b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Spare<B> {
    buffer: B,
    /// Length of the buffer when it came here, in bytes.
    begin: usize,
}

impl<B: Deref<Target = [u8]>> Spare<B> {
    /// The free capacity behind the length of `buffer`.
    pub fn new(buffer: B) -> Self {
        Spare { begin: buffer.len(), buffer }
    }

    /// The buffer, longer by what was read.
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

/// What was read.
impl<B: Deref<Target = [u8]>> Deref for Spare<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for Spare<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").field("begin", &self.begin).field("filled", &self.len()).finish()
    }
}

macro_rules! spare_of {
    ($buffer:ty) => {
        // SAFETY: the memory is the buffer's, which does not move with it; up to the length it is
        // initialised.
        unsafe impl IoBuf for Spare<$buffer> {
            fn data(&self) -> (*const u8, usize) {
                (self.as_ptr(), self.len())
            }
        }

        // SAFETY: as above. Nothing here changes the capacity or where the room begins.
        unsafe impl IoBufMut for Spare<$buffer> {
            fn room(&mut self) -> (*mut u8, usize) {
                let bytes = self.buffer.capacity() - self.begin;
                (self.buffer.as_mut_ptr().wrapping_add(self.begin), bytes)
            }

            fn zero(&mut self) {
                let (start, bytes) = self.room();
                // SAFETY: the buffer's own memory up to its capacity.
                unsafe { start.write_bytes(0, bytes) };
            }

            unsafe fn filled(&mut self, bytes: usize) {
                // SAFETY: so much is initialised, as the caller promised, and within the capacity.
                unsafe { self.buffer.set_len(self.begin + bytes) };
            }
        }
    };
}

spare_of!(Vec<u8>);
#[cfg(feature = "bytes")]
spare_of!(bytes::BytesMut);
