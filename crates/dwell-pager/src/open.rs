// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening a region: what is checked, what is made, and what the kernel maps instead.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use dwell::any::{AnyQueue, AnySource};
use dwell::buffer::Aligned;
use dwell::fork::ForkMark;
use dwell::kernel::Kernel;
use dwell::ring::SpinMethod;
use dwell::source::Source;
use dwell::{Error, File, Result, Route, clock};

use crate::board;
use crate::evict::takes_tail;
use crate::frames::Frames;
use crate::granule;
use crate::hints::Hints;
use crate::mask::Quiet;
use crate::memory::{Area, PAGE_BYTES};
use crate::options::{Access, Ahead, Backing, Faults, Granule, Options, Otherwise};
use crate::pages::Pages;
use crate::shared::{GUESTS, Shared};
use crate::signal;
use crate::stack::Stack;
use crate::stats::Counters;
use crate::thread_queue::ThreadQueue;
use crate::thread_queues::{GUEST, HANDLER, ThreadQueues};
use crate::uffd::{Missing, Uffd};

/// The smallest budget: one instruction may touch several pages, and each of several threads
/// executes one.
pub(crate) const LEAST_PAGES: u32 = 8;
/// The error for a source without a page.
const EMPTY: &str = "is empty, there is nothing to make memory of";
/// Hints that the ring holds.
const HINTS: usize = 4096;

/// A region without its handler.
pub(crate) fn paged(file: &Arc<File>, options: &Options) -> Result<Shared> {
    let refuse = |what: String| Err(Error::invalid(file.path(), what));
    let bytes = file.bytes()?;
    let Ok(pages) = u32::try_from(bytes.div_ceil(PAGE_BYTES as u64)) else {
        return refuse(format!("{bytes} bytes: a region holds at most 16 TiB; open a part of it"));
    };
    if pages == 0 {
        return refuse(EMPTY.into());
    }
    let budget = u32::try_from(options.budget_bytes / PAGE_BYTES).unwrap_or(u32::MAX);
    if budget < LEAST_PAGES {
        return refuse(format!(
            "budget_bytes: {} is less than {} pages of {PAGE_BYTES} bytes; give {} or more",
            options.budget_bytes,
            LEAST_PAGES,
            LEAST_PAGES as usize * PAGE_BYTES
        ));
    }
    if !(2..=256).contains(&options.depth) {
        return refuse(format!("depth: {} requests; must be from 2 to 256", options.depth));
    }
    let granule = match options.granule {
        Granule::Auto => 0,
        Granule::Bytes(bytes) => {
            let pages = (bytes / PAGE_BYTES) as u32;
            if !bytes.is_power_of_two() || !(1..=granule::MOST_PAGES).contains(&pages) {
                return refuse(format!(
                    "granule: {bytes} bytes; must be a power of two from {PAGE_BYTES} to {}",
                    granule::MOST_PAGES as usize * PAGE_BYTES
                ));
            }
            pages
        }
    };
    let alignment = file.source().alignment();
    if alignment as usize > PAGE_BYTES {
        return refuse(format!(
            "direct I/O wants blocks of {alignment} bytes, more than a page; open it buffered"
        ));
    }
    let writes_back = options.access == Access::Shared;
    if writes_back && !takes_tail(file.source(), bytes) {
        return refuse(format!(
            "its {bytes} bytes end within a block of {alignment}, which direct I/O cannot write; open it \
             buffered"
        ));
    }
    if writes_back {
        writable(file, bytes)?;
    }
    let writes = options.access.writes();
    let uffd = Uffd::new(options.faults == Faults::Thread, writes)
        .map_err(|Missing(why)| Error::invalid(file.path(), why))?;
    // More than the source has is of no use; as much holds all of it, also the part of a page at
    // its end.
    let all = pages.max(LEAST_PAGES);
    let budget = if options.budget_bytes as u64 >= bytes { all } else { budget.min(all) };
    // Of what is shared, it is told how much once it has joined.
    let least = options.shared_budget.as_ref().map(|_| LEAST_PAGES);
    let budget = least.unwrap_or(budget);
    let failed = |action| move |error| Error::io(action, file.path(), None, error);
    // Places beyond the budget are for pages that cannot leave, at worst all.
    let places = pages.max(budget);
    let area = Area::new(pages as usize).map_err(failed("reserving addresses"))?;
    let pool = Area::new(places as usize).map_err(failed("reserving addresses"))?;
    for area in [&area, &pool] {
        uffd.register(area.start(), area.pages() * PAGE_BYTES)
            .map_err(failed("registering with userfaultfd"))?;
    }
    let spill = match &options.access {
        Access::Private { spill: Some(directory) } => Some(spill_file(directory)?),
        _ => None,
    };
    let guests = guests(file, options)?;
    let ahead = match options.ahead {
        Ahead::Nothing => 0,
        Ahead::UpTo(pages) => pages,
    };
    Ok(Shared {
        file: file.clone(),
        stages: options.stages,
        deaf: is_deaf(file),
        copies: !uffd.moves() || options.copies && !writes,
        uffd,
        area,
        pool,
        pages: Pages::new(pages as usize),
        books: Shared::books(Frames::new(budget, places)),
        one_sync: Mutex::new(()),
        counters: Counters::default(),
        hints: Hints::new(HINTS),
        bytes,
        writes,
        writes_back,
        spill,
        policy: options.policy.clone(),
        budget: AtomicU32::new(budget),
        ahead,
        granule,
        board: options.board.clone(),
        thread_queues: ThreadQueues::new(),
        guests,
        depth: options.depth,
        mark: ForkMark::new().map_err(failed("mapping"))?,
        closing: AtomicBool::new(false),
        failed: AtomicU32::new(0),
        failed_at: AtomicU64::new(0),
    })
}

/// Whether no signal ends the kernel's wait for the source. File systems without a block device of
/// their own have numbers with a major of 0.
fn is_deaf(file: &File) -> bool {
    let AnySource::Kernel(kernel) = file.source() else { return false };
    let major = file.device().split(':').next().and_then(|major| major.parse::<u32>().ok());
    kernel.alignment() > 1 && major.is_some_and(|major| major > 0)
}

/// Whether what is written to a shared region will be taken: asked now, not when a page has to
/// leave.
fn writable(file: &File, bytes: u64) -> Result<()> {
    let AnySource::Kernel(kernel) = file.source() else { return Ok(()) };
    let _ = bytes;
    // SAFETY: asks for the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(kernel.descriptor().as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        let what = "is open for reading only; open it for writing too, or make the region private";
        return Err(Error::invalid(file.path(), what));
    }
    Ok(())
}

/// Thread queues for threads that have none. Where calls are possible, they need no queue.
fn guests(file: &Arc<File>, options: &Options) -> Result<Vec<Mutex<ThreadQueue>>> {
    let source = file.source();
    (0..GUESTS)
        .map(|_| {
            let queue = match source.routes().has(Route::Inline) {
                true => None,
                false => Some(queue(file, options)?),
            };
            let mut thread_queue =
                ThreadQueue::new(GUEST, queue, options.depth, 0, options.access.writes());
            if options.faults == Faults::Inline {
                thread_queue.stack = Some(stack(file.path())?);
            }
            Ok(Mutex::new(thread_queue))
        })
        .collect()
}

/// A stack for faults.
fn stack(path: &Path) -> Result<Stack> {
    Stack::new().map_err(|error| Error::io("mapping a stack", path, None, error))
}

/// A queue for faults.
fn queue(file: &Arc<File>, options: &Options) -> Result<AnyQueue> {
    let failed = |error| Error::io("making a queue", file.path(), None, error);
    let source = file.source();
    let ready = source.handler_queue(options.depth).map_err(failed)?;
    match (ready, options.faults) {
        (Some(queue), _) => Ok(queue.into_inner()),
        (None, Faults::Thread) => source.queue(options.depth).map_err(failed),
        (None, Faults::Inline) => Err(Error::invalid(
            file.path(),
            "cannot be read inside a signal handler; open the region with faults handled by a thread",
        )),
    }
}

/// A thread queue for the handler thread, which may allocate.
pub(crate) fn handler_thread_queue(shared: &Shared) -> Result<ThreadQueue> {
    let file = &shared.file;
    let queue = match file.source().queue(shared.depth) {
        Ok(queue) => Some(queue),
        Err(_) if file.source().routes().has(Route::Inline) => None,
        Err(error) => return Err(Error::io("making a queue", file.path(), None, error)),
    };
    Ok(ThreadQueue::new(HANDLER, queue, shared.depth, board::own_nice(), shared.writes))
}

/// Has faults of a region handled by the threads that have them.
pub(crate) fn enter(shared: &Arc<Shared>) -> Result<usize> {
    let failed = |error| Error::io("installing a handler of SIGBUS", shared.path(), None, error);
    signal::install().map_err(failed)?;
    signal::enter(shared).ok_or_else(|| {
        let what = "too many regions with faults inline are open; close one, or use one handled by a thread";
        Error::invalid(shared.path(), what)
    })
}

/// Gives the calling thread a thread queue; its number.
pub(crate) fn register(shared: &Arc<Shared>) -> Result<u16> {
    let thread = board::own_id();
    let refuse = |what: &str| Error::invalid(shared.path(), what);
    if shared.thread_queues.find(thread).is_some() {
        return Err(refuse("this thread is registered with the region already"));
    }
    let nice = board::own_nice();
    let failed = |error| Error::io("making a queue", shared.path(), None, error);
    let queue = shared.file.source().handler_queue(shared.depth).map_err(failed)?;
    let Some(queue) = queue else {
        return Err(refuse("cannot be read inside a signal handler"));
    };
    let stack = stack(shared.path())?;
    let _quiet = Quiet::new();
    shared.board.sweep();
    let number = shared.thread_queues.enter(thread, |number| {
        let mut thread_queue =
            ThreadQueue::new(number, Some(queue.into_inner()), shared.depth, nice, shared.writes);
        thread_queue.slot = shared.board.sit(nice);
        thread_queue.stack = Some(stack);
        Ok::<_, Error>(thread_queue)
    })?;
    number.ok_or_else(|| refuse("too many threads are registered with the region"))
}

/// Why the kernel maps a file, if it does; a region is better otherwise.
pub(crate) fn why_mapped(file: &File, options: &Options) -> Result<Option<&'static str>> {
    /// Pages read to see how long the device takes.
    const READS: u64 = 9;
    /// The kernel handles a fault in less time than a region: a device that is as fast as this is
    /// the kernel's, in nanoseconds.
    const AT_ONCE_NS: u64 = 6_000;
    let kernel = match (options.backing, file.source()) {
        (Backing::Kernel, _) => return Ok(Some("that was asked for")),
        (Backing::Auto, AnySource::Kernel(kernel)) => kernel,
        (Backing::Region | Backing::Auto, _) => return Ok(None),
    };
    let bytes = file.bytes()?;
    if bytes <= options.budget_bytes as u64 {
        return Ok(Some("the file fits in the budget"));
    }
    if kernel.alignment() <= 1 {
        return Ok(Some("the file is read through the page cache, which has each page then"));
    }
    let mut buffer = Aligned::new(PAGE_BYTES);
    let pages = bytes / PAGE_BYTES as u64;
    let mut took = [0; READS as usize];
    for (at, took) in took.iter_mut().enumerate() {
        let began = clock::now();
        file.read_at(&mut buffer, pages * at as u64 / READS * PAGE_BYTES as u64)?;
        *took = clock::now() - began;
    }
    took.sort_unstable();
    let at_once = took[took.len() / 2] < AT_ONCE_NS;
    Ok(at_once.then_some("the device completes a read before a region's fault is handled"))
}

/// The kernel's own mapping of a file, in place of a region that could not be had.
pub(crate) fn instead(file: &Arc<File>, options: &Options, error: Error) -> Result<(Area, bool)> {
    let allowed = options.otherwise == Otherwise::Map || options.backing == Backing::Auto;
    match file.source() {
        AnySource::Kernel(_) if allowed && file.bytes()? > 0 => mapped(file, options),
        _ => Err(error),
    }
}

/// The kernel's own mapping of a file, and whether it takes what is written.
pub(crate) fn mapped(file: &Arc<File>, options: &Options) -> Result<(Area, bool)> {
    let AnySource::Kernel(kernel) = file.source() else {
        return Err(Error::invalid(file.path(), "has no descriptor that the kernel could map"));
    };
    let bytes = file.bytes()? as usize;
    if bytes == 0 {
        return Err(Error::invalid(file.path(), EMPTY));
    }
    let shared = options.access == Access::Shared;
    let fd = kernel.descriptor().as_raw_fd();
    let area = Area::of_file(fd, bytes, options.access.writes(), shared)
        .map_err(|error| Error::io("mmap", file.path(), None, error))?;
    Ok((area, shared))
}

/// An unnamed file for what a private region has written.
fn spill_file(directory: &Path) -> Result<Kernel> {
    let name = CString::new(directory.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(directory, "a path cannot contain a zero byte"))?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a zero-terminated path and a mode.
    let fd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::io("making the spill file", directory, None, error));
    }
    // SAFETY: just opened, and nobody else's.
    let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Kernel::new(descriptor, 1, SpinMethod::default(), false))
}
