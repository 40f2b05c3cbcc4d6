// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counts of a run's processes that have ended, kept until the run has.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::snapshot::{ProcessIo, Snapshot};
use super::{Header, place, process, read, remove, run_of};
use dwell::error::{Error, Result};

/// Longest file of a run that is read, in bytes.
const MOST_BYTES: u64 = 4 << 20;
const PREFIX: &str = "run-";

fn path_of(dir: &Path, run: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{run:016x}"))
}

fn goes_on(header: &Header) -> bool {
    header.run != 0 && process::lives(header.root_pid, header.root_start_ticks)
}

fn kept(path: &Path) -> Result<Snapshot> {
    let bytes = place::bytes(path, MOST_BYTES)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::invalid(path, format!("is damaged ({error}); remove it")))
}

/// Adds what a process did to what is kept of its run, if that goes on. Where the directory cannot
/// be locked or written, the figures are lost: whoever ends cannot wait.
pub(super) fn keep(dir: &Path, of: &Snapshot) {
    if goes_on(&of.header)
        && let Ok(_lock) = place::locked(dir)
    {
        let _ = add(dir, of);
    }
}

fn add(dir: &Path, of: &Snapshot) -> Result<()> {
    let path = path_of(dir, of.header.run);
    let mut sum = kept(&path).unwrap_or_else(|_| Snapshot {
        header: Header { pid: 0, start_ticks: 0, command: String::new(), ..of.header.clone() },
        ..Snapshot::default()
    });
    sum.merge(of);
    let fresh = dir.join(format!("{PREFIX}{:016x}.new", of.header.run));
    remove(&fresh);
    let written = place::fresh(&fresh).and_then(|mut file| {
        let bytes = serde_json::to_vec(&sum).map_err(std::io::Error::from);
        bytes
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .map_err(|error| Error::io("write", &path, None, error))
    });
    if written.is_err() {
        remove(&fresh);
    }
    written
}

/// Removes a dead process's file; what it did is kept if its run goes on.
pub(super) fn clear(dir: &Path, path: &Path, told: Option<&Snapshot>) {
    let Ok(_lock) = place::locked(dir) else { return };
    // Somebody else may have done this meanwhile.
    if !path.exists() {
        return;
    }
    if let Some(told) = told.filter(|told| goes_on(&told.header)) {
        // The kernel accounts what it read and wrote to the process that waited for it.
        let _ = add(dir, &Snapshot { io: ProcessIo::default(), ..told.clone() });
    }
    remove(path);
}

/// Removes what is kept of runs that have ended.
pub(super) fn clear_ended(dir: &Path) {
    for name in place::names(dir).unwrap_or_default() {
        if !name.starts_with(PREFIX) {
            continue;
        }
        let path = dir.join(&name);
        match kept(&path) {
            Ok(sum) if goes_on(&sum.header) || sum.header.namespace != process::namespace() => {}
            // Another process may be about to give it its name.
            _ if name.ends_with(".new") && process::is_young(&path) => {}
            _ => remove(&path),
        }
    }
}

/// What all processes of a run did so far: those that have ended, and those that still run as they
/// told last.
///
/// # Errors
/// A directory that cannot be read or that others may write.
pub fn gather(dir: &Path, run: u64) -> Result<Snapshot> {
    // Cleared files would otherwise be seen in both places, or in none.
    let _lock = place::locked(dir)?;
    let mut sum = kept(&path_of(dir, run)).unwrap_or_default();
    for (pid, ticks, path) in place::stats_pages(dir)? {
        if run_of(&path) != Some(run) {
            continue;
        }
        let Ok(mut told) = read(&path) else { continue };
        if !process::lives(pid, ticks) {
            told.io = ProcessIo::default();
        }
        sum.merge(&told);
        if (pid, ticks) == (told.header.root_pid, told.header.root_start_ticks)
            || sum.header.pid == 0
        {
            sum.header = told.header;
        }
    }
    Ok(sum)
}

/// Forgets a run that is about to end: what was kept of it, and the files of its dead. So it does
/// with the dead of runs that have ended before, whom nobody will ask for.
pub fn end_run(dir: &Path, run: u64) {
    let Ok(_lock) = place::locked(dir) else { return };
    remove(&path_of(dir, run));
    for (pid, ticks, path) in place::stats_pages(dir).unwrap_or_default() {
        if process::lives(pid, ticks) {
            continue;
        }
        let is_over = |told: Snapshot| {
            told.header.namespace == process::namespace() && !goes_on(&told.header)
        };
        if run_of(&path) == Some(run) || read(&path).is_ok_and(is_over) {
            remove(&path);
        }
    }
}
