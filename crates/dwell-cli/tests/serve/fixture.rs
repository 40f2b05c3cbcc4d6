// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory served by a daemon in a process of its own, gone when the test is over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Three directories side by side on one file system: what is served, where, and one that is not.
pub struct Served {
    pub backing: PathBuf,
    pub mount: PathBuf,
    /// The same file system without the daemon.
    pub plain: PathBuf,
    _dir: TempDir,
}

pub fn dwell() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dwell"))
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why nothing can be served here.
pub fn missing() -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is not there".to_owned());
    }
    let helper = Command::new("fusermount3").arg("-V").stdout(Stdio::null()).status().is_ok();
    (!is_root() && !helper).then(|| "fusermount3 is not installed".to_owned())
}

pub fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

/// Runs a command that has to succeed; what it wrote.
pub fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

impl Served {
    /// The directories, with nothing served yet; `None`, and said so, where it cannot be.
    pub fn prepare() -> Option<Served> {
        if let Some(why) = missing() {
            println!("SKIP: nothing can be served: {why}");
            return None;
        }
        // Memory where there is some: what is compared is the server, not a disk.
        let memory = Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => TempDir::with_prefix_in("dwell-serve-", memory),
            false => TempDir::with_prefix("dwell-serve-"),
        };
        let dir = dir.unwrap();
        let of = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (backing, mount, plain) = (of("backing"), of("mount"), of("plain"));
        Some(Served { backing, mount, plain, _dir: dir })
    }

    /// All of it, being served.
    pub fn start() -> Option<Served> {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Option<Served> {
        let served = Self::prepare()?;
        served.serve(options);
        Some(served)
    }

    pub fn serve(&self, options: &[&str]) -> String {
        let mut start = dwell();
        start.args(["serve", "start"]).args(crate::OPTIONS).args(options);
        done(start.args([&self.backing, &self.mount]))
    }

    /// What the daemon says of itself.
    pub fn facts(&self) -> serde_json::Value {
        let told = done(dwell().args(["serve", "status", "--json"]));
        let told: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
        let mine = told.iter().find(|one| one["mount"] == self.mount.to_str().unwrap()).unwrap();
        assert_eq!(mine["state"], "serving");
        mine["facts"].clone()
    }

    /// Whether the kernel reads and writes by itself.
    pub fn passes(&self) -> bool {
        self.facts()["data_path"]["path"] == "passthrough"
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        let told = done(dwell().args(["serve", "status", "--json"]));
        let told: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
        let mine = told.iter().find(|one| one["mount"] == self.mount.to_str().unwrap()).unwrap();
        mine["pid"].as_u64().unwrap() as u32
    }

    /// Kills the daemon as nothing else does.
    pub fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    pub fn stop(&self, options: &[&str]) -> Output {
        dwell().args(["serve", "stop"]).args(options).arg(&self.mount).output().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop(&["--force"]);
        // A mount that is left here was left by a test that failed.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let below = self._dir.path();
        for place in places.filter(|place| Path::new(place).starts_with(below)) {
            let _ = Command::new("umount").arg("-l").arg(place).stderr(Stdio::null()).status();
            let mut helper = Command::new("fusermount3");
            let _ = helper.arg("-uzq").arg(place).stderr(Stdio::null()).status();
        }
    }
}

/// Numbers that look random and are the same in every run.
pub struct Dice(u64);

impl Dice {
    pub fn of(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub fn of_these<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }
}
