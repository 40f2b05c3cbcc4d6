// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several regions within one budget.
#![allow(unsafe_code)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::alone::{is_child, started, told};
use common::{BOTH, Random, byte_at, file, open, read, region, write};
use dwell_pager::{Access, Budget, Options, PAGE_BYTES, Region};

const BYTES: usize = 512 * PAGE_BYTES;

/// Waits until something is so, which takes a few rounds of the budget.
fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < until, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn touch(region: &Region, pages: usize, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..pages {
        let at = random.below(BYTES);
        assert_eq!(read(region, at), byte_at(at));
    }
}

#[test]
fn a_region_alone_has_all_of_a_budget_and_two_share_it() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let budget = Budget::new(256 * PAGE_BYTES).unwrap();
        let options = Options::within(&budget).faults(faults);
        let Some(one) = region(open(&path, false), &options) else { return };
        touch(&one, 4_000, 1);
        // The machine may be short of memory meanwhile: then there is less for all.
        eventually("one region has all", || {
            touch(&one, 2_000, 2);
            one.statistics().resident as usize * 5 > budget.bytes_now() / PAGE_BYTES * 4
        });
        let other = Region::open(open(&path, false), &options).unwrap();
        eventually("two regions share", || {
            touch(&one, 500, 3);
            touch(&other, 500, 4);
            let (one, other) = (one.statistics().resident, other.statistics().resident);
            let all = (budget.bytes_now() / PAGE_BYTES) as u64;
            other * 3 > all && one + other <= all + 8
        });
        drop(one);
        eventually("the other has all", || {
            touch(&other, 2_000, 5);
            other.statistics().resident as usize * 5 > budget.bytes_now() / PAGE_BYTES * 4
        });
    }
}

#[test]
fn writes_survive_when_a_budget_is_taken_away() {
    let (dir, path) = file(BYTES);
    let second = dir.path().join("second");
    std::fs::copy(&path, &second).unwrap();
    for faults in BOTH {
        let budget = Budget::new(400 * PAGE_BYTES).unwrap();
        let options = Options::within(&budget).faults(faults);
        let writes = options.clone().access(Access::Shared);
        let Some(one) = region(open(&path, true), &writes) else { return };
        for page in 0..390 {
            write(&one, page * PAGE_BYTES + 7, page as u8);
        }
        let other = Region::open(open(&second, false), &options.nice(-20)).unwrap();
        eventually("the one with writes gives memory up", || {
            touch(&other, 500, 6);
            one.statistics().resident < 100
        });
        for page in 0..390 {
            assert_eq!(read(&one, page * PAGE_BYTES + 7), page as u8);
        }
        one.close().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!((0..390).all(|page| bytes[page * PAGE_BYTES + 7] == page as u8));
    }
}

#[test]
fn budgets_of_one_file_are_one_and_too_little_is_refused() {
    let (dir, path) = file(BYTES);
    let at = dir.path().join("budget");
    let one = Budget::shared(&at, 256 * PAGE_BYTES).unwrap();
    let other = Budget::shared(&at, 256 * PAGE_BYTES).unwrap();
    let Some(first) = region(open(&path, false), &Options::within(&one)) else { return };
    let second = Region::open(open(&path, false), &Options::within(&other)).unwrap();
    eventually("regions of two budgets over one file share", || {
        touch(&first, 500, 7);
        touch(&second, 500, 8);
        let held = first.statistics().resident + second.statistics().resident;
        second.statistics().resident > 40 && held <= 256 + 8
    });
    assert!(Budget::new(PAGE_BYTES).is_err());
    drop(Arc::clone(&one));
}

#[test]
fn a_file_that_is_no_budget_is_refused_and_stays_as_it_is() {
    let (dir, path) = file(3 * PAGE_BYTES + 5);
    let before = std::fs::read(&path).unwrap();
    let error = Budget::shared(&path, 256 * PAGE_BYTES).unwrap_err().to_string();
    assert!(error.contains("is no budget"), "{error}");
    assert!(dwell_pager::Board::shared(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    // Nor is a board a budget, which has the same length.
    let board = dir.path().join("board");
    dwell_pager::Board::shared(&board).unwrap();
    assert!(Budget::shared(&board, 256 * PAGE_BYTES).is_err());
}

#[test]
fn processes_of_other_pid_namespaces_share_a_budget() {
    let name = "processes_of_other_pid_namespaces_share_a_budget";
    if is_child() {
        let told = told();
        let (at, path) = told.split_once('\n').unwrap();
        let budget = Budget::shared(at, 256 * PAGE_BYTES).unwrap();
        let region = Region::open(open(Path::new(path), false), &Options::within(&budget)).unwrap();
        loop {
            touch(&region, 500, 9);
            println!("resident {}", region.statistics().resident);
        }
    }
    let (dir, path) = file(BYTES);
    let at = dir.path().join("budget");
    let budget = Budget::shared(&at, 256 * PAGE_BYTES).unwrap();
    let Some(region) = region(open(&path, false), &Options::within(&budget)) else { return };
    touch(&region, 2_000, 10);
    let exe = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new("unshare");
    child.args(["--pid", "--fork", "--kill-child"]).arg(exe);
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    child.env(common::alone::CHILD, format!("{}\n{}", at.display(), path.display()));
    let Ok(mut child) = child.stdout(std::process::Stdio::piped()).spawn() else {
        return println!("SKIP: no unshare");
    };
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut its = lines.filter_map(|line| line.ok()?.strip_prefix("resident ")?.parse().ok());
    let until = Instant::now() + Duration::from_secs(20);
    let shared = loop {
        touch(&region, 500, 11);
        let Some(other): Option<u64> = its.next() else {
            return println!("SKIP: no PID namespace");
        };
        let own = region.statistics().resident;
        if own > 40 && other > 40 && own + other <= 256 + 16 {
            break true;
        }
        if Instant::now() > until {
            break false;
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(shared, "the two have more than the budget, or one has nothing");
    eventually("the one that is left has all", || {
        touch(&region, 2_000, 12);
        region.statistics().resident as usize * 5 > budget.bytes_now() / PAGE_BYTES * 4
    });
}

#[test]
fn a_region_that_pins_gets_its_pages_from_others_until_all_have_pinned_the_budget() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let budget = Budget::new(256 * PAGE_BYTES).unwrap();
        let options = Options::within(&budget).faults(faults);
        let Some(idle) = region(open(&path, false), &options) else { return };
        let active = Region::open(open(&path, false), &options).unwrap();
        let all = || (budget.bytes_now() / PAGE_BYTES) as u64;
        eventually("the active region has most", || {
            touch(&active, 2_000, 13);
            active.statistics().resident * 4 > all() * 3
        });
        let pin = idle.pin(0..128 * PAGE_BYTES).unwrap();
        let faults = idle.statistics().faults;
        eventually("the other gives up what is pinned", || {
            touch(&active, 500, 14);
            idle.statistics().resident + active.statistics().resident <= all().max(256) + 8
        });
        for page in 0..128 {
            assert_eq!(read(&idle, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
        assert_eq!(idle.statistics().faults, faults);
        let refused =
            |region: &Region, pages| region.pin(0..pages * PAGE_BYTES).err().unwrap().to_string();
        let error = refused(&active, 160);
        assert!(error.contains("other regions need 540672 of them"), "{error}");
        let error = refused(&idle, 300);
        assert!(error.contains("the budget has 1048576 bytes"), "{error}");
        drop(pin);
        drop(active.pin(0..160 * PAGE_BYTES).unwrap());
    }
}

#[test]
fn a_region_with_the_least_that_any_has_pins_half_of_it() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let budget = Budget::new(16 * PAGE_BYTES).unwrap();
        let options = Options::within(&budget).faults(faults);
        let Some(one) = region(open(&path, false), &options) else { return };
        let other = Region::open(open(&path, false), &options).unwrap();
        let pins = [&one, &other].map(|region| region.pin(0..4 * PAGE_BYTES).unwrap());
        assert_eq!(read(&one, 99 * PAGE_BYTES), byte_at(99 * PAGE_BYTES));
        assert!(one.pin(0..5 * PAGE_BYTES).is_err());
        drop(pins);
    }
}

#[test]
fn a_stopped_process_does_not_keep_others_from_their_share() {
    let name = "a_stopped_process_does_not_keep_others_from_their_share";
    if is_child() {
        let told = told();
        let (at, path) = told.split_once('\n').unwrap();
        let budget = Budget::shared(at, 256 * PAGE_BYTES).unwrap();
        let options = Options::within(&budget);
        let Some(region) = region(open(Path::new(path), false), &options) else { return };
        touch(&region, 8, 15);
        println!("stopped");
        // SAFETY: stops this process, which is the test's own.
        unsafe { libc::raise(libc::SIGSTOP) };
        return;
    }
    let (dir, path) = file(BYTES);
    let at = dir.path().join("budget");
    let mut child = started(name, &format!("{}\n{}", at.display(), path.display()));
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_stopped = lines.map_while(Result::ok).any(|line| line.contains("stopped"));
    let shared = is_stopped.then(|| {
        let budget = Budget::shared(&at, 256 * PAGE_BYTES).unwrap();
        let region = Region::open(open(&path, false), &Options::within(&budget)).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        std::iter::repeat_with(|| touch(&region, 500, 16))
            .take_while(|()| Instant::now() < until)
            .any(|()| region.statistics().resident > 100)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(shared, Some(false), "the region of the process that runs has next to nothing");
}
