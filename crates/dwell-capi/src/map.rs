// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files as memory larger than DRAM.
#![allow(unsafe_code)]

mod options;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ops::Range;
use std::ptr;

use dwell_pager::{Advice, Faults, Registered};

use crate::failure::{Failure, call};
use crate::file::{File, opened};
use crate::versioned::{self, Versioned};
use options::{MapOptions, asked};

/// Advice: read in no particular order; reading ahead follows what is seen.
pub const DWELL_ADVICE_NORMAL: u32 = 0;
/// Advice: read in order.
pub const DWELL_ADVICE_SEQUENTIAL: u32 = 1;
/// Advice: read in no order: nothing is read ahead but what hints name.
pub const DWELL_ADVICE_RANDOM: u32 = 2;
/// Advice: wanted soon.
pub const DWELL_ADVICE_WILLNEED: u32 = 3;
/// Advice: not wanted any more. What was written to a shared region is written back, what was
/// written to a private one is lost.
pub const DWELL_ADVICE_DONTNEED: u32 = 4;

/// What the page faults of a region did so far. Set size to sizeof(dwell_region_stats) before the
/// call; afterwards it is the bytes that this version of the library fills. Pages have 4096 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RegionStats {
    /// sizeof(dwell_region_stats).
    pub size: usize,
    /// Faults on pages that were not there.
    pub faults: u64,
    /// Of these, those that waited for the file.
    pub waited: u64,
    /// Pages read from the file.
    pub pages_read: u64,
    /// Pages read ahead of their first use.
    pub read_ahead: u64,
    /// Of these, pages that were used.
    pub read_ahead_used: u64,
    /// Of these, pages that left memory unused.
    pub read_ahead_wasted: u64,
    /// Pages moved out.
    pub evicted: u64,
    /// Pages written to the file or to the spill file.
    pub written_back: u64,
    /// Writes that the file refused; their pages stay in memory.
    pub write_errors: u64,
    /// Reads that the file refused.
    pub read_errors: u64,
    /// Pages that went beyond the budget because none could leave memory.
    pub over_budget: u64,
    /// Time spent waiting for pages, in nanoseconds.
    pub waited_ns: u64,
    /// Of that, time spent busy with nothing to do, in nanoseconds.
    pub spun_ns: u64,
    /// Time in which a wait was used for other work, in nanoseconds.
    pub stolen_ns: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Most pages that were in memory at once.
    pub peak_pages: u64,
}

// SAFETY: it begins with its size; the rest are numbers.
unsafe impl Versioned for RegionStats {
    const NAME: &str = "dwell_region_stats";
    const LEAST: usize = offset_of!(RegionStats, peak_pages) + size_of::<u64>();
}

/// A file as memory. Threads may share one.
pub struct Region {
    region: dwell_pager::Region,
    /// Why the kernel maps the file, if it does.
    why_mapped: Option<CString>,
    /// Whether the faulting thread handles faults.
    inline: bool,
}

/// A range of a region that stays in memory.
pub struct Pin {
    _pin: dwell_pager::Pin,
}

thread_local! {
    /// The regions that the calling thread has registered with.
    static OWN: RefCell<Vec<(usize, Registered)>> = const { RefCell::new(Vec::new()) };
}

/// # Safety
/// `region` is NULL or came from dwell_map and was not unmapped, for as long as `'a`.
unsafe fn mapped<'a>(region: *const Region) -> Result<&'a Region, Failure> {
    // SAFETY: as the caller promised.
    unsafe { region.as_ref() }.ok_or_else(|| Failure::null("region"))
}

fn range(offset: usize, bytes: usize) -> Result<Range<usize>, Failure> {
    let end = offset.checked_add(bytes);
    let end = end.ok_or_else(|| Failure::invalid("offset and bytes go beyond all memory"))?;
    Ok(offset..end)
}

/// Makes an open file memory, of which at most budget_bytes are in DRAM at once. Pages come in when
/// they are touched, and leave when others need the room.
///
/// Where the faulting thread handles faults (no DWELL_MAP_THREAD), a handler of SIGBUS is
/// installed; signals that are not the library's go to the handler that was there before. While a
/// fault waits for a device, signals with a handler wait too; one without ends the process at once.
/// A system call that is given memory whose pages are not there then fails with EFAULT: see
/// dwell_region_pin. A thread faults more cheaply once it has called dwell_region_register. A
/// forked child must not touch the memory.
///
/// file     stays usable, and may be closed
/// options  budget and manner; not NULL, because there is no usual budget
/// region   receives the region; end it with dwell_unmap
///
/// Returns 0, or -1 with errno set: EINVAL, or what the system says. EINVAL stands for NULL, a bad
/// option, an empty file, a budget too small, and for DWELL_MAP_SHARED on a file opened without
/// DWELL_WRITE. It also stands for a userfaultfd that is missing or that this process may not use
/// (dwell_last_error says which).
///
/// # Safety
/// The pointers are NULL or valid, the file open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_map(
    file: *mut File,
    options: *const MapOptions,
    region: *mut *mut Region,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        if region.is_null() {
            return Err(Failure::null("region"));
        }
        // SAFETY: as above.
        let options = unsafe { asked(options)? };
        let inline = options.faults == Faults::Inline;
        let opened = dwell_pager::Region::open(file.file.clone(), &options)?;
        // An error's text has no zero byte.
        let why_mapped = opened.why_mapped().and_then(|why| CString::new(why).ok());
        let made = Box::new(Region { region: opened, why_mapped, inline });
        // SAFETY: not NULL, so valid.
        unsafe { region.write(Box::into_raw(made)) };
        Ok(0)
    })
}

/// Ends a region: writes back what was written to a shared one, and makes it durable. Its memory is
/// gone afterwards, also when that failed.
///
/// region  no other call on it may be in progress, nor follow; nobody touches its memory any more
///
/// Returns 0, or -1 with errno set: EINVAL for NULL, else what the file refused.
///
/// # Safety
/// The region is NULL or mapped, and nothing of it is used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_unmap(region: *mut Region) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { mapped(region)? };
        forget_own(region);
        // SAFETY: it came from Box::into_raw in `dwell_map`, and is not used again.
        let region = unsafe { Box::from_raw(region) };
        region.region.close()?;
        Ok(0)
    })
}

/// Where a region's memory begins: at a page. NULL for NULL.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_start(region: *const Region) -> *mut c_void {
    // SAFETY: as the caller promised.
    call(ptr::null_mut(), || Ok(unsafe { mapped(region)? }.region.as_ptr().cast()))
}

/// Length of a region in bytes, which is that of its file; the rest of the last page is zeros. 0
/// for NULL.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_bytes(region: *const Region) -> usize {
    // SAFETY: as the caller promised.
    call(0, || Ok(unsafe { mapped(region)? }.region.len()))
}

/// Why mmap(2) maps the file of a region, in one line that stays valid until dwell_unmap; NULL of a
/// region with a budget, and for NULL.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_why_mapped(region: *const Region) -> *const c_char {
    call(ptr::null(), || {
        // SAFETY: as the caller promised.
        let why = unsafe { mapped(region)? }.why_mapped.as_ref();
        Ok(why.map_or(ptr::null(), |why| why.as_ptr()))
    })
}

/// Gives the calling thread a queue of its own for its faults on a region, until it ends or the
/// region does: it then reads many pages at once. A thread without one faults correctly too. Once
/// is enough.
///
/// Returns 0, or -1 with errno set.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_register(region: *mut Region) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let known = unsafe { mapped(region)? };
        if !known.inline {
            return Ok(0);
        }
        let key = region as usize;
        let has = OWN.with_borrow(|own| own.iter().any(|(known, _)| *known == key));
        if !has {
            let registered = known.region.register_thread()?;
            OWN.with_borrow_mut(|own| own.push((key, registered)));
        }
        Ok(0)
    })
}

/// Takes the queue back that dwell_region_register gave the calling thread. A thread whose region
/// another thread ends does so before.
///
/// Returns 0, or -1 with errno EINVAL for NULL.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_unregister(region: *mut Region) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { mapped(region)? };
        forget_own(region);
        Ok(0)
    })
}

/// Takes the calling thread's queue for a region back, where it has one.
fn forget_own(region: *const Region) {
    // Taken out first: what is dropped may take a while.
    let own = OWN.with_borrow_mut(|own| {
        let at = own.iter().position(|(known, _)| *known == region as usize);
        at.map(|at| own.swap_remove(at))
    });
    drop(own);
}

/// Writes back what was written to a range of a shared region, and makes it durable.
///
/// offset  of the range in the region, in bytes
/// bytes   of the range; the whole region is dwell_region_bytes(region) from 0
///
/// Returns 0, or -1 with errno set: EINVAL for a range past the end, else what the file refused,
/// now or since the last call; such pages stay in memory and are tried again.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_sync(
    region: *mut Region,
    offset: usize,
    bytes: usize,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let region = unsafe { mapped(region)? };
        region.region.sync_range(range(offset, bytes)?)?;
        Ok(0)
    })
}

/// Brings a range into memory and keeps it there until dwell_region_unpin, so that system calls can
/// be given it. With a budget as large as the file, all of it can be pinned.
///
/// pin  receives the pin
///
/// Returns 0, or -1 with errno set: EINVAL for NULL, a range past the end, or more than the budget
/// can hold (dwell_last_error names the bytes that it would need); else what the file refused.
///
/// # Safety
/// The region is NULL or mapped; pin is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_pin(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    pin: *mut *mut Pin,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let region = unsafe { mapped(region)? };
        if pin.is_null() {
            return Err(Failure::null("pin"));
        }
        let pinned = region.region.pin(range(offset, bytes)?)?;
        // SAFETY: not NULL, so valid.
        unsafe { pin.write(Box::into_raw(Box::new(Pin { _pin: pinned }))) };
        Ok(0)
    })
}

/// Lets a pinned range leave memory again.
///
/// pin  not to be used afterwards
///
/// Returns 0, or -1 with errno EINVAL for NULL.
///
/// # Safety
/// The pin is NULL or came from dwell_region_pin and was not taken back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_unpin(pin: *mut Pin) -> c_int {
    call(-1, || {
        if pin.is_null() {
            return Err(Failure::null("pin"));
        }
        // SAFETY: it came from Box::into_raw in `dwell_region_pin`, and is not used again.
        drop(unsafe { Box::from_raw(pin) });
        Ok(0)
    })
}

/// Says how a range will be used.
///
/// advice  DWELL_ADVICE_NORMAL, _SEQUENTIAL, _RANDOM, _WILLNEED or _DONTNEED
///
/// Returns 0, or -1 with errno set: EINVAL for a range past the end or another advice.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_advise(
    region: *mut Region,
    offset: usize,
    bytes: usize,
    advice: u32,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let region = unsafe { mapped(region)? };
        let advice = match advice {
            DWELL_ADVICE_NORMAL => Advice::Normal,
            DWELL_ADVICE_SEQUENTIAL => Advice::Sequential,
            DWELL_ADVICE_RANDOM => Advice::Random,
            DWELL_ADVICE_WILLNEED => Advice::WillNeed,
            DWELL_ADVICE_DONTNEED => Advice::DontNeed,
            other => {
                let what = format!("advice {other}; there are DWELL_ADVICE_NORMAL to _DONTNEED");
                return Err(Failure::invalid(what));
            }
        };
        region.region.advise(range(offset, bytes)?, advice)?;
        Ok(0)
    })
}

/// Tells that the byte at an offset will be touched soon, so that its page is read during the next
/// wait. Costs some nanoseconds, and never waits.
///
/// Returns 1, or 0 where so many hints wait already that this one is lost, and -1 with errno EINVAL
/// for NULL.
///
/// # Safety
/// The region is NULL or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_hint(region: *mut Region, offset: usize) -> c_int {
    // SAFETY: as the caller promised.
    call(-1, || Ok(c_int::from(unsafe { mapped(region)? }.region.hint(offset))))
}

/// Tells what the faults of a region did so far.
///
/// stats  its size is set by the caller; receives the numbers
///
/// Returns 0, or -1 with errno EINVAL for NULL or a wrong size.
///
/// # Safety
/// The region is NULL or mapped; stats is NULL or as long as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_region_stats_of(
    region: *const Region,
    stats: *mut RegionStats,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let region = unsafe { mapped(region)? };
        if stats.is_null() {
            return Err(Failure::null("stats"));
        }
        let counted = region.region.statistics();
        let told = RegionStats {
            size: size_of::<RegionStats>(),
            faults: counted.faults,
            waited: counted.reads_awaited + counted.joined,
            pages_read: counted.pages_read,
            read_ahead: counted.prefetched,
            read_ahead_used: counted.prefetched_used,
            read_ahead_wasted: counted.prefetched_wasted,
            evicted: counted.evicted,
            written_back: counted.written_back,
            write_errors: counted.write_errors,
            read_errors: counted.read_errors,
            over_budget: counted.over_budget,
            waited_ns: counted.waited_ns,
            spun_ns: counted.spun_ns,
            stolen_ns: counted.stolen_ns,
            resident_pages: counted.resident,
            peak_pages: counted.peak,
        };
        // SAFETY: as the caller promised.
        unsafe { versioned::write(stats, &told)? };
        Ok(0)
    })
}

/// A region can be shared by threads, as C is told.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Region>();
};
