// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pages a process has when its recording begins: what the left-out part has touched.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Pages of one mapping beyond which nobody uses it as memory: Valgrind reserves some so large.
const MOST_PAGES: u64 = 1 << 24;
const PAGE_SHIFT: u32 = 12;
/// Bits of an entry of `/proc/PID/pagemap`: in memory, or swapped.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Ranges of pages that a process has, as first page and count, in rising order; none where the
/// kernel does not say.
pub(super) fn populated(pid: u32) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else { return Vec::new() };
    let mut ranges = Vec::new();
    for (first, last) in maps.lines().filter_map(mapping) {
        if last - first > MOST_PAGES {
            continue;
        }
        let mut entries = vec![0u8; (last - first) as usize * 8];
        let read = pagemap.read_at(&mut entries, first * 8).unwrap_or(0);
        let there = entries[..read].chunks_exact(8).map(|entry| {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            entry & (PRESENT | SWAPPED) != 0
        });
        add(&mut ranges, first, there);
    }
    ranges
}

/// A line of `/proc/PID/maps` as its first page and the one behind its last, where it can be read.
fn mapping(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    words.next()?.starts_with('r').then_some(())?;
    let page = |address| u64::from_str_radix(address, 16).ok().map(|at: u64| at >> PAGE_SHIFT);
    Some((page(from)?, page(to)?)).filter(|(first, last)| first < last)
}

fn add(ranges: &mut Vec<(u64, u64)>, first: u64, there: impl Iterator<Item = bool>) {
    for (page, _) in (first..).zip(there).filter(|(_, there)| *there) {
        match ranges.last_mut() {
            Some((start, count)) if *start + *count == page => *count += 1,
            _ => ranges.push((page, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_are_one_range() {
        let mut ranges = vec![(3, 2)];
        add(&mut ranges, 5, [true, false, true, true].into_iter());
        add(&mut ranges, 20, [false, true].into_iter());
        assert_eq!(ranges, [(3, 3), (7, 2), (21, 1)]);
    }

    #[test]
    fn mappings_that_can_be_read_are_found_in_the_kernels_list() {
        let line = "7f00-8f00 rw-p 00000000 00:00 0 [heap]".replace("f00", "f000");
        assert_eq!(mapping(&line), Some((0x7f, 0x8f)));
        assert_eq!(mapping("7f000-8f000 ---p 00000000 00:00 0"), None);
        assert_eq!(mapping("no mapping"), None);
    }

    #[test]
    fn a_page_that_this_process_has_touched_is_there() {
        let touched = vec![1u8; 1 << 16];
        let page = (touched.as_ptr() as u64 >> PAGE_SHIFT) + 2;
        let ranges = populated(std::process::id());
        if ranges.is_empty() {
            println!("SKIP: /proc/self/pagemap cannot be read");
            return;
        }
        assert!(ranges.iter().any(|(first, count)| (*first..first + count).contains(&page)));
        assert!(ranges.is_sorted());
    }
}
