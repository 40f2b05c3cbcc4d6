// SPDX-License-Identifier: MIT OR Apache-2.0
//! Four walks over a mapped graph.

use crate::csr::Graph;
use crate::random::Random;

/// Page rank by pushing, `rounds` times over all edges.
pub fn pagerank(graph: &Graph, rounds: usize) -> String {
    let vertices = graph.vertices();
    let mut rank = vec![1.0 / vertices as f64; vertices];
    let mut next = vec![0f64; vertices];
    for _ in 0..rounds {
        let mut nowhere = 0.0;
        for (vertex, &rank) in rank.iter().enumerate() {
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

/// Communities by label propagation: a vertex takes the smallest label around it.
pub fn labels(graph: &Graph, rounds: usize) -> String {
    let mut label: Vec<u32> = (0..graph.vertices() as u32).collect();
    let mut changed = 0usize;
    for _ in 0..rounds {
        changed = 0;
        for vertex in 0..graph.vertices() {
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

/// `walks` walks of `steps` steps, each from a random vertex.
pub fn walk(graph: &Graph, walks: usize, steps: usize) -> String {
    let mut random = Random::new(3);
    let mut visits = vec![0u32; graph.vertices()];
    for _ in 0..walks {
        let mut vertex = random.below(graph.vertices());
        for _ in 0..steps {
            visits[vertex] += 1;
            let targets = graph.of(vertex);
            let next = match targets {
                [] => random.below(graph.vertices()),
                _ => targets[random.below(targets.len())] as usize,
            };
            vertex = if next < visits.len() { next } else { 0 };
        }
    }
    format!("walk: most visited {} times", visits.iter().max().unwrap_or(&0))
}

/// Shortest paths from the vertex with the most edges, in rounds over a frontier; an edge's length
/// follows from its ends.
pub fn sssp(graph: &Graph) -> String {
    let vertices = graph.vertices();
    let source = (0..vertices).max_by_key(|&vertex| graph.of(vertex).len()).unwrap_or(0);
    let mut distance = vec![u32::MAX; vertices];
    let mut queued = vec![false; vertices];
    distance[source] = 0;
    let mut frontier = vec![source as u32];
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for &vertex in &frontier {
            queued[vertex as usize] = false;
            let here = distance[vertex as usize];
            for &to in graph.of(vertex as usize) {
                let Some(there) = distance.get_mut(to as usize) else { continue };
                let through = here + 1 + ((vertex ^ to).wrapping_mul(0x9e37_79b1) >> 27);
                if through < *there {
                    *there = through;
                    if !std::mem::replace(&mut queued[to as usize], true) {
                        next.push(to);
                    }
                }
            }
        }
        frontier = next;
    }
    let reached = distance.iter().filter(|&&d| d != u32::MAX).count();
    format!("sssp: {reached} of {vertices} vertices reached")
}
