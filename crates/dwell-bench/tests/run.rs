// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measuring loop on small files and emulated devices: what it sends, what it counts, what it
//! refuses.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dwell::dwell_policy::{Profile, Wait};
use dwell::known::Known;
use dwell::monitor::{Config, SystemMonitor};
use dwell::profile::SwitchCosts;
use dwell::{Decision, WaitPolicy};
use dwell_bench::contender::{Contender, check_name, policy_of};
use dwell_bench::loads::crunch_forever;
use dwell_bench::result::{Direction, Load, Pattern, Requests, Setting};
use dwell_bench::run::{Course, Entrant, Plan, race, run};
use dwell_bench::stand::{Kind, Stand};
use dwell_bench::subject::Subject;

const HIDDEN: [&str; 4] = ["--ignored", "--exact", "cruncher", "crunch-now"];

#[test]
#[ignore = "run by other tests as a child"]
fn cruncher() {
    if std::env::args().any(|argument| argument == "crunch-now") {
        crunch_forever();
    }
}

fn monitor() -> Arc<SystemMonitor> {
    Arc::new(SystemMonitor::start(Config::default()).unwrap())
}

fn switches() -> SwitchCosts {
    SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() }
}

/// A subject that was never probed: nothing is measured to make it.
fn subject(address: &Path, bytes: u64, write: bool) -> Subject {
    Subject {
        name: "test".into(),
        address: address.into(),
        direct: false,
        write,
        known: Known { profile: Some(Profile::default()), ..Known::default() },
        profile: None,
        description: "test".into(),
        emulated: None,
        bytes,
        block_bytes: 1,
    }
}

fn emulated(fields: &str) -> Subject {
    subject(Path::new(&format!("emu:latency=2us,size=1MiB{fields}")), 1 << 20, true)
}

fn plan(contenders: &[&str]) -> Plan {
    Plan {
        contenders: contenders.iter().map(|name| name.to_string()).collect(),
        baseline: contenders[0].into(),
        sizes: vec![4096],
        patterns: vec![Pattern::Rand],
        directions: vec![Direction::Read],
        loads: vec![Load::Idle],
        schedulers: vec![None],
        depths: vec![1],
        rounds: 2,
        batch: Duration::from_millis(2),
        crunchers: 1,
        cruncher: HIDDEN.map(String::from).into(),
    }
}

fn refusal(plan: &Plan, subject: Subject) -> String {
    let error = run(plan, &[subject], &monitor(), vec![], &mut |_| {}).unwrap_err();
    let text = format!("{error:#}");
    assert!(!text.contains('\n'), "not one line: {text}");
    text
}

#[test]
fn every_round_is_complete_and_counted() {
    let mut plan = plan(&["block", "spin", "smartcon"]);
    plan.sizes = vec![4096, 16384];
    plan.patterns = vec![Pattern::Seq, Pattern::Rand];
    plan.directions = vec![Direction::Read, Direction::Write];
    let mut heard = 0;
    let run = run(&plan, &[emulated("")], &monitor(), vec!["x".into()], &mut |what| {
        assert!(what.contains("KiB"), "{what}");
        heard += 1;
    })
    .unwrap();
    assert_eq!(heard, plan.batches(1));
    assert_eq!(run.rows.len(), 3 * 2 * 2 * 2);
    // Operations are counted of named workloads alone.
    assert_eq!(run.ratios.len(), run.rows.len() / 3 * 2 * 2);
    for row in &run.rows {
        assert_eq!(row.rounds.len(), 2);
        for round in &row.rounds {
            assert!(round.requests >= 3 && round.bytes == round.requests * row.size_bytes);
            assert_eq!(round.decisions.values().sum::<u64>(), round.requests, "{row:?}");
            assert!(round.wall_ns >= 2_000_000 && round.p50_ns > 0);
            assert_eq!(round.cruncher_ns, 0);
        }
    }
}

#[test]
fn number_crunchers_run_beside_and_their_time_is_counted() {
    let mut plan = plan(&["block"]);
    plan.loads = vec![Load::Cpu];
    plan.batch = Duration::from_millis(30);
    let run = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert!(run.rows[0].rounds.iter().any(|round| round.cruncher_ns > 0));
    plan.cruncher = vec!["--list".into()];
    let refused = refusal(&plan, emulated(""));
    assert!(refused.contains("number crunchers"), "{refused}");
}

/// Spins for nothing and remembers what it was asked.
#[derive(Default)]
struct Witness(Mutex<Vec<(u64, u32)>>);

impl WaitPolicy for Witness {
    fn name(&self) -> &str {
        "witness"
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.0.lock().unwrap().push((wait.size_bytes, wait.backlog.requests));
        dwell::policy::Block.choose(wait)
    }
}

fn course_of<'a>(subject: &'a Subject, setting: &'a Setting) -> Course<'a> {
    let batch = Duration::from_millis(2);
    Course { subject, setting, size_bytes: 4096, rounds: 2, batch }
}

fn setting(depth: u32) -> Setting {
    let requests = Requests { pattern: Pattern::Seq, direction: Direction::Read, depth };
    Setting::new(&emulated(""), Load::Idle, requests)
}

#[test]
fn a_depth_is_reached_and_never_exceeded() {
    for depth in [1, 4] {
        let subject = emulated(",parallel=4");
        let witness = Arc::new(Witness::default());
        let contender = Contender::under(witness.clone(), &subject, subject.known, None).unwrap();
        let mut entrants = [Entrant { name: "witness".into(), contender, monitor: None }];
        let setting = setting(depth);
        let rows = race(&mut entrants, &course_of(&subject, &setting), None, &mut |_| {}).unwrap();
        let asked = witness.0.lock().unwrap();
        assert!(asked.iter().all(|(size, _)| *size == 4096));
        // What is ahead of a request is what else is in flight.
        assert_eq!(asked.iter().map(|(_, ahead)| ahead + 1).max(), Some(depth));
        let requests: u64 = rows[0].rounds.iter().map(|round| round.requests).sum();
        const WARM_UP: u64 = 8;
        assert_eq!(asked.len() as u64, requests + WARM_UP);
    }
}

#[test]
fn offsets_are_whole_requests_within_the_file() {
    // Five requests and a bit: reading beyond the fifth would end early and fail the run.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7u8; 5 * 4096 + 100]).unwrap();
    let bytes = 5 * 4096 + 100;
    for pattern in [Pattern::Seq, Pattern::Rand] {
        let mut plan = plan(&["pread", "block", "raw-cq-peek"]);
        plan.patterns = vec![pattern];
        run(&plan, &[subject(&path, bytes, false)], &monitor(), vec![], &mut |_| {}).unwrap();
    }
    // Writes stay inside, too: the file keeps its length and its last bytes.
    let mut plan = plan(&["pread", "block"]);
    plan.directions = vec![Direction::Write];
    run(&plan, &[subject(&path, bytes, true)], &monitor(), vec![], &mut |_| {}).unwrap();
    let after = std::fs::read(&path).unwrap();
    assert_eq!(after.len() as u64, bytes);
    assert_eq!(after[5 * 4096..], [7u8; 100]);
    assert_ne!(after[..4096], [7u8; 4096]);
}

#[test]
fn what_cannot_be_measured_is_refused_in_one_line_that_names_it() {
    let plan_of = |sizes: &[u64]| Plan { sizes: sizes.to_vec(), ..plan(&["block"]) };
    let blocks = |mut subject: Subject| {
        subject.block_bytes = 4096;
        subject
    };
    let text = refusal(&plan_of(&[6000]), blocks(emulated("")));
    assert!(text.contains("6000") && text.contains("4096"), "{text}");
    let text = refusal(&plan_of(&[0]), emulated(""));
    assert!(text.contains('0'), "{text}");
    let text = refusal(&plan_of(&[2 << 20]), emulated(""));
    assert!(text.contains("2097152") && text.contains("1048576"), "{text}");
    let text = refusal(&plan_of(&[!4095]), emulated(""));
    assert!(text.contains("at most"), "{text}");

    let writes = Plan { directions: vec![Direction::Write], ..plan(&["block"]) };
    let read_only = Subject { write: false, ..emulated("") };
    let text = refusal(&writes, read_only);
    assert!(text.contains("test") && text.contains("reading only"), "{text}");

    let text = refusal(&plan(&["block", "nonsense"]), emulated(""));
    assert!(text.contains("nonsense") && text.contains("smartcon"), "{text}");
    let text = refusal(&Plan { depths: vec![0], ..plan(&["block"]) }, emulated(""));
    assert!(text.contains("depth"), "{text}");
    let text = refusal(&Plan { rounds: 0, ..plan(&["block"]) }, emulated(""));
    assert!(text.contains("round"), "{text}");
}

#[test]
fn failing_and_short_requests_end_a_run() {
    for depth in [1, 4] {
        let plan = Plan { depths: vec![depth], ..plan(&["block", "spin"]) };
        let text = refusal(&plan, emulated(",error-every=40"));
        assert!(text.contains("read") && text.contains("os error 5"), "{text}");
    }
    // One at a time a short read is completed by another; in flight it would count twice.
    let plan = Plan { depths: vec![4], ..plan(&["block"]) };
    let text = refusal(&plan, emulated(",short-every=40"));
    assert!(text.contains("2048 of 4096"), "{text}");
}

#[test]
fn hand_written_loops_are_left_out_where_they_cannot_go() {
    let plan_ = plan(&["block", "pread", "raw-cq-peek"]);
    let run_ = run(&plan_, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert_eq!(run_.rows.len(), 1);
    let subject = emulated("");
    let error = Entrant::open("pread", &subject, &monitor()).err().unwrap().to_string();
    assert!(error.contains("scheme"), "{error}");
}

#[test]
fn a_race_under_a_monitor_begins_with_requests_that_are_not_measured() {
    let subject = emulated("");
    let monitor = monitor();
    let before = monitor.cost().samples;
    let mut entrants = [Entrant::open("smartcon", &subject, &monitor).unwrap()];
    let setting = setting(1);
    let rows = race(&mut entrants, &course_of(&subject, &setting), None, &mut |_| {}).unwrap();
    let measured: u64 = rows[0].rounds.iter().map(|round| round.requests).sum();
    assert!(entrants[0].contender.stats().requests() > measured + 8);
    // Two rounds, and each ends several windows of its own.
    assert!(monitor.cost().samples >= before + 8);
}

#[test]
fn every_hand_written_loop_reads_and_writes_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let content: Vec<u8> = (0..32768u32).map(|i| (i / 128) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let subject = subject(&path, 32768, true);
    for name in dwell_bench::contender::HAND_WRITTEN.into_iter().chain(["block", "spin"]) {
        let mut contender = Contender::open(name, &subject, &monitor()).unwrap();
        let mut buffer = vec![0; 4096];
        contender.request(Direction::Read, &mut buffer, 8192).unwrap();
        assert_eq!(buffer, content[8192..12288], "{name}");
        contender.request(Direction::Write, &mut buffer, 0).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..4096], buffer, "{name}");
        std::fs::write(&path, &content).unwrap();
        let beyond = contender.request(Direction::Read, &mut buffer, 30000);
        assert!(beyond.is_err(), "{name} read beyond the end");
    }
}

#[test]
fn policies_take_the_parameters_they_have_and_no_others() {
    let smartcon = "smartcon:cpu-threshold=0.25+queue-limit=1+signal=total";
    assert_eq!(policy_of(smartcon).unwrap().name(), "smartcon");
    for (name, part) in [
        ("smartcon:cpu-threshold=2", "0 to 1"),
        ("smartcon:cpu-threshold=NaN", "0 to 1"),
        ("smartcon:queue-limit=-1", "queue-limit"),
        ("smartcon:colour=red", "colour"),
        ("block:signal=total", "only smartcon"),
        ("nonsense", "nonsense"),
        ("", "no such policy"),
    ] {
        let error = format!("{:#}", check_name(name).unwrap_err());
        assert!(error.contains(part), "{name}: {error}");
    }
    check_name("raw-get-events").unwrap();
}

#[test]
fn a_subject_is_probed_as_long_as_it_is_and_knows_its_block() {
    let address = Path::new("emu:latency=5us,size=2MiB");
    let subject = Subject::new("emu", address, true, None, &switches()).unwrap();
    assert_eq!((subject.bytes, subject.direct), (2 << 20, false));
    assert!(subject.emulated.as_ref().unwrap().contains("emulated"));
    assert!(subject.profile.is_some() && subject.describe().class.is_some());
    let small = Path::new("emu:latency=5us,size=64KiB");
    let error = format!("{:#}", Subject::new("emu", small, true, None, &switches()).unwrap_err());
    assert!(error.contains("1 MiB or more"), "{error}");
}

#[test]
fn a_stand_says_what_it_left_out() {
    let missing = Path::new("/nonexistent");
    let stand = Stand::make_sized(4 << 20, &[Kind::Disk], missing, false, &switches()).unwrap();
    assert!(stand.subjects.is_empty());
    let error = stand.get(Kind::Disk).unwrap_err().to_string();
    assert!(error.contains("disk") && error.contains("/nonexistent"), "{error}");

    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let stand = Stand::make_sized(4 << 20, &[Kind::Disk], here.path(), true, &switches()).unwrap();
    match stand.get(Kind::Disk) {
        Err(why) => println!("SKIP: {why}"),
        Ok(subject) => {
            assert!(subject.direct && subject.bytes == 4 << 20 && subject.block_bytes >= 512);
            let error = subject.check_size(subject.block_bytes + 1).unwrap_err().to_string();
            assert!(error.contains("disk") && error.contains("multiple"), "{error}");
        }
    }
    let left = std::fs::read_dir(here.path()).unwrap().count();
    assert!(left <= 1);
    drop(stand);
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
}
