// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many locked instructions a request executes: a traced child makes requests an instruction at
//! a time.
#![cfg(target_arch = "x86_64")]

mod common;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dwell::dwell_policy::{Backlog, Routes, Wait};
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::{Decision, File, Reason, Route, WaitPolicy, policy};

/// Serves every request at the second look, by doing nothing.
struct Nothing;

impl Source for Nothing {
    type Queue = Soon;
    fn queue(&self, _: u32) -> io::Result<Soon> {
        Ok(Soon::default())
    }
    fn routes(&self) -> Routes {
        Routes::INLINE | Routes::INTERRUPT
    }
    fn call(&self, io: &Io) -> i32 {
        io.bytes() as i32
    }
    fn target(&self) -> i32 {
        0
    }
    fn bytes(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }
}

#[derive(Default)]
struct Soon {
    bytes: Option<u32>,
    looked: bool,
}

// SAFETY: it touches no request's memory.
unsafe impl Queue for Soon {
    type Op = Io;
    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        *self = Soon { bytes: Some(io.bytes()), looked: false };
        Ok(Ticket(1))
    }
    fn flush(&mut self) {}
    fn poll(&mut self, each: &mut dyn FnMut(Completion)) -> usize {
        if !std::mem::replace(&mut self.looked, true) {
            return 0;
        }
        let Some(bytes) = self.bytes.take() else { return 0 };
        each(Completion { ticket: Ticket(1), result: bytes as i32 });
        1
    }
    fn arm(&mut self, _: u32) -> Wake<'_> {
        Wake::Never
    }
    fn cancel(&mut self, _: Ticket) {}
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

/// Requests that are counted.
const REQUESTS: u64 = 8;
/// What the child ends with where its requests went as they should, and windows of the monitor that
/// ended meanwhile more: after each the next request says that there are requests.
const WENT_WELL: i32 = 100;

/// Requests before those. The work of kernel workers is told of once in 16, and not in between.
const BEFORE: u64 = 196;

/// How a thread makes its requests.
#[derive(Clone, Copy)]
enum By {
    Calls,
    Pipeline,
}

/// Makes requests, the last [`REQUESTS`] of them between two stops; an exit status.
fn child(policy: Arc<dyn WaitPolicy>, by: By, why: Reason) -> i32 {
    // Whatever else runs on this machine, a thread may spin, and no window ends meanwhile.
    let config =
        Config { threshold: Some(1.0), window: Duration::from_secs(1), ..Config::default() };
    let Ok(monitor) = SystemMonitor::start(config) else { return 2 };
    std::thread::sleep(Duration::from_millis(60));
    if !monitor.sample_once().may_spin {
        return 3;
    }
    let monitor = Arc::new(monitor);
    let beside = Some(monitor.clone());
    let parameters = DeviceParameters { worker_ns: 1000, ..common::fast() };
    let file = File::over(Nothing, "nothing", "nothing", parameters, policy, beside);
    let mut buffer = vec![0; 4096];
    let Ok(mut pipeline) = file.pipeline(1) else { return 4 };
    let mut read = |count: u64| {
        (0..count).all(|at| match by {
            By::Calls => file.read_at(&mut buffer, at * 4096).is_ok(),
            By::Pipeline => {
                let taken = pipeline.read_at(std::mem::take(&mut buffer), at * 4096).is_ok();
                let Some(finished) = pipeline.next() else { return false };
                buffer = finished.buffer.unwrap_or_default();
                taken && finished.result.is_ok()
            }
        })
    };
    let warm = read(BEFORE);
    let windows = monitor.cost().samples;
    // SAFETY: stops this thread until its tracer has seen it.
    unsafe { libc::raise(libc::SIGSTOP) };
    let counted = read(REQUESTS);
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGSTOP) };
    let windows = (monitor.cost().samples - windows) as i32;
    // The monitor may have thought that others want the CPU.
    let as_should = warm && counted && file.stats().because(why) >= BEFORE + REQUESTS;
    if as_should { WENT_WELL + windows.min(WENT_WELL) } else { 1 }
}

/// Whether the instruction that begins so locks its memory: `lock`, or `xchg` with memory.
fn is_locked(code: &[u8]) -> bool {
    let prefix = |byte: &u8| {
        matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3)
    };
    let prefixes = code.iter().take_while(|byte| prefix(byte)).count();
    let rest = &code[prefixes..];
    let rest = if matches!(rest.first(), Some(0x40..=0x4f)) { &rest[1..] } else { rest };
    let exchanges = matches!(rest, [0x86 | 0x87, modrm, ..] if *modrm < 0xc0);
    code[..prefixes].contains(&0xf0) || exchanges
}

fn stopped_by(pid: i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid place to write to.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    match libc::WIFSTOPPED(status) {
        true => Ok(libc::WSTOPSIG(status)),
        false => Err(libc::WEXITSTATUS(status)),
    }
}

/// Whether the requests of a child execute so many locked instructions each.
fn locks(times: u64, policy: impl WaitPolicy + Copy + 'static, by: By, why: Reason) {
    let traced = (0..20).find_map(|_| traced(Arc::new(policy), by, why));
    let (count, windows) = traced.expect("twenty times requests went another way");
    let expected = times * REQUESTS;
    assert!((expected..=expected + windows).contains(&count), "{count} in {windows} windows");
}

/// What a child executed, and how many windows ended meanwhile.
fn traced(policy: Arc<dyn WaitPolicy>, by: By, why: Reason) -> Option<(u64, u64)> {
    // SAFETY: the child makes requests and ends; nothing else of this process runs in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the parent traces this thread, and ends it should the parent end first.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        }
        let status = child(policy, by, why);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(status) }
    }
    assert_eq!(stopped_by(pid), Ok(libc::SIGSTOP), "what the child said before it began");
    let mut count = 0;
    loop {
        // SAFETY: the child is stopped and traced by this thread; what is read is its code.
        let code = unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers);
            libc::ptrace(libc::PTRACE_PEEKTEXT, pid, registers.rip, 0).to_ne_bytes()
        };
        count += u64::from(is_locked(&code));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) }, 0);
        match stopped_by(pid) {
            Ok(libc::SIGTRAP) => {}
            Ok(libc::SIGSTOP) => break,
            other => panic!("the child ended or was stopped by {other:?}"),
        }
    }
    // SAFETY: as above; it runs to its end.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) }, 0);
    let ended = stopped_by(pid).expect_err("it has ended");
    u64::try_from(ended - WENT_WELL).ok().map(|windows| (count, windows))
}

#[test]
fn instructions_that_lock_are_told_from_others() {
    let locked: [&[u8]; 4] =
        [&[0xf0, 0x0f, 0xb1, 0x0a], &[0xf0, 0x48, 0x01, 0x07], &[0x48, 0x87, 0x07], &[0x86, 0x07]];
    assert!(locked.into_iter().all(is_locked));
    let others: [&[u8]; 4] =
        [&[0x48, 0x87, 0xc3], &[0x48, 0x89, 0x07], &[0x66, 0x90], &[0x64, 0x48, 0x8b, 0x04]];
    assert!(!others.into_iter().any(is_locked));
}

/// A spin that the monitor has to allow, by a policy that looks at nothing else.
#[derive(Clone, Copy)]
struct Allowed;

impl WaitPolicy for Allowed {
    fn name(&self) -> &str {
        "allowed"
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        policy::spin(wait, Reason::Pays)
    }
    fn looks_at_backlog(&self) -> bool {
        false
    }
}

#[test]
fn a_monitored_spin_executes_one_locked_instruction() {
    // It takes its lease.
    locks(1, Allowed, By::Calls, Reason::Pays);
    // Nobody may keep it from spinning, but what it burnt counts.
    locks(1, policy::Spin, By::Calls, Reason::Fixed);
    // SmartCon counts requests that go in and come out beside.
    locks(3, policy::SmartCon::default(), By::Calls, Reason::Pays);
}

#[test]
fn so_does_the_wait_of_a_pipeline() {
    locks(1, Allowed, By::Pipeline, Reason::Pays);
}
