// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frames of DRAM: who has each, when its data arrives, and which is given up next.

use dwell_policy::Ns;

use crate::params::Replacement;
use crate::table::Slot;

/// Flags of a frame, one bit each.
pub mod flag {
    /// Used since the clock last passed.
    pub const USED: u8 = 1;
    /// Changed since it was read.
    pub const DIRTY: u8 = 2;
    /// Brought by prefetch and not used yet.
    pub const AHEAD: u8 = 4;
    /// Asked for by a process that has not used it yet: it stays.
    pub const KEPT: u8 = 8;
    /// Has a page.
    pub const TAKEN: u8 = 16;
}

/// A page of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The process, by its index.
    pub process: u32,
    /// Where its entry is in that process's page table.
    pub slot: Slot,
    /// The page.
    pub page: u64,
    /// Its place on the device.
    pub place: u64,
}

/// All frames of DRAM.
#[derive(Clone, Debug)]
pub struct Frames {
    /// Flags of each frame; the hot path sets [`flag::USED`] and [`flag::DIRTY`].
    pub flags: Vec<u8>,
    owners: Vec<Owner>,
    arrives: Vec<Ns>,
    free: Vec<u32>,
    how: Replacement,
    hand: u32,
    /// For LRU and FIFO: a ring of frames, the next to go behind `NONE`'s place at the end.
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Frames {
    /// So many free frames.
    pub fn new(frames: u32, how: Replacement) -> Self {
        let count = frames as usize;
        // One link more than frames: the head of the ring.
        let links = if how == Replacement::Clock { 0 } else { count + 1 };
        Frames {
            flags: vec![0; count],
            owners: vec![Owner::default(); count],
            arrives: vec![0; count],
            free: (0..frames).rev().collect(),
            how,
            hand: 0,
            before: vec![frames; links],
            after: vec![frames; links],
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.flags.len()
    }

    /// Whether each use must be told by [`Frames::touch`].
    pub fn orders_by_use(&self) -> bool {
        self.how == Replacement::Lru
    }

    /// A frame was used: it becomes the last to go.
    #[inline]
    pub fn touch(&mut self, frame: u32) {
        let head = self.flags.len();
        if self.after[head] != frame {
            self.unlink(frame);
            self.link(frame);
        }
    }

    fn link(&mut self, frame: u32) {
        if self.how == Replacement::Clock {
            return;
        }
        let head = self.flags.len();
        let next = self.after[head];
        self.after[frame as usize] = next;
        self.before[frame as usize] = head as u32;
        self.before[next as usize] = frame;
        self.after[head] = frame;
    }

    fn unlink(&mut self, frame: u32) {
        if self.how == Replacement::Clock {
            return;
        }
        let (before, after) = (self.before[frame as usize], self.after[frame as usize]);
        self.after[before as usize] = after;
        self.before[after as usize] = before;
    }

    /// When the data of a frame is there.
    #[inline]
    pub fn arrives(&self, frame: u32) -> Ns {
        self.arrives[frame as usize]
    }

    /// The owner of a frame.
    pub fn owner(&self, frame: u32) -> Owner {
        self.owners[frame as usize]
    }

    /// A frame for `owner`, whose data arrives at `arrives`, with these flags; and the page that
    /// had to leave for it, with the flags it had. `None` when every page must stay.
    pub fn take(
        &mut self,
        owner: Owner,
        arrives: Ns,
        flags: u8,
        now: Ns,
    ) -> Option<(u32, Option<(Owner, u8)>)> {
        let (frame, left) = match self.free.pop() {
            Some(frame) => (frame, None),
            None => {
                let frame = self.victim(now)?;
                self.unlink(frame);
                (frame, Some((self.owner(frame), self.flags[frame as usize])))
            }
        };
        self.owners[frame as usize] = owner;
        self.arrives[frame as usize] = arrives;
        self.flags[frame as usize] = flags | flag::TAKEN;
        self.link(frame);
        Some((frame, left))
    }

    /// The data of a frame that was just taken arrives at `at`.
    pub fn set_arrival(&mut self, frame: u32, at: Ns) {
        self.arrives[frame as usize] = at;
    }

    /// When the next page arrives that could leave then; `now` + 1 where none is on its way.
    pub fn next_arrival(&self, now: Ns) -> Ns {
        let frames = self.flags.iter().zip(&self.arrives);
        let on_their_way =
            frames.filter(|(flags, arrives)| *flags & flag::KEPT == 0 && **arrives > now);
        on_their_way.map(|(_, arrives)| *arrives).min().unwrap_or(now + 1)
    }

    fn may_go(&self, frame: u32, now: Ns) -> bool {
        self.flags[frame as usize] & flag::KEPT == 0 && self.arrives[frame as usize] <= now
    }

    fn victim(&mut self, now: Ns) -> Option<u32> {
        let count = self.flags.len() as u32;
        if self.how != Replacement::Clock {
            let mut at = self.before[count as usize];
            while at != count {
                if self.may_go(at, now) {
                    return Some(at);
                }
                at = self.before[at as usize];
            }
            return None;
        }
        // Two rounds clear every mark; a third finds whatever may go.
        for _ in 0..2 * u64::from(count) + 1 {
            let at = self.hand;
            self.hand = if at + 1 == count { 0 } else { at + 1 };
            if !self.may_go(at, now) {
                continue;
            }
            if self.flags[at as usize] & flag::USED == 0 {
                return Some(at);
            }
            self.flags[at as usize] &= !flag::USED;
        }
        None
    }

    /// Frees all frames of a process that ended; how many had been prefetched and never used.
    pub fn release(&mut self, process: u32) -> u64 {
        let mut unused = 0;
        for frame in (0..self.flags.len() as u32).rev() {
            let flags = self.flags[frame as usize];
            if flags & flag::TAKEN != 0 && self.owners[frame as usize].process == process {
                unused += u64::from(flags & flag::AHEAD != 0);
                self.flags[frame as usize] = 0;
                self.arrives[frame as usize] = 0;
                self.unlink(frame);
                self.free.push(frame);
            }
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(page: u64) -> Owner {
        Owner { page, ..Owner::default() }
    }

    /// The pages that leave when these come to three frames, `used` being used before each.
    fn leaving(how: Replacement, used: u64) -> Vec<u64> {
        let mut frames = Frames::new(3, how);
        let mut gone = Vec::new();
        for page in 0..6 {
            if let Some(frame) = (0..3).find(|&frame| frames.owner(frame).page == used && page > 0)
            {
                frames.flags[frame as usize] |= flag::USED;
                if frames.orders_by_use() {
                    frames.touch(frame);
                }
            }
            let (_, left) = frames.take(owner(page), 0, 0, 0).unwrap();
            gone.extend(left.map(|(owner, _)| owner.page));
        }
        gone
    }

    #[test]
    fn lru_and_clock_keep_the_page_in_use_and_fifo_does_not() {
        assert_eq!(leaving(Replacement::Fifo, 0), [0, 1, 2]);
        assert_eq!(leaving(Replacement::Lru, 0), [1, 2, 3]);
        assert_eq!(leaving(Replacement::Clock, 0).len(), 3);
        assert!(!leaving(Replacement::Clock, 0).contains(&0));
    }

    #[test]
    fn pages_on_their_way_or_awaited_stay_and_where_all_stay_there_is_none() {
        for how in [Replacement::Clock, Replacement::Lru, Replacement::Fifo] {
            let mut frames = Frames::new(3, how);
            frames.take(owner(1), 50, 0, 0).unwrap();
            frames.take(owner(2), 0, flag::KEPT, 0).unwrap();
            frames.take(owner(3), 0, 0, 0).unwrap();
            let (_, left) = frames.take(owner(4), 60, 0, 10).unwrap();
            assert_eq!(left.unwrap().0.page, 3);
            assert_eq!(frames.take(owner(5), 0, 0, 10), None);
            assert_eq!(frames.take(owner(5), 0, 0, 50).unwrap().1.unwrap().0.page, 1);
        }
    }

    #[test]
    fn a_process_that_ends_gives_its_frames_back() {
        let mut frames = Frames::new(2, Replacement::Lru);
        frames.take(owner(1), 0, flag::AHEAD, 0).unwrap();
        frames.take(Owner { process: 1, ..owner(2) }, 0, 0, 0).unwrap();
        assert_eq!(frames.release(0), 1);
        assert_eq!(frames.take(owner(3), 0, 0, 0).unwrap().1, None);
        assert_eq!(frames.take(owner(4), 0, 0, 0).unwrap().1.unwrap().0.page, 2);
    }
}
