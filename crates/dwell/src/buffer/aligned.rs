// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that direct I/O accepts: each buffer a piece of its own, or several parts of one.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A page-aligned buffer, which direct I/O on every device takes: memory of its own, zeroed when
/// made, or a part of a [`Pool`], to which it returns when dropped.
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
    owner: Owner,
}

/// What keeps a buffer's memory.
enum Owner {
    Itself(#[expect(dead_code, reason = "frees it")] Memory),
    /// Which of a pool's buffers it is.
    Pool(Pool, u32),
}

// SAFETY: an Aligned has its memory alone, as a Vec does.
unsafe impl Send for Aligned {}
// SAFETY: shared access is read-only.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// Alignment in bytes, unless more was asked for.
    pub const ALIGNMENT: usize = 4096;

    /// A buffer of `bytes` zero bytes.
    ///
    /// # Panics
    /// If `bytes` does not fit the address space.
    pub fn new(bytes: usize) -> Self {
        Self::for_blocks_of(bytes, Self::ALIGNMENT)
    }

    /// As [`Aligned::new`]; `None` where there is no memory for it.
    pub fn try_new(bytes: usize) -> Option<Self> {
        Self::try_for_blocks_of(bytes, Self::ALIGNMENT)
    }

    /// As [`Aligned::for_blocks_of`]; `None` where there is no memory for it.
    pub(crate) fn try_for_blocks_of(bytes: usize, block_bytes: usize) -> Option<Self> {
        let memory = Memory::try_new(bytes, block_bytes.max(Self::ALIGNMENT))?;
        Some(Aligned { start: memory.start, bytes, owner: Owner::Itself(memory) })
    }

    /// A buffer of `bytes` zero bytes for a device whose blocks may be larger than a page; aligned
    /// to at least [`Aligned::ALIGNMENT`].
    ///
    /// # Panics
    /// If `bytes` does not fit the address space, or `block_bytes` is not a power of two.
    pub fn for_blocks_of(bytes: usize, block_bytes: usize) -> Self {
        let memory = Memory::new(bytes, block_bytes.max(Self::ALIGNMENT));
        Aligned { start: memory.start, bytes, owner: Owner::Itself(memory) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if let Owner::Pool(pool, at) = &self.owner {
            pool.0.free.put(*at);
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes start there, which this buffer has alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for Aligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aligned").field("bytes", &self.bytes).finish()
    }
}

/// Buffers of one length, which requests take and give back. Clones are the same pool.
///
/// Their memory is one piece. A [`Pipeline`](crate::pipeline::Pipeline::register) or a [file of an
/// executor](crate::executor::AsyncFile::register) can have the kernel pin that once, instead of
/// each buffer for each request.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// use dwell::buffer::Pool;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, vec![7u8; 65536]).unwrap();
/// let file = dwell::open(&path)?;
/// let pool = Pool::new(4, 4096);
/// let mut pipeline = file.pipeline(4)?;
/// pipeline.register(&pool)?;
/// let mut offset = 0;
/// while let Some(buffer) = pool.take() {
///     pipeline.read_at(buffer, offset).map_err(|(error, _)| error)?;
///     offset += 4096;
/// }
/// while let Some(done) = pipeline.next() {
///     assert_eq!(done.result?, 4096);
/// }
/// assert!(pool.take().is_some()); // Buffers come back to the pool when they are dropped.
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    memory: Memory,
    /// Length of each buffer, in bytes, and from the beginning of one to that of the next.
    bytes: usize,
    stride: usize,
    free: Free,
}

impl Pool {
    /// A pool of so many `buffers` of `bytes` zero bytes each.
    ///
    /// Direct I/O takes them: each is aligned to a page at least, and to the largest power of two
    /// that its length is a multiple of, up to 2 MiB.
    ///
    /// # Panics
    /// If they do not fit the address space.
    pub fn new(buffers: usize, bytes: usize) -> Pool {
        /// A huge page. More gains nothing.
        const MOST_ALIGNMENT: usize = 2 << 20;
        let fits = "a pool fits the address space";
        let stride = bytes.max(1).checked_next_multiple_of(Aligned::ALIGNMENT).expect(fits);
        let alignment = (1 << stride.trailing_zeros()).min(MOST_ALIGNMENT);
        let memory = Memory::new(stride.checked_mul(buffers).expect(fits), alignment);
        let free = Free::all(u32::try_from(buffers).expect(fits));
        Pool(Arc::new(Shared { memory, bytes, stride, free }))
    }

    /// A buffer that nobody has; `None` while requests or others have all of them. It holds what
    /// its last owner left in it.
    pub fn take(&self) -> Option<Aligned> {
        let Shared { memory, bytes, stride, free } = &*self.0;
        let at = free.take()?;
        // SAFETY: the number of a buffer is below that of the buffers that the memory was made for.
        let start = unsafe { memory.start.add(at as usize * stride) };
        Some(Aligned { start, bytes: *bytes, owner: Owner::Pool(self.clone(), at) })
    }

    pub(crate) fn by_ref(&self) -> PoolRef {
        PoolRef(Arc::downgrade(&self.0))
    }

    /// Start and length of the whole, in bytes.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.0.memory.start.as_ptr(), self.0.memory.bytes)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}

/// A pool that somebody else keeps.
pub(crate) struct PoolRef(Weak<Shared>);

impl PoolRef {
    /// Whether the pool or one of its buffers is still there.
    pub fn is_used(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub fn is_of(&self, pool: &Pool) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&pool.0))
    }

    pub fn pool(&self) -> Option<Pool> {
        self.0.upgrade().map(Pool)
    }
}

/// Numbers of the buffers that nobody has: a stack without a lock, which a thread could hold while
/// another forks.
struct Free {
    /// The number on top, and above it how often the top has changed.
    top: AtomicU64,
    /// The number below each.
    below: Box<[AtomicU32]>,
}

impl Free {
    const NONE: u32 = u32::MAX;

    fn all(count: u32) -> Self {
        let below = (1..count).chain((count > 0).then_some(Self::NONE)).map(AtomicU32::new);
        let first = if count > 0 { 0 } else { Self::NONE };
        Free { top: AtomicU64::new(first.into()), below: below.collect() }
    }

    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let change = |top: u64| {
            let changes = (top >> 32).wrapping_add(1) << 32;
            next(top as u32).map(|next| changes | u64::from(next))
        };
        let changed = self.top.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        changed.ok().map(|top| top as u32)
    }

    fn take(&self) -> Option<u32> {
        self.change(|top| Some(self.below.get(top as usize)?.load(Ordering::Relaxed)))
    }

    fn put(&self, at: u32) {
        self.change(|top| {
            self.below[at as usize].store(top, Ordering::Relaxed);
            Some(at)
        });
    }
}

/// One piece of the heap.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    alignment: usize,
}

// SAFETY: an address, which nobody but the owners of its parts follows.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn layout(bytes: usize, alignment: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(1), alignment).ok()
    }

    /// Zero bytes.
    fn new(bytes: usize, alignment: usize) -> Self {
        let layout = Self::layout(bytes, alignment).expect("a buffer fits the address space");
        Self::try_new(bytes, alignment).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// The same; `None` where there is no memory.
    fn try_new(bytes: usize, alignment: usize) -> Option<Self> {
        let layout = Self::layout(bytes, alignment)?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Memory { start, bytes, alignment })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.bytes, self.alignment) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}
