// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where samples come from: files that are opened once and read again every window.

use super::assess::Sample;
use super::limit::scatter;
use super::procstat;
use super::quota::{self, Group, Version};
use super::sys;
use crate::clock;
use dwell_policy::Ns;
use rustix::fs::Dir;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Windows between two looks at the limits of the control groups.
const LIMITS_EVERY: u32 = 10;
/// Windows between two looks at the affinity, and at which control groups there are.
const PLACE_EVERY: u32 = 64;
/// Threads whose affinities are joined: those of one process seldom differ in more than a pin.
const MAX_THREADS: usize = 64;
/// Threads of which it is told how long each ran; with more, all count as awake.
const MAX_TIMED_THREADS: u32 = 128;
/// Longest text that is read from a file of the kernel.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// The open files.
#[derive(Debug)]
pub struct Sources {
    root: PathBuf,
    stat: Option<File>,
    own: Option<File>,
    tasks: Option<Dir>,
    mounts: Option<File>,
    groups: Option<File>,
    buffer: Vec<u8>,
    allowed: Vec<u32>,
    /// Hash of the texts that `limits` were found by.
    found_by: u64,
    limits: Vec<Limit>,
    tightest: Option<Tightest>,
    windows: u32,
}

#[derive(Debug)]
struct Limit {
    version: Version,
    /// `cpu.max`, or `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    files: Vec<File>,
    usage: Option<File>,
    id: u64,
}

#[derive(Clone, Copy, Debug)]
struct Tightest {
    at: usize,
    cpus: f64,
}

impl Sources {
    /// Opens what is there; what is missing is missing in the samples.
    pub fn open() -> Sources {
        Sources::under(Path::new("/"))
    }

    /// The same below another root, for tests.
    fn under(root: &Path) -> Sources {
        let open = |name: &str| File::open(root.join("proc").join(name)).ok();
        Sources {
            root: root.to_path_buf(),
            stat: open("stat"),
            own: open("self/stat"),
            tasks: open("self/task").and_then(|directory| Dir::new(directory).ok()),
            mounts: open("self/mountinfo"),
            groups: open("self/cgroup"),
            buffer: vec![0; 8192],
            allowed: Vec::new(),
            found_by: 0,
            limits: Vec::new(),
            tightest: None,
            windows: 0,
        }
    }

    /// Reads one sample.
    pub fn sample(&mut self) -> Sample {
        let moved = self.windows.is_multiple_of(PLACE_EVERY);
        if moved {
            self.allowed = self.allowed_cpus();
            self.find_limits();
        }
        if moved || self.windows.is_multiple_of(LIMITS_EVERY) {
            self.tightest = self.read_limits();
        }
        self.windows = self.windows.wrapping_add(1);

        let mut sample = Sample { at_ns: clock::now(), ..Sample::default() };
        if let Some(text) = self.stat.as_ref().and_then(|f| read_text(f, &mut self.buffer)) {
            let stat = procstat::parse(text, &self.allowed);
            sample.cpus = stat.cpus;
            (sample.online, sample.procs_running) = (stat.online, stat.procs_running);
        }
        sample.process_cpu_ns = clock::process_cpu();
        let own = self.own.as_ref().and_then(|f| read_text(f, &mut self.buffer));
        sample.process_threads = own.and_then(procstat::parse_threads).unwrap_or(0);
        // The monitor and one more need not be told apart.
        if (3..=MAX_TIMED_THREADS).contains(&sample.process_threads) {
            sample.threads = self.threads();
        }
        if let Some(Tightest { at, cpus }) = self.tightest {
            let limit = &self.limits[at];
            sample.quota_cpus = Some(cpus);
            sample.group = limit.id;
            sample.group_cpu_ns = limit
                .usage
                .as_ref()
                .and_then(|f| read_text(f, &mut self.buffer))
                .and_then(|text| quota::parse_usage_ns(limit.version, text));
        }
        sample
    }

    /// The threads of this process.
    fn thread_ids(&mut self) -> Vec<i32> {
        let Some(tasks) = &mut self.tasks else { return Vec::new() };
        tasks.rewind();
        let id = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
            entry.ok()?.file_name().to_str().ok()?.parse().ok()
        };
        tasks.filter_map(id).collect()
    }

    /// The threads of this process in ascending order of their ids, and how long each has run.
    fn threads(&mut self) -> Vec<(i32, Ns)> {
        let ids = self.thread_ids().into_iter();
        let mut threads: Vec<(i32, Ns)> =
            ids.filter_map(|id| Some((id, clock::cpu_of_thread(id)?))).collect();
        threads.sort_unstable();
        threads
    }

    /// The CPUs that any thread of this process may run on: a process that pins its threads one by
    /// one has all their CPUs.
    fn allowed_cpus(&mut self) -> Vec<u32> {
        let mut cpus = sys::affinity(0).unwrap_or_default();
        for id in self.thread_ids().into_iter().take(MAX_THREADS) {
            cpus.extend(sys::affinity(id).unwrap_or_default());
        }
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Opens the limits of the control groups that this process is in, unless they are the same.
    fn find_limits(&mut self) {
        let mut text = |file: &Option<File>| {
            let file = file.as_ref()?;
            read_text(file, &mut self.buffer).map(str::to_owned)
        };
        let mounts = text(&self.mounts).unwrap_or_default();
        let groups = text(&self.groups).unwrap_or_default();
        let bytes = mounts.bytes().chain([0]).chain(groups.bytes());
        let found_by = bytes.fold(1, |hash, byte| scatter(hash ^ u64::from(byte)));
        if found_by != self.found_by {
            let groups = quota::groups(&mounts, &groups);
            self.limits = groups.iter().filter_map(|group| self.open_limit(group)).collect();
            self.found_by = found_by;
        }
    }

    fn open_limit(&self, group: &Group) -> Option<Limit> {
        let (names, usage): (&[&str], _) = match group.version {
            Version::V1 => (&["cpu.cfs_quota_us", "cpu.cfs_period_us"], "cpuacct.usage"),
            Version::V2 => (&["cpu.max"], "cpu.stat"),
        };
        let open = |dir: &Path, name: &str| {
            let dir = self.root.join(dir.strip_prefix("/").unwrap_or(dir));
            File::open(dir.join(name)).ok()
        };
        let files: Option<Vec<File>> = names.iter().map(|name| open(&group.dir, name)).collect();
        let bytes = group.dir.as_os_str().as_bytes();
        Some(Limit {
            version: group.version,
            files: files?,
            usage: group.usage_dir.as_ref().and_then(|dir| open(dir, usage)),
            id: bytes.iter().fold(1, |hash, &byte| scatter(hash ^ u64::from(byte))) | 1,
        })
    }

    fn read_limits(&mut self) -> Option<Tightest> {
        let mut tightest: Option<Tightest> = None;
        for (at, limit) in self.limits.iter().enumerate() {
            let mut read = |i: usize| {
                limit.files.get(i).and_then(|f| read_text(f, &mut self.buffer)).map(str::to_owned)
            };
            let cpus = match limit.version {
                Version::V2 => read(0).and_then(|max| quota::parse_cpu_max(&max)),
                Version::V1 => read(0).zip(read(1)).and_then(|(q, p)| quota::parse_cfs(&q, &p)),
            };
            if let Some(cpus) = cpus
                && tightest.is_none_or(|t| cpus < t.cpus)
            {
                tightest = Some(Tightest { at, cpus });
            }
        }
        tightest
    }
}

/// The whole text of a file from its start; the buffer grows to fit.
fn read_text<'a>(file: &File, buffer: &'a mut Vec<u8>) -> Option<&'a str> {
    loop {
        let mut len = 0;
        while len < buffer.len() {
            match file.read_at(&mut buffer[len..], len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        if len < buffer.len() || len >= MAX_TEXT_BYTES {
            let text = &buffer[..len];
            return Some(match std::str::from_utf8(text) {
                Ok(text) => text,
                Err(e) => std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or(""),
            });
        }
        buffer.resize(len * 2, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_threads_of_a_process_are_told_with_the_time_that_each_ran() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || stopped.recv().is_ok());
        let worked = std::hint::black_box((0..10_000_000u64).fold(1, |a, b| a ^ b.rotate_left(7)));
        let threads = Sources::open().threads();
        drop(stop);
        sleeper.join().unwrap();
        assert!(threads.len() >= 2 && threads.is_sorted(), "{worked}");
        assert!(threads.iter().any(|(_, ns)| *ns > 0));
        assert_eq!(clock::cpu_of_thread(i32::MAX >> 4), None);
    }

    #[test]
    fn the_real_files_give_a_sample() {
        let mut sources = Sources::open();
        let (a, b) = (sources.sample(), sources.sample());
        assert!(!a.cpus.is_empty() && a.cpus.len() == b.cpus.len());
        assert!(a.procs_running >= 1 && b.process_cpu_ns >= a.process_cpu_ns);
    }

    #[test]
    fn absent_files_give_an_empty_sample() {
        let dir = tempfile::tempdir().unwrap();
        let sample = Sources::under(dir.path()).sample();
        assert_eq!((sample.cpus.len(), sample.quota_cpus, sample.group_cpu_ns), (0, None, None));
    }

    #[test]
    fn the_tightest_of_nested_quotas_binds_and_follows_changes() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", "30 1 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
        write("proc/self/cgroup", "0::/a/b\n");
        write("cg/a/b/cpu.max", "300000 100000\n");
        write("cg/a/b/cpu.stat", "usage_usec 5\n");
        write("cg/a/cpu.max", "150000 100000\n");
        write("cg/a/cpu.stat", "usage_usec 77\n");
        let mut sources = Sources::under(dir.path());
        let first = sources.sample();
        assert_eq!((first.quota_cpus, first.group_cpu_ns), (Some(1.5), Some(77_000)));
        write("cg/a/cpu.max", "max 100000\n");
        let later = (0..LIMITS_EVERY).map(|_| sources.sample()).last().unwrap();
        assert_eq!((later.quota_cpus, later.group_cpu_ns), (Some(3.0), Some(5_000)));
        assert_ne!(first.group, later.group);
    }

    #[test]
    fn a_text_longer_than_the_buffer_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("long");
        fs::write(&path, "x".repeat(100_000)).unwrap();
        let mut buffer = vec![0; 64];
        assert_eq!(read_text(&File::open(&path).unwrap(), &mut buffer).unwrap().len(), 100_000);
    }
}
