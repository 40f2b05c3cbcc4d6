// SPDX-License-Identifier: MIT OR Apache-2.0
//! C programs, compiled and run against the shared and the static library.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use dwell::device::Device;
use dwell_channel::daemon::{self, Daemon};
use dwell_channel::fs::{self as fs_server, Channels, Server};
use dwell_host::profile::{DeviceProfile, Polling, ProfileStore, SCHEMA, SpinMethod, SwitchCosts};
use dwell_policy::{DeviceClass, Profile};

/// What the static library needs beside itself.
const STATIC: [&str; 3] = ["-lpthread", "-lm", "-ldl"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo has put the libraries that belong to this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.parent().expect("in a directory").to_owned()
}

fn skip(why: &str) {
    println!("SKIP: {why}");
}

fn there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// A directory for one test, on what the build is on: direct I/O works there more often than in
/// `/tmp`.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for tests")
}

/// Compiles a program as strictly as a careful user would; `None` without a C compiler.
fn compiled(dir: &Path, source: &Path, linked: Linked) -> Option<PathBuf> {
    static CC: OnceLock<bool> = OnceLock::new();
    if !CC.get_or_init(|| there("cc")) {
        skip("no C compiler (cc)");
        return None;
    }
    let program = dir.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1", "-pthread"]);
    cc.arg("-I").arg(here("include")).arg(source).arg("-o").arg(&program);
    let library = |name: &str| dir.join(name);
    match linked {
        Linked::Shared => {
            let built = libraries().join("libdwell_c.so");
            symlink(&built, library("libdwell.so")).unwrap();
            symlink(&built, library(&soname(&built))).unwrap();
            cc.arg("-L").arg(dir).arg("-ldwell").arg(format!("-Wl,-rpath,{}", dir.display()));
        }
        Linked::Static => {
            cc.arg(libraries().join("libdwell_c.a")).args(STATIC);
        }
    }
    let output = cc.output().expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The name that the dynamic linker will look for.
fn soname(library: &Path) -> String {
    let output = Command::new("objdump").arg("-p").arg(library).output().expect("binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("SONAME"));
    line.expect("the shared library has a soname").trim().to_owned()
}

/// Runs a program that finds no profiles but those in `dir`.
fn run(dir: &Path, program: &Path, arguments: &[&str]) -> Output {
    let profiles = dir.join("profiles");
    let mut command = Command::new(program);
    command.args(arguments).env("DWELL_PROFILES", profiles);
    command.env("DWELL_SYSTEM_CONFIG", dir.join("dwell.toml")).env("XDG_CONFIG_HOME", dir);
    command.env("DWELL_HOST_PAGE", dir.join("page")).output().expect("it was compiled")
}

fn told(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn manner(dir: &Path) -> &'static str {
    let file = dir.join("probe");
    fs::write(&file, [0]).unwrap();
    let direct = dwell::Options::new().direct(true).open(&file).is_ok();
    if direct { "direct" } else { "buffered" }
}

#[test]
fn the_contract_is_kept_shared_and_static() {
    for linked in [Linked::Shared, Linked::Static] {
        let dir = scratch();
        let source = here("tests/c/contract.c");
        let Some(program) = compiled(dir.path(), &source, linked) else { return };
        let file = dir.path().join("data");
        let arguments = [file.to_str().unwrap(), manner(dir.path())];
        let output = run(dir.path(), &program, &arguments);
        assert!(output.status.success(), "{linked:?}: {}", told(&output));
        assert_eq!(told(&output), "contract kept\n", "{linked:?}");
    }
}

#[test]
fn a_thread_that_is_cancelled_in_a_call_ends_after_it() {
    for linked in [Linked::Shared, Linked::Static] {
        let dir = scratch();
        let source = here("tests/c/cancelled.c");
        let Some(program) = compiled(dir.path(), &source, linked) else { return };
        let file = dir.path().join("data");
        let output = run(dir.path(), &program, &[file.to_str().unwrap()]);
        assert_eq!(told(&output), "all were cancelled\n", "{linked:?}: {:?}", output.status);
        assert!(output.status.success(), "{linked:?}");
    }
}

#[test]
fn the_example_reads_at_depth_1_and_32_and_tells_what_was_decided() {
    for linked in [Linked::Shared, Linked::Static] {
        let dir = scratch();
        let source = here("../../examples/c/random_reads.c");
        let Some(program) = compiled(dir.path(), &source, linked) else { return };
        let emulated = "emu:latency=10us,size=1MiB";
        let output = run(dir.path(), &program, &[emulated, "spin", "200"]);
        let text = told(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("requests           400\n"), "{text}");
        assert!(text.contains("system calls     0\n"), "{text}");
        assert!(text.contains("bytes read         1638400\n"), "{text}");

        let output = run(dir.path(), &program, &[emulated, "no-such"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(told(&output).contains("no such policy"), "{}", told(&output));

        let file = dir.path().join("data");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        if manner(dir.path()) == "direct" {
            let text = told(&run(dir.path(), &program, &[file.to_str().unwrap(), "block", "100"]));
            assert!(text.contains("dwell probe "), "{text}");
            assert!(text.contains("bytes read         819200\n"), "{text}");
        }
    }
}

#[test]
fn the_example_of_one_screen_reads_a_block_at_an_offset() {
    for linked in [Linked::Shared, Linked::Static] {
        let dir = scratch();
        let source = here("../../examples/c/read.c");
        let Some(program) = compiled(dir.path(), &source, linked) else { return };
        let file = dir.path().join("data");
        fs::write(&file, vec![1; 5000]).unwrap();
        let file = file.to_str().unwrap();
        let output = run(dir.path(), &program, &[file, "4096"]);
        assert_eq!(told(&output), "904 bytes at 4096; 1 requests, 0 of them spun\n");
        let output = run(dir.path(), &program, &["/nowhere/data"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(told(&output).contains("/nowhere/data"), "{}", told(&output));
    }
}

#[test]
fn a_file_under_a_served_mount_is_read_through_a_channel() {
    let dir = scratch();
    let source = here("../../examples/c/random_reads.c");
    let Some(program) = compiled(dir.path(), &source, Linked::Shared) else { return };
    let (backing, mount) = (dir.path().join("backing"), dir.path().join("mount"));
    fs::create_dir(&backing).unwrap();
    fs::create_dir(&mount).unwrap();
    fs::write(backing.join("data"), vec![1; 1 << 20]).unwrap();
    let daemon = Arc::new(Daemon::start(daemon::Options::default()).unwrap());
    let serving = fs_server::Options {
        backing,
        mount: mount.clone(),
        private: false,
        threads: 2,
        passthrough: true,
    };
    let _server = match Server::start(&serving, daemon.clone(), Channels::default) {
        Ok(server) => server,
        Err(why) => return skip(&why.to_string()),
    };
    let path = mount.join("data").display().to_string();
    for (served, address) in [(400, path.clone()), (800, format!("chan:{path}"))] {
        let text = told(&run(dir.path(), &program, &[&address, "spin", "200"]));
        assert!(text.contains("bytes read         1638400\n"), "{text}");
        assert_eq!(daemon.tally().commands, served, "{address}: {text}");
    }
}

/// Whether regions can be had here; says so where not.
fn regions(file: &Path) -> bool {
    let opened = dwell::Options::new().open(file).unwrap();
    match dwell_pager::Region::open(opened, &dwell_pager::Options::new(1 << 16)) {
        Ok(_) => true,
        Err(why) => {
            skip(&why.to_string());
            false
        }
    }
}

#[test]
fn a_file_is_memory_within_its_budget_and_what_is_written_to_it_is_kept() {
    const PAGES: usize = 512;
    for (linked, manner) in
        [(Linked::Shared, "inline"), (Linked::Static, "inline"), (Linked::Shared, "thread")]
    {
        let dir = scratch();
        let source = here("../../examples/c/mapped.c");
        let Some(program) = compiled(dir.path(), &source, linked) else { return };
        let file = dir.path().join("data");
        let before: Vec<u8> = (0..PAGES * 4096).map(|at| (at / 4096) as u8).collect();
        fs::write(&file, &before).unwrap();
        if !regions(&file) {
            return;
        }
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let output = run(dir.path(), &program, &[file.to_str().unwrap(), "512", manner]);
        let text = told(&output);
        assert!(output.status.success(), "{text}");
        let mut after = before.clone();
        after.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
        assert!(fs::read(&file).unwrap() == after, "{manner}: {text}");
        let number = |what: &str| -> u64 {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(what));
            line.unwrap_or_else(|| panic!("{what}: {text}")).trim().parse().unwrap()
        };
        assert_eq!((number("before"), number("after ")), (sum(&before), sum(&after)));
        assert!(number("written back") >= PAGES as u64, "{text}");
        assert!(number("most pages at once") <= 128 + 8, "{text}");

        let output = run(dir.path(), &program, &[file.to_str().unwrap(), "0"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(told(&output).contains("budget_bytes"), "{}", told(&output));
    }
}

#[test]
fn valgrind_finds_no_leak_and_no_invalid_access() {
    if !there("valgrind") {
        return skip("valgrind is not installed");
    }
    let dir = scratch();
    let source = here("../../examples/c/random_reads.c");
    let Some(program) = compiled(dir.path(), &source, Linked::Shared) else { return };
    // No ring: this valgrind may not know what the kernel writes through one.
    let options = ["-q", "--error-exitcode=9", "--leak-check=full"];
    let definite = ["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    let arguments = options.into_iter().chain(definite).chain([
        program.to_str().unwrap(),
        "emu:latency=10us,size=1MiB",
        "block",
        "40",
    ]);
    let arguments: Vec<&str> = arguments.collect();
    let output = run(dir.path(), Path::new("valgrind"), &arguments);
    assert!(output.status.success(), "{}", told(&output));
}

/// A profile of the device beneath `file`, as a probe would make it.
fn fast_profile(file: &Path) -> DeviceProfile {
    let device = Device::beneath(file).unwrap().whole().clone();
    DeviceProfile {
        schema: SCHEMA,
        device_id: device.id,
        kernel_name: device.kernel_name,
        model: None,
        size_bytes: device.size_bytes,
        kernel_release: dwell_host::capability::kernel_release().unwrap(),
        scheduler: device.scheduler,
        measured_unix_s: 1_772_323_199,
        dwell_version: "0.1.0".into(),
        decision: Profile { class: DeviceClass::Fast, ..Profile::default() },
        contested: false,
        curves: Vec::new(),
        async_submission: Vec::new(),
        switches: SwitchCosts::default(),
        sleeps: Vec::new(),
        polling: Polling::Unsupported { why: "a test".into() },
        spin_method: SpinMethod::default(),
        worker_ns_per_request: 0,
        worker_ps_per_byte: 0,
        notes: Vec::new(),
    }
}

#[test]
fn a_probed_device_is_known_without_a_word_and_a_damaged_profile_is_told() {
    let dir = scratch();
    let source = here("tests/c/profile.c");
    let Some(program) = compiled(dir.path(), &source, Linked::Shared) else { return };
    let file = dir.path().join("data");
    fs::write(&file, [7]).unwrap();
    let ask = || told(&run(dir.path(), &program, &[file.to_str().unwrap()]));

    let text = ask();
    assert!(text.contains("class 0\n") && text.contains("dwell probe "), "{text}");

    let store = ProfileStore::new(dir.path().join("profiles"));
    let kept = store.save(&fast_profile(&file)).unwrap();
    assert_eq!(ask(), "class 2\npolicy adaptive\nnote none\n");

    let settings = dir.path().join("dwell.toml");
    fs::write(&settings, "[[device]]\nmatch = \"*\"\npolicy = \"predictive\"\n").unwrap();
    assert_eq!(ask(), "class 2\npolicy predictive\nnote none\n");
    fs::write(&settings, format!("[exclude]\npaths = [\"{}/*\"]\n", dir.path().display())).unwrap();
    let text = ask();
    assert!(text.contains("class 0\npolicy block\nnote settings leave this file alone"), "{text}");
    fs::write(&settings, "policy = \"no-such\"\n").unwrap();
    let text = ask();
    assert!(
        text.contains("class 0\npolicy block\nnote ") && text.contains("dwell.toml:1"),
        "{text}"
    );
    fs::remove_file(&settings).unwrap();

    fs::write(&kept, "{").unwrap();
    let text = ask();
    assert!(text.contains("class 0\n") && text.contains("damaged at "), "{text}");
}

/// What `pkg-config` answers for an installation in `prefix`.
fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("dwell");
    let output = command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    told(&output).split_whitespace().map(String::from).collect()
}

const WRITES_PAGES: &str = "#!/bin/sh
mkdir -p $2/man $2/completions && cd $2 && touch man/dwell.1 completions/dwell.bash completions/_dwell completions/dwell.fish
";

#[test]
fn an_installation_is_found_by_pkg_config_and_runs() {
    for program in ["make", "pkg-config", "cc"] {
        if !there(program) {
            return skip(&format!("{program} is not installed"));
        }
    }
    let dir = scratch();
    let prefix = dir.path().join("usr");
    // The command may not be built; in its place stands a script that writes pages when it is asked
    // to.
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for library in ["libdwell_c.so", "libdwell_c.a"] {
        symlink(libraries().join(library), from.join(library)).unwrap();
    }
    let make = |from: &Path, prefix: &str| {
        let mut make = Command::new("make");
        make.current_dir(here("../..")).args(["-s", "install-files", "DESTDIR="]);
        make.arg(format!("PREFIX={prefix}")).arg(format!("FROM={}", from.display()));
        make.output().unwrap()
    };
    let output = make(&from, prefix.to_str().unwrap());
    assert!(!output.status.success() && told(&output).contains("build first"), "{}", told(&output));
    fs::write(from.join("dwell"), WRITES_PAGES).unwrap();
    fs::set_permissions(from.join("dwell"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = make(&from, "usr");
    assert!(!output.status.success() && told(&output).contains("absolute"), "{}", told(&output));
    let output = make(&from, prefix.to_str().unwrap());
    assert!(output.status.success(), "{}", told(&output));

    let source = here("../../examples/c/random_reads.c");
    let version = pkg_config(&prefix, &["--modversion"]);
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    for (name, extra) in [("shared", None), ("static", Some("-static"))] {
        let flags = match extra {
            None => pkg_config(&prefix, &["--cflags", "--libs"]),
            Some(_) => pkg_config(&prefix, &["--static", "--cflags", "--libs"]),
        };
        let program = dir.path().join(name);
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall"]).args(extra).arg(&source).args(flags).arg("-o").arg(&program);
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{name}: {}", told(&output));
        let mut run = Command::new(&program);
        run.args(["emu:latency=10us,size=1MiB", "block", "50"]);
        run.env("DWELL_PROFILES", dir.path()).env("DWELL_HOST_PAGE", dir.path().join("page"));
        let output = run.env("LD_LIBRARY_PATH", prefix.join("lib")).output().unwrap();
        assert!(output.status.success(), "{name}: {}", told(&output));
        assert!(told(&output).contains("requests           100\n"), "{}", told(&output));
    }
}
