// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one fault reads is a granule of any length, and changes no byte.

mod common;

use std::thread;

use common::{BOTH, Random, byte_at, emulated, file, open, pages, read, region, shared, write};
use dwell_pager::{Advice, Ahead, Granule, Options, PAGE_BYTES};

const BYTES: usize = 600 * PAGE_BYTES + 777;

fn granule(budget: usize, pages_each: usize) -> Options {
    pages(budget).granule(Granule::Bytes(pages_each * PAGE_BYTES))
}

#[test]
fn one_fault_reads_and_brings_in_a_whole_granule_by_one_request() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let options = granule(512, 16).faults(faults).ahead(Ahead::Nothing);
        let Some(region) = region(open(&path, false), &options) else { return };
        let _registered = region.register_thread().unwrap();
        // From its middle, and the last one, which the end of the file cuts short.
        assert_eq!(read(&region, 37 * PAGE_BYTES), byte_at(37 * PAGE_BYTES));
        assert_eq!(read(&region, BYTES - 1), byte_at(BYTES - 1));
        for page in (32..48).chain(592..601) {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        let statistics = region.statistics();
        let counted = (statistics.faults, statistics.requests, statistics.pages_read);
        assert_eq!(counted, (2, 2, 16 + 9), "{faults:?}: {statistics:?}");
    }
}

#[test]
fn granules_of_every_length_are_read_and_written_right_by_several_threads() {
    let (dir, _) = file(1);
    for faults in BOTH {
        for (length, budget) in [(2, 40), (8, 64), (64, 512), (512, 4096)] {
            let path = dir.path().join("written");
            std::fs::write(&path, common::pattern(BYTES)).unwrap();
            let options = shared(budget).faults(faults);
            let options = options.granule(Granule::Bytes(length * PAGE_BYTES));
            let Some(region) = region(open(&path, true), &options) else { return };
            thread::scope(|scope| {
                for id in 0..3usize {
                    let region = &region;
                    scope.spawn(move || {
                        // Every third thread is foreign to the region.
                        let _registered = (id != 2).then(|| region.register_thread().unwrap());
                        let mut random = Random(id as u64 + 1);
                        for round in 0..2_000 {
                            let at = random.below(BYTES / 3) * 3 + id;
                            if at >= BYTES {
                                continue;
                            }
                            match round % 2 {
                                0 => write(region, at, byte_at(at) ^ 0xff),
                                _ => {
                                    let byte = read(region, at);
                                    assert!(byte == byte_at(at) || byte == byte_at(at) ^ 0xff);
                                }
                            }
                        }
                    });
                }
            });
            region.sync().unwrap();
            let mut expected = common::pattern(BYTES);
            for id in 0..3usize {
                let mut random = Random(id as u64 + 1);
                for round in 0..2_000 {
                    let at = random.below(BYTES / 3) * 3 + id;
                    if at < BYTES && round % 2 == 0 {
                        expected[at] = byte_at(at) ^ 0xff;
                    }
                }
            }
            assert!(std::fs::read(&path).unwrap() == expected, "{faults:?}, {length} pages");
            let statistics = region.statistics();
            assert!(statistics.peak as usize <= budget.min(601), "{statistics:?}");
        }
    }
}

#[test]
fn pages_visited_in_clusters_make_granules_grow_and_random_advice_keeps_single_pages() {
    let (_dir, path) = file(8192 * PAGE_BYTES);
    let visits = |region: &dwell_pager::Region| {
        let _registered = region.register_thread().unwrap();
        let mut random = Random(3);
        for _ in 0..300 {
            let first = random.below(8192 / 32) * 32;
            // In no order.
            let mut order: Vec<usize> = (0..32).collect();
            for last in (1..32).rev() {
                order.swap(last, random.below(last + 1));
            }
            for step in order {
                let at = (first + step) * PAGE_BYTES;
                assert_eq!(read(region, at), byte_at(at));
            }
        }
        region.statistics()
    };
    let file = || emulated(&path, "latency=1us");
    let Some(grows) = region(file(), &pages(2048)) else { return };
    let grown = visits(&grows);
    let Some(stays) = region(file(), &pages(2048)) else { return };
    stays.advise(0..stays.len(), Advice::Random).unwrap();
    let single = visits(&stays);
    assert_eq!(single.requests, single.pages_read, "{single:?}");
    // A granule takes as many requests as its frames lie in rows, and one wait.
    assert!(grown.requests < single.requests, "{grown:?} {single:?}");
    assert!(grown.reads_awaited * 3 < single.reads_awaited, "{grown:?} {single:?}");
    assert!(grown.faults * 2 < single.faults, "{grown:?} {single:?}");
}

#[test]
fn a_page_is_read_although_one_beside_it_cannot_be() {
    for faults in BOTH {
        let (_dir, path) = file(64 * PAGE_BYTES);
        for ahead in [Ahead::Nothing, Ahead::UpTo(64)] {
            std::fs::write(&path, common::pattern(64 * PAGE_BYTES)).unwrap();
            let options = granule(256, 16).faults(faults).ahead(ahead);
            let Some(region) = region(open(&path, false), &options) else { return };
            let _registered = region.register_thread().unwrap();
            let short = std::fs::File::options().write(true).open(&path).unwrap();
            short.set_len(40 * PAGE_BYTES as u64).unwrap();
            for page in [34, 33, 39, 2, 35, 36, 37, 38] {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
            assert!(region.prefault(45 * PAGE_BYTES..46 * PAGE_BYTES).is_err());
            assert_eq!(read(&region, 32 * PAGE_BYTES), byte_at(32 * PAGE_BYTES));
        }
    }
}

#[test]
fn a_granule_that_is_none_is_refused() {
    let (_dir, path) = file(BYTES);
    for bytes in [0, 1, 4095, 3 * PAGE_BYTES, 4 << 20] {
        let options = pages(64).granule(Granule::Bytes(bytes));
        let told = dwell_pager::Region::open(open(&path, false), &options).err().unwrap();
        assert!(told.to_string().contains("granule"), "{told}");
    }
}

#[test]
fn the_last_fault_of_a_thread_tells_its_stages_in_their_order() {
    let (_dir, path) = file(BYTES);
    let options = pages(64).stages(true).ahead(Ahead::Nothing);
    let Some(region) = region(emulated(&path, "latency=20us"), &options) else { return };
    let thread_queue = region.register_thread().unwrap();
    assert_eq!(thread_queue.last_fault(), None);
    let before = dwell::clock::now();
    read(&region, 5 * PAGE_BYTES);
    let after = dwell::clock::now();
    let seen = thread_queue.last_fault().unwrap();
    let stages = [
        before,
        seen.entered,
        seen.looked_up,
        seen.framed,
        seen.requested,
        seen.arrived,
        seen.moved,
        seen.left,
        after,
    ];
    assert!(stages.is_sorted(), "{stages:?}");
    assert!(seen.arrived - seen.framed >= 20_000, "{seen:?}");
}
