// SPDX-License-Identifier: MIT OR Apache-2.0
//! One script on one surface: what came of every line, and what is left behind.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::model::{SHARED_BYTES, SHARED_SEED};
use crate::operation::{
    BLOCK_BYTES, BLOCK_COUNT, BLOCKS, NAMES, Op, RECORDS, SHARED, Script, path,
};
use crate::pattern;
use crate::record::{Records, Seen};
use crate::surface::Site;

/// So long may actors do nothing at all before they are said to hang.
const PATIENCE: Duration = Duration::from_secs(90);

/// What came of a script.
#[derive(Debug)]
pub struct Ran {
    /// Each line that was carried out.
    pub seen: Vec<Option<Seen>>,
    /// Whether a line was begun and not carried out.
    pub begun: Vec<bool>,
    /// How it ended, if not well.
    pub trouble: Option<String>,
    /// The files by name, as a program sees them that knows nothing of Dwell.
    pub files: Vec<Option<Vec<u8>>>,
    /// The same past a server, if there is one.
    pub backing: Option<Vec<Option<Vec<u8>>>>,
    /// What a policy was asked for.
    pub requests: Requests,
    /// Kills of actors and of servers, by the status that whoever waited for them found.
    pub kills: (u64, u64),
}

/// How many requests a policy was asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Requests that it decided.
    pub decided: u64,
    /// Those of them that it did not leave to the kernel.
    pub taken: u64,
}

impl std::ops::AddAssign for Requests {
    fn add_assign(&mut self, other: Self) {
        self.decided += other.decided;
        self.taken += other.taken;
    }
}

static RUNS: AtomicU64 = AtomicU64::new(0);

fn prepared(directory: &Path) -> Result<()> {
    fs::create_dir(directory)?;
    fs::create_dir(directory.join("d"))?;
    let shared = pattern::bytes(SHARED_BYTES as usize, SHARED_SEED);
    fs::write(directory.join(path(SHARED)), shared)?;
    fs::write(directory.join(path(RECORDS)), "")?;
    let blocks = vec![0; BLOCK_BYTES * BLOCK_COUNT as usize];
    fs::write(directory.join(path(BLOCKS)), blocks)?;
    Ok(())
}

fn files(directory: &Path) -> Vec<Option<Vec<u8>>> {
    (0..NAMES as u8).map(|name| fs::read(directory.join(path(name))).ok()).collect()
}

/// Runs a script with Dwell in between or without.
///
/// # Errors
/// What has nothing to do with the script: nothing can be set up.
pub fn run(site: &Site, script: &Script, with_dwell: bool, dump: Option<&Path>) -> Result<Ran> {
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let name = format!("run-{number}");
    let top = if with_dwell { &site.beneath } else { &site.plain };
    let directory = top.join(&name);
    // What it died of, it died of since the last script.
    let death_before = if with_dwell { site.server_death()? } else { None };
    site.has_server()?;
    let kills_before = site.server_kills();
    prepared(&directory).with_context(|| directory.display().to_string())?;
    let file = |what: &str| site.scratch.path().join(format!("{what}-{number}"));
    let [text, memory, said] = ["script", "records", "said"].map(file);
    fs::write(&text, serde_json::to_vec(script)?)?;
    let records = Records::open(&memory, script.lines.len())?;
    let mut command = site.command(with_dwell);
    command.args([&text, &memory, &directory]).stdin(Stdio::null());
    let to: PathBuf = said.clone();
    command.stdout(fs::File::create(&to)?).stderr(fs::File::options().append(true).open(&to)?);
    command.process_group(0);
    // Scripts name descriptors by number, so nothing of whoever started us may be open.
    let nothing_else = || {
        // SAFETY: a call on numbers, allowed between fork and exec.
        match unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 4) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(nothing_else) };
    if let Some(dump) = dump {
        command.env("EXERCISER_DUMP", dump);
    }
    let _ = fs::remove_file(site.stats());
    let mut child = command.spawn().context("starting the actors")?;
    let watched = watch(&mut child, site, script, with_dwell, &records)?;
    let mut trouble = watched.or(death_before);
    let words = fs::read_to_string(&said).unwrap_or_default();
    if let Some(trouble) = &mut trouble {
        let words: Vec<&str> = words.lines().take(10).collect();
        trouble.push_str(&format!(" {}", words.join(" | ")));
    }
    let lines = 0..script.lines.len();
    let seen = lines.clone().map(|line| records.seen(line)).collect();
    let begun = lines.map(|line| records.is_begun(line)).collect();
    let found = files(&directory);
    let backing = site.backing.as_ref().filter(|_| with_dwell);
    let backing = backing.map(|backing| files(&backing.join(&name)));
    let requests = if with_dwell { requests(&site.stats()) } else { Requests::default() };
    let killed = records.head().killed.load(Ordering::Relaxed);
    for one in [&text, &memory, &said] {
        let _ = fs::remove_file(one);
    }
    let _ = fs::remove_dir_all(&directory);
    if with_dwell && let Some(death) = site.server_death()? {
        trouble.get_or_insert(death);
    }
    let kills = (killed.into(), site.server_kills() - kills_before);
    Ok(Ran { seen, begun, trouble, files: found, backing, requests, kills })
}

/// Waits for the end of the actors, and kills the server when the script says so; what went wrong.
fn watch(
    child: &mut Child,
    site: &Site,
    script: &Script,
    with_dwell: bool,
    records: &Records,
) -> Result<Option<String>> {
    let disturbances: Vec<usize> =
        (0..script.lines.len()).filter(|line| script.lines[*line].op == Op::Disturb).collect();
    let (mut beats, mut since) = (0, Instant::now());
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            // SAFETY: the group that the child led; what is left of it was orphaned.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            return Ok(ended(status));
        }
        if with_dwell && let Some(death) = site.server_death()? {
            end(child);
            return Ok(Some(death));
        }
        for line in &disturbances {
            if records.is_begun(*line) {
                if with_dwell && let Err(error) = site.disturb() {
                    end(child);
                    return Ok(Some(format!("line {line}: {error:#}")));
                }
                records.head().mounts.fetch_add(1, Ordering::SeqCst);
                records.tell(*line, Seen::ok(0));
            }
        }
        let now = records.head().beats.load(Ordering::Relaxed);
        if now != beats {
            (beats, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            let stuck: Vec<usize> =
                (0..script.lines.len()).filter(|line| records.is_begun(*line)).collect();
            let stacks = stacks(child.id());
            end(child);
            return Ok(Some(format!("hangs in lines {stuck:?}; {stacks}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

fn ended(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| format!("the actors ended with {status}"))
}

/// Where the threads of the process group wait in the kernel.
fn stacks(group: u32) -> String {
    let mut told = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after = stat.rsplit(") ").next().unwrap_or_default().to_owned();
        if after.split(' ').nth(2) != Some(&group.to_string()) {
            continue;
        }
        for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
            let at = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
            let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
            let call = call.split(' ').next().unwrap_or_default().trim().to_owned();
            told.push(format!("{}: call {call} in {at}", task.file_name().display()));
        }
    }
    told.join(", ")
}

/// Ends all actors of a run.
fn end(child: &mut Child) {
    // SAFETY: the group of a child that was not waited for.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    let _ = child.wait();
}

/// Requests in the figures of a process.
fn requests(stats: &Path) -> Requests {
    fn add(value: &serde_json::Value, sum: &mut Requests) {
        match value {
            serde_json::Value::Object(object) => {
                let route = object.get("route").and_then(serde_json::Value::as_str);
                let requests = object.get("requests").and_then(serde_json::Value::as_u64);
                match (route, requests) {
                    (Some(route), Some(decided)) => {
                        // A synchronous call is the kernel's.
                        let taken = if route == "inline" { 0 } else { decided };
                        *sum += Requests { decided, taken };
                    }
                    _ => object.values().for_each(|value| add(value, sum)),
                }
            }
            serde_json::Value::Array(array) => array.iter().for_each(|value| add(value, sum)),
            _ => {}
        }
    }
    let mut sum = Requests::default();
    if let Ok(value) = serde_json::from_slice(&fs::read(stats).unwrap_or_default()) {
        add(&value, &mut sum);
    }
    sum
}
