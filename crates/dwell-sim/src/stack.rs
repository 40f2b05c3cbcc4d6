// SPDX-License-Identifier: MIT OR Apache-2.0
//! LRU stack distances of pages: how much memory answers which part of the accesses.

/// The LRU miss curve of a sequence of accesses to pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// Accesses to pages that were never accessed before, which no memory answers.
    pub first: u64,
    /// Accesses that a memory of `n + 1` pages answers and one of `n` does not, by `n`.
    pub by_distance: Vec<u64>,
}

impl Curve {
    /// All accesses but first ones.
    pub fn again(&self) -> u64 {
        self.by_distance.iter().sum()
    }

    /// The fewest pages of LRU memory that answer more than `percent` of the accesses that are not
    /// first ones, or all of those at 100.
    pub fn pages_for(&self, percent: f64) -> u64 {
        let again = self.again();
        let wanted = again as f64 * percent / 100.0;
        let mut answered = 0;
        for (distance, accesses) in self.by_distance.iter().enumerate() {
            if answered as f64 > wanted || answered == again {
                return distance as u64;
            }
            answered += accesses;
        }
        self.by_distance.len() as u64
    }

    /// Accesses that an LRU memory of so many pages does not answer, first ones included.
    pub fn misses(&self, pages: u64) -> u64 {
        let beyond = self.by_distance.iter().skip(usize::try_from(pages).unwrap_or(usize::MAX));
        self.first + beyond.sum::<u64>()
    }
}

/// Counts stack distances, exactly, in time that grows with the logarithm of the pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    pub curve: Curve,
    /// When each page was accessed last; 0 for never.
    last: Vec<u32>,
    /// A Fenwick tree over time with a mark where some page was accessed last.
    marks: Vec<u32>,
    now: u32,
    latest: u32,
}

impl Stack {
    /// `page` is accessed: a number that counts pages in the order of their first access.
    #[inline]
    pub fn touch(&mut self, page: u32) {
        if self.now > 0 && page == self.latest {
            return self.count(0);
        }
        self.move_up(page);
    }

    fn count(&mut self, distance: usize) {
        if distance >= self.curve.by_distance.len() {
            self.curve.by_distance.resize(distance + 1, 0);
        }
        self.curve.by_distance[distance] += 1;
    }

    fn move_up(&mut self, page: u32) {
        self.latest = page;
        if self.now as usize + 1 >= self.marks.len() {
            self.renumber();
        }
        self.now += 1;
        let now = self.now;
        if page as usize >= self.last.len() {
            self.last.resize(page as usize + 1, 0);
        }
        let before = std::mem::replace(&mut self.last[page as usize], now);
        if before == 0 {
            self.curve.first += 1;
        } else {
            let since = self.marked_up_to(now) - self.marked_up_to(before);
            self.count(since as usize);
            self.mark(before, u32::MAX);
        }
        self.mark(now, 1);
    }

    fn mark(&mut self, time: u32, by: u32) {
        let mut at = time as usize;
        while at < self.marks.len() {
            self.marks[at] = self.marks[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    fn marked_up_to(&self, time: u32) -> u32 {
        let (mut at, mut sum) = (time as usize, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.marks[at]);
            at &= at - 1;
        }
        sum
    }

    /// Numbers the times in use from 1 on, so that memory follows the pages, not the accesses.
    fn renumber(&mut self) {
        let used = self.last.iter().zip(0u32..).filter(|(at, _)| **at > 0);
        let mut order: Vec<(u32, u32)> = used.map(|(&at, page)| (at, page)).collect();
        order.sort_unstable();
        self.marks = vec![0; (order.len() * 4).max(1 << 12)];
        self.now = 0;
        for (_, page) in order {
            self.now += 1;
            self.last[page as usize] = self.now;
            self.mark(self.now, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn curve(touches: &[u32]) -> Curve {
        let mut stack = Stack::default();
        touches.iter().for_each(|&page| stack.touch(page));
        stack.curve
    }

    #[test]
    fn a_loop_over_three_pages_needs_three_and_repeats_need_one() {
        let looped = curve(&[0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!((looped.first, looped.again(), looped.pages_for(99.0)), (3, 6, 3));
        assert_eq!((looped.misses(2), looped.misses(3)), (9, 3));
        let stream = curve(&[0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!((stream.pages_for(99.0), stream.misses(1)), (1, 3));
        assert_eq!(curve(&[]).pages_for(99.0), 0);
    }

    #[test]
    fn the_last_percent_is_left_out_and_not_more() {
        // 98 repeats of one page, and two returns to a page further away.
        let mut touches = vec![0; 99];
        touches.extend([1, 0, 1]);
        let curve = curve(&touches);
        assert_eq!(
            (curve.pages_for(97.0), curve.pages_for(98.0), curve.pages_for(100.0)),
            (1, 2, 2)
        );
    }

    proptest! {
        /// Against the definition: a list, the last accessed page in front.
        #[test]
        fn distances_are_those_of_a_list(touches in prop::collection::vec(0u32..40, 0..6_000)) {
            let (mut list, mut expected) = (Vec::new(), Curve::default());
            let mut names: Vec<u32> = Vec::new();
            let mut numbered = Vec::new();
            for page in touches {
                let number = names.iter().position(|known| *known == page).unwrap_or_else(|| {
                    names.push(page);
                    names.len() - 1
                }) as u32;
                numbered.push(number);
                match list.iter().position(|known| *known == number) {
                    None => expected.first += 1,
                    Some(distance) => {
                        list.remove(distance);
                        if distance >= expected.by_distance.len() {
                            expected.by_distance.resize(distance + 1, 0);
                        }
                        expected.by_distance[distance] += 1;
                    }
                }
                list.insert(0, number);
            }
            prop_assert_eq!(curve(&numbered), expected);
        }
    }
}
