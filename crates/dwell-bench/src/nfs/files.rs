// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files copied between a directory here and an NFS server: by `dwell nfs cp`, by blocking threads,
//! by libnfs's `nfs-cp`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::copy::{self, Options, Progress, Watcher};
use dwell_nfs::nfs3::{
    ChangeAttributes, Create, CreateHow, Handle, Rename, SetAttributes, Stable, Write,
};
use dwell_nfs::url::Url;

use super::threads::Caller;
use crate::parent::die_with_parent;
use crate::usage::{Cost, Meter, Scope, children_cpu_ns, faults};

/// The program of libnfs that copies one file.
pub const NFS_CP: &str = "nfs-cp";

/// What a copy cost.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Time and switches.
    pub cost: Cost,
    /// Minor page faults of the whole process; 0 where they are not counted.
    pub faults: u64,
}

#[derive(Default)]
struct Errors(Mutex<Vec<String>>);

impl Watcher for Errors {
    fn progress(&self, _: &Progress) {}

    fn failed(&self, error: &dwell_nfs::Error) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(error.to_string());
    }
}

/// Copies as `dwell nfs cp -r` does.
///
/// # Errors
/// What was not copied, and why.
pub fn ours(from: &str, to: &str) -> Result<Copied> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    let errors = Errors::default();
    let options = Options { recursive: true, ..Options::default() };
    let (before, meter) = (faults().minor, Meter::start(Scope::Process));
    let copied = executor.block_on(copy::between(&tasks, from, to, options, &errors));
    let (cost, faults) = (meter.stop(), faults().minor - before);
    let (_, failures) = copied?;
    let errors = errors.0.into_inner().unwrap_or_default();
    ensure!(failures == 0, "{failures} files were not copied: {}", errors.join("; "));
    Ok(Copied { cost, faults })
}

/// Copies the files of a directory into a directory on a server, by so many blocking threads with a
/// connection each: each makes a file by another name, writes it durably, sets its mode and renames
/// it.
///
/// # Errors
/// What the server or the system says.
pub fn by_threads(from: &Path, to: &Url, threads: u32) -> Result<Copied> {
    let (at, directory, most_bytes) = mounted(to)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from)? {
        names.push(entry?.path());
    }
    let next = AtomicUsize::new(0);
    let (before, meter) = (faults().minor, Meter::start(Scope::Process));
    let worker = |number: u32| -> Result<()> {
        let transport = to.transport;
        let mut caller = Caller::connect(transport, at, most_bytes + 4096, number << 24)?;
        while let Some(path) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            copy_one(&mut caller, directory, path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })?;
    Ok(Copied { cost: meter.stop(), faults: faults().minor - before })
}

fn mounted(url: &Url) -> Result<(std::net::SocketAddr, Handle, u32)> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    executor.block_on(async {
        let client = Client::mount(&tasks, url).await?;
        let found = client.require(url).await?;
        Ok((url.address(url.port.unwrap_or(2049))?, found.handle, client.write_bytes()))
    })
}

fn copy_one(caller: &mut Caller, directory: Handle, path: &Path) -> Result<()> {
    let data = std::fs::read(path)?;
    let name = path.file_name().context("a file has a name")?.as_encoded_bytes();
    let part = [b".", name, b".part"].concat();
    let set = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let how = CreateHow::Guarded(set(0o600));
    let create = Create { directory, name: &part, how };
    let made = caller.call(&create, &[], |(handle, _)| handle)?;
    let file = made.context("the server tells no handle of what it makes")?;
    let write = Write { file, offset: 0, bytes: data.len() as u32, stable: Stable::FileSync };
    let wrote = caller.call(&write, &data, |written| written.bytes)?;
    ensure!(wrote as usize == data.len(), "{wrote} bytes of {} were written", data.len());
    caller.call(&ChangeAttributes { file, to: set(0o644) }, &[], |()| ())?;
    caller.call(&Rename { from: (directory, &part), to: (directory, name) }, &[], |()| ())
}

/// Copies one file by `nfs-cp`, which ends with a COMMIT. Its switches are not counted.
///
/// # Errors
/// Where there is no such program, or it fails.
pub fn by_libnfs(from: &str, to: &str) -> Result<Copied> {
    let cpu = children_cpu_ns();
    let meter = Meter::start(Scope::Thread);
    let mut command = Command::new(NFS_CP);
    command.args([from, to]).stdin(Stdio::null()).stdout(Stdio::null());
    // It would ask a server that is gone, without end.
    die_with_parent(&mut command);
    let ended = command.output();
    let ended = ended.with_context(|| format!("{NFS_CP} (package libnfs-utils)"))?;
    let wall_ns = meter.stop().wall_ns;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{NFS_CP}: {}: {}", ended.status, said.trim());
    let cost = Cost { wall_ns, user_ns: children_cpu_ns() - cpu, ..Cost::default() };
    Ok(Copied { cost, faults: 0 })
}

/// The same file as libnfs names it: its options are those that it knows.
pub fn libnfs_address(server: &str, port: u16, mount_port: u16, path: &Path) -> String {
    format!("nfs://{server}{}?nfsport={port}&mountport={mount_port}", path.display())
}

/// Makes so many files of so many bytes each.
///
/// # Errors
/// What the system says.
pub fn make(directory: &Path, count: usize, bytes: usize) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)?;
    let paths = (0..count).map(|number| directory.join(format!("file{number}")));
    paths
        .map(|path| std::fs::write(&path, vec![0x5a; bytes]).map(|()| path))
        .collect::<Result<_, _>>()
        .map_err(Into::into)
}
