// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell run`: the command as if Dwell were not there, plus a library and an order. A stand-in for
//! the library tells that it was loaded.

#[path = "../common/mod.rs"]
mod common;
mod untouched;

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use dwell_host::settings::RunOrder;

use common::text;

/// Says on stderr that it was loaded.
const STAND_IN: &str = "#include <unistd.h>\n\
    __attribute__((constructor)) static void on(void) { if (write(2, \"LOADED\\n\", 7)) {} }\n";

fn compile(source: &str, to: &Path, flags: &[&str]) -> bool {
    let file = to.with_extension("c");
    fs::write(&file, source).unwrap();
    let cc = Command::new("cc").args(flags).arg("-o").arg(to).arg(&file).output();
    cc.is_ok_and(|output| output.status.success())
}

/// The stand-in; `None` where there is no C compiler.
fn stand_in() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        // Programs that run as another user must be able to load it.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let library = dir.path().join("stand-in.so");
        compile(STAND_IN, &library, &["-shared", "-fPIC"]).then_some((dir, library))
    });
    let library = made.as_ref().map(|(_, library)| library.as_path());
    if library.is_none() {
        println!("SKIP: no C compiler to make a stand-in for the library with");
    }
    library
}

/// `dwell run` with places of its own below `dir`.
fn dwell(dir: &Path, library: &Path) -> Command {
    let mut command = common::dwell();
    command
        .arg("run")
        .env("DWELL_PROFILES", dir.join("profiles"))
        .env("DWELL_SYSTEM_CONFIG", dir.join("system.toml"))
        .env("DWELL_PRELOAD", library)
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .env("XDG_RUNTIME_DIR", dir)
        .env_remove("LD_PRELOAD");
    command
}

fn run<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> Output {
    dwell(dir, stand_in().unwrap_or(Path::new("/dev/null"))).args(args).output().unwrap()
}

/// A failure: its status and its one line.
fn failure<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> (i32, String) {
    let output = run(dir, args);
    let said = text(&output.stderr).trim_end().to_owned();
    assert!(said.starts_with("dwell: ") && said.lines().count() == 1, "{said}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), said)
}

fn put(path: &Path, bytes: &[u8], mode: u32) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_command_is_loaded_into_and_told() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("system.toml"), "goal = \"latency\"\npolicy = \"block\"\n").unwrap();
    let stats = dir.path().join("stats.json");
    let shell = "echo \"$LD_PRELOAD\"; echo $$; echo \"$DWELL_RUN\"; echo \"$0 $*\"";
    let child = dwell(dir.path(), library)
        .args(["--policy", "spin", "--shadow", "--quiet", "--stats"])
        .arg(&stats)
        .args(["--", "sh", "-c", shell, "zero", "--policy", "x"])
        .env("LD_PRELOAD", library)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let said: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(said[0], library.to_str().unwrap());
    assert_eq!(said[1], pid.to_string(), "the command is the process that dwell run was");
    assert_eq!(said[3], "zero --policy x");
    let order: RunOrder = serde_json::from_str(said[2]).unwrap();
    assert_eq!(order.root_pid, pid);
    assert_ne!(order.run_id, 0);
    assert_eq!(order.policy.as_deref(), Some("spin"));
    assert!(order.shadow && order.quiet && !order.verbose);
    assert_eq!(order.stats_dir, Some(dir.path().join("dwell")));
    assert_eq!(order.stats_file, Some(stats));
    assert_eq!(order.profile_dir, dir.path().join("profiles"));
    let general = order.settings.general();
    assert_eq!(general.policy.to_string(), "spin (--policy)");
    assert!(general.shadow.value);
    assert_eq!(fs::metadata(dir.path().join("dwell")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn files_to_page_reach_the_command_and_wrong_ones_are_told_what_to_write() {
    let Some(_) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let show = ["sh", "-c", "echo \"$DWELL_RUN\""];
    let options =
        ["--pager", "*.pack", "--pager", "/srv/**", "--pager-memory", "8MiB", "--quiet", "--"];
    let output = run(dir.path(), &[&options[..], &show].concat());
    let order: RunOrder = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    let paging = order.pager.unwrap();
    let files: Vec<&str> = paging.files.iter().map(|files| files.as_str()).collect();
    assert_eq!((files, paging.budget_bytes), (vec!["*.pack", "/srv/**"], 8 << 20));
    assert!(paging.stderr.is_some());
    let output = run(dir.path(), &show);
    let order: RunOrder = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    assert_eq!(order.pager, None);
    for (wrong, expected) in [
        (&["--pager", "objects/*.pack"][..], "start it with / or **/"),
        (&["--pager", ""], "an empty pattern matches nothing"),
        (&["--pager-memory", "8MiB"], "--pager"),
        (&["--pager", "*.pack", "--pager-memory", "4k"], "1MiB at least"),
    ] {
        let output = run(dir.path(), &[wrong, &["true"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_share_to_steer_reaches_the_command_and_a_wrong_one_is_told_what_to_write() {
    let Some(_) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let output =
        run(dir.path(), &["--steer", "7% of processes", "sh", "-c", "echo \"$DWELL_RUN\""]);
    let order: RunOrder = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    let steer = order.settings.waiting.steer.unwrap();
    assert_eq!(steer.to_string(), "7% of processes (--steer)");
    let output = run(dir.path(), &["--steer", "7%", "true"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("does not say of what") && said.contains("\"5% of hosts\""), "{said}");
}

#[test]
fn a_library_that_is_preloaded_already_stays() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.so");
    assert!(compile("int other_one = 1;", &other, &["-shared", "-fPIC"]));
    let output = dwell(dir.path(), library)
        .args(["--", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", &other)
        .output()
        .unwrap();
    let expected = format!("{}:{}\n", library.display(), other.display());
    assert_eq!(text(&output.stdout), expected);
    assert!(text(&output.stderr).contains("LOADED"));
}

#[test]
fn status_signals_and_dispositions_are_the_commands_own() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["sh", "-c", "exit 7"]).status.code(), Some(7));
    let killed = run(dir.path(), &["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM));

    // A signal that is sent to what was started reaches the command.
    let mut child = dwell(dir.path(), library)
        .args([
            "sh",
            "-c",
            "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut ready = [0u8; 6];
    stdout.read_exact(&mut ready).unwrap();
    let sent = Command::new("kill").args(["-USR1", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.trim(), child.wait().unwrap().code()), ("caught", Some(3)));

    // Bit 12 of the ignored signals is SIGPIPE.
    for ignored in [false, true] {
        let mut command = dwell(dir.path(), library);
        command.args(["grep", "SigIgn", "/proc/self/status"]);
        let disposition = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: signal() may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGPIPE, disposition);
                Ok(())
            });
        }
        let said = command.output().unwrap().stdout;
        let mask = text(&said).split_whitespace().nth(1).unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        assert_eq!(mask >> 12 & 1 == 1, ignored, "{mask:x}");
    }
}

#[test]
fn standard_streams_that_are_closed_stay_closed() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (program, told) = (dir.path().join("streams"), dir.path().join("told"));
    let source = "#include <fcntl.h>\n#include <stdio.h>\nint main(int count, char **words) {\n\
        int open[3];\nfor (int fd = 0; fd < 3; fd++) open[fd] = fcntl(fd, F_GETFD) >= 0;\n\
        fprintf(fopen(words[1], \"w\"), \"%d%d%d\\n\", open[0], open[1], open[2]);\nreturn 0; }\n";
    assert!(compile(source, &program, &[]));
    for closed in 0..8 {
        let mut command = dwell(dir.path(), library);
        command.arg("--").arg(&program).arg(&told).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: close() may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                (0..3).filter(|fd| closed >> fd & 1 == 1).for_each(|fd| _ = libc::close(fd));
                Ok(())
            });
        }
        assert!(command.status().unwrap().success());
        let expected: String =
            (0..3).map(|fd| if closed >> fd & 1 == 1 { '0' } else { '1' }).collect();
        assert_eq!(fs::read_to_string(&told).unwrap().trim(), expected);
    }
}

#[test]
fn a_command_that_cannot_be_run_is_refused_as_by_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    put(&dir.path().join("data"), b"x", 0o644);
    put(&dir.path().join("script"), b"#!/nonexistent/sh\n", 0o755);
    put(&dir.path().join("damaged"), b"\x7fELF", 0o755);
    for (command, status, says) in [
        ("no-such-command-here".to_owned(), 127, "command not found"),
        (at("missing"), 127, "no such file"),
        (at("data/x"), 126, "Not a directory"),
        (at(""), 126, "is a directory"),
        (at("data"), 126, "not executable"),
        ("/dev/null".to_owned(), 126, "is no program"),
        (at("script"), 126, "/nonexistent/sh: no such file"),
        (at("damaged"), 126, "damaged"),
    ] {
        let (found, said) = failure(dir.path(), &["--", &command]);
        assert_eq!(found, status, "{said}");
        assert!(said.contains(&command) && said.contains(says), "{said}");
    }
    let nothing = run(dir.path(), &["--policy", "block"]);
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn an_unknown_policy_is_refused_with_those_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["--policy", "fastest", "--", "true"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("fastest") && said.contains("block, spin, hybrid, smartcon"), "{said}");
}

#[test]
fn an_unknown_option_is_no_command() {
    let dir = tempfile::tempdir().unwrap();
    for words in [&["--bogus"][..], &["--bogus", "true"], &["--quiet", "-x", "--", "true"]] {
        let output = run(dir.path(), words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("unexpected argument '-") && said.contains("Usage: "), "{said}");
    }
    // Behind the command they are the command's, and behind `--` the first is one.
    let output = run(dir.path(), &["echo", "--bogus", "--quiet", "-x", "--", "-y"]);
    assert_eq!(text(&output.stdout), "--bogus --quiet -x -- -y\n", "{}", text(&output.stderr));
    let (status, said) = failure(dir.path(), &["--", "--bogus"]);
    assert!(status == 127 && said.contains("--bogus: command not found"), "{said}");
}

#[test]
fn settings_of_a_user_that_cannot_be_read_are_told_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = stand_in() else { return };
    let config = dir.path().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(dir.path().join("system.toml"), "policy = \"block\"\n").unwrap();
    let user = config.join("dwell/dwell.toml");
    let told = || {
        let mut command = dwell(dir.path(), library);
        let output = command.args(["--", "sh", "-c", "echo $DWELL_RUN"]).output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let order: RunOrder = serde_json::from_str(text(&output.stdout).trim()).unwrap();
        assert!(order.settings.general().policy.to_string().starts_with("block ("));
        let said: Vec<_> = said.lines().filter(|line| line.starts_with("dwell: ")).collect();
        assert!(said.len() == 1 && said[0].contains(user.to_str().unwrap()), "{said:?}");
    };
    // A directory in the place of the file, then a link to itself in the place of its directory.
    fs::create_dir_all(&user).unwrap();
    told();
    fs::remove_dir_all(config.join("dwell")).unwrap();
    symlink("dwell", config.join("dwell")).unwrap();
    told();
}

#[test]
fn malformed_settings_are_refused_by_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine.toml");
    fs::write(&mine, "\n[[device]]\nmatch = \"nvme*\"\nsize_threshold = \"big\"\n").unwrap();
    let mine = mine.to_str().unwrap();
    let (status, said) = failure(dir.path(), &["--config", mine, "--", "true"]);
    assert_eq!(status, 125);
    let at = format!("{mine}:4: device[0].size_threshold: ");
    assert!(said.contains(&at), "{said}");
    let (status, said) = failure(dir.path(), &["--config", "/nonexistent.toml", "--", "true"]);
    assert!(status == 125 && said.contains("/nonexistent.toml"), "{said}");
    assert!(said.contains("no such file"), "{said}");
    let (status, said) = failure(dir.path(), &["--config", "/dev/zero", "--", "true"]);
    assert!(status == 125 && said.contains("/dev/zero"), "{said}");
    fs::create_dir_all(dir.path().join("config/dwell")).unwrap();
    let user = dir.path().join("config/dwell/dwell.toml");
    fs::write(&user, b"policy = \"\xff\"").unwrap();
    let (status, said) = failure(dir.path(), &["true"]);
    assert!(status == 125 && said.contains(user.to_str().unwrap()), "{said}");
}

#[test]
fn a_profile_of_this_kernel_that_cannot_be_used_is_told() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    fs::create_dir(dir.path().join("profiles")).unwrap();
    for (name, text) in [(release.trim(), "{\"schema\": 1}"), ("1.2.3", "{}")] {
        fs::write(dir.path().join(format!("profiles/disk@{name}@none.json")), text).unwrap();
    }
    let said = |quiet: &[&str]| {
        let output = dwell(dir.path(), library).args(quiet).args(["--", "true"]).output().unwrap();
        assert!(output.status.success());
        text(&output.stderr).to_owned()
    };
    let told = said(&[]);
    assert!(
        told.contains("field schema is 1") && told.contains("passes straight through"),
        "{told}"
    );
    assert!(!told.contains("1.2.3"), "{told}");
    assert!(!said(&["--quiet"]).contains("schema"));
}

#[test]
fn a_missing_library_is_named_with_where_it_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let of = |library: &str| {
        let output = dwell(dir.path(), Path::new(library)).arg("true").output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        text(&output.stderr).to_owned()
    };
    assert!(of("/nonexistent.so").contains("DWELL_PRELOAD names /nonexistent.so"));
    let blank = dir.path().join("a b.so");
    fs::write(&blank, "").unwrap();
    assert!(of(blank.to_str().unwrap()).contains("cannot carry a path with a blank"));
    // A copy elsewhere has no library beside it.
    let alone = dir.path().join("dwell-alone");
    // By a process of its own: what this one writes, a child of another test may hold open, and a
    // program that is written does not run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_dwell")).arg(&alone).status().unwrap();
    assert!(copied.success());
    let output = Command::new(&alone).args(["run", "true"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("../lib/dwell"), "{said}");
    // All other commands need nothing beside them.
    let output = Command::new(&alone).args(["explain", "--help"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn scripts_are_run_as_by_a_shell() {
    if stand_in().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, script) in [("with", "#!/bin/sh -e\necho $1\n"), ("without", "echo $1\n")] {
        let path = dir.path().join(name);
        put(&path, script.as_bytes(), 0o755);
        let output = run(dir.path(), &[path.as_os_str(), OsStr::new("one")]);
        assert_eq!(text(&output.stdout), "one\n", "{name}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("LOADED"));
    }
}

#[test]
fn a_run_without_a_place_for_stats_pages_still_runs() {
    let Some(library) = stand_in() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Somebody else's directory, or a file, where ours should be.
    fs::write(dir.path().join("dwell"), "").unwrap();
    let output = dwell(dir.path(), library).args(["sh", "-c", "echo $DWELL_RUN"]).output().unwrap();
    let order: RunOrder = serde_json::from_str(text(&output.stdout).trim()).unwrap();
    assert_eq!(order.stats_dir, None);
    assert!(text(&output.stderr).contains("will not be seen by dwell top"));
    fs::remove_file(dir.path().join("dwell")).unwrap();
    let (status, said) = failure(dir.path(), &["--stats", "/nonexistent/x", "--", "true"]);
    assert!(
        status == 125 && said.contains("--stats: /nonexistent/x: there is no directory"),
        "{said}"
    );
}
