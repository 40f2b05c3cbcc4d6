// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings as commands other than `dwell run` meet them, and the files that are installed with
//! them.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use common::{dwell_in, text};

/// The command with places and settings of its own below `dir`.
fn dwell(dir: &Path, args: &[&str]) -> Output {
    dwell_in(dir)
        .args(args)
        .env("DWELL_SYSTEM_CONFIG", dir.join("system.toml"))
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .output()
        .unwrap()
}

fn doctor(dir: &Path, args: &[&str]) -> String {
    let output = dwell(dir, &[&["doctor"], args].concat());
    // What it finds is shown all the same.
    let lacks = output.status.code() == Some(1) && text(&output.stderr).starts_with("dwell: ");
    assert!(output.status.success() || lacks, "{}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The line of a text that holds all these words.
fn has_line(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

#[test]
fn explain_follows_settings_unless_an_option_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let (system, file) = (dir.path().join("system.toml"), dir.path().join("file"));
    fs::write(&file, [7; 8192]).unwrap();
    let explain = |said: &str, options: &[&str]| {
        fs::write(&system, said).unwrap();
        dwell(dir.path(), &[&["explain", file.to_str().unwrap()], options].concat())
    };
    let shown = |said: &str, options: &[&str]| {
        let output = explain(said, options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    assert!(has_line(&shown("", &[]), &["policy", "adaptive", "goal balanced"]));
    let latency = shown("goal = \"latency\"\n", &[]);
    assert!(has_line(&latency, &["policy", "adaptive", "goal latency"]), "{latency}");
    let spin = "[[device]]\nmatch = \"*\"\npolicy = \"spin\"\n";
    assert!(has_line(&shown(spin, &[]), &["policy", "spin"]));
    assert!(has_line(&shown(spin, &["--policy", "block"]), &["policy", "block"]));
    let alone = shown("[[device]]\nmatch = \"*\"\nexclude = true\n", &[]);
    assert!(has_line(&alone, &["leave this device alone", "system.toml:3"]), "{alone}");
    assert!(!has_line(&alone, &["forgets"]));
    let part = shown("shadow = true\nsteer = \"5% of hosts\"\nspin_cap = \"20%\"\n", &[]);
    for words in [["shadow", "recorded"], ["part", "5% of hosts"], ["cap", "20 %"]] {
        assert!(has_line(&part, &words), "{part}");
    }
    // Nobody spins here. Other tests may keep the CPUs busy, and then nobody may.
    let fast = "cpu_threshold = 1.0\n[[device]]\nmatch = \"*\"\nclass = \"fast\"\n";
    let mut free = String::new();
    let mut has_room = || {
        free = shown(fast, &["--policy", "smartcon"]);
        has_line(&free, &["spinner limit", "has room"])
    };
    if !(0..10).any(|_| has_room()) {
        let percent = |of: &str| -> f64 {
            let said = free.split_once(of).and_then(|(_, said)| said.split_once(" %"));
            said.unwrap().0.parse().unwrap()
        };
        assert!(percent("others ") >= percent("threshold "), "{free}");
        println!("SKIP: other programs keep the CPUs busy");
    }
    let mut made = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let learned = made.find(|path| path.to_str().unwrap().contains("page-learned"));
    fs::write(learned.unwrap(), "something else").unwrap();
    assert!(has_line(&shown("", &[]), &["forgets", "page-learned"]));
    assert!(!has_line(&shown("", &[]), &["unshared"]));
    fs::write(dir.path().join("page"), "something else").unwrap();
    assert!(has_line(&shown("", &[]), &["unshared", "remove it"]));
    let wrong = explain("goal = \"speed\"\n", &[]);
    assert!(!wrong.status.success() && text(&wrong.stderr).contains("system.toml"));
}

#[test]
fn doctor_shows_each_value_and_where_it_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let (system, given) = (dir.path().join("system.toml"), dir.path().join("given.toml"));
    fs::write(&system, "policy = \"block\"\ncpu_threshold = 0.5\n").unwrap();
    let said = "policy = \"hybrid\"\n[[device]]\nmatch = \"*\"\nclass = \"mainstream\"\n\
                size_threshold = \"16k\"\nexclude = true\n[exclude]\npaths = [\"/var/log/**\"]\n";
    fs::write(&given, said).unwrap();
    let (system, given) = (system.to_str().unwrap(), given.to_str().unwrap());
    let shown = doctor(dir.path(), &["--config", given]);
    for words in [
        &["policy", "hybrid", &format!("{given}:1")][..],
        &["cpu_threshold", "50 %", &format!("{system}:2")],
        &["goal", "balanced", "default"],
        &["exclude.paths", "/var/log/**", &format!("{given}:8")],
        &["system", system, "read"],
        &["user", "config/dwell/dwell.toml", "not there"],
        &["--config", given, "read"],
    ] {
        assert!(has_line(&shown, words), "{words:?}\n{shown}");
    }
    let told: Value =
        serde_json::from_str(&doctor(dir.path(), &["--config", given, "--json"])).unwrap();
    let settings = &told["settings"];
    assert_eq!(settings["general"]["policy"]["value"], "hybrid");
    assert_eq!(settings["general"]["policy"]["origin"]["file"]["line"], 1);
    assert_eq!(settings["general"]["shadow"]["origin"], "default");
    assert_eq!(settings["files"][1]["state"], "missing");
    let devices = settings["devices"].as_array().unwrap();
    assert_eq!(devices.len(), told["devices"].as_array().unwrap().len());
    for device in devices {
        let name = device["name"].as_str().unwrap();
        assert_eq!(device["effective"]["class"]["value"], "mainstream");
        let from = format!("{given}:5");
        assert!(
            has_line(&shown, &[&format!("{name}: size_threshold"), "16 KiB", &from]),
            "{shown}"
        );
        assert!(has_line(&shown, &[&format!("{name}: exclude"), "true"]), "{shown}");
    }
}

#[test]
fn a_device_without_a_profile_is_said_to_be_found_out_about() {
    let dir = tempfile::tempdir().unwrap();
    let shown = doctor(dir.path(), &[]);
    if !has_line(&shown, &["io-uring", "rings can be set up"]) || !shown.contains("not probed") {
        println!("SKIP: no rings, or no device");
        return;
    }
    assert!(shown.contains("adaptive begins with: inline, not probed"), "{shown}");
    assert!(!shown.contains("no ring to spin on"), "{shown}");
}

#[test]
fn a_malformed_file_does_not_hide_the_rest_of_doctor() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("config/dwell")).unwrap();
    let user = dir.path().join("config/dwell/dwell.toml");
    fs::write(&user, "goal = \"latency\"\npolicy = \"fastest\"\n").unwrap();
    fs::write(dir.path().join("system.toml"), "shadow = true\n").unwrap();
    let ended = dwell(dir.path(), &["doctor"]);
    assert!(ended.status.code() == Some(1) && text(&ended.stderr).contains("fastest"));
    let shown = doctor(dir.path(), &["--config", "/nonexistent.toml"]);
    let at = format!("{}:2: policy: \"fastest\" is no policy", user.display());
    assert!(has_line(&shown, &["✗", &at]), "{shown}");
    assert!(has_line(&shown, &["✗", "/nonexistent.toml", "no such file"]), "{shown}");
    // Nothing of that file holds, what the others say does, and the rest of doctor is there.
    assert!(has_line(&shown, &["goal", "balanced", "default"]), "{shown}");
    assert!(has_line(&shown, &["shadow", "true", "system.toml:1"]), "{shown}");
    assert!(shown.contains("profiles ") && shown.contains("active "), "{shown}");
    let told: Value = serde_json::from_str(&doctor(dir.path(), &["--json"])).unwrap();
    let file = &told["settings"]["files"][1];
    assert_eq!(file["state"], "unusable");
    assert_eq!((&file["at"]["line"], &file["at"]["key"]), (&2.into(), &"policy".into()));
}

#[test]
fn a_device_that_is_added_is_probed_only_where_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    // A path that no probe could take: only one that starts says so.
    let probe = || dwell(dir.path(), &["probe", "--on-add", "/dev/null"]);
    let silent = |output: &Output| {
        output.status.success() && output.stdout.is_empty() && output.stderr.is_empty()
    };
    assert!(silent(&probe()));
    fs::write(dir.path().join("system.toml"), "[probe]\non_add = true\n").unwrap();
    let refused = probe();
    assert!(text(&refused.stderr).contains("character device"), "{}", text(&refused.stderr));
    let told: Value = serde_json::from_str(&doctor(dir.path(), &["--json"])).unwrap();
    if let Some(device) = told["devices"].as_array().unwrap().first() {
        let disk = format!("/dev/{}", device["name"].as_str().unwrap());
        let said = "[probe]\non_add = true\n[[device]]\nmatch = \"*\"\nexclude = true\n";
        fs::write(dir.path().join("system.toml"), said).unwrap();
        let excluded = dwell(dir.path(), &["probe", "--on-add", &disk]);
        assert!(silent(&excluded) || !Path::new(&disk).exists(), "{}", text(&excluded.stderr));
    }
    fs::write(dir.path().join("system.toml"), "[probe]\non_plug = true\n").unwrap();
    let malformed = probe();
    assert_eq!(malformed.status.code(), Some(1));
    assert!(text(&malformed.stderr).contains("system.toml:2: probe.on_plug: "));
}

fn packaged(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    fs::read_to_string(path).unwrap()
}

#[test]
fn units_are_what_systemd_understands() {
    let dir = tempfile::tempdir().unwrap();
    let here = |text: String| text.replace("/usr/bin/dwell", env!("CARGO_BIN_EXE_dwell"));
    let probe = dir.path().join("dwell-probe@sdx.service");
    fs::write(&probe, here(packaged("systemd/dwell-probe@.service"))).unwrap();
    let service = dir.path().join("tried.service");
    fs::write(&service, "[Service]\nExecStart=/bin/true\n").unwrap();
    let drop_ins = dir.path().join("tried.service.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::write(drop_ins.join("dwell.conf"), here(packaged("systemd/dwell.conf"))).unwrap();
    let units = [&probe, &service];
    let verified =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output();
    match verified {
        Ok(output) => {
            let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
            // Units of the machine itself may be at fault; ours may not.
            let ours = |line: &&str| line.contains("tried") || line.contains("dwell-probe");
            let found: Vec<&str> = said.lines().filter(ours).collect();
            assert!(found.is_empty(), "{found:?}");
        }
        Err(error) => println!("SKIP: systemd-analyze: {error}"),
    }
}

#[test]
fn the_rule_is_what_udev_understands() {
    let dir = tempfile::tempdir().unwrap();
    let rule = dir.path().join("90-dwell.rules");
    fs::write(&rule, packaged("udev/90-dwell.rules")).unwrap();
    let verified = Command::new("udevadm").arg("verify").arg(&rule).output();
    match verified {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = text(&output.stderr);
            // systemd before 254 has no such command.
            assert!(said.contains("verify") && !said.contains("90-dwell"), "{said}");
            println!("SKIP: {said}");
        }
        Err(error) => println!("SKIP: udevadm: {error}"),
    }
}
