// SPDX-License-Identifier: MIT OR Apache-2.0
//! Four walks over a graph, which can tell ahead of time what they will touch.

use std::ops::Range;

use crate::csr::Graph;
use crate::random::Random;

/// Hears which of the graph's bytes a walk will touch soon. A listener that does not want them
/// ([`NoHints`]) is not told, and the walk does nothing for it.
pub trait Hints {
    /// Whether a walk is to look ahead.
    const WANTED: bool = true;
    /// These bytes, counted from the graph's first, will be read soon.
    fn soon(&mut self, bytes: Range<usize>);
}

/// Nobody who hears.
#[derive(Clone, Copy, Debug)]
pub struct NoHints;

impl Hints for NoHints {
    const WANTED: bool = false;
    fn soon(&mut self, _: Range<usize>) {}
}

impl<F: FnMut(Range<usize>)> Hints for F {
    fn soon(&mut self, bytes: Range<usize>) {
        self(bytes);
    }
}

/// How far ahead a sweep over all edges tells what it will read, and how much at a time, in bytes.
const AHEAD_BYTES: usize = 256 << 10;
const STEP_BYTES: usize = 64 << 10;
/// How many vertices ahead a frontier tells whose edges it will read; of twice as many, which
/// offsets.
const AHEAD_VERTICES: usize = 32;

/// A sweep over all edges in order, told a step at a time.
struct Sweep {
    edges: Told,
    offsets: Told,
}

/// Up to where something was told.
struct Told(usize);

impl Told {
    /// Tells what comes up to `AHEAD_BYTES` behind `at`, once.
    fn up_to(&mut self, at: usize, end: usize, hints: &mut impl Hints) {
        let wanted = (at + AHEAD_BYTES).min(end);
        if wanted >= self.0 + STEP_BYTES || (wanted == end && self.0 < end) {
            hints.soon(self.0.max(at)..wanted);
            self.0 = wanted;
        }
    }
}

impl Sweep {
    fn new() -> Self {
        Sweep { edges: Told(0), offsets: Told(0) }
    }

    fn at(&mut self, graph: &Graph<'_>, vertex: usize, hints: &mut impl Hints) {
        let offsets = graph.place_of_offsets(vertex);
        let all = graph.place_of_edges(0..graph.targets().len());
        self.offsets.up_to(offsets.start, all.start, hints);
        let edge = graph.place_of_edges(graph.edges_of(vertex)).start;
        self.edges.up_to(edge, all.end, hints);
    }
}

/// Page rank by pushing, `rounds` times over all edges.
pub fn pagerank(graph: &Graph<'_>, rounds: usize, hints: &mut impl Hints) -> String {
    let vertices = graph.vertices();
    let mut rank = vec![1.0 / vertices as f64; vertices];
    let mut next = vec![0f64; vertices];
    for _ in 0..rounds {
        let mut nowhere = 0.0;
        let mut sweep = Sweep::new();
        for (vertex, &rank) in rank.iter().enumerate() {
            tell(&mut sweep, graph, vertex, hints);
            let targets = graph.of(vertex);
            if targets.is_empty() {
                nowhere += rank;
                continue;
            }
            let share = rank / targets.len() as f64;
            for &to in targets {
                if let Some(next) = next.get_mut(to as usize) {
                    *next += share;
                }
            }
        }
        for (rank, next) in rank.iter_mut().zip(&mut next) {
            *rank = (0.15 + 0.85 * nowhere) / vertices as f64 + 0.85 * std::mem::take(next);
        }
    }
    format!("pagerank: sum {:.6}", rank.iter().sum::<f64>())
}

fn tell<H: Hints>(sweep: &mut Sweep, graph: &Graph<'_>, vertex: usize, hints: &mut H) {
    if H::WANTED {
        sweep.at(graph, vertex, hints);
    }
}

/// Communities by label propagation: a vertex takes the smallest label around it.
pub fn labels(graph: &Graph<'_>, rounds: usize, hints: &mut impl Hints) -> String {
    let mut label: Vec<u32> = (0..graph.vertices() as u32).collect();
    let mut changed = 0usize;
    for _ in 0..rounds {
        changed = 0;
        let mut sweep = Sweep::new();
        for vertex in 0..graph.vertices() {
            tell(&mut sweep, graph, vertex, hints);
            let mut least = label[vertex];
            for &to in graph.of(vertex) {
                least = least.min(label.get(to as usize).copied().unwrap_or(u32::MAX));
            }
            changed += usize::from(least != label[vertex]);
            label[vertex] = least;
        }
    }
    format!("labels: {changed} changed in the last round")
}

/// Walks over a graph, each of `steps` steps from a random vertex.
#[derive(Clone, Copy, Debug)]
pub struct Walks {
    /// How many.
    pub walks: usize,
    /// Steps of each.
    pub steps: usize,
    /// How many advance together, a step each in turn; 1 is one walk after the other.
    pub together: usize,
}

/// Walks, and counts how often each vertex is visited.
pub fn walk<H: Hints>(graph: &Graph<'_>, walks: Walks, hints: &mut H) -> String {
    let Walks { walks, steps, together } = walks;
    let mut visits = vec![0u32; graph.vertices()];
    let mut random = Random::new(3);
    let mut left = walks;
    // At no time more walkers than there are walks.
    let mut at = vec![0usize; together.clamp(1, walks.max(1))];
    let mut edges = vec![None; at.len()];
    while left > 0 && !visits.is_empty() {
        let group = at.len().min(left);
        left -= group;
        let at = &mut at[..group];
        at.iter_mut().for_each(|vertex| *vertex = random.below(graph.vertices()));
        for _ in 0..steps {
            if H::WANTED {
                at.iter().for_each(|&vertex| hints.soon(graph.place_of_offsets(vertex)));
            }
            // All edges are drawn before any is read, so that it can be told which.
            for (vertex, edge) in at.iter().zip(&mut edges) {
                let all = graph.edges_of(*vertex);
                let count = all.end.saturating_sub(all.start);
                *edge = (count > 0).then(|| all.start + random.below(count));
                if let (true, Some(edge)) = (H::WANTED, *edge) {
                    hints.soon(graph.place_of_edges(edge..edge.saturating_add(1)));
                }
            }
            for (vertex, edge) in at.iter_mut().zip(&edges) {
                visits[*vertex] += 1;
                let target = edge.and_then(|edge| graph.targets().get(edge));
                let next = target.map_or_else(|| random.below(visits.len()), |to| *to as usize);
                *vertex = if next < visits.len() { next } else { 0 };
            }
        }
    }
    format!("walk: most visited {} times", visits.iter().max().unwrap_or(&0))
}

/// Shortest paths from the vertex with the most edges, in rounds over a frontier; an edge's length
/// follows from its ends.
pub fn sssp<H: Hints>(graph: &Graph<'_>, hints: &mut H) -> String {
    let length = |from: u32, to: u32| 1 + ((from ^ to).wrapping_mul(0x9e37_79b1) >> 27);
    let (reached, vertices) = spread(graph, hints, length);
    format!("sssp: {reached} of {vertices} vertices reached")
}

/// Breadth-first search from the vertex with the most edges, level by level.
pub fn bfs<H: Hints>(graph: &Graph<'_>, hints: &mut H) -> String {
    let (reached, vertices) = spread(graph, hints, |_, _| 1);
    format!("bfs: {reached} of {vertices} vertices reached")
}

/// Distances from the vertex with the most edges, in rounds over a frontier; how many vertices were
/// reached, of how many.
fn spread<H: Hints>(
    graph: &Graph<'_>,
    hints: &mut H,
    length: impl Fn(u32, u32) -> u32,
) -> (usize, usize) {
    let vertices = graph.vertices();
    let source = (0..vertices).max_by_key(|&vertex| graph.of(vertex).len()).unwrap_or(0);
    let mut distance = vec![u32::MAX; vertices];
    let mut queued = vec![false; vertices];
    // Room for all: what is not used takes no memory, and what is used is not moved.
    let mut frontier = Vec::with_capacity(vertices);
    let mut next = Vec::with_capacity(vertices);
    if let Some(nearest) = distance.get_mut(source) {
        *nearest = 0;
        frontier.push(source as u32);
    }
    while !frontier.is_empty() {
        for (turn, &vertex) in frontier.iter().enumerate() {
            if H::WANTED {
                if let Some(&later) = frontier.get(turn + 2 * AHEAD_VERTICES) {
                    hints.soon(graph.place_of_offsets(later as usize));
                }
                if let Some(&soon) = frontier.get(turn + AHEAD_VERTICES) {
                    let edges = graph.place_of_edges(graph.edges_of(soon as usize));
                    // Many have none, and then no page is read.
                    if !edges.is_empty() {
                        hints.soon(edges);
                    }
                }
            }
            queued[vertex as usize] = false;
            let here = distance[vertex as usize];
            for &to in graph.of(vertex as usize) {
                let Some(there) = distance.get_mut(to as usize) else { continue };
                let through = here + length(vertex, to);
                if through < *there {
                    *there = through;
                    if !std::mem::replace(&mut queued[to as usize], true) {
                        next.push(to);
                    }
                }
            }
        }
        frontier.clear();
        std::mem::swap(&mut frontier, &mut next);
    }
    (distance.iter().filter(|&&d| d != u32::MAX).count(), vertices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::{Mapped, generate};

    /// A small graph's file, mapped.
    fn small() -> (tempfile::TempDir, Mapped) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph.csr");
        generate(12, &path).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        (directory, mapped)
    }

    #[test]
    fn hints_change_no_result() {
        let (_kept, mapped) = small();
        let graph = mapped.graph();
        let mut told = 0usize;
        let mut hints = |bytes: Range<usize>| told += bytes.len();
        assert_eq!(pagerank(&graph, 2, &mut NoHints), pagerank(&graph, 2, &mut hints));
        assert_eq!(labels(&graph, 2, &mut NoHints), labels(&graph, 2, &mut hints));
        let walks = Walks { walks: 100, steps: 5, together: 16 };
        assert_eq!(walk(&graph, walks, &mut NoHints), walk(&graph, walks, &mut hints));
        assert_eq!(sssp(&graph, &mut NoHints), sssp(&graph, &mut hints));
        assert_eq!(bfs(&graph, &mut NoHints), bfs(&graph, &mut hints));
        assert!(told > 0);
    }

    #[test]
    fn a_search_reaches_what_paths_of_any_length_reach() {
        let (_kept, mapped) = small();
        let graph = mapped.graph();
        let (found, paths) = (bfs(&graph, &mut NoHints), sssp(&graph, &mut NoHints));
        assert_eq!(found.strip_prefix("bfs"), paths.strip_prefix("sssp"));
    }

    #[test]
    fn a_sweep_tells_every_byte_once_and_in_time() {
        let (_kept, mapped) = small();
        let graph = mapped.graph();
        let mut told = Vec::new();
        let mut sweep = Sweep::new();
        for vertex in 0..graph.vertices() {
            sweep.at(&graph, vertex, &mut |bytes: Range<usize>| told.push(bytes));
            let edges = graph.place_of_edges(graph.edges_of(vertex));
            let covers = |at: usize| told.iter().any(|range| range.contains(&at));
            assert!(edges.is_empty() || covers(edges.start), "{vertex}");
            assert!(covers(graph.place_of_offsets(vertex).start), "{vertex}");
        }
        let mut bytes: Vec<usize> = told.into_iter().flatten().collect();
        let all = bytes.len();
        bytes.sort_unstable();
        bytes.dedup();
        assert_eq!(bytes.len(), all);
    }

    #[test]
    fn a_frontier_tells_what_it_reads_before_it_does() {
        let (_kept, mapped) = small();
        let graph = mapped.graph();
        let mut told = vec![false; graph.place_of_edges(0..usize::MAX).end + 1];
        sssp(&graph, &mut |bytes: Range<usize>| {
            assert!(!bytes.is_empty());
            told[bytes].fill(true);
        });
        let edges = graph.place_of_edges(0..graph.targets().len());
        let share = told[edges.clone()].iter().filter(|told| **told).count();
        assert!(share > edges.len() / 2, "{share} of {}", edges.len());
    }
}
