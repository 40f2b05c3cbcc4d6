// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each peer reads the right bytes, writes whole requests, counts exactly, and says in one line
//! what it cannot do.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use dwell_bench::fixture::{Fixture, LoopOnTmpfs};
use dwell_bench::program::{Answer, Hello, Order, Peers, Reply};
use dwell_bench::result::{Direction, Pattern, Requests};

const SIZE: u64 = 4096;
const BLOCKS: u64 = 64;
const PROGRAM: &str = env!("CARGO_BIN_EXE_dwell-peers");

/// A peer that is ended with the test.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(name: &str, path: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args([name, "--bytes", &(BLOCKS * SIZE).to_string(), "--path"]).arg(path);
        let mut child = command
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was just built");
        let out = BufReader::new(child.stdout.take().unwrap());
        Running(child, out)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }

    fn say(&mut self, line: &str) -> Reply {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// CPU time so far, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let after_name = stat.rsplit(") ").next().unwrap();
        let fields: Vec<&str> = after_name.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    fn ask(&mut self, order: &Order) -> Result<Answer, String> {
        match self.say(&serde_json::to_string(order).unwrap()) {
            Reply::Answer(answer) => Ok(*answer),
            Reply::Failed { error } => Err(error),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn order(pattern: Pattern, direction: Direction, depth: u32) -> Order {
    let requests = Requests { pattern, direction, depth };
    Order { span_ns: 20_000_000, size_bytes: SIZE, requests, seed: 11, samples: true }
}

/// A file whose every eight bytes hold their offset, beneath the directory of this build: unlike
/// what lies in memory, it takes direct I/O.
fn file(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("data");
    let bytes: Vec<u8> = (0..BLOCKS * SIZE / 8).flat_map(|i| (i * 8).to_le_bytes()).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(Path::new(PROGRAM).parent().unwrap()).unwrap()
}

fn takes_direct(path: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).is_ok()
}

/// Runs a check with every peer that this machine has what it needs for.
fn with_each(check: impl Fn(&str)) {
    for name in Peers::find(Some(Path::new(PROGRAM))).unwrap().list().unwrap() {
        if name.starts_with("fio") && Command::new("fio").arg("--version").output().is_err() {
            println!("SKIP: fio is not installed: {name} was not tested");
            continue;
        }
        check(&name);
    }
}

#[test]
fn each_reads_the_right_bytes_at_every_depth_and_counts_exactly() {
    let directory = directory();
    let path = file(&directory);
    let direct: &[&str] = if takes_direct(&path) { &["--direct"] } else { &[] };
    with_each(|name| {
        let mut peer = Running::start(name, &path, &[&["--verify"], direct].concat());
        let hello: Hello = serde_json::from_str(&peer.line()).unwrap();
        assert_eq!(hello.peer, name);
        assert!(!hello.version.is_empty() && !hello.settings.is_empty(), "{hello:?}");
        println!("{name} {}: {}", hello.version, hello.settings.join("; "));
        for (pattern, depth) in [(Pattern::Rand, 1), (Pattern::Seq, 8), (Pattern::Rand, 200)] {
            let order = order(pattern, Direction::Read, depth);
            let Answer { round, samples_ns } =
                peer.ask(&order).unwrap_or_else(|error| panic!("{name}: {error}"));
            let what = format!("{name} {pattern} {depth}: {round:?}");
            assert!(round.requests >= 3, "{what}");
            assert_eq!(round.bytes, round.requests * SIZE, "{what}");
            assert!(round.wall_ns > 0 && round.p50_ns > 0 && round.mean_ns > 0, "{what}");
            if let Some(samples_ns) = samples_ns {
                assert_eq!(samples_ns.len() as u64, round.requests, "{what}");
            }
        }
        // Between batches it sleeps: of 30 ticks it may use what a late thread needs to end.
        let before = peer.ticks();
        std::thread::sleep(Duration::from_millis(300));
        let used = peer.ticks() - before;
        assert!(used < 10, "{name} used {used} ticks between batches");
    });
}

/// Bytes that were read from a block device. (Neighbouring requests may be merged, so requests
/// cannot be counted.)
fn bytes_read(device: &Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let stat = std::fs::read_to_string(format!("/sys/class/block/{name}/stat")).unwrap();
    let sectors: u64 = stat.split_whitespace().nth(2).unwrap().parse().unwrap();
    sectors * 512
}

#[test]
fn direct_reads_of_a_block_device_reach_the_device() {
    let device = match LoopOnTmpfs::new(BLOCKS * SIZE) {
        Ok(device) => device,
        Err(why) => return println!("SKIP: {why}"),
    };
    with_each(|name| {
        let mut peer = Running::start(name, device.path(), &["--direct"]);
        peer.line();
        let before = bytes_read(device.path());
        let order = order(Pattern::Rand, Direction::Read, 8);
        let answer = peer.ask(&order).unwrap_or_else(|error| panic!("{name}: {error}"));
        let reached = bytes_read(device.path()) - before;
        let asked = answer.round.bytes;
        assert!(reached >= asked, "{name}: {reached} of {asked} bytes were read from the device");
    });
}

#[test]
fn wrong_bytes_are_noticed() {
    let directory = directory();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7; (BLOCKS * SIZE) as usize]).unwrap();
    with_each(|name| {
        if name.starts_with("fio") {
            return;
        }
        let mut peer = Running::start(name, &path, &["--verify"]);
        peer.line();
        let error = peer.ask(&order(Pattern::Rand, Direction::Read, 8)).unwrap_err();
        assert!(error.contains("wrong bytes"), "{name}: {error}");
    });
}

#[test]
fn each_writes_whole_requests_and_only_where_it_may() {
    let directory = directory();
    with_each(|name| {
        let path = file(&directory);
        let before = std::fs::read(&path).unwrap();
        let writes = order(Pattern::Rand, Direction::Write, 8);
        let mut peer = Running::start(name, &path, &[]);
        peer.line();
        let error = peer.ask(&writes).unwrap_err();
        assert!(error.contains("--write"), "{name}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{name} wrote");
        drop(peer);
        let mut peer = Running::start(name, &path, &["--write"]);
        peer.line();
        let Answer { round, .. } = peer.ask(&writes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(round.bytes, round.requests * SIZE, "{name}");
        let after = std::fs::read(&path).unwrap();
        assert_eq!(after.len(), before.len(), "{name} changed the length");
        assert_ne!(after, before, "{name} wrote nothing");
    });
}

#[test]
fn bad_orders_are_answered_and_the_next_is_served() {
    let directory = directory();
    let path = file(&directory);
    let mut peer = Running::start("monoio", &path, &[]);
    peer.line();
    let good = order(Pattern::Rand, Direction::Read, 1);
    let refused = |reply: Reply, part: &str| match reply {
        Reply::Failed { error } if error.contains(part) && !error.contains('\n') => {}
        other => panic!("{other:?} instead of {part}"),
    };
    refused(peer.say("no order"), "not an order");
    refused(peer.say("{}"), "span_ns");
    for (part, bad) in [
        ("0 bytes", Order { size_bytes: 0, ..good.clone() }),
        ("do not fit", Order { size_bytes: 1 << 20, ..good.clone() }),
        ("depth 0", order(Pattern::Rand, Direction::Read, 0)),
        ("depth 5000", order(Pattern::Rand, Direction::Read, 5000)),
    ] {
        let error = peer.ask(&bad).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    peer.ask(&good).unwrap();
}

#[test]
fn unknown_peers_and_missing_files_are_refused_in_one_line() {
    let directory = directory();
    let path = file(&directory);
    for (name, path, part) in [
        ("nonsense", &path, "there are kimojio, kimojio-busy, glommio"),
        ("monoio", &directory.path().join("absent"), "absent"),
    ] {
        let mut command = Command::new(PROGRAM);
        let output = command.args([name, "--bytes", "4096", "--path"]).arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    }
}
