// SPDX-License-Identifier: MIT OR Apache-2.0
//! File systems on loop devices over memory.

use std::fs::{self, File as Plain};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// An ext4 on a loop device over memory.
pub struct Disk(tempfile::TempDir);

impl Disk {
    /// `None`, and said so, where there can be none.
    pub fn make() -> Option<Disk> {
        Self::make_with(64 << 20, &[], "loop")
    }

    /// As [`Disk::make`], of so many bytes, with options for `mkfs.ext4` and `mount`.
    pub fn make_with(bytes: u64, mkfs: &[&str], mount: &str) -> Option<Disk> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root has loop devices");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("dwell-loop-").tempdir_in("/dev/shm").unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        Plain::create(&image).unwrap().set_len(bytes).unwrap();
        fs::create_dir(&at).unwrap();
        let did = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        let made = did(Command::new("mkfs.ext4").args(["-q", "-F"]).args(mkfs).arg(&image))
            && did(Command::new("mount").args(["-o", mount]).args([&image, &at]));
        if !made {
            println!("SKIP: no ext4 on a loop device can be made here");
        }
        made.then_some(Disk(dir))
    }

    pub fn at(&self) -> PathBuf {
        self.0.path().join("at")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What served it may be closing its files still.
        for _ in 0..100 {
            if Command::new("umount")
                .arg(self.at())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|s| s.success())
            {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = Command::new("umount").arg("-l").arg(self.at()).status();
    }
}
