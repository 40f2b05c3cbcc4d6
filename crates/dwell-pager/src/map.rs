// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as a slice, by a region or by the kernel, whichever is the better choice; with the names
//! of crate `memmap2`.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;

use dwell::source::Source;
use dwell::{Error, File, Result};

use crate::advice::Advice;
use crate::evict::takes_tail;
use crate::memory::PAGE_BYTES;
use crate::options::{Access, Backing, Faults, Options};
use crate::region::Region;

/// Maps a file, or whatever else [`dwell::open()`] opens, for reading: one line in place of `mmap`.
///
/// All maps without a budget of their own share half of the memory that this process can have when
/// the first of them is made. [`MmapOptions`] has choices.
///
/// # Errors
/// As [`Region::open`].
///
/// # Safety
/// Nobody changes the file while the map lives: its bytes are a `&[u8]`.
pub unsafe fn map(path: impl AsRef<Path>) -> Result<Mmap> {
    // SAFETY: as the caller promises.
    unsafe { MmapOptions::new().map_path(path) }
}

/// Choices for a map.
#[derive(Clone)]
pub struct MmapOptions {
    options: Option<Options>,
    budget_bytes: Option<usize>,
    backing: Backing,
    faults: Faults,
    offset: u64,
    len: Option<usize>,
    populate: bool,
}

impl Default for MmapOptions {
    fn default() -> Self {
        MmapOptions::new()
    }
}

impl MmapOptions {
    /// All of a file, by whichever is better, with memory that all such maps share.
    pub fn new() -> Self {
        MmapOptions {
            options: None,
            budget_bytes: None,
            backing: Backing::Auto,
            faults: Faults::default(),
            offset: 0,
            len: None,
            populate: false,
        }
    }

    /// Memory for pages of this map alone, in bytes.
    #[must_use]
    pub fn budget_bytes(mut self, bytes: usize) -> Self {
        self.budget_bytes = Some(bytes);
        self
    }

    /// Sets what pages the mapping: a region, the kernel, or whichever is better.
    #[must_use]
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Sets the thread that handles faults. With [`Faults::Inline`], a system call on an absent
    /// page fails with EFAULT.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// All other choices of a region. What the methods here choose wins.
    #[must_use]
    pub fn region(mut self, options: Options) -> Self {
        (self.faults, self.backing) = (options.faults, options.backing);
        self.budget_bytes = None;
        self.options = Some(options);
        self
    }

    /// The first byte of the file in the map; need not be a multiple of a page.
    #[must_use]
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Length of the map in bytes; without it, to the end of the file.
    #[must_use]
    pub fn len(mut self, len: usize) -> Self {
        self.len = Some(len);
        self
    }

    /// Brings the bytes in before the map is returned, as far as the budget holds them.
    #[must_use]
    pub fn populate(mut self) -> Self {
        self.populate = true;
        self
    }

    /// Maps a path or an address of [`dwell::open()`] for reading.
    ///
    /// # Errors
    /// As [`Region::open`]; an offset or length past the end.
    ///
    /// # Safety
    /// As [`map`].
    pub unsafe fn map_path(&self, path: impl AsRef<Path>) -> Result<Mmap> {
        let file = open(path.as_ref(), false)?;
        self.over(file, Access::ReadOnly).map(Mmap)
    }

    /// Maps an open file for reading.
    ///
    /// # Errors
    /// As [`MmapOptions::map_path`].
    ///
    /// # Safety
    /// As [`map`].
    pub unsafe fn map(&self, file: impl AsFd) -> Result<Mmap> {
        let file = reopened(&file, false)?;
        self.over(file, Access::ReadOnly).map(Mmap)
    }

    /// Maps an open file for reading and writing; what is written goes to the file.
    ///
    /// # Errors
    /// As [`MmapOptions::map_path`]; a file that is open for reading only.
    ///
    /// # Safety
    /// Nobody else changes the file while the map lives.
    pub unsafe fn map_mut(&self, file: impl AsFd) -> Result<MmapMut> {
        let file = reopened(&file, true)?;
        self.over(file, Access::Shared).map(MmapMut)
    }

    /// Maps an open file for reading and writing; what is written stays in this process.
    ///
    /// # Errors
    /// As [`MmapOptions::map_path`].
    ///
    /// # Safety
    /// As [`map`].
    pub unsafe fn map_copy(&self, file: impl AsFd) -> Result<MmapMut> {
        let file = reopened(&file, false)?;
        let access = match &self.options {
            Some(Options { access: access @ Access::Private { .. }, .. }) => access.clone(),
            _ => Access::Private { spill: None },
        };
        self.over(file, access).map(MmapMut)
    }

    fn over(&self, file: File, access: Access) -> Result<Inner> {
        let bytes = file.bytes()?;
        let mut options = self.options.clone().unwrap_or_else(Options::auto);
        if let Some(bytes) = self.budget_bytes {
            (options.budget_bytes, options.shared_budget) = (bytes, None);
        }
        options = options.access(access).faults(self.faults).backing(self.backing);
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
        let end = match self.len {
            Some(len) => start.checked_add(len),
            None => usize::try_from(bytes).ok(),
        };
        let range = match end {
            Some(end) if start <= end && end as u64 <= bytes => start..end,
            _ => {
                let what = format!("the map begins or ends beyond the {bytes} bytes of the file");
                return Err(Error::invalid(file.path(), what));
            }
        };
        let region = Region::open(Arc::new(file), &options)?;
        if self.populate {
            let holds = region.holds_bytes().unwrap_or(options.budget_bytes);
            let most = range.start.saturating_add(holds);
            region.prefault(range.start..range.end.min(most))?;
        }
        Ok(Inner { region, range })
    }
}

/// Opens a file without the page cache where that is possible: a budget would bound nothing beside
/// a cache. A file that is to be written to and ends within a block cannot be.
fn open(path: &Path, write: bool) -> Result<File> {
    let options = dwell::Options::new().write(write);
    let whole = |file: &File| Ok(!write || takes_tail(file.source(), file.bytes()?));
    match options.clone().direct(true).open(path) {
        Ok(file) if whole(&file)? && file.source().alignment() as usize <= PAGE_BYTES => Ok(file),
        _ => options.open(path),
    }
}

/// Opens a descriptor's file once more: a map keeps a descriptor of its own. What the descriptor
/// may not do, the map may not do either.
fn reopened(file: &impl AsFd, write: bool) -> Result<File> {
    let descriptor = file.as_fd().as_raw_fd();
    let path = format!("/proc/self/fd/{descriptor}");
    let path = Path::new(&path);
    // SAFETY: asks for the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if write && flags & libc::O_ACCMODE != libc::O_RDWR {
        let what = "is not open for reading and writing, as a map that is written to needs it";
        return Err(Error::invalid(path, what));
    }
    open(path, write)
}

/// What both kinds of map have.
struct Inner {
    region: Region,
    range: Range<usize>,
}

impl Inner {
    fn part(&self, offset: usize, len: usize) -> Result<Range<usize>> {
        let start = self.range.start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= self.range.end => Ok(start..end),
            _ => {
                let what = format!("{len} bytes at {offset} are not within the map");
                Err(Error::invalid(self.region.file().path(), what))
            }
        }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: within the region, or at its end.
        unsafe { self.region.as_ptr().add(self.range.start) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as the region lives; whoever made the map promised that nobody
        // else changes it.
        unsafe { std::slice::from_raw_parts(self.start(), self.range.len()) }
    }
}

/// Types whose every bit pattern is a value.
///
/// # Safety
/// Any bytes, of the type's size, are a value of it, and it has no padding.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: a number without padding.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);
// SAFETY: an array of such a type has no padding either.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

macro_rules! of_both {
    ($name:ident) => {
        impl $name {
            /// The region beneath: statistics, hints, pins, registration of threads.
            pub fn region(&self) -> &Region {
                &self.0.region
            }

            /// The bytes as a slice of another type, without those at the end that make no whole
            /// element.
            ///
            /// # Errors
            /// A map whose first byte is not aligned as the type is.
            pub fn as_slice_of<T: Plain>(&self) -> Result<&[T]> {
                let (start, len) = (self.0.start(), self.0.range.len());
                if size_of::<T>() == 0 || !(start as usize).is_multiple_of(align_of::<T>()) {
                    let what = format!(
                        "the map begins at offset {}, which is not aligned for elements of {} bytes",
                        self.0.range.start,
                        size_of::<T>()
                    );
                    return Err(Error::invalid(self.0.region.file().path(), what));
                }
                // SAFETY: aligned, within the map, and any bytes are values of the type.
                Ok(unsafe { std::slice::from_raw_parts(start.cast(), len / size_of::<T>()) })
            }

            /// Says how all of the map will be used.
            ///
            /// # Errors
            /// As [`Region::advise`].
            pub fn advise(&self, advice: Advice) -> Result<()> {
                self.advise_range(advice, 0, self.0.range.len())
            }

            /// Says how a part of the map will be used.
            ///
            /// # Errors
            /// As [`Region::advise`].
            pub fn advise_range(&self, advice: Advice, offset: usize, len: usize) -> Result<()> {
                self.0.region.advise(self.0.part(offset, len)?, advice)
            }

            /// Announces that a byte will be read soon; see [`Region::hint`].
            pub fn hint(&self, offset: usize) -> bool {
                offset < self.0.range.len() && self.0.region.hint(self.0.range.start + offset)
            }
        }

        impl Deref for $name {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                self.0.bytes()
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("file", &self.0.region.file().path())
                    .field("range", &self.0.range)
                    .finish_non_exhaustive()
            }
        }
    };
}

/// A file as a slice.
pub struct Mmap(Inner);

/// A file as a slice that can be written to.
pub struct MmapMut(Inner);

of_both!(Mmap);
of_both!(MmapMut);

impl Mmap {
    /// Maps an open file for reading; [`MmapOptions`] has choices.
    ///
    /// # Errors
    /// As [`Region::open`].
    ///
    /// # Safety
    /// As [`map`].
    pub unsafe fn map(file: impl AsFd) -> Result<Mmap> {
        // SAFETY: as the caller promises.
        unsafe { MmapOptions::new().map(file) }
    }
}

impl MmapMut {
    /// Maps an open file for reading and writing; [`MmapOptions`] has choices.
    ///
    /// # Errors
    /// As [`Region::open`].
    ///
    /// # Safety
    /// As [`MmapOptions::map_mut`].
    pub unsafe fn map_mut(file: impl AsFd) -> Result<MmapMut> {
        // SAFETY: as the caller promises.
        unsafe { MmapOptions::new().map_mut(file) }
    }

    /// As [`Mmap::as_slice_of`], to be written to.
    ///
    /// # Errors
    /// As [`Mmap::as_slice_of`].
    pub fn as_mut_slice_of<T: Plain>(&mut self) -> Result<&mut [T]> {
        let found = self.as_slice_of::<T>()?;
        let (start, len) = (found.as_ptr().cast_mut(), found.len());
        // SAFETY: as the shared slice, of memory that may be written to and that nobody else has
        // now.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// Writes everything back and makes it durable.
    ///
    /// # Errors
    /// As [`Region::sync`].
    pub fn flush(&self) -> Result<()> {
        self.flush_range(0, self.0.range.len())
    }

    /// As [`MmapMut::flush`], for a part of the map.
    ///
    /// # Errors
    /// As [`Region::sync_range`].
    pub fn flush_range(&self, offset: usize, len: usize) -> Result<()> {
        self.0.region.sync_range(self.0.part(offset, len)?)
    }

    /// Ends the right to write. What was written is written back first.
    ///
    /// # Errors
    /// As [`MmapMut::flush`].
    pub fn make_read_only(self) -> Result<Mmap> {
        self.flush()?;
        Ok(Mmap(self.0))
    }
}

impl DerefMut for MmapMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: memory that may be written to, and that nobody else has while this is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.0.range.len()) }
    }
}

impl AsMut<[u8]> for MmapMut {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::region::Mode;

    fn budget_of(map: &Mmap) -> Option<Arc<Budget>> {
        match &map.region().mode {
            Mode::Paged { budget, .. } => budget.clone(),
            Mode::Mapped { .. } => None,
        }
    }

    #[test]
    fn maps_without_a_budget_share_one_and_a_named_one_is_a_maps_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, vec![7; 100 * PAGE_BYTES]).unwrap();
        let options = MmapOptions::new().backing(Backing::Region);
        // SAFETY: nobody changes the file.
        let map = |options: &MmapOptions| unsafe { options.clone().populate().map_path(&path) };
        let maps = match map(&options) {
            Ok(first) => [first, map(&options).unwrap()],
            Err(error) if error.to_string().contains("userfaultfd") => return,
            Err(error) => panic!("{error}"),
        };
        let [one, other] = maps.each_ref().map(|map| budget_of(map).unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert!(maps.iter().all(|map| map[99 * PAGE_BYTES] == 7));
        let options = options.budget_bytes(64 * PAGE_BYTES);
        assert!(budget_of(&map(&options).unwrap()).is_none());
        // What a region shares is still its own choice, and a named budget wins over that.
        let shared = options.region(Options::within(&one).backing(Backing::Region));
        assert!(budget_of(&map(&shared).unwrap()).is_some());
        assert!(budget_of(&map(&shared.budget_bytes(64 * PAGE_BYTES)).unwrap()).is_none());
    }
}
