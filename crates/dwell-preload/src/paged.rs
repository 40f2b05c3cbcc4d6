// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of files that nobody may write, brought in by the pager.
//!
//! A region covers a whole file and stays for the program's next mappings of it. Whatever the pager
//! does not know of (a range made writable, locked, moved, mapped over) is the kernel's again
//! before it happens.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dwell::any::AnySource;
use dwell::external::status;
use dwell::{File, dwell_policy::Ns};
use dwell_host::settings::{Paging, RunOrder};
use dwell_pager::{Advice, Faults, Options, PAGE_BYTES, Region, check_immutable};

use crate::inside::{self, Inside};
use crate::raw::bare;
use crate::stack::{self, STACK_BYTES};
use crate::{engine, own, process, report};

/// Files that are paged at once: each has a thread and some descriptors.
const MOST: usize = 16;

/// Whether mappings are looked at.
static ON: AtomicBool = AtomicBool::new(false);
/// Whether there ever was a region.
static EVER: AtomicBool = AtomicBool::new(false);
static REGIONS: Mutex<Regions> = Mutex::new(Regions { paged: Vec::new(), refused: Vec::new() });

/// Where a region lies, for whoever may not wait for a lock; free where `start` is 0.
struct Place {
    start: AtomicUsize,
    bytes: AtomicUsize,
    fd: AtomicI32,
}

static PLACES: [Place; MOST] = [const {
    Place { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0), fd: AtomicI32::new(-1) }
}; MOST];

struct Regions {
    paged: Vec<Paged>,
    /// Files of which was said why they are not paged.
    refused: Vec<Key>,
}

/// Device and inode.
type Key = (u64, u64);

/// Length of a file and when it last changed, its attributes and rights included. Nobody changes an
/// immutable one without a change of these.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    bytes: i64,
    changed: (i64, i64),
}

impl Version {
    fn of(file: &libc::stat) -> Version {
        Version { bytes: file.st_size, changed: (file.st_ctime, file.st_ctime_nsec) }
    }
}

struct Paged {
    key: Key,
    version: Version,
    region: Region,
    place: &'static Place,
    /// What the program has mapped of it.
    mappings: Vec<Range<usize>>,
}

fn regions() -> MutexGuard<'static, Regions> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins as `order` says.
pub fn begin(order: &RunOrder) {
    ON.store(order.pager.is_some() && !order.shadow, Ordering::Relaxed);
}

/// Whole pages around a range.
fn pages(start: usize, bytes: usize) -> Range<usize> {
    let end = start.saturating_add(bytes).checked_next_multiple_of(PAGE_BYTES);
    start..end.unwrap_or(usize::MAX)
}

impl Place {
    fn range(&self) -> Range<usize> {
        let start = self.start.load(Ordering::Acquire);
        if start == 0 { 0..0 } else { pages(start, self.bytes.load(Ordering::Relaxed)) }
    }

    fn meets(&self, range: &Range<usize>) -> bool {
        let own = self.range();
        own.start < range.end && range.start < own.end
    }
}

/// Whether any of a range is a region's.
#[inline]
fn is_paged(start: *const c_void, bytes: usize) -> bool {
    if !EVER.load(Ordering::Relaxed) {
        return false;
    }
    let range = pages(start.addr(), bytes);
    PLACES.iter().any(|place| place.meets(&range))
}

/// The memory of a mapping that the pager brings in; `None` where it is the kernel's to make.
#[inline]
pub fn map(
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Option<*mut c_void> {
    if !ON.load(Ordering::Relaxed) || fd < 0 || protection != libc::PROT_READ {
        return None;
    }
    // These say nothing that matters to a file that nobody writes.
    let flags = flags & !(libc::MAP_NORESERVE | libc::MAP_DENYWRITE | libc::MAP_EXECUTABLE);
    let kinds = [libc::MAP_SHARED, libc::MAP_PRIVATE, libc::MAP_SHARED_VALIDATE];
    if !kinds.contains(&flags) || inside::is_inside() {
        return None;
    }
    inside::uncancelled(|| mapped(bytes, fd, offset))
}

#[cold]
fn mapped(bytes: usize, fd: c_int, offset: i64) -> Option<*mut c_void> {
    let _inside = engine::enter()?;
    let paging = process::order()?.pager.as_ref()?;
    // SAFETY: the number is one that the program uses.
    let file = unsafe { status(fd) }.ok()?;
    let (start, size) = (usize::try_from(offset).ok()?, file.st_size as usize);
    let wanted = pages(start, bytes);
    let is_whole = start.is_multiple_of(PAGE_BYTES) && wanted.end <= pages(0, size).end;
    if file.st_mode & libc::S_IFMT != libc::S_IFREG || bytes == 0 || !is_whole {
        return None;
    }
    let mut regions = regions();
    let key = (file.st_dev, file.st_ino);
    let version = Version::of(&file);
    if let Some(at) = regions.paged.iter().position(|paged| paged.key == key) {
        let paged = &mut regions.paged[at];
        if paged.version == version {
            return paged.take(wanted);
        }
        // Its owner has changed it. What the program has mapped of it changes as the file did.
        if !paged.mappings.is_empty() {
            let place = paged.place;
            regions.hand_back(|other| std::ptr::eq(other, place));
            return None;
        }
        regions.end(at);
    }
    if regions.refused.contains(&key) || !own::may_borrow() || !regions.make_room() {
        return None;
    }
    let opened = stack::on_its_own(STACK_BYTES, || open(fd, paging))??;
    let region = match opened {
        Ok(region) => region,
        Err(why) => {
            regions.refused.push(key);
            report::say_of_run(paging, &why);
            return None;
        }
    };
    regions.enter(key, version, region)?.take(wanted)
}

/// The region of a descriptor's file, or why there is none; `None` where its path is not meant.
fn open(fd: c_int, paging: &Paging) -> Option<Result<Region, String>> {
    let link = format!("/proc/self/fd/{fd}");
    let path = fs::read_link(&link).ok()?;
    if !paging.files.iter().any(|files| files.matches_path(&path)) {
        return None;
    }
    let refused = |why: String| format!("{}: the kernel maps it: {why}", path.display());
    // SAFETY: the program's own, for as long as it is in the call that maps it.
    if let Err(why) = check_immutable(unsafe { BorrowedFd::borrow_raw(fd) }) {
        return Some(Err(refused(why.to_string())));
    }
    let open = |direct: bool| {
        let options = File::options().direct(direct);
        let options = match engine::monitor() {
            Some(monitor) => options.monitor(monitor),
            None => options,
        };
        options.open(&link)
    };
    let budget = usize::try_from(paging.budget_bytes).unwrap_or(usize::MAX);
    // Where pages are copied, the program's may be kept from being written to. System calls may be
    // given any of them, so a thread handles the faults.
    let options = Options::new(budget).faults(Faults::Thread).copies(true);
    // What cannot be read past the page cache is read through it.
    let region = open(true)
        .and_then(|file| Region::open(file, &options))
        .or_else(|_| open(false).and_then(|file| Region::open(file, &options)));
    Some(region.map_err(|error| refused(error.to_string())).inspect(|region| {
        let start = region.as_ptr() as usize;
        let bytes = pages(start, region.len()).len();
        let _: c_int = bare!(SYS_mprotect, start, bytes, libc::PROT_READ);
    }))
}

impl Regions {
    /// Ends a region that nobody uses if there is room for no other; whether there is now.
    fn make_room(&mut self) -> bool {
        if self.paged.len() < MOST {
            return true;
        }
        let unused = self.paged.iter().position(|paged| paged.mappings.is_empty());
        unused.map(|at| self.end(at)).is_some()
    }

    /// Ends a region that nobody uses.
    fn end(&mut self, at: usize) {
        let unused = self.paged.remove(at);
        unused.place.start.store(0, Ordering::Release);
    }

    /// Takes a region in.
    fn enter(&mut self, key: Key, version: Version, region: Region) -> Option<&mut Paged> {
        let AnySource::Kernel(kernel) = region.file().source() else { return None };
        let free = |place: &&Place| place.start.load(Ordering::Relaxed) == 0;
        let place = PLACES.iter().find(free)?;
        EVER.store(true, Ordering::Relaxed);
        place.bytes.store(region.len(), Ordering::Relaxed);
        place.fd.store(kernel.descriptor().as_raw_fd(), Ordering::Relaxed);
        place.start.store(region.as_ptr() as usize, Ordering::Release);
        self.paged.push(Paged { key, version, region, place, mappings: Vec::new() });
        self.paged.last_mut()
    }

    /// The one that a range lies in altogether.
    fn around(&mut self, range: &Range<usize>) -> Option<&mut Paged> {
        self.paged.iter_mut().find(|paged| {
            let own = paged.place.range();
            own.start <= range.start && range.end <= own.end
        })
    }
}

impl Paged {
    /// Maps so many bytes of the file; two mappings at once have addresses of their own.
    fn take(&mut self, wanted: Range<usize>) -> Option<*mut c_void> {
        let start = self.place.start.load(Ordering::Relaxed);
        let wanted = start + wanted.start..start + wanted.end;
        let is_taken =
            self.mappings.iter().any(|one| one.start < wanted.end && wanted.start < one.end);
        if is_taken {
            return None;
        }
        let address = wanted.start as *mut c_void;
        self.mappings.push(wanted);
        Some(address)
    }
}

/// What the program does to memory.
pub enum Change {
    Unmap,
    Protect(c_int),
    Advise(c_int),
    /// Whatever the pager cannot do.
    Other,
}

/// Does to memory of a region what the program wants; `None` where that is the kernel's to do.
#[inline]
pub fn change(start: *const c_void, bytes: usize, change: Change) -> Option<c_int> {
    if !is_paged(start, bytes) || inside::is_inside() {
        return None;
    }
    inside::uncancelled(|| changed(pages(start.addr(), bytes), change))
}

#[cold]
fn changed(range: Range<usize>, change: Change) -> Option<c_int> {
    let _inside = Inside::enter()?;
    let mut regions = regions();
    if let Some(paged) = regions.around(&range) {
        let start = paged.place.range().start;
        match change {
            Change::Unmap => {
                // Its pages stay for the next mapping, as they do in the page cache.
                paged.mappings.retain(|mapping| *mapping != range);
                return Some(0);
            }
            Change::Protect(libc::PROT_READ) => return Some(0),
            Change::Advise(said) => {
                let end = (range.end - start).min(paged.region.len());
                if let Some(advice) = advice(said) {
                    let _ = paged.region.advise(range.start - start..end, advice);
                    return Some(0);
                }
            }
            Change::Protect(_) | Change::Other => {}
        }
    }
    regions.hand_back(|place| place.meets(&range));
    None
}

fn advice(said: c_int) -> Option<Advice> {
    Some(match said {
        libc::MADV_NORMAL => Advice::Normal,
        libc::MADV_RANDOM => Advice::Random,
        libc::MADV_SEQUENTIAL => Advice::Sequential,
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_DONTNEED => Advice::DontNeed,
        _ => return None,
    })
}

impl Regions {
    fn hand_back(&mut self, which: impl Fn(&Place) -> bool) {
        let mut at = 0;
        while at < self.paged.len() {
            if !which(self.paged[at].place) {
                at += 1;
                continue;
            }
            let Paged { key, region, place, .. } = self.paged.swap_remove(at);
            // Its mappings are not known any more, so it is not paged again.
            self.refused.push(key);
            place.start.store(0, Ordering::Release);
            stack::on_its_own(STACK_BYTES, || region.hand_back());
        }
    }
}

/// Leaves all mappings to the kernel from now on, without a thread of the pager's.
pub fn end() {
    if !ON.swap(false, Ordering::Relaxed) || inside::is_inside() {
        return;
    }
    if let Some(_inside) = Inside::enter() {
        regions().hand_back(|_| true);
    }
}

/// In a forked child, which has no pager: the kernel maps the files at the same addresses. Safe in
/// a signal handler.
pub fn leave_child() {
    ON.store(false, Ordering::Relaxed);
    for place in &PLACES {
        let range = place.range();
        if !range.is_empty() {
            place.start.store(0, Ordering::Relaxed);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let fd = place.fd.load(Ordering::Relaxed);
            let _: isize = bare!(SYS_mmap, range.start, range.len(), libc::PROT_READ, flags, fd, 0);
        }
    }
}

/// In a child whose fork was seen: its next mappings are paged again. No thread was inside when it
/// was forked.
pub fn begin_in_child(order: &RunOrder) {
    let mut regions = regions();
    // The regions are the parent's; dropping them here would take more than forgetting does.
    std::mem::forget(std::mem::take(&mut regions.paged));
    regions.refused.clear();
    drop(regions);
    begin(order);
}

/// A line about what the pager did in this process, where it did anything.
pub fn tell() -> Option<String> {
    let regions = regions();
    let (mut files, mut faults, mut waited, mut read, mut ahead) = (0, 0, 0, 0, 0);
    let mut waited_ns: Ns = 0;
    for paged in &regions.paged {
        let statistics = paged.region.statistics();
        files += 1;
        faults += statistics.faults;
        waited += statistics.reads_awaited;
        waited_ns += statistics.fault_ns;
        read += statistics.pages_read;
        ahead += statistics.prefetched_used;
    }
    if files == 0 {
        return None;
    }
    let mut text = String::new();
    let pid = std::process::id();
    let ms = waited_ns as f64 / 1e6;
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let _ = write!(
        text,
        "pager     {files} of process {pid}: {faults} faults in {ms:.1} ms, {waited} waited for a read; \
         {read} pages read, {ahead} of them ahead and used"
    );
    Some(text)
}
