// SPDX-License-Identifier: MIT OR Apache-2.0
//! Watching and steering processes under Dwell: `dwell top`, `dwell ctl` and the metrics.

mod common;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use dwell::dwell_policy::Load;
use dwell::stats::Row;
use dwell::{Mode, Reason, Route, Stats};
use dwell_host::stats_page::{Device, Header, LearnerState, Passed, Snapshot, StatsPage};
use serde_json::Value;

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = common::dwell();
    command.args(args).env("XDG_RUNTIME_DIR", dir);
    command
}

fn dwell(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn success(dir: &Path, args: &[&str]) -> String {
    let output = dwell(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn failure(dir: &Path, args: &[&str]) -> String {
    let output = dwell(dir, args);
    let said = String::from_utf8(output.stderr).unwrap();
    // What no process could be told is wrong in itself, and the help is named.
    let wrong = said.contains("--help");
    assert_eq!(output.status.code(), Some(1 + i32::from(wrong)), "{args:?}: {said}");
    assert!(said.starts_with("dwell: ") && (wrong || said.lines().count() == 1), "{said}");
    said
}

fn stats_page(dir: &Path, run: u64) -> StatsPage {
    let command = "fio \"a\\b\" \u{1b}[31m\n--name=x".to_owned();
    StatsPage::create(&dir.join("dwell"), &Header { run, command, ..Header::default() }).unwrap()
}

/// What a process could tell after so many requests.
fn told(published_ns: u64, requests: u64) -> Snapshot {
    let mut stats = Stats::default();
    stats.rows = vec![
        Row::new(Route::Interrupt, Mode::Spin, Reason::Pays, requests),
        Row::new(Route::Inline, Mode::Block, Reason::Measured, requests / 64),
    ];
    (stats.bytes_read, stats.spun_ns) = (requests * 4096, requests * 9_000);
    (0..requests).for_each(|at| stats.latency.spun.note(9_000 + at));
    let learner = LearnerState { learns: true, kinds: 3, spins: 1, switches: 2, trials: 9 };
    let (name, class, policy) = ("loop0".into(), "fast".into(), "smartcon".into());
    Snapshot {
        published_ns,
        processes: 1,
        devices: vec![Device { name, class, policy, learner, stats, ..Device::default() }],
        passed: Passed { calls: 3, bytes: 12_288 },
        load: Some(Load::new(0.25, 0.5, 0.5).into()),
        ..Snapshot::default()
    }
}

#[test]
fn a_process_is_seen_with_what_it_does() {
    let dir = tempfile::tempdir().unwrap();
    assert!(success(dir.path(), &["top"]).contains("no process of this user is under Dwell"));
    let stats_page = stats_page(dir.path(), 7);
    stats_page.publish(&told(1_000_000_000, 100)).unwrap();
    let top = command(dir.path(), &["top", "--json", "--interval", "4"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    stats_page.publish(&told(3_000_000_000, 300)).unwrap();
    let output = top.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = &json["processes"][0];
    assert_eq!(seen["pid"], std::process::id());
    assert_eq!(seen["header"]["run"], "0000000000000007");
    assert_eq!(seen["passed"]["bytes"], 12_288);
    let device = &seen["devices"][0];
    assert_eq!((&device["name"], &device["policy"]), (&"loop0".into(), &"smartcon".into()));
    assert_eq!(device["stats"]["rows"][1]["reason"], "pays");
    assert_eq!(device["stats"]["latency"]["spun"]["count"], 300);
    // The first look may have come late, and found nothing new at the second.
    let rates = &seen["rates"][0];
    let rate = rates["requests_per_second"].as_f64().unwrap();
    assert!((rate - 101.5).abs() < 1e-6 || rate == 0.0, "{rates}");
    assert_eq!(json["unreadable"], Value::Array(Vec::new()));

    let table = success(dir.path(), &["top", "--interval", "0.1"]);
    for shown in ["loop0", "fast", "smartcon", "25 % / 50 %", "spins for 1 of 3 sizes", "fio"] {
        assert!(table.contains(shown), "{shown}: {table}");
    }
    assert!(!table.contains('\x1b'), "{table:?}");
    drop(stats_page);
    assert_eq!(fs::read_dir(dir.path().join("dwell")).unwrap().count(), 0);
}

#[test]
fn an_order_changes_what_the_process_hears() {
    let dir = tempfile::tempdir().unwrap();
    let stats_page = stats_page(dir.path(), 7);
    let pid = std::process::id().to_string();
    let said = success(dir.path(), &["ctl", &pid, "policy=block"]);
    assert_eq!(said, format!("process {pid}  policy block\n"));
    let control = stats_page.control();
    assert_eq!((control.generation, control.policy.as_deref()), (1, Some("block")));
    let json = success(dir.path(), &["ctl", &pid, "off", "--json", "--run"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["control"]["off"], stats_page.reader().is_off()), (&true.into(), true));
    assert!(success(dir.path(), &["top", "--once", "--interval", "0.1"]).contains("off"));
    success(dir.path(), &["ctl", &pid, "on"]);
    assert!(!stats_page.reader().is_off() && stats_page.generation() == 3);
}

#[test]
fn a_wrong_order_or_process_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let stats_page = stats_page(dir.path(), 7);
    let pid = std::process::id().to_string();
    for (args, says) in [
        ([&pid[..], "policy=fast"], "fast: no such policy; there are adaptive, block"),
        ([&pid[..], "faster"], "faster: no such order; there are policy=NAME, off and on"),
        (["1073741824", "off"], "process 1073741824: no such process"),
        ([&std::os::unix::process::parent_id().to_string()[..], "off"], "not under Dwell"),
    ] {
        let said = failure(dir.path(), &["ctl", args[0], args[1]]);
        assert!(said.contains(says), "{said}");
    }
    assert_eq!(stats_page.generation(), 0);

    // A process that has ended, and whose stats page nobody has cleared yet.
    let mut ended = Command::new("sleep").arg("60").spawn().unwrap();
    let ticks = dwell_host::stats_page::start_ticks(ended.id()).unwrap();
    let file = dir.path().join(format!("dwell/{}-{ticks}", ended.id()));
    fs::copy(stats_page.path(), &file).unwrap();
    ended.kill().unwrap();
    ended.wait().unwrap();
    let said = failure(dir.path(), &["ctl", &ended.id().to_string(), "off"]);
    assert!(said.contains("has ended"), "{said}");
    assert!(success(dir.path(), &["top", "--json", "--interval", "0.1"]).contains(&pid));
    assert!(!file.exists());

    if dwell_host::capability::effective_uid() != 0 {
        let said = failure(dir.path(), &["ctl", "1", "off"]);
        assert!(said.contains("belongs to user 0"), "{said}");
    } else {
        use std::os::unix::process::CommandExt as _;
        let mut other = Command::new("sleep").arg("60").uid(65534).spawn().unwrap();
        let said = failure(dir.path(), &["ctl", &other.id().to_string(), "off"]);
        assert!(said.contains("belongs to user 65534"), "{said}");
        other.kill().unwrap();
        other.wait().unwrap();
    }
    for args in [&["top", "--interval", "0"][..], &["ctl", "me", "off"], &["ctl", "1"]] {
        assert_eq!(dwell(dir.path(), args).status.code(), Some(2), "{args:?}");
    }
    let said = failure(dir.path(), &["top", "--once", "--openmetrics", "/no/such/file.prom"]);
    assert!(said.contains("/no/such/file.prom"), "{said}");
}

/// What a scraper would make of the text; panics where it is no OpenMetrics.
fn parsed(text: &str) -> HashMap<String, f64> {
    let body = text.strip_suffix("# EOF\n").expect("ends with # EOF");
    let (mut samples, mut families) = (HashMap::new(), HashSet::new());
    let (mut family, mut kind, mut last_bucket) = (String::new(), String::new(), 0.0);
    for line in body.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let (what, rest) = meta.split_once(' ').unwrap();
            let (name, value) = rest.split_once(' ').unwrap();
            if name != family {
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                family = name.to_owned();
            }
            match what {
                "HELP" => {}
                "TYPE" => kind = value.to_owned(),
                "UNIT" => assert!(name.ends_with(&format!("_{value}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let (metric, labels) = name.split_once('{').unwrap();
        let labels = labels.strip_suffix('}').unwrap();
        let suffix = metric.strip_prefix(&family).unwrap_or_else(|| panic!("{line} in {family}"));
        match (kind.as_str(), suffix) {
            ("counter", "_total") | ("gauge", "") => {}
            ("histogram", "_sum" | "_count") => last_bucket = 0.0,
            ("histogram", "_bucket") => {
                assert!(value >= last_bucket && labels.contains("le=\""), "{line}");
                last_bucket = value;
            }
            other => panic!("{line}: {other:?}"),
        }
        // Quotes, backslashes and line ends in values are escaped.
        let bare = labels.replace("\\\\", "").replace("\\\"", "");
        assert!(bare.matches('"').count() % 2 == 0, "{line}");
        assert!(samples.insert(name.to_owned(), value).is_none(), "{line} comes twice");
    }
    samples
}

fn value(samples: &HashMap<String, f64>, metric: &str, labels: &[&str]) -> f64 {
    let fits = |name: &&String| {
        name.split('{').next() == Some(metric) && labels.iter().all(|label| name.contains(label))
    };
    let mut found = samples.keys().filter(fits);
    let name = found.next().unwrap_or_else(|| panic!("no {metric} {labels:?}"));
    assert!(found.next().is_none(), "{metric} {labels:?} is not alone");
    samples[name]
}

fn check(text: &str) {
    let samples = parsed(text);
    let of = |metric: &str, labels: &[&str]| value(&samples, metric, labels);
    assert_eq!(of("dwell_requests_total", &["reason=\"pays\"", "device=\"loop0\""]), 300.0);
    assert_eq!(of("dwell_requests_total", &["reason=\"measured\"", "route=\"inline\""]), 4.0);
    assert_eq!(of("dwell_switches_avoided_total", &["policy=\"smartcon\""]), 300.0);
    assert_eq!(of("dwell_transferred_bytes_total", &["direction=\"read\""]), 300.0 * 4096.0);
    assert_eq!(of("dwell_waited_seconds_total", &["mode=\"spun\""]), 0.0027);
    assert_eq!(of("dwell_latency_seconds_count", &["family=\"spun\""]), 300.0);
    assert_eq!(of("dwell_latency_seconds_bucket", &["le=\"+Inf\""]), 300.0);
    assert!(of("dwell_latency_seconds_sum", &["family=\"spun\""]) > 0.0026);
    assert_eq!(of("dwell_learned_spins", &[]), 1.0);
    assert_eq!(of("dwell_passed_bytes_total", &[]), 12_288.0);
    assert!((of("dwell_cpu_others_ratio", &["pid="]) - 0.25).abs() < 0.001);
    assert!(samples.keys().any(|name| name.contains("command=\"fio \\\"a\\\\b\\\"")), "{text}");
}

#[test]
fn metrics_are_written_to_a_file_that_a_collector_understands() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dwell.prom");
    let args = ["top", "--once", "--openmetrics", file.to_str().unwrap()];
    success(dir.path(), &args);
    assert!(parsed(&fs::read_to_string(&file).unwrap()).is_empty());
    let stats_page = stats_page(dir.path(), 7);
    stats_page.publish(&told(1, 300)).unwrap();
    success(dir.path(), &args);
    check(&fs::read_to_string(&file).unwrap());
}

/// A program that is killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(stream: &mut (impl std::io::Read + std::io::Write), path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_until_a_signal_comes() {
    let dir = tempfile::tempdir().unwrap();
    let stats_page = stats_page(dir.path(), 7);
    stats_page.publish(&told(1, 300)).unwrap();
    let socket = dir.path().join("socket");
    for place in ["127.0.0.1:0".to_owned(), format!("unix:{}", socket.display())] {
        let child = command(dir.path(), &["top", "--listen", &place])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running(child);
        let mut said = BufReader::new(running.0.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let answer = match line.trim().strip_prefix("http://") {
            Some(url) => {
                let address = url.strip_suffix("/metrics").unwrap();
                get(&mut TcpStream::connect(address).unwrap(), "/metrics")
            }
            None => get(&mut UnixStream::connect(&socket).unwrap(), "/metrics"),
        };
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("200 OK") && head.contains("application/openmetrics-text"));
        check(body);
        Command::new("kill").arg(running.0.id().to_string()).status().unwrap();
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
    assert!(!socket.exists());
}

#[test]
fn one_switch_is_off_for_all_until_on_and_top_doctor_and_run_say_who_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page");
    let machine = dir.path().join("machine-off");
    let own = dir.path().join("page-off");
    let dwell = |args: &[&str]| {
        let mut command = command(dir.path(), args);
        command.env("DWELL_HOST_PAGE", &page).env("DWELL_OFF", &machine).env("SUDO_USER", "ada");
        let output = command.output().unwrap();
        let both = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.success(), both.concat())
    };
    let (done, said) = dwell(&["off", "--because", "alarm 7"]);
    assert!(done && said.contains("(ada: alarm 7)"), "{said}");
    // What root turns off is off for the machine, what anybody else does for that one's processes.
    assert!(machine.exists() != own.exists() && said.contains("since 20"), "{said}");
    for args in [&["top", "--once"][..], &["doctor"], &["run", "true"], &["off"]] {
        let (done, said) = dwell(args);
        assert!(done && said.contains("alarm 7"), "{args:?}: {said}");
    }
    // Before anything that holds only while it is on.
    assert!(dwell(&["doctor"]).1.starts_with("! Dwell works here, but is off "), "doctor");
    let file = dir.path().join("data");
    fs::write(&file, [7; 4096]).unwrap();
    let (done, said) = dwell(&["explain", file.to_str().unwrap()]);
    assert!(!done || said.starts_with("! off     Dwell is off "), "{said}");
    let (_, said) = dwell(&["top", "--json"]);
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(told["off"]["note"], "ada: alarm 7");
    let (done, said) = dwell(&["bench", "io", "--out", "none"]);
    assert!(!done && said.contains("a bench needs Dwell on"), "{said}");
    let (done, said) = dwell(&["on"]);
    assert!(done && said == "Dwell is on\n" && !machine.exists() && !own.exists(), "{said}");
    assert!(!dwell(&["top", "--once"]).1.contains("alarm"));
}

#[test]
fn a_device_that_turned_itself_off_is_told_by_top_metrics_and_explain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, [7; 4096]).unwrap();
    let name = match dwell::device::Device::beneath(&path) {
        Ok(device) => device.kernel_name,
        Err(why) => return println!("SKIP: no device beneath {}: {why}", path.display()),
    };
    let stats_page = stats_page(dir.path(), 1);
    let mut told = told(1, 10);
    (told.devices[0].name, told.devices[0].regressed_percent) = (name, 12);
    stats_page.publish(&told).unwrap();
    let top = success(dir.path(), &["top", "--once", "--interval", "0.1"]);
    assert!(top.contains("12 % longer"), "{top}");
    let file = dir.path().join("metrics");
    success(dir.path(), &["top", "--once", "--openmetrics", file.to_str().unwrap()]);
    let metrics = fs::read_to_string(&file).unwrap();
    let line = metrics.lines().find(|line| line.starts_with("dwell_regressed_percent{")).unwrap();
    assert!(line.ends_with(" 12.0"), "{line}");
    let mut explain = command(dir.path(), &["explain", path.to_str().unwrap()]);
    let places = [("DWELL_PROFILES", "profiles"), ("DWELL_HOST_PAGE", "page")];
    explain.envs(places.map(|(name, place)| (name, dir.path().join(place))));
    let output = explain.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    assert!(said.contains("12 % longer") && said.contains("turned itself off"), "{said}");
}

#[test]
fn waits_of_the_whole_machine_are_shown_told_and_exported() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = dwell(dir.path(), &["top", "--waits", "--once", "--interval", "0.1"]);
    if !output.status.success() {
        println!("SKIP: {}", String::from_utf8_lossy(&output.stderr).trim());
        return;
    }
    // Somebody syncs all the time.
    let data = dir.path().join("data");
    let loops =
        format!("while :; do dd if=/dev/zero of={} bs=4k count=9 conv=fsync; done", data.display());
    let mut sync = Command::new("sh");
    sync.args(["-c", &loops]).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let _syncs = Group(sync.spawn().unwrap());
    let told = success(dir.path(), &["top", "--waits", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let syncs = |of: &&serde_json::Value| of["program"] == "dd" && of["total"]["issued"] == "sync";
    if !told["waits"].as_array().unwrap().iter().any(|of| syncs(&of)) {
        println!("SKIP: a sync below {} waits for no device", dir.path().display());
        return;
    }
    assert!(success(dir.path(), &["top", "--waits", "--once"]).contains("waking"));
    let file = dir.path().join("dwell.prom");
    success(dir.path(), &["top", "--waits", "--once", "--openmetrics", file.to_str().unwrap()]);
    let samples = parsed(&fs::read_to_string(&file).unwrap());
    let of_dd = |name: &str| {
        samples.keys().any(|key| key.starts_with(name) && key.contains("command=\"dd\""))
    };
    assert!(of_dd("dwell_storage_waits_total{") && of_dd("dwell_storage_waited_seconds_total{"));
}

/// A shell and what it started, killed with the test.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}
