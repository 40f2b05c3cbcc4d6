// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory while one owner has it alone.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use super::{IoBuf, IoBufMut};

/// An `Arc<[u8]>` that has one owner, so that a read can fill it. Afterwards it can be shared.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// use std::sync::Arc;
/// use dwell::buffer::Exclusive;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, b"hello").unwrap();
/// let file = dwell::open(&path)?;
/// let mut pipeline = file.pipeline(1)?;
/// let memory: Arc<[u8]> = Arc::from(vec![0; 5]);
/// let buffer = Exclusive::try_from(memory).expect("nobody else has it");
/// pipeline.read_at(buffer, 0).map_err(|(error, _)| error)?;
/// let shared: Arc<[u8]> = pipeline.next().unwrap().buffer.unwrap().into();
/// assert_eq!(&*shared, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Exclusive(Arc<[u8]>);

impl TryFrom<Arc<[u8]>> for Exclusive {
    type Error = Arc<[u8]>;

    /// # Errors
    /// The memory itself, where somebody else has it too.
    fn try_from(mut memory: Arc<[u8]>) -> Result<Self, Arc<[u8]>> {
        match Arc::get_mut(&mut memory) {
            Some(_) => Ok(Exclusive(memory)),
            None => Err(memory),
        }
    }
}

impl From<Exclusive> for Arc<[u8]> {
    fn from(exclusive: Exclusive) -> Self {
        exclusive.0
    }
}

impl Deref for Exclusive {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: the heap memory does not move with it.
unsafe impl IoBuf for Exclusive {
    fn data(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

// SAFETY: as above, and nobody else has it: it had one owner when it came, and none can be added.
unsafe impl IoBufMut for Exclusive {
    fn room(&mut self) -> (*mut u8, usize) {
        match Arc::get_mut(&mut self.0) {
            Some(memory) => (memory.as_mut_ptr(), memory.len()),
            None => (ptr::dangling_mut(), 0),
        }
    }
}
