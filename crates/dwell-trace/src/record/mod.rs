// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records a program: runs it under Valgrind with this project's tool and packs what that hands
//! over.

mod populated;
mod ring;
mod words;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::format::About;
use crate::writer::{Writer, Written};
use ring::{Handed, Ring};
use words::Words;

/// Name of the tool's program, without which nothing can be recorded.
pub const TOOL: &str = "dwelltrace-amd64-linux";
/// How often the caller hears of the progress.
const BEAT: Duration = Duration::from_millis(50);

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The trace to write. Those of further processes are named after it and their process.
    pub out: PathBuf,
    /// Instructions of each program left out at its beginning.
    pub skip: u64,
    /// Instructions of each process after which it is ended.
    pub limit: Option<u64>,
    /// Record the processes too that the program starts.
    pub children: bool,
    /// Directory with the tool, see [`TOOL`].
    pub tool_dir: PathBuf,
}

/// One trace that was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Where it is.
    pub path: PathBuf,
    /// Of which process.
    pub about: About,
    /// How large it became.
    pub written: Written,
    /// Whether the process was killed, so that its last events are missing.
    pub killed: bool,
}

/// What a recording brought.
#[derive(Debug)]
pub struct Outcome {
    /// One trace per process, the program's own first.
    pub traces: Vec<Recorded>,
    /// How the program ended.
    pub status: ExitStatus,
}

/// What ring threads and their caller share.
struct Shared {
    plan: Recording,
    instructions: AtomicU64,
    running: AtomicUsize,
    stop: AtomicBool,
}

/// Runs the command to its end. `progress` hears how many instructions were recorded so far and
/// answers whether to go on.
pub fn record(plan: &Recording, progress: &mut dyn FnMut(u64) -> bool) -> Result<Outcome> {
    check(plan)?;
    let dir = shared_dir()?;
    let fifo = dir.path().join("announce");
    ring::make_fifo(&fifo).map_err(|e| Error::io("making a pipe", &fifo, e))?;
    // Open for both, so that it neither waits for the first process nor ends with the last one.
    let announced = File::options().read(true).write(true).open(&fifo);
    let announced = announced.map_err(|e| Error::io("opening a pipe", &fifo, e))?;
    let mut end = announced.try_clone().map_err(|e| Error::io("opening a pipe", &fifo, e))?;

    let shared = Arc::new(Shared {
        plan: plan.clone(),
        instructions: AtomicU64::new(0),
        running: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let mut child = command(plan, dir.path()).spawn().map_err(|e| {
        Error::Invalid(format!(
            "cannot run valgrind: {e}; install it (Debian: apt-get install valgrind)"
        ))
    })?;
    let listener = {
        let (shared, dir) = (shared.clone(), dir.path().to_owned());
        std::thread::spawn(move || listen(&shared, &dir, announced))
    };
    let status = wait(&mut child, &shared, progress);
    let ended = end.write_all(b"end\n");
    let rings =
        listener.join().map_err(|_| Error::Invalid("a recording thread panicked".into()))?;
    let status = status?;
    ended.map_err(|e| Error::io("writing", &fifo, e))?;
    let mut traces = Vec::new();
    for ring in rings {
        let done = ring.join();
        traces.push(done.map_err(|_| Error::Invalid("a recording thread panicked".into()))??);
    }
    if traces.is_empty() {
        let name = plan.command[0].to_string_lossy();
        return Err(Error::Invalid(format!("{name}: nothing was recorded; valgrind {status}")));
    }
    Ok(Outcome { traces, status })
}

/// What can be said before anything runs.
fn check(plan: &Recording) -> Result<()> {
    let Some(name) = plan.command.first() else {
        return Err(Error::Invalid("name a command to record".into()));
    };
    if !plan.tool_dir.join(TOOL).exists() {
        return Err(Error::Invalid(format!(
            "{}: the Valgrind tool {TOOL} is not there: make trace-tool",
            plan.tool_dir.display()
        )));
    }
    let here = |path: &Path| path.is_file();
    let found = match Path::new(name).components().count() {
        1 => std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| here(&dir.join(name)))),
        _ => here(Path::new(name)),
    };
    if found {
        return Ok(());
    }
    Err(Error::Invalid(format!("{}: there is no such command to record", name.to_string_lossy())))
}

/// A directory in memory, where there is one.
fn shared_dir() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let dir = tempfile::Builder::new().prefix("dwell-trace-").tempdir_in(&parent);
    dir.map_err(|e| Error::io("making a directory for shared memory", &parent, e))
}

fn command(plan: &Recording, dir: &Path) -> Command {
    let yes_or_no = |yes: bool| if yes { "yes" } else { "no" };
    let mut ring_dir = OsString::from("--ring-dir=");
    ring_dir.push(dir);
    let mut command = Command::new("valgrind");
    command
        .env("VALGRIND_LIB", &plan.tool_dir)
        .args(["--tool=dwelltrace", "--quiet", "--vgdb=no"])
        .arg(ring_dir)
        .arg(format!("--recorder={}", std::process::id()))
        .arg(format!("--skip={}", plan.skip))
        .arg(format!("--trace-children={}", yes_or_no(plan.children)))
        .arg(format!("--follow-forks={}", yes_or_no(plan.children)))
        .args(&plan.command);
    command
}

/// Waits for the program, and for those of its children that are recorded and outlive it.
fn wait(
    child: &mut Child,
    shared: &Shared,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<ExitStatus> {
    let mut status = None;
    loop {
        if !progress(shared.instructions.load(Ordering::Relaxed)) {
            shared.stop.store(true, Ordering::Relaxed);
        }
        if status.is_none() {
            status =
                child.try_wait().map_err(|e| Error::io("waiting", Path::new("valgrind"), e))?;
        }
        match status {
            Some(status) if shared.running.load(Ordering::Acquire) == 0 => return Ok(status),
            _ => std::thread::sleep(BEAT),
        }
    }
}

type Recorder = JoinHandle<Result<Recorded>>;

/// Starts a thread for each process that tells of its ring, until the end is told.
fn listen(shared: &Arc<Shared>, dir: &Path, announced: File) -> Vec<Recorder> {
    let mut rings: Vec<Recorder> = Vec::new();
    let mut programs: HashMap<String, u32> = HashMap::new();
    for line in BufReader::new(announced).lines() {
        let Ok(name) = line else { break };
        if name == "end" {
            break;
        }
        if !name.starts_with("ring.") || name.contains('/') {
            continue;
        }
        // A process that executes another program makes another ring.
        let process = name["ring.".len()..].split('.').next().unwrap_or_default().to_owned();
        let before = programs.entry(process.clone()).or_insert(0u32);
        let out = match rings.len() {
            0 => shared.plan.out.clone(),
            _ => of_child(&shared.plan.out, &process, *before),
        };
        *before += 1;
        let (shared, path) = (shared.clone(), dir.join(&name));
        shared.running.fetch_add(1, Ordering::Release);
        rings.push(std::thread::spawn(move || {
            let recorded = pack(&shared, &path, out);
            shared.running.fetch_sub(1, Ordering::Release);
            recorded
        }));
    }
    rings
}

/// `xz.dwt` of process 12's first program becomes `xz-12.dwt`, of its second `xz-12.1.dwt`.
fn of_child(out: &Path, process: &str, before: u32) -> PathBuf {
    let mut name = out.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{process}"));
    if before > 0 {
        name.push(format!(".{before}"));
    }
    if let Some(extension) = out.extension() {
        name.push(".");
        name.push(extension);
    }
    out.with_file_name(name)
}

/// Packs all that one process hands over.
fn pack(shared: &Shared, path: &Path, out: PathBuf) -> Result<Recorded> {
    let mut ring = Ring::open(path).map_err(|e| Error::io("opening a ring", path, e))?;
    // Both ends have it open.
    let _ = std::fs::remove_file(path);
    let outcome = pack_ring(shared, &mut ring, out);
    if outcome.is_err() {
        // Nobody empties the ring any more.
        ring.stop();
        shared.stop.store(true, Ordering::Relaxed);
    }
    outcome
}

fn pack_ring(shared: &Shared, ring: &mut Ring, out: PathBuf) -> Result<Recorded> {
    let limit = shared.plan.limit.unwrap_or(u64::MAX);
    let mut about = About {
        architecture: "x86_64".into(),
        producer: concat!("dwell ", env!("CARGO_PKG_VERSION"), ", valgrind").into(),
        command: ring.command(),
        pid: ring.pid(),
        parent_pid: ring.parent_pid(),
        skipped_instructions: 0,
        populated: Vec::new(),
    };
    let mut writer: Option<Writer> = None;
    let mut words = Words::new();
    // What was defined while instructions were left out.
    let mut early: Vec<AtomicU64> = Vec::new();
    let mut told = 0;
    let killed = loop {
        let slot = match ring.next() {
            Handed::Slot(slot) => slot,
            Handed::Closed => break false,
            Handed::Died => break true,
        };
        if writer.is_none() && !ring.recording() && !shared.stop.load(Ordering::Relaxed) {
            early.extend(slot.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))));
            ring.give_back();
            continue;
        }
        // Once recording has begun, the number of skipped instructions is known.
        let writer = match &mut writer {
            Some(writer) => writer,
            None => {
                about.skipped_instructions = ring.skipped();
                if about.skipped_instructions > 0 {
                    about.populated = populated::populated(about.pid);
                }
                let writer = writer.insert(Writer::create(&out, &about)?);
                words.write(&std::mem::take(&mut early), limit, writer)?;
                writer
            }
        };
        words.write(slot, limit, writer)?;
        shared.instructions.fetch_add(writer.instructions() - told, Ordering::Relaxed);
        told = writer.instructions();
        if told >= limit || shared.stop.load(Ordering::Relaxed) {
            ring.stop();
            ring.give_back();
            break false;
        }
        ring.give_back();
    };
    let writer = match writer {
        Some(writer) => writer,
        None => {
            about.skipped_instructions = ring.skipped();
            Writer::create(&out, &about)?
        }
    };
    Ok(Recorded { path: out, about, written: writer.finish()?, killed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_named_after_their_parent() {
        let named = |before| of_child(Path::new("/d/xz.dwt"), "12", before);
        assert_eq!(named(0), Path::new("/d/xz-12.dwt"));
        assert_eq!(named(1), Path::new("/d/xz-12.1.dwt"));
        assert_eq!(of_child(Path::new("t"), "3", 0), Path::new("t-3"));
    }
}
