// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program reads is what the source has and what the program wrote, whatever the budget.

mod common;

use std::sync::Arc;
use std::thread;

use common::{BOTH, Random, byte_at, emulated, file, open, pages, read, region, shared, write};
use dwell::File;
use dwell_pager::{Access, Ahead, Faults, Options, PAGE_BYTES, Region};

const BYTES: usize = 300 * PAGE_BYTES + 777;

fn reads_right(file: Arc<File>, options: &Options, threads: u64, registers: bool) {
    let Some(region) = region(file, options) else { return };
    assert_eq!(region.len(), BYTES);
    thread::scope(|scope| {
        for id in 0..threads {
            let region = &region;
            scope.spawn(move || {
                let _registered = registers.then(|| region.register_thread().unwrap());
                let mut random = Random(id + 1);
                for round in 0..3_000 {
                    let at = match round % 3 {
                        0 => random.below(BYTES),
                        1 => (round * 401 + id as usize * 7919) % BYTES,
                        _ => (round * 5 * PAGE_BYTES + id as usize) % BYTES,
                    };
                    assert_eq!(read(region, at), byte_at(at), "byte {at}");
                }
                for at in (0..BYTES).step_by(97) {
                    assert_eq!(read(region, at), byte_at(at), "byte {at}");
                }
            });
        }
    });
    // To the end of the last page there are zeros.
    // SAFETY: within the last page.
    let tail = unsafe { std::slice::from_raw_parts(region.as_ptr().add(BYTES), PAGE_BYTES - 777) };
    assert!(tail.iter().all(|byte| *byte == 0));
    let budget = options.budget_bytes / PAGE_BYTES;
    let statistics = region.statistics();
    assert!(statistics.faults > 0 && statistics.pages_read >= 301, "{statistics:?}");
    assert!(statistics.peak as usize <= budget, "{statistics:?}");
    assert_eq!(statistics.over_budget, 0);
}

#[test]
fn files_are_read_right_under_every_budget() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        for budget in [8, 16, 64, 200, 1000] {
            for (threads, registers) in [(1, true), (3, true), (2, false)] {
                // Each of several threads may need a few pages at once.
                if budget == 8 && threads > 1 {
                    continue;
                }
                let options = pages(budget).faults(faults);
                reads_right(open(&path, false), &options, threads, registers);
            }
        }
    }
}

#[test]
fn direct_reads_and_copied_pages_are_right() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        reads_right(open(&path, false), &pages(64).faults(faults).copies(true), 2, true);
        match dwell::Options::new().direct(true).open(&path) {
            Ok(file) => reads_right(Arc::new(file), &pages(64).faults(faults), 2, true),
            Err(error) => println!("SKIP: {error}"),
        }
    }
}

#[test]
fn emulated_devices_are_read_right() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        for (device, registers) in [
            ("z-nand", true),
            ("latency=20us", true),
            ("latency=20us", false),
            ("latency=500ns", true),
            ("latency=5us,short-every=3", true),
        ] {
            let file = Arc::new(emulated(&path, device));
            reads_right(file, &pages(48).faults(faults), 2, registers);
        }
    }
}

#[test]
fn without_reading_ahead_it_is_right_too_and_each_page_is_read_once() {
    let (_dir, path) = file(BYTES);
    let options = pages(400).ahead(Ahead::Nothing);
    let Some(region) = region(open(&path, false), &options) else { return };
    thread::scope(|scope| {
        for _ in 0..4 {
            let region = &region;
            scope.spawn(move || {
                let _registered = region.register_thread().unwrap();
                for at in (0..BYTES).step_by(PAGE_BYTES / 4) {
                    assert_eq!(read(region, at), byte_at(at));
                }
            });
        }
    });
    let statistics = region.statistics();
    assert_eq!((statistics.pages_read, statistics.requests), (301, 301), "{statistics:?}");
}

/// Random reads and writes of several threads, each on bytes of its own, against a model.
fn written_right(region: &Region, threads: usize) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|id| {
                scope.spawn(move || {
                    let _registered = region.register_thread().unwrap();
                    let mut random = Random(id as u64 + 77);
                    // Bytes of this thread: those whose number leaves its id.
                    let mut model: Vec<u8> = (id..BYTES).step_by(threads).map(byte_at).collect();
                    for round in 0..6_000 {
                        let mine = random.below(model.len());
                        let at = id + mine * threads;
                        if random.below(3) == 0 {
                            let byte = random.below(256) as u8;
                            write(region, at, byte);
                            model[mine] = byte;
                        } else {
                            assert_eq!(read(region, at), model[mine], "byte {at}, round {round}");
                        }
                        if round % 1500 == 1000 {
                            region.sync().unwrap();
                        }
                    }
                    model
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    (0..BYTES).map(|at| parts[at % threads][at / threads]).collect()
}

#[test]
fn writes_to_a_shared_region_are_read_back_and_reach_the_file() {
    for faults in BOTH {
        for (budget, threads) in [(16, 1), (40, 3), (400, 2)] {
            let (_dir, path) = file(BYTES);
            let options = shared(budget).faults(faults);
            let Some(region) = region(open(&path, true), &options) else { return };
            let model = written_right(&region, threads);
            let statistics = region.statistics();
            assert_eq!(statistics.write_errors, 0);
            assert!(statistics.written_back > 0, "{statistics:?}");
            assert_eq!(statistics.over_budget, 0, "{statistics:?}");
            region.close().unwrap();
            let now = std::fs::read(&path).unwrap();
            assert_eq!(now.len(), BYTES);
            let wrong = (0..BYTES).find(|at| now[*at] != model[*at]);
            assert_eq!(wrong, None, "{faults:?}, {budget} pages");
        }
    }
}

#[test]
fn a_shared_region_over_an_emulated_device_writes_through_its_queue() {
    let (_dir, path) = file(BYTES);
    let device = Arc::new(emulated(&path, "latency=20us,short-every=5"));
    let Some(region) = region(device, &shared(24)) else { return };
    let model = written_right(&region, 2);
    region.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn writes_to_a_private_region_never_reach_the_file() {
    for faults in BOTH {
        for spills in [true, false] {
            let (dir, path) = file(BYTES);
            let spill = spills.then(|| dir.path().to_owned());
            let options = pages(24).access(Access::Private { spill }).faults(faults);
            let Some(region) = region(open(&path, false), &options) else { return };
            let model = written_right(&region, 2);
            let wrong = (0..BYTES).find(|at| read(&region, *at) != model[*at]);
            assert_eq!(wrong, None, "{faults:?}");
            let statistics = region.statistics();
            // Without a spill file written pages stay, beyond the budget if need be.
            assert_eq!(statistics.over_budget == 0, spills, "{statistics:?}");
            drop(region);
            assert!(std::fs::read(&path).unwrap() == common::pattern(BYTES));
        }
    }
}

#[test]
fn threads_that_meet_on_one_page_read_it_once() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let device = Arc::new(emulated(&path, "latency=300us"));
        let options = pages(400).ahead(Ahead::Nothing).faults(faults);
        let Some(region) = region(device, &options) else { return };
        let barrier = std::sync::Barrier::new(8);
        for page in 0..20 {
            thread::scope(|scope| {
                for id in 0..8 {
                    let (region, barrier) = (&region, &barrier);
                    scope.spawn(move || {
                        let _registered = (id % 2 == 0).then(|| region.register_thread().unwrap());
                        barrier.wait();
                        let at = page * PAGE_BYTES + id;
                        assert_eq!(read(region, at), byte_at(at));
                    });
                }
            });
            assert_eq!(region.statistics().requests, page as u64 + 1);
        }
    }
}

#[test]
fn a_region_may_move_between_threads_and_end_on_another() {
    fn is_both<T: Send + Sync>() {}
    is_both::<Region>();
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, false), &pages(16)) else { return };
    thread::spawn(move || assert_eq!(read(&region, 5), byte_at(5))).join().unwrap();
}

#[test]
fn bad_options_are_refused_with_what_to_do() {
    let (dir, path) = file(BYTES);
    let refused = |file: Arc<File>, options: &Options, says: &str| {
        let error = Region::open(file, options).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(open(&path, false), &pages(7), "budget_bytes");
    refused(open(&path, false), &pages(64).depth(0), "depth");
    refused(open(&path, false), &shared(64), "open it for writing");
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    refused(open(&empty, false), &pages(64), "empty");
    let spill = Access::Private { spill: Some(dir.path().join("none")) };
    refused(open(&path, false), &pages(64).access(spill), "spill file");
    let Some(region) = region(open(&path, false), &pages(16).faults(Faults::Inline)) else {
        return;
    };
    assert!(region.prefault(0..BYTES + 1).is_err());
    assert!(region.pin(0..BYTES).err().unwrap().to_string().contains("pin less"));
    let _registered = region.register_thread().unwrap();
    assert!(region.register_thread().err().unwrap().to_string().contains("already"));
}

/// Each of two threads waits for a page that the other reads ahead.
#[test]
fn threads_that_wait_for_each_others_reads_go_on() {
    let (done, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for _ in 0..3 {
            let (_dir, path) = file(BYTES);
            let device = Arc::new(emulated(&path, "latency=4ms,jitter=60%,short-every=2"));
            let Some(region) = region(device, &pages(400)) else { break };
            let barrier = std::sync::Barrier::new(2);
            thread::scope(|scope| {
                for id in 0..2 {
                    let (region, barrier) = (&region, &barrier);
                    scope.spawn(move || {
                        let _registered = region.register_thread().unwrap();
                        for base in (0..288).step_by(32) {
                            let (mine, others) = (base + 16 * id, base + 16 * (1 - id));
                            for page in [mine, mine + 1, others + 3, others + 2] {
                                barrier.wait();
                                let at = page * PAGE_BYTES;
                                assert_eq!(read(region, at), byte_at(at));
                            }
                        }
                    });
                }
            });
        }
        done.send(()).unwrap();
    });
    let minute = std::time::Duration::from_secs(60);
    ended.recv_timeout(minute).expect("two threads wait for each other's reads for ever");
}
