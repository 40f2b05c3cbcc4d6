// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that err or stall, signals of others, processes that fork, die or may not page.
#![allow(unsafe_code)]

mod common;
#[path = "../../dwell/tests/common/forbid.rs"]
mod forbid;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{mem, ptr, thread};

use common::alone::{dies, forked, is_child, started, succeeds, told};
use common::{BOTH, byte_at, emulated, file, open, pages, read, region, shared, write};
use dwell_pager::{Ahead, Budget, Faults, Options, Otherwise, PAGE_BYTES, Region};
use forbid::forbid;

const BYTES: usize = 128 * PAGE_BYTES;

/// Installs a handler of SIGBUS and SIGSEGV.
fn install(handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        // SAFETY: a zeroed action is a valid one, and the handler is of the kind that the flag
        // says.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
        }
    }
}

/// Where to go on after a signal, and what was seen of it.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Ends the process, with the number of a signal that came at the address it was told to expect.
extern "C" fn expected(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's own siginfo; the process ends at once.
    unsafe {
        let address = (*info).si_addr() as usize;
        libc::_exit(if address == SEEN.load(Ordering::SeqCst) { 64 + signal } else { 1 });
    }
}

#[test]
fn a_page_that_the_device_refuses_raises_sigbus_at_its_address_and_can_be_tried_again() {
    let name = "a_page_that_the_device_refuses_raises_sigbus_at_its_address_and_can_be_tried_again";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        // Every third request fails.
        let status = forked(|| {
            let device = Arc::new(emulated(&path, "latency=5us,error-every=3"));
            let options = pages(64).ahead(Ahead::Nothing).faults(faults);
            install(expected);
            let Some(region) = region(device, &options) else { return 200 };
            assert_eq!(read(&region, 0), byte_at(0));
            assert_eq!(read(&region, PAGE_BYTES), byte_at(PAGE_BYTES));
            let error = region.prefault(2 * PAGE_BYTES..3 * PAGE_BYTES).unwrap_err();
            assert!(error.to_string().contains("at byte 8192"), "{error}");
            assert_eq!(region.statistics().read_errors, 1);
            // The next two requests are served.
            assert_eq!(read(&region, 2 * PAGE_BYTES), byte_at(2 * PAGE_BYTES));
            assert_eq!(read(&region, 3 * PAGE_BYTES), byte_at(3 * PAGE_BYTES));
            let at = region.as_ptr() as usize + 4 * PAGE_BYTES + 17;
            SEEN.store(
                if faults == Faults::Inline { at } else { at / PAGE_BYTES * PAGE_BYTES },
                Ordering::SeqCst,
            );
            if faults == Faults::Thread {
                // The kernel tells the page of a poisoned one, or the address: both are right.
                SEEN.store(at, Ordering::SeqCst);
            }
            read(&region, 4 * PAGE_BYTES + 17);
            2
        });
        assert!(status == 64 + libc::SIGBUS || status == 200, "{faults:?}: {status}");
    }
}

#[test]
fn a_device_that_stalls_is_waited_for_without_holding_the_cpu() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let device = Arc::new(emulated(&path, "latency=5us,stall-after=3,stall-for=200ms"));
        let options = pages(64).ahead(Ahead::Nothing).faults(faults);
        let Some(region) = region(device, &options) else { return };
        let _registered = region.register_thread().unwrap();
        for page in 0..8 {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        let statistics = region.statistics();
        assert!(statistics.waits_parked > 0, "{statistics:?}");
        assert!(statistics.spun_ns < 100_000_000, "{statistics:?}");
    }
}

#[test]
fn a_write_that_the_device_refuses_is_told_by_sync_and_the_page_stays() {
    let (_dir, path) = file(BYTES);
    for budget in [16, 200] {
        // Each request in three fails: reads of this test are tried again until they succeed. Were
        // it one in two, a write and the sync of the device after it would never both succeed.
        let device = Arc::new(emulated(&path, "latency=2us,error-every=3"));
        let options = shared(budget).ahead(Ahead::Nothing);
        let Some(region) = region(device.clone(), &options) else { return };
        for page in 0..40usize {
            let at = page * PAGE_BYTES;
            while region.prefault(at..at + 1).is_err() {}
            let pin = loop {
                if let Ok(pin) = region.pin(at..at + 1) {
                    break pin;
                }
            };
            write(&region, at, page as u8 + 100);
            drop(pin);
        }
        let mut told = 0;
        while let Err(error) = region.sync() {
            assert!(error.to_string().contains("Input/output error"), "{error}");
            told += 1;
            assert!(told < 1_000);
            // At times one request more: else the same one of those that each sync makes could fail
            // for ever.
            if told % 2 == 0 {
                let _ = device.read_at(&mut [0; PAGE_BYTES], 0);
            }
        }
        assert!(told > 0);
        let now = std::fs::read(&path).unwrap();
        for page in 0..40 {
            assert_eq!(now[page * PAGE_BYTES], page as u8 + 100, "page {page}");
        }
        assert!(region.statistics().write_errors > 0);
    }
}

#[test]
fn a_signal_that_is_not_ours_reaches_the_handler_that_was_there_before() {
    let name = "a_signal_that_is_not_ours_reaches_the_handler_that_was_there_before";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        let status = forked(|| {
            install(expected);
            let Some(region) = region(open(&path, false), &pages(16)) else { return 200 };
            for page in 0..64 {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
            let other = foreign(signal);
            SEEN.store(other as usize, Ordering::SeqCst);
            // SAFETY: faults, and the handler ends the process.
            unsafe { other.read_volatile() };
            2
        });
        assert!(status == 64 + signal || status == 200, "signal {signal}: {status}");
    }
    // Without one the process dies of the signal.
    let status = forked(|| {
        let Some(region) = region(open(&path, false), &pages(16)) else { return 200 };
        read(&region, 0);
        // SAFETY: ends the process.
        unsafe { foreign(libc::SIGBUS).read_volatile() };
        2
    });
    assert!(status == -libc::SIGBUS || status == 200, "{status}");
    // And one that was sent arrives once.
    let status = forked(|| {
        install(sent);
        let Some(region) = region(open(&path, false), &pages(16)) else { return 200 };
        // SAFETY: sends this process a signal.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(read(&region, 0), byte_at(0));
        SEEN.load(Ordering::SeqCst) as i32
    });
    assert!(status == 1 || status == 200, "{status}");
}

extern "C" fn sent(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::SeqCst);
}

/// An address that raises a signal when it is read.
fn foreign(signal: i32) -> *const u8 {
    let (prot, file) = match signal {
        libc::SIGBUS => (libc::PROT_READ, Some(tempfile::tempfile().unwrap())),
        _ => (libc::PROT_NONE, None),
    };
    use std::os::fd::AsRawFd;
    let fd = file.as_ref().map_or(-1, |file| file.as_raw_fd());
    let flags = if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    // SAFETY: a fresh mapping at an address of the kernel's choice; of an empty file, every page is
    // past its end.
    let at = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, prot, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// A handler that came after the pager's, and passes on what is not its own.
extern "C" fn later(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's own siginfo; the handler that was there before is of the same kind.
    unsafe {
        if (*info).si_addr() as usize == SEEN.load(Ordering::SeqCst) {
            libc::_exit(64);
        }
        let before: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            mem::transmute(BEFORE.load(Ordering::SeqCst));
        before(signal, info, context);
    }
}

#[test]
fn a_handler_that_comes_later_and_passes_on_what_is_not_its_own_gets_along() {
    let name = "a_handler_that_comes_later_and_passes_on_what_is_not_its_own_gets_along";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let status = forked(|| {
        let Some(region) = region(open(&path, false), &pages(16)) else { return 200 };
        // SAFETY: as in `install`.
        unsafe {
            let (mut action, mut old): (libc::sigaction, libc::sigaction) = mem::zeroed();
            action.sa_sigaction = later as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, &mut old);
            BEFORE.store(old.sa_sigaction, Ordering::SeqCst);
        }
        for page in 0..64 {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        let other = foreign(libc::SIGBUS);
        SEEN.store(other as usize, Ordering::SeqCst);
        // SAFETY: faults, and the handler ends the process.
        unsafe { other.read_volatile() };
        2
    });
    assert!(status == 64 || status == 200, "{status}");
}

#[test]
fn a_forked_child_has_no_region_and_the_parent_goes_on() {
    let name = "a_forked_child_has_no_region_and_the_parent_goes_on";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let Some(region) = region(open(&path, true), &shared(16).faults(faults)) else { return };
        let thread_queue = region.register_thread().unwrap();
        for page in 0..32 {
            write(&region, page * PAGE_BYTES, 7);
        }
        assert_eq!(
            forked(|| {
                read(&region, 0);
                0
            }),
            -libc::SIGSEGV
        );
        let status = forked(|| {
            let error = region.sync().unwrap_err().to_string();
            assert!(error.contains("belongs to the process"), "{error}");
            // One of its own it may have.
            let own = Region::open(open(&path, false), &pages(16)).unwrap();
            let _registered = own.register_thread().unwrap();
            assert_eq!(read(&own, 100 * PAGE_BYTES), byte_at(100 * PAGE_BYTES));
            0
        });
        assert_eq!(status, 0);
        for page in 0..32 {
            assert_eq!(read(&region, page * PAGE_BYTES), 7);
        }
        drop(thread_queue);
        // A child that drops what it inherited harms nobody.
        let mut region = Some(region);
        assert_eq!(
            forked(|| {
                region.take();
                0
            }),
            0
        );
        let region = region.unwrap();
        read(&region, 64 * PAGE_BYTES);
        region.close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[31 * PAGE_BYTES], 7);
        std::fs::write(&path, common::pattern(BYTES)).unwrap();
    }
}

#[test]
fn a_region_that_is_unmapped_while_others_fault_ends_them_by_a_signal_and_never_hangs() {
    let name = "a_region_that_is_unmapped_while_others_fault_ends_them_by_a_signal_and_never_hangs";
    if is_child() {
        let (_dir, path) = file(BYTES);
        let faults = if told() == "thread" { Faults::Thread } else { Faults::Inline };
        let device = Arc::new(emulated(&path, "latency=100us"));
        let Some(region) = region(device, &pages(16).faults(faults)) else { return };
        let at = region.as_ptr() as usize;
        for id in 0..4 {
            thread::spawn(move || {
                for round in 0.. {
                    let page = (round * 7 + id * 31) % 128;
                    // SAFETY: raises a signal once the region is gone, which is what is tested.
                    unsafe { ((at + page * PAGE_BYTES) as *const u8).read_volatile() };
                }
            });
        }
        thread::sleep(Duration::from_millis(50));
        drop(region);
        thread::sleep(Duration::from_secs(20));
        return;
    }
    for how in ["inline", "thread"] {
        dies(name, how, &[libc::SIGSEGV, libc::SIGBUS]);
    }
}

#[test]
fn a_thread_that_waits_for_a_page_of_a_dropped_region_is_ended_though_another_page_is_pinned() {
    let name =
        "a_thread_that_waits_for_a_page_of_a_dropped_region_is_ended_though_another_page_is_pinned";
    if is_child() {
        let (_dir, path) = file(BYTES);
        let faults = if told() == "thread" { Faults::Thread } else { Faults::Inline };
        let device = Arc::new(emulated(&path, "latency=300ms"));
        let options = pages(16).ahead(Ahead::Nothing).faults(faults);
        let Some(region) = region(device, &options) else { return };
        std::mem::forget(region.pin(0..1).unwrap());
        let at = region.as_ptr() as usize;
        thread::spawn(move || {
            for page in (50..128).cycle() {
                // SAFETY: raises a signal once the region is gone, which is what is tested.
                unsafe { ((at + page * PAGE_BYTES) as *const u8).read_volatile() };
            }
        });
        thread::sleep(Duration::from_millis(100));
        drop(region);
        thread::sleep(Duration::from_secs(20));
        return;
    }
    for how in ["inline", "thread"] {
        dies(name, how, &[libc::SIGSEGV]);
    }
}

#[test]
fn after_a_kill_in_the_middle_of_writing_back_each_page_is_old_or_new() {
    let name = "after_a_kill_in_the_middle_of_writing_back_each_page_is_old_or_new";
    if is_child() {
        let path = PathBuf::from(told());
        let Some(region) = region(open(&path, true), &shared(24)) else { return };
        let _registered = region.register_thread().unwrap();
        for round in 0u64.. {
            for page in 0..128 {
                let at = region.as_ptr() as usize + page * PAGE_BYTES;
                // SAFETY: within the region; a page at a time.
                unsafe { ptr::write_bytes(at as *mut u8, round as u8, PAGE_BYTES) };
            }
        }
    }
    let (_dir, path) = file(BYTES);
    std::fs::write(&path, vec![0; BYTES]).unwrap();
    for round in 0..5 {
        let mut child = started(name, path.to_str().unwrap());
        thread::sleep(Duration::from_millis(150 + round * 37));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = std::fs::read(&path).unwrap();
        assert_eq!(now.len(), BYTES);
        for (page, bytes) in now.chunks(PAGE_BYTES).enumerate() {
            // The program itself may have been within the page; what it had not come to is one
            // round older.
            let first = bytes[0];
            let turn = bytes.iter().position(|byte| *byte != first).unwrap_or(PAGE_BYTES);
            let rest = bytes.get(turn).copied().unwrap_or(first);
            assert!(bytes[turn..].iter().all(|byte| *byte == rest), "page {page}");
        }
    }
}

#[test]
fn without_rights_faults_inline_work_and_those_by_a_thread_say_what_is_missing() {
    let name = "without_rights_faults_inline_work_and_those_by_a_thread_say_what_is_missing";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let data = open(&path, false);
    // SAFETY: asks for a number.
    if unsafe { libc::getuid() } == 0 {
        // SAFETY: gives rights up for good, in this process of one thread.
        assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
        // SAFETY: what a change of user took away: /proc/self is readable again.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    }
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let allowed = allowed.is_ok_and(|text| text.trim() == "1");
    match Region::open(data.clone(), &pages(16)) {
        Ok(region) => {
            let _registered = region.register_thread().unwrap();
            assert_eq!(read(&region, 70 * PAGE_BYTES), byte_at(70 * PAGE_BYTES));
        }
        Err(error) => assert!(error.to_string().contains("userfaultfd"), "{error}"),
    }
    match Region::open(data, &pages(16).faults(Faults::Thread)) {
        Ok(_) => assert!(allowed || std::fs::File::open("/dev/userfaultfd").is_ok()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("userfaultfd") && !text.contains('\n'), "{text}");
            assert!(text.contains("handle faults inline"), "{text}");
        }
    }
}

#[test]
fn where_userfaultfd_is_forbidden_one_line_says_so_and_mmap_comes_only_when_asked_for() {
    let name = "where_userfaultfd_is_forbidden_one_line_says_so_and_mmap_comes_only_when_asked_for";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    assert!(forbid(&[libc::SYS_userfaultfd], libc::EPERM));
    let device = std::path::Path::new("/dev/userfaultfd");
    if device.exists() && std::fs::File::options().read(true).write(true).open(device).is_ok() {
        // SAFETY: gives rights up for good, in this process of one thread.
        assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    }
    let data = open(&path, false);
    let error = Region::open(data.clone(), &pages(16)).err().unwrap().to_string();
    assert!(error.contains("userfaultfd is not allowed here"), "{error}");
    let region = Region::open(data, &pages(16).otherwise(Otherwise::Map)).unwrap();
    assert_eq!((region.method(), region.len()), ("mmap", BYTES));
    let _registered = region.register_thread().unwrap();
    for at in (0..BYTES).step_by(1000) {
        assert_eq!(read(&region, at), byte_at(at));
    }
    let _pin = region.pin(0..BYTES).unwrap();
    assert!(!region.hint(5));
}

#[test]
fn a_region_that_cannot_be_entered_is_mapped_where_that_is_allowed() {
    let name = "a_region_that_cannot_be_entered_is_mapped_where_that_is_allowed";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let Some(first) = region(open(&path, false), &pages(16)) else { return };
    // The handler of SIGBUS knows so many regions at once.
    let more = || Region::open(open(&path, false), &pages(16));
    let regions: Vec<Region> = (1..64).map(|_| more().unwrap()).collect();
    assert!(more().err().unwrap().to_string().contains("too many regions"));
    let budget = Budget::new(64 * PAGE_BYTES).unwrap();
    for options in [pages(16), Options::within(&budget)] {
        let mapped = Region::open(open(&path, false), &options.otherwise(Otherwise::Map)).unwrap();
        assert!(mapped.why_mapped().unwrap().contains("too many regions"));
        assert_eq!(read(&mapped, BYTES - 1), byte_at(BYTES - 1));
    }
    drop((first, regions));
    assert_eq!(more().unwrap().why_mapped(), None);
}
