// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stats pages: one small file per process under Dwell, by which others watch and steer it.
//!
//! The process maps its file and writes its figures there once a window; whoever wants to know
//! reads the file, and whoever wants to change something writes a few words that the process looks
//! at. All processes of one user share a directory that nobody else may write. Still, whatever is
//! read from a file counts as foreign: it is copied once, then bounded, then used. Should somebody
//! of the same user make the file of a running process shorter, that process dies of SIGBUS.
//!
//! ```
//! use dwell_host::stats_page::{self, Header, StatsPage, Snapshot};
//!
//! # let parent = tempfile::tempdir().unwrap();
//! # let dir = parent.path().join("dwell");
//! let ours = StatsPage::create(&dir, &Header::default())?;
//! ours.publish(&Snapshot { processes: 1, ..Snapshot::default() })?;
//! assert_eq!(stats_page::list(&dir)?.len(), 1);
//!
//! stats_page::order(&dir, std::process::id(), "policy=block")?;
//! assert_eq!(ours.control().policy.as_deref(), Some("block"));
//! # Ok::<(), dwell::Error>(())
//! ```

mod closing;
mod layout;
mod place;
mod process;
mod publisher;
mod run;
mod snapshot;
mod steer;
mod watch;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use std::sync::{Arc, Mutex, PoisonError};

pub use closing::closing;
pub use dwell::learner::LearnerState;
pub use process::start_ticks;
pub use publisher::{PassedBy, Publisher, Told};
pub use run::{end_run, gather};
pub use snapshot::{Control, Device, Header, LoadNow, MOST_DEVICES, Passed, ProcessIo, Snapshot};
pub use steer::Steered;
pub use watch::{Look, Rates, Seen, Watch};

use dwell::clock;
use dwell::error::{Error, Result};
use dwell::monitor::sys;
use dwell::policies;
use dwell::shared_atomics::SharedAtomics;
use layout::*;

/// Rows that a new file has room for; it grows when more are published.
const ROWS_AT_FIRST: usize = 2;

/// After so long without a publication a process that nobody here can ask for is taken for dead.
const SILENCE_NS: u64 = 10_000_000_000;

/// This process's stats page. Dropped, the file goes.
#[derive(Debug)]
pub struct StatsPage {
    words: Arc<SharedAtomics>,
    dir: PathBuf,
    path: PathBuf,
    header: Header,
    /// The file, to tell it from another of the same name.
    inode: u64,
    /// Rows that the file has room for.
    rows: Mutex<usize>,
    /// What was done is with the run, and the file has gone.
    settled: AtomicBool,
}

/// Reads what a process is told, from anywhere in it.
#[derive(Clone, Debug)]
pub struct ControlReader(Arc<SharedAtomics>);

impl ControlReader {
    /// A number that changes with every order: one relaxed load.
    #[inline]
    pub fn generation(&self) -> u32 {
        u64::from_le(self.0[AT_GENERATION].load(Relaxed)) as u32
    }

    /// Whether everything is to be left to the kernel: one relaxed load.
    #[inline]
    pub fn is_off(&self) -> bool {
        u64::from_le(self.0[AT_OFF].load(Relaxed)) & 1 == 1
    }

    /// All that was ordered so far.
    pub fn control(&self) -> Control {
        let (generation, policy) = self.policy_words();
        control(generation.into(), self.is_off().into(), &policy)
    }

    /// The last generation, and the policy that it names.
    fn policy_words(&self) -> (u32, [u64; POLICY_WORDS]) {
        // A writer writes the number after the words. While one writes them, the number is about to
        // change, and the process then looks at them again.
        let generation = u64::from_le(self.0[AT_GENERATION].load(Acquire)) as u32;
        let word = |at: usize| u64::from_le(self.0[AT_POLICY + at].load(Relaxed));
        (generation, std::array::from_fn(word))
    }
}

impl StatsPage {
    /// The stats page of this process, in a directory that is made if it is missing. Pid, start,
    /// pid namespace and command are filled in; without a root, the process is its run's own.
    ///
    /// A process of a run begins with what the run's root was told. A file that the same process
    /// left before it executed another program is added to what is kept of the run.
    ///
    /// # Errors
    /// A directory that cannot be made, belongs to somebody else or may be written by others; a
    /// file system without room. The caller can carry on without a stats page.
    pub fn create(dir: &Path, header: &Header) -> Result<StatsPage> {
        place::made(dir)?;
        let header = filled_in(header)?;
        let path = dir.join(place::name_of(header.pid, header.start_ticks));
        // Only this process writes a file of this name: one that is there is what it left itself.
        if let Ok(mut before) = read(&path) {
            before.processes = 0;
            // The kernel goes on counting.
            before.io = ProcessIo::default();
            run::keep(dir, &before);
        }
        remove(&path);
        let told = match header.pid == header.root_pid {
            true => Control::default(),
            false => {
                let root = place::name_of(header.root_pid, header.root_start_ticks);
                read(&dir.join(root)).map(|root| root.control).unwrap_or_default()
            }
        };
        let file = place::fresh(&path)?;
        let mapped = || {
            let found = file.metadata()?;
            sys::allocate(&file, bytes_of(ROWS_AT_FIRST))?;
            Ok((SharedAtomics::of_file(&file, MOST_WORDS)?, found.ino()))
        };
        let (words, inode) = mapped().map_err(|error| {
            remove(&path);
            Error::io("make room in", &path, None, error)
        })?;
        for (word, value) in words.iter().zip(first_page(&header, &told)) {
            word.store(value.to_le(), Relaxed);
        }
        let rows = Mutex::new(ROWS_AT_FIRST);
        let dir = dir.to_owned();
        let settled = AtomicBool::new(false);
        Ok(StatsPage { words: Arc::new(words), dir, path, header, inode, rows, settled })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of this process and of its run.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the calling process is the one that this is the stats page of, and not a child of
    /// it.
    pub fn is_ours(&self) -> bool {
        self.header.pid == std::process::id()
    }

    /// A handle that reads what this process is told.
    pub fn reader(&self) -> ControlReader {
        ControlReader(self.words.clone())
    }

    /// A number that changes with every order: one relaxed load.
    #[inline]
    pub fn generation(&self) -> u32 {
        u64::from_le(self.words[AT_GENERATION].load(Relaxed)) as u32
    }

    /// All that was ordered so far.
    pub fn control(&self) -> Control {
        self.reader().control()
    }

    /// Writes this process's figures. Header and control of the snapshot are left alone.
    ///
    /// # Errors
    /// A forked child asks, which has no part in its parent's file.
    pub fn publish(&self, snapshot: &Snapshot) -> Result<()> {
        if !self.is_ours() {
            let what = format!("is the stats page of process {}; create one", self.header.pid);
            return Err(Error::invalid(&self.path, what));
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room(&mut rows, snapshot.devices.len().min(MOST_DEVICES));
        let (process, devices) = published(snapshot, *rows);
        let put = |at: usize, words: &[u64]| {
            for (word, value) in self.words[at..][..words.len()].iter().zip(words) {
                word.store(value.to_le(), Relaxed);
            }
        };
        let number = u64::from_le(self.words[AT_DONE].load(Relaxed)).wrapping_add(1).to_le();
        self.words[AT_BEGUN].store(number, Relaxed);
        fence(Release);
        put(AT_PROCESS, &process);
        put(FIRST_ROW, &devices);
        self.words[AT_DONE].store(number, Release);
        Ok(())
    }

    /// Room for so many rows, if it can be had: without, devices are added up in the last row.
    fn make_room(&self, rows: &mut usize, wanted: usize) {
        if wanted <= *rows {
            return;
        }
        let grown = place::opened(&self.path, true).is_ok_and(|file| {
            let same = file.metadata().is_ok_and(|found| found.ino() == self.inode);
            same && sys::allocate(&file, bytes_of(wanted)).is_ok()
        });
        if grown {
            *rows = wanted;
        }
    }

    /// Adds what this process did to what is kept of its run, and removes the file: for a process
    /// that ends before its run does. A later publication reaches nobody.
    pub fn settle(&self, last: &Snapshot) {
        if self.is_ours() && !self.settled.swap(true, Relaxed) {
            let mut last = Snapshot { header: self.header.clone(), ..last.clone() };
            if self.is_waited_for() {
                last.io = ProcessIo::default();
            }
            run::keep(&self.dir, &last);
            remove(&self.path);
        }
    }

    /// Whether an ancestor is the run's root, or tells for the same run: once each has waited for
    /// its child, the kernel accounts to that ancestor what this process read and wrote. One that
    /// has not yet told anything may have no stats page.
    fn is_waited_for(&self) -> bool {
        let root = self.header.root_pid;
        let stats_pages = place::stats_pages(&self.dir).unwrap_or_default();
        let tells = |pid: &u32| {
            let own = stats_pages.iter().filter(|(of, ..)| of == pid);
            *pid == root && process::lives(root, self.header.root_start_ticks)
                || own.into_iter().any(|(.., path)| run_of(path) == Some(self.header.run))
        };
        process::ancestors().any(|pid| tells(&pid))
    }

    /// Removes the file.
    pub fn retire(self) {}
}

impl Drop for StatsPage {
    fn drop(&mut self) {
        // A forked child leaves its parent's file alone.
        if self.is_ours() && !self.settled.load(Relaxed) {
            remove(&self.path);
        }
    }
}

fn bytes_of(rows: usize) -> i64 {
    words_for(rows) as i64 * 8
}

fn remove(path: &Path) {
    // A process that finds it later finds a dead process's.
    let _ = std::fs::remove_file(path);
}

fn filled_in(header: &Header) -> Result<Header> {
    let pid = std::process::id();
    let Some(start_ticks) = start_ticks(pid) else {
        let what = "cannot be read: mount /proc, a stats page is named by when its process started";
        return Err(Error::invalid("/proc/self/stat", what));
    };
    let mut header = Header { pid, start_ticks, namespace: process::namespace(), ..header.clone() };
    if header.command.is_empty() {
        header.command = process::command();
    }
    if header.since_unix_ms == 0 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        header.since_unix_ms = since.map_or(0, |since| since.as_millis() as u64);
    }
    if header.root_pid == 0 {
        (header.root_pid, header.root_start_ticks) = (pid, start_ticks);
    } else if header.root_start_ticks == 0 {
        header.root_start_ticks = process::start_ticks(header.root_pid).unwrap_or(0);
    }
    Ok(header)
}

/// Reads a stats page.
///
/// # Errors
/// What the system refuses; a file that is no stats page, or one of another version.
pub fn read(path: &Path) -> Result<Snapshot> {
    let mut words = Vec::new();
    // A publication takes microseconds. That of a process which died in the middle of one never
    // ends, and is then read as it is: its figures are of two windows.
    for _ in 0..5 {
        let file = place::opened(path, false)?;
        let done = word_at(&file, AT_DONE);
        words = place::bytes(path, MOST_WORDS as u64 * 8)?
            .chunks_exact(8)
            .map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")))
            .collect();
        if done.is_some() && done == word_at(&file, AT_BEGUN) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    layout::read(&words).map_err(|what| Error::invalid(path, what))
}

/// The run of a stats page, by one look at one word of it.
fn run_of(path: &Path) -> Option<u64> {
    word_at(&place::opened(path, false).ok()?, AT_RUN)
}

fn word_at(file: &std::fs::File, at: usize) -> Option<u64> {
    let mut word = [0u8; 8];
    file.read_exact_at(&mut word, at as u64 * 8).ok()?;
    Some(u64::from_le_bytes(word))
}

/// A process that is under Dwell now.
#[derive(Debug)]
pub struct Entry {
    /// Its pid.
    pub pid: u32,
    /// Its stats page.
    pub path: PathBuf,
    /// What it told last, or why that cannot be read.
    pub snapshot: Result<Snapshot>,
}

/// All processes under Dwell whose stats_pages are in a directory. Files of dead ones are removed;
/// what they did is kept for their run as long as that goes on.
///
/// # Errors
/// A directory that cannot be read or that others may write; one that is missing holds nothing.
pub fn list(dir: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let here = process::namespace();
    for (pid, ticks, path) in place::stats_pages(dir)? {
        let snapshot = read(&path).map(|mut snapshot| {
            (snapshot.header.pid, snapshot.header.start_ticks) = (pid, ticks);
            snapshot
        });
        let elsewhere = snapshot.as_ref().ok().filter(|s| s.header.namespace != here);
        let live = match elsewhere {
            // Its pid means nothing here: only its own signs of life count.
            Some(told) => clock::now().saturating_sub(told.published_ns) < SILENCE_NS,
            None => process::lives(pid, ticks),
        };
        if live {
            entries.push(Entry { pid, path, snapshot });
        } else if elsewhere.is_none() {
            run::clear(dir, &path, snapshot.ok().as_ref());
        }
    }
    run::clear_ended(dir);
    Ok(entries)
}

/// Tells a process what to do: `policy=NAME` (which also switches it on), `off` or `on`. Answers
/// with all that it is told from now on.
///
/// # Errors
/// Another order, a policy that nobody knows, a process that has ended, belongs to somebody else or
/// is not under Dwell.
pub fn order(dir: &Path, pid: u32, order: &str) -> Result<Control> {
    let order = Order::parse(order)?;
    let found = place::stats_pages(dir)?.into_iter().filter(|(of, ..)| *of == pid);
    let (ended, live): (Vec<_>, Vec<_>) =
        found.partition(|(pid, ticks, _)| !process::lives(*pid, *ticks));
    let Some((.., path)) = live.first() else {
        let what = match (process::owner(pid), start_ticks(pid)) {
            (Some(owner), _) if owner != sys::effective_uid() => {
                format!("belongs to user {owner}: only that user can steer it")
            }
            (Some(_), Some(_)) => {
                "is not under Dwell; start it with dwell run, or look at dwell top".to_owned()
            }
            _ if !ended.is_empty() => "has ended".to_owned(),
            _ => "no such process".to_owned(),
        };
        return Err(Error::invalid(format!("process {pid}"), what));
    };
    let _lock = place::locked(dir)?;
    let mut control = read(path)?.control;
    match order {
        Order::Policy(name) => {
            control.off = false;
            control.policy = Some(name);
        }
        Order::Off => control.off = true,
        Order::On => control.off = false,
    }
    control.generation = control.generation.wrapping_add(1);
    let mut words = [0u64; 2 + POLICY_WORDS];
    words[1] = control.off.into();
    put_text(control.policy.as_deref().unwrap_or(""), &mut words[2..]);
    let file = place::opened(path, true)?;
    // The number last: whoever sees a new one sees the rest.
    let bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, AT_OFF as u64 * 8)
        .and_then(|()| {
            let generation = u64::from(control.generation).to_le_bytes();
            file.write_all_at(&generation, AT_GENERATION as u64 * 8)
        })
        .map_err(|error| Error::io("write", path, None, error))?;
    Ok(control)
}

/// The other processes that run now and belong to the same run as `pid`.
///
/// # Errors
/// Those of [`list`].
pub fn peers(dir: &Path, pid: u32) -> Result<Vec<u32>> {
    let mut all: Vec<(u32, u64)> = Vec::new();
    for entry in list(dir)? {
        // One that ended meanwhile, or is of another version, cannot be told anything anyway.
        all.extend(entry.snapshot.ok().map(|told| (entry.pid, told.header.run)));
    }
    let run = all.iter().find(|(of, _)| *of == pid).map(|(_, run)| *run).filter(|run| *run != 0);
    let same = all.into_iter().filter(|(of, its)| *of != pid && Some(*its) == run);
    Ok(same.map(|(pid, _)| pid).collect())
}

/// Whether a text is an order that [`order`] would give.
///
/// # Errors
/// What it is not.
pub fn check_order(text: &str) -> Result<()> {
    Order::parse(text).map(drop)
}

enum Order {
    Policy(String),
    Off,
    On,
}

impl Order {
    fn parse(text: &str) -> Result<Order> {
        match text.split_once('=') {
            None if text == "off" => Ok(Order::Off),
            None if text == "on" => Ok(Order::On),
            Some(("policy", name)) if policies::by_name(name).is_some() => {
                if name.len() > POLICY_WORDS * 8 {
                    let what = format!("policies have names of {} bytes at most", POLICY_WORDS * 8);
                    return Err(Error::invalid(name, what));
                }
                Ok(Order::Policy(name.to_owned()))
            }
            Some(("policy", name)) => {
                let what = format!("no such policy; there are {}", policies::names().join(", "));
                Err(Error::invalid(name, what))
            }
            _ => Err(Error::invalid(text, "no such order; there are policy=NAME, off and on")),
        }
    }
}

#[cfg(test)]
mod tests;
