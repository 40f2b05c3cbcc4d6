// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the files of a workload live: on a file system made for it, or in a directory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use dwell::parameters::DeviceParameters;
use dwell_host::profile::DeviceProfile;

use super::spec::FileSystemKind;
use crate::fixture::{Directory, FileSystem, Fixture, LoopOnTmpfs, TempFile, Unavailable, Zram};
use crate::result;
use crate::stand::Kind;
use crate::subject::{Probing, Subject};

/// Length of the file by which a place is probed, in bytes; less on a small device.
const PROBED_BYTES: u64 = 64 << 20;
/// The share of a made device that is free for files.
const USABLE: f64 = 0.8;

/// What to put files on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A file system on a loop device or zram made for it; for the disk, a directory.
    Made(Kind),
    /// A directory that is there.
    In(PathBuf),
}

impl PlaceKind {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            PlaceKind::Made(kind) => kind.as_str().into(),
            PlaceKind::In(directory) => directory.display().to_string(),
        }
    }
}

#[derive(Debug)]
enum Root {
    Made(FileSystem),
    There(Directory),
}

/// A probed place for files, there as long as this.
#[derive(Debug)]
pub struct Place {
    /// Short name in tables.
    pub name: String,
    /// What the probe learned of files on it.
    pub parameters: DeviceParameters,
    /// All that the probe learned.
    pub profile: Option<DeviceProfile>,
    /// Bytes that files may take.
    pub bytes: u64,
    root: Root,
    direct: bool,
    description: result::Device,
}

impl Place {
    /// Makes a device of `bytes` with a file system, or a directory beneath `directory`, for at
    /// most as many bytes of files; and probes it. The inner error says why it cannot be had here.
    ///
    /// # Errors
    /// A place that was made and could not be probed.
    pub fn make(
        kind: &PlaceKind,
        file_system: FileSystemKind,
        bytes: u64,
        directory: &Path,
        probing: &Probing,
    ) -> Result<Result<Self, Unavailable>> {
        let root = match root(kind, file_system, bytes, directory) {
            Ok(root) => root,
            Err(why) => return Ok(Err(why)),
        };
        let path = match &root {
            Root::Made(system) => system.path(),
            Root::There(directory) => directory.path(),
        };
        let probed = match TempFile::new(path, PROBED_BYTES.min(bytes / 4)) {
            Ok(file) => file,
            Err(why) => return Ok(Err(why)),
        };
        let direct = probed.direct().is_ok();
        let name = kind.name();
        let subject = Subject::new(&name, probed.path(), false, None, probing)
            .with_context(|| format!("probing {name}"))?;
        let what = match &root {
            Root::Made(system) => system.description(),
            Root::There(_) => format!("directory on {}", subject.description),
        };
        Ok(Ok(Place {
            bytes: (bytes as f64 * USABLE) as u64,
            parameters: subject.parameters,
            direct,
            description: result::Device { description: what, ..subject.describe() },
            profile: subject.profile,
            root,
            name,
        }))
    }

    /// Where files go.
    pub fn path(&self) -> &Path {
        match &self.root {
            Root::Made(system) => system.path(),
            Root::There(directory) => directory.path(),
        }
    }

    /// For the report.
    pub fn describe(&self) -> result::Device {
        self.description.clone()
    }

    /// Fails unless direct I/O is to be had.
    pub(super) fn check_direct(&self) -> Result<()> {
        let name = &self.name;
        ensure!(self.direct, "{name} has no direct I/O: edit the workload to say `direct = false`");
        Ok(())
    }

    /// I/O schedulers that a device made for the run can have; none elsewhere.
    pub fn schedulers(&self) -> Vec<String> {
        let file = self.scheduler_file().unwrap_or_default();
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.split_whitespace().map(|name| name.trim_matches(['[', ']']).into()).collect()
    }

    fn scheduler_file(&self) -> Option<PathBuf> {
        match &self.root {
            Root::Made(system) => Some(scheduler(system)),
            Root::There(_) => None,
        }
    }

    /// Chooses the I/O scheduler of a device that was made.
    pub(super) fn schedule(&self, scheduler: &str) -> Result<()> {
        let Some(file) = self.scheduler_file() else {
            anyhow::bail!("{}: only a device made for the run is given a scheduler", self.name);
        };
        std::fs::write(&file, scheduler).with_context(|| {
            format!("cannot choose the scheduler {scheduler} in {}", file.display())
        })
    }
}

/// A setting of the queue of the device beneath a file system.
fn scheduler(system: &FileSystem) -> PathBuf {
    let device = system.device().file_name().unwrap_or_default();
    Path::new("/sys/block").join(device).join("queue/scheduler")
}

fn root(
    kind: &PlaceKind,
    file_system: FileSystemKind,
    bytes: u64,
    directory: &Path,
) -> Result<Root, Unavailable> {
    let device: Box<dyn Fixture> = match kind {
        PlaceKind::Made(Kind::Loop) => Box::new(LoopOnTmpfs::blank(bytes)?),
        PlaceKind::Made(Kind::Zram) => Box::new(Zram::blank(bytes)?),
        PlaceKind::Made(Kind::Emulated) => {
            return Err(Unavailable::new("an emulated device holds no files"));
        }
        PlaceKind::Made(Kind::Disk) => return Directory::new(directory).map(Root::There),
        PlaceKind::In(chosen) => return Directory::new(chosen).map(Root::There),
    };
    FileSystem::new(device, file_system.as_str(), directory).map(Root::Made)
}
