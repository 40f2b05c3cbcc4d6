// SPDX-License-Identifier: MIT OR Apache-2.0
//! Number crunchers: processes that only compute, to measure beside.
//!
//! They are processes, as in the papers, and not threads: the scheduler must weigh them against
//! the measurement as strangers. None survives the program that started it.

use std::{
    ffi::OsStr,
    hint::black_box,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// Running number crunchers. Dropping the guard ends them; so does the end of the program or of
/// the *thread* that started them, however it comes about, so start them from a thread that lives
/// as long as the measurement.
#[derive(Debug)]
pub struct Crunchers(Vec<Child>);

impl Crunchers {
    /// Starts `count` copies of this very program with the arguments `hidden`, which must lead to
    /// [`crunch_forever`].
    pub fn start<S: AsRef<OsStr>>(count: usize, hidden: &[S]) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut crunchers = Crunchers(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = Command::new(&program);
            command.args(hidden).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            die_with_parent(&mut command);
            let child = command.spawn().with_context(|| format!("cannot start {program:?}"))?;
            crunchers.0.push(child);
        }
        Ok(crunchers)
    }

    /// How many were started.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Their process ids.
    pub fn ids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }

    /// CPU time that all of them have had so far, in nanoseconds: how far they got.
    pub fn cpu_ns(&self) -> u64 {
        self.0.iter().map(|child| process_cpu_ns(child.id())).sum()
    }

    /// Fails if one of them has ended: a measurement beside it is then worth nothing. Ask after
    /// each round.
    pub fn check(&mut self) -> Result<()> {
        let total = self.count();
        for child in &mut self.0 {
            let ended = child.try_wait().context("cannot ask after a number cruncher")?;
            ensure!(ended.is_none(), "one of {total} number crunchers ended early: measure again");
        }
        Ok(())
    }
}

impl Drop for Crunchers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It fails only when the process is gone, which is what is wanted.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// CPU time of a process, in nanoseconds; 0 when it is gone.
fn process_cpu_ns(id: u32) -> u64 {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the first call writes a clock id, the second a time; both are live.
    let known = unsafe {
        libc::clock_getcpuclockid(id as libc::pid_t, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if known { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

/// Lets what the command starts end with the *thread* that starts it, however that ends.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two system calls and builds an error without
    // allocating, all of which is allowed there.
    unsafe { command.pre_exec(move || die_with(parent)) };
}

/// In a child before exec: asks for SIGKILL when the parent ends, and fails if it already has.
fn die_with(parent: u32) -> std::io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    match std::os::unix::process::parent_id() {
        id if id == parent => Ok(()),
        _ => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

/// Computes until the process is killed: what a hidden subcommand of the face runs. Integer work
/// in registers, so that it takes CPU time and leaves caches and memory alone.
pub fn crunch_forever() -> ! {
    let mut number: u64 = 1;
    loop {
        for _ in 0..1 << 20 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        black_box(number);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        path::Path,
        time::Duration,
    };

    use super::*;
    use crate::fixture::tests::{child_test, eventually};

    /// Arguments that lead this test program to [`cruncher`].
    const HIDDEN: [&str; 4] = ["--ignored", "--exact", "loads::tests::cruncher", "crunch-now"];

    #[test]
    #[ignore = "run by other tests as a child"]
    fn cruncher() {
        if std::env::args().any(|argument| argument == "crunch-now") {
            crunch_forever();
        }
    }

    #[test]
    #[ignore = "run by other tests as a child"]
    fn parent() {
        if std::env::args().any(|argument| argument == "parent-now") {
            let crunchers = Crunchers::start(2, &HIDDEN).unwrap();
            println!("\nids {:?}", crunchers.ids());
            std::thread::sleep(Duration::from_secs(60));
        }
    }

    fn is_gone(id: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    #[test]
    fn they_run_and_are_reaped_on_drop() {
        let mut crunchers = Crunchers::start(2, &HIDDEN).unwrap();
        let ids = crunchers.ids();
        assert_eq!((ids.len(), crunchers.count()), (2, 2));
        crunchers.check().unwrap();
        eventually("they get no CPU time", || crunchers.cpu_ns() > 20_000_000);
        drop(crunchers);
        for id in ids {
            assert!(!Path::new(&format!("/proc/{id}")).exists(), "{id} was not reaped");
        }
    }

    #[test]
    fn an_early_end_is_noticed() {
        let mut crunchers = Crunchers::start(1, &["--list"]).unwrap();
        let [id] = crunchers.ids()[..] else { panic!("one was started") };
        eventually("it does not end", || is_gone(id));
        let error = crunchers.check().unwrap_err().to_string();
        assert!(error.contains("ended early"), "{error}");
    }

    #[test]
    fn they_die_with_a_killed_parent() {
        let mut parent = child_test("loads::tests::parent", "parent-now");
        let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find(|line| line.starts_with("ids ")).unwrap();
        let ids: Vec<u32> =
            line[5..line.len() - 1].split(", ").map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids.len(), 2);
        parent.kill().unwrap();
        parent.wait().unwrap();
        for id in ids {
            eventually("a number cruncher outlived its parent", || is_gone(id));
        }
    }
}
