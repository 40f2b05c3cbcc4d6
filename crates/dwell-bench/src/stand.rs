// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices that a run without arguments measures on, made for it and removed after it.

use std::path::Path;

use anyhow::{Result, bail};
use dwell_host::profile::ProfileStore;

use crate::fixture::{Fixture, LoopOnTmpfs, TempFile, Unavailable, Zram};
use crate::subject::{Probing, Subject};

/// Length of the papers' test file, in bytes.
pub const FILE_BYTES: u64 = 256 << 20;

/// Test devices that exist as long as this.
#[derive(Default)]
pub struct Stand {
    fixtures: Vec<Box<dyn Fixture>>,
    /// What to measure on.
    pub subjects: Vec<Subject>,
    /// What could not be made, and why.
    pub left_out: Vec<String>,
}

/// A device that a stand can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A loop device over memory: completed by a kernel worker.
    Loop,
    /// Compressed memory: served in the caller.
    Zram,
    /// A file in the working directory: the machine's own disk.
    Disk,
    /// An emulated fast flash device.
    Emulated,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Loop, Kind::Zram, Kind::Disk, Kind::Emulated];

    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Loop => "loop",
            Kind::Zram => "zram",
            Kind::Disk => "disk",
            Kind::Emulated => "emu:z-nand",
        }
    }

    /// The device; `None` for one that exists where it is opened.
    fn make(self, directory: &Path, bytes: u64) -> Result<Option<Box<dyn Fixture>>, Unavailable> {
        Ok(Some(match self {
            Kind::Emulated => return Ok(None),
            Kind::Loop => Box::new(LoopOnTmpfs::new(bytes)?),
            Kind::Zram => Box::new(Zram::new(bytes)?),
            Kind::Disk => {
                let file = TempFile::new(directory, bytes)?;
                file.direct()?;
                Box::new(file)
            }
        }))
    }
}

impl Stand {
    /// Makes test devices and probes each; what this machine cannot make is left out, and said.
    pub fn make(kinds: &[Kind], directory: &Path, write: bool, probing: &Probing) -> Result<Self> {
        Self::make_sized(FILE_BYTES, kinds, directory, write, probing)
    }

    /// The same with test devices of `bytes` each.
    pub fn make_sized(
        bytes: u64,
        kinds: &[Kind],
        directory: &Path,
        write: bool,
        probing: &Probing,
    ) -> Result<Self> {
        let mut stand = Stand::default();
        for kind in kinds {
            match kind.make(directory, bytes) {
                Ok(None) => {
                    let address = format!("{},size={}MiB", kind.as_str(), (bytes >> 20).max(1));
                    stand.add(kind.as_str(), Path::new(&address), write, None, probing)?;
                }
                Ok(Some(fixture)) => {
                    let mut subject =
                        Subject::new(kind.as_str(), fixture.path(), write, None, probing)?;
                    subject.description = fixture.description();
                    stand.subjects.push(subject);
                    stand.fixtures.push(fixture);
                }
                Err(why) => stand.left_out.push(format!("{}: {why}", kind.as_str())),
            }
        }
        Ok(stand)
    }

    /// The stand of a run without arguments: as root a loop device on memory, otherwise a file
    /// beneath `directory`; and an emulated device that needs nothing.
    pub fn default_job(directory: &Path, write: bool, probing: &Probing) -> Result<Self> {
        let mut stand = Self::make(&[Kind::Loop], directory, write, probing)?;
        if stand.subjects.is_empty() {
            let file = Self::make(&[Kind::Disk], directory, write, probing)?;
            stand.fixtures.extend(file.fixtures);
            stand.subjects.extend(file.subjects);
            stand.left_out.extend(file.left_out);
        }
        let emulated = Self::make(&[Kind::Emulated], directory, write, probing)?;
        stand.subjects.extend(emulated.subjects);
        Ok(stand)
    }

    /// Adds something that exists already.
    pub fn add(
        &mut self,
        name: &str,
        address: &Path,
        write: bool,
        store: Option<&ProfileStore>,
        probing: &Probing,
    ) -> Result<()> {
        self.subjects.push(Subject::new(name, address, write, store, probing)?);
        Ok(())
    }

    /// A subject by its name.
    pub fn get(&self, kind: Kind) -> Result<&Subject> {
        match self.subjects.iter().find(|subject| subject.name == kind.as_str()) {
            Some(subject) => Ok(subject),
            None => bail!("{} is not available here: {}", kind.as_str(), self.left_out.join("; ")),
        }
    }
}
