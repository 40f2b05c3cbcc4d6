// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that stays where it is while a request is in flight.
#![allow(unsafe_code)]

use crate::buffer::Aligned;

/// Memory that a request in flight owns. A pair owns the memory of its first part; the second is
/// whatever the caller wants back with the request.
///
/// # Safety
/// The memory that `memory` returns stays at its address, valid and unaliased, when the value is
/// moved, until it is dropped.
pub unsafe trait Owned: Send + 'static {
    /// Start and length in bytes.
    fn memory(&mut self) -> (*mut u8, usize);
}

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl Owned for Vec<u8> {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: the memory is that of the first part, which keeps it in place wherever it is moved.
unsafe impl<B: Owned, T: Send + 'static> Owned for (B, T) {
    fn memory(&mut self) -> (*mut u8, usize) {
        self.0.memory()
    }
}

// SAFETY: an Aligned is a pointer to memory of its own.
unsafe impl Owned for Aligned {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}
