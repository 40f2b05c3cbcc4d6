// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many pages one fault reads: from what is in memory beside the pages of earlier faults,
//! without a clock or a device.
//!
//! Pages are read in *granules*: runs of 2^n pages, aligned to their length. If accesses are local,
//! the granule beside a missing one (its buddy) is in memory more often than pages are in general.
//! Then larger granules save faults, requests and moves. If the buddy is there as often as any
//! page, larger granules read what nobody wants.
//!
//! That is a guess: where some part of a file is hot, buddies in it are there too. So some granules
//! are *samples*, whose pages come into the region one by one, when they are asked for. Granules
//! shrink if less than two thirds of what they read beside the missing pages are.

use std::ops::Range;

/// Largest granule, in pages: 2 MiB.
pub(crate) const MOST_PAGES: u32 = 512;
/// Faults that are judged together: by chance, fewer would look local.
const JUDGED: u32 = 128;
/// All, as a share.
const ALL: u32 = 256;
/// Pages of the buddy that are looked at. Some page of a long one is nearly always in memory.
const LOOKED_AT: u32 = 8;
/// One in so many of the faults that are judged together may read a sample.
const SAMPLE_ONE_IN: u32 = 8;
/// Samples between two judgements: so many, or those with so many pages.
const SAMPLES: usize = (JUDGED / SAMPLE_ONE_IN) as usize;
const SAMPLED_PAGES: u32 = 32;
/// Judgements for which a granule that was too long stays as it is, at most.
const MOST_PATIENCE: u32 = 64;

/// Granules whose pages were not brought in together, and the pages whose faults they were read by.
#[derive(Clone, Copy, Debug)]
struct Samples {
    granules: [(u32, u32, u32); SAMPLES],
    count: usize,
}

impl Samples {
    const NONE: Samples = Samples { granules: [(0, 0, 0); SAMPLES], count: 0 };

    fn all(&self) -> impl Iterator<Item = (Range<u32>, u32)> {
        self.granules[..self.count].iter().map(|(first, end, page)| (*first..*end, *page))
    }

    /// Pages that nobody had asked for when they were read.
    fn others(&self) -> impl Iterator<Item = u32> {
        self.all().flat_map(|(granule, page)| granule.filter(move |other| *other != page))
    }

    fn hold(&self, page: u32) -> bool {
        self.all().any(|(granule, _)| granule.contains(&page))
    }
}

/// What the faults of one thread show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Locality {
    /// Pages of a granule, as a power of two.
    shift: u32,
    /// Faults since the granule was judged last, and their buddies' shares in memory, in all.
    faults: u32,
    beside: u32,
    /// The samples since then, and those from the judgement before until then.
    samples: Samples,
    older: Samples,
    /// Judgements until the granule may grow, and how many there are after the next one that was
    /// too long.
    hold: u32,
    patience: u32,
}

impl Locality {
    pub const fn new() -> Locality {
        Locality {
            shift: 0,
            faults: 0,
            beside: 0,
            samples: Samples::NONE,
            older: Samples::NONE,
            hold: 0,
            patience: 1,
        }
    }

    /// Takes a granule that is read for `page` as a sample, if it is time for one.
    pub fn sample(&mut self, granule: Range<u32>, page: u32) {
        let samples = &mut self.samples;
        if self.faults.is_multiple_of(SAMPLE_ONE_IN)
            && samples.count < SAMPLES
            && samples.others().count() < SAMPLED_PAGES as usize
        {
            samples.granules[samples.count] = (granule.start, granule.end, page);
            samples.count += 1;
        }
    }

    /// Whether a page belongs to a sample: it comes in alone.
    pub fn is_sample(&self, page: u32) -> bool {
        self.samples.hold(page) || self.older.hold(page)
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
    /// memory, `occupancy` which share of all pages is, both of 256, and `is_used` whether anybody
    /// has asked for a page of a sample.
    pub fn miss(&mut self, beside: u32, occupancy: u32, most: u32, is_used: impl Fn(u32) -> bool) {
        self.faults += 1;
        self.beside += beside;
        if self.faults < JUDGED {
            return;
        }
        let beside = self.beside / self.faults;
        (self.faults, self.beside) = (0, 0);
        self.hold = self.hold.saturating_sub(1);
        // The older samples had time to be asked for.
        let (count, used) = self
            .older
            .others()
            .fold((0, 0), |(count, used), page| (count + 1, used + u32::from(is_used(page))));
        self.older = std::mem::replace(&mut self.samples, Samples::NONE);
        if 3 * used < 2 * count {
            self.shift = self.shift.saturating_sub(1);
            // Those were of longer granules.
            self.older = Samples::NONE;
            self.hold = self.patience;
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
            return;
        }
        if count > 0 {
            self.patience = (self.patience / 2).max(1);
        }
        // Of two granules that are both wanted, the first misses its buddy and the second finds it.
        // Where half of all pages are in memory, nothing can be told from that.
        let Some(room) = (ALL / 2).checked_sub(occupancy).filter(|room| *room > ALL / 16) else {
            return;
        };
        let (grows, shrinks) = (occupancy + room * 5 / 8, occupancy + room / 4);
        if beside > grows && self.hold == 0 && 1 << self.shift < most {
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
        // Pages of samples that nobody asked for yet.
        let mut unused = HashSet::new();
        let (mut faults, mut read) = (0, 0);
        for page in accesses {
            if there.contains(&page) {
                unused.remove(&page);
                continue;
            }
            faults += 1;
            let occupancy = there.len() as u32 * ALL / PAGES;
            let beside = locality.beside(page, |page| there.contains(&page));
            let is_used = |page| there.contains(&page) && !unused.contains(&page);
            locality.miss(beside, occupancy, most, is_used);
            let length = locality.pages(most);
            let first = page / length * length;
            locality.sample(first..first + length, page);
            for along in first..first + length {
                if there.insert(along) {
                    order.push_back(along);
                    read += 1;
                    if along != page && locality.is_sample(along) {
                        unused.insert(along);
                    }
                }
            }
            while there.len() as u32 > PAGES / 4 {
                let oldest = order.pop_front().unwrap();
                there.remove(&oldest);
                unused.remove(&oldest);
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
    fn a_hot_part_of_a_file_keeps_short_granules() {
        for part in [10, 5, 3] {
            let (mut next, mut which) = (random(6), random(7));
            let accesses = (0..60_000).map(|_| match which() % 10 < 7 {
                true => next() / part,
                false => next(),
            });
            let (faults, read, _) = play(accesses, MOST_PAGES);
            assert!(read < faults * 5 / 4, "a part of {part}: {faults} faults read {read}");
        }
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
