// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes there are: a pid with the moment of its start names one for ever.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

pub use dwell::monitor::procstat::start_ticks;

/// The processes that this one descends from, its parent first.
pub(super) fn ancestors() -> impl Iterator<Item = u32> {
    // Deeper than processes start each other; should numbers be used anew meanwhile, the way up
    // ends all the same.
    const MOST: usize = 256;
    let parent_of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = text.rsplit_once(')')?;
        after_name.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    let first = std::os::unix::process::parent_id();
    std::iter::successors(Some(first), parent_of).take_while(|pid| *pid > 0).take(MOST)
}

/// Whether this very process still runs.
pub(super) fn lives(pid: u32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks)
}

/// The user that a process belongs to.
pub(super) fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// This process's pid namespace; 0 when unknown.
pub(super) fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// Whether a file changed within the last seconds.
pub(super) fn is_young(path: &Path) -> bool {
    let changed = fs::metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < Duration::from_secs(5)))
}

/// What this process was started as: its program without the directories, and its arguments.
pub(super) fn command() -> String {
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0').filter(|word| !word.is_empty());
    let program = words.next().unwrap_or("");
    let program = program.rsplit('/').next().unwrap_or(program);
    words.fold(program.to_owned(), |line, word| line + " " + word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_one_of_another_start_does_not() {
        let pid = std::process::id();
        let ticks = start_ticks(pid).unwrap();
        assert!(lives(pid, ticks) && !lives(pid, ticks + 1) && !lives(u32::MAX, ticks));
        assert_eq!(owner(pid), Some(dwell::monitor::sys::effective_uid()));
        let all: Vec<_> = ancestors().collect();
        assert_eq!(all.first(), Some(&std::os::unix::process::parent_id()));
        assert!(all.iter().all(|ancestor| *ancestor != pid), "{all:?}");
        assert!(command().starts_with("dwell") && namespace() != 0);
    }

    #[test]
    fn a_process_that_nobody_has_collected_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while start_ticks(child.id()).is_some() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(owner(child.id()).is_some());
        child.wait().unwrap();
    }
}
