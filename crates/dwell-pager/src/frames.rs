// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which frame holds which page, and which is used next: lists over an array, under the region's
//! lock.
//!
//! A frame is a page's worth of memory with a place of its own beside the region. Its memory is at
//! that place, or in the region when the page is present; there are as many as the budget has
//! pages.

use std::ops::Range;

use crate::pages::{AHEAD, Pages, State};

/// Where a frame stands. Each kind but the first and [`Kind::OUT`] is a list, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u8);

impl Kind {
    /// Never used; its place has no memory.
    const UNUSED: Kind = Kind(0);
    /// Memory without a page.
    pub const FREE: Kind = Kind(1);
    /// A place without memory.
    pub const HOLLOW: Kind = Kind(2);
    /// A page that left the region, as the source has it.
    pub const STANDBY: Kind = Kind(3);
    /// A page that left the region and was written to.
    pub const DIRTY: Kind = Kind(4);
    /// A page that was read ahead and not asked for yet.
    pub const AHEAD: Kind = Kind(5);
    /// In somebody's hands: being read, moved or written back.
    pub const OUT: Kind = Kind(6);

    /// A page of the region that a thread of this class brought in.
    pub fn present(class: u8) -> Kind {
        Kind(8 + class.min(CLASSES - 1))
    }

    fn is_list(self) -> bool {
        self != Kind::UNUSED && self != Kind::OUT
    }
}

/// Classes of owners, by nice value; 0 is the highest priority.
pub(crate) const CLASSES: u8 = 8;

/// The class of a nice value.
pub(crate) fn class_of(nice: i8) -> u8 {
    ((i16::from(nice) + 20).clamp(0, 39) / 5) as u8
}

/// Pages that the region keeps in any case.
const LEAST_PRESENT: u32 = 4;

const NONE: u32 = u32::MAX;
const LISTS: usize = 8 + CLASSES as usize;

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    len: u32,
}

/// Frames next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: u32,
    pub count: u32,
    /// Their places have no memory yet.
    pub hollow: bool,
}

impl Run {
    pub fn frames(&self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// What taking frames cost others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Pages read ahead that nobody asked for.
    pub wasted: u32,
}

/// The frames of one region.
#[derive(Debug)]
pub(crate) struct Frames {
    kind: Vec<u8>,
    page: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    lists: [List; LISTS],
    /// Frames from here on were never used.
    fresh: u32,
    budget: u32,
    in_memory: u32,
    peak: u32,
    /// Frames out; those of them that are read ahead, each with a mark; and the owner of each.
    out: u32,
    ahead_out: u32,
    is_ahead: Vec<bool>,
    owner: Vec<u16>,
    /// Frames whose page was asked for again after it had left: it is passed over once.
    kept: Vec<bool>,
}

impl Frames {
    /// `budget` frames to be used, with places for `capacity` in case nothing can leave memory.
    pub fn new(budget: u32, capacity: u32) -> Frames {
        let capacity = capacity.max(budget) as usize;
        Frames {
            kind: vec![0; capacity],
            page: vec![0; capacity],
            next: vec![0; capacity],
            prev: vec![0; capacity],
            lists: [List { first: NONE, last: NONE, len: 0 }; LISTS],
            fresh: 0,
            budget,
            in_memory: 0,
            peak: 0,
            out: 0,
            ahead_out: 0,
            is_ahead: vec![false; capacity],
            owner: vec![0; capacity],
            kept: vec![false; capacity],
        }
    }

    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Changes how many frames may be in memory; those beyond are the caller's to give up.
    pub fn set_budget(&mut self, budget: u32) {
        self.budget = budget;
    }

    pub fn in_memory(&self) -> u32 {
        self.in_memory
    }

    pub fn peak(&self) -> u32 {
        self.peak
    }

    pub fn page(&self, frame: u32) -> u32 {
        self.page[frame as usize]
    }

    pub fn kind(&self, frame: u32) -> Kind {
        Kind(self.kind[frame as usize])
    }

    pub fn len(&self, kind: Kind) -> u32 {
        self.lists[kind.0 as usize].len
    }

    /// Frames that can be used at once.
    pub fn ready(&self) -> u32 {
        let unused = self.budget.saturating_sub(self.in_memory);
        self.len(Kind::FREE) + self.len(Kind::STANDBY) + unused
    }

    /// Frames of pages that are read ahead or were and are not asked for yet.
    pub fn ahead(&self) -> u32 {
        self.ahead_out + self.len(Kind::AHEAD)
    }

    /// Frames that threads hold and give back in a moment. Frames read ahead are left out: they may
    /// take longer, as nobody waits for them.
    pub fn passing(&self) -> u32 {
        self.out - self.ahead_out
    }

    /// Whether a frame that is out is being read ahead.
    pub fn is_ahead_out(&self, frame: u32) -> bool {
        self.is_ahead[frame as usize]
    }

    pub fn set_ahead_out(&mut self, frame: u32, ahead: bool) {
        if std::mem::replace(&mut self.is_ahead[frame as usize], ahead) != ahead {
            self.ahead_out = if ahead { self.ahead_out + 1 } else { self.ahead_out - 1 };
        }
    }

    /// The holder of a frame that is out.
    pub fn owner(&self, frame: u32) -> u16 {
        self.owner[frame as usize]
    }

    /// The page of a frame that is out was asked for again: next time it is passed over.
    pub fn keep(&mut self, frame: u32) {
        self.kept[frame as usize] = true;
    }

    /// Takes a frame off its list.
    pub fn unlink(&mut self, frame: u32) {
        let at = frame as usize;
        let kind = self.kind(frame);
        if kind.is_list() {
            let (prev, next) = (self.prev[at], self.next[at]);
            let list = &mut self.lists[kind.0 as usize];
            list.len -= 1;
            match prev {
                NONE => list.first = next,
                prev => self.next[prev as usize] = next,
            }
            match next {
                NONE => list.last = prev,
                next => self.prev[next as usize] = prev,
            }
            self.out += 1;
        }
        self.kind[at] = Kind::OUT.0;
    }

    /// Puts a frame that is out behind all others of a kind.
    pub fn push(&mut self, frame: u32, kind: Kind) {
        debug_assert!(self.kind(frame) == Kind::OUT && kind.is_list());
        let at = frame as usize;
        let list = &mut self.lists[kind.0 as usize];
        self.kind[at] = kind.0;
        self.prev[at] = list.last;
        self.next[at] = NONE;
        match list.last {
            NONE => list.first = frame,
            last => self.next[last as usize] = frame,
        }
        list.last = frame;
        list.len += 1;
        self.out -= 1;
    }

    /// Puts a frame that is out on a list, with the page that it holds.
    pub fn hold(&mut self, frame: u32, page: u32, kind: Kind) {
        self.page[frame as usize] = page;
        self.push(frame, kind);
    }

    /// Says which page a frame that is out is for, and who has it.
    pub fn assign(&mut self, frame: u32, page: u32, owner: u16) {
        self.page[frame as usize] = page;
        self.owner[frame as usize] = owner;
    }

    /// The memory of a frame that is out is gone.
    pub fn hollow(&mut self, frame: u32) {
        self.in_memory -= 1;
        self.push(frame, Kind::HOLLOW);
    }

    /// The oldest frame of a kind.
    pub fn oldest(&self, kind: Kind) -> Option<u32> {
        Some(self.lists[kind.0 as usize].first).filter(|first| *first != NONE)
    }

    /// The frames around one that are of its kind and hold the pages around its own, at most
    /// `most` together.
    pub fn run_around(&self, given: u32, most: u32) -> Run {
        let belongs = |frame: &u32| {
            self.kind.get(*frame as usize) == Some(&self.kind[given as usize])
                && self.page(*frame).wrapping_sub(self.page(given)) == frame.wrapping_sub(given)
        };
        let least = (given + 1).saturating_sub(most);
        let first = (least..given).rev().take_while(belongs).last().unwrap_or(given);
        let behind = (given + 1..first + most).take_while(belongs).count() as u32;
        Run { first, count: given + 1 + behind - first, hollow: false }
    }

    /// Takes up to `want` frames next to each other out: free ones, unused ones while the budget
    /// has room, and then those of pages that left the region longest ago. Pages lose the frames
    /// taken from them.
    pub fn take(&mut self, want: u32, pages: &Pages, taken: &mut Taken) -> Option<Run> {
        // Frames that were never used lie in longer rows than others.
        let never_used =
            (self.kind.len() as u32 - self.fresh).min(self.budget.saturating_sub(self.in_memory));
        if let Some(frame) = self.oldest(Kind::FREE).filter(|_| want == 1 || never_used < want) {
            return Some(self.run_from(frame, want, pages, taken));
        }
        if let Some(run) = self.take_fresh(want) {
            return Some(run);
        }
        let frame = self.oldest(Kind::STANDBY)?;
        Some(self.run_from(frame, want, pages, taken))
    }

    /// As [`Frames::take`], when nothing else is left: the oldest page read ahead, or a place
    /// beyond the budget.
    pub fn take_last(&mut self, pages: &Pages, taken: &mut Taken) -> Option<(Run, bool)> {
        if let Some(frame) = self.oldest(Kind::AHEAD) {
            return Some((self.run_from(frame, 1, pages, taken), false));
        }
        self.take_unused(1).map(|run| (run, true))
    }

    /// Takes up to `want` unused places out, next to each other, while the budget has room.
    pub fn take_fresh(&mut self, want: u32) -> Option<Run> {
        match want.min(self.budget.saturating_sub(self.in_memory)) {
            0 => None,
            want => self.take_unused(want),
        }
    }

    fn take_unused(&mut self, want: u32) -> Option<Run> {
        let rest = self.kind.len() as u32 - self.fresh;
        let hollow = self.oldest(Kind::HOLLOW).filter(|_| want == 1 || rest < want);
        let run = if let Some(frame) = hollow {
            self.unlink(frame);
            Run { first: frame, count: 1, hollow: true }
        } else {
            let count = want.min(rest);
            if count == 0 {
                return None;
            }
            let first = self.fresh;
            self.fresh += count;
            self.kind[first as usize..][..count as usize].fill(Kind::OUT.0);
            self.out += count;
            Run { first, count, hollow: true }
        };
        self.in_memory += run.count;
        self.peak = self.peak.max(self.in_memory);
        Some(run)
    }

    /// A frame, and those around it as far as they can be used too.
    fn run_from(&mut self, given: u32, want: u32, pages: &Pages, taken: &mut Taken) -> Run {
        let usable = |frame: &u32| {
            let kind = self.kind.get(*frame as usize).map(|kind| Kind(*kind));
            matches!(kind, Some(Kind::FREE | Kind::STANDBY))
        };
        let least = (given + 1).saturating_sub(want);
        let first = (least..given).rev().take_while(usable).last().unwrap_or(given);
        let behind = (given + 1..first + want).take_while(usable).count() as u32;
        let count = given + 1 + behind - first;
        for frame in first..first + count {
            if self.kind(frame) != Kind::FREE {
                let page = self.page(frame);
                taken.wasted += u32::from(pages.get(page) & AHEAD != 0);
                pages.set(page, State::Absent, 0);
            }
            self.unlink(frame);
            self.kept[frame as usize] = false;
        }
        Run { first, count, hollow: false }
    }

    /// Takes up to `room.len()` pages of the region out to be moved; how many were found. Pages of
    /// the lowest priority go first, and of them the ones that came in longest ago. A page that was
    /// asked for again after it had left comes round once more. The newest of a class are spared
    /// while other classes have any to give.
    pub fn victims(&mut self, pages: &Pages, room: &mut [u32]) -> usize {
        // What one instruction touches has to stay until it is over.
        let present: u32 = (0..CLASSES).map(|class| self.len(Kind::present(class))).sum();
        let most = room.len().min(present.saturating_sub(LEAST_PRESENT) as usize);
        let room = &mut room[..most];
        let spared = (self.budget / 4).min(room.len() as u32);
        let mut found = 0;
        for spared in [spared, 0] {
            for class in (0..CLASSES).rev() {
                let kind = Kind::present(class);
                let mut looks = self.len(kind).saturating_sub(spared);
                while looks > 0
                    && found < room.len()
                    && let Some(frame) = self.oldest(kind)
                {
                    let page = self.page(frame);
                    self.unlink(frame);
                    if std::mem::take(&mut self.kept[frame as usize]) {
                        self.push(frame, kind);
                        continue;
                    }
                    looks -= 1;
                    if pages.stays(page) {
                        self.push(frame, kind);
                        continue;
                    }
                    pages.set(page, State::Moving, 0);
                    room[found] = page;
                    found += 1;
                }
                if found == room.len() {
                    return found;
                }
            }
            if found > 0 {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(frames: &mut Frames, pages: &Pages, page: u32, kind: Kind) -> u32 {
        let run = frames.take(1, pages, &mut Taken::default()).unwrap();
        pages.set_frame(page, run.first);
        let state = if kind.0 >= 8 { State::Present } else { State::Standby };
        pages.set(page, state, 0);
        frames.hold(run.first, page, kind);
        run.first
    }

    #[test]
    fn frames_are_taken_in_runs_and_never_beyond_the_budget() {
        let (mut frames, pages) = (Frames::new(8, 100), Pages::new(100));
        let mut taken = Taken::default();
        let first = frames.take(5, &pages, &mut taken).unwrap();
        assert_eq!(first, Run { first: 0, count: 5, hollow: true });
        assert_eq!(frames.take(5, &pages, &mut taken).unwrap().count, 3);
        assert!(frames.take(1, &pages, &mut taken).is_none());
        let (beyond, over) = frames.take_last(&pages, &mut taken).unwrap();
        assert!(over && beyond.first == 8 && frames.peak() == 9);
        for frame in [3, 4, 1] {
            frames.push(frame, Kind::FREE);
        }
        let run = frames.take(8, &pages, &mut taken).unwrap();
        assert_eq!(run, Run { first: 3, count: 2, hollow: false });
    }

    #[test]
    fn the_oldest_of_the_lowest_priority_leaves_first_and_pinned_pages_stay() {
        let (mut frames, pages) = (Frames::new(12, 12), Pages::new(12));
        for page in 0..4 {
            fill(&mut frames, &pages, page, Kind::present(class_of(-20)));
        }
        for page in 4..8 {
            fill(&mut frames, &pages, page, Kind::present(class_of(10)));
        }
        // These are kept in any case: an instruction may be at them.
        for page in 8..12 {
            fill(&mut frames, &pages, page, Kind::present(0));
        }
        pages.pin(4, true);
        let mut room = [0; 2];
        // The newest of the low class are spared while the high class has older ones.
        assert_eq!(frames.victims(&pages, &mut room), 2);
        assert_eq!(room, [5, 0]);
        assert_eq!(pages.state(5), State::Moving);
        let mut room = [0; 8];
        let mut left = 10;
        loop {
            match frames.victims(&pages, &mut room) {
                0 => break,
                found => left -= found,
            }
        }
        assert_eq!((left as u32, pages.state(4)), (LEAST_PRESENT, State::Present));
    }

    #[test]
    fn a_page_that_was_asked_for_again_is_passed_over_once() {
        let (mut frames, pages) = (Frames::new(8, 8), Pages::new(8));
        let held: Vec<u32> =
            (0..8).map(|page| fill(&mut frames, &pages, page, Kind::present(0))).collect();
        frames.keep(held[0]);
        let mut room = [0; 2];
        assert_eq!((frames.victims(&pages, &mut room), room), (2, [1, 2]));
        // Where all were, the oldest leaves all the same.
        (3..8).for_each(|page| frames.keep(held[page]));
        assert_eq!((frames.victims(&pages, &mut room), room), (2, [0, 3]));
    }

    #[test]
    fn a_page_that_loses_its_frame_is_absent_and_counted_if_nobody_asked_for_it() {
        let (mut frames, pages) = (Frames::new(2, 2), Pages::new(4));
        fill(&mut frames, &pages, 0, Kind::AHEAD);
        fill(&mut frames, &pages, 1, Kind::STANDBY);
        pages.mark(0, AHEAD, 0);
        let mut taken = Taken::default();
        assert_eq!(frames.take(1, &pages, &mut taken).unwrap().first, 1);
        assert_eq!((pages.state(1), taken.wasted), (State::Absent, 0));
        assert!(frames.take(1, &pages, &mut taken).is_none());
        assert_eq!(frames.take_last(&pages, &mut taken).unwrap().0.first, 0);
        assert_eq!((pages.state(0), taken.wasted), (State::Absent, 1));
    }
}
