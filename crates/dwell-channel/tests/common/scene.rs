// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory that this process serves at a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::File;
use dwell_channel::client;
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::{Channels, DataPath, Facts, Options as Serving, Server, take_over};

pub struct Scene {
    pub daemon: Arc<Daemon>,
    pub server: Option<Server>,
    pub backing: tempfile::TempDir,
    pub mount: tempfile::TempDir,
}

/// Backing files in memory and not, passed through by the kernel and not.
pub const EVERY: [(bool, bool); 4] = [(true, true), (false, true), (true, false), (false, false)];

/// With passthrough where there is any; `None`, with the reason, where nothing can be mounted.
pub fn scene(memory: bool) -> Option<Scene> {
    scene_by((memory, true))
}

/// As [`scene`], one of [`EVERY`].
pub fn scene_by((memory, passthrough): (bool, bool)) -> Option<Scene> {
    let dir = if memory { "/dev/shm" } else { "/var/tmp" };
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    scene_in(Path::new(dir), daemon, passthrough)
}

/// With what is served in that directory.
pub fn scene_in(dir: &Path, daemon: Arc<Daemon>, passthrough: bool) -> Option<Scene> {
    let at =
        |name: &str, dir: &Path| tempfile::Builder::new().prefix(name).tempdir_in(dir).unwrap();
    let (backing, mount) = (at("dwell-backing-", dir), at("dwell-mount-", Path::new("/var/tmp")));
    match serve(backing.path(), mount.path(), daemon.clone(), passthrough) {
        Ok(server) => Some(Scene { daemon, server: Some(server), backing, mount }),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

pub fn serve(
    backing: &Path,
    mount: &Path,
    daemon: Arc<Daemon>,
    passthrough: bool,
) -> Result<Server, String> {
    let (backing, mount) = (backing.to_owned(), mount.to_owned());
    let serving = Serving { backing, mount, private: false, threads: 4, passthrough };
    serve_as(&serving, daemon)
}

pub fn serve_as(serving: &Serving, daemon: Arc<Daemon>) -> Result<Server, String> {
    take_over(serving).map_err(|error| error.to_string())?;
    Server::start(serving, daemon, Channels::default).map_err(|error| error.to_string())
}

impl Scene {
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    pub fn facts(&self) -> Facts {
        self.server.as_ref().unwrap().stopper().facts()
    }

    /// Whether the kernel passes requests through; says so where it should and cannot.
    pub fn passes(&self) -> bool {
        match self.facts().data_path {
            DataPath::Passthrough => true,
            DataPath::DirectIo { why } => {
                println!("SKIP: no passthrough: {why}");
                false
            }
        }
    }

    /// What the kernel has asked for so far, by kind; what it says of itself, whenever it likes,
    /// left out.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        let mut requests = self.server.as_ref().unwrap().stopper().facts().requests;
        requests.retain(|kind, _| kind != "forget" && kind != "release");
        requests
    }

    /// Waits until nobody has a file open: the kernel says so a little later than they close it.
    pub fn until_closed(&self) {
        let stopper = self.server.as_ref().unwrap().stopper();
        let until = Instant::now() + Duration::from_secs(10);
        while stopper.facts().open_files > 0 {
            assert!(Instant::now() < until, "files stay open");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn open(&self, name: &str) -> File {
        to_channels().write(true).open(self.path(name)).unwrap()
    }
}

/// Options of files whose requests all take the channel. The default policy calls the kernel
/// instead where other programs fill the CPUs.
pub fn to_channels() -> dwell::Options {
    client::register();
    dwell::Options::new().policy(Arc::new(dwell::policy::Spin))
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.take();
    }
}
