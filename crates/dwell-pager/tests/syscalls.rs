// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls on memory of a region: pinned, brought in before, or absent; and what is said of
//! ranges.
#![allow(unsafe_code)]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use common::{BOTH, Random, byte_at, file, open, pages, read, region, shared};
use dwell_pager::{Access, Advice, Ahead, Faults, Options, PAGE_BYTES, Region};

const BYTES: usize = 256 * PAGE_BYTES;

/// Writes bytes of the region to a file by one system call: what it returned, or the error number.
fn written_from(region: &Region, at: usize, bytes: usize, into: &File) -> Result<usize, i32> {
    // SAFETY: within the region.
    let done = unsafe { libc::write(into.as_raw_fd(), region.as_ptr().add(at).cast(), bytes) };
    usize::try_from(done).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

#[test]
fn inline_an_absent_page_is_efault_and_a_pinned_or_prefaulted_one_is_not() {
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, false), &pages(32).ahead(Ahead::Nothing)) else { return };
    let mut sink = tempfile::tempfile().unwrap();
    assert_eq!(written_from(&region, 0, 100, &sink), Err(libc::EFAULT));
    let range = 10 * PAGE_BYTES + 5..18 * PAGE_BYTES;
    let pin = region.pin(range.clone()).unwrap();
    // A storm of other pages does not drive pinned ones out.
    let mut random = Random(3);
    for _ in 0..2_000 {
        let at = random.below(BYTES);
        assert_eq!(read(&region, at), byte_at(at));
    }
    assert_eq!(written_from(&region, range.start, range.len(), &sink), Ok(range.len()));
    std::io::Seek::rewind(&mut sink).unwrap();
    let mut copy = Vec::new();
    sink.read_to_end(&mut copy).unwrap();
    assert!(copy.iter().enumerate().all(|(at, byte)| *byte == byte_at(range.start + at)));
    drop(pin);
    region.prefault(100 * PAGE_BYTES..104 * PAGE_BYTES).unwrap();
    assert_eq!(written_from(&region, 100 * PAGE_BYTES, 4 * PAGE_BYTES, &sink), Ok(4 * PAGE_BYTES));
}

#[test]
fn by_a_thread_system_calls_touch_absent_pages() {
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, false), &pages(16).faults(Faults::Thread)) else {
        return;
    };
    let mut sink = tempfile::tempfile().unwrap();
    assert_eq!(written_from(&region, 0, BYTES, &sink), Ok(BYTES));
    std::io::Seek::rewind(&mut sink).unwrap();
    let mut copy = Vec::new();
    sink.read_to_end(&mut copy).unwrap();
    assert!(copy == common::pattern(BYTES));
}

#[test]
fn a_system_call_may_write_to_pinned_pages_of_a_shared_region() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let Some(region) = region(open(&path, true), &shared(16).faults(faults)) else { return };
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(&[0xa5; 3 * PAGE_BYTES]).unwrap();
        std::io::Seek::rewind(&mut source).unwrap();
        let at = 40 * PAGE_BYTES + 9;
        {
            let _pin = region.pin(at..at + 3 * PAGE_BYTES).unwrap();
            // SAFETY: within the region, which may be written to.
            let done = unsafe {
                libc::read(source.as_raw_fd(), region.as_ptr().add(at).cast(), 3 * PAGE_BYTES)
            };
            assert_eq!(done, 3 * PAGE_BYTES as isize);
        }
        for other in 0..256 {
            read(&region, other * PAGE_BYTES);
        }
        region.sync_range(at..at + 3 * PAGE_BYTES).unwrap();
        let now = std::fs::read(&path).unwrap();
        assert!(now[at..at + 3 * PAGE_BYTES].iter().all(|byte| *byte == 0xa5));
        assert_eq!(now[at - 1], byte_at(at - 1));
        assert_eq!(now[at + 3 * PAGE_BYTES], byte_at(at + 3 * PAGE_BYTES));
    }
}

#[test]
fn a_whole_file_can_be_pinned_with_a_budget_as_large_and_else_the_error_names_the_bytes() {
    // Also one that ends within a page.
    for bytes in [BYTES, BYTES - 100, 3 * PAGE_BYTES + 1] {
        let (_dir, path) = file(bytes);
        for faults in BOTH {
            let options = Options::new(bytes.max(8 * PAGE_BYTES)).faults(faults);
            let Some(region) = region(open(&path, true), &options.access(Access::Shared)) else {
                return;
            };
            let _registered = region.register_thread().unwrap();
            let part = region.pin(PAGE_BYTES..2 * PAGE_BYTES).unwrap();
            let all = region.pin(0..bytes).unwrap();
            // Pages that are pinned already take no more of the budget.
            let again = region.pin(0..bytes).unwrap();
            drop((part, again));
            region.sync().unwrap();
            let sink = tempfile::tempfile().unwrap();
            assert_eq!(written_from(&region, 0, bytes, &sink), Ok(bytes));
            assert_eq!(region.statistics().over_budget, 0);
            drop(all);
            // All of it may leave again.
            region.advise(0..bytes, Advice::DontNeed).unwrap();
            assert_eq!(read(&region, bytes - 1), byte_at(bytes - 1));
        }
    }
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, false), &pages(100)) else { return };
    let error = region.pin(0..BYTES).err().unwrap().to_string();
    assert!(error.contains(&format!("a budget of {BYTES} bytes")), "{error}");
    let _most = region.pin(0..96 * PAGE_BYTES).unwrap();
    let error = region.pin(0..97 * PAGE_BYTES).err().unwrap().to_string();
    assert!(error.contains(&format!("a budget of {} bytes", 101 * PAGE_BYTES)), "{error}");
    // Others still come and go.
    for page in 0..256 {
        assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
    }
    assert_eq!(region.statistics().over_budget, 0);
}

#[test]
fn a_sync_writes_what_was_written_since_the_last_one_and_nothing_else() {
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, true), &shared(256)) else { return };
    for page in [3, 4, 5, 100] {
        common::write(&region, page * PAGE_BYTES + 1, 1);
    }
    for page in 120..140 {
        read(&region, page * PAGE_BYTES);
    }
    region.sync_range(0..50 * PAGE_BYTES).unwrap();
    assert_eq!(region.statistics().written_back, 3);
    region.sync().unwrap();
    assert_eq!(region.statistics().written_back, 4);
    region.sync().unwrap();
    assert_eq!(region.statistics().written_back, 4);
    common::write(&region, 4 * PAGE_BYTES, 9);
    region.sync().unwrap();
    assert_eq!(region.statistics().written_back, 5);
    assert_eq!(std::fs::read(&path).unwrap()[4 * PAGE_BYTES], 9);
}

#[test]
fn advice_is_followed() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let Some(region) = region(open(&path, false), &pages(128).faults(faults)) else { return };
        let _registered = region.register_thread().unwrap();
        // Random: the page alone.
        region.advise(0..BYTES, Advice::Random).unwrap();
        for page in 0..20 {
            read(&region, page * PAGE_BYTES);
        }
        assert_eq!(region.statistics().prefetched, 0);
        // Sequential: far ahead from the first fault on.
        region.advise(0..BYTES, Advice::Sequential).unwrap();
        read(&region, 100 * PAGE_BYTES);
        read(&region, 101 * PAGE_BYTES);
        let statistics = region.statistics();
        assert!(statistics.prefetched >= 16, "{faults:?}: {statistics:?}");
        // Not needed: gone, and read again.
        region.advise(0..BYTES, Advice::Normal).unwrap();
        let before = region.statistics().faults;
        region.advise(0..20 * PAGE_BYTES, Advice::DontNeed).unwrap();
        assert_eq!(read(&region, 3 * PAGE_BYTES), byte_at(3 * PAGE_BYTES));
        assert!(region.statistics().faults > before);
        // Wanted soon: there when it is touched.
        region.advise(200 * PAGE_BYTES..216 * PAGE_BYTES, Advice::WillNeed).unwrap();
        for page in (20..60).chain(200..216) {
            assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
        }
    }
}

#[test]
fn hinted_pages_are_there_before_they_are_touched() {
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let file = std::sync::Arc::new(common::emulated(&path, "latency=50us"));
        let options = pages(64).ahead(Ahead::Nothing).faults(faults);
        let Some(region) = region(file, &options) else { return };
        let _registered = region.register_thread().unwrap();
        let mut random = Random(11);
        let order: Vec<usize> = (0..2_000).map(|_| random.below(BYTES)).collect();
        for (at, offset) in order.iter().enumerate() {
            if let Some(next) = order.get(at + 16) {
                region.hint(*next);
            }
            assert_eq!(read(&region, *offset), byte_at(*offset));
        }
        let statistics = region.statistics();
        assert!(statistics.hints > 1_000, "{faults:?}: {statistics:?}");
        assert!(
            statistics.prefetched_used * 2 > statistics.pages_read,
            "{faults:?}: {statistics:?}"
        );
        assert!(statistics.faults < 1_500, "{faults:?}: {statistics:?}");
        if faults == Faults::Inline {
            assert!(statistics.stolen_ns > 0);
        }
    }
}

#[test]
fn reading_in_order_takes_few_faults_and_a_stride_seldom_waits_for_a_read_of_its_own() {
    let (_dir, path) = file(4 * BYTES);
    for faults in BOTH {
        for stride in [1, 3, 7] {
            let file = std::sync::Arc::new(common::emulated(&path, "latency=10us"));
            let Some(region) = region(file, &pages(256).faults(faults)) else { return };
            let _registered = region.register_thread().unwrap();
            let count = 1024 / stride;
            for page in (0..1024).step_by(stride) {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
            let statistics = region.statistics();
            let awaited = statistics.reads_awaited;
            assert!(awaited < count as u64 / 8, "{faults:?}, stride {stride}: {statistics:?}");
            // In order, many pages are one request. With a stride, each that is not there yet when
            // it is touched is a fault, however early it was asked for.
            if stride == 1 {
                assert!(statistics.faults < count as u64 / 8, "{faults:?}: {statistics:?}");
            }
        }
    }
}
