// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory that this process serves, and the file in it that is measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use dwell_channel::controller::{self, Controller};
use dwell_channel::fs::{Channels, Options as Serving, Server};

/// The file of [`Stage::with_data`].
pub const DATA: &str = "data";

/// A served directory, there as long as this.
pub struct Stage {
    _server: Server,
    backing: PathBuf,
    mount: tempfile::TempDir,
    _directory: Option<tempfile::TempDir>,
}

impl Stage {
    /// Serves `backing`, or a directory on a tmpfs; or why there can be none here.
    pub fn make(
        backing: Option<&Path>,
        options: controller::Options,
    ) -> Result<Result<Stage, String>> {
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
        let controller = Controller::start(options)?;
        let (at, threads) = (mount.path().to_owned(), 2);
        let serving = Serving {
            backing: backing.clone(),
            mount: at,
            private: false,
            threads,
            // What a channel saves is a request of the kernel's to the controller.
            passthrough: false,
        };
        Ok(match Server::start(&serving, Arc::new(controller), Channels::default) {
            Ok(_server) => Ok(Stage { _server, backing, mount, _directory: own }),
            Err(error) => Err(error.to_string()),
        })
    }

    /// The same, with a file of `bytes` bytes in it.
    pub fn with_data(backing: Option<&Path>, bytes: u64) -> Result<Result<Stage, String>> {
        let made = Stage::make(backing, controller::Options::default())?;
        if let Ok(stage) = &made {
            let data = &dwell_bench::fixture::half_noise(bytes as usize)[..];
            std::fs::write(stage.backing.join(DATA), data).context("writing the file to serve")?;
        }
        Ok(made)
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
