// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that runs: from when on it is decided for, and how it is steered from outside.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Ended, Fast, Under, program, skip};
use dwell::{Mode, Reason, Route};
use dwell_host::stats_page::{Entry, list, order};

/// A file on a fast device, and the program that reads it in phases; `None`, with the reason, where
/// they cannot be had.
fn scene() -> Option<(Fast, PathBuf, PathBuf)> {
    let (fast, phases) = match (Fast::new(), program("phases.c")) {
        (Ok(fast), Ok(phases)) => (fast, phases),
        (Err(why), _) | (_, Err(why)) => {
            skip(why);
            return None;
        }
    };
    let file = fast.path().join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    Some((fast, file, phases))
}

/// That program, under the library.
struct Running {
    child: Child,
    pid: u32,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(under: &Under, command: &mut Command) -> Running {
        Running::of(under.command(command))
    }

    fn of(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = output.next().unwrap().unwrap().parse().unwrap();
        Running { child, pid, input, output }
    }

    fn phase(&mut self) {
        writeln!(self.input, "go").unwrap();
        assert_eq!(self.output.next().unwrap().unwrap(), "done");
    }

    fn end(self, under: &Under) -> Ended {
        drop(self.input);
        let ended = under.ended(self.child.wait_with_output().unwrap());
        assert!(ended.status.success(), "{}", ended.stderr);
        ended
    }
}

#[test]
fn orders_take_effect_at_once_in_a_program_that_runs() {
    let Some((_fast, file, phases)) = scene() else { return };
    let under = Under::policy("spin");
    let mut running = Running::start(&under, Command::new(phases).arg(&file));
    running.phase();
    let stats_pages = under.stats_pages();
    let [Entry { pid, .. }] = list(&stats_pages).unwrap()[..] else { panic!("one process") };
    for said in ["policy=block", "off", "on", "policy=spin"] {
        order(&stats_pages, pid, said).unwrap();
        running.phase();
    }
    let ended = running.end(&under);
    let run = ended.run.as_ref().unwrap();
    let requests = |route, mode, why| {
        let rows = run.stats().rows;
        let row = rows.iter().find(|row| (row.route, row.mode, row.reason) == (route, mode, why));
        row.map_or(0, |row| row.requests)
    };
    // Spun in the first phase and the last, blocked in the second and, when on again, the fourth.
    assert_eq!(ended.on_rings(), 200, "{}", ended.stderr);
    assert_eq!(requests(Route::Inline, Mode::Block, Reason::Fixed), 200, "{}", ended.stderr);
    assert!(run.passed.bytes >= 100 * 4096, "the third passed: {}", ended.stderr);
}

#[test]
fn the_off_switch_reaches_a_program_that_runs_and_goes_back() {
    let Some((_fast, file, phases)) = scene() else { return };
    let under = Under::policy("spin");
    let place = tempfile::tempdir().unwrap();
    let (page, off) = (place.path().join("page"), place.path().join("page-off"));
    let mut command = under.command(Command::new(phases).arg(&file));
    command.env("DWELL_HOST_PAGE", &page).env("DWELL_OFF", place.path().join("machine"));
    let mut running = Running::of(command);
    running.phase();
    let heard = |off: bool| {
        let told = || list(&under.stats_pages()).unwrap().remove(0).snapshot.unwrap();
        let began = std::time::Instant::now();
        while told().load.is_none_or(|load| load.off != off) {
            assert!(began.elapsed() < Duration::from_secs(60), "the switch is not heard of");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    heard(false);
    fs::write(&off, "").unwrap();
    heard(true);
    running.phase();
    fs::remove_file(&off).unwrap();
    heard(false);
    running.phase();
    let ended = running.end(&under);
    let stats = ended.run.as_ref().unwrap().stats();
    assert_eq!((stats.because(Reason::Off), ended.on_rings()), (100, 200), "{}", ended.stderr);
}

#[test]
fn a_program_that_begins_while_dwell_is_off_gets_no_second_thread() {
    let Some((_fast, file, phases)) = scene() else { return };
    let under = Under::policy("spin").leaving_alone_for(1);
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("page-off"), "").unwrap();
    let mut command = under.command(Command::new(phases).arg(&file));
    command.env("DWELL_HOST_PAGE", place.path().join("page"));
    command.env("DWELL_OFF", place.path().join("machine"));
    let mut running = Running::of(command);
    std::thread::sleep(Duration::from_millis(20));
    running.phase();
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid)).unwrap().count();
    assert_eq!(threads, 1);
    let ended = running.end(&under);
    assert_eq!(ended.decided(), 0, "{}", ended.stderr);
}

#[test]
fn a_programs_requests_that_are_held_back_go_the_kernels_way_and_are_counted() {
    let Some((_fast, file, phases)) = scene() else { return };
    let under = Under::policy("spin").saying("steer = \"0% of requests\"");
    let mut running = Running::start(&under, Command::new(phases).arg(&file));
    running.phase();
    let ended = running.end(&under);
    let stats = ended.run.as_ref().unwrap().stats();
    assert_eq!((stats.because(Reason::HeldBack), ended.on_rings()), (100, 0), "{}", ended.stderr);
    assert_eq!(stats.latency.withheld.count(), 100);
}

#[test]
fn a_program_that_has_just_begun_is_left_alone() {
    let Some((_fast, file, phases)) = scene() else { return };
    const ALONE: Duration = Duration::from_secs(3);
    let under = Under::policy("spin").leaving_alone_for(ALONE.as_millis() as u32);
    let mut running = Running::start(&under, Command::new(phases).arg("stand").arg(&file));
    running.phase();
    assert!(list(&under.stats_pages()).unwrap_or_default().is_empty(), "a stats page already");
    std::thread::sleep(ALONE);
    // What was opened then is the same thread's still. Some requests must have waited first.
    running.phase();
    let ended = running.end(&under);
    assert_eq!((ended.decided(), ended.on_rings()), (84, 84), "{}", ended.stderr);
    assert!(ended.run.unwrap().passed.bytes >= 116 * 4096);
}

#[test]
fn a_program_that_finds_all_in_the_page_cache_gets_no_second_thread() {
    let Some((_fast, file, phases)) = scene() else { return };
    let under = Under::policy("spin").leaving_alone_for(1);
    let mut running = Running::start(&under, Command::new(phases).arg("cached").arg(&file));
    std::thread::sleep(Duration::from_millis(20));
    running.phase();
    let threads = fs::read_dir(format!("/proc/{}/task", running.pid)).unwrap().count();
    assert_eq!(threads, 1);
    assert!(list(&under.stats_pages()).unwrap_or_default().is_empty(), "a stats page already");
    let ended = running.end(&under);
    assert_eq!(ended.decided(), 0, "{}", ended.stderr);
    assert!(ended.run.unwrap().passed.bytes >= 100 * 4096);
}

/// Threads that want the CPUs, more than there are by far, until this is dropped.
struct Crowd {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn new() -> Crowd {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap().matches("processor\t").count();
        let over = Arc::new(AtomicBool::new(false));
        let busy = || {
            let over = over.clone();
            std::thread::spawn(move || while !over.load(Ordering::Relaxed) {})
        };
        Crowd { threads: (0..4 * cpus.max(1)).map(|_| busy()).collect(), over }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn in_a_crowd_only_who_spins_or_observes_whatever_happens_gets_an_engine() {
    let Some((_fast, file, phases)) = scene() else { return };
    let crowd = Crowd::new();
    let (smartcon, spin) = (|| Under::policy("smartcon"), Under::policy("spin"));
    for (under, decided) in [(smartcon(), 0), (smartcon().in_shadow(), 84), (spin, 84)] {
        let under = under.leaving_alone_for(1);
        let mut running = Running::start(&under, Command::new(&phases).arg(&file));
        std::thread::sleep(Duration::from_millis(20));
        running.phase();
        let ended = running.end(&under);
        assert_eq!(ended.decided(), decided, "{}", ended.stderr);
    }
    drop(crowd);
}
