// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sixty-four real processes share one host page: counts are asserted, never times.

use dwell::monitor::{Config, HostPage, Sharing, SystemMonitor};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: &str = "DWELL_TEST_HOST_PAGE";
const PROCESSES: usize = 64;
/// Only a hang reaches this.
const PATIENCE: Duration = Duration::from_secs(180);

/// One of the 64: spins a little, again and again, and says so whenever it got a lease anew. It
/// ends with its standard input. Without the variable this is no test.
#[test]
fn process_on_the_page() {
    let Some(page) = std::env::var_os(PAGE) else { return };
    let monitor = SystemMonitor::start(Config {
        window: Duration::from_millis(50),
        // However busy the test machine is, the budget is at least one.
        threshold: Some(1.0),
        host_page: Some(page.into()),
        turn: Duration::from_millis(200),
        ..Config::default()
    })
    .unwrap();
    assert_eq!(monitor.alone_because(), None);
    let ended = Arc::new(AtomicBool::new(false));
    let at_end = ended.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        at_end.store(true, Relaxed);
    });
    let permit = monitor.permit();
    let mut had_lease = false;
    while !ended.load(Relaxed) {
        let guard = permit.try_spin();
        if guard.is_some() && !had_lease {
            println!("\nleased");
        }
        had_lease = guard.is_some();
        if let Some(guard) = guard {
            guard.finish(100_000);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

struct Running {
    child: Child,
    leases: Arc<AtomicU32>,
}

fn start(page: &Path) -> Running {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_on_the_page", "--nocapture"])
        .env(PAGE, page)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let leases = Arc::new(AtomicU32::new(0));
    let (out, count) = (child.stdout.take().unwrap(), leases.clone());
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if line == "leased" {
                count.fetch_add(1, Relaxed);
            }
        }
    });
    Running { child, leases }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn sixty_four_processes_share_the_budget_and_outlive_the_killed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page");
    let observer = HostPage::open(&path, Sharing::SameUser);
    assert_eq!(observer.alone_because(), None);
    let mut running: Vec<Running> = (0..PROCESSES).map(|_| start(&path)).collect();
    until("all processes are on the page", || observer.survey().len() == PROCESSES);

    let cpus = thread::available_parallelism().unwrap().get() as u32;
    let leased = || observer.survey().iter().map(|f| f.spinners_leased).sum::<u32>();
    // A survey is not one instant: a lease that is passed on meanwhile is seen twice, for as long
    // as its giver is not on a CPU.
    let is_kept = || {
        (0..100).any(|_| {
            leased() <= cpus || {
                thread::sleep(Duration::from_millis(20));
                false
            }
        })
    };
    until("every process had a lease", || {
        assert!(is_kept(), "more leases than {cpus} CPUs");
        running.iter().all(|r| r.leases.load(Relaxed) > 0)
    });

    // The processes that hold a lease now are killed, and some others.
    let holders: HashSet<u32> =
        observer.survey().iter().filter(|f| f.spinners_leased > 0).map(|f| f.pid).collect();
    let (mut killed, mut alive) = (Vec::new(), Vec::new());
    for (i, process) in running.drain(..).enumerate() {
        let dies = i % 8 == 0 || holders.contains(&process.child.id());
        if dies { &mut killed } else { &mut alive }.push(process);
    }
    let dead: HashSet<u32> = killed.iter().map(|r| r.child.id()).collect();
    for process in &mut killed {
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }
    until("the slots of the dead are free", || {
        let left = observer.survey();
        left.len() == alive.len() && left.iter().all(|f| !dead.contains(&f.pid))
    });
    let before: Vec<u32> = alive.iter().map(|r| r.leases.load(Relaxed)).collect();
    until("the living go on taking turns", || {
        let again = alive.iter().zip(&before).filter(|(r, b)| r.leases.load(Relaxed) > **b);
        again.count() >= 8
    });
    assert!(is_kept());

    for process in &mut alive {
        drop(process.child.stdin.take());
    }
    for mut process in alive {
        assert!(process.child.wait().unwrap().success());
    }
    assert_eq!(observer.survey(), []);
}
