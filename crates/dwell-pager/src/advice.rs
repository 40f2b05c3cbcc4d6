// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program says of ranges of its memory, and what of that is remembered.

use std::ops::Range;

/// Ranges remembered of each kind.
const RANGES: usize = 16;

/// What the program says of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: reading ahead follows what is seen.
    Normal,
    /// Read in order: reading ahead begins at the first fault and goes as far as it may.
    Sequential,
    /// Read in no order: nothing is read ahead but what hints name.
    Random,
    /// Wanted soon: read by the next faults while they wait, as far as the budget reaches.
    WillNeed,
    /// Not wanted any more: leaves memory now. What was written to a shared region is written back,
    /// to a private one lost.
    DontNeed,
}

impl Advice {
    /// The same, said to the kernel of a mapping of its own.
    pub(crate) fn of_kernel(self) -> libc::c_int {
        match self {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        }
    }
}

/// What was said of which pages, as far as later faults follow it.
#[derive(Debug, Default)]
pub(crate) struct Said {
    wanted: Ranges,
    sequential: Ranges,
    random: Ranges,
}

impl Said {
    /// Remembers what was said last of `pages`.
    pub fn note(&mut self, advice: Advice, pages: Range<u32>) {
        let pages = Pages { first: pages.start, end: pages.end };
        if advice == Advice::WillNeed {
            return self.wanted.note(pages);
        }
        self.sequential.forget(pages);
        self.random.forget(pages);
        match advice {
            Advice::Sequential => self.sequential.note(pages),
            Advice::Random => self.random.note(pages),
            _ => {}
        }
    }

    pub fn is_sequential(&self, page: u32) -> bool {
        self.sequential.has(page)
    }

    pub fn is_random(&self, page: u32) -> bool {
        self.random.has(page)
    }

    /// The next page that is wanted soon; each is named once.
    pub fn next_wanted(&mut self) -> Option<u32> {
        let range = self.wanted.0.iter_mut().find(|range| range.first < range.end)?;
        range.first += 1;
        Some(range.first - 1)
    }
}

/// Pages from the first to before the end.
#[derive(Clone, Copy, Debug, Default)]
struct Pages {
    first: u32,
    end: u32,
}

#[derive(Debug, Default)]
struct Ranges([Pages; RANGES]);

impl Ranges {
    fn has(&self, page: u32) -> bool {
        self.0.iter().any(|range| (range.first..range.end).contains(&page))
    }

    /// Adds a range, in place of the first where there is no room.
    fn note(&mut self, pages: Pages) {
        let free = self.0.iter().position(|range| range.first >= range.end);
        self.0[free.unwrap_or(0)] = pages;
    }

    /// Takes pages out of all ranges.
    fn forget(&mut self, pages: Pages) {
        for at in 0..RANGES {
            let range = self.0[at];
            if range.first >= pages.end || range.end <= pages.first {
                continue;
            }
            let after = Pages { first: pages.end.min(range.end), end: range.end };
            self.0[at].end = pages.first.max(range.first);
            if after.first < after.end {
                self.note(after);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_advice_for_a_page_counts() {
        let mut said = Said::default();
        said.note(Advice::Sequential, 0..100);
        said.note(Advice::Random, 40..60);
        let of = |said: &Said, page| (said.is_sequential(page), said.is_random(page));
        assert_eq!([39, 40, 59, 60].map(|page| of(&said, page).0), [true, false, false, true]);
        assert_eq!([39, 40, 59, 60].map(|page| of(&said, page).1), [false, true, true, false]);
        said.note(Advice::Normal, 50..200);
        assert_eq!(of(&said, 45), (false, true));
        assert_eq!(of(&said, 55), (false, false));
        assert_eq!((of(&said, 99), of(&said, 0)), ((false, false), (true, false)));
    }

    #[test]
    fn pages_wanted_soon_are_named_once_and_range_by_range() {
        let mut said = Said::default();
        said.note(Advice::WillNeed, 7..9);
        said.note(Advice::WillNeed, 3..4);
        let all: Vec<u32> = std::iter::from_fn(|| said.next_wanted()).collect();
        assert_eq!(all, [7, 8, 3]);
        assert!(!said.is_sequential(7) && !said.is_random(7));
    }

    #[test]
    fn without_room_the_first_range_gives_way() {
        let mut said = Said::default();
        for at in 0..=RANGES as u32 {
            said.note(Advice::Random, at * 10..at * 10 + 5);
        }
        assert!(!said.is_random(0) && said.is_random(10) && said.is_random(RANGES as u32 * 10));
    }
}
