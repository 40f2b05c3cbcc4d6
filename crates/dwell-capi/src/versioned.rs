// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures that grow: their first field says how long the caller's is.
#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::ptr;

use crate::failure::Failure;

/// A structure of `dwell.h` that later versions make longer.
///
/// # Safety
/// It begins with its size in bytes, a `usize`, and is valid when all further bytes are zero.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in C.
    const NAME: &str;
    /// Length in bytes that its first version had.
    const LEAST: usize;
}

/// No version of any structure is longer, in bytes.
const LONGEST: usize = 64 << 10;

fn size_of_callers<T: Versioned>(at: *const T) -> Result<usize, Failure> {
    // SAFETY: not NULL, and it begins with its size; the caller of `read` or `write` promised that.
    let size = unsafe { at.cast::<usize>().read_unaligned() };
    if (T::LEAST..=LONGEST).contains(&size) {
        return Ok(size);
    }
    let (name, least) = (T::NAME, T::LEAST);
    let what = format!(
        "{name}.size is {size}, no length of one (at least {least}); set it to sizeof({name})"
    );
    Err(Failure::invalid(what))
}

/// Reads the caller's structure. What it is too short to hold reads as zero.
///
/// # Safety
/// `from` points to as many readable bytes as its size says.
pub(crate) unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    let size = size_of_callers(from)?;
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: both are as long; bytes beyond stay zero, which is valid for a T.
    let copy = unsafe {
        ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            copy.as_mut_ptr().cast::<u8>(),
            size.min(size_of::<T>()),
        );
        copy.assume_init()
    };
    // SAFETY: the caller's structure is `size` bytes long.
    let beyond = (size_of::<T>()..size).any(|at| unsafe { *from.cast::<u8>().add(at) } != 0);
    if beyond {
        let what = format!(
            "{} asks for what this version ({}) does not have; run with the version it was built for",
            T::NAME,
            env!("CARGO_PKG_VERSION")
        );
        return Err(Failure::new(libc::E2BIG, what));
    }
    Ok(copy)
}

/// Fills the caller's structure, as far as it goes. Fields beyond this version read as zero; its
/// size becomes the number of bytes filled.
///
/// # Safety
/// `to` points to as many writable bytes as its size says.
pub(crate) unsafe fn write<T: Versioned>(to: *mut T, from: &T) -> Result<(), Failure> {
    let size = size_of_callers(to)?;
    let filled = size.min(size_of::<T>());
    // SAFETY: `filled` bytes are there on both sides, `size` on the caller's; both are apart.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), filled);
        ptr::write_bytes(to.cast::<u8>().add(filled), 0, size - filled);
        to.cast::<usize>().write_unaligned(filled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Now {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: as it stands there.
    unsafe impl Versioned for Now {
        const NAME: &str = "now";
        const LEAST: usize = 16;
    }

    #[test]
    fn a_shorter_one_reads_as_zero_beyond_and_is_not_written_beyond() {
        let mut old = Now { size: 16, first: 1, second: 2 };
        // SAFETY: live structures that are longer than they say.
        unsafe {
            assert_eq!(read(&old).unwrap(), Now { size: 16, first: 1, second: 0 });
            write(&mut old, &Now { size: 0, first: 8, second: 9 }).unwrap();
        }
        assert_eq!(old, Now { size: 16, first: 8, second: 2 });
    }

    #[test]
    fn a_longer_one_is_taken_when_nothing_beyond_is_asked_for() {
        let mut new = [32usize, 1, 2, 0];
        let at = new.as_mut_ptr().cast::<Now>();
        // SAFETY: 32 live bytes.
        unsafe {
            assert_eq!(read(at).unwrap(), Now { size: 32, first: 1, second: 2 });
            at.cast::<usize>().add(3).write(5);
            assert_eq!(read(at).unwrap_err().errno(), libc::E2BIG);
            write(at, &Now { size: 0, first: 8, second: 9 }).unwrap();
        }
        assert_eq!(new, [24, 8, 9, 0]);
    }

    #[test]
    fn a_size_that_was_forgotten_is_named() {
        for size in [0, 8, LONGEST + 1] {
            let bad = Now { size, first: 0, second: 0 };
            // SAFETY: nothing beyond the size is read.
            let failure = unsafe { read(&bad) }.unwrap_err();
            assert_eq!(failure.errno(), libc::EINVAL);
            assert!(format!("{failure:?}").contains("sizeof(now)"));
        }
    }
}
