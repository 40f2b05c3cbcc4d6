// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was written to a region is not lost: not between syncs, not in a spill file, not in swap.
#![allow(unsafe_code)]

mod common;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::alone::{is_child, succeeds};
use common::gate::gated;
use common::{BOTH, byte_at, emulated, file, open, pages, read, region, shared, write};
use dwell::queue::Action;
use dwell_pager::{Access, Advice, Ahead, Faults, PAGE_BYTES, Region};

const PAGES: usize = 64;
const BYTES: usize = PAGES * PAGE_BYTES;

/// Waits until something holds, a minute at most.
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn of_two_syncs_at_once_the_older_data_never_lands_last() {
    let (_dir, path) = file(BYTES);
    // The first write is held up, with the data that its sync has seen.
    let (held, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (is_held, may_go) = (held.clone(), go.clone());
    let source = gated(&path, move |io| {
        if io.action() == Action::Write && is_held.fetch_add(1, Ordering::SeqCst) == 0 {
            until("the first write goes on", || may_go.load(Ordering::SeqCst));
        }
        None
    });
    let Some(region) = region(source, &shared(PAGES)) else { return };
    write(&region, 5, 1);
    thread::scope(|scope| {
        let first = scope.spawn(|| region.sync());
        until("the first sync writes", || held.load(Ordering::SeqCst) > 0);
        write(&region, 5, 2);
        let second = scope.spawn(|| region.sync());
        // The second either waits for the first or is done before it.
        let began = Instant::now();
        while !second.is_finished() && began.elapsed() < Duration::from_millis(300) {
            thread::sleep(Duration::from_millis(1));
        }
        go.store(true, Ordering::SeqCst);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(std::fs::read(&path).unwrap()[5], 2);
    drop(region);
    assert_eq!(std::fs::read(&path).unwrap()[5], 2);
}

#[test]
fn advice_that_pages_are_not_needed_loses_nothing_that_is_written_to_them_meanwhile() {
    let (_dir, path) = file(BYTES);
    let (held, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (is_held, may_go) = (held.clone(), go.clone());
    let source = gated(&path, move |io| {
        if io.action() == Action::Write && is_held.fetch_add(1, Ordering::SeqCst) == 0 {
            until("the first write goes on", || may_go.load(Ordering::SeqCst));
        }
        None
    });
    let Some(region) = region(source, &shared(PAGES)) else { return };
    write(&region, 5, 1);
    thread::scope(|scope| {
        let advice = scope.spawn(|| region.advise(0..BYTES, Advice::DontNeed));
        until("what was written is written back", || held.load(Ordering::SeqCst) > 0);
        write(&region, 5, 2);
        go.store(true, Ordering::SeqCst);
        advice.join().unwrap().unwrap();
    });
    assert_eq!(read(&region, 5), 2);
    region.sync().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[5], 2);
    // Pages that nobody writes to do leave.
    let faults = region.statistics().faults;
    region.advise(0..BYTES, Advice::DontNeed).unwrap();
    assert_eq!((read(&region, 5), region.statistics().faults), (2, faults + 1));
}

/// A swap file on the test's disk, for as long as this lives.
struct Swap(std::ffi::CString);

impl Swap {
    fn on(dir: &std::path::Path) -> Result<Swap, String> {
        let path = dir.join("swap");
        std::fs::write(&path, vec![0; 4 << 20]).map_err(|error| error.to_string())?;
        let made = std::process::Command::new("mkswap").arg(&path).output();
        if !made.is_ok_and(|output| output.status.success()) {
            return Err("mkswap failed".into());
        }
        let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a zero-terminated path.
        match unsafe { libc::swapon(path.as_ptr(), 0) } {
            0 => Ok(Swap(path)),
            _ => Err(format!("swapon: {}", std::io::Error::last_os_error())),
        }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::swapoff(self.0.as_ptr()) };
    }
}

/// Whether a page of this process is in swap.
fn is_swapped(address: usize) -> bool {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (address / PAGE_BYTES * 8) as u64).unwrap();
    u64::from_le_bytes(entry) >> 62 & 3 == 1
}

#[test]
fn written_pages_that_the_kernel_has_swapped_out_are_synced() {
    let (dir, path) = file(BYTES);
    let _swap = match Swap::on(dir.path()) {
        Ok(swap) => swap,
        Err(why) => return println!("SKIP: {why}"),
    };
    let Some(region) = region(open(&path, true), &shared(PAGES)) else { return };
    for page in 0..PAGES {
        write(&region, page * PAGE_BYTES, 9);
    }
    region.sync().unwrap();
    for page in (0..PAGES).step_by(2) {
        write(&region, page * PAGE_BYTES, 10);
    }
    // SAFETY: pages of the region, whose data stays.
    let rc = unsafe { libc::madvise(region.as_ptr().cast(), BYTES, libc::MADV_PAGEOUT) };
    let at = region.as_ptr() as usize;
    let swapped = (0..PAGES).filter(|page| is_swapped(at + page * PAGE_BYTES)).count();
    if rc != 0 || swapped == 0 {
        return println!("SKIP: nothing was swapped out");
    }
    let before = region.statistics().written_back;
    region.sync().unwrap();
    assert_eq!(region.statistics().written_back - before, PAGES as u64 / 2);
    let now = std::fs::read(&path).unwrap();
    for page in 0..PAGES {
        let byte = if page % 2 == 0 { 10 } else { 9 };
        assert_eq!(now[page * PAGE_BYTES], byte, "page {page}, {swapped} were swapped out");
        assert_eq!(read(&region, page * PAGE_BYTES), byte);
    }
}

#[test]
fn pinned_pages_that_a_device_writes_between_two_syncs_are_written_back() {
    let (dir, path) = file(BYTES);
    let ring = match io_uring::IoUring::new(2) {
        Ok(ring) => ring,
        Err(error) => return println!("SKIP: io_uring: {error}"),
    };
    let mut ring = ring;
    let Some(region) = region(open(&path, true), &shared(PAGES)) else { return };
    let from = dir.path().join("from");
    std::fs::write(&from, [77; 2 * PAGE_BYTES]).unwrap();
    let from = std::fs::File::open(from).unwrap();
    let at = 8 * PAGE_BYTES;
    let pin = region.pin(at..at + 2 * PAGE_BYTES).unwrap();
    let memory = region.as_ptr().wrapping_add(at);
    // The kernel looks the pages up here, once; what is read into them later goes by no page table.
    let buffer = libc::iovec { iov_base: memory.cast(), iov_len: 2 * PAGE_BYTES };
    // SAFETY: pages of the region, pinned until the ring is gone.
    if let Err(error) = unsafe { ring.submitter().register_buffers(&[buffer]) } {
        return println!("SKIP: io_uring buffers: {error}");
    }
    region.sync().unwrap();
    let target = io_uring::types::Fd(std::os::fd::AsRawFd::as_raw_fd(&from));
    let read = io_uring::opcode::ReadFixed::new(target, memory, 2 * PAGE_BYTES as u32, 0).build();
    // SAFETY: as above.
    unsafe { ring.submission().push(&read).unwrap() };
    ring.submit_and_wait(1).unwrap();
    assert_eq!(ring.completion().next().unwrap().result(), 2 * PAGE_BYTES as i32);
    region.sync().unwrap();
    let is_there = || {
        let now = std::fs::read(&path).unwrap();
        now[at..at + 2 * PAGE_BYTES].iter().all(|byte| *byte == 77)
    };
    assert!(is_there());
    drop((ring, pin));
    // Once they are not pinned any more, they are written back a last time and are clean then.
    region.sync().unwrap();
    let before = region.statistics().written_back;
    region.sync().unwrap();
    assert_eq!(region.statistics().written_back, before);
    drop(region);
    assert!(is_there());
}

#[test]
fn a_sync_covers_what_was_written_before_it_while_pages_leave_and_come_back() {
    BOTH.into_iter().for_each(covers);
}

fn covers(faults: Faults) {
    let (_dir, path) = file(BYTES);
    let options = shared(24).ahead(Ahead::Nothing).faults(faults);
    let Some(region) = region(gated(&path, |_| None), &options) else { return };
    let now = std::fs::File::open(&path).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut page = 0;
            while !over.load(Ordering::SeqCst) {
                // Pages leave; the ones that are synced are brought back again and again.
                page = (page * 5 + 7) % PAGES;
                read(&region, page * PAGE_BYTES);
                read(&region, (page % 8 + 56) * PAGE_BYTES);
            }
        });
        let mut wrong = None;
        for round in 1..=700u32 {
            let page = 56 + round as usize % 8;
            let at = page * PAGE_BYTES + 8;
            write(&region, at, round as u8);
            region.sync().unwrap();
            let mut byte = [0];
            std::os::unix::fs::FileExt::read_exact_at(&now, &mut byte, at as u64).unwrap();
            if byte[0] != round as u8 {
                wrong = Some((round, page));
                break;
            }
        }
        over.store(true, Ordering::SeqCst);
        others.join().unwrap();
        assert_eq!(wrong, None, "{faults:?}");
    });
}

#[test]
fn pages_whose_sync_the_device_refuses_are_written_again_by_the_next() {
    let (_dir, path) = file(BYTES);
    let (syncs, writes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (of_syncs, of_writes) = (syncs.clone(), writes.clone());
    let source = gated(&path, move |io| match io.action() {
        Action::DataSync => (of_syncs.fetch_add(1, Ordering::SeqCst) == 0).then_some(-libc::EIO),
        Action::Write => {
            of_writes.fetch_add(io.bytes() as usize / PAGE_BYTES, Ordering::SeqCst);
            None
        }
        _ => None,
    });
    let Some(region) = region(source, &shared(PAGES).ahead(Ahead::Nothing)) else { return };
    for page in 3..6 {
        write(&region, page * PAGE_BYTES, 8);
    }
    read(&region, 9 * PAGE_BYTES);
    assert!(region.sync().unwrap_err().to_string().contains("Input/output error"));
    assert_eq!(writes.load(Ordering::SeqCst), 3);
    region.sync().unwrap();
    assert_eq!(writes.load(Ordering::SeqCst), 6);
    region.sync().unwrap();
    assert_eq!((writes.load(Ordering::SeqCst), syncs.load(Ordering::SeqCst)), (6, 3));
}

#[test]
fn a_spill_file_that_takes_half_a_page_has_none_of_it() {
    let name = "a_spill_file_that_takes_half_a_page_has_none_of_it";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (dir, path) = file(BYTES);
    let access = Access::Private { spill: Some(dir.path().to_owned()) };
    let options = pages(16).access(access).ahead(Ahead::Nothing);
    let Some(region) = region(open(&path, false), &options) else { return };
    // Files may be no longer than so many pages and a half: a write there is short.
    let most = (20 * PAGE_BYTES + PAGE_BYTES / 2) as u64;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a limit and a signal of this process, which is the test's own.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    for at in 0..BYTES {
        write(&region, at, !byte_at(at));
    }
    for at in 0..BYTES {
        assert_eq!(read(&region, at), !byte_at(at), "byte {at}");
    }
    assert!(region.statistics().written_back > 0);
    assert!(region.statistics().write_errors > 0);
}

#[test]
fn writes_to_a_private_page_are_gone_however_soon_it_is_dropped_after_its_fault() {
    for faults in BOTH {
        let (dir, path) = file(BYTES);
        let access = Access::Private { spill: Some(dir.path().into()) };
        let options = pages(8).access(access).faults(faults);
        let Some(region) = region(open(&path, false), &options) else { return };
        for round in 0..3000usize {
            let page = round % PAGES;
            let at = page * PAGE_BYTES;
            let own = !byte_at(at);
            write(&region, at, own);
            // It leaves, and a fault brings it back right before it is dropped.
            if round % 3 == 0 {
                (1..9).for_each(|step| _ = read(&region, (page + step) % PAGES * PAGE_BYTES));
                assert_eq!(read(&region, at), own);
            }
            region.advise(at..at + PAGE_BYTES, Advice::DontNeed).unwrap();
            assert_eq!(read(&region, at), byte_at(at), "{faults:?}, round {round}");
        }
    }
}

/// Whether the kernel can read a page of a region on the program's behalf.
fn can_be_read(region: &Region, page: usize) -> bool {
    let sink = tempfile::tempfile().unwrap();
    let at = region.as_ptr().wrapping_add(page * PAGE_BYTES);
    // SAFETY: an open file; the kernel says of an address whether it can be read.
    unsafe { libc::write(sink.as_raw_fd(), at.cast(), PAGE_BYTES) == PAGE_BYTES as isize }
}

#[test]
fn a_page_that_was_refused_stays_refused_beside_its_neighbours_and_keeps_writes_once_it_is_cured() {
    let (_dir, path) = file(BYTES);
    const REFUSED: usize = 6;
    for access in [Access::Shared, Access::Private { spill: None }] {
        // Each third request fails.
        let device = Arc::new(emulated(&path, "latency=2us,error-every=3"));
        let options = pages(PAGES).access(access).ahead(Ahead::UpTo(8)).faults(Faults::Thread);
        let Some(region) = region(device, &options) else { return };
        region.advise(0..BYTES, Advice::Random).unwrap();
        for page in [40, 50] {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        assert!(!can_be_read(&region, REFUSED));
        // Their window includes the page.
        region.advise(0..BYTES, Advice::Sequential).unwrap();
        for page in 2..REFUSED {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        let came = can_be_read(&region, REFUSED);
        let at = REFUSED * PAGE_BYTES;
        let bring = || while region.prefault(at..at + 1).is_err() {};
        if !came {
            bring();
        }
        write(&region, at, 77);
        bring();
        assert_eq!(read(&region, at), 77);
        assert!(!came, "nobody asked for it again");
    }
}
