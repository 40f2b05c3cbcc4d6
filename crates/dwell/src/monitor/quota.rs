// SPDX-License-Identifier: MIT OR Apache-2.0
//! The texts of control groups: which directories limit this process, and to how many CPUs.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Generation of the control group interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `cpu.cfs_quota_us`, `cpu.cfs_period_us`, `cpuacct.usage`.
    V1,
    /// `cpu.max`, `cpu.stat`.
    V2,
}

/// One directory that may limit this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the limit is.
    pub dir: PathBuf,
    /// Where CPU use is counted; another directory than `dir` where cpuacct is mounted apart.
    pub usage_dir: Option<PathBuf>,
    /// Which files to look for.
    pub version: Version,
}

struct Mount {
    root: PathBuf,
    at: PathBuf,
}

/// The groups of a process, innermost first and up to each mount point, from the texts of
/// `/proc/self/mountinfo` and `/proc/self/cgroup`.
pub fn groups(mountinfo: &str, cgroup: &str) -> Vec<Group> {
    let mut found = Vec::new();
    let own_path = |controller: &str| {
        cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers.split(',').any(|c| c == controller).then_some(Path::new(path))
        })
    };
    if let (Some(mount), Some(path)) = (mount_of(mountinfo, "cgroup2", None), own_path("")) {
        found.extend(ancestors(&mount, path).map(|dir| Group {
            usage_dir: Some(dir.clone()),
            dir,
            version: Version::V2,
        }));
    }
    if let (Some(mount), Some(path)) = (mount_of(mountinfo, "cgroup", Some("cpu")), own_path("cpu"))
    {
        // Where cpuacct is a tree of its own, it counts the same tasks only at the same path.
        let acct = mount_of(mountinfo, "cgroup", Some("cpuacct"))
            .filter(|_| own_path("cpuacct") == Some(path));
        found.extend(ancestors(&mount, path).map(|dir| Group {
            usage_dir:
                acct.as_ref().and_then(|acct| {
                    dir.strip_prefix(&mount.at).ok().map(|inner| acct.at.join(inner))
                }),
            dir,
            version: Version::V1,
        }));
    }
    found
}

/// The directory of `path` under `mount` and its parents, down to the mount point.
fn ancestors(mount: &Mount, path: &Path) -> impl Iterator<Item = PathBuf> {
    // A path outside the mount's root belongs to another namespace: only the mount point is ours.
    let inner = path
        .strip_prefix(&mount.root)
        .ok()
        .filter(|inner| inner.components().all(|c| matches!(c, Component::Normal(_))))
        .unwrap_or(Path::new(""));
    let leaf = mount.at.join(inner);
    let top = mount.at.clone();
    let mut next = Some(leaf);
    std::iter::from_fn(move || {
        let dir = next.take()?;
        next = dir.parent().filter(|p| dir != top && p.starts_with(&top)).map(Path::to_path_buf);
        Some(if dir == top { top.clone() } else { dir })
    })
}

fn mount_of(mountinfo: &str, fs: &str, controller: Option<&str>) -> Option<Mount> {
    mountinfo.lines().find_map(|line| {
        let (mount, options) = line.split_once(" - ")?;
        let mut options = options.split(' ');
        let (fs_type, _source, super_options) = (options.next()?, options.next()?, options.next()?);
        let wanted = fs_type == fs
            && controller.is_none_or(|wanted| super_options.split(',').any(|o| o == wanted));
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        wanted.then(|| Mount { root: unescape(root), at: unescape(at) })
    })
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = (bytes[i] == b'\\')
            .then(|| text.get(i + 1..i + 4).and_then(|d| u8::from_str_radix(d, 8).ok()))
            .flatten();
        out.push(octal.unwrap_or(bytes[i]));
        i += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(out))
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota_us, period_us): (i64, i64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota_us > 0 && period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

/// CPUs that a `cpu.max` allows; `None` for no limit.
pub fn parse_cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    ratio(words.next()?, words.next()?)
}

/// CPUs that `cpu.cfs_quota_us` and `cpu.cfs_period_us` allow; `None` for no limit (-1).
pub fn parse_cfs(quota: &str, period: &str) -> Option<f64> {
    ratio(quota.trim(), period.trim())
}

/// CPU time used by a group, in nanoseconds: from `cpu.stat` (V2) or `cpuacct.usage` (V1).
pub fn parse_usage_ns(version: Version, text: &str) -> Option<u64> {
    match version {
        Version::V1 => text.trim().parse().ok(),
        Version::V2 => text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .and_then(|us| us.trim().parse::<u64>().ok())
            .and_then(|us| us.checked_mul(1000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    fn dirs(groups: &[Group]) -> Vec<&str> {
        groups.iter().map(|g| g.dir.to_str().unwrap()).collect()
    }

    #[test]
    fn nested_groups_are_listed_from_the_inside_out() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = groups(v2, "0::/a.slice/b.service\n");
        let expected =
            ["/sys/fs/cgroup/a.slice/b.service", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(dirs(&found), expected);
        assert!(
            found.iter().all(|g| g.version == Version::V2 && g.usage_dir.as_ref() == Some(&g.dir))
        );
    }

    #[test]
    fn separate_v1_trees_are_matched_only_at_the_same_path() {
        let found = groups(HYBRID, "2:cpuacct:/x\n1:cpu:/x\n0::/\n");
        let expected = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu/x", "/sys/fs/cgroup/cpu"];
        assert_eq!(dirs(&found), expected);
        assert_eq!(found[1].usage_dir.as_deref(), Some(Path::new("/sys/fs/cgroup/cpuacct/x")));
        let found = groups(HYBRID, "2:cpuacct:/y\n1:cpu:/x\n");
        assert!(found.iter().all(|g| g.usage_dir.is_none()));
    }

    #[test]
    fn container_roots_and_foreign_paths_stay_under_the_mount_point() {
        let bound = "9 1 0:26 /docker/abc /sys/fs/cgroup ro - cgroup cgroup ro,cpu,cpuacct\n";
        let found = groups(bound, "3:cpu,cpuacct:/docker/abc/job\n");
        assert_eq!(dirs(&found), ["/sys/fs/cgroup/job", "/sys/fs/cgroup"]);
        assert_eq!(found[0].usage_dir.as_ref(), Some(&found[0].dir));
        for foreign in ["/elsewhere", "/docker/abc/../../etc", "/../x"] {
            let found = groups(bound, &format!("3:cpu,cpuacct:{foreign}\n"));
            assert_eq!(dirs(&found), ["/sys/fs/cgroup"], "{foreign}");
        }
    }

    #[test]
    fn cut_off_texts_give_fewer_groups_and_never_panic() {
        let cgroup = "2:cpuacct:/x\n1:cpu:/x\n0::/\n";
        for cut in 0..HYBRID.len() {
            assert!(groups(&HYBRID[..cut], cgroup).len() <= 3);
        }
        for cut in 0..cgroup.len() {
            assert!(groups(HYBRID, &cgroup[..cut]).len() <= 3);
        }
        assert!(groups("", "").is_empty());
    }

    #[test]
    fn escapes_in_mount_points_are_undone() {
        assert_eq!(unescape("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape("/a\\0"), Path::new("/a\\0"));
        assert_eq!(unescape("\\777é\\04é"), Path::new("\\777é\\04é"));
    }

    #[test]
    fn limits_are_ratios_and_anything_else_is_no_limit() {
        assert_eq!(parse_cpu_max("50000 100000\n"), Some(0.5));
        assert_eq!(parse_cfs("300000\n", "100000\n"), Some(3.0));
        for text in ["max 100000\n", "", "50000", "50000 0", "-1 100000", "0 100000", "a b"] {
            assert_eq!(parse_cpu_max(text), None, "{text:?}");
        }
        assert_eq!(parse_cfs("-1\n", "100000\n"), None);
        assert_eq!(parse_cfs("100000", ""), None);
    }

    #[test]
    fn usage_is_nanoseconds_in_both_versions() {
        assert_eq!(parse_usage_ns(Version::V1, "123456789\n"), Some(123_456_789));
        assert_eq!(parse_usage_ns(Version::V2, "usage_usec 12\nuser_usec 7\n"), Some(12_000));
        assert_eq!(parse_usage_ns(Version::V2, "user_usec 7\n"), None);
        assert_eq!(parse_usage_ns(Version::V2, "usage_usec 18446744073709551615\n"), None);
        assert_eq!(parse_usage_ns(Version::V1, ""), None);
    }
}
