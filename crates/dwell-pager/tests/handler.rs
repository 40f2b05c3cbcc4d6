// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a handler may not do: allocate; and whose pages and whose waits give way.
#![allow(unsafe_code)]

mod common;
#[path = "../../dwell/tests/common/counting.rs"]
mod counting;

use std::sync::Arc;

use common::{Random, byte_at, emulated, file, open, pages, read, region, shared, write};
use counting::allocations;
use dwell_pager::{Ahead, Board, PAGE_BYTES};

const BYTES: usize = 256 * PAGE_BYTES;

#[test]
fn a_fault_allocates_nothing_in_any_way_it_may_go() {
    let (_dir, path) = file(BYTES);
    let direct = dwell::Options::new().direct(true).open(&path).ok();
    let sources = [
        ("file", Some(open(&path, true)), true),
        ("file, unregistered", Some(open(&path, true)), false),
        ("direct", direct.map(Arc::new), false),
        ("emulated", Some(Arc::new(emulated(&path, "latency=20us,short-every=7"))), true),
        ("emulated, unregistered", Some(Arc::new(emulated(&path, "latency=20us"))), false),
    ];
    for (name, source, registers) in sources {
        let Some(source) = source else { continue };
        let writes = name == "file" || name == "emulated";
        let options = if writes { shared(24) } else { pages(24) };
        let Some(region) = region(source, &options) else { return };
        let _registered = registers.then(|| region.register_thread().unwrap());
        let mut random = Random(9);
        let before = allocations();
        for round in 0..4_000 {
            let at = if round % 2 == 0 { random.below(BYTES) } else { round * PAGE_BYTES % BYTES };
            region.hint(random.below(BYTES));
            if writes && round % 5 == 0 {
                write(&region, at, byte_at(at));
            } else {
                assert_eq!(read(&region, at), byte_at(at));
            }
        }
        assert_eq!(allocations() - before, 0, "{name}");
        assert!(region.statistics().faults > 500, "{name}");
    }
}

#[test]
fn a_page_that_is_still_in_use_gets_its_second_chance_without_the_device() {
    let (_dir, path) = file(BYTES);
    let options = pages(64).ahead(Ahead::Nothing);
    let Some(region) = region(open(&path, false), &options) else { return };
    for round in 0..2_000 {
        // One page again and again, among all the others in turn.
        assert_eq!(read(&region, 0), byte_at(0));
        let at = (1 + round % 255) * PAGE_BYTES;
        assert_eq!(read(&region, at), byte_at(at));
    }
    let statistics = region.statistics();
    let of_the_others = 2_000;
    assert!(statistics.second_chances > 10, "{statistics:?}");
    assert!(statistics.pages_read <= of_the_others + 5, "{statistics:?}");
}

#[test]
fn many_hints_are_followed_without_a_fault() {
    let (_dir, path) = file(BYTES);
    let device = Arc::new(emulated(&path, "latency=20us"));
    let Some(region) = region(device, &pages(64).ahead(Ahead::Nothing)) else { return };
    let hint = |pages: std::ops::Range<usize>| {
        pages.for_each(|page| assert!(region.hint(page * PAGE_BYTES)));
        region.statistics()
    };
    // A thread without a queue leaves them to the faults of others.
    assert_eq!(hint(0..32).hints, 0);
    let _registered = region.register_thread().unwrap();
    let statistics = hint(32..64);
    assert_eq!((statistics.hints, statistics.faults), (64, 0), "{statistics:?}");
    assert!(statistics.prefetched > 0, "{statistics:?}");
    for page in 0..64 {
        assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
    }
    for page in 64..128 {
        assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
    }
    // Pages that are still in memory beside the region come back by a hint as well.
    let before = region.statistics();
    let after = hint(64..96);
    assert!(after.second_chances > before.second_chances, "{after:?}");
    assert_eq!(after.faults, before.faults);
}

#[test]
fn a_thread_gives_the_cpu_away_while_one_of_higher_priority_wants_one() {
    let (dir, path) = file(BYTES);
    let board = Board::shared(&dir.path().join("board")).unwrap();
    // So slow that no request is over before its thread has parked, on a machine beside load too.
    let device = Arc::new(emulated(&path, "latency=100ms"));
    let options = pages(64).ahead(Ahead::Nothing).board(board);
    let Some(region) = region(device, &options) else { return };
    let thread_queue = region.register_thread().unwrap();
    thread_queue.set_nice(5);
    let touch = |pages: std::ops::Range<usize>| {
        for page in pages {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
    };
    touch(0..4);
    assert_eq!(region.statistics().sacrificed, 0);
    // More threads than CPUs, all of higher priority.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let ready = std::sync::Barrier::new(cpus + 2);
    std::thread::scope(|scope| {
        for _ in 0..cpus + 1 {
            let (region, ended, ready) = (&region, &ended, &ready);
            scope.spawn(move || {
                let thread_queue = region.register_thread().unwrap();
                thread_queue.set_nice(-5);
                ready.wait();
                let _ = ended.lock().unwrap().recv();
            });
        }
        ready.wait();
        let parked_before = region.statistics().waits_parked;
        touch(50..54);
        let statistics = region.statistics();
        assert_eq!(statistics.sacrificed, 4, "{statistics:?}");
        assert!(statistics.waits_parked >= parked_before + 4, "{statistics:?}");
        // One of the highest priority gives way to nobody.
        thread_queue.set_nice(-20);
        touch(100..104);
        assert_eq!(region.statistics().sacrificed, 4);
        drop(end);
    });
    thread_queue.set_nice(5);
    touch(150..154);
    assert_eq!(region.statistics().sacrificed, 4);
}

#[test]
fn pages_of_a_high_priority_outlast_those_of_a_low_one() {
    let (_dir, path) = file(BYTES);
    let options = pages(96).ahead(Ahead::Nothing);
    let Some(region) = region(open(&path, false), &options) else { return };
    let thread_queue = region.register_thread().unwrap();
    thread_queue.set_nice(-10);
    for page in 0..32 {
        read(&region, page * PAGE_BYTES);
    }
    thread_queue.set_nice(10);
    for page in 32..256 {
        read(&region, page * PAGE_BYTES);
    }
    let before = region.statistics().faults;
    for page in 0..32 {
        assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
    }
    assert_eq!(region.statistics().faults, before);
}

#[test]
fn a_fault_that_is_served_by_a_call_fills_frames_for_the_next_ones() {
    let (_dir, path) = file(BYTES);
    let options = pages(192).ahead(Ahead::Nothing);
    let Some(region) = region(open(&path, false), &options) else { return };
    let mut filled = Vec::new();
    for page in 0..128 {
        assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        filled.push(region.statistics().resident);
    }
    filled.dedup();
    assert!(filled.len() <= 128 / 16 + 1, "{filled:?}");
    // Nor does it go beyond the budget.
    (128..256).for_each(|page| _ = read(&region, page * PAGE_BYTES));
    assert_eq!(region.statistics().peak, 192);
}
