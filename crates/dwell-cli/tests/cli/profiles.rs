// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes, and the store that keeps their profiles.

use std::fs;
use std::path::Path;

use dwell::device::Device;
use dwell_host::profile::{
    Curve, CurvePoint, DeviceProfile, Polling, ProfileStore, SCHEMA, SpinMethod, States,
    SwitchCosts,
};
use serde_json::Value;

use super::{dwell, failure, json, probable, success, text};

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
        async_submission: Vec::new(),
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
