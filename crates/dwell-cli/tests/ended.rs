// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bench that ends early: by a signal, without its load, without its device, on a full disk. What
//! was complete is kept, it is said why in one line, and nothing else is left.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use common::dwell_in;
use dwell_bench::result::Run;

/// A bench under way, with the places of its own below a directory.
struct Bench {
    child: Child,
    stderr: BufReader<ChildStderr>,
    directory: PathBuf,
}

/// The outcome of a run that ended: its exit status and output.
struct Left {
    status: Option<i32>,
    stdout: String,
    last_line: String,
}

impl Bench {
    fn start(directory: &Path, args: &[&str]) -> Bench {
        let policies = match args.contains(&"--policies") {
            true => &[][..],
            false => &["--policies", "block,spin"],
        };
        let mut child = dwell_in(directory)
            .args(["bench", "io", "--hasty-probe", "--out", "report"])
            .args(policies)
            .args(args)
            .current_dir(directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Bench { child, stderr, directory: directory.to_owned() }
    }

    /// Returns as soon as something is being measured.
    fn wait_until_it_measures(&mut self) {
        let mut line = String::new();
        while !line.contains("queue depth") {
            line.clear();
            let read = self.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "it ended too early: {:?}", self.child.wait());
        }
    }

    /// Returns when a round of its two policies is complete: a third batch is told of, some seconds
    /// later.
    fn wait_until_a_round_is_complete(&mut self) {
        (0..3).for_each(|_| self.wait_until_it_measures());
    }

    /// Returns as soon as it watches for signals: one after the other, and SIGTERM last.
    fn wait_until_it_watches(&self) {
        let status = format!("/proc/{}/status", self.child.id());
        eventually("it does not watch for signals", || {
            let status = fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
            u64::from_str_radix(caught, 16).unwrap() >> (libc::SIGTERM - 1) & 1 == 1
        });
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    /// Its children, as far as they are `dwell` themselves.
    fn children(&self) -> Vec<u32> {
        children(self.child.id())
    }

    fn wait(mut self) -> Left {
        let (mut stderr, mut stdout) = (String::new(), String::new());
        self.stderr.read_to_string(&mut stderr).unwrap();
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        println!("{}: {status}: {stderr}", self.directory.display());
        let status = status.code();
        Left { status, stdout, last_line: stderr.lines().last().unwrap_or_default().to_owned() }
    }
}

fn kill(process: u32, signal: i32) {
    // SAFETY: kill takes two numbers; the process is a child that was not waited for, or its.
    assert_eq!(unsafe { libc::kill(process as i32, signal) }, 0);
}

fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let after_name = stat.rsplit_once(") ")?.1;
        (after_name.split(' ').nth(1)?.parse() == Ok(parent)).then_some(id)
    });
    processes.collect()
}

fn is_gone(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

fn eventually(otherwise: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Loop devices over what the bench makes for itself.
fn loop_devices_of(process: u32) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = devices.map(|device| device.path().join("loop/backing_file"));
    let name = format!("dwell-loop-{process}");
    backing.filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&name))).collect()
}

/// The rounds of a run that was kept; all forms of it agree.
fn rounds_kept(report: &Path) -> Vec<usize> {
    let run = Run::load(&report.join("result.json")).unwrap();
    let rounds: Vec<usize> = run.rows.iter().map(|row| row.rounds.len()).collect();
    let csv = fs::read_to_string(report.join("result.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + rounds.iter().sum::<usize>());
    let page = fs::read_to_string(report.join("report.html")).unwrap();
    assert_eq!(run.ended.is_some(), page.contains("Ended early"));
    rounds
}

const EMULATED: &str = "emu:latency=20us,size=4MiB";

/// A round is soon complete and the run is not.
const SOON: [&str; 4] = ["--rounds", "1000", "--batch-ms", "60"];

#[test]
fn after_a_signal_complete_rounds_are_kept_and_nothing_is_left() {
    for (signal, name, status) in [(libc::SIGINT, "SIGINT", 130), (libc::SIGTERM, "SIGTERM", 143)] {
        let directory = tempfile::tempdir().unwrap();
        // As root its own devices are loop devices.
        let mut bench = Bench::start(
            directory.path(),
            &[&["--load", "cpu", "--stressors", "2", "--sizes", "4k"], &SOON[..]].concat(),
        );
        bench.wait_until_it_measures();
        let (id, stressors) = (bench.child.id(), bench.children());
        eventually("no CPU stressor", || children(id).len() >= 2);
        // Of its first batch it told above.
        (0..2).for_each(|_| bench.wait_until_it_measures());
        bench.signal(signal);
        let left = bench.wait();
        assert_eq!(left.status, Some(status), "{}", left.last_line);
        for part in ["dwell: interrupted by", name, "kept in report"] {
            assert!(left.last_line.contains(part), "{part}: {}", left.last_line);
        }
        assert!(left.stdout.contains("ended early: interrupted"), "{}", left.stdout);
        let rounds = rounds_kept(&directory.path().join("report"));
        assert!(rounds.len() == 2 && rounds[0] == rounds[1] && rounds[0] > 0, "{rounds:?}");
        assert_eq!(loop_devices_of(id), Vec::<PathBuf>::new());
        for stressor in stressors {
            eventually("a CPU stressor was left", || is_gone(stressor));
        }
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.retain(|name| !name.to_str().unwrap().starts_with("page") && name != "profiles");
        assert_eq!(names, ["report"]);
    }
}

#[test]
fn before_the_first_complete_round_a_signal_leaves_nothing_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let args = [EMULATED, "--load", "idle", "--sizes", "4k", "--batch-ms", "600000"];
    let bench = Bench::start(directory.path(), &args);
    bench.wait_until_it_watches();
    // By now it measures, of which it tells only where it has been quiet for a while.
    std::thread::sleep(Duration::from_millis(500));
    bench.signal(libc::SIGINT);
    let left = bench.wait();
    assert_eq!((left.status, left.stdout.as_str()), (Some(130), ""));
    assert!(left.last_line.contains("nothing was kept"), "{}", left.last_line);
    assert_eq!(fs::read_dir(directory.path().join("report")).unwrap().count(), 0);
}

/// Whether a signal was sent to a process that none of its threads has taken.
fn is_pending(pid: u32, signal: i32) -> bool {
    let is_in = |status: &str| {
        let masks = status.lines().filter_map(|line| {
            line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))
        });
        masks
            .map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap())
            .any(|mask| mask & 1 << (signal - 1) != 0)
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut texts =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    texts.any(|status| is_in(&status))
}

#[test]
fn a_second_signal_ends_at_once_what_hangs() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody reads from it: opening it never returns.
    let pipe = std::ffi::CString::new(directory.path().join("pipe.csv").to_str().unwrap()).unwrap();
    // SAFETY: the path ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let mut bench = Bench::start(directory.path(), &[EMULATED, "--samples", "pipe.csv"]);
    bench.wait_until_it_watches();
    bench.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(bench.child.try_wait().unwrap(), None);
    // Two that nobody has taken yet would be one.
    while is_pending(bench.child.id(), libc::SIGINT) {
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.signal(libc::SIGINT);
    assert_eq!(bench.wait().status, Some(130));
}

#[test]
fn without_one_of_its_cpu_stressors_a_run_ends() {
    let directory = tempfile::tempdir().unwrap();
    let args = [EMULATED, "--load", "cpu", "--stressors", "1", "--sizes", "4k"];
    let mut bench = Bench::start(directory.path(), &[&args[..], &SOON[..]].concat());
    bench.wait_until_a_round_is_complete();
    let [stressor] = bench.children()[..] else { panic!("one CPU stressor was asked for") };
    kill(stressor, libc::SIGKILL);
    let left = bench.wait();
    assert_eq!(left.status, Some(1));
    for part in ["dwell: ended early: ", "CPU stressors ended early", "kept in report"] {
        assert!(left.last_line.contains(part), "{part}: {}", left.last_line);
    }
    assert!(rounds_kept(&directory.path().join("report"))[0] > 0);
}

/// A file system of a few KiB; unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf, kib: u32) -> Option<SmallDisk> {
        fs::create_dir(&path).unwrap();
        let size = format!("size={kib}k");
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        match output {
            Ok(output) if output.status.success() => Some(SmallDisk(path)),
            Ok(output) => {
                println!("SKIP: mount: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("SKIP: mount: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("cannot unmount {}", self.0.display());
        }
    }
}

const SHORT: [&str; 7] =
    ["--load", "idle", "--sizes", "4k", "--batch-ms=20", "--rounds=2", EMULATED];

#[test]
fn on_a_full_disk_the_table_is_printed_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(directory.path().join("report"), 4) else { return };
    let left = Bench::start(directory.path(), &SHORT).wait();
    assert_eq!(left.status, Some(1));
    assert!(left.stdout.contains("spin"), "{}", left.stdout);
    for part in ["dwell: cannot write", "report/", "No space left"] {
        assert!(left.last_line.contains(part), "{part}: {}", left.last_line);
    }
    // Nothing half is left behind.
    assert!(!directory.path().join("report/report.html").exists());
}

#[test]
fn samples_that_fill_a_disk_do_not_end_the_run() {
    for format in ["csv", "parquet"] {
        let directory = tempfile::tempdir().unwrap();
        let Some(_disk) = SmallDisk::mount(directory.path().join("small"), 64) else { return };
        let samples = format!("small/samples.{format}");
        // Long enough for more requests than there is room for.
        let args = [&SHORT[..], &["--batch-ms=300", "--samples", &samples]].concat();
        let args: Vec<&str> = args.into_iter().filter(|arg| *arg != "--batch-ms=20").collect();
        let left = Bench::start(directory.path(), &args).wait();
        assert_eq!(left.status, Some(0), "{}", left.last_line);
        assert_eq!(rounds_kept(&directory.path().join("report")), [2, 2]);
        let run = Run::load(&directory.path().join("report/result.json")).unwrap();
        let [note] = &run.notes[..] else { panic!("{:?}", run.notes) };
        assert!(note.contains(&samples) && note.contains("No space left"), "{note}");
        match fs::read_to_string(directory.path().join(&samples)) {
            Ok(text) => assert!(format == "csv" && text.ends_with('\n')),
            Err(_) => assert_eq!(format, "parquet"),
        }
    }
}

/// A loop device over a file that can be cut short beneath it; detached on drop.
struct Doomed {
    device: String,
    file: PathBuf,
}

impl Doomed {
    fn over(file: PathBuf) -> Option<Doomed> {
        fs::write(&file, vec![7; 4 << 20]).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        match output {
            Ok(output) if output.status.success() => {
                let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
                Some(Doomed { device, file })
            }
            Ok(output) => {
                println!("SKIP: losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("SKIP: losetup: {error}");
                None
            }
        }
    }

    fn lose_everything(&self) {
        fs::File::options().write(true).open(&self.file).unwrap().set_len(0).unwrap();
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

#[test]
fn a_device_that_is_lost_is_named_with_offset_and_reason() {
    let directory = tempfile::tempdir().unwrap();
    let Some(doomed) = Doomed::over(directory.path().join("backing")) else { return };
    // Two, so that it tells of the second when it measures.
    for policies in ["block,spin", "pread,spin", "raw-get-events,spin"] {
        fs::write(&doomed.file, vec![7; 4 << 20]).unwrap();
        let args = [&doomed.device, "--load=idle", "--sizes=4k", "--rounds=1000", "--policies"];
        let mut bench = Bench::start(directory.path(), &[&args[..], &[policies]].concat());
        bench.wait_until_a_round_is_complete();
        doomed.lose_everything();
        let left = bench.wait();
        assert_eq!(left.status, Some(1));
        for part in ["dwell: ended early: ", &doomed.device, "byte ", "os error 5", "kept in"] {
            assert!(left.last_line.contains(part), "{part}: {}", left.last_line);
        }
        assert!(rounds_kept(&directory.path().join("report"))[0] > 0);
    }
}

#[test]
fn an_interrupted_figure_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = dwell_in(directory.path())
        .args(["lab", "figure", "M1", "--out", "figures", "--max-time", "300s"])
        .current_dir(directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    kill(child.id(), libc::SIGINT);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{line}{rest}");
    assert!(rest.contains("interrupted by SIGINT") && rest.contains("nothing was kept"), "{rest}");
    assert!(!directory.path().join("figures").exists());
    let id = child.id();
    eventually("a loop device was left", || loop_devices_of(id).is_empty());
}
