// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace: by BPF programs, or else by tracepoints; and what they summed up.

use std::fs;
use std::path::Path;
use std::time::Instant;

use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::BtfTracePoint;
use aya::sys::Stats;
use aya::{Btf, Ebpf, EbpfLoader, Pod};

use crate::follow::Follow;
use crate::names::{descendants, process_of};
use crate::perf::Perf;
use crate::raw::{DeviceKey, DeviceSum, ThreadSum, WaitKey, WaitSum};
use crate::sums::Sums;
use crate::{Cost, Error, Result, Seen};

/// Built from `bpf/waits.bpf.c` by `scripts/bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/waits.bpf.o");

/// The programs by the tracepoint that starts each.
const PROGRAMS: [(&str, &str); 13] = [
    ("on_irq_ends", "irq_handler_exit"),
    ("on_irq_begins", "irq_handler_entry"),
    ("on_softirq_ends", "softirq_exit"),
    ("on_softirq_begins", "softirq_entry"),
    ("on_fork", "sched_process_fork"),
    ("on_complete", "block_rq_complete"),
    ("on_merge", "block_rq_merge"),
    ("on_insert", "block_rq_insert"),
    ("on_issue", "block_rq_issue"),
    ("on_bio_complete", "block_bio_complete"),
    ("on_bio", "block_bio_queue"),
    ("on_waking", "sched_waking"),
    ("on_switch", "sched_switch"),
];

/// A trace that is under way. Dropping it ends it.
pub struct Tracer {
    means: Means,
    started: Instant,
    /// Why it is not done by BPF, where it is not.
    without_bpf: Option<String>,
}

enum Means {
    Bpf {
        bpf: Box<Ebpf>,
        /// While it lives, the kernel counts what its programs take.
        _counting: Option<std::os::fd::OwnedFd>,
    },
    Perf(Perf),
}

impl Tracer {
    /// Begins to follow: by BPF, or where the kernel does not let it, by tracepoints through perf.
    /// What was seen then has a note that says so.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoProcess`] if there is no such process, [`Error::Thread`] for a thread of
    /// one, and [`Error::PidNamespace`] in such a namespace. If perf is not available either, it
    /// returns what BPF lacks: [`Error::Forbidden`] without CAP_BPF and CAP_PERFMON,
    /// [`Error::LockedDown`] on a kernel that lets nobody trace, [`Error::NoTypes`] without BTF,
    /// and [`Error::Refused`] if the kernel does not take a program.
    pub fn start(follow: Follow) -> Result<Tracer> {
        let followed = followed(follow)?;
        let refused = match Means::bpf(follow, &followed) {
            Ok(means) => return Tracer::begun(means, follow, followed, None),
            Err(error) => error,
        };
        match Tracer::perf(follow, followed, refused.to_string()) {
            Ok(tracer) => Ok(tracer),
            // What BPF wants is what a person can give.
            Err(_) => Err(refused),
        }
    }

    /// Begins to follow by tracepoints through perf, as [`Tracer::start`] does without BPF.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoProcess`] if there is no such process, [`Error::Forbidden`] without
    /// CAP_PERFMON, [`Error::Io`] without tracefs, and [`Error::Refused`] if the kernel has no
    /// perf.
    pub fn start_by_tracepoints(follow: Follow) -> Result<Tracer> {
        Tracer::perf(follow, followed(follow)?, "BPF was not asked for".to_owned())
    }

    fn perf(follow: Follow, followed: Vec<u32>, why: String) -> Result<Tracer> {
        let means = Means::Perf(Perf::start(follow, &followed)?);
        Tracer::begun(means, follow, followed, Some(why))
    }

    /// A trace whose programs run; they see every process that one of `followed` starts from now
    /// on.
    fn begun(
        means: Means,
        follow: Follow,
        mut followed: Vec<u32>,
        without_bpf: Option<String>,
    ) -> Result<Tracer> {
        let mut tracer = Tracer { means, started: Instant::now(), without_bpf };
        if let Follow::Process(process) = follow {
            // Processes that were started meanwhile, and theirs until they were followed. What a
            // followed one starts is followed by itself, which perf tells a moment later: that
            // must not go on for ever.
            for _ in 0..16 {
                let mut new = descendants(process);
                let known = tracer.targets();
                new.retain(|process| !followed.contains(process) && !known.contains(process));
                if new.is_empty() {
                    break;
                }
                tracer.follow(&new)?;
                followed.append(&mut new);
            }
        }
        Ok(tracer)
    }

    /// The processes that are followed now.
    fn targets(&self) -> Vec<u32> {
        match &self.means {
            Means::Bpf { bpf, .. } => table::<u32, u8>(bpf, "targets")
                .map(|targets| targets.keys().flatten().collect())
                .unwrap_or_default(),
            Means::Perf(perf) => perf.followed(),
        }
    }

    fn follow(&mut self, processes: &[u32]) -> Result<()> {
        match &mut self.means {
            Means::Bpf { bpf, .. } => insert(bpf, processes),
            Means::Perf(perf) => {
                perf.follow(processes);
                Ok(())
            }
        }
    }

    /// Follows no more children of this process; those that it follows, and theirs, it keeps.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if the kernel does not change the map.
    pub fn started(&mut self) -> Result<()> {
        let own = std::process::id();
        match &mut self.means {
            Means::Bpf { bpf, .. } => {
                let mut targets = table_mut::<u32, u8>(bpf, "targets")?;
                targets.remove(&own).map_err(|error| refused("targets", &error))
            }
            Means::Perf(perf) => {
                perf.started();
                Ok(())
            }
        }
    }

    /// Whether any process that is followed still runs.
    pub fn is_anybody_left(&self) -> bool {
        let runs = |process: u32| Path::new(&format!("/proc/{process}")).exists();
        match &self.means {
            Means::Bpf { bpf, .. } => {
                let Ok(targets) = table::<u32, u8>(bpf, "targets") else { return false };
                targets.keys().flatten().any(runs)
            }
            Means::Perf(perf) => perf.followed().into_iter().any(runs),
        }
    }

    /// Ends the trace and says what was seen.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if a map cannot be read.
    pub fn finish(mut self) -> Result<Seen> {
        self.look(false)
    }

    /// Takes the sums since the trace began or since the last take, and starts again from zero. A
    /// wait that ends meanwhile may be missed.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] if a map cannot be read or changed.
    pub fn take(&mut self) -> Result<Seen> {
        let seen = self.look(true)?;
        self.started = Instant::now();
        Ok(seen)
    }

    fn look(&mut self, again: bool) -> Result<Seen> {
        let seconds = self.started.elapsed().as_secs_f64();
        let sums = match &mut self.means {
            Means::Bpf { bpf, .. } => {
                let sums = sums(bpf)?;
                if again {
                    clear::<WaitKey, WaitSum>(bpf, "waits")?;
                    clear::<DeviceKey, DeviceSum>(bpf, "devices")?;
                    clear::<u32, ThreadSum>(bpf, "threads")?;
                }
                sums
            }
            Means::Perf(perf) => perf.sums(again),
        };
        let by_perf = self.without_bpf.as_ref().map(|why| {
            format!("{why}. Traced by tracepoints instead, which costs more and counts no waits of the page cache")
        });
        let mut seen = sums.seen(seconds);
        seen.notes.extend(by_perf);
        Ok(seen)
    }
}

/// Whether this process has a PID namespace other than the kernel's first.
fn is_in_pid_namespace() -> bool {
    let first = Path::new("pid:[4026531836]");
    fs::read_link("/proc/self/ns/pid").is_ok_and(|own| own != first)
}

/// The processes that are followed from the beginning.
fn followed(follow: Follow) -> Result<Vec<u32>> {
    if is_in_pid_namespace() {
        return Err(Error::PidNamespace);
    }
    match follow {
        Follow::Children => Ok(vec![std::process::id()]),
        Follow::Process(process) => match process_of(process) {
            None => Err(Error::NoProcess(process)),
            Some(of) if of != process => Err(Error::Thread { thread: process, process: of }),
            Some(_) => Ok(descendants(process)),
        },
        Follow::Everything => Ok(vec![]),
    }
}

impl Means {
    fn bpf(follow: Follow, followed: &[u32]) -> Result<Means> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(Error::NoTypes);
        }
        let types = Btf::from_sys_fs().map_err(|error| refused("vmlinux", &error))?;
        let everything = u8::from(follow == Follow::Everything);
        let own = std::process::id();
        let left_out = if follow == Follow::Process(own) { 0 } else { own };
        let mut bpf = EbpfLoader::new()
            .btf(Some(&types))
            .override_global("everything", &everything, true)
            .override_global("own_tgid", &left_out, true)
            .load(OBJECT)
            .map_err(|error| refused("maps", &error))?;
        // Only root may have the kernel count; without it the trace works and its cost is unknown.
        let counting = aya::sys::enable_stats(Stats::RunTime).ok();
        insert(&mut bpf, followed)?;
        for (name, tracepoint) in PROGRAMS {
            let refused = |error: &dyn std::error::Error| refused(tracepoint, error);
            let program = bpf.program_mut(name).ok_or_else(|| missing(name))?;
            let program: &mut BtfTracePoint =
                program.try_into().map_err(|error| refused(&error))?;
            program.load(tracepoint, &types).map_err(|error| refused(&error))?;
            program.attach().map_err(|error| refused(&error))?;
        }
        Ok(Means::Bpf { bpf: Box::new(bpf), _counting: counting })
    }
}

fn insert(bpf: &mut Ebpf, processes: &[u32]) -> Result<()> {
    let mut targets = table_mut::<u32, u8>(bpf, "targets")?;
    let mut insert = |process| targets.insert(process, 1, 0);
    processes
        .iter()
        .try_for_each(|process| insert(process).map_err(|error| refused("targets", &error)))
}

/// What the programs have summed up.
fn sums(bpf: &Ebpf) -> Result<Sums> {
    let threads = entries::<u32, ThreadSum>(bpf, "threads")?;
    Ok(Sums {
        waits: entries(bpf, "waits")?,
        devices: entries(bpf, "devices")?,
        threads: threads.into_iter().map(|(_, sum)| sum).collect(),
        cost: cost(bpf),
        notes: losses(bpf)?,
    })
}

fn cost(bpf: &Ebpf) -> Cost {
    let mut cost = Cost::default();
    for (_, program) in bpf.programs() {
        if let Ok(info) = program.info() {
            cost.nanos += info.run_time().as_nanos() as u64;
            cost.events += info.run_count();
        }
    }
    cost
}

fn losses(bpf: &Ebpf) -> Result<Vec<String>> {
    const LOST: [&str; 4] = [
        "threads were not followed, because too many ran at once",
        "requests were not timed, because too many were in flight",
        "waits were not kept, because they were of too many kinds",
        "threads were not named, because too many waited",
    ];
    let losses: Array<&MapData, u64> = bpf
        .map("losses")
        .ok_or_else(|| missing("losses"))?
        .try_into()
        .map_err(|error| refused("losses", &error))?;
    let lost = LOST.iter().zip(losses.iter()).filter_map(|(what, count)| match count {
        Ok(count) if count > 0 => Some(format!("{count} {what}")),
        _ => None,
    });
    Ok(lost.collect())
}

fn table<'a, K: Pod, V: Pod>(bpf: &'a Ebpf, name: &str) -> Result<HashMap<&'a MapData, K, V>> {
    let map = bpf.map(name).ok_or_else(|| missing(name))?;
    HashMap::try_from(map).map_err(|error| refused(name, &error))
}

fn table_mut<'a, K: Pod, V: Pod>(
    bpf: &'a mut Ebpf,
    name: &str,
) -> Result<HashMap<&'a mut MapData, K, V>> {
    let map = bpf.map_mut(name).ok_or_else(|| missing(name))?;
    HashMap::try_from(map).map_err(|error| refused(name, &error))
}

fn entries<K: Pod, V: Pod>(bpf: &Ebpf, name: &str) -> Result<Vec<(K, V)>> {
    let entries = table::<K, V>(bpf, name)?.iter().collect::<std::result::Result<_, _>>();
    entries.map_err(|error| refused(name, &error))
}

fn clear<K: Pod, V: Pod>(bpf: &mut Ebpf, name: &str) -> Result<()> {
    let keys: Vec<K> = entries::<K, V>(bpf, name)?.into_iter().map(|(key, _)| key).collect();
    let mut table = table_mut::<K, V>(bpf, name)?;
    for key in keys {
        match table.remove(&key) {
            // A thread or a device that ended is gone already.
            Err(error) if !is_absent(&error) => return Err(refused(name, &error)),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a map has no such key. The answer to a removal is the system call's.
fn is_absent(error: &MapError) -> bool {
    match error {
        MapError::SyscallError(call) => call.io_error.kind() == std::io::ErrorKind::NotFound,
        error => matches!(error, MapError::KeyNotFound),
    }
}

fn missing(program: &str) -> Error {
    Error::Refused { program: program.to_owned(), why: "it is not in the object".to_owned() }
}

/// An error's whole chain on one line; the verifier's log behind it is left out.
fn refused(program: &str, error: &dyn std::error::Error) -> Error {
    let mut why = error.to_string();
    let mut cause = error.source();
    let mut forbidden = false;
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        forbidden |= io.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
        // Some errors have their cause in their own words.
        let words = error.to_string();
        if !why.contains(&words) {
            why = format!("{why}: {words}");
        }
        cause = error.source();
    }
    let why = why.lines().next().unwrap_or_default().to_owned();
    Error::of_refusal(program, why, forbidden)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::sys::SyscallError;

    #[test]
    fn a_key_that_is_gone_is_no_error_whoever_says_so() {
        let call = |errno| {
            let io_error = std::io::Error::from_raw_os_error(errno);
            MapError::SyscallError(SyscallError { call: "bpf_map_delete_elem", io_error })
        };
        assert!(is_absent(&MapError::KeyNotFound) && is_absent(&call(2)));
        assert!(!is_absent(&call(1)) && !is_absent(&MapError::ElementNotFound));
    }

    /// Starts a process every few milliseconds until a file is there.
    struct Forks {
        shell: std::process::Child,
        stop: tempfile::NamedTempFile,
    }

    impl Forks {
        fn new() -> Forks {
            use std::os::unix::process::CommandExt as _;
            let stop = tempfile::NamedTempFile::new().unwrap();
            let script = "while [ ! -s $0 ]; do sleep 60 & sleep 0.005; done; echo; wait";
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", script]).arg(stop.path()).process_group(0);
            let shell = shell.stdout(std::process::Stdio::piped()).spawn().unwrap();
            Forks { shell, stop }
        }

        /// All that it has started and that still run, once it starts no more.
        fn started(&mut self) -> Vec<u32> {
            use std::io::Read as _;
            fs::write(self.stop.path(), "x").unwrap();
            self.shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            descendants(self.shell.id())
        }
    }

    impl Drop for Forks {
        fn drop(&mut self) {
            let group = format!("-{}", self.shell.id());
            let _ = std::process::Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = self.shell.wait();
        }
    }

    #[test]
    fn processes_that_start_while_a_trace_begins_are_followed() {
        for start in [Tracer::start, Tracer::start_by_tracepoints] {
            let mut forks = Forks::new();
            let tracer = match start(Follow::Process(forks.shell.id())) {
                Ok(tracer) => tracer,
                Err(error) => return println!("SKIP: {error}"),
            };
            let started = forks.started();
            // What perf tells comes a moment later.
            let until = Instant::now() + std::time::Duration::from_secs(10);
            loop {
                let followed = tracer.targets();
                let missed = started.iter().filter(|process| !followed.contains(process)).count();
                if missed == 0 {
                    break;
                }
                assert!(Instant::now() < until, "{missed} of {} are not followed", started.len());
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn processes_and_threads_that_are_gone_leave_the_tables() {
        let tracer = match Tracer::start(Follow::Children) {
            Ok(tracer) => tracer,
            Err(error) => return println!("SKIP: {error}"),
        };
        let Means::Bpf { bpf, .. } = &tracer.means else { return println!("SKIP: no BPF") };
        let program = std::env::current_exe().unwrap();
        let mut readers = Vec::new();
        for _ in 0..40 {
            let mut reads = std::process::Command::new("dd");
            reads.arg(format!("if={}", program.display())).args(["of=/dev/null", "iflag=direct"]);
            let mut reads = reads.args(["bs=4k", "count=4", "status=none"]).spawn().unwrap();
            readers.push(reads.id());
            if !reads.wait().unwrap().success() {
                return println!("SKIP: no direct reads of {}", program.display());
            }
        }
        let left = || {
            let targets = tracer.targets();
            let threads = entries::<u32, ThreadSum>(bpf, "threads").unwrap();
            let threads = threads.iter().filter(|(task, _)| readers.contains(task)).count();
            (targets.iter().filter(|process| readers.contains(process)).count(), threads)
        };
        // The kernel frees a task a grace period after its end, which takes long on a busy machine.
        let until = Instant::now() + std::time::Duration::from_secs(60);
        while left() != (0, 0) {
            assert!(Instant::now() < until, "{:?} are left", left());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let seen = tracer.finish().unwrap();
        assert!(seen.thread_seconds > 0.0, "{seen:?}");
        assert!(seen.waits.iter().any(|wait| wait.program == "dd"), "{seen:?}");
    }
}
