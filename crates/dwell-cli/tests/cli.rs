// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command as a person meets it: exit status, one-line errors, tables and JSON.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use dwell::device::Device;
use dwell_host::profile::{
    Curve, CurvePoint, DeviceProfile, Polling, ProfileStore, SCHEMA, SpinMethod, States,
    SwitchCosts,
};
use serde_json::Value;

/// The command with places of its own below `dir`.
fn dwell(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwell"))
        .args(args)
        .env("DWELL_PROFILES", dir.join("profiles"))
        .env("DWELL_HOST_PAGE", dir.join("page"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line of a failure.
fn failure(dir: &Path, args: &[&str]) -> String {
    ended(dir, args, 1)
}

/// The line that says what is wrong with a command line; another may name the help.
fn refused(dir: &Path, args: &[&str]) -> String {
    ended(dir, args, 2)
}

fn ended(dir: &Path, args: &[&str], status: i32) -> String {
    let output = dwell(dir, args);
    let said = text(&output.stderr).split("\n\n").next().unwrap().trim_end();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    // A probe names its phases before it fails.
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("dwell: "), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    last.to_owned()
}

fn success(dir: &Path, args: &[&str]) -> String {
    let output = dwell(dir, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&success(dir, args)).unwrap()
}

/// A file of that many bytes, if the file system below has direct I/O.
fn probable(dir: &Path, bytes: usize) -> Option<String> {
    let path = dir.join("data");
    fs::write(&path, vec![7u8; bytes]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path) {
        Ok(_) => Some(path.to_str().unwrap().to_owned()),
        Err(error) => {
            println!("SKIP: no O_DIRECT in {}: {error}", dir.display());
            None
        }
    }
}

#[test]
fn what_is_no_storage_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let of = |path: &Path| path.to_str().unwrap().to_owned();
    for command in ["probe", "explain"] {
        for (path, says) in [
            (of(&missing), "no such file"),
            (of(dir.path()), "directory"),
            ("/dev/null".to_owned(), "character device"),
        ] {
            let line = failure(dir.path(), &[command, &path]);
            assert!(line.contains(&path) && line.contains(says), "{line}");
        }
    }
}

#[test]
fn a_small_file_is_refused_with_what_to_name_instead() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 4096) else { return };
    let line = failure(dir.path(), &["probe", &path]);
    assert!(line.contains("4096 bytes") && line.contains("1 MiB or more"), "{line}");
}

#[test]
fn a_wrong_command_line_is_status_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (vec!["explain", "x", "--size", "4x"], "no unit of size"),
        (vec!["explain", "x", "--size", "0"], "at least 1 byte"),
        (vec!["explain", "x", "--backlog", "1.5M"], "smaller unit"),
        (vec!["explain", "x", "--load", "1.2"], "no fraction"),
        (vec!["explain", "x", "--policy", "guess"], "smartcon"),
        (vec!["explain", "x", "--write", "--sync"], "cannot be used with"),
        (vec!["probe"], "PATH"),
        (vec!["probe", "x", "y", "--svg", "z"], "one PATH"),
        (vec!["frobnicate"], "unrecognized"),
    ] {
        let output = dwell(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn an_unprobed_file_passes_through_and_is_told_what_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 8192) else { return };
    let shown = success(dir.path(), &["explain", &path]);
    for part in ["not probed", "► decides: block", "unprobed:", "modes are tried", "· not asked"]
    {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let literal = success(dir.path(), &["explain", &path, "--policy", "smartcon"]);
    assert!(literal.contains("so its requests pass through"), "{literal}");
    assert!(shown.contains(&format!("dwell probe {path}")), "{shown}");
    assert!(!shown.contains('\x1b'), "colours in a pipe");
}

#[test]
fn doctor_speaks_of_everything_in_words_and_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let output = dwell(dir.path(), &["doctor"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("io-uring") && shown.contains("active"), "{shown}");
    let output = dwell(dir.path(), &["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The list names the requirements that this machine lacks; the exit status says whether it is
    // empty.
    let lacking = told["lacking"].as_array().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!lacking.is_empty())), "{lacking:?}");
    let capabilities = told["capabilities"].as_array().unwrap();
    assert!(capabilities.iter().any(|capability| capability["name"] == "io-uring"));
    for device in told["devices"].as_array().unwrap() {
        assert_eq!(device["why"], "unprobed", "{device}");
    }
    assert!(!told["summary"].as_str().unwrap().contains('\n'));
}

#[test]
fn an_empty_store_lists_nothing_and_knows_no_name() {
    let dir = tempfile::tempdir().unwrap();
    assert!(success(dir.path(), &["profile", "list"]).contains("no profiles"));
    assert_eq!(json(dir.path(), &["profile", "list", "--json"]), Value::Array(vec![]));
    for action in ["show", "rm"] {
        let line = failure(dir.path(), &["profile", action, "nothing"]);
        assert!(line.contains("no profile of that name") && line.contains("nothing"), "{line}");
    }
}

#[test]
fn a_probe_is_kept_listed_shown_explained_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 4 << 20) else { return };
    let before = fs::read(&path).unwrap();
    let svg = dir.path().join("curves.svg");
    let scratch = dir.path().join("scratch");
    let probed = json(
        dir.path(),
        &[
            "probe",
            &path,
            "--quick",
            "--json",
            "--svg",
            svg.to_str().unwrap(),
            "--scratch",
            scratch.to_str().unwrap(),
        ],
    );
    assert_eq!(fs::read(&path).unwrap(), before, "a probe wrote to what it probes");
    assert!(!scratch.exists(), "the scratch file was left behind");
    assert!(fs::read_to_string(&svg).unwrap().contains("<svg"));
    let profile = &probed[0]["profile"];
    let curves = profile["curves"].as_array().unwrap();
    for mode in ["inline", "inline-write"] {
        let curve = curves.iter().find(|curve| curve["mode"] == mode).unwrap();
        assert_eq!(curve["points"][0]["size_bytes"], 4096, "{mode}");
    }
    let saved = probed[0]["saved"].as_str().unwrap();
    assert!(Path::new(saved).is_file());

    let listed = json(dir.path(), &["profile", "list", "--json"]);
    assert_eq!(listed[0]["profile"], *profile);
    let name = listed[0]["name"].as_str().unwrap();
    assert!(success(dir.path(), &["profile", "list"]).contains(name));
    let class = profile["decision"]["class"].as_str().unwrap();
    let shown = success(dir.path(), &["profile", "show", name]);
    assert!(shown.contains(class) && shown.contains("Writes: median latency"), "{shown}");
    let explained = success(dir.path(), &["explain", &path, "--size", "64KiB", "--load", "30%"]);
    assert!(explained.contains(class) && explained.contains("others 30 %"), "{explained}");

    assert_eq!(json(dir.path(), &["profile", "rm", name, "--json"])[0], name);
    assert!(!Path::new(saved).exists());
}

#[test]
fn a_scratch_file_that_exists_is_refused_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 4 << 20) else { return };
    let line = failure(dir.path(), &["probe", &path, "--quick", "--scratch", &path]);
    assert!(line.contains("exists already"), "{line}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
}

#[test]
fn a_damaged_profile_is_named_with_its_field_wherever_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 4 << 20) else { return };
    let probed = json(dir.path(), &["probe", &path, "--quick", "--json"]);
    let saved = probed[0]["saved"].as_str().unwrap();
    let mut profile = probed[0]["profile"].clone();
    profile["decision"]["switch_ns"] = Value::from("many");
    fs::write(saved, serde_json::to_string(&profile).unwrap()).unwrap();

    let name = Path::new(saved).file_stem().unwrap().to_str().unwrap();
    for args in [vec!["explain", &path], vec!["profile", "show", name]] {
        let line = failure(dir.path(), &args);
        assert!(line.contains(saved) && line.contains("decision.switch_ns"), "{line}");
    }
    let listed = success(dir.path(), &["profile", "list"]);
    assert!(listed.contains("✗ unusable: "), "{listed}");
    let told = json(dir.path(), &["profile", "list", "--json"]);
    assert!(told[0]["error"].as_str().unwrap().contains("decision.switch_ns"));
    let doctor = dwell(dir.path(), &["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(text(&doctor.stderr).contains("decision.switch_ns"));
    assert!(text(&doctor.stdout).contains("decision.switch_ns"));
    success(dir.path(), &["profile", "rm", name]);
}

/// The profile of the device beneath `path`: fast in one state, mainstream in the other.
fn contested(path: &str) -> DeviceProfile {
    let device = Device::beneath(path.as_ref()).unwrap().whole().clone();
    let point = CurvePoint {
        size_bytes: 4096,
        median_ns: 42_000,
        mean_ns: 40_000,
        p10_ns: 5_000,
        p90_ns: 70_000,
        states: Some(States { best_ns: 5_100, worst_ns: 61_000 }),
        voluntary_switches_per_request: 1.0,
        cpu_ns_per_request: 5_000.0,
    };
    let states = Some(States { best_ns: 7_700, worst_ns: 27_000 });
    let spun = CurvePoint { states, ..point };
    DeviceProfile {
        schema: SCHEMA,
        device_id: device.id,
        kernel_name: device.kernel_name,
        model: None,
        size_bytes: device.size_bytes,
        kernel_release: dwell_host::capability::kernel_release().unwrap(),
        scheduler: device.scheduler,
        measured_unix_s: 1_772_323_199,
        dwell_version: "0.1.0".into(),
        decision: dwell::dwell_policy::Profile::default(),
        contested: true,
        curves: vec![
            Curve { mode: "inline".into(), points: vec![point] },
            Curve { mode: "interrupt-spin".into(), points: vec![spun] },
        ],
        queued: Vec::new(),
        switches: SwitchCosts::default(),
        sleeps: Vec::new(),
        polling: Polling::Unsupported { why: "a test".into() },
        spin_method: SpinMethod::default(),
        worker_ns_per_request: 0,
        worker_ps_per_byte: 0,
        notes: vec!["spinning saves 75 %".into()],
    }
}

#[test]
fn a_contested_device_is_called_so_wherever_its_class_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 8192) else { return };
    let profile = contested(&path);
    ProfileStore::new(dir.path().join("profiles")).save(&profile).unwrap();
    let name = json(dir.path(), &["profile", "list", "--json"])[0]["name"].clone();
    let name = name.as_str().unwrap();
    for args in [vec!["explain", &path], vec!["profile", "show", name], vec!["profile", "list"]] {
        let shown = success(dir.path(), &args);
        assert!(shown.contains("fast, contested"), "{args:?}: {shown}");
    }
    let explained = success(dir.path(), &["explain", &path, "--load", "0"]);
    assert!(explained.contains("smartcon takes it for fast"), "{explained}");
    let shown = success(dir.path(), &["profile", "show", name]);
    let states =
        "at best blocking takes 5.10 µs and spinning 7.70 µs, at worst 61.0 µs and 27.0 µs";
    assert!(shown.contains(states), "{shown}");
    let output = dwell(dir.path(), &["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut devices = told["devices"].as_array().unwrap().iter();
    let Some(device) = devices.find(|device| device["id"] == *profile.device_id) else { return };
    assert_eq!((&device["class"], &device["contested"]), (&"fast".into(), &true.into()));
    assert!(text(&dwell(dir.path(), &["doctor"]).stdout).contains("fast, contested"));
}

#[test]
fn a_store_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("profiles"), "a file in place of the directory").unwrap();
    let line = failure(dir.path(), &["profile", "list"]);
    assert!(line.contains("profiles: cannot list"), "{line}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dwell"))
        .arg("doctor")
        .env("DWELL_PROFILES", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn workloads_are_listed_printed_edited_and_played() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let listed = success(dir.path(), &["bench", "workload", "--list"]);
    assert!(listed.contains("varmail") && listed.contains("whole-random"), "{listed}");
    let printed = success(dir.path(), &["bench", "workload", "--print", "rand-read"]);
    let edited = printed.replace("268_435_456", "1_048_576");
    let (mine, report) = (dir.path().join("mine.toml"), dir.path().join("report"));
    // Buffered, so that it is played on any file system.
    fs::write(&mine, edited.replace("[parameters]", "direct = false\n\n[parameters]")).unwrap();
    let [mine, report, on] = [&mine, &report, dir.path()].map(|path| path.to_str().unwrap());
    let place = ["--hasty-probe", "--on", on, "--size", "16m", "--out", report];
    let plan = ["--set", "io_bytes=4096,8192", "--rounds", "2", "--batch-ms", "5", "--json"];
    let run = json(dir.path(), &[&["bench", "workload", mine], &place[..], &plan].concat());
    let rows = run["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3);
    for row in rows {
        assert_eq!(row["workload"], "rand-read");
        assert!(row["rounds"][1]["operations"]["read"].as_u64() > Some(0), "{row}");
    }
    assert!(Path::new(report).join("report.html").exists());
}

#[test]
fn wrong_workloads_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.toml");
    fs::write(&file, "name = \"w\"\nabout = 3\n").unwrap();
    let path = file.to_str().unwrap();
    for (args, says) in [
        (&["varmial"][..], "no workload"),
        (&["varmail", "--policies", "blcok"], "blcok"),
        (&["varmail", "--policies", "raw-cq-peek"], "pread"),
        (&["varmail", "--set", "x=1"], "no parameter x"),
    ] {
        let line = refused(dir.path(), &[&["bench", "workload"], args].concat());
        assert!(line.contains(says), "{line}");
    }
    for (name, says) in [(path, "w.toml: about"), ("/nonexistent/w.toml", "/nonexistent/w.toml")] {
        let line = failure(dir.path(), &["bench", "workload", name]);
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn a_bench_starts_its_loads_as_processes_of_this_program() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let fixed =
        ["--sizes", "4k", "--rounds", "1", "--batch-ms", "300", "--stressors", "1", "--json"];
    let bench = |more: &[&str]| {
        let subject =
            ["bench", "io", "--hasty-probe", "emu:latency=5us,size=2MiB", "--policies", "block"];
        let report = ["--out", report.to_str().unwrap()];
        dwell(dir.path(), &[&subject[..], &fixed, &report, more].concat())
    };
    let output = bench(&["--load", "cpu,io,bystander", "--scheduler", "none"]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("has no I/O scheduler"), "{said}");
    let output = bench(&["--load", "cpu,io,arithmetic,bystander"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("left out: emu:latency=5us,size=2MiB beside I/O programs"), "{said}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = run["rows"].as_array().unwrap();
    let of = |row: &Value, field: &str| row["rounds"][0][field].as_u64().unwrap();
    assert!(rows.iter().map(|row| &row["load"]).eq(["cpu", "arithmetic", "bystander"]));
    assert!(rows.iter().all(|row| of(row, "stressor_ns") > 0), "{rows:?}");
    assert!(of(&rows[2], "bystander_iterations") > 0 && of(&rows[0], "bystander_iterations") == 0);
    assert!(failure(dir.path(), &["crunch", "dance"]).contains("no job"));
}

const BATCH: &str = r#"
    name = "two"
    set = { llc_bytes = "64K", dram_percent = 60 }
    process = [
        { name = "sweep", loop = { order = "sweep", bytes = 200000, visits = 5000, stride_bytes = 128 } },
        { name = "draw", loop = { order = "draw", bytes = 200000, visits = 5000 } },
    ]
"#;

#[test]
fn colours_are_there_when_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let plain = success(dir.path(), &["lab", "sim", "model"]);
    assert!(!plain.contains('\x1b'), "{plain}");
    assert_eq!(success(dir.path(), &["lab", "sim", "model", "--color", "never"]), plain);
    let doctor = |args: &[&str]| {
        let output = dwell(dir.path(), args);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(doctor(&["--color=always", "doctor"]).contains('\x1b'));
    assert!(!doctor(&["doctor", "--color=auto"]).contains('\x1b'));
}

#[test]
fn a_batch_is_simulated_under_all_policies_and_its_reports_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, file) = (dir.path(), |name: &str| dir.path().join(name).to_str().unwrap().to_owned());
    fs::write(file("batch.toml"), BATCH).unwrap();
    let (batch, out) = (file("batch.toml"), file("out"));
    let shown = success(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--out", &out]);
    for policy in ["async", "sync", "sync_runahead", "sync_prefetch", "its"] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(policy)), "{shown}");
    }
    let kept = |name: &str| fs::read_to_string(dir.join("out").join(name)).unwrap();
    let study: Value = serde_json::from_str(&kept("result.json")).unwrap();
    assert_eq!(study["batches"][0]["reports"].as_array().unwrap().len(), 10);
    assert_eq!(kept("result.csv").lines().count(), 11);
    assert!(kept("report.html").contains("Figure 4a"));
    let told = json(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--json"]);
    assert_eq!(told["batches"], study["batches"]);
    // Each run is kept. The same command goes on with what is missing, and ends as it did.
    let runs = fs::read_dir(dir.join("out/runs")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(&runs).unwrap().count(), 10);
    fs::remove_file(runs.join("its-2.json")).unwrap();
    fs::write(runs.join("sync-1.json"), "cut off").unwrap();
    success(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--out", &out]);
    let again: Value = serde_json::from_str(&kept("result.json")).unwrap();
    assert_eq!(again["batches"], study["batches"]);
    assert_eq!(fs::read_dir(&runs).unwrap().count(), 10);
    let few = success(
        dir,
        &[
            "lab",
            "sim",
            "its",
            &batch,
            "--seeds",
            "1",
            "--policies",
            "sync,its",
            "--set",
            "switch_ns=1",
        ],
    );
    assert!(!few.contains("async"), "{few}");
}

#[test]
fn a_simulation_that_cannot_be_says_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let batch = dir.path().join("batch.toml").to_str().unwrap().to_owned();
    fs::write(&batch, BATCH).unwrap();
    let said = refused(dir.path(), &["lab", "sim", "its", &batch, "--set", "dram_ns=fast"]);
    assert!(said.contains("dram_ns=fast: must be"), "{said}");
    fs::write(&batch, BATCH.replace("sweep\", bytes", "swoop\", bytes")).unwrap();
    assert!(failure(dir.path(), &["lab", "sim", "its", &batch]).contains("not a batch"));
    let listed = success(dir.path(), &["lab", "sim", "its", "--params"]);
    assert!(listed.contains("switch_ns") && listed.contains("open"), "{listed}");
}

#[test]
fn the_model_answers_for_the_paper_and_for_any_device() {
    let dir = tempfile::tempdir().unwrap();
    let shown = success(dir.path(), &["lab", "sim", "model", "--device", "z-nand=3us"]);
    for said in ["1.206", "1.189", "DRAM 1067 MHz", "z-nand", "MRAM"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let own = dir.path().join("own.toml");
    fs::write(&own, success(dir.path(), &["lab", "sim", "model", "--print"])).unwrap();
    let own = own.to_str().unwrap();
    let set = ["lab", "sim", "model", "--calibration", own, "--set", "clock_ghz=3.7", "--json"];
    let json: Value = serde_json::from_str(&success(dir.path(), &set)).unwrap();
    assert_eq!(json["calibration"]["clock_ghz"], 3.7);
    assert!(json["devices"][0]["under_memory"]["percent"]["ratio"].as_f64().unwrap() > 1.0);
    let told = refused(dir.path(), &["lab", "sim", "model", "--set", "clock=1"]);
    assert!(told.contains("clock_ghz"), "{told}");
    assert!(refused(dir.path(), &["lab", "sim", "model", "--device", "x=soon"]).contains("3us"));
}

#[test]
fn a_trace_is_cut_looked_at_converted_and_refused_where_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..500)
        .map(|i| {
            format!(
                "I  {:x},4\n L {:x},8\n S {:x},4\n",
                0x1000 + 4 * (i % 50),
                0x8000 + 64 * i,
                0x9000
            )
        })
        .collect();
    fs::write(file("text"), lines).unwrap();
    let (text, trace, part) = (file("text"), file("a.dwt"), file("b.dwt"));
    success(dir.path(), &["lab", "trace", "import", &text, "-o", &trace]);
    let svg = file("a.svg");
    let shown = success(dir.path(), &["lab", "trace", "info", &trace, "--svg", &svg]);
    assert!(shown.contains("data pages") && shown.contains("reuse distances"), "{shown}");
    assert!(fs::read_to_string(svg).unwrap().contains("working set"));
    let info = success(dir.path(), &["lab", "trace", "info", &trace, "--json"]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["instructions"], &info["loads"]), (&500.into(), &500.into()));
    success(
        dir.path(),
        &["lab", "trace", "cut", &trace, "--skip", "100", "--limit", "200", "-o", &part],
    );
    let brief = success(dir.path(), &["lab", "trace", "info", &part, "--brief", "--json"]);
    let brief: Value = serde_json::from_str(&brief).unwrap();
    assert!((200..260).contains(&brief["instructions"].as_u64().unwrap()), "{brief}");
    assert!(
        failure(dir.path(), &["lab", "trace", "cut", &part, "-o", &part]).contains("onto itself")
    );
    let champsim = file("champsim");
    success(dir.path(), &["lab", "trace", "export", &trace, "-o", &champsim]);
    assert_eq!(fs::metadata(&champsim).unwrap().len(), 500 * 64);
    // Of nothing, nothing is written, and what is there stays.
    let none = file("none");
    let told =
        failure(dir.path(), &["lab", "trace", "export", &trace, "--thread", "99", "-o", &none]);
    assert!(told.contains("thread 99") && told.contains("a.dwt"), "{told}");
    failure(dir.path(), &["lab", "trace", "export", &trace, "--thread", "99", "-o", &champsim]);
    assert_eq!(fs::metadata(champsim).unwrap().len(), 500 * 64);
    let told = failure(dir.path(), &["lab", "trace", "cut", &trace, "--skip", "500", "-o", &none]);
    assert!(told.contains("500 instructions") && told.contains("a.dwt"), "{told}");
    assert!(!Path::new(&none).exists());
    let mut bytes = fs::read(&trace).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&trace, bytes).unwrap();
    let told = failure(dir.path(), &["lab", "trace", "info", &trace]);
    assert!(told.contains("damaged at byte") || told.contains("not a Dwell trace"), "{told}");
    assert!(failure(dir.path(), &["lab", "trace", "info", &text]).contains("byte 0"));
    let listed = success(dir.path(), &["lab", "trace", "workloads", "--list"]);
    assert!(listed.contains("graph500") && listed.contains("stands for"), "{listed}");
}

#[test]
fn a_trace_that_ends_early_is_simulated_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..400_000)
        .map(|i| {
            format!("I  {:x},4\n L {:x},8\n", 0x1000 + 4 * (i % 50), 0x8000 + 4096 * (i * 7 % 97))
        })
        .collect();
    fs::write(file("text"), lines).unwrap();
    success(dir.path(), &["lab", "trace", "import", &file("text"), "-o", &file("a.dwt")]);
    let bytes = fs::read(file("a.dwt")).unwrap();
    fs::write(file("a.dwt"), &bytes[..bytes.len() - 100]).unwrap();
    let batch = file("batch.toml");
    let process = "[[process]]\nname = \"p\"\ntrace = \"a.dwt\"\n";
    fs::write(&batch, format!("name = \"b\"\n{process}")).unwrap();
    let sim = ["lab", "sim", "its", &batch, "--seeds", "1", "--policies", "its"];
    let told = failure(dir.path(), &sim);
    assert!(told.contains("a.dwt") && told.contains("--partial"), "{told}");
    let shown = success(dir.path(), &[&sim[..], &["--partial"]].concat());
    assert!(shown.contains("its"), "{shown}");
}

#[test]
fn what_was_recorded_is_not_told_on_the_programs_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.dwt").to_str().unwrap().to_owned();
    let words =
        ["lab", "trace", "record", "-o", &out, "--limit", "1000000", "--", "echo", "its own"];
    let output = dwell(dir.path(), &words);
    let said = text(&output.stderr);
    if !output.status.success() && said.contains("make trace-tool") {
        return println!("SKIP: {said}");
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "its own\n");
    assert!(said.contains("t.dwt") && said.contains("instructions"), "{said}");
    let output = dwell(dir.path(), &["lab", "trace", "record", "--bogus", "echo"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn waits_are_simulated_under_every_policy_for_a_machine_that_is_not_here() {
    let dir = tempfile::tempdir().unwrap();
    let set = ["--set", "cores=32", "--set", "device.latency=3us", "--set", "duration_ms=50"];
    let shown = success(dir.path(), &[&["lab", "sim", "wait", "--size", "4k"][..], &set].concat());
    for policy in ["block", "spin", "hybrid", "smartcon", "predictive"] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(policy)), "{shown}");
    }
    let file = dir.path().join("mine.toml");
    fs::write(&file, success(dir.path(), &[&["lab", "sim", "wait", "--print"][..], &set].concat()))
        .unwrap();
    let file = file.to_str().unwrap();
    let json =
        success(dir.path(), &["lab", "sim", "wait", file, "--policies", "block,spin", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["scenario"]["cores"], 32);
    let speed = |at: usize| json["reports"][at][0]["requests"].as_u64().unwrap();
    assert!(speed(1) > 2 * speed(0), "{json}");
    for (args, says) in
        [(&["--set", "cores=none"][..], "whole number"), (&["--policies", "hope"], "smartcon")]
    {
        let told = refused(dir.path(), &[&["lab", "sim", "wait"], args].concat());
        assert!(told.contains(says), "{told}");
    }
    for (args, says) in
        [(&["/no/such.toml"][..], "/no/such.toml"), (&["--probed", "/dev/null"], "/dev/null")]
    {
        let told = failure(dir.path(), &[&["lab", "sim", "wait"], args].concat());
        assert!(told.contains(says), "{told}");
    }
}
