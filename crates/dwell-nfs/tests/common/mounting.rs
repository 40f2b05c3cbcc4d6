// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounts of a model, and programs that use them.
#![allow(dead_code)]

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dwell_nfs::fuse::{self, Mounted};
use tempfile::TempDir;

use super::fake::Fake;
use super::model::Model;

/// Does something at a mounted model; where nothing can be mounted, says so.
pub fn at(model: &Model, options: &str, work: impl FnOnce(&Path)) {
    let server = model.serve();
    at_server(&server, options, work);
}

pub fn mount(server: &Fake, options: &str) -> Option<(TempDir, Mounted)> {
    mount_telling(server, options, |_| {})
}

pub fn mount_telling(
    server: &Fake,
    options: &str,
    told: impl FnMut(&dwell_nfs::Error) + Send + 'static,
) -> Option<(TempDir, Mounted)> {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        println!("SKIP: /dev/fuse cannot be opened");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let url = server.url("/e", &format!("&size=4096{options}")).parse().unwrap();
    match Mounted::start_telling(&url, dir.path(), told) {
        Ok(mounted) => Some((dir, mounted)),
        Err(error) if error.errno() == libc::EPERM => {
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn at_server(server: &Fake, options: &str, work: impl FnOnce(&Path)) {
    let Some((dir, mounted)) = mount(server, options) else { return };
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(dir.path())));
    unmount(dir.path(), done.is_err());
    let ended = mounted.wait();
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
    ended.unwrap();
}

/// Unmounts. A child of another test holds this test's files between its fork and its exec.
pub fn unmount(at: &Path, force: bool) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match fuse::unmount(at, force) {
            Err(error) if error.to_string().contains("in use") && Instant::now() < until => {
                sleep(Duration::from_millis(20));
            }
            done => return done.unwrap(),
        }
    }
}

/// Starts a program that is given a mount.
pub fn program(script: &str, dir: &Path) -> Child {
    let mut program = Command::new("sh");
    program.args(["-c", script, "sh"]).arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
    program.spawn().unwrap()
}

/// Whether a program ends within so many seconds.
pub fn ends_within(seconds: u64, program: &mut Child) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        if program.try_wait().unwrap().is_some() {
            return true;
        }
        sleep(Duration::from_millis(20));
    }
    false
}

pub fn wait_for(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < until);
        sleep(Duration::from_millis(5));
    }
}
