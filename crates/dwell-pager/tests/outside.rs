// SPDX-License-Identifier: MIT OR Apache-2.0
//! What others do to a region, its memory and its file: discard, unmap, remap, fork, truncate.
#![allow(unsafe_code)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::{ptr, thread};

use common::alone::{forked, is_child, succeeds};
use common::{BOTH, byte_at, file, open, pages, read, region, shared, write};
use dwell_pager::{Ahead, Faults, PAGE_BYTES};

const PAGES: usize = 64;
const BYTES: usize = PAGES * PAGE_BYTES;

#[test]
fn pages_that_the_program_discards_itself_are_read_again() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        for (budget, writes) in [(16, false), (PAGES, false), (16, true), (PAGES, true)] {
            let options = if writes { shared(budget) } else { pages(budget) };
            let options = options.faults(faults).ahead(Ahead::Nothing);
            let Some(region) = region(open(&path, writes), &options) else { return };
            for round in 0..3 {
                for page in 0..PAGES {
                    assert_eq!(
                        read(&region, page * PAGE_BYTES + round),
                        byte_at(page * PAGE_BYTES + round)
                    );
                }
                // SAFETY: pages of the region; nobody holds a reference to them.
                let rc =
                    unsafe { libc::madvise(region.as_ptr().cast(), BYTES, libc::MADV_DONTNEED) };
                assert_eq!(rc, 0);
            }
            let statistics = region.statistics();
            assert_eq!((statistics.over_budget, statistics.read_errors), (0, 0), "{statistics:?}");
        }
    }
}

#[test]
fn pages_that_are_discarded_while_they_are_written_back_hold_nobody_up() {
    let name = "pages_that_are_discarded_while_they_are_written_back_hold_nobody_up";
    if !is_child() {
        return succeeds(name, "-");
    }
    for faults in BOTH {
        let (_dir, path) = file(BYTES);
        let options = shared(PAGES).faults(faults).ahead(Ahead::Nothing);
        let Some(region) = region(open(&path, true), &options) else { return };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for page in 0..PAGES {
                        write(&region, page * PAGE_BYTES, 5);
                    }
                    // SAFETY: pages of the region; nobody holds a reference to them.
                    let rc = unsafe {
                        libc::madvise(region.as_ptr().cast(), BYTES, libc::MADV_DONTNEED)
                    };
                    assert_eq!(rc, 0);
                }
            });
            for _ in 0..500 {
                region.sync().unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        for page in 0..PAGES {
            let byte = read(&region, page * PAGE_BYTES);
            assert!(byte == 5 || byte == byte_at(page * PAGE_BYTES), "{faults:?}: {byte}");
            assert_eq!(read(&region, page * PAGE_BYTES + 1), byte_at(page * PAGE_BYTES + 1));
        }
    }
}

#[test]
fn the_rest_of_a_region_goes_on_when_the_program_unmaps_or_remaps_a_part() {
    let name = "the_rest_of_a_region_goes_on_when_the_program_unmaps_or_remaps_a_part";
    if !is_child() {
        return succeeds(name, "-");
    }
    for faults in BOTH {
        for moves in [false, true] {
            let (_dir, path) = file(BYTES);
            let options = shared(16).faults(faults).ahead(Ahead::Nothing);
            let Some(region) = region(open(&path, true), &options) else { return };
            for page in 0..12 {
                write(&region, page * PAGE_BYTES, 5);
            }
            region.sync().unwrap();
            let (part, bytes) = (region.as_ptr().wrapping_add(4 * PAGE_BYTES), 4 * PAGE_BYTES);
            // SAFETY: pages of the region that nobody touches any more, moved to a place of the
            // kernel's choice.
            unsafe {
                if moves {
                    let to = libc::mremap(
                        part.cast(),
                        bytes,
                        bytes,
                        libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
                    );
                    if to == libc::MAP_FAILED {
                        println!("mremap: {}", std::io::Error::last_os_error());
                    }
                } else {
                    assert_eq!(libc::munmap(part.cast(), bytes), 0);
                }
            }
            let rest = || (0..PAGES).filter(|page| !(4..8).contains(page));
            for round in 0..3u8 {
                for page in rest() {
                    write(&region, page * PAGE_BYTES, 10 + round);
                }
                for page in rest() {
                    assert_eq!(read(&region, page * PAGE_BYTES), 10 + round);
                }
                region.sync().unwrap();
            }
            let error = region.pin(5 * PAGE_BYTES..6 * PAGE_BYTES).is_err();
            assert!(error || moves, "{faults:?}");
            region.close().unwrap();
            let now = std::fs::read(&path).unwrap();
            assert!(rest().all(|page| now[page * PAGE_BYTES] == 12));
            assert!((4..8).all(|page| now[page * PAGE_BYTES] == 5));
        }
    }
}

#[test]
fn a_file_that_is_cut_short_under_a_region_refuses_pages_past_its_end_and_no_others() {
    let name = "a_file_that_is_cut_short_under_a_region_refuses_pages_past_its_end_and_no_others";
    if !is_child() {
        return succeeds(name, "-");
    }
    for faults in BOTH {
        let (_dir, path) = file(BYTES);
        let options = shared(PAGES).faults(faults).ahead(Ahead::Nothing);
        let Some(region) = region(open(&path, true), &options) else { return };
        write(&region, 40 * PAGE_BYTES, 1);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len((20 * PAGE_BYTES + 100) as u64).unwrap();
        for page in 0..20 {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        for page in [20, 21, PAGES - 1] {
            let error = region.prefault(page * PAGE_BYTES..page * PAGE_BYTES + 1).err();
            let error = error.unwrap_or_else(|| panic!("{faults:?}, page {page}"));
            assert!(
                error.to_string().contains(&format!("at byte {}", page * PAGE_BYTES)),
                "{error}"
            );
        }
        // What was written is written where it belongs, which makes the file longer again.
        region.sync().unwrap();
        let now = std::fs::read(&path).unwrap();
        assert_eq!((now.len(), now[40 * PAGE_BYTES]), (41 * PAGE_BYTES, 1));
        assert_eq!(now[20 * PAGE_BYTES + 99], byte_at(20 * PAGE_BYTES + 99));
        file.set_len(BYTES as u64).unwrap();
        // A page that could not be had is tried again by a call, and then by an access.
        region.prefault(21 * PAGE_BYTES..22 * PAGE_BYTES).unwrap();
        assert_eq!(read(&region, 21 * PAGE_BYTES), 0);
        if faults == Faults::Inline {
            file.set_len(0).unwrap();
            let status = forked_reader(&path);
            assert_eq!(status, -libc::SIGBUS);
        }
    }
}

/// How a process ends that reads past the end of a file which was longer when its region was
/// opened.
fn forked_reader(path: &std::path::Path) -> i32 {
    std::fs::write(path, vec![1; 4 * PAGE_BYTES]).unwrap();
    forked(|| {
        let Some(region) = region(open(path, false), &pages(8).ahead(Ahead::Nothing)) else {
            return -libc::SIGBUS;
        };
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(PAGE_BYTES as u64)
            .unwrap();
        assert_eq!(read(&region, 0), 1);
        read(&region, 3 * PAGE_BYTES);
        1
    })
}

#[test]
fn forks_beside_faults_and_write_back_lose_nothing_and_no_child_touches_the_file() {
    let name = "forks_beside_faults_and_write_back_lose_nothing_and_no_child_touches_the_file";
    if !is_child() {
        return succeeds(name, "-");
    }
    for faults in BOTH {
        let (_dir, path) = file(BYTES);
        let Some(region) = region(open(&path, true), &shared(16).faults(faults)) else { return };
        let region = std::sync::Arc::new(region);
        let over = AtomicBool::new(false);
        let last = thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|id| {
                    let (region, over) = (&region, &over);
                    scope.spawn(move || {
                        let _registered = (id == 0).then(|| region.register_thread().unwrap());
                        let mut last = [0u8; PAGES];
                        for round in 1.. {
                            for page in (id..PAGES).step_by(2) {
                                if round > 1 {
                                    assert_eq!(read(region, page * PAGE_BYTES), last[page]);
                                }
                                last[page] = round as u8;
                                write(region, page * PAGE_BYTES, round as u8);
                            }
                            if over.load(Ordering::SeqCst) {
                                return last;
                            }
                        }
                        last
                    })
                })
                .collect();
            for turn in 0..30 {
                // SAFETY: the child calls what a child may, and ends.
                match unsafe { libc::fork() } {
                    // SAFETY: as above; the region is not used after it is dropped.
                    0 => unsafe {
                        let refused = region.sync().is_err() && region.prefault(0..1).is_err();
                        // It drops what it has inherited, as one that returns from its main would.
                        ptr::drop_in_place(&raw const *region as *mut dwell_pager::Region);
                        libc::_exit(if refused { 0 } else { 9 });
                    },
                    child => {
                        let mut status = 0;
                        // SAFETY: a child of this process and a live integer.
                        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                        assert_eq!(status, 0, "turn {turn}");
                    }
                }
                if turn % 8 == 0 {
                    region.sync().unwrap();
                }
            }
            over.store(true, Ordering::SeqCst);
            let parts: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            (0..PAGES).map(|page| parts[page % 2][page]).collect::<Vec<u8>>()
        });
        std::sync::Arc::into_inner(region).unwrap().close().unwrap();
        let now = std::fs::read(&path).unwrap();
        assert!((0..PAGES).all(|page| now[page * PAGE_BYTES] == last[page]));
    }
}
