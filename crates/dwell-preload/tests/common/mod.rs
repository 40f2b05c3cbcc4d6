// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests share: the library, compiled programs, a fast device, runs with and without.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dwell::seccomp::filters;
use dwell_host::settings::{Paging, Pattern, RunOrder, Settings};
use dwell_host::stats_page::Snapshot;
use tempfile::TempDir;

/// Says why a test passes without testing.
pub fn skip(reason: impl std::fmt::Display) {
    println!("SKIP: {reason}");
}

/// Runs a program; its complaint where it fails.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
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

/// The library, built as the tests are.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // A library that only programs load is not built with its tests.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--offline", "--quiet", "--package", "dwell-preload"]);
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        // This test lies in TARGET/PROFILE/deps.
        let test = std::env::current_exe().unwrap();
        let place = test.parent().and_then(Path::parent).unwrap().to_owned();
        if place.ends_with("release") {
            build.arg("--release");
        }
        build.env("CARGO_TARGET_DIR", place.parent().unwrap());
        assert!(build.status().unwrap().success(), "the library does not build");
        place.join("libdwell_preload.so")
    })
}

/// One of the programs beside this file; why not where there is no compiler.
pub fn program(name: &str) -> Result<PathBuf, String> {
    built(name, &[])
}

/// The same, compiled with more flags.
pub fn built(name: &str, more: &[&str]) -> Result<PathBuf, String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let made = format!("{}-{number}-{name}.out", std::process::id());
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(made);
    let flags = ["-O2", "-D_FORTIFY_SOURCE=2", "-w", "-pthread", "-o"];
    let paths = [made.to_str().unwrap(), source.to_str().unwrap()];
    run("cc", &[more, &flags[..], &paths].concat())?;
    Ok(made)
}

/// ext4 on a loop device over memory; gone with this.
pub struct Fast {
    at: TempDir,
    device: PathBuf,
    _backing: TempDir,
}

impl Fast {
    pub fn new() -> Result<Fast, String> {
        let user = run("id", &["-u"])?;
        if user != "0" {
            return Err("needs root".to_owned());
        }
        let backing = tempfile::tempdir_in("/dev/shm").map_err(|error| error.to_string())?;
        let image = backing.path().join("image");
        fs::File::create(&image)
            .and_then(|file| file.set_len(96 << 20))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()])?;
        let at = tempfile::tempdir().map_err(|error| error.to_string())?;
        let fast = Fast { at, device: device.clone().into(), _backing: backing };
        run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal", &device])?;
        run("mount", &[&device, fast.at.path().to_str().unwrap()])?;
        Ok(fast)
    }

    pub fn path(&self) -> &Path {
        self.at.path()
    }

    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Fast {
    fn drop(&mut self) {
        for (program, what) in [("umount", self.at.path()), ("losetup", &self.device)] {
            let detach: &[&str] = if program == "losetup" { &["--detach"] } else { &[] };
            if let Err(why) = run(program, &[detach, &[what.to_str().unwrap()]].concat()) {
                eprintln!("{why}");
            }
        }
    }
}

/// How programs run under the library.
pub struct Under {
    place: TempDir,
    policy: &'static str,
    probed: bool,
    shadow: bool,
    verbose: bool,
    alone_ms: u32,
    channels: bool,
    filters: u32,
    pager: Option<Paging>,
    settings: String,
}

/// What a run came to.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The run's figures; none where the program was untouched, or ended without telling.
    pub run: Option<Snapshot>,
}

impl Ended {
    fn of(output: Output, run: Option<Snapshot>) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Ended { status: output.status, stdout, stderr, run }
    }

    /// Requests that were decided.
    pub fn decided(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.stats().requests())
    }

    /// Requests that were waited for on a ring.
    pub fn on_rings(&self) -> u64 {
        let rows = self.run.as_ref().map(|run| run.stats().rows).unwrap_or_default();
        rows.iter().filter(|row| row.route != dwell::Route::Inline).map(|row| row.requests).sum()
    }
}

/// A program as it is.
pub fn untouched(command: &mut Command) -> Ended {
    Ended::of(command.stdin(Stdio::null()).output().unwrap(), None)
}

impl Under {
    pub fn policy(policy: &'static str) -> Under {
        let place = tempfile::tempdir().unwrap();
        let (settings, channels) = (String::new(), false);
        Under {
            place,
            policy,
            probed: true,
            shadow: false,
            verbose: true,
            alone_ms: 0,
            channels,
            filters: 0,
            pager: None,
            settings,
        }
    }

    /// No probe has called a device fast.
    pub fn without_a_probe(self) -> Under {
        Under { probed: false, ..self }
    }

    /// Decisions are recorded only.
    pub fn in_shadow(self) -> Under {
        Under { shadow: true, ..self }
    }

    /// Prints nothing when the program ends.
    pub fn silently(self) -> Under {
        Under { verbose: false, ..self }
    }

    /// Leaves programs alone for so long when they begin.
    pub fn leaving_alone_for(self, alone_ms: u32) -> Under {
        Under { alone_ms, ..self }
    }

    /// Files of served mounts take channels.
    pub fn with_channels(self) -> Under {
        Under { channels: true, ..self }
    }

    /// Takes so many seccomp filters of the program for such as were there before.
    pub fn beneath_filters(self, filters: u32) -> Under {
        Under { filters, ..self }
    }

    /// Has mappings of files brought in by the pager, with so much memory for each.
    pub fn paging(self, files: &str, budget_bytes: u64) -> Under {
        let files = vec![Pattern::of_path(files).unwrap()];
        let stderr = None;
        Under { pager: Some(Paging { files, budget_bytes, stderr }), ..self }
    }

    /// Has more settings.
    pub fn saying(self, settings: &str) -> Under {
        Under { settings: settings.to_owned(), ..self }
    }

    /// Runs a program under the library. All loop devices count as probed and fast.
    pub fn run(&self, command: &mut Command) -> Ended {
        self.ended(self.command(command).stdin(Stdio::null()).output().unwrap())
    }

    /// Where its processes keep their stats_pages.
    pub fn stats_pages(&self) -> PathBuf {
        self.place.path().join("stats_pages")
    }

    fn stats(&self) -> PathBuf {
        self.place.path().join("stats")
    }

    /// What a run came to that was started with [`Under::command`].
    pub fn ended(&self, output: Output) -> Ended {
        let run = fs::read(self.stats()).ok();
        Ended::of(output, run.map(|text| serde_json::from_slice(&text).unwrap()))
    }

    /// A command that becomes the program under the library.
    pub fn command(&self, command: &mut Command) -> Command {
        let stats = self.stats();
        let _ = fs::remove_file(&stats);
        let class = if self.probed { "class = \"fast\"" } else { "" };
        let said = format!(
            "policy = {:?}\nleave_alone_ms = {}\n[[device]]\nmatch = \"loop*\"\n{class}\n{}",
            self.policy, self.alone_ms, self.settings
        );
        let order = RunOrder {
            run_id: u64::from(std::process::id()) << 32 | 7,
            // Filled in below, by the process that becomes the command.
            root_pid: 0,
            policy: None,
            shadow: self.shadow,
            stats_dir: Some(self.stats_pages()),
            stats_file: Some(stats),
            profile_dir: self.place.path().join("profiles"),
            machine_profile_dir: None,
            quiet: false,
            verbose: self.verbose,
            channels: self.channels,
            filters: filters() + self.filters,
            pager: self.pager.clone(),
            settings: Settings::parse(&said, "test").unwrap(),
        };
        let order = serde_json::to_string(&order).unwrap();
        let (before, after) = order.split_once("\"root_pid\":0").expect("a number");
        // A shell knows its pid and keeps it when it becomes the command.
        let script = r#"DWELL_RUN="$1\"root_pid\":$$$2"; LD_PRELOAD="$3"; export DWELL_RUN LD_PRELOAD; shift 3; exec "$@""#;
        let mut shell = Command::new("timeout");
        shell.args(["--signal=KILL", "120", "sh", "-c", script, "sh", before, after]);
        shell.arg(library());
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }
}
