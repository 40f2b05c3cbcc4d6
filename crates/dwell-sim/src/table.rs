// SPDX-License-Identifier: MIT OR Apache-2.0
//! A four-level page table, its entries, and the walk that looks for pages to prefetch (§3.4.1).

/// A page-table entry: control bits, and a frame or a place on the device at bits 12 to 47.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    const PRESENT: u64 = 1;
    /// The page has a frame but is not mapped: it is on its way, or arrived by prefetch.
    const HAS_FRAME: u64 = 1 << 9;
    /// The page's data is on the device.
    const STORED: u64 = 1 << 10;
    /// The page has been in DRAM.
    const WAS_HERE: u64 = 1 << 11;
    /// One of the spare bits.
    const INV: u64 = 1 << 52;
    const PLACE: u64 = ((1 << 48) - 1) & !0xfff;

    /// A page whose data is at `place` on the device.
    pub const fn stored(place: u64) -> Entry {
        Entry(Self::STORED | (place << 12) & Self::PLACE)
    }
    /// A page in `frame`, not mapped yet.
    pub const fn in_frame(frame: u32) -> Entry {
        Entry(Self::HAS_FRAME | (frame as u64) << 12)
    }
    /// A mapped page in `frame`.
    pub const fn present(frame: u32) -> Entry {
        Entry(Self::PRESENT | Self::HAS_FRAME | (frame as u64) << 12)
    }
    /// This entry of a stored page that was in DRAM before.
    #[must_use]
    pub const fn after_being_here(self) -> Entry {
        Entry(self.0 | Self::WAS_HERE)
    }
    /// Whether a stored page was in DRAM before.
    pub const fn was_here(self) -> bool {
        self.0 & Self::WAS_HERE != 0
    }
    /// This entry with its INV bit set or clear.
    #[must_use]
    pub const fn with_inv(self, inv: bool) -> Entry {
        if inv { Entry(self.0 | Self::INV) } else { Entry(self.0 & !Self::INV) }
    }
    /// Whether the page is mapped.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }
    /// Whether the page has a frame, mapped or not.
    pub const fn has_frame(self) -> bool {
        self.0 & Self::HAS_FRAME != 0
    }
    /// Whether the page is only on the device.
    pub const fn is_stored(self) -> bool {
        self.0 & Self::STORED != 0
    }
    /// Whether a pre-executed store with an invalid result went to the page.
    pub const fn is_inv(self) -> bool {
        self.0 & Self::INV != 0
    }
    /// Whether nothing was ever there.
    pub const fn is_none(self) -> bool {
        self.0 & (Self::HAS_FRAME | Self::STORED) == 0
    }
    /// The frame, of a page that has one.
    #[inline]
    pub const fn frame(self) -> u32 {
        ((self.0 & Self::PLACE) >> 12) as u32
    }
    /// The place on the device, of a stored page.
    pub const fn place(self) -> u64 {
        (self.0 & Self::PLACE) >> 12
    }
}

/// Where an entry is kept: an index that stays.
pub type Slot = u32;

const FAN: usize = 512;

/// The page table of one process. Tables are pieces of 512 words in one vector; an entry of the
/// upper three levels is the number of the table below it, 0 for none.
#[derive(Clone, Debug)]
pub struct PageTable {
    words: Vec<u64>,
    pages: u64,
}

/// The offset of `page` in the table of `level`: 3 is the page global directory, 0 the page table.
const fn offset(page: u64, level: u32) -> usize {
    (page >> (9 * level)) as usize % FAN
}

impl Default for PageTable {
    fn default() -> Self {
        PageTable { words: vec![0; FAN], pages: 0 }
    }
}

impl PageTable {
    fn below(&self, table: usize, at: usize) -> Option<usize> {
        match self.words[table * FAN + at] {
            0 => None,
            below => Some(below as usize),
        }
    }

    /// The table of `level` on the way to `page`.
    fn descend(&self, page: u64, level: u32) -> Option<usize> {
        (level + 1..=3).rev().try_fold(0, |table, above| self.below(table, offset(page, above)))
    }

    /// Where the entry of `page` is, if its table exists.
    pub fn find(&self, page: u64) -> Option<Slot> {
        Some((self.descend(page, 0)? * FAN + offset(page, 0)) as Slot)
    }

    /// Where the entry of `page` is; tables are made on the way.
    pub fn make(&mut self, page: u64) -> Slot {
        let mut table = 0;
        for level in (1..=3).rev() {
            table = self.below(table, offset(page, level)).unwrap_or_else(|| {
                let new = self.words.len() / FAN;
                self.words.resize(self.words.len() + FAN, 0);
                self.words[table * FAN + offset(page, level)] = new as u64;
                new
            });
        }
        (table * FAN + offset(page, 0)) as Slot
    }

    /// The entry at `slot`.
    #[inline]
    pub fn at(&self, slot: Slot) -> Entry {
        Entry(self.words[slot as usize])
    }

    /// The entry of `page`.
    pub fn of(&self, page: u64) -> Entry {
        self.find(page).map_or(Entry::default(), |slot| self.at(slot))
    }

    /// Changes the entry at `slot`.
    pub fn put(&mut self, slot: Slot, entry: Entry) {
        self.words[slot as usize] = entry.0;
    }

    /// Puts `page` on the device, at the next place; where it is already known, nothing changes.
    pub fn store(&mut self, page: u64) -> Slot {
        let slot = self.make(page);
        if self.at(slot).is_none() {
            self.put(slot, Entry::stored(self.pages));
            self.pages += 1;
        }
        slot
    }

    /// Looks for absent pages right behind `victim`: through the rest of its page table, then
    /// through the tables of the following entries of its page middle directory. Hands each to
    /// `take` as page and slot, until `take` says that it is enough or `entries` were looked at.
    /// How many entries were looked at.
    pub fn walk_behind(
        &self,
        victim: u64,
        entries: u64,
        mut take: impl FnMut(u64, Slot) -> bool,
    ) -> u64 {
        let Some(pmd) = self.descend(victim, 1) else { return 0 };
        let mut looked = 0;
        let mut from = offset(victim, 0) + 1;
        for pmd_at in offset(victim, 1)..FAN {
            let Some(table) = self.below(pmd, pmd_at) else {
                looked += 1;
                if looked >= entries {
                    return looked;
                }
                from = 0;
                continue;
            };
            for at in from..FAN {
                if looked >= entries {
                    return looked;
                }
                looked += 1;
                let slot = (table * FAN + at) as Slot;
                let page = victim >> 18 << 18 | (pmd_at as u64) << 9 | at as u64;
                if self.at(slot).is_stored() && !take(page, slot) {
                    return looked;
                }
            }
            from = 0;
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pages: impl IntoIterator<Item = u64>) -> PageTable {
        let mut table = PageTable::default();
        for page in pages {
            table.store(page);
        }
        table
    }

    fn walk(table: &PageTable, victim: u64, pages: usize, entries: u64) -> (Vec<u64>, u64) {
        let mut found = Vec::new();
        let looked = table.walk_behind(victim, entries, |page, slot| {
            assert_eq!(table.find(page), Some(slot));
            found.push(page);
            found.len() < pages
        });
        (found, looked)
    }

    #[test]
    fn an_entry_is_found_through_four_levels() {
        let far = (3 << 27) | (5 << 18) | (7 << 9) | 11;
        let table = with([0, far]);
        assert_eq!(table.of(far), Entry::stored(1));
        assert!(table.of(far + 1).is_none() && table.of(1 << 18).is_none());
        assert_eq!(table.words.len(), FAN * 7, "one top table and two of each level below");
    }

    #[test]
    fn the_walk_takes_the_next_absent_pages_and_passes_over_those_in_dram() {
        let mut table = with(100..110);
        for (page, entry) in [(101, Entry::present(1)), (103, Entry::in_frame(2))] {
            let slot = table.make(page);
            table.put(slot, entry);
        }
        assert_eq!(walk(&table, 100, 3, 1_000), (vec![102, 104, 105], 5));
        assert_eq!(walk(&table, 100, 3, 2), (vec![102], 2));
    }

    #[test]
    fn the_walk_crosses_to_the_next_entry_of_the_page_middle_directory() {
        // Tables for pages 0..512 and 1024..1536; the entry between them is empty.
        let table = with([510, 511, 1024, 1025, 1026]);
        assert_eq!(walk(&table, 510, 3, 1_000), (vec![511, 1024, 1025], 4));
        assert_eq!(walk(&table, 1026, 3, 100), (vec![], 100));
    }

    #[test]
    fn the_walk_ends_with_the_page_middle_directory() {
        let last = (1 << 18) - 1;
        assert_eq!(walk(&with([last, last + 1]), last, 3, 1_000), (vec![], 0));
        assert_eq!(walk(&PageTable::default(), 5, 3, 1_000), (vec![], 0));
    }

    #[test]
    fn the_inv_bit_stands_beside_frame_and_place() {
        let entry = Entry::present(77).with_inv(true);
        assert!(entry.is_inv() && entry.is_present() && entry.frame() == 77);
        assert_eq!(entry.with_inv(false), Entry::present(77));
        assert_eq!(Entry::stored(1 << 35).with_inv(true).place(), 1 << 35);
    }
}
