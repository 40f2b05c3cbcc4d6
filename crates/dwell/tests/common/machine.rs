// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, file systems and devices to test on; each goes away with its guard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// Runs a program; its complaint where it fails.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("no {program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{program} {}: {}", arguments.join(" "), text(&output.stderr))),
    }
}

fn root() -> Result<(), String> {
    // SAFETY: asks and changes nothing.
    match unsafe { libc::geteuid() } {
        0 => Ok(()),
        _ => Err("needs root".to_owned()),
    }
}

/// A directory on the file system that the build is on.
pub fn disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .or_else(|_| tempfile::tempdir())
        .expect("a directory for test files")
}

/// A directory in memory.
pub fn memory() -> Result<TempDir, String> {
    tempfile::tempdir_in("/dev/shm").map_err(|error| format!("/dev/shm: {error}"))
}

/// A loop device over a file in memory.
pub struct Loop {
    pub device: PathBuf,
    _backing: TempDir,
}

impl Loop {
    pub fn new(bytes: u64) -> Result<Loop, String> {
        root()?;
        let backing = memory()?;
        let image = backing.path().join("image");
        fs::File::create(&image)
            .and_then(|file| file.set_len(bytes))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        let device = run("losetup", &["--find", "--show", image.to_str().expect("ASCII")])?;
        Ok(Loop { device: device.into(), _backing: backing })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(why) = run("losetup", &["--detach", self.device.to_str().expect("ASCII")]) {
            eprintln!("{why}");
        }
    }
}

/// A mounted file system.
pub struct Mount {
    pub at: TempDir,
}

impl Mount {
    fn new(arguments: &[&str]) -> Result<Mount, String> {
        root()?;
        let at = tempfile::tempdir().map_err(|error| error.to_string())?;
        let arguments = [arguments, &[at.path().to_str().expect("ASCII")]].concat();
        run("mount", &arguments)?;
        Ok(Mount { at })
    }

    /// A tmpfs that holds so many bytes.
    pub fn tiny(bytes: u64) -> Result<Mount, String> {
        Mount::new(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(why) = run("umount", &[self.at.path().to_str().expect("ASCII")]) {
            eprintln!("{why}");
        }
    }
}

/// ext4 on a loop device; unmounted before the device goes.
pub struct Ext4 {
    pub mount: Mount,
    _device: Loop,
}

impl Ext4 {
    pub fn new(bytes: u64) -> Result<Ext4, String> {
        let device = Loop::new(bytes)?;
        let path = device.device.to_str().expect("ASCII");
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", path])?;
        Ok(Ext4 { mount: Mount::new(&[path])?, _device: device })
    }
}

/// A compressed memory device.
pub struct Zram {
    number: String,
    pub device: PathBuf,
}

impl Zram {
    pub fn new(bytes: u64) -> Result<Zram, String> {
        root()?;
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(|error| format!("no zram: {error}"))?
            .trim()
            .to_owned();
        let zram = Zram { device: PathBuf::from(format!("/dev/zram{number}")), number };
        fs::write(format!("/sys/block/zram{}/disksize", zram.number), bytes.to_string())
            .map_err(|error| format!("zram size: {error}"))?;
        if !zram.device.exists() {
            return Err(format!("{} did not appear", zram.device.display()));
        }
        Ok(zram)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // A scan of the new device by others may hold it for a moment.
        for _ in 0..100 {
            if fs::write("/sys/class/zram-control/hot_remove", &self.number).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} is still there", self.device.display());
    }
}

/// A file of `bytes` bytes with the pattern of `seed`.
pub fn pattern_file(path: &Path, bytes: u64, seed: u64) {
    let mut data = vec![0; bytes as usize];
    super::fill(&mut data, 0, seed);
    fs::write(path, data).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    fs::File::open(path).and_then(|file| file.sync_all()).expect("written back");
}
