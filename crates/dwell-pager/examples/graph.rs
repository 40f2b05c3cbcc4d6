// SPDX-License-Identifier: MIT OR Apache-2.0
//! Four graph programs over a graph that is larger than the memory for it: page rank, random walk,
//! communities and shortest paths, with hints of what they will touch.
//!
//!     cargo run --release -p dwell-pager --example graph -- [SCALE [OVER [FILE]]]
//!
//! The graph has 2^SCALE vertices (18); the budget is its file divided by OVER (4). FILE is made
//! where it does not hold such a graph; without one, a file in the working directory is made and
//! removed.
#![allow(unsafe_code)]

use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use dwell_pager::{Options, PAGE_BYTES, Region};
use dwell_workloads::csr::{self, Graph};
use dwell_workloads::graphs::{self, Hints, NoHints, Walks};

/// Makes the graph's file a region and runs the programs over it.
fn run(path: &Path, over: usize) -> Result<(), Box<dyn Error>> {
    let file = dwell::Options::new().direct(true).open(path)?;
    let bytes = file.bytes()? as usize;
    let budget_bytes = bytes / over.max(1);
    let region = Region::open(file, &Options::new(budget_bytes))?;
    let _registered = region.register_thread()?;
    println!(
        "graph of {} KiB in {} KiB, pages come by {}",
        bytes >> 10,
        budget_bytes >> 10,
        region.method()
    );
    // SAFETY: mapped for as long as the region lives, and nobody writes to the file meanwhile.
    let memory = unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) };
    let graph = Graph::over(memory)?;
    let mut hints = |bytes: Range<usize>| {
        for page in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
            region.hint(page * PAGE_BYTES);
        }
    };
    timed(&region, "without hints", || all(&graph, &mut NoHints));
    timed(&region, "with hints", || all(&graph, &mut hints));
    Ok(region.close()?)
}

fn all(graph: &Graph<'_>, hints: &mut impl Hints) -> [String; 4] {
    let walks = Walks { walks: graph.vertices() / 16, steps: 16, together: 64 };
    [
        graphs::pagerank(graph, 2, hints),
        graphs::walk(graph, walks, hints),
        graphs::labels(graph, 2, hints),
        graphs::sssp(graph, hints),
    ]
}

fn timed(region: &Region, what: &str, work: impl FnOnce() -> [String; 4]) {
    let (began, before) = (Instant::now(), region.statistics());
    let found = work();
    let (seconds, counted) = (began.elapsed().as_secs_f64(), region.statistics().since(&before));
    println!("\n{what}: {seconds:.2} s");
    found.iter().for_each(|found| println!("  {found}"));
    println!(
        "  {} faults, {} of them waited for the file; {} pages read, {} of them ahead and used",
        counted.faults,
        counted.reads_awaited + counted.joined,
        counted.pages_read,
        counted.prefetched_used
    );
}

/// A file that is removed when this is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing could be done about it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut number = |usual: usize| words.next().map_or(Ok(usual), |word| word.parse());
    let (scale, over) = (number(18)?, number(4)?);
    if !(10..=26).contains(&scale) {
        return Err(format!("{scale}: a graph has 2^10 to 2^26 vertices").into());
    }
    let given = words.next().map(PathBuf::from);
    let path = given.clone().unwrap_or_else(|| format!("graph-{}.csr", std::process::id()).into());
    let _removed = given.is_none().then(|| Temporary(path.clone()));
    println!("{}", csr::generate(scale as u32, &path)?);
    run(&path, over)
}
