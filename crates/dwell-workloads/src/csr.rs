// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs as compressed sparse rows in a file, and over any memory that holds such a file, so that
//! a walk over one touches pages.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

use crate::random::Random;

/// Edges per vertex, as in Graph500.
const EDGE_FACTOR: usize = 16;
/// First bytes of a file: vertices and edges follow as 64-bit numbers, then `vertices + 1` 64-bit
/// offsets and 32-bit targets.
const MAGIC: &[u8; 8] = b"DWELLCSR";
const HEADER_BYTES: usize = 24;

/// A graph over bytes that somebody keeps: a mapped file, a region of memory larger than DRAM. Its
/// offsets and targets are believed only as far as they lie within; nothing is read before it is
/// asked for.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'m> {
    offsets: &'m [u64],
    targets: &'m [u32],
}

impl<'m> Graph<'m> {
    /// The graph in these bytes, which begin with its header. Reads that alone.
    pub fn over(bytes: &'m [u8]) -> Result<Self, String> {
        let no_graph = || "no graph: dwell-kernels graph makes one".to_owned();
        let header = bytes.get(..HEADER_BYTES).ok_or_else(no_graph)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or([0; 8]));
        let (known, vertices, edges) = (header[..8] == *MAGIC, word(8), word(16));
        let whole = u128::from(vertices) * 8 + u128::from(edges) * 4 + HEADER_BYTES as u128 + 8;
        // A mapping may end with the rest of a page.
        let rest = (bytes.len() as u128).checked_sub(whole);
        if !known || rest.is_none_or(|rest| rest >= 4096) || vertices > u64::from(u32::MAX) {
            return Err(no_graph());
        }
        let (vertices, edges) = (vertices as usize, edges as usize);
        let targets_at = HEADER_BYTES + 8 * (vertices + 1);
        Ok(Graph {
            offsets: numbers(&bytes[HEADER_BYTES..targets_at])?,
            targets: numbers(&bytes[targets_at..targets_at + 4 * edges])?,
        })
    }

    /// Fails unless all offsets ascend and end with the edges. Reads them all.
    pub fn check(&self) -> Result<(), String> {
        let whole = self.offsets.last() == Some(&(self.targets.len() as u64));
        match whole && self.offsets.is_sorted() {
            true => Ok(()),
            false => Err("a graph with offsets that do not fit".into()),
        }
    }

    /// Vertices.
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Targets of all edges.
    pub fn targets(&self) -> &'m [u32] {
        self.targets
    }

    /// Targets of one vertex' edges; none where its offsets do not fit.
    pub fn of(&self, vertex: usize) -> &'m [u32] {
        self.targets.get(self.edges_of(vertex)).unwrap_or(&[])
    }

    /// Which edges are one vertex'. Reads its two offsets.
    pub fn edges_of(&self, vertex: usize) -> Range<usize> {
        self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize
    }

    /// Where in the graph's bytes the two offsets of a vertex are.
    pub fn place_of_offsets(&self, vertex: usize) -> Range<usize> {
        let at = HEADER_BYTES + 8 * vertex.min(self.vertices());
        at..(at + 16).min(HEADER_BYTES + 8 * self.offsets.len())
    }

    /// Where in the graph's bytes some edges are; nowhere where there are no such edges.
    pub fn place_of_edges(&self, edges: Range<usize>) -> Range<usize> {
        let start = HEADER_BYTES + 8 * self.offsets.len();
        let end = edges.end.min(self.targets.len());
        let begin = edges.start.min(end);
        start + 4 * begin..start + 4 * end
    }
}

/// Numbers in whose bytes any value is one.
trait Number {}
impl Number for u32 {}
impl Number for u64 {}

fn numbers<T: Number>(bytes: &[u8]) -> Result<&[T], String> {
    // SAFETY: of the types that `Number` is for, any bytes are a value.
    let (before, numbers, after) = unsafe { bytes.align_to() };
    match before.is_empty() && after.is_empty() {
        true => Ok(numbers),
        false => Err("a graph's bytes begin at a multiple of eight".into()),
    }
}

/// A graph's file, mapped. Nobody may change the file meanwhile.
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapped {
    /// Maps a graph's file and checks that its offsets and targets stay within it.
    pub fn open(path: &Path) -> Result<Self, String> {
        let fail = |what: String| format!("{}: {what}", path.display());
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let bytes = file.metadata().map_err(|e| fail(e.to_string()))?.len() as usize;
        if bytes < HEADER_BYTES {
            return Err(fail("no graph: dwell-kernels graph makes one".into()));
        }
        // SAFETY: a new private mapping of an open file, of its length.
        let start = unsafe {
            let null = std::ptr::null_mut();
            libc::mmap(null, bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error().to_string()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| fail("mapped at zero".into()))?;
        let mapped = Mapped { start, bytes };
        mapped.read().and_then(|graph| graph.check()).map_err(fail)?;
        Ok(mapped)
    }

    fn read(&self) -> Result<Graph<'_>, String> {
        // SAFETY: mapped with this length until this is dropped.
        Graph::over(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) })
    }

    /// The graph.
    pub fn graph(&self) -> Graph<'_> {
        self.read().unwrap_or(Graph { offsets: &[0], targets: &[] })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; nothing borrowed from it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Writes an R-MAT graph of 2^`scale` vertices (Graph500's a = 0.57, b = c = 0.19). One that is
/// there already is kept.
pub fn generate(scale: u32, out: &Path) -> Result<String, String> {
    let vertices = 1usize << scale;
    if Mapped::open(out).is_ok_and(|mapped| mapped.graph().vertices() == vertices) {
        return Ok(format!("graph: 2^{scale} vertices, as it was"));
    }
    let mut random = Random::new(u64::from(scale));
    let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(vertices * EDGE_FACTOR);
    for _ in 0..vertices * EDGE_FACTOR {
        let (mut from, mut to) = (0u32, 0u32);
        for _ in 0..scale {
            let (down, right) = match random.draw() >> 32 {
                draw if draw < (1 << 32) * 57 / 100 => (0, 0),
                draw if draw < (1 << 32) * 76 / 100 => (0, 1),
                draw if draw < (1 << 32) * 95 / 100 => (1, 0),
                _ => (1, 1),
            };
            (from, to) = (from << 1 | down, to << 1 | right);
        }
        // Mixed, so that a vertex' number does not tell its degree.
        let mixed =
            |vertex: u32| vertex.wrapping_mul(0x9e37_79b1) & (vertices as u32).wrapping_sub(1);
        pairs.push((mixed(from), mixed(to)));
    }
    pairs.sort_unstable();
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(out)?);
        file.write_all(MAGIC)?;
        file.write_all(&(vertices as u64).to_le_bytes())?;
        file.write_all(&(pairs.len() as u64).to_le_bytes())?;
        let mut before = 0usize;
        for vertex in 0..=vertices {
            while before < pairs.len() && (pairs[before].0 as usize) < vertex {
                before += 1;
            }
            file.write_all(&(before as u64).to_le_bytes())?;
        }
        for (_, to) in &pairs {
            file.write_all(&to.to_le_bytes())?;
        }
        file.flush()
    };
    write().map_err(|e| format!("{}: {e}", out.display()))?;
    Ok(format!("graph: 2^{scale} vertices, {} edges", pairs.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_lies_over_any_bytes_that_hold_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph.csr");
        generate(6, &path).unwrap();
        assert!(generate(6, &path).unwrap().contains("as it was"));
        let mapped = Mapped::open(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut words = vec![0u64; bytes.len().div_ceil(8) + 1];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        // SAFETY: the bytes of a vector of numbers.
        let (_, copy, _) = unsafe { words.align_to::<u8>() };
        let (copy, graph) = (Graph::over(copy).unwrap(), mapped.graph());
        copy.check().unwrap();
        assert_eq!((copy.vertices(), copy.targets()), (64, graph.targets()));
        for vertex in 0..64 {
            assert_eq!(copy.of(vertex), graph.of(vertex));
            let place = graph.place_of_edges(graph.edges_of(vertex));
            let told: Vec<u8> = graph.of(vertex).iter().flat_map(|to| to.to_le_bytes()).collect();
            assert_eq!(bytes[place], told);
            let offsets = &bytes[graph.place_of_offsets(vertex)];
            assert_eq!(offsets[..8], (graph.edges_of(vertex).start as u64).to_le_bytes());
        }
        assert_eq!(graph.place_of_edges(5000..6000).end, bytes.len());
    }

    #[test]
    fn a_file_that_is_no_graph_is_refused_and_wrong_offsets_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("graph.csr");
        generate(4, &path).unwrap();
        let good = std::fs::read(&path).unwrap();
        for (at, byte) in [(0, b'X'), (8, 15), (16, 255), (30, 9)] {
            let mut bad = good.clone();
            bad[at] = byte;
            std::fs::write(&path, &bad).unwrap();
            let told = Mapped::open(&path).err().unwrap();
            assert!(told.contains("graph.csr") && told.contains("graph"), "{told}");
        }
        assert!(Graph::over(&[]).is_err());
        let wild = Graph { offsets: &[0, u64::MAX, 1], targets: &[7] };
        assert!(wild.check().is_err() && wild.of(0).is_empty() && wild.of(1).is_empty());
        assert!(wild.place_of_edges(wild.edges_of(1)).is_empty());
    }
}
