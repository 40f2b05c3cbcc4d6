// SPDX-License-Identifier: MIT OR Apache-2.0
//! One run of a command, and what the kernel accounts to it and to all that it started.
//!
//! Between the bench and the command stands a process that does nothing but wait. Daemons that the
//! command starts and ends become its children, not those of init, so their time is counted too;
//! and as it has no other children, what the kernel sums up for it is the command's alone.

use std::fs;
use std::io::{self, Read, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::parent::die_with;

/// What a command and its descendants took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// From before it was started until it ended, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time in user mode, in nanoseconds.
    pub user_ns: u64,
    /// CPU time in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Page faults that waited for storage.
    pub major_faults: u64,
    /// What passed through system calls and what storage was asked for, where the kernel counts.
    pub bytes: Option<Bytes>,
    /// As wait(2) tells it.
    pub status: i32,
    /// Whether processes that it had started still ran a while after its end.
    pub left_behind: bool,
}

/// Bytes in the kernel's books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes {
    /// Read by system calls, from caches too.
    pub read: u64,
    /// Written by system calls.
    pub written: u64,
    /// Fetched from storage.
    pub read_storage: u64,
    /// Caused to be sent to storage.
    pub written_storage: u64,
}

/// How often somebody who waits looks whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// So long processes may end by themselves when they are told to: less than [`PATIENCE_MS`], after
/// which nobody finds them.
const GRACE: Duration = Duration::from_secs(1);
/// So many milliseconds after the command's end its daemons may still be ending.
const PATIENCE_MS: u32 = 2_000;
const WORDS: usize = 9;

/// Runs a command to its end; `None` if it was told to stop, after all of it has ended. It has no
/// terminal: what would ask for a password fails instead of hanging.
///
/// # Errors
/// The command cannot be started.
pub(super) fn run(
    command: &mut Command,
    stopped: &dyn Fn() -> bool,
) -> io::Result<Option<Account>> {
    let (mut told, teller) = pipe()?;
    let (us, report) = (std::process::id(), teller.as_raw_fd());
    // SAFETY: between fork and exec the closure makes system calls on numbers and on memory of its
    // own; nothing is allocated and no lock is taken but those that fork itself takes and resets.
    unsafe { command.pre_exec(move || stand_between(us, report)) };
    let mut child = command.spawn()?;
    drop(teller);
    let (sender, receiver) = channel();
    let listener = std::thread::spawn(move || {
        let mut heard = Vec::new();
        let read = told.read_to_end(&mut heard);
        // Nobody listens any more only if this program is ending.
        let _ = sender.send(read.map(|_| heard));
    });
    let mut since = None;
    let heard = loop {
        match receiver.recv_timeout(NAP) {
            Ok(heard) => break heard?,
            Err(RecvTimeoutError::Disconnected) => break Vec::new(),
            Err(RecvTimeoutError::Timeout) if stopped() => {
                let since = since.get_or_insert_with(Instant::now);
                let signal = if since.elapsed() < GRACE { libc::SIGTERM } else { libc::SIGKILL };
                end_all_below(child.id(), signal);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    child.wait()?;
    let _ = listener.join();
    if stopped() {
        return Ok(None);
    }
    match Account::parse(&heard) {
        Some(account) => Ok(Some(account)),
        None => Err(io::Error::other("the process that waited for it was killed")),
    }
}

impl Account {
    fn parse(heard: &[u8]) -> Option<Self> {
        let (numbers, books) = heard.split_at_checked(WORDS * 8)?;
        let mut words = numbers.chunks_exact(8).map(|bytes| {
            u64::from_le_bytes(bytes.try_into().expect("a chunk of eight has eight bytes"))
        });
        let mut word = || words.next();
        Some(Account {
            wall_ns: word()?,
            user_ns: word()?,
            system_ns: word()?,
            voluntary_switches: word()?,
            involuntary_switches: word()?,
            major_faults: word()?,
            status: word()? as i32,
            left_behind: word()? != 0,
            bytes: Bytes::parse(&String::from_utf8_lossy(
                &books[..(word()? as usize).min(books.len())],
            )),
        })
    }
}

impl Bytes {
    /// From the text of /proc/PID/io.
    fn parse(books: &str) -> Option<Self> {
        let field = |name: &str| {
            books.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        Some(Bytes {
            read: field("rchar:")?,
            written: field("wchar:")?,
            read_storage: field("read_bytes:")?,
            written_storage: field("write_bytes:")?,
        })
    }
}

/// In a child before exec: forks. The new process returns and becomes the command; this one waits
/// for it and all its descendants, and tells `report` what they took.
fn stand_between(parent: u32, report: RawFd) -> io::Result<()> {
    die_with(parent)?;
    // SAFETY: plain system calls with numbers; the times are live here.
    unsafe {
        // Ctrl-C at the terminal is the bench's to handle, which then ends the command.
        libc::setsid();
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let here = libc::getpid() as u32;
        let started_ns = now_ns();
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => die_with(here),
            id => wait_for(id, started_ns, report, parent),
        }
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is live; the clock exists everywhere.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The life of the process between.
///
/// # Safety
/// Only for [`stand_between`], in a process of one thread that never returns from here.
unsafe fn wait_for(command: libc::pid_t, started_ns: u64, report: RawFd, parent: u32) -> ! {
    let mut left_behind = 0;
    let mut books = [0u8; 512];
    // SAFETY: system calls with numbers and with buffers that live here, each with its own length.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // The bench may be killed: what it ran must not run on.
        let handler: extern "C" fn(libc::c_int) = end_group;
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        if libc::getppid() as u32 != parent {
            libc::raise(libc::SIGTERM);
        }
        // The parent of this process waits for the end of a pipe that this one must not hold open.
        if report > 0 {
            libc::syscall(libc::SYS_close_range, 0, report - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, report + 1, libc::c_uint::MAX, 0);
        let (wall_ns, command_status) = loop {
            let mut status = 0;
            match libc::waitpid(-1, &mut status, 0) {
                id if id == command => break (now_ns().saturating_sub(started_ns), status),
                -1 if *libc::__errno_location() != libc::EINTR => libc::_exit(1),
                _ => {}
            }
        };
        for _ in 0..PATIENCE_MS {
            match libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) {
                0 => {
                    left_behind = 1;
                    libc::usleep(1000);
                }
                -1 if *libc::__errno_location() != libc::EINTR => {
                    left_behind = 0;
                    break;
                }
                _ => {}
            }
        }
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        let file = libc::open(c"/proc/self/io".as_ptr(), libc::O_RDONLY);
        let length = libc::read(file, books.as_mut_ptr().cast(), books.len()).max(0) as usize;
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        let words: [u64; WORDS] = [
            wall_ns,
            ns(usage.ru_utime),
            ns(usage.ru_stime),
            usage.ru_nvcsw as u64,
            usage.ru_nivcsw as u64,
            usage.ru_majflt as u64,
            command_status as u64,
            left_behind,
            length as u64,
        ];
        let words = words.map(u64::to_le);
        libc::write(report, words.as_ptr().cast(), WORDS * 8);
        libc::write(report, books.as_ptr().cast(), length);
        libc::_exit(0)
    }
}

/// Ends this process and all that have not left its group.
extern "C" fn end_group(_: libc::c_int) {
    // SAFETY: kill takes two numbers and may be called in a signal handler.
    unsafe { libc::kill(0, libc::SIGKILL) };
}

/// Signals all descendants of a process, which reaps them.
fn end_all_below(root: u32, signal: i32) {
    let mut parents: Vec<(u32, u32)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name before the last parenthesis may hold anything.
        let parent =
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parents.extend(id.zip(parent));
    }
    let mut below = vec![root];
    let mut next = 0;
    while let Some(&parent) = below.get(next) {
        below.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| id));
        next += 1;
    }
    for &id in &below[1..] {
        // SAFETY: kill takes two numbers. The process was a descendant a moment ago.
        unsafe { libc::kill(id as libc::pid_t, signal) };
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use super::*;
    use crate::fixture::tests::eventually;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        command
    }

    fn account(script: &str) -> Account {
        run(&mut shell(script), &|| false).unwrap().unwrap()
    }

    #[test]
    fn its_output_is_that_of_the_command() {
        assert_eq!(account("exit 0").status, 0);
        assert_eq!(account("exit 7").status, 7 << 8);
        assert_eq!(account("kill -9 $$").status, 9);
        let account = account("exit 0");
        assert!(account.wall_ns > 0 && account.user_ns + account.system_ns > 0, "{account:?}");
        assert!(!account.left_behind);
    }

    #[test]
    fn children_and_daemons_are_counted_with_all_that_they_did() {
        // The writer outlives its parent, which outlives the shell.
        let script = "(sh -c 'sleep 0.1; head -c 3000000 /dev/zero >/dev/null' & ) & exit 0";
        let account = account(script);
        assert!(!account.left_behind, "{account:?}");
        match account.bytes {
            Some(bytes) => {
                assert!(bytes.read >= 3_000_000 && bytes.written >= 3_000_000, "{bytes:?}")
            }
            None => println!("SKIP: no /proc/PID/io"),
        }
        assert!(account.wall_ns < 100_000_000 || account.voluntary_switches > 0);
    }

    #[test]
    fn a_process_that_stays_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("id");
        let account = account(&format!("sleep 30 & echo $! >{}", file.display()));
        assert!(account.left_behind, "{account:?}");
        let id: i32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        // SAFETY: kill takes two numbers; the test's own sleeper has this id.
        unsafe { libc::kill(id, libc::SIGKILL) };
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let error = run(&mut Command::new("/nonexistent/program"), &|| false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn told_to_stop_it_ends_everything_that_was_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ids");
        let script = format!(
            "setsid sleep 60 & echo $! >>{0}; (trap '' TERM; sleep 60) & echo $! >>{0}; wait",
            file.display()
        );
        let ids = || -> Vec<u32> {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        let ended = run(&mut shell(&script), &|| ids().len() == 2).unwrap();
        assert_eq!(ended, None);
        for id in ids() {
            assert!(!Path::new(&format!("/proc/{id}")).exists(), "{id} runs on");
        }
    }

    #[test]
    #[ignore = "run by other tests as a child"]
    fn bench() {
        if std::env::args().any(|argument| argument == "run-now") {
            let file = std::env::args().next_back().unwrap();
            let script = format!("sleep 60 & echo $! >>{file}; echo $$ >>{file}; wait");
            run(&mut shell(&script), &|| false).unwrap();
        }
    }

    #[test]
    fn a_running_command_dies_with_a_killed_bench() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ids");
        let mut bench = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "compare::tree::tests::bench", "run-now"])
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ids = || -> Vec<String> {
            let text = fs::read_to_string(&file).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        };
        eventually("it does not run", || ids().len() == 2);
        bench.kill().unwrap();
        bench.wait().unwrap();
        for id in ids() {
            let gone = || {
                let stat = fs::read_to_string(format!("/proc/{id}/stat"));
                stat.map_or(true, |stat| stat.contains(") Z "))
            };
            eventually("it runs on", gone);
        }
    }

    #[test]
    fn books_are_read_by_name() {
        let text = "rchar: 1\nwchar: 2\nsyscr: 9\nsyscw: 9\nread_bytes: 3\nwrite_bytes: 4\n";
        let bytes = Bytes { read: 1, written: 2, read_storage: 3, written_storage: 4 };
        assert_eq!(Bytes::parse(text), Some(bytes));
        assert_eq!(Bytes::parse("rchar: 1\n"), None);
        assert_eq!(Account::parse(b"short"), None);
    }
}
