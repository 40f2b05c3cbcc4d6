// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many pages one fault reads: from what is in memory beside the pages of earlier faults,
//! without a clock or a device.
//!
//! Pages are read in *granules*: runs of 2^n pages, aligned to their length. If accesses are local,
//! the granule beside a missing one (its buddy) is in memory more often than pages are in general.
//! Then larger granules save faults, requests and moves. If the buddy is there as often as any
//! page, larger granules read what nobody wants.

/// Largest granule, in pages: 2 MiB.
pub(crate) const MOST_PAGES: u32 = 512;
/// Faults that are judged together: by chance, fewer would look local.
const JUDGED: u32 = 128;
/// All, as a share.
const ALL: u32 = 256;
/// Pages of the buddy that are looked at. Some page of a long one is nearly always in memory.
const LOOKED_AT: u32 = 8;

/// What the faults of one thread show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locality {
    /// Pages of a granule, as a power of two.
    shift: u32,
    /// Faults since the granule was judged last, and their buddies' shares in memory, in all.
    faults: u32,
    beside: u32,
}

impl Locality {
    pub const fn new() -> Locality {
        Locality { shift: 0, faults: 0, beside: 0 }
    }

    /// Pages of a granule, at most `most`.
    pub fn pages(&self, most: u32) -> u32 {
        (1 << self.shift).min(most.max(1))
    }

    /// Which share of the granule beside that of a page, its buddy, is in memory, of 256: by some
    /// of its pages, evenly spaced.
    pub fn beside(&self, page: u32, is_there: impl Fn(u32) -> bool) -> u32 {
        let first = (page >> self.shift ^ 1) << self.shift;
        let count = LOOKED_AT.min(1 << self.shift);
        let pages = (0..count).map(|at| first + (at << self.shift) / count);
        pages.filter(|page| is_there(*page)).count() as u32 * ALL / count
    }

    /// A fault that no reading ahead expected. `beside` says which share of the buddy was in
    /// memory, `occupancy` which share of all pages is, both of 256.
    pub fn miss(&mut self, beside: u32, occupancy: u32, most: u32) {
        self.faults += 1;
        self.beside += beside;
        if self.faults < JUDGED {
            return;
        }
        let beside = self.beside / self.faults;
        (self.faults, self.beside) = (0, 0);
        // Of two granules that are both wanted, the first misses its buddy and the second finds it.
        // Where half of all pages are in memory, nothing can be told from that.
        let Some(room) = (ALL / 2).checked_sub(occupancy).filter(|room| *room > ALL / 16) else {
            return;
        };
        let (grows, shrinks) = (occupancy + room * 5 / 8, occupancy + room / 4);
        if beside > grows && 1 << self.shift < most {
            self.shift += 1;
        } else if beside < shrinks {
            self.shift = self.shift.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    const PAGES: u32 = 16_384;

    /// Plays accesses against a memory of a quarter of the pages, oldest out first; faults, pages
    /// read, and the granule at the end.
    fn play(accesses: impl Iterator<Item = u32>, most: u32) -> (u32, u32, u32) {
        let mut locality = Locality::new();
        let (mut there, mut order) = (HashSet::new(), VecDeque::new());
        let (mut faults, mut read) = (0, 0);
        for page in accesses {
            if there.contains(&page) {
                continue;
            }
            faults += 1;
            let occupancy = there.len() as u32 * ALL / PAGES;
            let beside = locality.beside(page, |page| there.contains(&page));
            locality.miss(beside, occupancy, most);
            let length = locality.pages(most);
            let first = page / length * length;
            for page in first..first + length {
                if there.insert(page) {
                    order.push_back(page);
                    read += 1;
                }
            }
            while there.len() as u32 > PAGES / 4 {
                there.remove(&order.pop_front().unwrap());
            }
        }
        (faults, read, locality.pages(most))
    }

    fn random(seed: u64) -> impl FnMut() -> u32 {
        let mut state = seed;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u32 % PAGES
        }
    }

    #[test]
    fn random_access_keeps_single_pages() {
        let mut next = random(1);
        let (faults, read, pages) = play((0..40_000).map(|_| next()), MOST_PAGES);
        assert!(pages <= 2 && read < faults * 5 / 4, "{faults} faults read {read}, {pages} pages");
    }

    #[test]
    fn pages_visited_in_clusters_are_read_in_clusters() {
        let mut next = random(2);
        // Clusters of 32 pages, in an order of their own within each.
        let accesses = (0..2_000).flat_map(|_| {
            let first = next() / 32 * 32;
            (0..32).map(move |step| first + step * 13 % 32)
        });
        let (faults, read, pages) = play(accesses, MOST_PAGES);
        assert!((16..=64).contains(&pages), "{pages} pages");
        assert!(
            faults < 2_000 * 32 / 4 && read < 2_000 * 32 * 5 / 4,
            "{faults} faults read {read}"
        );
    }

    #[test]
    fn a_granule_shrinks_when_clusters_end_and_never_grows_beyond_what_it_may() {
        let (mut next, mut then) = (random(3), random(4));
        let clusters = (0..1_000).flat_map(|_| {
            let first = next() / 32 * 32;
            (0..32).map(move |step| first + step * 13 % 32)
        });
        let (_, _, pages) = play(clusters.chain((0..40_000).map(|_| then())), MOST_PAGES);
        assert!(pages <= 2, "{pages} pages");
        let mut next = random(5);
        let all = (0..600).flat_map(|_| {
            let first = next() / 512 * 512;
            (0..512).map(move |step| first + step * 13 % 512)
        });
        assert_eq!(play(all, 8).2, 8);
    }
}
