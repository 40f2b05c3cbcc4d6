// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes and threads that carry out a script, each line by the calls that it names.

mod calls;
mod memory;
mod queues;
mod transfers;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use crate::operation::{Line, Op, Order, PROCESSES, SLOTS, Script, THREADS};
use crate::record::{self, Records, Seen};

/// The descriptors of this process by slot; −1 where there is none.
static NUMBERS: [AtomicI32; SLOTS] = [const { AtomicI32::new(-1) }; SLOTS];
/// The processes that this one forked.
static CHILDREN: [AtomicI32; PROCESSES] = [const { AtomicI32::new(0) }; PROCESSES];

/// From here on lie the descriptors that actors use themselves, out of the script's way.
const OWN_NUMBERS: i32 = 600;

struct Shared {
    script: Script,
    records: Records,
    directory: String,
    /// Where the bytes that are read are left, one file per line.
    dump: Option<String>,
}

struct Actor {
    shared: Arc<Shared>,
    process: u8,
    thread: u8,
    memory: memory::Arena,
    queues: queues::Queues,
    pipe: [i32; 2],
    line: usize,
}

fn fail(step: &str) -> ! {
    eprintln!("actor: {step}: {}", std::io::Error::last_os_error());
    std::process::abort();
}

/// Carries out a script and ends the process.
pub fn run(script: &Path, records: &Path, directory: &Path) -> ! {
    let text = std::fs::read_to_string(script).unwrap_or_else(|_| fail("the script"));
    let script: Script = serde_json::from_str(&text).unwrap_or_else(|_| fail("the script"));
    let records = Records::open(records, script.lines.len()).unwrap_or_else(|_| fail("records"));
    std::env::set_current_dir(directory).unwrap_or_else(|_| fail("the directory"));
    let directory = directory.display().to_string();
    let dump = std::env::var("EXERCISER_DUMP").ok();
    memory::catch_bus_errors();
    let shared = Arc::new(Shared { script, records, directory, dump });
    process(&shared, 0, 0)
}

/// One process from its beginning to its end.
fn process(shared: &Arc<Shared>, process: u8, from: usize) -> ! {
    for child in &CHILDREN {
        child.store(0, Ordering::Relaxed);
    }
    BROKEN.store(false, Ordering::Relaxed);
    let has_lines = |thread: u8| {
        let mut lines = shared.script.lines[from..].iter();
        lines.any(|line| (line.process, line.thread) == (process, thread))
    };
    let others: Vec<u8> = (1..THREADS as u8).filter(|thread| has_lines(*thread)).collect();
    // Nobody begins before all have their own descriptors: the script's get the lowest numbers.
    let ready = Arc::new(Barrier::new(others.len() + 1));
    let threads: Vec<_> = (others.into_iter())
        .map(|thread| {
            let (shared, ready) = (shared.clone(), ready.clone());
            std::thread::spawn(move || {
                let actor = Actor::new(&shared, process, thread);
                ready.wait();
                actor.carry_out(from);
            })
        })
        .collect();
    let actor = Actor::new(shared, process, 0);
    ready.wait();
    actor.carry_out(from);
    for thread in threads {
        if thread.join().is_err() {
            std::process::abort();
        }
    }
    for child in &CHILDREN {
        let pid = child.load(Ordering::Relaxed);
        if pid != 0 {
            ended(process, waited(pid));
        }
    }
    let kill = Op::Kill { child: process };
    while shared.script.lines[from..].iter().any(|line| line.op == kill) {
        // A process must exist before it is killed.
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
    std::process::exit(if BROKEN.load(Ordering::Relaxed) { 70 } else { 0 })
}

/// Whether a child ended as none should.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Notes how a child ended that nobody killed.
fn ended(process: u8, status: i32) {
    if status != 0 {
        eprintln!("actor: a child of process {process} ended with status {status:#x}");
        BROKEN.store(true, Ordering::Relaxed);
    }
}

fn waited(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of ours, and a word for its status.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            fail("waitpid");
        }
    }
    status
}

/// Moves a descriptor of the actor's own out of the script's way.
fn out_of_the_way(fd: i32) -> i32 {
    // SAFETY: calls on numbers.
    let high = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, OWN_NUMBERS) };
    if high < 0 {
        fail("F_DUPFD");
    }
    // SAFETY: the number is ours.
    unsafe { libc::close(fd) };
    high
}

impl Actor {
    fn new(shared: &Arc<Shared>, process: u8, thread: u8) -> Self {
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            fail("pipe");
        }
        Actor {
            shared: shared.clone(),
            process,
            thread,
            memory: memory::Arena::new(),
            queues: queues::Queues::default(),
            pipe: pipe.map(out_of_the_way),
            line: 0,
        }
    }

    fn carry_out(mut self, from: usize) {
        let shared = self.shared.clone();
        for (number, line) in shared.script.lines.iter().enumerate().skip(from) {
            if (line.process, line.thread) != (self.process, self.thread) {
                continue;
            }
            self.line = number;
            self.wait_for_turn(number);
            self.follow_mount();
            shared.records.begin(number);
            if let Some(seen) = self.one(&line.op, number) {
                shared.records.tell(number, seen);
            }
            self.pass_turn(number);
        }
    }

    /// A directory of a mount that is gone leads nowhere: goes to where it is now.
    fn follow_mount(&self) {
        static MOUNTS: AtomicU32 = AtomicU32::new(0);
        let mounts = self.shared.records.head().mounts.load(Ordering::SeqCst);
        if MOUNTS.swap(mounts, Ordering::SeqCst) != mounts {
            std::env::set_current_dir(&self.shared.directory)
                .unwrap_or_else(|_| fail("the directory"));
        }
    }

    fn is_serial(&self) -> bool {
        self.shared.script.order == Order::Serial
    }

    fn wait_for_turn(&self, number: usize) {
        if !self.is_serial() {
            return;
        }
        let head = self.shared.records.head();
        let call = &head.calls[self.process as usize * THREADS + self.thread as usize];
        loop {
            let before = call.load(Ordering::SeqCst);
            if head.turn.load(Ordering::SeqCst) as usize == number {
                return;
            }
            record::sleep(call, before);
        }
    }

    fn pass_turn(&self, number: usize) {
        if !self.is_serial() {
            return;
        }
        let head = self.shared.records.head();
        head.turn.store(number as u32 + 1, Ordering::SeqCst);
        if let Some(Line { process, thread, .. }) = self.shared.script.lines.get(number + 1)
            && (*process, *thread) != (self.process, self.thread)
        {
            let call = &head.calls[*process as usize * THREADS + *thread as usize];
            call.fetch_add(1, Ordering::SeqCst);
            record::wake(call);
        }
    }

    /// One line; nothing if somebody else tells what came of it.
    fn one(&mut self, op: &Op, number: usize) -> Option<Seen> {
        match op {
            Op::Fork { child } => Some(self.fork(*child, number)),
            Op::Kill { child } => Some(self.kill(*child)),
            Op::Disturb => {
                // The process that runs us does it, and tells.
                while self.shared.records.seen(number).is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                None
            }
            op => Some(self.call(op)),
        }
    }

    fn fork(&mut self, child: u8, number: usize) -> Seen {
        // SAFETY: the child goes on with this thread alone, and takes no lock of another one's.
        match unsafe { libc::fork() } {
            -1 => Seen::error(calls::errno()),
            0 => {
                std::mem::forget(std::mem::take(&mut self.queues));
                if !self.is_serial() {
                    // What the other threads were doing just now is theirs.
                    NUMBERS.iter().for_each(|number| number.store(-1, Ordering::Relaxed));
                    calls::forget_mappings();
                }
                let shared = self.shared.clone();
                process(&shared, child, number + 1)
            }
            pid => {
                CHILDREN[child as usize].store(pid, Ordering::Relaxed);
                Seen::ok(0)
            }
        }
    }

    fn kill(&self, child: u8) -> Seen {
        let pid = CHILDREN[child as usize].swap(0, Ordering::Relaxed);
        if pid == 0 {
            return Seen::error(libc::ESRCH);
        }
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let status = waited(pid);
        match libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL {
            true => _ = self.shared.records.head().killed.fetch_add(1, Ordering::Relaxed),
            false => ended(self.process, status),
        }
        Seen::ok(0)
    }

    /// Leaves what a line read where somebody looks for it.
    fn dump(&self, bytes: &[u8]) {
        if let Some(directory) = &self.shared.dump {
            let _ = std::fs::write(format!("{directory}/{}", self.line), bytes);
        }
    }
}
