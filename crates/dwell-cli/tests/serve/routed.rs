// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that know nothing of channels, under `dwell run --channels`, on a served mount: what
//! they do and find is the same as untouched, and most of it does not pass the kernel.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::fixture::{Served, done, dwell};
use crate::library::library;

/// The program beside this file; `None`, and said so, where there is no compiler.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    compiled(&PROGRAM, "tests/serve/routed.c", "routed")
}

fn compiled(
    program: &'static OnceLock<Option<PathBuf>>,
    source: &str,
    name: &str,
) -> Option<&'static Path> {
    let made = program.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let name = format!("{name}-{}", std::process::id());
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-D_FORTIFY_SOURCE=2", "-w", "-pthread", "-o"]).args([&made, &source]);
        let output = cc.output().ok()?;
        assert!(output.status.success(), "{}", crate::fixture::text(&output));
        Some(made)
    });
    if made.is_none() {
        println!("SKIP: no C compiler");
    }
    made.as_deref()
}

/// What makes life hard for a library beneath, whatever its files are on; as [`program`].
fn scenarios() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = "../dwell-preload/tests/programs/scenarios.c";
    compiled(&PROGRAM, source, "scenarios")
}

/// `dwell run` of the library, with a policy that always waits for channels.
fn run(served: &Served, stats: &Path) -> Command {
    let mut command = dwell();
    let place = served.plain.join("run");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("system.toml"), "leave_alone_ms = 0\n").unwrap();
    command.args(["run", "--channels", "--quiet", "--policy", "spin", "--stats"]);
    command.arg(stats).arg("--");
    command.env("DWELL_PRELOAD", library());
    command.env("DWELL_PROFILES", place.join("profiles"));
    command.env("DWELL_SYSTEM_CONFIG", place.join("system.toml"));
    command.env("XDG_CONFIG_HOME", place.join("config"));
    command.env_remove("LD_PRELOAD");
    command
}

/// How often the kernel asked the daemon for this.
fn asked(served: &Served, what: &str) -> u64 {
    served.facts()["requests"][what].as_u64().unwrap_or(0)
}

/// Requests that were not the kernel's.
fn decided(stats: &Path) -> u64 {
    fn sum(value: &Value) -> u64 {
        match value {
            Value::Object(object) => {
                let route = object.get("route").and_then(Value::as_str);
                let requests = object.get("requests").and_then(Value::as_u64);
                match (route, requests) {
                    (Some("inline"), _) => 0,
                    (Some(_), Some(requests)) => requests,
                    _ => object.values().map(sum).sum(),
                }
            }
            Value::Array(array) => array.iter().map(sum).sum(),
            _ => 0,
        }
    }
    sum(&serde_json::from_slice(&fs::read(stats).unwrap()).unwrap())
}

/// Runs one of the program's parts untouched beside the mount, untouched on it, and under the
/// library on it: requests that the kernel passed on in the last two, and those decided in the
/// last.
fn compared(part: &str) -> Option<(u64, u64, u64)> {
    let program = program()?;
    let served = Served::start()?;
    let expected = done(Command::new(program).arg(part).arg(&served.plain));
    let transfers = || asked(&served, "read") + asked(&served, "write");
    let on_mount = done(Command::new(program).arg(part).arg(&served.mount));
    assert_eq!(on_mount, expected, "{part} untouched on the mount");
    let before = transfers();
    let stats = served.plain.join("stats");
    let run = done(run(&served, &stats).arg(program).arg(part).arg(&served.mount));
    let after = transfers();
    assert_eq!(run, expected, "{part} under the library");
    for entry in fs::read_dir(&served.mount).unwrap() {
        let name = entry.unwrap().file_name();
        let [ours, plain] = [&served.mount, &served.plain].map(|dir| fs::read(dir.join(&name)));
        assert!(ours.unwrap() == plain.unwrap(), "{part}: {name:?} differs");
    }
    if served.passes() {
        assert_eq!(after, 0, "the kernel reads and writes by itself");
    }
    Some((before, after - before, decided(&stats)))
}

/// Most of what the kernel passed on of an untouched program has to take channels.
fn is_less(untouched: u64, under: u64) {
    assert!(
        untouched == 0 || under < untouched / 2,
        "the kernel made {untouched} requests, and {under} under it"
    );
}

/// The same command without some of its words.
fn without(words: &[&str], command: &Command) -> Command {
    let mut rest = Command::new(command.get_program());
    rest.args(command.get_args().filter(|word| !words.iter().any(|other| word == other)));
    rest.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    rest
}

#[test]
fn without_being_asked_no_file_takes_a_channel() {
    let (Some(program), Some(served)) = (program(), Served::start()) else { return };
    let expected = done(Command::new(program).arg("mixed").arg(&served.plain));
    let stats = served.plain.join("stats");
    let mut unasked = without(&["--channels"], &run(&served, &stats));
    let said = done(unasked.arg(program).arg("mixed").arg(&served.mount));
    assert_eq!(said, expected);
    assert_eq!(decided(&stats), 0);
    let channels = &served.facts()["channels"];
    assert_eq!((&channels["commands"], &channels["grants"]), (&0.into(), &0.into()));
}

#[test]
fn under_the_default_policy_files_begin_with_the_kernels_path() {
    let (Some(program), Some(served)) = (program(), Served::start()) else { return };
    let expected = done(Command::new(program).arg("mixed").arg(&served.plain));
    let stats = served.plain.join("stats");
    let mut default = without(&["--policy", "spin"], &run(&served, &stats));
    assert_eq!(done(default.arg(program).arg("mixed").arg(&served.mount)), expected);
    let all: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let rows = all["devices"][0]["stats"]["rows"].as_array().unwrap();
    // What follows is for the policy to find out, and for the machine's load to change.
    let begun = rows.iter().filter(|row| row["reason"] == "unprobed");
    let (by_kernel, by_channel): (Vec<_>, Vec<_>) = begun.partition(|row| row["route"] == "inline");
    let count = |rows: Vec<&Value>| rows.iter().filter_map(|row| row["requests"].as_u64()).sum();
    let (by_kernel, by_channel): (u64, u64) = (count(by_kernel), count(by_channel));
    // A first sync may take the channel.
    assert!(by_channel < by_kernel, "{rows:#?}");
}

#[test]
fn reads_and_writes_of_all_kinds_take_the_channel_and_stay_the_same() {
    let Some((untouched, under, decided)) = compared("mixed") else { return };
    assert!(decided > 2000, "{decided} requests were decided");
    is_less(untouched, under);
}

#[test]
fn a_number_that_becomes_another_file_is_another_file() {
    compared("numbers");
}

#[test]
fn processes_that_share_a_file_see_what_each_does() {
    let Some((untouched, under, _)) = compared("processes") else { return };
    is_less(untouched, under);
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    compared("memory");
}

#[test]
fn signal_handlers_make_requests() {
    compared("signals");
}

#[test]
fn a_daemon_that_is_killed_is_an_error_and_comes_back() {
    let (Some(program), Some(served)) = (program(), Served::start()) else { return };
    if served.passes() {
        return println!("SKIP: the kernel goes on with what is open; see direct.rs");
    }
    let stats = served.plain.join("stats");
    let mut command = run(&served, &stats);
    command.arg(program).arg("gone").arg(&served.mount).env("SERVED", &served.mount);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "ready: 0");
    served.kill();
    assert_eq!(line(), "within a second: 1");
    assert_eq!(line(), "and then: 1");
    served.serve(&[]);
    let before = asked(&served, "read") + asked(&served, "write");
    writeln!(child.stdin.take().unwrap()).unwrap();
    assert_eq!(line(), "back: 0");
    assert!(child.wait().unwrap().success());
    let kernel = asked(&served, "read") + asked(&served, "write") - before;
    assert!(kernel < 1000, "{kernel} of 4000 requests were the kernel's");
}

#[test]
fn a_child_that_lives_on_keeps_no_channel_of_its_parents() {
    let (Some(program), Some(served)) = (program(), Served::start()) else { return };
    let stats = served.plain.join("stats");
    let mut command = run(&served, &stats);
    command.arg(program).arg("outlived").arg(&served.mount);
    let mut parent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = parent.stdin.take();
    assert!(parent.wait().unwrap().success());
    assert!(decided(&stats) > 0);
    let channels = || served.facts()["channels"]["channels"].as_u64();
    for _ in 0..200 {
        if channels() == Some(0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(channels(), Some(0));
    drop(input);
    let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "read by the child: 512");
}

#[test]
fn fio_verifies_what_it_wrote() {
    if Command::new("fio").arg("--version").output().is_err() {
        println!("SKIP: fio is not installed");
        return;
    }
    let Some(served) = Served::start() else { return };
    let fio = |command: &mut Command, mode: &[&str]| {
        command.args(["--name=job", "--filename=data", "--size=8M", "--ioengine=psync"]);
        command.args([
            "--bsrange=512-64k",
            "--blockalign=512",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--numjobs=1",
        ]);
        command.args(["--randseed=7", "--verify_fatal=1"]).args(mode).current_dir(&served.mount);
        done(command)
    };
    let stats = served.plain.join("stats");
    fs::write(served.mount.join("data"), vec![0; 8 << 20]).unwrap();
    fio(run(&served, &stats).arg("fio"), &["--rw=randwrite"]);
    assert!(decided(&stats) > 500);
    fio(&mut Command::new("fio"), &["--rw=randwrite", "--verify_only"]);
    fio(&mut Command::new("fio"), &["--rw=randwrite"]);
    fio(run(&served, &stats).arg("fio"), &["--rw=randwrite", "--verify_only"]);
}

#[test]
fn programs_may_do_here_what_they_may_do_at_any_moment() {
    let (Some(program), Some(served)) = (scenarios(), Served::start()) else { return };
    let stats = served.plain.join("stats");
    let of = |mut command: Command, dir: &Path, name: &str| {
        let blocks: Vec<u8> = (0..256u64)
            .flat_map(|number| {
                let mut block = vec![0; 4096];
                block[..8].copy_from_slice(&number.to_le_bytes());
                block
            })
            .collect();
        let (file, other) = (dir.join("file"), dir.join("other"));
        fs::write(&file, blocks).unwrap();
        let _ = fs::remove_file(&other);
        let output = command.arg(name).args([&file, &other]).stdin(Stdio::null()).output().unwrap();
        // Two who append do so in any order.
        let mut other = fs::read(&other).unwrap_or_default();
        other.sort_unstable();
        let text = String::from_utf8(output.stdout).unwrap();
        (text, output.status, fs::read(&file).unwrap(), other)
    };
    let names = [
        ("shared_offset", 1),
        ("children", 1),
        ("forks_amid_threads", 1000),
        ("vforks", 1),
        ("spawns", 1),
        ("inherits", 1),
        ("threads_share", 1),
        ("reads_in_handlers", 100),
        ("jumps_out", 1000),
        ("cancels", 1),
        ("reused", 1),
        ("few_descriptors", 0),
        ("closes_everything", 1),
        ("lowest_numbers", 1),
        ("appends", 0),
        ("file_limit", 0),
        ("small_stacks", 100),
        ("leaves_at_once", 0),
        ("rings_forbidden", 0),
        ("rings_deadly", 0),
        ("deadly_later", 0),
    ];
    for (name, least) in names {
        let expected = of(Command::new(program), &served.plain, name);
        // A program waits a second for its channel and then goes by the kernel, as it may on a busy
        // machine: what it does must be right each time, and by channel one time of three.
        let enough = (0..3).any(|_| {
            let mut command = run(&served, &stats);
            command.arg(program);
            let under = of(command, &served.mount, name);
            assert_eq!((&under.0, under.1), (&expected.0, expected.1), "{name}");
            assert!(under == expected, "{name}: a file is another");
            let decided = decided(&stats);
            println!("{name}: {decided} decided");
            decided >= least
        });
        assert!(enough, "{name}: too few are decided");
    }
}
