// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed schemas of `result.json`, of the bench and of comparisons, and what is really
//! written agree.
//!
//! A field that is new in the code belongs in `schema/`, with its unit.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dwell::monitor::{Config, SystemMonitor};
use dwell_bench::compare::{self, Comparison, Plan, Wrapper};
use dwell_bench::entrant::Entrant;
use dwell_bench::result::{Direction, Load, Metric, Pattern, Requests, Row, Run, Setting, Work};
use dwell_bench::run::{Course, race};
use dwell_bench::sample;
use dwell_bench::subject::{Probing, Subject};
use dwell_host::profile::SwitchCosts;
use jsonschema::Validator;
use serde_json::Value;

fn schema() -> Value {
    serde_json::from_str(include_str!("../schema/result.schema.json")).unwrap()
}

fn of_comparisons() -> Value {
    serde_json::from_str(include_str!("../schema/compare.schema.json")).unwrap()
}

/// A real comparison of two policies, of which one changes what is printed.
fn compared() -> Comparison {
    let directory = tempfile::tempdir().unwrap();
    let stand_in = "echo '{\"requests\":1}' >\"$2\"; export POLICY=$1; shift 2; exec \"$@\"";
    let wrapper = Wrapper::new(["sh", "-c", stand_in, "sh", Wrapper::POLICY, Wrapper::STATS]);
    let program = ["sh", "-c", "echo $POLICY; [ \"$POLICY\" = spin ] && kill -9 $$; :"];
    let plan = Plan {
        rounds: 2,
        warmup: 0,
        ignore_failure: true,
        directory: directory.path().into(),
        setup: Some(vec!["true".into()]),
        told: Some(|_| Some(1.5)),
        ..Plan::new(program.map(Into::into).into(), &["block", "spin"], wrapper)
    };
    compare::run(&plan, vec!["dwell".into()], &mut |_| {}).unwrap()
}

#[test]
fn comparisons_are_valid() {
    let validator = jsonschema::draft202012::new(&of_comparisons()).unwrap();
    let mut comparison = compared();
    assert!(comparison.variants[2].rounds[0].signal == Some(9) && !comparison.notes.is_empty());
    check(&validator, &serde_json::to_value(&comparison).unwrap());
    comparison.ended = Some("interrupted".into());
    comparison.variants.iter_mut().for_each(|variant| variant.rounds.clear());
    comparison.conclude();
    check(&validator, &serde_json::to_value(&comparison).unwrap());
    check(&validator, &serde_json::to_value(sample::comparison()).unwrap());
}

#[test]
fn a_file_that_is_no_comparison_is_not_valid() {
    let validator = jsonschema::draft202012::new(&of_comparisons()).unwrap();
    let comparison = serde_json::to_value(sample::comparison()).unwrap();
    assert!(validator.is_valid(&comparison));
    for (path, value) in [
        ("/schema", Value::from(2)),
        ("/variants/0/rounds/0/wall_ns", Value::from(-1)),
        ("/variants/0/rounds/0/place", Value::from(0)),
        ("/variants/1/finding/verdict", Value::from("better")),
        ("/variants/1/results", Value::Null),
        ("/ratios/0/metric", Value::from("colour")),
    ] {
        let mut wrong = comparison.clone();
        *wrong.pointer_mut(path).unwrap() = value;
        assert!(!validator.is_valid(&wrong), "{path}");
    }
    let mut stranger = comparison;
    stranger["variants"][0]["rounds"][0]["colour"] = Value::from("red");
    assert!(!validator.is_valid(&stranger));
}

fn check(validator: &Validator, run: &Value) {
    let wrong: Vec<String> = validator
        .iter_errors(run)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "adapt its schema in schema/:\n{}", wrong.join("\n"));
}

fn full() -> Run {
    let mut run = sample::run();
    run.ended = Some("interrupted".into());
    run.notes = vec!["note".into()];
    run.left_out = vec!["zram under bfq".into()];
    run.machine.governor = Some("performance".into());
    let row = &mut run.rows[0];
    row.setting.scheduler = Some("none".into());
    row.rounds[0].counters = [("cycles".to_owned(), 1.5)].into();
    row.setting.load = Load::Bystander;
    run
}

#[test]
fn a_written_result_is_valid() {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let mut run = full();
    run.left_out = vec!["why".into()];
    for (ratio, metric) in run.ratios.iter_mut().zip(Metric::ALL) {
        ratio.metric = metric;
    }
    check(&validator, &serde_json::to_value(&run).unwrap());
    let loads = [Load::Idle, Load::Cpu, Load::Io, Load::Arithmetic, Load::Readers, Load::Bystander];
    for load in loads {
        run.rows[0].setting.load = load;
        check(&validator, &serde_json::to_value(&run).unwrap());
    }
    let mut named = full();
    for row in &mut named.rows {
        row.setting.work = Work::Named { workload: "copy".into() };
        for round in &mut row.rounds {
            round.operations = [("read".to_owned(), 3)].into();
        }
    }
    named.compare_with("block");
    check(&validator, &serde_json::to_value(named).unwrap());

    let address = Path::new("emu:latency=2us,size=1MiB");
    let probing = Probing::hasty(SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() });
    let subject = Subject::new("test", address, false, None, &probing).unwrap();
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let mut run = full();
    run.devices = vec![subject.describe()];
    run.rows = real_rows(&subject, &monitor);
    run.compare_with("block");
    check(&validator, &serde_json::to_value(run).unwrap());
}

fn real_rows(subject: &Subject, monitor: &Arc<SystemMonitor>) -> Vec<Row> {
    let requests = Requests { pattern: Pattern::Seq, direction: Direction::Read, depth: 2 };
    let setting = Setting::new(subject, Load::Idle, requests);
    let batch = Duration::from_millis(2);
    let course = Course { subject, setting: &setting, size_bytes: 4096, rounds: 2, batch };
    let mut entrants = ["block", "spin"].map(|name| Entrant::open(name, subject, monitor).unwrap());
    race(&mut entrants, &course, None, &mut |_| {}).unwrap()
}

#[test]
fn a_result_with_missing_or_strange_fields_is_not_valid() {
    let validator = jsonschema::draft202012::new(&schema()).unwrap();
    let run = serde_json::to_value(full()).unwrap();
    assert!(validator.is_valid(&run));
    for (path, value) in [
        ("/schema", Some(Value::from(2))),
        ("/verdict", Some(Value::from(1))),
        ("/conditions/noisy_rounds", None),
        ("/rows/0/load", Some(Value::from("heavy"))),
        ("/rows/0/rounds/0/requests", Some(Value::from(-1))),
        ("/rows/0/rounds/0/wall_ns", Some(Value::from("long"))),
        ("/ratios/0/median", Some(Value::Null)),
        ("/rows/0/depth", None),
        ("/machine/kernel", None),
    ] {
        let mut wrong = run.clone();
        let (parent, name) = path.rsplit_once('/').unwrap();
        let object = match parent {
            "" => &mut wrong,
            parent => wrong.pointer_mut(parent).unwrap(),
        };
        let object = object.as_object_mut().unwrap();
        match value {
            Some(value) => object.insert(name.into(), value),
            None => object.remove(name),
        };
        assert!(!validator.is_valid(&wrong), "{path}");
    }
    let mut stranger = run;
    stranger["rows"][0]["rounds"][0]["colour"] = Value::from("red");
    assert!(!validator.is_valid(&stranger));
}

#[test]
fn every_field_is_described() {
    fn walk(path: &str, schema: &Value) {
        let Value::Object(object) = schema else { return };
        let groups = ["properties", "$defs"].into_iter().filter_map(|name| object.get(name));
        for (name, field) in groups.flat_map(|group| group.as_object().unwrap()) {
            let path = format!("{path}/{name}");
            let described = field.get("description").and_then(Value::as_str).unwrap_or_default();
            assert!(described.ends_with('.') || name == "machine", "{path}");
            for (suffix, unit) in [("_ns", "nanoseconds"), ("bytes", "bytes")] {
                assert!(!name.ends_with(suffix) || described.contains(unit), "{path}: no unit");
            }
            walk(&path, field);
        }
    }
    walk("", &schema());
    walk("", &of_comparisons());
}
