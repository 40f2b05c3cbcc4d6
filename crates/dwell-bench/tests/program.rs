// SPDX-License-Identifier: MIT OR Apache-2.0
//! How contenders in programs of their own are spoken to, and what happens when they misbehave.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell_bench::contender::Contender;
use dwell_bench::keep::{Interrupted, Keep};
use dwell_bench::loads::Means;
use dwell_bench::program::{Answer, Order, Peers, Program};
use dwell_bench::result::{Configured, Direction, Load, Pattern, Requests, Run};
use dwell_bench::run::{Plan, run};
use dwell_bench::subject::Subject;

/// A peer that sleeps is found by its child's name: there must be one such child at a time.
static SLEEPING: Mutex<()> = Mutex::new(());

fn fake() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-peer")
}

fn subject() -> Subject {
    Subject {
        name: "test".into(),
        address: "/nowhere/data".into(),
        direct: true,
        write: false,
        parameters: DeviceParameters::default(),
        profile: None,
        description: "test".into(),
        emulated: None,
        bytes: 1 << 20,
        block_bytes: 512,
    }
}

fn program(name: &str) -> Program {
    let peers = Peers::find(Some(&fake())).unwrap();
    Program::new(&format!("peer:{name}"), &subject(), &peers).unwrap()
}

fn order() -> Order {
    let requests = Requests { pattern: Pattern::Seq, direction: Direction::Read, depth: 4 };
    Order { span_ns: 1_000_000, size_bytes: 4096, requests, seed: 7, samples: false }
}

fn refusal(name: &str) -> String {
    let text = format!("{:#}", program(name).measure(&order()).unwrap_err());
    assert!(text.starts_with(&format!("peer:{name}: ")) && !text.contains('\n'), "{text}");
    text
}

fn is_gone(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_peer_is_started_once_told_the_subject_and_asked_for_batches() {
    let mut good = program("good");
    assert_eq!((good.id(), good.configured()), (None, None), "it starts with its first batch");
    let Answer { round, samples_ns } = good.measure(&order()).unwrap();
    assert_eq!((round.requests, round.bytes, round.p50_ns), (3, 12288, 5));
    assert_eq!(samples_ns, None);
    let id = good.id().unwrap();
    good.measure(&order()).unwrap();
    assert_eq!(good.id(), Some(id));
    let configured = good.configured().unwrap();
    assert_eq!((&configured.name[..], &configured.version[..]), ("peer:good", "0.1"));
    let told = "good --path /nowhere/data --bytes 1048576 --direct";
    assert_eq!(configured.settings, ["fake", told]);
    drop(good);
    assert!(!Path::new(&format!("/proc/{id}")).exists(), "it was not reaped");
    let answer = program("sampled").measure(&order()).unwrap();
    assert_eq!(answer.samples_ns, Some(vec![(0, 4), (4, 5), (9, 6)]));
}

#[test]
fn an_order_and_an_answer_are_flat_json() {
    let json = serde_json::to_string(&order()).unwrap();
    let expected = r#"{"span_ns":1000000,"size_bytes":4096,"pattern":"seq","direction":"read","depth":4,"seed":7,"samples":false}"#;
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_str::<Order>(&json).unwrap(), order());
}

#[test]
fn misbehaviour_is_said_in_one_line_that_names_the_peer() {
    for (name, parts) in [
        ("dumb", &["says this first, not who it is: no JSON at all"][..]),
        ("stranger", &["says that it is somebody-else"]),
        ("broken", &["exit status: 3", "first; the device is gone"]),
        ("failing", &["read at byte 0: it did not work"]),
        ("garbled", &["not a reply: a panic, in words"]),
        ("miscounting", &["4096 bytes in 3 requests of 4096"]),
        ("empty", &["0 bytes in 0 requests"]),
        // What it said last is shown: here the order that it had.
        ("dying", &["signal: 9", r#""seed":7"#]),
    ] {
        let text = refusal(name);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let absent = Peers::find(Some(Path::new("/nowhere/dwell-peers"))).unwrap_err().to_string();
    assert!(absent.contains("/nowhere/dwell-peers"), "{absent}");
    let unbuilt = Peers::find(None).unwrap_err().to_string();
    assert!(unbuilt.contains("make peers") && !unbuilt.contains('\n'), "{unbuilt}");
    let mut emulated = subject();
    emulated.address = "emu:z-nand".into();
    let peers = Peers::find(Some(&fake())).unwrap();
    let refused = Program::new("peer:good", &emulated, &peers).err().unwrap().to_string();
    assert!(refused.contains("scheme"), "{refused}");
}

#[test]
fn a_peer_killed_in_the_middle_of_a_batch_is_an_error_and_leaves_nothing() {
    let _alone = SLEEPING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sleeping = program("sleeping");
    let measuring = std::thread::spawn(move || {
        let text = format!("{:#}", sleeping.measure(&order()).unwrap_err());
        (text, sleeping.id())
    });
    let child = std::cell::Cell::new(None);
    eventually("it does not begin its batch", || {
        child.set(child_named("sleep"));
        child.get().is_some()
    });
    let id = child.get().unwrap();
    let kill = ["-c", &format!("kill -9 {id}")];
    assert!(std::process::Command::new("sh").args(kill).status().unwrap().success());
    let (text, running) = measuring.join().unwrap();
    assert!(text.contains("peer:sleeping") && text.contains("signal: 9"), "{text}");
    assert_eq!(running, None);
    assert!(!Path::new(&format!("/proc/{id}")).exists(), "it was not reaped");
}

/// A child of this program by its name.
fn child_named(name: &str) -> Option<u32> {
    let parent = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let mut after = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(1);
        stat.contains(&format!("({name})")) && after.next() == Some(&parent)
    };
    ids.find(is_it)
}

#[test]
fn a_peer_dies_with_the_thread_that_started_it() {
    let id = std::thread::spawn(|| {
        let mut good = program("good");
        good.measure(&order()).unwrap();
        let id = good.id().unwrap();
        std::mem::forget(good);
        id
    });
    let id = id.join().unwrap();
    eventually("it outlived its parent", || is_gone(id));
}

fn plan(contenders: &[&str]) -> Plan {
    Plan {
        contenders: contenders.iter().map(|name| name.to_string()).collect(),
        baseline: "block".into(),
        sizes: vec![4096],
        patterns: vec![Pattern::Rand],
        directions: vec![Direction::Read],
        loads: vec![Load::Idle],
        schedulers: vec![None],
        depths: vec![1, 2],
        rounds: 2,
        batch: Duration::from_millis(2),
        means: Means { hidden: vec![], stressors: 0, bystanders: 0, directory: "/".into() },
        keep: Keep::default(),
        peers_program: Some(fake()),
        day: None,
    }
}

fn measure(plan: &Plan, address: &Path) -> anyhow::Result<Run> {
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let subject = Subject { address: address.into(), direct: false, ..subject() };
    run(plan, &[subject], &monitor, vec![], &mut |_| {})
}

#[test]
fn peers_run_in_the_same_rounds_and_their_configuration_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    let run_ = measure(&plan(&["block", "peer:good", "pread"]), &path).unwrap();
    assert_eq!(run_.rows.len(), 6);
    let peer = run_.rows.iter().filter(|row| row.policy == "peer:good");
    for round in peer.flat_map(|row| &row.rounds) {
        assert_eq!((round.requests, round.user_ns), (3, 10));
    }
    assert!(run_.ratios.iter().any(|ratio| ratio.policy == "peer:good"));
    let names: Vec<&str> = run_.contenders.iter().map(|c| &c.name[..]).collect();
    assert_eq!(names, ["peer:good", "pread"]);
    let Configured { settings, .. } = &run_.contenders[0];
    assert!(settings[1].contains("--bytes 1048576"), "{settings:?}");

    // Schemes are left out, as with the hand-written loops.
    let run_ =
        measure(&plan(&["block", "peer:good"]), Path::new("emu:latency=2us,size=1MiB")).unwrap();
    assert_eq!(run_.rows.len(), 2);
}

#[test]
fn samples_are_those_that_the_peer_tells_or_a_note_says_that_it_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let samples = directory.path().join("samples.csv");
    let mut plan = Plan { depths: vec![1], ..plan(&["peer:sampled", "peer:good"]) };
    plan.keep.samples = Some(samples.clone());
    let run_ = measure(&plan, Path::new("/nowhere/data")).unwrap();
    assert_eq!(run_.notes, ["samples: peer:good does not tell them"]);
    let text = std::fs::read_to_string(samples).unwrap();
    let of = |name: &str| text.lines().filter(|line| line.contains(name)).count();
    assert_eq!((of("peer:sampled"), of("peer:good")), (2 * 3, 0), "{text}");
    assert!(text.contains(",4,5\n") && text.contains(",9,6\n"), "{text}");
}

#[test]
fn a_run_that_is_told_to_stop_does_not_wait_for_a_peer() {
    let _alone = SLEEPING.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = plan(&["peer:sleeping"]);
    let stop = plan.keep.stop.clone();
    let teller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let started = Instant::now();
    let error = measure(&plan, Path::new("/nowhere/data")).unwrap_err();
    assert!(error.is::<Interrupted>(), "{error:#}");
    assert!(started.elapsed() < Duration::from_secs(60));
    teller.join().unwrap();
}

#[test]
fn unknown_peers_and_missing_programs_are_refused_before_anything_is_measured() {
    let refused = |plan: &Plan| {
        let text = format!("{:#}", measure(plan, Path::new("/nowhere/data")).unwrap_err());
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let text = refused(&plan(&["block", "peer:nobody"]));
    assert!(text.contains("peer:nobody") && text.contains("good, failing, sampled"), "{text}");
    let missing = Plan { peers_program: Some("/nowhere/x".into()), ..plan(&["peer:good"]) };
    assert!(refused(&missing).contains("/nowhere/x"));
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    assert!(Contender::open("peer:good", &subject(), &monitor).is_err(), "none is near");
}
