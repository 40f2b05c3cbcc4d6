// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was written to a region is not lost: not between syncs, not in a spill file, not in swap.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::alone::{is_child, succeeds};
use common::gate::gated;
use common::{byte_at, file, open, pages, read, region, shared, write};
use dwell::queue::Action;
use dwell_pager::{Access, Advice, Ahead, PAGE_BYTES};

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
