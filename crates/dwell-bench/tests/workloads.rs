// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads are played by every contender on equal terms, and nothing stays behind. No speed is
//! asserted: a benchmark is never a test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dwell::monitor::{Config, SystemMonitor};
use dwell_bench::result::{Metric, Run, Work};
use dwell_bench::stand::Kind;
use dwell_bench::subject::Probing;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_bench::workload::{self, Place, PlaceKind, Plan, Variant, WorkloadFile, shipped};
use dwell_bench::{report, table};
use dwell_host::profile::SwitchCosts;

fn probing() -> Probing {
    Probing::hasty(SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() })
}

fn plan(contenders: &[&str]) -> Plan {
    Plan {
        contenders: contenders.iter().map(|name| name.to_string()).collect(),
        baseline: contenders[0].into(),
        schedulers: vec![],
        rounds: 2,
        batch: Duration::from_millis(10),
        lead_in: Duration::from_millis(2),
        stop: Default::default(),
    }
}

fn place(kind: &PlaceKind, file_system: FileSystemKind, directory: &Path) -> Option<Place> {
    match Place::make(kind, file_system, 48 << 20, directory, &probing()).unwrap() {
        Ok(place) => Some(place),
        Err(why) => {
            println!("SKIP: {}: {why}", kind.name());
            None
        }
    }
}

fn all_shipped() -> Vec<Variant> {
    let first = |(name, _): &(&str, &str)| shipped(name).unwrap().variants().unwrap().remove(0);
    workload::SHIPPED.iter().map(first).collect()
}

fn check(run: &Run, contenders: usize, workloads: usize) {
    assert_eq!(run.rows.len(), contenders * workloads);
    for row in &run.rows {
        let name = format!("{}, {}", row.setting, row.policy);
        assert!(matches!(row.setting.work, Work::Named { .. }) && row.rounds.len() == 2, "{name}");
        for round in &row.rounds {
            assert!(round.requests > 0 && round.bytes > 0 && round.wall_ns > 0, "{name}");
            assert!(round.operations.values().sum::<u64>() > 0, "{name}");
            assert!(round.p50_ns > 0 && round.p50_ns <= round.p999_ns, "{name}");
            let decided: u64 = round.decisions.values().sum();
            assert_eq!(decided, if row.policy == "pread" { 0 } else { round.requests }, "{name}");
        }
        if row.policy != "block" {
            assert!(run.ratio(row, Metric::Operations).is_some(), "{name}");
        }
    }
}

#[test]
fn every_workload_is_played_and_nothing_is_left() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let kinds = [PlaceKind::Made(Kind::Loop), PlaceKind::In(directory.path().into())];
    for kind in kinds {
        let Some(place) = place(&kind, FileSystemKind::Ext4, directory.path()) else { continue };
        let mut variants = all_shipped();
        if matches!(kind, PlaceKind::In(_)) {
            // A slow disk is asked for less.
            let few = ["varmail-light", "postmark", "rand-read"];
            variants.retain(|variant| few.contains(&variant.spec.name.as_str()));
        }
        let plan = plan(&["block", "smartcon", "pread"]);
        let mut steps = 0;
        let run = workload::run(&plan, &variants, &[place], &monitor, vec![], &mut |what| {
            assert!(!what.is_empty());
            steps += 1;
        });
        let run = run.unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(steps, plan.steps(variants.len()));
        check(&run, 3, variants.len());
        let scaled =
            |row: &&dwell_bench::result::Row| row.setting.workload().contains(", scale 0.");
        assert!(run.rows.iter().any(|row| scaled(&row)));
        let text = table::table(&run, 100);
        assert!(text.contains("varmail") && text.contains("operations"), "{text}");
        let html = report::html(&run);
        assert!(html.contains("Operations per second") && !html.contains("NaN"));
        let saved = directory.path().join("result.json");
        run.save(&saved).unwrap();
        assert_eq!(Run::load(&saved).unwrap(), run);
        std::fs::remove_file(saved).unwrap();
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_run_that_is_stopped_keeps_its_complete_rounds() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let kind = PlaceKind::In(directory.path().into());
    let Some(place) = place(&kind, FileSystemKind::Ext4, directory.path()) else { return };
    let variant = [shipped("rand-read").unwrap().variants().unwrap().remove(0)];
    let mut plan = plan(&["block", "pread"]);
    plan.rounds = 100;
    let mut steps = 0;
    let stop = plan.stop.clone();
    let run = workload::run(&plan, &variant, &[place], &monitor, vec![], &mut |_| {
        steps += 1;
        stop.store(steps == 1 + 2 + 2 + 1, std::sync::atomic::Ordering::Relaxed);
    });
    let run = run.unwrap();
    assert_eq!(run.ended.as_deref(), Some("interrupted"));
    assert!(run.rows.len() == 2 && run.rows.iter().all(|row| row.rounds.len() == 2));
    plan.stop.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn each_contender_may_have_a_scheduler_of_its_own() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kind = PlaceKind::Made(Kind::Loop);
    let Some(place) = place(&kind, FileSystemKind::Ext2, directory.path()) else { return };
    assert!(place.describe().description.starts_with("ext2 on loop device"));
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let variant = shipped("whole-random").unwrap().variants().unwrap().remove(0);
    let mut plan = plan(&["block", "smartcon", "block"]);
    plan.schedulers = ["none", "none", "mq-deadline"].map(String::from).into();
    let rows = workload::race(&plan, &variant, &place, &monitor, &mut |_| {}).unwrap();
    let seen: Vec<_> = rows.iter().map(|row| row.setting.scheduler.as_deref()).collect();
    assert_eq!(seen, [Some("none"), Some("none"), Some("mq-deadline")]);
    // A round is one pass through the file, whoever makes it.
    assert!(rows.iter().flat_map(|row| &row.rounds).all(|r| r.bytes == rows[0].rounds[0].bytes));
    plan.schedulers[2] = "nonsense".into();
    let error = workload::race(&plan, &variant, &place, &monitor, &mut |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("nonsense"), "{error:#}");
}

#[test]
fn a_workload_that_cannot_be_played_is_said_in_one_line() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let kind = PlaceKind::In(directory.path().into());
    let Some(place) = place(&kind, FileSystemKind::Ext4, directory.path()) else { return };
    let variant = shipped("varmail-light").unwrap().variants().unwrap().remove(0);
    for (contender, wanted) in [("raw-cq-peek", "policies and by pread"), ("spni", "no such")] {
        let played = workload::race(&plan(&[contender]), &variant, &place, &monitor, &mut |_| {});
        let text = format!("{:#}", played.unwrap_err());
        assert!(text.contains(wanted) && !text.contains('\n'), "{text}");
    }
    let mut scheduled = plan(&["block"]);
    scheduled.schedulers = vec!["none".into()];
    let error = workload::race(&scheduled, &variant, &place, &monitor, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("only a device made for the run"), "{error}");
    let missing = Place::make(
        &PlaceKind::In("/nonexistent".into()),
        FileSystemKind::Ext4,
        1 << 20,
        directory.path(),
        &probing(),
    );
    assert!(missing.unwrap().unwrap_err().to_string().contains("/nonexistent"));
}

#[test]
fn a_users_file_is_played_like_a_shipped_one() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("mine.toml");
    let text = workload::text_of("varmail").unwrap();
    std::fs::write(&path, text.replace("instances = 16", "instances = 2")).unwrap();
    let variants = workload::find(path.to_str().unwrap()).unwrap().variants().unwrap();
    assert_eq!(variants[0].spec.threads[0].instances, 2);
    std::fs::write(&path, text.replace("preallocated", "prealocated")).unwrap();
    let error = workload::find(path.to_str().unwrap()).and_then(|file| file.variants());
    let text = format!("{:#}", error.unwrap_err());
    assert!(text.contains("mine.toml: files[0]") && text.contains("prealocated"), "{text}");
    assert!(workload::find("nonsense").unwrap_err().to_string().contains("varmail"));
    WorkloadFile::load(&directory.path().join("absent.toml")).unwrap_err();
}
