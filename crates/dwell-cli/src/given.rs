// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a command line names, looked at before anything is measured.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use dwell::device::Device;
use dwell::emulated::Spec;
use dwell::open::is_scheme;
use dwell_nfs::url::Url;
use rustix::fs::{Access, SeekFrom, access, seek};
use rustix::io::Errno;

use crate::answer::wrong;

/// An error of another module, as the parser of an argument gives it.
pub fn as_text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

/// The number of a process.
///
/// # Errors
/// Another text, such as a program's name.
pub fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "want the number of a process, as pgrep shows it".into())
}

/// A length of time, as 300ms or 2s, in milliseconds.
///
/// # Errors
/// Another text; nothing, or more than ten minutes.
pub fn milliseconds(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or_default(), 1000),
    };
    let length = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let length = length.ok_or("want a whole number with ms or s, as 300ms or 2s")?;
    match length {
        1..=600_000 => Ok(length),
        _ => Err("want a time from 1ms to 600s".into()),
    }
}

/// What can be measured, each once: a file or a block device that can be opened, or an address.
///
/// # Errors
/// What it is instead, or why it cannot be opened.
pub fn subjects(paths: &[PathBuf]) -> Result<()> {
    once("PATH", paths.iter().map(|path| path.display().to_string()))?;
    for path in paths {
        address(path)?;
    }
    for path in paths.iter().filter(|path| !is_scheme(path)) {
        Device::beneath(path)?;
        File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(())
}

/// An emulated device's or an NFS file's address, if the path looks like one.
///
/// # Errors
/// The part of the address that is wrong.
pub fn address(path: &Path) -> Result<()> {
    match path.to_str().and_then(|text| Some((text.split_once(':')?.0, text))) {
        Some(("emu", text)) => text.parse::<Spec>().map(drop).map_err(wrong_address),
        Some(("nfs", text)) => text.parse::<Url>().map(drop).map_err(wrong_address),
        _ => Ok(()),
    }
}

fn wrong_address(error: impl Into<anyhow::Error>) -> anyhow::Error {
    wrong(as_text(error))
}

/// A file that is to be copied, or a directory if trees are.
///
/// # Errors
/// None there, or why it cannot be read.
pub fn source(path: &Path, trees: bool) -> Result<()> {
    let named = || format!("cannot read {}", path.display());
    let kind = path.symlink_metadata().with_context(named)?.file_type();
    match (kind.is_dir(), kind.is_symlink()) {
        (true, _) if trees => Ok(()),
        (true, _) => bail!("{}: is a directory; --recursive copies it", path.display()),
        // A link is copied as such, whatever it points to.
        (_, true) => Ok(()),
        _ => File::open(path).map(drop).with_context(named),
    }
}

/// A file that is to be written later, if one is named.
///
/// # Errors
/// A directory of that name, or none to put it in, or one that this user cannot write in.
pub fn output(path: Option<&Path>) -> Result<()> {
    // A dash is standard output.
    let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(()) };
    if path.is_dir() {
        bail!("{}: is a directory; name a file in it", path.display());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or(Path::new("."));
    match dir.metadata() {
        Ok(found) if found.is_dir() => {}
        Err(error) if error.kind() != ErrorKind::NotFound => {
            bail!("{}: cannot look into {}: {error}", path.display(), dir.display())
        }
        _ => bail!("{}: there is no directory {}", path.display(), dir.display()),
    }
    match access(dir, Access::WRITE_OK | Access::EXEC_OK) {
        Err(error) if !path.exists() => {
            let error = std::io::Error::from(error);
            bail!("{}: cannot write in {}: {error}", path.display(), dir.display())
        }
        _ => Ok(()),
    }
}

/// A file that is to be written anew, as [`output`]; what it holds is lost only with --force.
///
/// # Errors
/// As of [`output`]; a file that holds something.
pub fn new_output(path: &Path, force: bool) -> Result<()> {
    output(Some(path))?;
    match path.metadata() {
        Ok(there) if there.is_file() && there.len() > 0 && !force => {
            bail!("{}: exists already; --force overwrites it", path.display())
        }
        _ => Ok(()),
    }
}

/// What a measurement writes over: a file or device that holds something only with --force, and one
/// in use never.
///
/// # Errors
/// What it would lose, or who uses it.
pub fn overwritten(paths: &[PathBuf], force: bool) -> Result<()> {
    for path in paths {
        let name = path.display();
        let (is_device, holds) = match is_scheme(path) {
            true => (false, !path.to_string_lossy().starts_with("emu:")),
            false => {
                let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
                let is_device = file.metadata()?.file_type().is_block_device();
                let no_data = seek(&file, SeekFrom::Data(0)) == Err(Errno::NXIO);
                (is_device, is_device || !no_data)
            }
        };
        if holds && !force {
            bail!("{name}: --write overwrites what it holds; --force allows that");
        }
        // The kernel gives a device that is mounted, swapped to or part of another to nobody else.
        let exclusive = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
        if is_device && exclusive().is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            bail!("{name}: is in use (mounted, swap, or part of another device); not written");
        }
    }
    Ok(())
}

/// A program of an option's, if one is named.
///
/// # Errors
/// None there, or one that this user cannot run.
pub fn program(path: Option<&Path>) -> Result<()> {
    let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    match path.filter(|path| !runs(path)) {
        Some(path) => bail!("{}: there is no such program", path.display()),
        None => Ok(()),
    }
}

/// What an option names, each once.
///
/// # Errors
/// What it names twice.
pub fn once(option: &str, names: impl Iterator<Item = String>) -> Result<()> {
    let mut seen = Vec::new();
    for name in names {
        if seen.contains(&name) {
            return Err(wrong(format!("{option}: {name} is named twice")));
        }
        seen.push(name);
    }
    Ok(())
}

/// A directory that is made when there is something to put into it.
///
/// # Errors
/// A file in its place, or in that of a directory above it.
pub fn directory(path: &Path) -> Result<()> {
    match path.ancestors().find(|above| above.exists()) {
        Some(there) if !there.is_dir() => bail!("{}: is no directory", there.display()),
        _ => Ok(()),
    }
}

/// The contender that the others are held against.
///
/// # Errors
/// One that is not measured.
pub fn baseline(baseline: &str, measured: &[String]) -> Result<()> {
    if measured.iter().any(|name| name == baseline) {
        return Ok(());
    }
    let measured = measured.join(",");
    Err(wrong(format!(
        "--baseline {baseline}: it is not among those that are measured ({measured})"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_something_is_overwritten_by_force_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
        File::create(&empty).unwrap().set_len(1 << 20).unwrap();
        std::fs::write(&full, vec![1; 1 << 16]).unwrap();
        File::open(&full).unwrap().sync_all().unwrap();
        assert!(overwritten(&[empty.clone(), "emu:z-nand".into()], false).is_ok());
        let error = overwritten(&[empty, full.clone()], false).unwrap_err().to_string();
        assert!(error.contains("full: --write overwrites what it holds"), "{error}");
        assert!(overwritten(&[full], true).is_ok());
        assert!(overwritten(&["chan:mount/file".into()], false).is_err());
    }

    #[test]
    fn a_path_that_cannot_be_read_or_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert!(subjects(&[file.clone(), "emu:z-nand".into()]).is_ok());
        assert!(output(None).is_ok() && output(Some(&dir.path().join("new"))).is_ok());
        assert!(
            output(Some(Path::new("new"))).is_ok() && program(Some(Path::new("/bin/sh"))).is_ok()
        );
        let missing = dir.path().join("none/file");
        let said = [
            subjects(std::slice::from_ref(&missing)),
            output(Some(dir.path())),
            output(Some(&missing)),
            program(Some(dir.path())),
        ];
        for said in said {
            assert!(said.unwrap_err().to_string().contains(dir.path().to_str().unwrap()));
        }
    }
}
