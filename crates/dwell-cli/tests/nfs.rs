// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell nfs` and `dwell bench nfs`: one clear line for bad input, and the commands on a server.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dwell_bench::fixture::{Export, Ganesha, Unavailable, in_own_network};

use common::said;

fn dwell(words: &[&str]) -> Output {
    common::dwell().args(words).output().unwrap()
}

#[test]
fn bad_input_gives_one_clear_line() {
    for (words, part) in [
        (&["ls", "http://server/x"][..], "not an NFS address; write nfs://server/export/path"),
        (&["stat", "nfs:///x"], "no server"),
        (&["cat", "nfs://server"], "no export"),
        (&["ls", "nfs://127.0.0.1/x?colour=red"], "colour is not an option"),
        (&["cp", "a", "b"], "neither is an NFS address"),
        (&["mkdir", "nfs://127.0.0.1/a/../b"], "cannot contain .."),
    ] {
        let output = dwell(&[&["nfs"], words].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(said.starts_with("dwell: ") && said.contains(part), "{words:?}: {said}");
    }
    let output = dwell(&["nfs", "ls", "nfs://127.0.0.1:9/x?mountport=9"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1));
    let refused = "mounting: no connection to 127.0.0.1:9: Connection refused";
    assert!(said.starts_with("dwell: ") && said.contains(refused), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn commands_do_what_they_say() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(dir.path())], false)?;
        let at = |path: &str| server.address(&format!("{export}{path}"), "");
        let ok = |words: &[&str]| {
            let output = dwell(&[&["nfs"], words].concat());
            assert!(output.status.success(), "{words:?}: {}", said(&output));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let local = dir.path().join("local");
        std::fs::write(&local, "hello\n").unwrap();
        ok(&["mkdir", "-p", &at("/a/b")]);
        let plan = ok(&["cp", "--dry-run", local.to_str().unwrap(), &at("/a/b")]);
        assert!(plan.starts_with("new ") && plan.contains("6 bytes to copy: 1 new"), "{plan}");
        assert!(!dir.path().join("a/b/local").exists());
        let copied = dwell(&["nfs", "cp", "--verify", local.to_str().unwrap(), &at("/a/b")]);
        assert!(said(&copied).contains("1 files verified"), "{}", said(&copied));
        assert_eq!(ok(&["cat", &at("/a/b/local")]), "hello\n");
        assert!(ok(&["ls", &at("/a/b")]).contains(" local\n"));
        let listed: serde_json::Value =
            serde_json::from_str(&ok(&["ls", "--json", &at("/a/b")])).unwrap();
        assert_eq!((&listed[0]["name"], &listed[0]["bytes"]), (&"local".into(), &6.into()));
        let told: serde_json::Value =
            serde_json::from_str(&ok(&["stat", "--json", &at("/a/b/local")])).unwrap();
        assert!(told["file"]["kind"] == "regular file" && told["space"]["free_files"].is_u64());
        let stat = ok(&["stat", &at("/a/b/local")]);
        assert!(stat.contains("regular file, 6 bytes") && stat.contains("you may: read"), "{stat}");
        let exports = ok(&["ls", &server.address("", "")]);
        assert_eq!(exports.trim(), export);
        let refused = dwell(&["nfs", "rm", &at("/a")]);
        assert!(said(&refused).contains("--recursive removes it"));
        let listed = ok(&["rm", "-r", "--dry-run", &at("/a")]);
        let paths: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split('?').next()?.rsplit_once("/a"))
            .map(|(_, below)| below)
            .collect();
        assert_eq!(paths, ["", "/b", "/b/local"], "{listed}");
        assert!(dir.path().join("a/b/local").exists());
        ok(&["rm", "-r", &at("/a")]);
        assert!(!dir.path().join("a").exists());
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

#[test]
fn a_bench_writes_over_no_file_that_holds_something() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(dir.path())], false)?;
        let out = dir.path().join("out");
        let bench = |file: &Path, more: &[&str]| {
            let address = server.address(&file.display().to_string(), "");
            let words = ["bench", "nfs", &address, "--contenders", "async", "--no-auto"];
            let few = ["--windows", "2", "--rounds", "1", "--bytes", "64k", "-o"];
            dwell(&[&words[..], &few, &[out.to_str().unwrap()], more].concat())
        };
        let (short, long) = (dir.path().join("short"), dir.path().join("long"));
        fs::write(&short, vec![7; 3000]).unwrap();
        fs::write(&long, vec![7; 70_000]).unwrap();
        for more in [&[][..], &["--read"]] {
            let done = bench(&short, more);
            assert!(said(&done).contains("holds 3000 bytes; --force"), "{}", said(&done));
            assert!(fs::read(&short).unwrap() == vec![7; 3000]);
        }
        let done = bench(&long, &["--read"]);
        assert!(done.status.success(), "{}", said(&done));
        assert!(fs::read(&long).unwrap() == vec![7; 70_000]);
        let done = bench(&long, &["--force"]);
        assert!(done.status.success(), "{}", said(&done));
        assert!(fs::read(&long).unwrap()[..65536].iter().all(|&byte| byte != 7));
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

#[test]
fn an_export_is_mounted_used_and_unmounted() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (exported, at) = (dir.path().join("export"), dir.path().join("at"));
    fs::create_dir(&exported).unwrap();
    fs::create_dir(&at).unwrap();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(&exported)], false)?;
        let address = server.address(&exported.display().to_string(), "&hard");
        let place = at.to_str().unwrap();
        let mounted = dwell(&["nfs", "mount", &address, place]);
        let words = String::from_utf8_lossy(&mounted.stdout).into_owned();
        if said(&mounted).contains("mounting: ") {
            println!("SKIP: {}", said(&mounted));
            return Ok(());
        }
        assert!(mounted.status.success() && words.contains("is mounted at"), "{mounted:?}");
        assert!(words.contains("locks are local to this machine"), "{words}");
        fs::write(at.join("file"), vec![7; 3_000_000]).unwrap();
        assert!(fs::read(exported.join("file")).unwrap() == vec![7; 3_000_000]);
        fs::write(exported.join("file"), "from elsewhere").unwrap();
        assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "from elsewhere");
        let again = dwell(&["nfs", "mount", &address, place]);
        assert!(said(&again).contains("is mounted there already"), "{}", said(&again));
        let open = fs::File::open(at.join("file")).unwrap();
        let busy = dwell(&["nfs", "unmount", place]);
        assert!(said(&busy).contains("in use"), "{}", said(&busy));
        drop(open);
        kill_daemon_of(place);
        // A request that is under way as the kernel ends the connection is aborted.
        let error = fs::read_dir(&at).unwrap_err().raw_os_error();
        assert!(matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error:?}");
        let mounted = dwell(&["nfs", "mount", &address, place]);
        let words = String::from_utf8_lossy(&mounted.stdout).into_owned();
        assert!(words.contains("took over from a daemon that was killed"), "{mounted:?}");
        assert_eq!(fs::read_to_string(at.join("file")).unwrap(), "from elsewhere");
        // A child of another test holds this test's files between its fork and its exec.
        let until = Instant::now() + Duration::from_secs(10);
        let mut done = dwell(&["nfs", "unmount", place]);
        while said(&done).contains("in use") && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            done = dwell(&["nfs", "unmount", place]);
        }
        assert!(done.status.success(), "{}", said(&done));
        assert!(fs::read_dir(&at).unwrap().next().is_none());
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

/// Kills the process that serves a mount, and waits for its end.
fn kill_daemon_of(place: &str) {
    let mut killed = false;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        if words.nth(1) != Some(b"nfs") || !words.any(|word| word == place.as_bytes()) {
            continue;
        }
        let pid = process.file_name().into_string().unwrap().parse().unwrap();
        // SAFETY: a number of a process that serves this test's mount.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        while fs::read(process.path().join("maps")).is_ok_and(|maps| !maps.is_empty()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        killed = true;
    }
    assert!(killed, "no daemon serves {place}");
}

/// Kills a copy once so many bytes of its part are there; whether it was killed in the middle.
fn killed_at(from: &str, to: &str, part: &Path, bytes: u64) -> bool {
    let mut copy = Command::new(env!("CARGO_BIN_EXE_dwell"))
        .args(["nfs", "cp", from, to])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while fs::metadata(part).map_or(0, |part| part.len()) < bytes {
        if copy.try_wait().unwrap().is_some() || Instant::now() > until {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    copy.kill().unwrap();
    copy.wait().unwrap().signal() == Some(9)
}

#[test]
fn a_copy_killed_in_mid_transfer_leaves_a_part_that_is_resumed() {
    const BYTES: usize = 160 << 20;
    /// No write goes further beyond what is durable.
    const EXTENT: usize = 64 << 20;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(&exported)], false)?;
        let data: Vec<u8> = (0..BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
        let (source, back) = (dir.path().join("source"), dir.path().join("back"));
        fs::write(&source, &data).unwrap();
        let there = server.address(&format!("{}/data", exported.display()), "&size=16384");
        let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
        for (from, to, at) in
            [(source, there.as_str(), exported.join("data")), (&there, back, back.into())]
        {
            let name = at.file_name().unwrap().to_str().unwrap();
            let part = at.with_file_name(format!(".{name}.dwell-part"));
            let killed = (0..10).any(|_| {
                let _ = fs::remove_file(&at);
                killed_at(from, to, &part, 100 << 20)
            });
            assert!(killed, "it was over before, each time");
            assert!(!at.exists(), "nothing has the name that is not whole");
            let left = fs::read(&part).unwrap();
            let durable = left.len().saturating_sub(EXTENT);
            assert!(durable > 0 && left[..durable] == data[..durable], "{} bytes", left.len());
            let resumed = dwell(&["nfs", "cp", "--resume", "--verify", from, to]);
            assert!(resumed.status.success(), "{}", said(&resumed));
            assert!(fs::read(&at).unwrap() == data, "{to}");
            assert!(!part.exists());
        }
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

#[test]
fn the_bench_counts_every_request_of_every_contender() {
    let report = tempfile::tempdir().unwrap();
    let words = ["bench", "nfs", "--rounds", "2", "--bytes", "1M", "--json"];
    let every =
        ["--proto", "tcp", "--contenders", "threads,threads-shared,sync,async", "--windows", "4"];
    for extra in [
        &["--proto", "tcp", "--windows", "1,4"][..],
        &["--proto", "udp", "--windows", "1,4", "--read"],
        &["--proto", "udp", "--contenders", "threads-shared,async", "--windows", "1,4"],
        &every,
    ] {
        let place = ["--out", report.path().to_str().unwrap()];
        let output = dwell(&[&words[..], extra, &place].concat());
        if !output.status.success() {
            let said = said(&output);
            assert!(said.contains("cannot ") || said.contains("come up"), "{said}");
            return println!("SKIP: {}", said.trim());
        }
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = run["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 5);
        for row in rows {
            for round in row["rounds"].as_array().unwrap() {
                assert_eq!(
                    (round["bytes"].as_u64(), round["requests"].as_u64()),
                    (Some(1 << 20), Some(128))
                );
            }
        }
        assert!(report.path().join("report.html").exists());
    }
}

#[test]
fn a_file_of_a_server_is_memory_paged_by_a_thread() {
    use dwell_pager::{Faults, Options, PAGE_BYTES, Region};

    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    let byte = |at: usize| (at / PAGE_BYTES * 7 + at % 251) as u8;
    let data: Vec<u8> = (0..100 * PAGE_BYTES).map(byte).collect();
    std::fs::write(dir.path().join("data"), &data).unwrap();
    dwell_nfs::queue::register();
    let ran = in_own_network(|| {
        let server = Ganesha::start(&[Export::directory(dir.path())], false)?;
        let file =
            dwell::Options::new().open(server.address(&format!("{export}/data"), "")).unwrap();
        let file = std::sync::Arc::new(file);
        let inline = Region::open(file.clone(), &Options::new(16 * PAGE_BYTES)).err().unwrap();
        let inline = inline.to_string();
        assert!(
            inline.contains("handled by a thread") || inline.contains("userfaultfd"),
            "{inline}"
        );
        let options = Options::new(16 * PAGE_BYTES).faults(Faults::Thread);
        let region = match Region::open(file, &options) {
            Ok(region) => region,
            Err(error) if error.to_string().contains("userfaultfd") => {
                println!("SKIP: {error}");
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        for at in (0..data.len()).step_by(1009).chain((0..data.len()).step_by(3 * PAGE_BYTES)) {
            // SAFETY: within the region, which lives.
            assert_eq!(unsafe { region.as_ptr().add(at).read_volatile() }, byte(at));
        }
        Ok::<(), Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}
