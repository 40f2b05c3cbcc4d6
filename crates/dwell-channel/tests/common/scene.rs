// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory that this process serves at a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::File;
use dwell_channel::client;
use dwell_channel::controller::{Controller, Options};
use dwell_channel::fs::{Channels, Options as Serving, Server, take_over};

pub struct Scene {
    pub controller: Arc<Controller>,
    pub server: Option<Server>,
    pub backing: tempfile::TempDir,
    pub mount: tempfile::TempDir,
}

/// `None`, with the reason, where nothing can be mounted.
pub fn scene(memory: bool) -> Option<Scene> {
    scene_with(memory, Arc::new(Controller::start(Options::default()).unwrap()))
}

/// As [`scene`], of a controller of one's own.
pub fn scene_with(memory: bool, controller: Arc<Controller>) -> Option<Scene> {
    let dir = if memory { "/dev/shm" } else { "/var/tmp" };
    scene_in(Path::new(dir), controller)
}

/// As [`scene_with`], with what is served in that directory.
pub fn scene_in(dir: &Path, controller: Arc<Controller>) -> Option<Scene> {
    let at =
        |name: &str, dir: &Path| tempfile::Builder::new().prefix(name).tempdir_in(dir).unwrap();
    let (backing, mount) = (at("dwell-backing-", dir), at("dwell-mount-", Path::new("/var/tmp")));
    match serve(backing.path(), mount.path(), controller.clone()) {
        Ok(server) => Some(Scene { controller, server: Some(server), backing, mount }),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

pub fn serve(backing: &Path, mount: &Path, controller: Arc<Controller>) -> Result<Server, String> {
    let (backing, mount) = (backing.to_owned(), mount.to_owned());
    let serving = Serving { backing, mount, private: false, threads: 4 };
    take_over(&serving).map_err(|error| error.to_string())?;
    Server::start(&serving, controller, Channels::default).map_err(|error| error.to_string())
}

impl Scene {
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// What the kernel has asked for so far, by kind; what it says of itself, whenever it likes, left out.
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
        client::register();
        File::options().write(true).open(self.path(name)).unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.take();
    }
}
