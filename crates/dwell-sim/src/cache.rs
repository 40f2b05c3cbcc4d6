// SPDX-License-Identifier: MIT OR Apache-2.0
//! One set-associative cache with LRU replacement, and the levels of caches before DRAM.

/// A line by its physical number, below 2^31.
pub type Line = u32;

/// Set in a tag whose line came by pre-execution and was not used yet.
const AHEAD: u32 = 1 << 31;
/// No line: above every number that a frame can give.
const EMPTY: u32 = AHEAD - 1;

/// What an access found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The line was there.
    Hit,
    /// The line was there because pre-execution brought it, and this is its first use.
    Ahead,
    /// The line was not there; it is now.
    Missed,
}

/// A set-associative cache of line numbers. Each set is kept in order of use, the last used first,
/// so a set of 16 ways is one line of the host's cache.
#[derive(Clone, Debug)]
pub struct Cache {
    tags: Vec<u32>,
    ways: usize,
    set_mask: u32,
    /// Which lines of each page are here, so that a page that leaves is looked up only where it is.
    held: Vec<u64>,
    /// Whether that is kept: a cache that misses often is cheaper to search than to keep account
    /// of.
    notes_pages: bool,
    page_shift: u32,
}

impl Cache {
    /// A cache of `sets` (a power of two) times `ways` lines, for pages of 2^`page_shift` lines.
    pub fn new(sets: usize, ways: usize, page_shift: u32) -> Self {
        let set_mask = (sets - 1) as u32;
        Cache {
            tags: vec![EMPTY; sets * ways],
            ways,
            set_mask,
            held: Vec::new(),
            notes_pages: sets * ways > 1 << 15,
            page_shift,
        }
    }

    /// A cache of `bytes`.
    pub fn sized(bytes: u64, ways: u64, line_bytes: u64) -> Self {
        let sets = (bytes / line_bytes / ways).max(1) as usize;
        let page_shift = (crate::params::PAGE_BYTES / line_bytes).trailing_zeros();
        Cache::new(sets.next_power_of_two(), ways as usize, page_shift)
    }

    #[inline]
    fn set(&mut self, line: Line) -> &mut [u32] {
        let at = (line & self.set_mask) as usize * self.ways;
        &mut self.tags[at..at + self.ways]
    }

    /// Looks `line` up, brings it in if it is missing, and makes it the last used.
    #[inline]
    pub fn access(&mut self, line: Line) -> Found {
        let set = self.set(line);
        if set[0] == line {
            return Found::Hit;
        }
        self.find_and_move(line)
    }

    /// One pass: each tag goes one place down until `line`'s own place, or the last, is reached.
    fn find_and_move(&mut self, line: Line) -> Found {
        let mut carried = line;
        for tag in self.set(line) {
            let passed = std::mem::replace(tag, carried);
            if passed & !AHEAD == line {
                return if passed & AHEAD != 0 { Found::Ahead } else { Found::Hit };
            }
            carried = passed;
        }
        self.came_and_went(line, carried);
        Found::Missed
    }

    /// As [`Cache::access`] by pre-execution: a line that it brings is marked, a mark stays. Tells
    /// whether the line was there.
    pub fn access_ahead(&mut self, line: Line) -> bool {
        let set = self.set(line);
        let at = set.iter().position(|tag| tag & !AHEAD == line);
        let victim = set[at.unwrap_or(set.len() - 1)];
        let to = at.unwrap_or(set.len() - 1);
        set[..=to].rotate_right(1);
        if at.is_none() {
            set[0] = line | AHEAD;
            self.came_and_went(line, victim);
        }
        at.is_some()
    }

    /// Notes which lines of which pages are here, where that is noted.
    #[inline]
    fn came_and_went(&mut self, line: Line, victim: u32) {
        if !self.notes_pages {
            return;
        }
        let victim = victim & !AHEAD;
        if victim != EMPTY {
            let (page, bit) = self.place(victim);
            self.held[page] &= !bit;
        }
        let (page, bit) = self.place(line);
        if page >= self.held.len() {
            self.held.resize(page + 1, 0);
        }
        self.held[page] |= bit;
    }

    #[inline]
    fn place(&self, line: Line) -> (usize, u64) {
        let page = (line >> self.page_shift) as usize;
        (page, 1 << (line & ((1 << self.page_shift) - 1)))
    }

    /// Whether `line` is here; its place in the order of use stays.
    #[inline]
    pub fn holds(&self, line: Line) -> bool {
        let at = (line & self.set_mask) as usize * self.ways;
        self.tags[at..at + self.ways].iter().any(|tag| tag & !AHEAD == line)
    }

    /// Throws all lines of a page out: other data comes to its frame.
    pub fn forget_page(&mut self, page: u32) {
        let all = u64::MAX >> (64 - (1u32 << self.page_shift));
        let mut left = match self.notes_pages {
            true => self.held.get_mut(page as usize).map_or(0, std::mem::take),
            false => all,
        };
        while left != 0 {
            let line = (page << self.page_shift) | left.trailing_zeros();
            left &= left - 1;
            let set = self.set(line);
            if let Some(at) = set.iter().position(|tag| tag & !AHEAD == line) {
                // The free way becomes the next to be filled.
                set[at..].rotate_left(1);
                set[set.len() - 1] = EMPTY;
            }
        }
    }

    /// The lines of one set, the last used first.
    pub fn in_order(&self, set: u32) -> Vec<Line> {
        let at = (set & self.set_mask) as usize * self.ways;
        let lines = self.tags[at..at + self.ways].iter().map(|tag| tag & !AHEAD);
        lines.filter(|&line| line != EMPTY).collect()
    }
}

/// Which level answered an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The first level.
    L1,
    /// The second level.
    L2,
    /// The last level.
    Llc,
    /// The last level, thanks to pre-execution.
    LlcAhead,
    /// DRAM.
    Dram,
}

/// The caches between a core and DRAM.
#[derive(Clone, Debug)]
pub struct Levels {
    l1: Option<Cache>,
    l2: Option<Cache>,
    /// The last level.
    pub llc: Cache,
}

impl Levels {
    /// The caches of these parameters; a policy that pre-executes gives a part of the last level
    /// to the pre-execute cache (§4.1). Also how many sets and ways that part has.
    pub fn new(params: &crate::Params, preexecutes: bool) -> (Self, (usize, usize)) {
        let sized = |bytes, ways| (bytes > 0).then(|| Cache::sized(bytes, ways, params.line_bytes));
        let (l1, l2) =
            (sized(params.l1_bytes, params.l1_ways), sized(params.l2_bytes, params.l2_ways));
        let whole_ways = params.llc_ways as usize;
        let whole_sets = (params.llc_bytes / params.line_bytes / params.llc_ways) as usize;
        let page_shift = (crate::params::PAGE_BYTES / params.line_bytes).trailing_zeros();
        let (mut sets, mut ways) = (whole_sets, whole_ways);
        let mut ahead = (1, 1);
        if preexecutes {
            let share = params.preexecute_cache_percent as usize;
            if params.preexecute_cache_split == crate::params::Split::Own {
                ahead = (whole_sets, (whole_ways * share / 100).max(1));
            } else if params.preexecute_cache_split == crate::params::Split::Ways && whole_ways > 1
            {
                let given = (whole_ways * share / 100).clamp(1, whole_ways - 1);
                (ways, ahead) = (whole_ways - given, (whole_sets, given));
            } else if whole_sets > 1 {
                // Sets stay a power of two, so the main cache keeps the largest that fits.
                let kept = (whole_sets * (100 - share) / 100).clamp(1, whole_sets / 2);
                sets = 1 << kept.ilog2();
                ahead = ((whole_sets - sets).max(1), whole_ways);
                ahead.0 = 1 << ahead.0.ilog2();
            }
        }
        (Levels { l1, l2, llc: Cache::new(sets, ways, page_shift) }, ahead)
    }

    /// One access of the running process.
    #[inline]
    pub fn access(&mut self, line: Line) -> Level {
        if let Some(l1) = &mut self.l1
            && l1.access(line) == Found::Hit
        {
            return Level::L1;
        }
        self.below_l1(line)
    }

    fn below_l1(&mut self, line: Line) -> Level {
        if let Some(l2) = &mut self.l2
            && l2.access(line) == Found::Hit
        {
            return Level::L2;
        }
        match self.llc.access(line) {
            Found::Hit => Level::Llc,
            Found::Ahead => Level::LlcAhead,
            Found::Missed => Level::Dram,
        }
    }

    /// Where a line is, nothing moved.
    pub fn find(&self, line: Line) -> Level {
        let holds = |cache: &Option<Cache>| cache.as_ref().is_some_and(|cache| cache.holds(line));
        if holds(&self.l1) {
            Level::L1
        } else if holds(&self.l2) {
            Level::L2
        } else if self.llc.holds(line) {
            Level::Llc
        } else {
            Level::Dram
        }
    }

    /// Throws a page out of all levels.
    pub fn forget_page(&mut self, page: u32) {
        self.l1.iter_mut().chain(&mut self.l2).for_each(|cache| cache.forget_page(page));
        self.llc.forget_page(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_of_a_set_goes() {
        let mut cache = Cache::new(1, 2, 6);
        assert_eq!(
            [1, 2, 1, 3].map(|line| cache.access(line)),
            [Found::Missed, Found::Missed, Found::Hit, Found::Missed]
        );
        assert_eq!(cache.in_order(0), [3, 1]);
        assert_eq!(cache.access(2), Found::Missed);
        assert!(!cache.holds(1) && cache.holds(3));
    }

    #[test]
    fn a_page_that_leaves_frees_its_ways_and_they_are_filled_first() {
        let mut cache = Cache::new(2, 2, 1);
        // Page 0 has lines 0 and 1, page 1 lines 2 and 3.
        [0, 1, 2].iter().for_each(|&line| {
            cache.access(line);
        });
        cache.forget_page(0);
        assert!(!cache.holds(0) && !cache.holds(1) && cache.holds(2));
        cache.access(4);
        assert_eq!(cache.in_order(0), [4, 2]);
        cache.forget_page(1_000);
    }

    #[test]
    fn a_line_brought_ahead_is_told_at_its_first_use_only() {
        let mut cache = Cache::new(1, 4, 6);
        assert!(!cache.access_ahead(7));
        assert!(cache.access_ahead(7));
        assert_eq!(cache.access(7), Found::Ahead);
        assert_eq!(cache.access(7), Found::Hit);
    }

    #[test]
    fn the_pre_execute_cache_is_ways_or_sets_of_the_last_level_or_its_own() {
        let mut params = crate::Params::default();
        let (levels, ahead) = Levels::new(&params, true);
        assert_eq!((levels.llc.ways, levels.llc.tags.len(), ahead), (8, 1 << 16, (8192, 8)));
        params.set("preexecute_cache_split=sets").unwrap();
        let (levels, ahead) = Levels::new(&params, true);
        assert_eq!((levels.llc.ways, levels.llc.tags.len(), ahead), (16, 1 << 16, (4096, 16)));
        params.set("preexecute_cache_split=own").unwrap();
        let (levels, ahead) = Levels::new(&params, true);
        assert_eq!((levels.llc.ways, levels.llc.tags.len(), ahead), (16, 1 << 17, (8192, 8)));
        assert_eq!(Levels::new(&params, false).0.llc.tags.len(), 1 << 17);
    }

    proptest::proptest! {
        /// Against the plainest model: per set a list, the last used in front.
        #[test]
        fn it_agrees_access_by_access_with_a_list(
            lines in proptest::collection::vec(0u32..64, 1..400),
            ways in 1usize..5,
            gone in proptest::collection::vec(0usize..400, 0..5),
        ) {
            let mut cache = Cache::new(4, ways, 2);
            let mut model = vec![Vec::<u32>::new(); 4];
            for (at, &line) in lines.iter().enumerate() {
                let set = &mut model[line as usize % 4];
                let was = set.iter().position(|&other| other == line);
                was.map(|at| set.remove(at));
                set.insert(0, line);
                set.truncate(ways);
                proptest::prop_assert_eq!(cache.access(line) != Found::Missed, was.is_some());
                if gone.contains(&at) {
                    cache.forget_page(line >> 2);
                    model.iter_mut().for_each(|set| set.retain(|other| other >> 2 != line >> 2));
                }
                for (at, set) in model.iter().enumerate() {
                    proptest::prop_assert_eq!(&cache.in_order(at as u32), set);
                    proptest::prop_assert!(set.iter().all(|&line| cache.holds(line)));
                }
            }
        }
    }
}
