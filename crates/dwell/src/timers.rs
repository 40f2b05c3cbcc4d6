// SPDX-License-Identifier: MIT OR Apache-2.0
//! Moments at which something is due, exact to the nanosecond.

use dwell_policy::Ns;

/// Names a timer until it has fired or was removed; afterwards it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    place: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Ns,
    /// Of equal moments, the one set first comes first.
    sequence: u64,
}

#[derive(Clone, Debug)]
struct Place<T> {
    generation: u32,
    /// Where in the heap it stands.
    stands: u32,
    kept: Option<T>,
}

/// Timers by when they are due: a heap in which each can also be found, moved and removed.
/// Allocates only when there are more timers than ever before. Reads no clock.
///
/// ```
/// use dwell::timers::Timers;
///
/// let mut timers = Timers::new();
/// let resend = timers.insert(2_000, "resend");
/// timers.insert(1_000, "probe");
/// assert_eq!(timers.next(), Some(1_000));
/// assert_eq!(timers.remove(resend), Some("resend"));
/// assert_eq!(timers.pop_due(5_000), Some((1_000, "probe")));
/// assert_eq!(timers.pop_due(5_000), None);
/// ```
#[derive(Clone, Debug)]
pub struct Timers<T> {
    heap: Vec<(Due, u32)>,
    places: Vec<Place<T>>,
    free: Vec<u32>,
    sequence: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Timers { heap: Vec::new(), places: Vec::new(), free: Vec::new(), sequence: 0 }
    }
}

impl<T> Timers<T> {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the first one is due.
    #[inline]
    pub fn next(&self) -> Option<Ns> {
        self.heap.first().map(|(due, _)| due.at)
    }

    /// Sets one that is due at `at`, keeping `kept`.
    pub fn insert(&mut self, at: Ns, kept: T) -> TimerId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, stands: 0, kept: None });
            (self.places.len() - 1) as u32
        });
        self.places[place as usize].kept = Some(kept);
        let due = self.due(at);
        self.heap.push((due, place));
        self.rise(self.heap.len() - 1);
        TimerId { place, generation: self.places[place as usize].generation }
    }

    /// What a timer keeps.
    pub fn get_mut(&mut self, id: TimerId) -> Option<&mut T> {
        let place = self.places.get_mut(id.place as usize)?;
        if place.generation == id.generation { place.kept.as_mut() } else { None }
    }

    /// Moves one to another moment; whether it was still set.
    pub fn reset(&mut self, id: TimerId, at: Ns) -> bool {
        if self.get_mut(id).is_none() {
            return false;
        }
        let stands = self.places[id.place as usize].stands as usize;
        self.heap[stands].0 = self.due(at);
        self.settle(stands);
        true
    }

    /// Takes one back, and what it kept.
    pub fn remove(&mut self, id: TimerId) -> Option<T> {
        self.get_mut(id)?;
        let stands = self.places[id.place as usize].stands as usize;
        Some(self.take(stands))
    }

    /// Takes the first one that is due at `now` or was before: when it was due, and what it kept.
    pub fn pop_due(&mut self, now: Ns) -> Option<(Ns, T)> {
        let at = self.next().filter(|at| *at <= now)?;
        Some((at, self.take(0)))
    }

    fn due(&mut self, at: Ns) -> Due {
        self.sequence += 1;
        Due { at, sequence: self.sequence }
    }

    fn take(&mut self, stands: usize) -> T {
        let (_, place) = self.heap.swap_remove(stands);
        if stands < self.heap.len() {
            self.settle(stands);
        }
        self.free.push(place);
        let place = &mut self.places[place as usize];
        place.generation = place.generation.wrapping_add(1);
        place.kept.take().expect("what stands in the heap keeps something")
    }

    fn settle(&mut self, stands: usize) {
        let stands = self.rise(stands);
        self.sink(stands);
    }

    fn rise(&mut self, mut stands: usize) -> usize {
        while stands > 0 && self.heap[stands].0 < self.heap[(stands - 1) / 2].0 {
            self.heap.swap(stands, (stands - 1) / 2);
            self.note(stands);
            stands = (stands - 1) / 2;
        }
        self.note(stands);
        stands
    }

    fn sink(&mut self, mut stands: usize) {
        loop {
            let sooner = |a: usize, b: usize| {
                let earlier = self.heap.get(b).is_some_and(|other| other.0 < self.heap[a].0);
                if earlier { b } else { a }
            };
            let first = sooner(sooner(stands, 2 * stands + 1), 2 * stands + 2);
            if first == stands {
                return self.note(stands);
            }
            self.heap.swap(stands, first);
            self.note(stands);
            stands = first;
        }
    }

    fn note(&mut self, stands: usize) {
        let place = self.heap[stands].1;
        self.places[place as usize].stands = stands as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_moments_come_in_the_order_in_which_they_were_set() {
        let mut timers = Timers::new();
        for at in 0..10 {
            timers.insert(5, at);
        }
        let order: Vec<i32> = std::iter::from_fn(|| Some(timers.pop_due(5)?.1)).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_name_names_nothing_once_its_timer_is_gone() {
        let mut timers = Timers::new();
        let first = timers.insert(1, 'a');
        assert_eq!(timers.remove(first), Some('a'));
        let second = timers.insert(2, 'b');
        assert_eq!(timers.remove(first), None);
        assert!(!timers.reset(first, 9) && timers.get_mut(first).is_none());
        assert!(timers.reset(second, 7));
        assert_eq!((timers.next(), timers.len()), (Some(7), 1));
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_sorted_list(steps in prop::collection::vec((0u8..4, 0u64..50), 0..200)) {
            let mut timers = Timers::new();
            let mut list: Vec<(Ns, u64, TimerId)> = Vec::new();
            for (step, (what, number)) in (0u64..).zip(steps) {
                match what {
                    0 | 1 => list.push((number, step, timers.insert(number, step))),
                    2 if !list.is_empty() => {
                        let (_, kept, id) = list.remove(number as usize % list.len());
                        prop_assert_eq!(timers.remove(id), Some(kept));
                    }
                    2 => {}
                    _ => {
                        let first = (0..list.len()).min_by_key(|at| (list[*at].0, *at));
                        let expected = first.filter(|at| list[*at].0 <= number).map(|at| {
                            let (at, kept, _) = list.remove(at);
                            (at, kept)
                        });
                        prop_assert_eq!(timers.pop_due(number), expected);
                    }
                }
                prop_assert_eq!(timers.len(), list.len());
                prop_assert_eq!(timers.next(), list.iter().map(|(at, ..)| *at).min());
            }
        }
    }
}
