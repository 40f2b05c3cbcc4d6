// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files as slices, by a region or by the kernel.
#![allow(unsafe_code)]

mod common;

use std::fs::File;

use common::{byte_at, emulated, file, open, pages, pattern};
use dwell_pager::{Advice, Backing, Mmap, MmapMut, MmapOptions, PAGE_BYTES, Region, map};

const BYTES: usize = 300 * PAGE_BYTES + 777;

/// Whether regions can be had here.
fn has_regions(path: &std::path::Path) -> bool {
    common::region(open(path, false), &pages(64)).is_some()
}

#[test]
fn a_small_file_is_mapped_by_the_kernel_and_says_why() {
    let (_dir, path) = file(BYTES);
    // SAFETY: nobody changes the file.
    let mapped = unsafe { map(&path).unwrap() };
    assert!(*mapped == pattern(BYTES)[..]);
    assert!(mapped.region().why_mapped().unwrap().contains("fits"));
    assert_eq!(mapped.region().method(), "mmap");
    mapped.advise(Advice::Sequential).unwrap();
    // SAFETY: as above.
    assert!(unsafe { map(path.with_file_name("missing")) }.is_err());
}

#[test]
fn a_region_behind_a_slice_keeps_to_its_budget() {
    let (_dir, path) = file(BYTES);
    if !has_regions(&path) {
        return;
    }
    let options = MmapOptions::new().budget_bytes(32 * PAGE_BYTES).backing(Backing::Region);
    // SAFETY: nobody changes the file.
    let mapped = unsafe { options.map(File::open(&path).unwrap()).unwrap() };
    assert!(*mapped == pattern(BYTES)[..]);
    assert_eq!(mapped.region().why_mapped(), None);
    assert!(mapped.region().statistics().peak <= 32, "{:?}", mapped.region().statistics());
    assert!(mapped.hint(5 * PAGE_BYTES) && !mapped.hint(BYTES));
}

#[test]
fn a_part_of_a_file_is_a_slice_of_any_plain_type() {
    let (_dir, path) = file(BYTES);
    if !has_regions(&path) {
        return;
    }
    for backing in [Backing::Region, Backing::Kernel] {
        let options = MmapOptions::new().budget_bytes(64 * PAGE_BYTES).backing(backing);
        let part = options.clone().offset(8 + PAGE_BYTES as u64).len(800);
        // SAFETY: nobody changes the file.
        let part = unsafe { part.populate().map_path(&path).unwrap() };
        let expected = &pattern(BYTES)[PAGE_BYTES + 8..][..800];
        assert_eq!(&part[..], expected);
        let numbers = part.as_slice_of::<u64>().unwrap();
        assert_eq!(numbers.len(), 100);
        assert_eq!(numbers[3].to_ne_bytes(), expected[24..32]);
        assert_eq!(part.as_slice_of::<[u8; 3]>().unwrap().len(), 266);
        // SAFETY: as above.
        let odd = unsafe { options.clone().offset(3).len(100).map_path(&path).unwrap() };
        assert!(odd.as_slice_of::<u16>().unwrap_err().to_string().contains("aligned"));
        // SAFETY: as above.
        let beyond = unsafe { options.clone().offset(5).len(BYTES).map_path(&path) };
        assert!(beyond.unwrap_err().to_string().contains("beyond"));
    }
}

#[test]
fn writes_reach_the_file_or_stay_a_copy() {
    for backing in [Backing::Region, Backing::Kernel] {
        let (_dir, path) = file(BYTES);
        if !has_regions(&path) {
            return;
        }
        let options = MmapOptions::new().budget_bytes(32 * PAGE_BYTES).backing(backing);
        let opened = File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: nobody else changes the file.
        let mut copy = unsafe { options.map_copy(&opened).unwrap() };
        copy[10] ^= 0xff;
        // SAFETY: as above.
        let mut mapped = unsafe { options.map_mut(&opened).unwrap() };
        for at in (0..BYTES).step_by(3 * PAGE_BYTES) {
            mapped[at] = 7;
        }
        mapped.as_mut_slice_of::<u32>().unwrap()[1] = 0x0102_0304;
        mapped.flush_range(0, PAGE_BYTES).unwrap();
        let read_only = mapped.make_read_only().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!((0..BYTES).step_by(3 * PAGE_BYTES).all(|at| bytes[at] == 7));
        assert_eq!(bytes[4..8], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(bytes[10], byte_at(10));
        assert!(read_only[..] == bytes[..]);
        // SAFETY: as above.
        let refused = unsafe { MmapMut::map_mut(File::open(&path).unwrap()) };
        assert!(refused.is_err());
        // SAFETY: as above.
        assert_eq!(unsafe { Mmap::map(&opened).unwrap() }.len(), BYTES);
    }
}

#[test]
fn auto_takes_a_region_where_no_descriptor_is_and_the_kernel_beside_a_page_cache() {
    let (_dir, path) = file(BYTES);
    if !has_regions(&path) {
        return;
    }
    let auto = pages(32).backing(Backing::Auto);
    let region = Region::open(emulated(&path, "latency=1us"), &auto).unwrap();
    assert_eq!(region.why_mapped(), None);
    let buffered = Region::open(open(&path, false), &auto).unwrap();
    assert!(buffered.why_mapped().unwrap().contains("page cache"));
    let kernel = pages(32).backing(Backing::Kernel);
    assert!(Region::open(emulated(&path, "latency=1us"), &kernel).is_err());
}
