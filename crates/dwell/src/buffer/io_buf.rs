// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a request in flight owns.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::Aligned;

/// Memory that a write in flight owns and takes its data from.
///
/// `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, `&'static [u8]` and [`Aligned`] are such buffers. With the
/// feature `bytes`, `Bytes` and `BytesMut` are too. A pair has the memory of its first part; the
/// second is anything you want back with the request.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// use std::sync::Arc;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let file = dwell::options().write(true).create(true).open(&path)?;
/// let shared: Arc<[u8]> = Arc::from(&b"hello"[..]);
/// let mut pipeline = file.pipeline(2)?;
/// for (name, at) in [("first", 0), ("second", 5)] {
///     pipeline.write_at((shared.clone(), name), at).map_err(|(error, _)| error)?;
/// }
/// while let Some(done) = pipeline.next() {
///     println!("{}: {} bytes", done.buffer.unwrap().1, done.result?);
/// }
/// assert_eq!(std::fs::read(&path).unwrap(), b"hellohello");
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// The memory that [`IoBuf::data`] names is initialised. It stays at its address, valid and
/// unchanged, while the value is moved or left alone, until the value is dropped or used.
pub unsafe trait IoBuf: Send + 'static {
    /// Start and length, in bytes, of the data.
    fn data(&self) -> (*const u8, usize);
}

/// Memory that a read in flight owns and fills.
///
/// A read fills the length of a `Vec<u8>`, `Box<[u8]>`, `BytesMut` or [`Aligned`], as that of a
/// slice. [`Spare`](super::Spare) has it fill memory that is not initialised, behind the length.
/// An `Arc<[u8]>` can be filled while nobody else has it: [`Exclusive`](super::Exclusive).
///
/// # Safety
/// The memory that [`IoBufMut::room`] names stays at its address and valid, and nothing else reads
/// or writes it, while the value is moved or left alone, until the value is dropped or used. Every
/// call names the same memory until somebody changes the value otherwise. The memory is
/// initialised after [`IoBufMut::zero`].
pub unsafe trait IoBufMut: IoBuf {
    /// Start and length, in bytes, of the memory to be filled.
    fn room(&mut self) -> (*mut u8, usize);

    /// Initialises the room where it is not. A read through a source that does not promise to
    /// [fill](crate::source::Fills) what it says begins with that.
    fn zero(&mut self) {}

    /// Says how many bytes from the room's start are initialised now.
    ///
    /// # Safety
    /// They are, and there are at most as many as the room is long.
    unsafe fn filled(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// [`IoBufMut::filled`] of a buffer that is known to be one, for requests that may have any.
pub(crate) type Filled<B> = unsafe fn(&mut B, usize);

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl IoBuf for Vec<u8> {
    fn data(&self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: as above, and a Vec owns its memory alone.
unsafe impl IoBufMut for Vec<u8> {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: the heap memory does not move with the Box, and nobody looks there while a request has
// it.
unsafe impl IoBuf for Box<[u8]> {
    fn data(&self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: as above, and a Box owns its memory alone.
unsafe impl IoBufMut for Box<[u8]> {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: nobody changes what an Arc shares, and it lives as long as this one of its owners.
unsafe impl IoBuf for Arc<[u8]> {
    fn data(&self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: it lives for ever, and nobody changes it.
unsafe impl IoBuf for &'static [u8] {
    fn data(&self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: an Aligned is a pointer to memory that it has alone, and that does not move with it.
unsafe impl IoBuf for Aligned {
    fn data(&self) -> (*const u8, usize) {
        (self.as_ptr(), self.len())
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Aligned {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: the memory is that of the first part, which keeps it in place wherever it is moved.
unsafe impl<B: IoBuf, T: Send + 'static> IoBuf for (B, T) {
    fn data(&self) -> (*const u8, usize) {
        self.0.data()
    }
}

// SAFETY: as above.
unsafe impl<B: IoBufMut, T: Send + 'static> IoBufMut for (B, T) {
    fn room(&mut self) -> (*mut u8, usize) {
        self.0.room()
    }

    fn zero(&mut self) {
        self.0.zero();
    }

    unsafe fn filled(&mut self, bytes: usize) {
        // SAFETY: as the caller promised, whose room is that of the first part.
        unsafe { self.0.filled(bytes) }
    }
}

#[cfg(feature = "bytes")]
mod of_bytes {
    use bytes::{Bytes, BytesMut};

    use super::{IoBuf, IoBufMut};

    // SAFETY: nobody changes what Bytes share, and it lives as long as this one of its owners.
    unsafe impl IoBuf for Bytes {
        fn data(&self) -> (*const u8, usize) {
            (self.as_ptr(), self.len())
        }
    }

    // SAFETY: its memory is on the heap and does not move with it.
    unsafe impl IoBuf for BytesMut {
        fn data(&self) -> (*const u8, usize) {
            (self.as_ptr(), self.len())
        }
    }

    // SAFETY: as above, and a BytesMut has its part of the memory alone.
    unsafe impl IoBufMut for BytesMut {
        fn room(&mut self) -> (*mut u8, usize) {
            (self.as_mut_ptr(), self.len())
        }
    }
}
