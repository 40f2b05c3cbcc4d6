// SPDX-License-Identifier: MIT OR Apache-2.0
//! N7: calls to the server for what programs do in a mount, ours beside the kernel's client.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use dwell_nfs::fuse::{self, Mounted};

use super::lab::{put, skip, skip_all};
use super::nfs::beside_server_of;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::{Export, Ganesha};

const FILES: usize = 1000;
const FILE_BYTES: usize = 4096;
const LARGE_BYTES: usize = 64 << 20;

const OURS: [&str; 2] = ["small files: calls per file", "large file: calls per MB"];
const RATIO: [&str; 2] = ["small files: calls ÷ the kernel's", "large file: calls ÷ the kernel's"];

/// Calls for small files and for a large one.
type Calls = [f64; 2];

/// A mount, and how many calls it made so far.
trait Mount {
    fn calls(&self) -> Result<u64>;
}

impl Mount for Mounted {
    fn calls(&self) -> Result<u64> {
        Ok(self.counters().answered)
    }
}

/// What the kernel counts of its own mount.
struct OfKernel<'p>(&'p Path);

impl Mount for OfKernel<'_> {
    fn calls(&self) -> Result<u64> {
        let text = fs::read_to_string("/proc/thread-self/mountstats")
            .context("/proc/thread-self/mountstats")?;
        calls_in(&text, self.0).with_context(|| format!("{}: no statistics", self.0.display()))
    }
}

/// The sum of the operations that follow a mount's heading: the first number of each is how often
/// it was sent.
fn calls_in(text: &str, mount: &Path) -> Option<u64> {
    let heading = format!(" mounted on {} with fstype nfs", mount.display());
    let own = text.lines().skip_while(|line| !line.contains(&heading)).skip(1);
    let own = own.take_while(|line| !line.starts_with("device "));
    let operations = own.skip_while(|line| !line.contains("per-op statistics")).skip(1);
    let counts = operations.filter_map(|line| {
        let (_, numbers) = line.trim().split_once(": ")?;
        numbers.split(' ').next()?.parse::<u64>().ok()
    });
    let counts: Vec<u64> = counts.collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// Files made, listed with their attributes, read and removed; a file written, synced and read.
/// Every byte that is read is compared.
fn work(at: &Path, mount: &dyn Mount, files: usize, large_bytes: usize) -> Result<Calls> {
    let before = mount.calls()?;
    let directory = at.join("small");
    fs::create_dir(&directory)?;
    let data = vec![0x5a; FILE_BYTES];
    for number in 0..files {
        fs::write(directory.join(number.to_string()), &data)?;
    }
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        ensure!(entry.metadata()?.len() == FILE_BYTES as u64, "a file of another length");
        ensure!(fs::read(entry.path())? == data, "a file has other bytes");
    }
    fs::remove_dir_all(&directory)?;
    let between = mount.calls()?;
    let large = vec![0xa5; large_bytes];
    fs::write(at.join("large"), &large)?;
    ensure!(fs::read(at.join("large"))? == large, "the large file has other bytes");
    fs::remove_file(at.join("large"))?;
    let after = mount.calls()?;
    let per = |calls: u64, of: f64| calls as f64 / of;
    Ok([per(between - before, files as f64), per(after - between, large_bytes as f64 / 1e6)])
}

fn by_ours(server: &Ganesha, export: &Path, at: &Path, size: (usize, usize)) -> Result<Calls> {
    let url = server.address(&export.display().to_string(), "&hard").parse()?;
    let mounted = Mounted::start(&url, at)?;
    let done = work(at, &mounted, size.0, size.1);
    fuse::unmount(at, done.is_err())?;
    mounted.wait()?;
    done
}

fn by_kernel(export: &Path, at: &Path, size: (usize, usize)) -> Result<Calls> {
    let options = format!(
        "vers=3,proto=tcp,nolock,port={},mountport={},mountproto=tcp",
        Ganesha::PORT,
        Ganesha::MOUNT_PORT
    );
    let from = format!("127.0.0.1:{}", export.display());
    let run = |command: &mut Command| -> Result<()> {
        let ended = command.output().with_context(|| format!("{command:?}"))?;
        match ended.status.success() {
            true => Ok(()),
            false => bail!("{command:?}: {}", String::from_utf8_lossy(&ended.stderr).trim()),
        }
    };
    run(Command::new("mount").args(["-t", "nfs", "-o", &options, &from]).arg(at))?;
    let done = work(at, &OfKernel(at), size.0, size.1);
    run(Command::new("umount").arg(at))?;
    done
}

/// N7.
pub fn mounts(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let directory = tempfile::tempdir_in("/dev/shm").context("a directory in memory")?;
    let (exported, at) = (directory.path().join("export"), directory.path().join("at"));
    fs::create_dir(&exported)?;
    fs::create_dir(&at)?;
    let part = if lab.is_hasty() { 50 } else { 1 };
    let size = (FILES / part, LARGE_BYTES / part);
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has_nfs = systems.lines().any(|line| line.trim_start_matches("nodev").trim() == "nfs");
    let measured =
        beside_server_of(&[Export::directory(&exported)], progress, |server, progress| {
            progress("our mount", 0.0);
            let ours = by_ours(server, &exported, &at, size)?;
            progress("the kernel's mount", 0.5);
            let kernel = has_nfs.then(|| by_kernel(&exported, &at, size));
            Ok((ours, kernel))
        })?;
    let (ours, kernel) = match measured {
        Ok(measured) => measured,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    for (case, calls) in OURS.into_iter().zip(ours) {
        put(result, case, Some(Measured::exact(calls)), None)?;
    }
    match kernel {
        Some(Ok(kernel)) => {
            for ((case, ours), theirs) in RATIO.into_iter().zip(ours).zip(kernel) {
                let remark = Some(format!("{ours:.2} against {theirs:.2}"));
                put(result, case, Some(Measured::exact(ours / theirs)), remark)?;
            }
        }
        Some(Err(why)) => skip(result, &RATIO, &format!("{why:#}"))?,
        None => skip(result, &RATIO, "this kernel has no NFS client")?,
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_of_one_mount_are_summed() {
        let text = "device proc mounted on /proc with fstype proc\n\
            device server:/a mounted on /mnt/a with fstype nfs statvers=1.1\n\
            \topts:\trw\n\tper-op statistics\n\
            \t        NULL: 1 1 0 44 24 0 0 0 0\n\t     GETATTR: 12 12 0 1 1 0 0 0 0\n\n\
            device server:/b mounted on /mnt/b with fstype nfs statvers=1.1\n\
            \tper-op statistics\n\t        NULL: 100 1 0 44 24 0 0 0 0\n";
        assert_eq!(calls_in(text, Path::new("/mnt/a")), Some(13));
        assert_eq!(calls_in(text, Path::new("/mnt/b")), Some(100));
        assert_eq!(calls_in(text, Path::new("/mnt/c")), None);
        assert_eq!(calls_in(text, Path::new("/proc")), None);
    }
}
