// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recorded trace over two levels of caches by virtual addresses, counted as Cachegrind counts.
//!
//! There are no pages, no time and no other process here: it is what can be held against another
//! program that simulates caches, access by access.

use std::collections::HashMap;
use std::path::Path;

use dwell_trace::{AccessKind, Event, Reader};

use crate::cache::{Cache, Found, Line};
use crate::program::ProgramError;

/// Bytes of a line.
const LINE_BYTES: u64 = 64;

/// The size and shape of one cache with lines of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes: ways x 64 x a power of two.
    pub bytes: u64,
    /// Ways.
    pub ways: u64,
}

impl Shape {
    fn set_bits(self) -> u32 {
        (self.bytes / self.ways / LINE_BYTES).trailing_zeros()
    }

    fn cache(self) -> Cache {
        Cache::sized(self.bytes, self.ways, LINE_BYTES)
    }
}

/// Data accesses of a trace and their misses. An access over a boundary of lines is one, and what
/// is read and then written is a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Loads that miss the first level.
    pub l1_read_misses: u64,
    /// Stores that miss the first level.
    pub l1_write_misses: u64,
    /// Loads that miss both levels.
    pub ll_read_misses: u64,
    /// Stores that miss both levels.
    pub ll_write_misses: u64,
}

/// Counts the trace in a file.
///
/// # Errors
/// A trace that cannot be read on.
pub fn counts(trace: &Path, l1: Shape, ll: Shape) -> Result<Counts, ProgramError> {
    let failed = |error: dwell_trace::Error| ProgramError(error.to_string());
    let mut trace = Reader::open(trace).map_err(failed)?;
    let (mut first, mut last) = (l1.cache(), ll.cache());
    let low_bits = l1.set_bits().max(ll.set_bits());
    let mut names = Names { low_bits, ..Names::default() };
    let mut counts = Counts::default();
    while let Some(event) = trace.next_event().map_err(failed)? {
        let Event::Block(run) = event else { continue };
        counts.instructions += u64::from(run.block.instruction_count);
        for (site, address) in run.accesses() {
            if address == 0 {
                continue;
            }
            let end = address + u64::from(site.size.max(1)) - 1;
            let lines = address / LINE_BYTES..=end / LINE_BYTES;
            let (mut l1_missed, mut ll_missed) = (false, false);
            for line in lines.clone() {
                l1_missed |= first.access(names.of(line)) == Found::Missed;
            }
            if l1_missed {
                for line in lines {
                    ll_missed |= last.access(names.of(line)) == Found::Missed;
                }
            }
            let (of, l1_misses, ll_misses) = match site.kind {
                AccessKind::Store => {
                    (&mut counts.writes, &mut counts.l1_write_misses, &mut counts.ll_write_misses)
                }
                AccessKind::Load | AccessKind::Modify => {
                    (&mut counts.reads, &mut counts.l1_read_misses, &mut counts.ll_read_misses)
                }
            };
            *of += 1;
            *l1_misses += u64::from(l1_missed);
            *ll_misses += u64::from(ll_missed);
        }
    }
    Ok(counts)
}

/// Numbers of lines are short in a cache: what stands above the bits that choose sets is numbered
/// anew.
#[derive(Default)]
struct Names {
    low_bits: u32,
    known: HashMap<u64, u32>,
    latest: Option<(u64, u32)>,
}

impl Names {
    fn of(&mut self, line: u64) -> Line {
        let high = line >> self.low_bits;
        let name = match self.latest {
            Some((known, name)) if known == high => name,
            _ => {
                let next = self.known.len() as u32;
                let name = *self.known.entry(high).or_insert(next);
                self.latest = Some((high, name));
                name
            }
        };
        name << self.low_bits | line as u32 & ((1 << self.low_bits) - 1)
    }
}
