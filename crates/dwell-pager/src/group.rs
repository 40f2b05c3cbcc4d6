// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory this process may have, by the machine and by its control group.

use std::fs;
use std::path::{Path, PathBuf};

/// A budget for who names none: half of what can be had now, in bytes.
pub(crate) fn usual_budget_bytes() -> usize {
    const LEAST: u64 = 1 << 20;
    const UNKNOWN: u64 = 512 << 20;
    (available_bytes().unwrap_or(UNKNOWN) / 2).max(LEAST) as usize
}

/// Bytes that can be had now: what the machine has available, or what the control group has left,
/// whichever is less. `None` where neither is told.
fn available_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        groups(&text, Path::new("/sys/fs/cgroup")).iter().filter_map(|group| group.left()).min()
    });
    machine.into_iter().chain(group).min()
}

/// The kernel's pressure stall information of memory: that of this process's control group, else
/// the machine's.
pub(crate) fn pressure() -> Option<String> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_group = groups(&own, Path::new("/sys/fs/cgroup"))
        .into_iter()
        .find_map(|group| fs::read_to_string(group.at.join("memory.pressure")).ok());
    of_group.or_else(|| fs::read_to_string("/proc/pressure/memory").ok())
}

/// `MemAvailable` of /proc/meminfo, in bytes.
fn field(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// A control group that counts memory.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    at: PathBuf,
    limit: &'static str,
    used: &'static str,
}

impl Group {
    /// Bytes below its limit.
    fn left(&self) -> Option<u64> {
        let read = |name| fs::read_to_string(self.at.join(name)).ok()?.trim().parse::<u64>().ok();
        Some(read(self.limit)?.saturating_sub(read(self.used)?))
    }
}

/// The groups of a process, from its innermost to the root, of either version.
fn groups(memberships: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, limit, used) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        for path in Path::new(path).ancestors() {
            let at = root.join(path.strip_prefix("/").unwrap_or(path));
            groups.push(Group { at, limit, used });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_of_either_version_says_what_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "5\n");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "400\n");
        let left = |text: &str| groups(text, dir.path()).iter().filter_map(Group::left).min();
        assert_eq!(left("0::/a/b\n"), Some(600));
        write("memory/c/memory.limit_in_bytes", "70\n");
        write("memory/c/memory.usage_in_bytes", "100\n");
        assert_eq!(left("4:cpuset,memory:/c\n3:cpu:/x\n0::/a/b\n"), Some(0));
        assert_eq!(left("nonsense\n"), None);
        assert_eq!(field("MemTotal: 9 kB\nMemAvailable:     20 kB\n"), Some(20 << 10));
    }
}
