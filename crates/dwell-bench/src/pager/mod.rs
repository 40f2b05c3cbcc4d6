// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory larger than what a process may have: the kernel's mapping and the pager's region, each in
//! a process of its own, all under the same limit.
//!
//! What such a process takes is counted by a control group, from when the program has started:
//! pages of the mapped file, a region's own pages and what it needs beside them, page tables,
//! arrays. Before each turn the file's pages leave the page cache, because pages that others have
//! read are not counted.

mod child;
mod memory;
mod method;
mod serve;
mod swap;
mod task;
mod test_file;
mod umap;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use dwell_host::profile::DeviceProfile;

use crate::fixture::{MemoryGroup, Unavailable, forget_pages};
use crate::keep::Interrupted;
use crate::machine::Machine;
use crate::result::{Configured, Device, Load, RoundResult, Row, Run, Setting, Work as Named};

pub use swap::Swap;

pub use method::{Advice, DEVICE, DEVICE_BLOCK, Handler, Kind, MMAP, Method, REGION, SWAP, UMAP};
pub use serve::STAGES;
pub use task::{Task, Told};
pub use test_file::{Ask, Setup, Terms, TestFile, TestFiles};
pub use work::{Done, Order, PAGE_BYTES, Pages, Program, Visits, Work};

/// Work on one file, by several contenders.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name of the device, as in [`Plan::devices`].
    pub device: String,
    /// The file, or an address that only regions reach.
    pub address: PathBuf,
    /// What a probe learned of its device.
    pub profile: Option<DeviceProfile>,
    /// The work done on the file.
    pub work: Work,
    /// Contenders.
    pub methods: Vec<Method>,
    /// Memory for everything that a process has, in bytes.
    pub limit_bytes: u64,
    /// Longest time that visits take, in nanoseconds.
    pub most_ns: u64,
    /// Set on emulated devices: what their wake-up costs.
    pub emulated: Option<String>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the files are on.
    pub devices: Vec<Device>,
    /// The files with the work on each, and the contenders that do it.
    pub entries: Vec<Entry>,
    /// The contender that others are held against.
    pub baseline: String,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Whether the kernel's ways that are less than half as fast as its best one in the first round
    /// are left out of the others.
    pub best_only: bool,
    /// Arguments that lead this very program to [`crate::loads::serve`].
    pub hidden: Vec<String>,
    /// Set to end early.
    pub stop: Arc<AtomicBool>,
}

/// Whether limits can be set here, or why not.
///
/// # Errors
/// The reason, in one line.
pub fn limits() -> Result<&'static str, Unavailable> {
    MemoryGroup::new(1 << 24).map(|group| group.description())
}

/// Whether this process may have regions, or why not.
///
/// # Errors
/// The reason, in one line.
pub fn regions() -> Result<(), String> {
    let open = || -> Result<()> {
        let file = tempfile::NamedTempFile::new().context("a file to try")?;
        file.as_file().set_len(1 << 20)?;
        let file_at = dwell::Options::new().direct(false).open(file.path())?;
        dwell_pager::Region::open(file_at, &dwell_pager::Options::new(1 << 19))?;
        Ok(())
    };
    open().map_err(|why| format!("{why:#}"))
}

/// A limit under which about `paged_bytes` of a file of `mapped_bytes` can be in memory, beside
/// what the work has for itself and what a process needs. At least 4 MiB are left for pages, and
/// three times what the kernel reads ahead at once of the file: with less, it kills the process
/// where the device is slow.
pub fn limit_bytes(work: Work, address: &Path, mapped_bytes: u64, paged_bytes: u64) -> u64 {
    let private = work.private_bytes(mapped_bytes);
    memory::limit_bytes(private, paged_bytes, memory::read_ahead_bytes(address))
}

/// The note of a report where no memory limit can be set.
const UNLIMITED: &str = "only regions were measured, which keep to their budgets by themselves";

/// Measures in interleaved rounds; in each, the order of an entry's contenders moves on by one.
/// Where no memory limit can be set, the kernel's ways are left out: without one they would have
/// all memory.
///
/// # Errors
/// What the system refuses; a contender that found something else in the same bytes.
pub fn measure(
    plan: &Plan,
    command: Vec<String>,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Run> {
    let mut run = Run::new(Machine::gather(), command, plan.devices.clone());
    let limited = limits();
    match &limited {
        Ok(how) => {
            run.notes.push(format!("memory limit by {how}; the peak counts all that a process had"))
        }
        Err(why) => run.left_out.push(format!("mmap: {why}; {UNLIMITED}")),
    }
    let swap = match swapped_bytes(&plan.entries) {
        Some(bytes) if limited.is_ok() => Some(Swap::new(bytes)),
        _ => None,
    };
    if let Some(Err(why)) = &swap {
        run.left_out.push(format!("{SWAP}: {why:#}"));
    }
    let has_swap = matches!(swap, Some(Ok(_)));
    if let Some((name, why)) = without_umap(&plan.entries) {
        run.left_out.push(format!("{name}: {why}"));
    }
    let mut turns: Vec<(&Entry, Vec<(&Method, usize)>)> = Vec::new();
    for entry in &plan.entries {
        let mut methods = Vec::new();
        for method in &entry.methods {
            if !can(method, entry, limited.is_ok()) || (method.kind == Kind::Swap && !has_swap) {
                continue;
            }
            methods.push((method, run.rows.len()));
            run.rows.push(row(entry, method));
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let name = method.name.clone();
            run.tell(Some(Configured { name, version, settings: method.settings() }));
        }
        turns.push((entry, methods));
    }
    ensure!(!run.rows.is_empty(), "nothing to measure");
    let total = plan.rounds * run.rows.len();
    let mut step = 0;
    for round in 0..plan.rounds {
        let mut results = Vec::new();
        for (entry, methods) in &turns {
            let mut found: Option<(String, String)> = None;
            for turn in 0..methods.len() {
                if plan.stop.load(Ordering::Relaxed) {
                    if round == 0 {
                        return Err(Interrupted.into());
                    }
                    run.ended = Some("interrupted".into());
                    run.conclude_each(&plan.baseline);
                    return Ok(run);
                }
                let (method, at) = methods[(turn + round) % methods.len()];
                let what = format!("{}, {}, {}", entry.device, entry.work.as_str(), method.name);
                progress(&what, step as f64 / total as f64);
                step += 1;
                let seed = round as u64 + 1;
                let (told, result) =
                    once(entry, method, seed, limited.is_ok(), &plan.hidden).context(what)?;
                check(&mut found, method, &told)?;
                results.push((at, result));
            }
        }
        for (at, result) in results {
            run.rows[at].rounds.push(result);
        }
        if round == 0 && plan.best_only {
            for (entry, methods) in &mut turns {
                let behind = take_behind(methods, &run.rows);
                if !behind.is_empty() {
                    let work = entry.work.as_str();
                    let names = behind.join(", ");
                    run.notes.push(format!("{work}: {names}: less than half the kernel's best in the first round, not measured again"));
                }
            }
        }
    }
    run.conclude_each(&plan.baseline);
    Ok(run)
}

/// Whether a way can be measured here: without a limit the kernel's ways would have all memory.
fn can(method: &Method, entry: &Entry, limited: bool) -> bool {
    let has_library = || !matches!(method.kind, Kind::Umap { .. }) || umap::library().is_ok();
    (limited || !method.is_kernels())
        && (!method.needs_file() || !dwell::open::is_scheme(&entry.address))
        && has_library()
}

/// Length of the longest file that is to be swapped, if any is.
fn swapped_bytes(entries: &[Entry]) -> Option<u64> {
    let swaps = |entry: &&Entry| entry.methods.iter().any(|method| method.kind == Kind::Swap);
    let bytes = |entry: &Entry| std::fs::metadata(&entry.address).map_or(0, |of| of.len());
    entries.iter().filter(swaps).map(bytes).max()
}

/// Whom UMap's lack leaves out, and why.
fn without_umap(entries: &[Entry]) -> Option<(String, String)> {
    let mut methods = entries.iter().flat_map(|entry| &entry.methods);
    let method = methods.find(|method| matches!(method.kind, Kind::Umap { .. }))?;
    Some((method.name.clone(), umap::library().err()?))
}

/// Whether UMap is here, or why not.
///
/// # Errors
/// The reason, in one line.
pub fn has_umap() -> Result<(), String> {
    umap::library().map(|_| ())
}

/// Takes the kernel's mappings out that are far behind the best one that is told as much; their
/// names.
fn take_behind(methods: &mut Vec<(&Method, usize)>, rows: &[Row]) -> Vec<String> {
    let speed = |at: usize| rows[at].median(RoundResult::operations_per_second);
    let best = |hints: bool| {
        let same =
            methods.iter().filter(|(method, _)| method.kind == Kind::Mmap && method.hints == hints);
        same.map(|(_, at)| speed(*at)).fold(0.0, f64::max)
    };
    let best = [best(false), best(true)];
    let (behind, kept) = methods.drain(..).partition(|(method, at)| {
        method.kind == Kind::Mmap && speed(*at) < best[usize::from(method.hints)] / 2.0
    });
    *methods = kept;
    let behind: Vec<(&Method, usize)> = behind;
    behind.into_iter().map(|(method, _)| method.name.clone()).collect()
}

fn row(entry: &Entry, method: &Method) -> Row {
    Row {
        setting: Setting {
            device: entry.device.clone(),
            load: Load::Idle,
            scheduler: None,
            work: Named::Named { workload: entry.work.as_str().into() },
        },
        size_bytes: PAGE_BYTES as u64,
        policy: method.name.clone(),
        rounds: Vec::new(),
        emulated: entry.emulated.clone(),
    }
}

/// Fails where two contenders did all of the same work and found different things.
fn check(found: &mut Option<(String, String)>, method: &Method, told: &Told) -> Result<()> {
    if !told.done.complete {
        return Ok(());
    }
    let (first, before) =
        found.get_or_insert_with(|| (method.name.clone(), told.done.found.clone()));
    ensure!(
        *before == told.done.found,
        "{first} found {before:?} in the same bytes in which {} found {:?}",
        method.name,
        told.done.found
    );
    Ok(())
}

/// Does tasks at once, each in a process of its own: every one sets up, then all begin.
///
/// # Errors
/// A process that cannot be started, that ends without an answer, or says why it failed.
pub fn together(tasks: &[Task], hidden: &[String]) -> Result<Vec<Told>> {
    child::perform(tasks, hidden)
}

/// Single turns of an entry's contenders. The first turn of each is in the same order, and so on.
pub struct Turns<'a> {
    entry: &'a Entry,
    hidden: &'a [String],
    limited: bool,
    /// Of each order, who found what first.
    found: BTreeMap<u64, Option<(String, String)>>,
}

impl<'a> Turns<'a> {
    /// Of this entry; `hidden` as in [`Plan`].
    pub fn new(entry: &'a Entry, hidden: &'a [String]) -> Self {
        Turns { entry, hidden, limited: limits().is_ok(), found: BTreeMap::new() }
    }

    /// Whether a way can be measured here.
    pub fn can(&self, method: &Method) -> bool {
        method.kind != Kind::Swap && can(method, self.entry, self.limited)
    }

    /// One turn, whose order `seed` decides.
    ///
    /// # Errors
    /// What the system refuses; a contender that found something else in the same bytes.
    pub fn one(&mut self, method: &Method, seed: u64) -> Result<RoundResult> {
        let (told, round) = once(self.entry, method, seed, self.limited, self.hidden)
            .with_context(|| method.name.clone())?;
        check(self.found.entry(seed).or_default(), method, &told)?;
        Ok(round)
    }

    /// The row of a way that did these rounds.
    pub fn row(&self, method: &Method, rounds: Vec<RoundResult>) -> Row {
        Row { rounds, ..row(self.entry, method) }
    }
}

/// One turn of one contender.
fn once(
    entry: &Entry,
    method: &Method,
    seed: u64,
    limited: bool,
    hidden: &[String],
) -> Result<(Told, RoundResult)> {
    if entry.work.writes() {
        let open = || {
            let file = std::fs::File::options().write(true).open(&entry.address)?;
            work::scramble(&file, file.metadata()?.len())
        };
        open().with_context(|| format!("filling {}", entry.address.display()))?;
    }
    if !dwell::open::is_scheme(&entry.address) {
        let name = entry.address.display();
        forget_pages(&entry.address).with_context(|| format!("dropping the pages of {name}"))?;
    }
    let group = if limited { Some(MemoryGroup::new(entry.limit_bytes)?) } else { None };
    if let Some(group) = group.as_ref().filter(|_| method.kind == Kind::Swap) {
        Swap::allow(group.path())?;
    }
    let task = Task {
        address: entry.address.clone(),
        profile: entry.profile.clone(),
        method: method.clone(),
        work: entry.work,
        seed,
        most_ns: entry.most_ns,
        limit_bytes: entry.limit_bytes,
        group: group.as_ref().map(|group| group.path().to_owned()),
        nice: 0,
        cpu: None,
        board: None,
    };
    let told = child::perform(&[task], hidden)?;
    let told = told.into_iter().next().context("nobody answered")?;
    let mut round = told.round.clone();
    round.paging.insert("limit_bytes".into(), entry.limit_bytes);
    if let Some(peak_bytes) = group.as_ref().and_then(MemoryGroup::peak_bytes) {
        round.paging.insert("peak_bytes".into(), peak_bytes);
    }
    Ok((told, round))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_ways_far_behind_its_best_are_taken_out_and_regions_stay() {
        let entry = Entry {
            device: "loop".into(),
            address: "graph".into(),
            profile: None,
            work: Work::Graph(Program::ShortestPaths),
            methods: ["region", "mmap", "mmap-random", "mmap-hints", "mmap-random-hints", "swap"]
                .map(|method| Method::of(method).unwrap())
                .into(),
            limit_bytes: 1 << 23,
            most_ns: 0,
            emulated: None,
        };
        let rows: Vec<Row> = std::iter::zip(&entry.methods, [9, 9, 4, 2, 1, 99])
            .map(|(method, seconds)| {
                let operations = [("done".to_owned(), 1)].into();
                let wall_ns = seconds * 1_000_000_000;
                let mut row = row(&entry, method);
                row.rounds.push(RoundResult { wall_ns, operations, ..RoundResult::default() });
                row
            })
            .collect();
        let mut methods: Vec<(&Method, usize)> = entry.methods.iter().zip(0..).collect();
        assert_eq!(take_behind(&mut methods, &rows), ["mmap"]);
        let left: Vec<&str> = methods.iter().map(|(method, _)| method.name.as_str()).collect();
        assert_eq!(left, ["region", "mmap-random", "mmap-hints", "mmap-random-hints", "swap"]);
    }
}
