// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program does with memory: visits to pages in some order, or a walk over a graph.

use std::hint::black_box;
use std::ops::Range;

use anyhow::{Result, anyhow, bail, ensure};
use dwell::clock;
use dwell_workloads::csr::Graph;
use dwell_workloads::graphs::{self, Hints, NoHints, Walks};
use serde::{Deserialize, Serialize};

use crate::latency::{Latencies, LatencySummary};
use crate::stats::SplitMix;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// How many visits ahead a program tells which page it will need.
const AHEAD: usize = 32;
/// After so many visits the clock is read.
const LOOK_EVERY: u64 = 64;

/// In which order pages are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Any page, each time anew.
    Random,
    /// Any page, none a second time before all were visited.
    Shuffled,
    /// One after the other, from the first again after the last.
    Sequential,
    /// Every so-many-th page; after the last, those beside them.
    Strided {
        /// Distance in pages.
        pages: u64,
    },
    /// One page of each of so many arrays in turn, each from its first to its last.
    Streams {
        /// Arrays, of equal length.
        arrays: u64,
    },
    /// One after the other, and after each any page of the window behind it.
    Window {
        /// Length of the window in pages.
        pages: u64,
    },
}

/// Visits to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visits {
    /// In which order.
    pub order: Order,
    /// How many.
    pub visits: u64,
    /// Whether the whole page is read; without, one word of it.
    pub whole: bool,
    /// Turns of arithmetic between visits, about a nanosecond each.
    pub turns: u32,
    /// Whether each visit is timed by itself.
    pub timed: bool,
}

/// A walk over a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// Page rank, so many rounds.
    PageRank(u32),
    /// Random walks of 16 steps, so many per 1024 vertices.
    RandomWalk(u32),
    /// Communities by label propagation, so many rounds.
    Communities(u32),
    /// Shortest paths from the largest vertex.
    ShortestPaths,
    /// Breadth-first search from the largest vertex.
    BreadthFirst,
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Visits to pages of any content.
    Visits(Visits),
    /// A walk over a graph, which the memory must hold.
    Graph(Program),
    /// Sorting all as words of 64 bits, in place: UMap's `umapsort`.
    Sort,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Visits, or 1 for a walk that is done.
    pub operations: u64,
    /// Whether that was all.
    pub complete: bool,
    /// What the program found: whoever did the same work on the same bytes found the same.
    pub found: String,
    /// Of timed visits.
    pub latency: LatencySummary,
}

impl Program {
    /// The four of G3.
    pub const ALL: [Program; 4] = [
        Program::PageRank(2),
        Program::RandomWalk(16),
        Program::Communities(2),
        Program::ShortestPaths,
    ];

    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Program::PageRank(_) => "page rank",
            Program::RandomWalk(_) => "random walk",
            Program::Communities(_) => "communities",
            Program::ShortestPaths => "shortest paths",
            Program::BreadthFirst => "breadth-first search",
        }
    }

    /// Memory of its own per vertex, in bytes.
    const fn vertex_bytes(self) -> u64 {
        match self {
            Program::PageRank(_) => 16,
            Program::RandomWalk(_) | Program::Communities(_) => 4,
            // Distances, marks and two frontiers, in which about three in four of an R-MAT graph's
            // vertices stand at most: more would be memory that only the page cache has a use for.
            Program::ShortestPaths | Program::BreadthFirst => 5 + 3,
        }
    }
}

impl Order {
    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Shuffled => "each page once",
            Order::Sequential => "sequential",
            Order::Strided { .. } => "strided",
            Order::Streams { .. } => "several arrays",
            Order::Window { .. } => "window",
        }
    }
}

impl Work {
    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Work::Visits(visits) => visits.order.as_str(),
            Work::Graph(program) => program.as_str(),
            Work::Sort => "sort",
        }
    }

    /// Whether it changes the file.
    pub const fn writes(self) -> bool {
        matches!(self, Work::Sort)
    }

    /// Memory that it takes for itself where the mapped memory has so many bytes.
    pub fn private_bytes(self, mapped_bytes: u64) -> u64 {
        match self {
            Work::Visits(Visits { order: Order::Shuffled, .. }) => {
                mapped_bytes / PAGE_BYTES as u64 * 4
            }
            Work::Visits(_) | Work::Sort => 0,
            // A vertex has two times 36 bytes in a graph's file: 16 targets and an offset.
            Work::Graph(program) => mapped_bytes / 72 * program.vertex_bytes(),
        }
    }

    /// Does it on `bytes`; `hint` hears ahead of time what will be read. Visits end at `until_ns`
    /// of [`clock::now`], if not before.
    ///
    /// # Errors
    /// No pages; a walk over what is no graph.
    pub fn perform<F: Fn(Range<usize>)>(
        self,
        bytes: &[u8],
        hint: Option<F>,
        seed: u64,
        until_ns: u64,
    ) -> Result<Done> {
        match self {
            Work::Visits(visits) => {
                ensure!(bytes.len() >= PAGE_BYTES, "{} bytes are no page", bytes.len());
                let touch = |page: usize| visits.touch(&bytes[page * PAGE_BYTES..][..PAGE_BYTES]);
                visits.perform(bytes.len() / PAGE_BYTES, touch, hint, seed, until_ns)
            }
            Work::Sort => bail!("only memory that can be written to is sorted"),
            Work::Graph(program) => {
                let graph = Graph::over(bytes).map_err(|why| anyhow!(why))?;
                let found = match hint {
                    Some(hint) => program.perform(&graph, &mut |bytes| hint(bytes)),
                    None => program.perform(&graph, &mut NoHints),
                };
                Ok(Done { operations: 1, complete: true, found, ..Done::default() })
            }
        }
    }
}

/// Sorts words in place. All that was there is there afterwards, which a sum shows.
pub(super) fn sort(words: &mut [u64]) -> Done {
    let sum = |words: &[u64]| words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    words.sort_unstable();
    let order = if words.is_sorted() { "in order" } else { "out of order" };
    let found = format!("{} words {order}: {:016x}", words.len(), sum(words));
    Done { operations: 1, complete: true, found, ..Done::default() }
}

/// Fills a file with words in no order, the same each time.
pub(super) fn scramble(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    const WORDS: usize = 128 << 10;
    let mut random = SplitMix(1);
    let mut part = Vec::with_capacity(WORDS * 8);
    let mut at = 0;
    while at < bytes {
        part.clear();
        (0..WORDS).for_each(|_| part.extend(random.next_u64().to_le_bytes()));
        let length = (bytes - at).min(part.len() as u64);
        file.write_all_at(&part[..length as usize], at)?;
        at += length;
    }
    file.sync_data()
}

impl Program {
    fn perform(self, graph: &Graph<'_>, hints: &mut impl Hints) -> String {
        match self {
            Program::PageRank(rounds) => graphs::pagerank(graph, rounds as usize, hints),
            Program::Communities(rounds) => graphs::labels(graph, rounds as usize, hints),
            Program::ShortestPaths => graphs::sssp(graph, hints),
            Program::BreadthFirst => graphs::bfs(graph, hints),
            Program::RandomWalk(per_1024) => {
                let walks = (graph.vertices() * per_1024 as usize).div_ceil(1024);
                graphs::walk(graph, Walks { walks, steps: 16, together: 64 }, hints)
            }
        }
    }
}

impl Visits {
    /// Reads one page: the sum of its words, or its first word alone.
    pub(super) fn touch(&self, page: &[u8]) -> u64 {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or([0; 8]));
        match self.whole {
            true => page.chunks_exact(8).map(word).fold(0, u64::wrapping_add),
            false => word(&page[..8]),
        }
    }

    /// Visits of any kind of `pages` pages: `touch` says what it found on one.
    ///
    /// # Errors
    /// Those of making the order.
    pub fn perform<F: Fn(Range<usize>)>(
        &self,
        pages: usize,
        mut touch: impl FnMut(usize) -> u64,
        hint: Option<F>,
        seed: u64,
        until_ns: u64,
    ) -> Result<Done> {
        let mut order = Pages::new(self.order, pages, seed);
        let mut later = Pages::new(self.order, pages, seed);
        let tell = |page: usize| {
            if let Some(hint) = &hint {
                hint(page * PAGE_BYTES..(page + 1) * PAGE_BYTES);
            }
        };
        if hint.is_some() {
            (0..AHEAD).map(|_| later.draw()).for_each(tell);
        }
        let mut latencies = Latencies::new();
        let (mut done, mut sum, mut spent) = (0, 0u64, seed);
        // At least one, however late it has become: of none there is nothing to say.
        while done < self.visits && (done == 0 || done % LOOK_EVERY != 0 || clock::now() < until_ns)
        {
            if hint.is_some() {
                tell(later.draw());
            }
            let page = order.draw();
            let found = match self.timed {
                true => {
                    let began_ns = clock::now();
                    let found = black_box(touch(page));
                    latencies.record(clock::now() - began_ns);
                    found
                }
                false => touch(page),
            };
            sum = sum.wrapping_mul(31).wrapping_add(found);
            for _ in 0..self.turns {
                spent = spent.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            done += 1;
        }
        black_box(spent);
        let found = format!("{} visits: {sum:016x}", self.order.as_str());
        let (complete, latency) = (done == self.visits, latencies.summary());
        Ok(Done { operations: done, complete, found, latency })
    }
}

/// The pages of an order, without end.
pub struct Pages {
    order: Order,
    pages: usize,
    random: SplitMix,
    turn: usize,
    shuffled: Vec<u32>,
}

impl Pages {
    /// The pages of an order over so many pages.
    pub fn new(order: Order, pages: usize, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let mut shuffled: Vec<u32> = match order {
            Order::Shuffled => (0..pages as u32).collect(),
            _ => Vec::new(),
        };
        for last in (1..shuffled.len()).rev() {
            shuffled.swap(last, random.below(last + 1));
        }
        Pages { order, pages, random, turn: 0, shuffled }
    }

    /// The next page.
    pub fn draw(&mut self) -> usize {
        let (turn, pages) = (self.turn, self.pages);
        self.turn += 1;
        match self.order {
            Order::Random => self.random.below(pages),
            Order::Shuffled => self.shuffled[turn % pages] as usize,
            Order::Sequential => turn % pages,
            Order::Strided { pages: stride } => {
                let stride = (stride as usize).clamp(1, pages);
                let (in_row, rows) = (pages / stride, stride);
                (turn % in_row) * stride + (turn / in_row) % rows
            }
            Order::Streams { arrays } => {
                let arrays = (arrays as usize).clamp(1, pages);
                let length = pages / arrays;
                (turn % arrays) * length + (turn / arrays) % length
            }
            Order::Window { pages: window } => {
                let at = (turn / 2) % pages;
                match turn % 2 {
                    0 => at,
                    _ => at - self.random.below((window as usize).clamp(1, at + 1)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(order: Order, pages: usize, count: usize) -> Vec<usize> {
        let mut all = Pages::new(order, pages, 7);
        (0..count).map(|_| all.draw()).collect()
    }

    #[test]
    fn orders_are_what_they_say() {
        assert_eq!(first(Order::Sequential, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(first(Order::Strided { pages: 3 }, 7, 8), [0, 3, 1, 4, 2, 5, 0, 3]);
        assert_eq!(first(Order::Streams { arrays: 2 }, 6, 7), [0, 3, 1, 4, 2, 5, 0]);
        let mut once = first(Order::Shuffled, 50, 50);
        assert_ne!(once, first(Order::Sequential, 50, 50));
        once.sort_unstable();
        assert_eq!(once, first(Order::Sequential, 50, 50));
        let window = first(Order::Window { pages: 4 }, 100, 200);
        for pair in window.chunks(2) {
            assert!(pair[1] <= pair[0] && pair[0] - pair[1] < 4, "{pair:?}");
        }
        for order in [Order::Random, Order::Strided { pages: 900 }, Order::Streams { arrays: 99 }] {
            assert!(first(order, 9, 100).iter().all(|page| *page < 9), "{order:?}");
        }
    }

    #[test]
    fn hints_name_every_page_ahead_and_change_nothing_else() {
        let bytes: Vec<u8> = (0..40 * PAGE_BYTES).map(|at| ((at * 31) >> 7) as u8).collect();
        for order in [Order::Random, Order::Strided { pages: 3 }, Order::Window { pages: 8 }] {
            let visits = Visits { order, visits: 200, whole: true, turns: 2, timed: false };
            let told = std::cell::RefCell::new(Vec::new());
            let hint = |bytes: Range<usize>| told.borrow_mut().push(bytes.start / PAGE_BYTES);
            let work = Work::Visits(visits);
            let with = work.perform(&bytes, Some(hint), 3, u64::MAX).unwrap();
            let without = work.perform(&bytes, None::<fn(_)>, 3, u64::MAX).unwrap();
            assert_eq!((&with, with.operations, with.complete), (&without, 200, true));
            let mut pages = Pages::new(order, 40, 3);
            let visited: Vec<usize> = (0..200 + AHEAD).map(|_| pages.draw()).collect();
            assert_eq!(*told.borrow(), visited);
        }
    }

    #[test]
    fn visits_end_in_time_and_are_timed_where_that_is_wanted() {
        let visits =
            Visits { order: Order::Random, visits: 1 << 40, whole: false, turns: 0, timed: true };
        let bytes = vec![1; 8 * PAGE_BYTES];
        let until = clock::now() + 5_000_000;
        let done = Work::Visits(visits).perform(&bytes, None::<fn(_)>, 1, until).unwrap();
        assert!(!done.complete && done.operations > 0);
        assert_eq!(done.latency.count, done.operations);
        let nothing = Work::Visits(visits).perform(&[], None::<fn(_)>, 1, until);
        assert!(nothing.unwrap_err().to_string().contains("no page"));
        let no_graph = Work::Graph(Program::ShortestPaths);
        assert!(no_graph.perform(&bytes, None::<fn(_)>, 1, until).is_err());
    }
}
