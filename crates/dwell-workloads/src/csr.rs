// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs as compressed sparse rows in a file that is mapped, so that a walk over one touches pages.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufWriter, Write};
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

/// A graph, mapped from its file. Nobody may change the file meanwhile.
pub struct Graph {
    start: NonNull<u8>,
    bytes: usize,
    vertices: usize,
    edges: usize,
}

impl Graph {
    /// Maps a graph and checks that its offsets and targets stay within it.
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
        let mut graph = Graph { start, bytes, vertices: 0, edges: 0 };
        let header = graph.slice::<u8>(0, HEADER_BYTES);
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or([0; 8]));
        let (known, vertices, edges) = (header[..8] == *MAGIC, word(8), word(16));
        let whole = u128::from(vertices) * 8 + u128::from(edges) * 4 + HEADER_BYTES as u128 + 8;
        if !known || whole != bytes as u128 || vertices > u64::from(u32::MAX) {
            return Err(fail("no graph: dwell-kernels graph makes one".into()));
        }
        (graph.vertices, graph.edges) = (vertices as usize, edges as usize);
        let offsets = graph.offsets();
        if offsets.last() != Some(&edges) || !offsets.is_sorted() {
            return Err(fail("a graph with offsets that do not fit".into()));
        }
        Ok(graph)
    }

    fn slice<T>(&self, at: usize, count: usize) -> &[T] {
        assert!(at + count * size_of::<T>() <= self.bytes && at.is_multiple_of(align_of::<T>()));
        // SAFETY: within the mapping, aligned, and any bytes are numbers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), count) }
    }

    /// Vertices.
    pub fn vertices(&self) -> usize {
        self.vertices
    }

    /// Where each vertex' edges begin; one more than there are vertices.
    pub fn offsets(&self) -> &[u64] {
        self.slice(HEADER_BYTES, self.vertices + 1)
    }

    /// Targets of all edges.
    pub fn targets(&self) -> &[u32] {
        self.slice(HEADER_BYTES + 8 * (self.vertices + 1), self.edges)
    }

    /// Targets of one vertex' edges.
    pub fn of(&self, vertex: usize) -> &[u32] {
        let offsets = self.offsets();
        &self.targets()[offsets[vertex] as usize..offsets[vertex + 1] as usize]
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; nothing borrowed from it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Writes an R-MAT graph of 2^`scale` vertices (Graph500's a = 0.57, b = c = 0.19). One that is
/// there already is kept.
pub fn generate(scale: u32, out: &Path) -> Result<String, String> {
    let vertices = 1usize << scale;
    if Graph::open(out).is_ok_and(|graph| graph.vertices() == vertices) {
        return Ok(format!("graph: 2^{scale} vertices, as it was"));
    }
    let mut random = Random::new(u64::from(scale));
    let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(vertices * EDGE_FACTOR);
    for _ in 0..vertices * EDGE_FACTOR {
        let (mut from, mut to) = (0u32, 0u32);
        for _ in 0..scale {
            let (down, right) = match random.next() >> 32 {
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
