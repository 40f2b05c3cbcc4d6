// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a daemon may have, and who notices that it has no more.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::fixture::{Served, done, dwell, is_root, text};

/// Starts a daemon under limits of the shell's.
fn start_under(limits: &str, served: &Served) {
    let script = format!("{limits}; exec \"$@\"");
    let program = env!("CARGO_BIN_EXE_dwell");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", program, "serve", "start"]);
    done(command.args([&served.backing, &served.mount]));
}

#[test]
fn a_limit_of_file_sizes_fails_requests_and_does_not_kill_the_daemon() {
    let Some(served) = Served::prepare() else { return };
    // A mebibyte, in blocks of 512 bytes.
    start_under("ulimit -f 2048", &served);
    let file = File::create(served.mount.join("file")).unwrap();
    for _ in 0..3 {
        let error = file.set_len(4 << 20).expect_err("longer than the daemon may make it");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
    }
    fs::write(served.mount.join("other"), "text").unwrap();
    assert_eq!(fs::read(served.backing.join("other")).unwrap(), b"text");
}

#[test]
fn a_user_who_opens_all_they_can_leaves_files_to_others() {
    if !is_root() {
        println!("SKIP: only root serves other users");
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIP: python3 is not installed");
        return;
    }
    let Some(served) = Served::prepare() else { return };
    start_under("ulimit -n 1024", &served);
    fs::set_permissions(served.mount.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&served.mount, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(served.mount.join("file"), "text").unwrap();
    let script = "
        import errno
        held = []
        try:
            while len(held) < 2000: held.append(open('file'))
        except OSError as error: print(len(held), errno.errorcode[error.errno], flush=True)
        input()";
    let script: String =
        script.lines().map(|line| line.get(8..).unwrap_or("").to_owned() + "\n").collect();
    let mut greedy = Command::new("setpriv");
    greedy.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c"]);
    greedy
        .args(["ulimit -n 4096; exec python3 -c \"$1\"", "sh", &script])
        .current_dir(&served.mount);
    let greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut greedy = greedy.unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(greedy.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut said).unwrap();
    // Root has as many, while the other's are open.
    let held: Result<Vec<File>, _> =
        (0..50).map(|_| File::open(served.mount.join("file"))).collect();
    drop(greedy.stdin.take());
    let _ = greedy.kill();
    let ended = greedy.wait_with_output().unwrap();
    assert_eq!(said.trim(), "64 ENFILE", "{}", text(&ended));
    assert_eq!(held.unwrap().len(), 50);
}

#[test]
fn a_service_manager_hears_that_channels_are_served() {
    let Some(served) = Served::prepare() else { return };
    let socket = served.plain.join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = dwell();
    command.args(["serve", "start", "--foreground"]).args([&served.backing, &served.mount]);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = Vec::new();
    while heard.iter().filter(|word| *word == "WATCHDOG=1").count() < 3 {
        let mut word = [0; 64];
        let Ok(bytes) = manager.recv(&mut word) else { break };
        heard.push(String::from_utf8_lossy(&word[..bytes]).into_owned());
    }
    served.stop(&["--force"]);
    let _ = child.kill();
    let _ = child.wait();
    assert!(heard.iter().any(|word| word == "READY=1"), "{heard:?}");
    assert!(heard.iter().filter(|word| *word == "WATCHDOG=1").count() == 3, "{heard:?}");
}

#[test]
fn a_second_daemon_on_a_backing_directory_names_the_first() {
    let Some(served) = Served::start() else { return };
    let pid = served.pid();
    let mut second = dwell();
    second.args(["serve", "start"]).args([&served.backing, &served.plain]);
    let refused = second.output().unwrap();
    assert!(
        !refused.status.success() && text(&refused).contains(&format!("process {pid}")),
        "{}",
        text(&refused)
    );
    // The lock goes with the process, however it ends.
    served.kill();
    assert!(Path::new(&served.backing).is_dir());
    served.serve(&[]);
    let dir = File::open(&served.backing).unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    assert!(rustix::fs::flock(dir.as_fd(), lock).is_err(), "the new one has it");
}

#[test]
fn the_services_unit_is_one_that_systemd_takes() {
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/dwell-serve@.service");
    let text_of = fs::read_to_string(unit).unwrap();
    // The program need not be installed here.
    let text_of = text_of.replace("/usr/bin/dwell", env!("CARGO_BIN_EXE_dwell"));
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("dwell-serve@test.service");
    fs::write(&copy, text_of).unwrap();
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(copy).output();
    let Ok(verified) = verified else {
        println!("SKIP: systemd-analyze (package systemd) is not installed");
        return;
    };
    let said = text(&verified);
    let about_it: Vec<_> = said.lines().filter(|line| line.contains("dwell-serve@")).collect();
    assert!(about_it.is_empty(), "{about_it:?}");
}
