// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a contender opens files and makes requests.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use dwell::monitor::SystemMonitor;
use dwell::{File, Options, Stats};

use super::place::Place;
use super::spec::Spec;
use crate::contender;

/// A contender that works on files.
pub(super) enum Hand {
    /// Dwell under a policy.
    Dwell(Box<Options>),
    /// Plain calls; with these flags of open.
    Plain(i32),
}

/// An open file of a contender.
pub(super) enum Opened {
    Dwell(Box<File>),
    Plain(std::fs::File),
}

/// Whether a contender of this name works on files.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name != "pread" && contender::HAND_WRITTEN.contains(&name) {
        bail!("{name}: workloads are played by policies and by pread");
    }
    contender::check_name(name)
}

impl Hand {
    /// A contender by name: a policy, or `pread` for plain calls.
    pub fn of(
        name: &str,
        spec: &Spec,
        place: &Place,
        monitor: &Arc<SystemMonitor>,
    ) -> Result<Self> {
        if name == "pread" {
            return Ok(Hand::plain(spec));
        }
        check_name(name)?;
        let options = Options::new()
            .write(true)
            .direct(spec.direct)
            .sync(spec.sync)
            .parameters(place.parameters)
            .policy(contender::policy_of(name)?)
            .monitor(monitor.clone());
        Ok(Hand::Dwell(Box::new(options)))
    }

    /// Plain calls, with the flags that the workload wants.
    pub fn plain(spec: &Spec) -> Self {
        let direct = if spec.direct { libc::O_DIRECT } else { 0 };
        Hand::Plain(direct | if spec.sync { libc::O_DSYNC } else { 0 })
    }

    /// Opens a file for reading and writing; with `create`, makes it first.
    pub fn open(&self, path: &Path, create: bool) -> Result<Opened> {
        Ok(match self {
            Hand::Dwell(options) if create => {
                Opened::Dwell(Box::new(options.as_ref().clone().create(true).open(path)?))
            }
            Hand::Dwell(options) => Opened::Dwell(Box::new(options.open(path)?)),
            Hand::Plain(flags) => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(create).truncate(false).custom_flags(*flags);
                let opened = options.open(path);
                Opened::Plain(opened.with_context(|| format!("open {}", path.display()))?)
            }
        })
    }
}

impl Opened {
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Opened::Dwell(file) => file.read_exact_at(buffer, offset)?,
            Opened::Plain(file) => file.read_exact_at(buffer, offset)?,
        }
        Ok(())
    }

    pub fn write(&self, buffer: &[u8], offset: u64) -> Result<()> {
        match self {
            Opened::Dwell(file) => file.write_all_at(buffer, offset)?,
            Opened::Plain(file) => file.write_all_at(buffer, offset)?,
        }
        Ok(())
    }

    pub fn sync(&self, data: bool) -> Result<()> {
        match (self, data) {
            (Opened::Dwell(file), true) => file.sync_data()?,
            (Opened::Dwell(file), false) => file.sync()?,
            (Opened::Plain(file), true) => file.sync_data()?,
            (Opened::Plain(file), false) => file.sync_all()?,
        }
        Ok(())
    }

    /// What Dwell counted while it was open.
    pub fn stats(&self) -> Option<Stats> {
        match self {
            Opened::Dwell(file) => Some(file.stats()),
            Opened::Plain(_) => None,
        }
    }
}
