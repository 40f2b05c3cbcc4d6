// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparisons of real, tiny commands by a stand-in for `dwell run`: what is run, kept, counted and
//! said. No time is asserted.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use dwell_bench::compare::{
    self, CONTROL, Comparison, Measured, Metric, Plan, Results, UNTOUCHED, Verdict, Wrapper,
};
use dwell_bench::keep::Interrupted;

/// Puts the policy into the environment and leaves counts, as `dwell run` does.
const STAND_IN: &str = r#"policy=$1; stats=$2; shift 2
export POLICY="$policy"; echo "{\"policy\":\"$policy\"}" >"$stats"; exec "$@""#;

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn stand_in() -> Wrapper {
    Wrapper::new(["sh", "-c", STAND_IN, "sh", Wrapper::POLICY, Wrapper::STATS])
}

/// Two rounds of a shell script under two policies, after one that is not kept.
fn plan(directory: &Path, script: &str) -> Plan {
    Plan {
        rounds: 2,
        directory: directory.join("out"),
        ..Plan::new(words(&["sh", "-c", script]), &["block", "spin"], stand_in())
    }
}

fn run(plan: &Plan) -> anyhow::Result<Comparison> {
    compare::run(plan, vec!["dwell".into(), "compare".into()], &mut |_| {})
}

/// Names of the files left in the directory of runs.
fn left(plan: &Plan) -> BTreeSet<String> {
    let runs = fs::read_dir(plan.directory.join("runs"));
    runs.into_iter().flatten().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn every_round_runs_every_variant_once_and_the_wrapped_ones_are_wrapped() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let script = format!(
        "echo ${{POLICY:-none}} >>{}; echo same; head -c 100000 /dev/zero >/dev/null",
        log.display()
    );
    let plan = Plan { rounds: 4, ..plan(directory.path(), &script) };
    let mut heard = Vec::new();
    let result = compare::run(&plan, vec![], &mut |what| heard.push(what.to_owned())).unwrap();
    let log = lines(&log);
    assert_eq!((log.len(), heard.len() as u64), (15, plan.runs()));
    for round in log.chunks(3) {
        let round: BTreeSet<&str> = round.iter().map(String::as_str).collect();
        assert!(round.iter().eq(["block", "none", "spin"].iter()), "{round:?}");
    }
    assert!(heard[..3].iter().all(|what| what.starts_with("warming up, ")), "{heard:?}");
    assert!(heard[14].starts_with("round 4 of 4, "));
    let names: Vec<&str> = result.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, [UNTOUCHED, "block", "spin"]);
    for variant in &result.variants {
        assert_eq!(variant.rounds.len(), 4);
        for run in &variant.rounds {
            assert!(run.wall_ns > 0 && run.cpu_ns() > 0 && run.succeeded());
            assert!((1..=3).contains(&run.place));
            assert!(run.written_bytes.is_none_or(|bytes| bytes >= 100_005), "{run:?}");
            let counted = run.stats.as_ref().map(|stats| stats["policy"].as_str().unwrap());
            assert_eq!(counted, Some(variant.name.as_str()).filter(|name| *name != UNTOUCHED));
        }
        assert_eq!(variant.results, Results::Same);
    }
    for round in 0..4 {
        let places: BTreeSet<usize> =
            result.variants.iter().map(|v| v.rounds[round].place).collect();
        assert_eq!(places.len(), 3);
    }
    assert_eq!((result.ended, result.notes), (None, vec![]));
    assert_eq!(left(&plan), BTreeSet::new());
    assert!(!plan.directory.join("runs").exists());
}

#[test]
fn a_control_is_the_command_as_it_is_once_more() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let script = format!("echo ${{POLICY:-none}} >>{}", log.display());
    let result = run(&Plan { control: true, ..plan(directory.path(), &script) }).unwrap();
    let names: Vec<&str> = result.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, [UNTOUCHED, CONTROL, "block", "spin"]);
    for round in lines(&log).chunks(4) {
        assert_eq!(round.iter().filter(|policy| *policy == "none").count(), 2, "{round:?}");
    }
    let control = &result.variants[1];
    assert!(control.rounds.len() == 2 && control.rounds.iter().all(|run| run.stats.is_none()));
    assert!(control.finding.is_some() && result.ratio(CONTROL, Metric::Speed).is_some());
    assert_eq!(control.words, result.variants[0].words);
}

#[test]
fn few_rounds_are_inconclusive_and_say_how_many_it_takes() {
    let directory = tempfile::tempdir().unwrap();
    let result = run(&plan(directory.path(), ":")).unwrap();
    for variant in result.others() {
        let finding = variant.finding.as_ref().unwrap();
        assert_eq!(finding.verdict, Verdict::Inconclusive);
        assert!(finding.text.contains("2 rounds cannot tell, six can"), "{}", finding.text);
    }
    assert!(result.untouched().unwrap().finding.is_none());
}

/// A comparison in which one policy took these times beside 100 ms.
fn with_times(took_ms: &[u64]) -> Comparison {
    let directory = tempfile::tempdir().unwrap();
    let mut result = run(&plan(directory.path(), ":")).unwrap();
    let rounds = |ms: &dyn Fn(usize) -> u64| -> Vec<Measured> {
        let run = |i| Measured { wall_ns: ms(i) * 1_000_000, user_ns: 1, ..Measured::default() };
        (0..took_ms.len()).map(run).collect()
    };
    result.variants[0].rounds = rounds(&|_| 100);
    result.variants[1].rounds = rounds(&|i| took_ms[i]);
    result.variants[2].rounds = rounds(&|i| 95 + (i as u64 * 7) % 11);
    result.conclude();
    result
}

#[test]
fn measured_numbers_make_the_verdict() {
    for (took_ms, verdict) in [
        ([60, 62, 61, 70, 59, 64, 66, 58], Verdict::Faster),
        ([160, 162, 161, 170, 159, 164, 166, 158], Verdict::Slower),
        ([60, 162, 61, 170, 59, 164, 66, 158], Verdict::Inconclusive),
    ] {
        let result = with_times(&took_ms);
        let finding = |i: usize| result.variants[i].finding.clone().unwrap();
        assert_eq!(finding(1).verdict, verdict, "{}", finding(1).text);
        assert_eq!(finding(2).verdict, Verdict::Inconclusive, "{}", finding(2).text);
        let text = compare::table(&result);
        assert!(text.contains(verdict.as_str()), "{text}");
    }
    let speed = *with_times(&[50; 8]).ratio("block", Metric::Speed).unwrap();
    assert!((speed.median - 2.0).abs() < 1e-9 && speed.rounds == 8);
}

#[test]
fn setup_comes_before_each_run_and_the_check_after() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let shell = |script: String| Some(words(&["sh", "-c", &script]));
    let plan = Plan {
        setup: shell(format!("echo set >{}", state.display())),
        check: shell(format!("cat {}", state.display())),
        // A different time each run, as many programs print.
        ..plan(directory.path(), &format!("date +%N; echo run >>{}", state.display()))
    };
    let result = run(&plan).unwrap();
    let mut sums = BTreeSet::new();
    for variant in &result.variants {
        assert_eq!(variant.results, Results::Same);
        sums.extend(variant.rounds.iter().map(|run| run.results_sum.clone()));
    }
    assert!(sums.len() == 1 && sums.first().unwrap().ends_with("-8"), "{sums:?}");
    assert_eq!(lines(&state), ["set", "run"]);
    assert_eq!(result.check[0], "sh");
    assert_eq!(left(&plan), BTreeSet::new());
}

#[test]
fn different_results_are_told_shown_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let plan =
        plan(directory.path(), "echo first; [ \"$POLICY\" = spin ] && echo wrong || echo right");
    let result = run(&plan).unwrap();
    let results: Vec<Results> = result.variants.iter().map(|variant| variant.results).collect();
    assert_eq!(results, [Results::Same, Results::Same, Results::Differ]);
    let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
    for part in ["RESULTS DIFFER under spin, round 1", "line 2 is \"wrong\" and was \"right\""] {
        assert!(note.contains(part), "{note}");
    }
    let kept = ["spin-1.stdout", "untouched-1.stdout"].map(String::from);
    assert!(left(&plan).iter().eq(kept.iter()), "{:?}", left(&plan));
    assert!(compare::table(&result).contains("results differ"));
}

#[test]
fn results_that_vary_by_themselves_accuse_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path(), "date +%N; echo $$");
    let result = run(&plan).unwrap();
    assert!(result.variants.iter().all(|variant| variant.results == Results::Unstable));
    let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
    assert!(note.contains("vary from round to round") && note.contains("--check"), "{note}");
    assert_eq!(left(&plan), BTreeSet::new());
}

#[test]
fn a_run_that_fails_ends_it_with_its_last_words_and_its_output() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo output; [ \"$POLICY\" = spin ] && { echo oh >&2; echo no >&2; exit 3; }; :";
    let failing = plan(directory.path(), script);
    let error = format!("{:#}", run(&failing).unwrap_err());
    for part in ["spin, warming up: exit status 3: oh; no", "its output is in", "spin-0.stdout"] {
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(lines(&failing.directory.join("runs/spin-0.stdout")), ["output"]);

    let killed = plan(directory.path(), "[ \"$POLICY\" = block ] && kill -SEGV $$; :");
    let error = format!("{:#}", run(&killed).unwrap_err());
    assert!(error.contains("block, warming up: ended by signal 11"), "{error}");

    let late = directory.path().join("late");
    let script = format!("[ -e {0} ] && exit 4; [ \"$POLICY\" ] || echo >>{0}", late.display());
    // The second round finds what the untouched run of the first left, but for its own.
    let late_plan = Plan { warmup: 0, rounds: 5, ..plan(directory.path(), &script) };
    match run(&late_plan) {
        Ok(result) => {
            let ended = result.ended.unwrap();
            assert!(ended.contains("exit status 4"), "{ended}");
            assert!(result.variants.iter().all(|v| v.rounds.len() == 1), "complete rounds only");
        }
        // The untouched run came first in its round.
        Err(error) => assert!(format!("{error:#}").contains("round 1: exit status 4"), "{error:#}"),
    }
}

#[test]
fn failures_can_be_ignored_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        ignore_failure: true,
        ..plan(directory.path(), "[ \"$POLICY\" = spin ] && exit 3; :")
    };
    let result = run(&plan).unwrap();
    assert_eq!(result.notes, ["spin: 2 of 2 runs failed, the first with exit status 3"]);
    assert_eq!(result.variants[2].rounds[1].exit_status, Some(3));
    assert_eq!(result.ended, None);
}

#[test]
fn a_command_that_cannot_be_run_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Plan {
        program: words(&["/nonexistent/program"]),
        policies: vec!["block".into()],
        wrapper: Wrapper::new(["env"]),
        ..plan(directory.path(), "")
    };
    let error = format!("{:#}", run(&missing).unwrap_err());
    // The wrapper finds it out where its turn comes first.
    assert!(error.contains("/nonexistent/program"), "{error}");
    assert!(error.contains("No such file"), "{error}");

    let shell = |script: &str| Some(words(&["sh", "-c", script]));
    let setup = Plan { setup: shell("echo full >&2; exit 9"), ..plan(directory.path(), ":") };
    let error = format!("{:#}", run(&setup).unwrap_err());
    assert!(error.contains("the setup failed: exit status 9: full"), "{error}");
    let check = Plan { check: shell("exit 8"), ..plan(directory.path(), ":") };
    let error = format!("{:#}", run(&check).unwrap_err());
    assert!(error.contains("the check failed: exit status 8"), "{error}");

    for (wrong, says) in [
        (Plan { program: vec![], ..plan(directory.path(), ":") }, "no command"),
        (Plan { rounds: 0, ..plan(directory.path(), ":") }, "1 or more"),
        (Plan { policies: vec![], ..plan(directory.path(), ":") }, "no policy"),
        (Plan { policies: vec!["a".into(), "a".into()], ..plan(directory.path(), ":") }, "twice"),
        (Plan { policies: vec![UNTOUCHED.into()], ..plan(directory.path(), ":") }, "as it is"),
        (
            Plan { directory: PathBuf::from("/proc/nothing"), ..plan(directory.path(), ":") },
            "/proc/nothing",
        ),
    ] {
        let error = format!("{:#}", run(&wrong).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_wrapper_that_counts_nothing_is_suspect() {
    let directory = tempfile::tempdir().unwrap();
    let script = ": $1 $2; shift 2; echo 'dwell: static, cannot be preloaded' >&2; exec \"$@\"";
    let wrapper = Wrapper::new(["sh", "-c", script, "sh", Wrapper::POLICY, Wrapper::STATS]);
    let plan = Plan { wrapper, policies: vec!["block".into()], ..plan(directory.path(), ":") };
    let result = run(&plan).unwrap();
    let [note] = &result.notes[..] else { panic!("{:?}", result.notes) };
    assert!(note.contains("block: nothing was counted") && note.contains("preloaded"), "{note}");
}

#[test]
fn told_to_stop_it_keeps_complete_rounds_and_ends_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let ids = directory.path().join("ids");
    // From the second round on it hangs.
    let script = format!(
        "[ $(wc -l <{0}) -ge 3 ] && {{ echo $$ >>{0}; exec sleep 600; }}; echo $$ >>{0}",
        ids.display()
    );
    fs::write(&ids, "").unwrap();
    let hanging = Plan { warmup: 0, ..plan(directory.path(), &script) };
    let stop = hanging.stop.clone();
    let (result, waited) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            while lines(&ids).len() < 4 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
        });
        (run(&hanging), waiter.join())
    });
    waited.unwrap();
    let result = result.unwrap();
    assert_eq!(result.ended.as_deref(), Some("interrupted"));
    assert!(result.variants.iter().all(|variant| variant.rounds.len() == 1));
    let id = lines(&ids).pop().unwrap();
    assert!(!Path::new(&format!("/proc/{id}")).exists(), "the command runs on");
    assert_eq!(left(&hanging), BTreeSet::new());

    let none = plan(directory.path(), ":");
    none.stop.store(true, Ordering::Relaxed);
    assert!(run(&none).unwrap_err().is::<Interrupted>());
}

#[test]
fn a_rate_that_the_command_tells_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        told: Some(|text| text.strip_prefix("rate ")?.trim().parse().ok()),
        ..plan(directory.path(), "[ \"$POLICY\" = spin ] && echo rate 30 || echo rate 20")
    };
    let result = run(&plan).unwrap();
    assert_eq!(result.variants[1].rounds[0].told, Some(20.0));
    assert!((result.ratio("spin", Metric::Told).unwrap().median - 1.5).abs() < 1e-9);
    assert!(compare::html(&result).contains("Rate told"));
}

#[test]
fn it_survives_its_json_and_is_a_line_of_csv_per_run() {
    let directory = tempfile::tempdir().unwrap();
    let result = run(&plan(directory.path(), "echo x")).unwrap();
    let path = directory.path().join("deep/result.json");
    result.save(&path).unwrap();
    assert_eq!(Comparison::load(&path).unwrap(), result);
    let csv = result.csv().unwrap();
    assert_eq!(csv.lines().count(), 1 + 6);
    assert!(csv.lines().nth(1).unwrap().starts_with("untouched,1,"), "{csv}");
    fs::write(&path, "{}").unwrap();
    let error = format!("{:#}", Comparison::load(&path).unwrap_err());
    assert!(error.contains("not the result of dwell compare"), "{error}");
}
