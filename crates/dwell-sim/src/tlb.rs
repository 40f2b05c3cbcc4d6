// SPDX-License-Identifier: MIT OR Apache-2.0
//! The TLB of the one CPU: it holds translations of the process that runs, and a switch empties it.
//!
//! The paper's kernel (4.4) gives no process an address-space number of its own, so nothing
//! outlives a switch to another process.

/// No frame.
pub(crate) const NONE: u32 = u32::MAX;
const FRAME_BITS: u32 = 28;
const EMPTY: u64 = u64::MAX;

/// A set-associative TLB with LRU replacement. Each set is kept in order of use, the last used
/// first; a word has a page above its frame.
#[derive(Clone, Debug)]
pub(crate) struct Tlb {
    words: Vec<u64>,
    ways: usize,
    set_mask: usize,
}

impl Tlb {
    /// A TLB of so many entries. One that is to miss never is as large as any other: its misses
    /// cost nothing.
    pub fn new(params: &crate::Params) -> Self {
        let (entries, ways) = match params.tlb_entries {
            0 => (2048, 1),
            entries => (entries as usize, params.tlb_ways as usize),
        };
        Tlb { words: vec![EMPTY; entries], ways, set_mask: entries / ways - 1 }
    }

    #[inline]
    fn start(&self, page: u64) -> usize {
        (page as usize & self.set_mask) * self.ways
    }

    /// The frame of `page`, which becomes the last used of its set; [`NONE`] if it is not here.
    #[inline]
    pub fn get(&mut self, page: u64) -> u32 {
        let at = self.start(page);
        let word = self.words[at];
        if word >> FRAME_BITS == page { frame_of(word) } else { self.search(page, at) }
    }

    fn search(&mut self, page: u64, at: usize) -> u32 {
        let set = &mut self.words[at..at + self.ways];
        match set.iter().position(|word| word >> FRAME_BITS == page) {
            Some(place) => {
                set[..=place].rotate_right(1);
                frame_of(set[0])
            }
            None => NONE,
        }
    }

    /// Brings a translation in that is not here.
    pub fn keep(&mut self, page: u64, frame: u32) {
        let at = self.start(page);
        let set = &mut self.words[at..at + self.ways];
        set.rotate_right(1);
        set[0] = page << FRAME_BITS | u64::from(frame);
    }

    /// Takes the translation of a page back.
    pub fn forget(&mut self, page: u64) {
        let at = self.start(page);
        let set = &mut self.words[at..at + self.ways];
        if let Some(place) = set.iter().position(|word| word >> FRAME_BITS == page) {
            // The free way becomes the next to be filled.
            set[place..].rotate_left(1);
            set[set.len() - 1] = EMPTY;
        }
    }

    /// Empties it: another process runs.
    pub fn flush(&mut self) {
        self.words.fill(EMPTY);
    }
}

#[inline]
fn frame_of(word: u64) -> u32 {
    word as u32 & ((1 << FRAME_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Params;

    fn tlb(entries: u64, ways: u64) -> Tlb {
        Tlb::new(&Params { tlb_entries: entries, tlb_ways: ways, ..Params::default() })
    }

    #[test]
    fn the_least_recently_used_translation_of_a_set_goes() {
        let mut tlb = tlb(4, 2);
        tlb.keep(0, 10);
        tlb.keep(2, 12);
        assert_eq!((tlb.get(0), tlb.get(1)), (10, NONE));
        tlb.keep(4, 14);
        assert_eq!([0, 2, 4].map(|page| tlb.get(page)), [10, NONE, 14]);
    }

    #[test]
    fn a_page_that_leaves_and_a_switch_take_translations_back() {
        let mut tlb = tlb(4, 2);
        let far = (1 << 35) - 1;
        tlb.keep(far, (1 << 24) - 1);
        tlb.keep(1, 5);
        tlb.forget(far);
        assert_eq!((tlb.get(far), tlb.get(1)), (NONE, 5));
        tlb.flush();
        assert_eq!(tlb.get(1), NONE);
    }
}
