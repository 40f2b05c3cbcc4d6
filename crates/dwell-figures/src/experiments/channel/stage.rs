// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory that this process serves, and the file in it that is measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use dwell_channel::daemon::{self, Daemon};
use dwell_channel::fs::{Channels, DataPath, Options as Serving, Server};

/// The file of [`Stage::with_data`].
pub const DATA: &str = "data";

/// A served directory, there as long as this.
pub struct Stage {
    server: Server,
    daemon: Arc<Daemon>,
    backing: PathBuf,
    mount: tempfile::TempDir,
    _directory: Option<tempfile::TempDir>,
}

impl Stage {
    /// Serves `backing`, or a directory on a tmpfs; or why there can be none here.
    pub fn make(backing: Option<&Path>, options: daemon::Options) -> Result<Result<Stage, String>> {
        let own = match backing {
            Some(_) => None,
            None => Some(tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?),
        };
        let backing = match (&own, backing) {
            (Some(own), _) => own.path().to_owned(),
            (None, Some(backing)) => backing.to_owned(),
            (None, None) => unreachable!("a directory of its own was made above"),
        };
        let mount = tempfile::tempdir().context("a directory to serve at")?;
        // What a channel saves is a request of the kernel's to the daemon.
        let serving = (backing.as_path(), mount.path(), false, false);
        Ok(served(serving, options)?.map(|(server, daemon)| Stage {
            server,
            daemon,
            backing,
            mount,
            _directory: own,
        }))
    }

    /// Serves `backing` as `dwell serve` does: the kernel reads and writes by itself where it can.
    /// `hidden` keeps everybody else off the directory.
    pub fn passed_through(
        backing: &Path,
        hidden: bool,
        options: daemon::Options,
    ) -> Result<Result<Stage, String>> {
        let mount = tempfile::tempdir().context("a directory to serve at")?;
        let serving = (backing, mount.path(), hidden, true);
        let backing = backing.to_owned();
        Ok(served(serving, options)?.map(|(server, daemon)| Stage {
            server,
            daemon,
            backing,
            mount,
            _directory: None,
        }))
    }

    /// The same, with a file of `bytes` bytes in it.
    pub fn with_data(backing: Option<&Path>, bytes: u64) -> Result<Result<Stage, String>> {
        let made = Stage::make(backing, daemon::Options::default())?;
        if let Ok(stage) = &made {
            let data = &dwell_bench::fixture::half_noise(bytes as usize)[..];
            std::fs::write(stage.backing.join(DATA), data).context("writing the file to serve")?;
        }
        Ok(made)
    }

    /// How often a program has waited for the daemon so far.
    pub fn trips(&self) -> u64 {
        // For these nobody waits.
        let aside = ["forget", "release", "releasedir"];
        let requests = self.server.stopper().facts().requests;
        requests.iter().filter(|(kind, _)| !aside.contains(&kind.as_str())).map(|(_, n)| n).sum()
    }

    /// How data reaches the backing files.
    pub fn data_path(&self) -> DataPath {
        self.server.stopper().facts().data_path
    }

    /// The daemon that serves the directory.
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// The directory that is served.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Where it is served.
    pub fn mount(&self) -> &Path {
        self.mount.path()
    }
}

/// Serves a directory at another, hidden or not, with passthrough or not; or why that cannot be.
fn served(
    (backing, mount, private, passthrough): (&Path, &Path, bool, bool),
    options: daemon::Options,
) -> Result<Result<(Server, Arc<Daemon>), String>> {
    let daemon = Arc::new(Daemon::start(options)?);
    let (backing, mount) = (backing.to_owned(), mount.to_owned());
    let serving = Serving { backing, mount, private, threads: 2, passthrough };
    let started = Server::start(&serving, daemon.clone(), Channels::default);
    Ok(started.map(|server| (server, daemon)).map_err(|error| error.to_string()))
}
