// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every experiment runs through, in little time, and leaves no case without value or reason. No
//! value is asserted: a benchmark is never a test.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use dwell::monitor::{Config, SystemMonitor};
use dwell_bench::loads::serve;
use dwell_bench::pairs::Sampling;
use dwell_bench::stand::Kind;
use dwell_figures::experiments::{self, Lab};
use dwell_figures::figure::{FigureResult, FigureRow, Verdict, catalogue};
use dwell_host::profile::SwitchCosts;

/// Batches of small synthetic programs under the names of the recorded ones.
fn batches() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, series: &str, processes: usize| {
        let mut text = format!("name = \"{name}\"\n{series}");
        text += "set = { llc_bytes = \"64K\", dram_percent = 60 }\n";
        for at in 0..processes {
            let order = ["sweep", "draw"][at % 2];
            text += &format!(
                "[[process]]\nname = \"p{at}\"\n\
                 loop = {{ order = \"{order}\", bytes = 200000, visits = 2000, stride_bytes = 512 }}\n"
            );
        }
        std::fs::write(directory.path().join(format!("{name}.toml")), text).unwrap();
    };
    for name in ["No", "1", "2", "3"] {
        put(&format!("{name}_Data_Intensive"), "", 3);
    }
    (2..=5).for_each(|count| put(&format!("Growth_{count}"), "series = \"growth\"\n", count));
    directory
}

/// Arguments that lead this test program to [`helper`].
const HIDDEN: [&str; 4] = ["--ignored", "--exact", "helper", "help-now"];

#[test]
#[ignore = "run by other tests as a child"]
fn helper() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "help-now") {
        serve(&arguments).unwrap();
    }
}

/// A directory with a stand-in for `dwell` and with scripts in place of real programs: one that
/// works, one that fails, one that is not installed.
fn stand_ins() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    put(
        "dwell",
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do [ \"$1\" = --stats ] && echo '{}' >\"$2\"; shift; done\n\
         shift\nexec \"$@\"\n",
    );
    put(
        "sqlite.sh",
        "#!/bin/sh\nset -e\ncase $1 in\nsetup) echo set >$2/state ;;\n\
         run) $WRAP cp $2/state $2/copy ;;\ncheck) cat $2/copy ;;\nesac\n",
    );
    put("redis.sh", "#!/bin/sh\n[ $1 != run ] || { echo broken >&2; exit 1; }\n");
    std::fs::create_dir(directory.path().join("oltp")).unwrap();
    put(
        "oltp/sqlite.sh",
        "#!/bin/sh\nset -e\ncase $1 in\nsetup) echo set >$2/state ;;\n\
         run) [ \"$CASE\" != 'wal normal' ] || { echo torn >&2; exit 1; }\n\
         $WRAP cp $2/state $2/copy; echo rate 7 ;;\n\
         check) cmp -s $2/state $2/copy ;;\nesac\n",
    );
    put(
        "oltp/pgbench.sh",
        "#!/bin/sh\n[ $1 != available ] || { echo not installed: it; exit 1; }\n",
    );
    put("fio.sh", "#!/bin/sh\n[ $1 != available ] || { echo not installed: fio; exit 1; }\n");
    directory
}

fn lab() -> Lab {
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let switches = SwitchCosts { self_ns: 5_000, ..SwitchCosts::default() };
    let directory = env!("CARGO_TARGET_TMPDIR").into();
    let mut lab = Lab::new(switches, monitor, HIDDEN.map(String::from).into(), directory, 0.0001);
    lab.device_bytes = 4 << 20;
    lab
}

/// Measures figures; each case must have a value or a reason, and its JSON must come back.
fn all_complete(lab: &mut Lab, ids: &[&str], check: impl Fn(&FigureResult)) {
    let saved = tempfile::tempdir().unwrap();
    for id in ids {
        let began = std::time::Instant::now();
        let mut share = 0.0;
        let mut steps = 0;
        let (result, svg) = experiments::measure(id, lab, &mut |what, done| {
            assert!(!what.is_empty() && (0.0..=1.0).contains(&done), "{id}: {what} {done}");
            assert!(done >= share - 1e-9, "{id} goes back from {share} to {done} at {what}");
            share = done;
            steps += 1;
        })
        .unwrap_or_else(|error| panic!("{error:#}"));
        assert!(steps > 0 && share == 1.0, "{id}");
        for row in &result.rows {
            let reason = row.note.as_deref();
            assert_ne!(reason, Some("not measured"), "{id}: {}", row.case);
            match row.measured {
                Some(value) => {
                    // One round has no interval.
                    let (low, high) = (row.low.unwrap_or(value), row.high.unwrap_or(value));
                    assert!(low <= value && value <= high, "{row:?}");
                }
                None => assert!(reason.is_some_and(|reason| !reason.is_empty()), "{row:?}"),
            }
        }
        assert!(result.machine.cpus > 0 && !result.machine.date.is_empty());
        result.save(saved.path(), svg.as_deref()).unwrap();
        assert_eq!(FigureResult::load(saved.path(), id).unwrap().as_ref(), Some(&result));
        let drawn = std::fs::read_to_string(saved.path().join(format!("{id}.svg"))).unwrap();
        assert!(drawn.starts_with("<svg") && !drawn.contains("NaN"), "{id}");
        check(&result);
        println!("{id}: {:.1} s", began.elapsed().as_secs_f64());
    }
}

#[test]
fn there_is_an_experiment_for_every_figure_and_for_no_other() {
    let mut ids = experiments::ids();
    ids.sort_unstable();
    assert!(catalogue().figures.keys().eq(ids.iter()));
    let error = experiments::measure("S99", &mut lab(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("S99") && error.contains("M1"), "{error}");
}

/// Figures whose rows are sampled until their intervals are narrow.
const SAMPLED: [&str; 11] = ["M1", "S8", "S16", "S18", "U1", "U2", "D1", "N1", "G1", "W1", "P1"];

/// What a figure says of rows that are sampled until their intervals are narrow.
fn sampled_rows_have_a_control(result: &FigureResult) {
    if !SAMPLED.contains(&result.id.as_str()) {
        return;
    }
    let saved = serde_json::to_value(result).unwrap();
    let table = result.markdown();
    let mut sampled = 0;
    for (row, saved) in result.rows.iter().zip(saved["rows"].as_array().unwrap()) {
        let Some(sampling) = &row.sampling else { continue };
        sampled += 1;
        assert!(sampling.blocks >= 1 && sampling.control.low <= sampling.control.high, "{row:?}");
        assert!(saved["sampling"]["control"]["median"].is_number(), "{saved}");
        let cells = |begins: &str| -> Vec<&str> {
            let line = table.lines().find(|line| line.starts_with(begins)).unwrap();
            line.split('|').map(str::trim).collect()
        };
        let (heads, cells) = (cells("| case |"), cells(&format!("| {} |", row.case)));
        let of = |head: &str| cells[heads.iter().position(|other| *other == head).unwrap()];
        assert!(of("control").contains(" blocks") && of("control").contains('['), "{cells:?}");
        if let Some(verdict) = row.verdict {
            assert!(of("verdict").starts_with(verdict.as_str()), "{cells:?}");
        }
        // However wide its interval: only what the baseline did to itself takes a verdict away.
        if let Some(doubt) = (Sampling { narrow: true, ..sampling.clone() }).doubt() {
            assert!(row.verdict.is_none_or(|verdict| verdict == Verdict::Inconclusive), "{row:?}");
            assert!(row.note.as_ref().is_some_and(|note| note.contains(&doubt)), "{row:?}");
        }
    }
    assert!(sampled > 0 || result.rows.iter().all(|row| row.measured.is_none()), "{}", result.id);
}

/// What U2 says of the stand-ins.
fn stand_ins_are_told_apart(result: &FigureResult) {
    for row in result.rows.iter().filter(|row| row.case.ends_with("tmpfs")) {
        let note = row.note.as_deref().unwrap_or_default();
        match row.case.split(',').next() {
            Some("sqlite") => {
                assert!(row.measured.is_some() && !note.contains("DIFFER"), "{row:?}")
            }
            Some("redis") => assert!(note.contains("FAILED") && note.contains("broken"), "{note}"),
            Some("fio") => assert_eq!(note, "not installed: fio"),
            Some("all") => {
                assert!(row.measured.is_some() && note.ends_with("geometric mean of 1"), "{row:?}")
            }
            _ => assert!(note.contains("No such file"), "{note}"),
        }
    }
}

/// What D4 says of the stand-ins, where directories can be served.
fn stand_ins_have_rates(result: &FigureResult) {
    let why = result.rows[0].note.as_deref().unwrap_or_default();
    if result.rows[0].measured.is_none() {
        println!("SKIP: {why}");
        return;
    }
    for row in &result.rows {
        let note = row.note.as_deref().unwrap_or_default();
        match row.case.split(',').next() {
            Some("pgbench") => assert_eq!(note, "not installed: it"),
            _ if row.case.contains("NORMAL") => {
                assert!(note.contains("FAILED") && note.contains("torn"), "{note}")
            }
            _ => assert_eq!((row.measured, note), (Some(1.0), "7 per second against 7"), "{row:?}"),
        }
    }
}

/// One test after the other: they share the machine's devices and CPUs.
static ALONE: Mutex<()> = Mutex::new(());

fn pages(id: &str) -> bool {
    id.starts_with('G')
}

#[test]
fn every_case_of_the_pager_is_measured_or_says_why_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ids = experiments::ids();
    ids.retain(|id| pages(id));
    assert_eq!(ids.len(), 7);
    all_complete(&mut lab(), &ids, sampled_rows_have_a_control);
    let mut without = lab();
    let why = "left out by a test";
    Kind::ALL.into_iter().for_each(|kind| without.leave_out(kind, why));
    let regions = dwell_bench::pager::regions();
    all_complete(&mut without, &ids, |result| {
        let note = |row: &FigureRow| row.note.clone().unwrap_or_default();
        let expected = regions.as_ref().err().map_or(why, String::as_str);
        assert!(result.rows.iter().all(|row| note(row) == expected), "{}", result.id);
    });
}

#[test]
fn every_case_is_measured_or_says_why_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (stand_ins, batches) = (stand_ins(), batches());
    let equipped = || {
        let mut lab = lab();
        lab.dwell = Some(stand_ins.path().join("dwell"));
        lab.programs = Some(stand_ins.path().into());
        lab.traces = Some(batches.path().into());
        lab
    };
    let mut with_devices = equipped();
    for kind in Kind::ALL {
        if let Err(why) = with_devices.subject(kind).unwrap() {
            println!("SKIP: {why}");
        }
    }
    // Many file systems are made and filled for these: once, on the loop device.
    let on_file_systems = ["A3", "S14", "S15"];
    let mut ids = experiments::ids();
    ids.retain(|id| !on_file_systems.contains(id) && !pages(id));
    all_complete(&mut with_devices, &ids, |result| {
        sampled_rows_have_a_control(result);
        if result.id == "U2" {
            stand_ins_are_told_apart(result);
        }
        if result.id == "D4" {
            stand_ins_have_rates(result);
        }
    });
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Loop) {
        with_devices.leave_out(kind, "seen on the loop device");
    }
    all_complete(&mut with_devices, &on_file_systems, |_| {});

    let mut without = equipped();
    let why = "left out by a test";
    for kind in Kind::ALL {
        without.leave_out(kind, why);
    }
    // Those that need no device have been seen.
    let virtual_time = |id: &str| {
        id.starts_with('I')
            || ["S9", "S10", "P2", "P3", "V1", "V2", "V3"].contains(&id)
            || id.starts_with('N')
    };
    ids.extend(on_file_systems);
    ids.retain(|id| !["S1", "S2", "S7", "A2"].contains(id) && !virtual_time(id));
    all_complete(&mut without, &ids, |result| {
        let left_out = result.rows.iter().filter(|row| row.note.as_deref() == Some(why)).count();
        // S6 also measures the monitor itself.
        // Calls on /dev/null need no device, nor do programs on tmpfs or those not installed.
        let expected = match result.id.as_str() {
            "S6" => 8,
            // Directories in memory and NFS servers need none.
            "M4" => 3,
            "T1" => 9,
            "D1" => 4 * usize::from(result.rows[0].note.is_none()),
            "D2" | "D3" | "D4" | "D5" | "D6" | "D7" | "D8" | "D9" | "V4" => left_out,
            // Nothing comes of all cells together then.
            "R1" | "V5" => result.rows.len() - 3,
            // Pipes need none.
            "U4" => 3,
            "U2" => 2 * 2 * 3,
            "U3" => 1,
            _ => result.rows.len(),
        };
        assert_eq!(left_out, expected, "{}", result.id);
    });
}

#[test]
fn a_figure_that_was_stopped_goes_on_with_the_rows_that_it_lacks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let results = tempfile::tempdir().unwrap();
    let emulated = || {
        let mut lab = lab();
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Emulated) {
            lab.leave_out(kind, "seen on the emulated device");
        }
        lab.results = Some(results.path().into());
        lab
    };
    let measure = |lab: &mut Lab| {
        let mut heard = Vec::new();
        experiments::measure("R0", lab, &mut |what, _| heard.push(what.to_owned()))
            .map(|(result, _)| (result, heard))
    };
    let mut stopped = emulated();
    let directory = results.path().to_owned();
    stopped.keep = Box::new(move |result| {
        result.save(&directory, None)?;
        anyhow::bail!("stopped")
    });
    let error = measure(&mut stopped).unwrap_err();
    assert!(format!("{error:#}").contains("stopped"), "{error:#}");
    let half = FigureResult::load(results.path(), "R0").unwrap().unwrap();
    let case = "emu:z-nand, free: block";
    assert!(!half.lacks(case) && half.lacks("emu:z-nand, free: spin"));

    let (result, heard) = measure(&mut emulated()).unwrap();
    assert!(!heard.iter().any(|what| what == case), "{heard:?}");
    assert!(heard.iter().any(|what| what == "emu:z-nand, free: smartcon"), "{heard:?}");
    assert!(result.is_complete() && result.seconds > half.seconds);
    let row = |of: &FigureResult| of.rows.iter().find(|row| row.case == case).cloned();
    assert_eq!(row(&result), row(&half));
    result.save(results.path(), None).unwrap();
    assert!(!experiments::is_due("R0", &emulated()).unwrap());
    assert!(experiments::is_due("M1", &emulated()).unwrap());
    let mut longer = emulated();
    longer.effort = 0.0002;
    assert!(experiments::is_due("R0", &longer).unwrap(), "another effort");

    // Only what is asked for is measured anew.
    let mut one = emulated();
    one.only = Some("spin".into());
    let (result, heard) = measure(&mut one).unwrap();
    assert!(heard.iter().any(|what| what == "emu:z-nand, free: spin"), "{heard:?}");
    assert!(!heard.iter().any(|what| what == case), "{heard:?}");
    assert!(result.is_complete());
    one.only = Some("4 KiB".into());
    assert!(one.asks_for("4 KiB: speed") && one.asks_for("idle, 4 KiB") && !one.asks_for("64 KiB"));
    let error = format!("{:#}", measure(&mut one).unwrap_err());
    assert!(error.contains("\"4 KiB\"") && error.contains("emu:z-nand, free: spin"), "{error}");
}

#[test]
fn without_dwell_run_or_scripts_the_figures_say_so() {
    let mut lab = lab();
    lab.leave_out(Kind::Loop, "left out by a test");
    let says = |lab: &mut Lab, id: &str| {
        let (result, _) = experiments::measure(id, lab, &mut |_, _| {}).unwrap();
        result.rows[0].note.clone().unwrap()
    };
    assert!(says(&mut lab, "U2").contains("tests/programs"));
    assert!(says(&mut lab, "D4").contains("tests/programs/oltp"));
    assert!(says(&mut lab, "U3").contains("no `dwell run`"));
    lab.dwell = Some("/bin/false".into());
    lab.programs = Some("/nonexistent".into());
    assert!(says(&mut lab, "U2").contains("dwell run does not run here"));
}
