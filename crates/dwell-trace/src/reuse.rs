// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reuse distances: how many different places were touched since the same place was touched last.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hasher for addresses: one multiplication.
#[derive(Clone, Copy, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

pub(crate) type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// Distances of one kind of place (lines, pages), in a histogram of powers of two.
#[derive(Clone, Debug)]
pub struct ReuseDistances {
    /// Places touched for the first time.
    pub first: u64,
    /// Touches by distance: entry 0 holds distance 0, entry `n` those from 2^(n-1) to 2^n - 1.
    pub histogram: Vec<u64>,
    /// Of how many places one was followed: 1 is exact. Counts are of those followed, distances
    /// are multiplied up.
    pub one_in: u64,
    last: AddressMap<u32>,
    /// A Fenwick tree over time with a mark where each place was touched last.
    marks: Vec<u32>,
    now: u32,
}

impl ReuseDistances {
    /// Follows one in `one_in` places, a power of two, chosen by their hash.
    pub fn new(one_in: u64) -> Self {
        ReuseDistances {
            first: 0,
            histogram: Vec::new(),
            one_in: one_in.next_power_of_two(),
            last: AddressMap::default(),
            marks: vec![0; 1 << 12],
            now: 0,
        }
    }

    /// `place` is touched.
    #[inline]
    pub fn touch(&mut self, place: u64) {
        let mut hash = place.wrapping_mul(0xd6e8_feb8_6659_fd93);
        hash ^= hash >> 32;
        if hash & (self.one_in - 1) == 0 {
            self.follow(place);
        }
    }

    fn follow(&mut self, place: u64) {
        if self.now as usize + 1 == self.marks.len() {
            self.close_up();
        }
        self.now += 1;
        let now = self.now;
        let Some(before) = self.last.insert(place, now) else {
            self.first += 1;
            return self.mark(now, 1);
        };
        let after = self.last.len() as u64 - u64::from(self.marked_up_to(before));
        self.mark(before, u32::MAX);
        self.mark(now, 1);
        let distance = after * self.one_in;
        let bucket = (u64::BITS - distance.leading_zeros()) as usize;
        if self.histogram.len() <= bucket {
            self.histogram.resize(bucket + 1, 0);
        }
        self.histogram[bucket] += 1;
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

    /// Renumbers the times in use from 1 on, so that memory follows the places, not the touches.
    fn close_up(&mut self) {
        let mut order: Vec<(u32, u64)> =
            self.last.iter().map(|(&place, &at)| (at, place)).collect();
        order.sort_unstable();
        self.marks = vec![0; (order.len() * 4).max(1 << 12).next_power_of_two()];
        for (number, (_, place)) in (1u32..).zip(order) {
            self.last.insert(place, number);
            self.mark(number, 1);
            self.now = number;
        }
    }

    /// Touches followed, first ones among them.
    pub fn touches(&self) -> u64 {
        self.first + self.histogram.iter().sum::<u64>()
    }

    /// The share of touches that a least-recently-used memory of so many places, a power of two,
    /// would not have, 0–1.
    pub fn miss_ratio(&self, places: u64) -> f64 {
        let within = (u64::BITS - places.leading_zeros()) as usize;
        let hits: u64 = self.histogram.iter().take(within).sum();
        let touches = self.touches();
        if touches == 0 { 0.0 } else { (touches - hits) as f64 / touches as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, as a list that is searched.
    fn by_list(touches: &[u64]) -> (u64, Vec<u64>) {
        let (mut stack, mut first, mut histogram) = (Vec::new(), 0, Vec::new());
        for &place in touches {
            match stack.iter().rev().position(|&p| p == place) {
                None => first += 1,
                Some(distance) => {
                    stack.remove(stack.len() - 1 - distance);
                    let bucket = (u64::BITS - (distance as u64).leading_zeros()) as usize;
                    histogram.resize(histogram.len().max(bucket + 1), 0);
                    histogram[bucket] += 1;
                }
            }
            stack.push(place);
        }
        (first, histogram)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_tree_counts_what_a_list_counts(
            touches in prop::collection::vec(prop_oneof![0u64..8, 0u64..300], 0..6000),
        ) {
            let mut reuse = ReuseDistances::new(1);
            touches.iter().for_each(|&place| reuse.touch(place));
            let (first, histogram) = by_list(&touches);
            prop_assert_eq!(reuse.first, first);
            prop_assert_eq!(&reuse.histogram, &histogram);
            prop_assert_eq!(reuse.touches(), touches.len() as u64);
        }
    }

    #[test]
    fn a_sample_sees_about_the_same_distances() {
        let mut sampled = ReuseDistances::new(16);
        for _ in 0..4 {
            for place in 0..65_536u64 {
                sampled.touch(place * 64);
            }
        }
        // Every distance is 65535; so many as one in sixteen hashes.
        assert!((3000..5500).contains(&sampled.first), "{}", sampled.first);
        assert_eq!(sampled.histogram.iter().skip(15).sum::<u64>(), 3 * sampled.first);
        assert!(sampled.miss_ratio(1 << 10) > 0.999 && sampled.miss_ratio(1 << 18) < 0.26);
    }
}
