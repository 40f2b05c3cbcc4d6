// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measuring loop on small files and emulated devices: what it sends, what it counts, what it
//! refuses.

mod contenders;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dwell::dwell_policy::{Profile, Wait};
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::{Decision, WaitPolicy};
use dwell_bench::contender::Contender;
use dwell_bench::counters::Counters;
use dwell_bench::day::Day;
use dwell_bench::entrant::Entrant;
use dwell_bench::keep::{Interrupted, Keep};
use dwell_bench::loads::{Means, serve};
use dwell_bench::result::{Direction, Load, Metric, Pattern, Requests, Setting};
use dwell_bench::run::{Course, Plan, race, run};
use dwell_bench::stand::{Kind, Stand};
use dwell_bench::subject::{Probing, Subject};
use dwell_host::profile::SwitchCosts;

const HIDDEN: [&str; 4] = ["--ignored", "--exact", "helper", "help-now"];

#[test]
#[ignore = "run by other tests as a child"]
fn helper() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "help-now") {
        serve(&arguments).unwrap();
    }
}

fn monitor() -> Arc<SystemMonitor> {
    Arc::new(SystemMonitor::start(Config::default()).unwrap())
}

fn probing() -> Probing {
    Probing::hasty(SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() })
}

/// A subject that was never probed: nothing is measured to make it.
fn subject(address: &Path, bytes: u64, write: bool) -> Subject {
    let probed = Some(Profile::default());
    Subject {
        name: "test".into(),
        address: address.into(),
        direct: false,
        write,
        parameters: DeviceParameters { profile: probed, ..DeviceParameters::default() },
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
        means: Means {
            hidden: HIDDEN.map(String::from).into(),
            stressors: 1,
            bystanders: 1,
            directory: env!("CARGO_TARGET_TMPDIR").into(),
        },
        keep: Keep::default(),
        peers_program: None,
        day: None,
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
    // Two contenders against the first, by throughput and by CPU time.
    assert_eq!(run.ratios.len(), run.rows.len() / 3 * 2 * 2);
    for row in &run.rows {
        assert_eq!(row.rounds.len(), 2);
        for round in &row.rounds {
            assert!(round.requests >= 3 && round.bytes == round.requests * row.size_bytes);
            assert_eq!(round.decisions.values().sum::<u64>(), round.requests, "{row:?}");
            assert!(round.wall_ns >= 2_000_000 && round.p50_ns > 0);
            assert_eq!(round.stressor_ns, 0);
        }
    }
}

#[test]
fn cpu_stressors_run_beside_and_their_time_is_counted() {
    let mut plan = plan(&["block"]);
    plan.loads = vec![Load::Cpu];
    plan.batch = Duration::from_millis(300);
    let run = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert!(run.rows[0].rounds.iter().any(|round| round.stressor_ns > 0));
    plan.means.hidden = vec!["--list".into()];
    let refused = refusal(&plan, emulated(""));
    assert!(refused.contains("CPU stressors"), "{refused}");
}

#[test]
fn bystanders_are_counted_round_by_round_and_compared() {
    let mut plan = plan(&["block", "spin:pause=off"]);
    plan.loads = vec![Load::Bystander, Load::Idle];
    plan.batch = Duration::from_millis(300);
    let run = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    for row in &run.rows {
        let counted = row.rounds.iter().map(|round| round.bystander_iterations).sum::<u64>();
        assert_eq!(counted > 0, row.setting.load == Load::Bystander, "{counted}");
    }
    let of_bystanders = |row| run.ratio(row, Metric::BystanderSpeed).is_some();
    assert!(of_bystanders(&run.rows[1]) && !of_bystanders(&run.rows[3]));
    let text = dwell_bench::table::table(&run, 100);
    assert_eq!(text.matches("bystanders beside spin:pause=off, 4 KiB: ").count(), 1, "{text}");
}

#[test]
fn a_case_that_a_subject_cannot_have_is_left_out_and_said() {
    let mut plan = plan(&["block"]);
    plan.loads = vec![Load::Idle, Load::Io];
    let run_ = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert_eq!((run_.rows.len(), run_.left_out.len()), (1, 1));
    assert!(run_.left_out[0].contains("test beside I/O programs"), "{:?}", run_.left_out);
    plan.schedulers = vec![None, Some("none".into())];
    plan.loads = vec![Load::Idle];
    let run_ = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert_eq!((run_.rows.len(), run_.left_out.len()), (1, 1));
    plan.schedulers.remove(0);
    let text = refusal(&plan, emulated(""));
    assert!(text.contains("nothing is left") && text.contains("test under none"), "{text}");
}

#[test]
fn a_scheduler_is_set_while_its_rows_are_measured() {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stand = Stand::make_sized(4 << 20, &[Kind::Loop], here, false, &probing()).unwrap();
    let Ok(subject) = stand.get(Kind::Loop) else {
        return println!("SKIP: {}", stand.left_out.join("; "));
    };
    let name = subject.address.file_name().unwrap().to_str().unwrap().to_owned();
    let in_use = || {
        let path = format!("/sys/block/{name}/queue/scheduler");
        let text = std::fs::read_to_string(path).unwrap();
        text.split(['[', ']']).nth(1).unwrap().to_owned()
    };
    let before = in_use();
    let mut plan = plan(&["block"]);
    plan.schedulers = ["none", "mq-deadline"].map(|name| Some(name.into())).into();
    let mut seen = Vec::new();
    let run_ = run(&plan, std::slice::from_ref(subject), &monitor(), vec![], &mut |what| {
        seen.push((what.rsplit("scheduler ").next().unwrap().to_owned(), in_use()));
    });
    match run_ {
        Err(why) if format!("{why:#}").contains("no mq-deadline") => println!("SKIP: {why:#}"),
        run_ => assert_eq!(run_.unwrap().rows.len(), 2),
    }
    assert!(seen.iter().all(|(said, used)| said.starts_with(used)), "{seen:?}");
    assert_eq!(in_use(), before);
    plan.schedulers.push(Some("nonsense".into()));
    let text = refusal(&plan, subject.clone());
    assert!(text.contains("nonsense") && text.contains("mq-deadline"), "{text}");
}

/// Spins for nothing and remembers what it was asked, and what was in flight on the device then.
struct Witness {
    asked: Mutex<Vec<(u64, u32)>>,
    /// The same file, opened by somebody else.
    beside: dwell::File,
}

impl WaitPolicy for Witness {
    fn name(&self) -> &str {
        "witness"
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        assert_eq!(wait.backlog.requests, 0, "a thread's own requests are no backlog");
        let in_flight = self.beside.wait_of(wait.kind, 0, wait.call).backlog.requests;
        self.asked.lock().unwrap().push((wait.size_bytes, in_flight));
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
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    if dwell::Options::new().direct(true).open(&path).is_err() {
        return println!("SKIP: no direct I/O here, and the page cache asks no policy");
    }
    for depth in [1, 4] {
        let subject = Subject { direct: true, ..subject(&path, 1 << 20, false) };
        // A policy that looks at the backlog.
        let smartcon = Arc::new(dwell::policy::SmartCon::default());
        let beside = dwell::Options::new().policy(smartcon).open(&path).unwrap();
        let witness = Arc::new(Witness { asked: Mutex::default(), beside });
        let parameters = subject.parameters;
        let contender = Contender::under(witness.clone(), &subject, parameters, None).unwrap();
        let mut entrants = [Entrant { name: "witness".into(), contender, monitor: None }];
        let setting = setting(depth);
        let rows = race(&mut entrants, &course_of(&subject, &setting), None, &mut |_| {}).unwrap();
        let asked = witness.asked.lock().unwrap();
        assert!(asked.iter().all(|(size, _)| *size == 4096));
        // The requests ahead of a request are the others in flight.
        assert_eq!(asked.iter().map(|(_, ahead)| ahead + 1).max(), Some(depth));
        // Requests before a batch are not measured.
        let measured: u64 = rows[0].rounds.iter().map(|round| round.requests).sum();
        assert!(asked.len() as u64 > measured);
    }
}

#[test]
fn offsets_are_whole_requests_within_the_file() {
    // Five requests and a bit: reading beyond the fifth would end early and fail the run.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let bytes = 5 * 4096 + 100;
    std::fs::write(&path, vec![7u8; bytes as usize]).unwrap();
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
fn a_plan_that_cannot_be_measured_is_refused_in_one_line_that_names_it() {
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
        let text = refusal(&plan, emulated(",error-every=4"));
        assert!(text.contains("read") && text.contains("os error 5"), "{text}");
    }
    // One at a time a short read is completed by another; in flight it would count twice.
    let plan = Plan { depths: vec![4], ..plan(&["block"]) };
    let text = refusal(&plan, emulated(",short-every=4"));
    assert!(text.contains("2048 of 4096"), "{text}");
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
fn a_subject_is_probed_as_long_as_it_is_and_knows_its_block() {
    let address = Path::new("emu:latency=5us,size=2MiB");
    let subject = Subject::new("emu", address, true, None, &probing()).unwrap();
    assert_eq!((subject.bytes, subject.direct), (2 << 20, false));
    assert!(subject.emulated.as_ref().unwrap().contains("emulated"));
    assert!(subject.profile.is_some() && subject.describe().class.is_some());
    let small = Path::new("emu:latency=5us,size=64KiB");
    let error = format!("{:#}", Subject::new("emu", small, true, None, &probing()).unwrap_err());
    assert!(error.contains("1 MiB or more"), "{error}");
}

#[test]
fn a_stand_says_what_it_left_out() {
    let missing = Path::new("/nonexistent");
    let stand = Stand::make_sized(4 << 20, &[Kind::Disk], missing, false, &probing()).unwrap();
    assert!(stand.subjects.is_empty());
    let error = stand.get(Kind::Disk).unwrap_err().to_string();
    assert!(error.contains("disk") && error.contains("/nonexistent"), "{error}");

    let here = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let stand = Stand::make_sized(4 << 20, &[Kind::Disk], here.path(), true, &probing()).unwrap();
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

#[test]
fn a_failing_device_ends_a_run_that_keeps_its_complete_rounds() {
    for depth in [1, 4] {
        let plan = Plan { depths: vec![depth], rounds: 10_000, ..plan(&["block", "spin"]) };
        let run = run(&plan, &[emulated(",error-every=20000")], &monitor(), vec![], &mut |_| {});
        let run = run.unwrap();
        let why = run.ended.unwrap();
        for part in ["test: ", "round", "read", "os error 5"] {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(!why.contains('\n'), "{why}");
        let rounds: Vec<usize> = run.rows.iter().map(|row| row.rounds.len()).collect();
        assert!(rounds[0] > 0 && rounds == [rounds[0]; 2], "not paired: {rounds:?}");
        assert!(run.ratios.iter().all(|ratio| ratio.paired.rounds == rounds[0]));
        assert!(!run.ratios.is_empty());
    }
}

#[test]
fn a_run_that_is_told_to_stop_keeps_its_complete_rounds() {
    let mut plan = plan(&["block", "spin"]);
    plan.sizes = vec![4096, 8192];
    plan.rounds = 3;
    let stop = plan.keep.stop.clone();
    let mut batches = 0;
    // In the middle of the second size's second round.
    let run_ = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {
        batches += 1;
        stop.store(batches == 6 + 2 + 2, Ordering::Relaxed);
    });
    let run_ = run_.unwrap();
    assert_eq!(run_.ended.as_deref(), Some("interrupted"));
    let rounds: Vec<usize> = run_.rows.iter().map(|row| row.rounds.len()).collect();
    assert_eq!(rounds, [3, 3, 1, 1]);

    // Before the first round is complete, however long a batch would be.
    plan.batch = Duration::from_secs(600);
    plan.keep.stop.store(false, Ordering::Relaxed);
    for depth in [1, 4] {
        plan.depths = vec![depth];
        let stop = plan.keep.stop.clone();
        let teller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
        });
        let error = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
        teller.join().unwrap();
        plan.keep.stop.store(false, Ordering::Relaxed);
    }
}

#[test]
fn samples_of_every_measured_request_are_kept_with_its_round() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("samples.csv");
    let data = directory.path().join("data");
    std::fs::write(&data, vec![7; 1 << 20]).unwrap();
    for depth in [1, 4] {
        let mut plan = Plan { depths: vec![depth], ..plan(&["block", "pread", "raw-wait"]) };
        plan.keep.samples = Some(path.clone());
        let run =
            run(&plan, &[subject(&data, 1 << 20, false)], &monitor(), vec![], &mut |_| {}).unwrap();
        assert_eq!(run.notes, Vec::<String>::new());
        let text = std::fs::read_to_string(&path).unwrap();
        for row in &run.rows {
            for (i, round) in row.rounds.iter().enumerate() {
                let of = format!(",{depth},4096,{},{},", row.policy, i + 1);
                let lines: Vec<&str> = text.lines().filter(|line| line.contains(&of)).collect();
                assert_eq!(lines.len() as u64, round.requests);
                // The last two columns.
                let number = |n: usize, line: &str| -> u64 {
                    line.rsplit(',').nth(n).unwrap().parse().unwrap()
                };
                assert!(depth > 1 || lines.is_sorted_by_key(|line| number(1, line)));
                let mut latencies: Vec<u64> = lines.iter().map(|line| number(0, line)).collect();
                latencies.sort_unstable();
                let median = latencies[(latencies.len() - 1) / 2];
                assert!(round.p50_ns.abs_diff(median) <= median / 500 + 1, "{median} {round:?}");
            }
        }
    }
    let mut plan = plan(&["block"]);
    plan.keep.samples = Some("nowhere.json".into());
    assert!(refusal(&plan, emulated("")).contains("nowhere.json"));
}

#[test]
fn counters_are_kept_per_round_or_missing_with_a_reason() {
    let mut plan = plan(&["block"]);
    plan.keep.counters = true;
    let run = run(&plan, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    for round in &run.rows[0].rounds {
        match Counters::open() {
            Ok(_) => assert!(round.counters["instructions"] > 0.0),
            Err(why) => {
                assert!(round.counters.is_empty());
                assert_eq!(run.notes, [format!("counters: {why}")]);
            }
        }
    }
}

#[test]
fn every_contender_lives_through_the_whole_day_in_every_round() {
    let text = "\
        [[phase]]\nname = \"quiet\"\nload = \"idle\"\nsize_bytes = 4096\nmilliseconds = 2\n\
        [[phase]]\nname = \"busy\"\nload = \"cpu\"\nsize_bytes = 8192\nmilliseconds = 300\ndepth = 4\n";
    let mut plan = Plan { sizes: vec![], ..plan(&["block", "smartcon"]) };
    plan.day = Some(Day::parse("test", text).unwrap());
    let mut heard = Vec::new();
    let run = run(&plan, &[emulated("")], &monitor(), vec![], &mut |what| {
        heard.push(what.to_owned());
    })
    .unwrap();
    assert_eq!(heard.len() as u64, plan.batches(1));
    // The second round begins with the other contender.
    for (at, part) in [(0, "quiet"), (1, "busy"), (0, "block"), (2, "smartcon"), (4, "smartcon")] {
        assert!(heard[at].contains(part), "{heard:?}");
    }
    let rows: Vec<_> = run.rows.iter().map(|row| (row.size_bytes, row.setting.load)).collect();
    let [quiet, busy] = [(4096, Load::Idle), (8192, Load::Cpu)];
    assert_eq!(rows, [quiet, quiet, busy, busy]);
    assert!(run.rows.iter().all(|row| row.rounds.len() == 2));
    assert!(run.rows[3].rounds.iter().all(|round| round.stressor_ns > 0));
    assert_eq!(run.ratios.len(), 2 * 2);
}
