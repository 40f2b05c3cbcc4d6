// SPDX-License-Identifier: MIT OR Apache-2.0
//! Profiles kept, lost, damaged and found again.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use dwell::device::Device;

fn device(dir: &Path) -> Device {
    let file = dir.join("data");
    fs::write(&file, b"x").unwrap();
    let mut device = Device::beneath(&file).unwrap().whole().clone();
    device.id = "nvme:Fast_Drive:S1:n1".into();
    device
}

fn profile() -> DeviceProfile {
    let point = |size_bytes| CurvePoint {
        size_bytes,
        median_ns: 9_000,
        mean_ns: 9_100,
        p10_ns: 8_000,
        p90_ns: 12_000,
        states: None,
        voluntary_switches_per_request: 0.999,
        cpu_ns_per_request: 2_500.5,
    };
    let states = Some(States { best_ns: 4_900, worst_ns: 42_000 });
    let blocked = |size_bytes| CurvePoint { states, ..point(size_bytes) };
    DeviceProfile {
        schema: SCHEMA,
        device_id: "nvme:Fast_Drive:S1:n1".into(),
        kernel_name: "nvme0n1".into(),
        model: Some("Fast Drive".into()),
        size_bytes: 1 << 40,
        kernel_release: "6.18.44".into(),
        scheduler: "none".into(),
        measured_unix_s: 1_772_323_199,
        dwell_version: "0.1.0".into(),
        decision: dwell_policy::Profile::default(),
        contested: true,
        curves: vec![
            Curve { mode: "interrupt-block".into(), points: vec![blocked(4096), blocked(8192)] },
            Curve { mode: "interrupt-spin".into(), points: vec![point(4096)] },
        ],
        async_submission: vec![AsyncPoint {
            size_bytes: 4096,
            depth: 8,
            block: AsyncCost {
                ns_per_request: 12_000,
                cpu_ns_per_request: 6_000.5,
                voluntary_switches_per_request: 0.7,
            },
            spin: AsyncCost {
                ns_per_request: 6_000,
                cpu_ns_per_request: 6_000.5,
                voluntary_switches_per_request: 0.0,
            },
        }],
        switches: SwitchCosts {
            self_ns: 5_000,
            direct: vec![
                DirectSwitch { processes: 2, ns: 1_500 },
                DirectSwitch { processes: 8, ns: 1_700 },
            ],
            indirect: vec![IndirectSwitch { working_set_bytes: 1 << 20, ns: 30_000 }],
        },
        sleeps: vec![SleepOvershoot { asked_ns: 1_000, overshoot_ns: 13_500 }],
        polling: Polling::Fake { interrupts_per_request: 1.0 },
        spin_method: SpinMethod::GetEvents,
        worker_ns_per_request: 4_000,
        worker_ps_per_byte: 120,
        notes: vec!["quiet machine".into()],
    }
}

/// A store that holds one profile, with its JSON changed by `change`.
fn store_with(dir: &Path, change: impl FnOnce(&mut Value)) -> ProfileStore {
    let store = ProfileStore::new(dir.join("profiles"));
    let path = store.save(&profile()).unwrap();
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    fs::write(&path, serde_json::to_string_pretty(&json).unwrap()).unwrap();
    store
}

fn load(store: &ProfileStore, dir: &Path) -> Result<Option<DeviceProfile>, ProfileError> {
    store.load(&device(dir), "6.18.44", "none")
}

/// What a person reads when the profile was changed so.
fn complaint(change: impl FnOnce(&mut Value)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), change);
    let said = load(&store, dir.path()).unwrap_err().to_string();
    assert!(said.contains("nvme:Fast_Drive:S1:n1@6.18.44@none.json"), "{said}");
    assert!(said.contains("dwell p") && !said.contains('\n'), "{said}");
    said
}

#[test]
fn a_saved_profile_comes_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(dir.path().join("not/yet/there"));
    assert_eq!(load(&store, dir.path()).unwrap(), None);
    store.save(&profile()).unwrap();
    store.save(&profile()).unwrap();
    assert_eq!(load(&store, dir.path()).unwrap(), Some(profile()));
    assert_eq!(fs::read_dir(&store.dir).unwrap().count(), 1, "a draft was left behind");
}

#[test]
fn a_device_that_the_user_has_not_probed_has_the_profile_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let machine = ProfileStore::new(dir.path().join("machine"));
    machine.save(&profile()).unwrap();
    let own = ProfileStore::new(dir.path().join("own")).or_machine(&machine.dir);
    assert_eq!(load(&own, dir.path()).unwrap(), Some(profile()));
    assert!(own.list().unwrap().is_empty(), "it is not the user's to list or to remove");
    let mut later = profile();
    later.measured_unix_s += 1;
    own.save(&later).unwrap();
    assert_eq!(load(&own, dir.path()).unwrap(), Some(later));
    assert_eq!(load(&machine, dir.path()).unwrap(), Some(profile()));
    assert_eq!(machine.clone().or_machine(&machine.dir).machine, None);
}

#[test]
fn a_profile_of_another_kernel_or_scheduler_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), |_| {});
    let device = device(dir.path());
    assert_eq!(store.load(&device, "6.19.0", "none").unwrap(), None);
    assert_eq!(store.load(&device, "6.18.44", "mq-deadline").unwrap(), None);
}

#[test]
fn a_field_from_a_later_version_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), |json| {
        json["colour"] = json!("green");
        json["curves"][0]["points"][0]["p99_ns"] = json!(1);
    });
    assert_eq!(load(&store, dir.path()).unwrap(), Some(profile()));
}

#[test]
fn a_profile_of_before_contested_devices_still_loads() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), |json| {
        drop(json.as_object_mut().unwrap().remove("contested"));
        for point in json["curves"][0]["points"].as_array_mut().unwrap() {
            drop(point.as_object_mut().unwrap().remove("states"));
        }
    });
    let loaded = load(&store, dir.path()).unwrap().unwrap();
    assert!(!loaded.contested);
    let point = loaded.curves[0].points[0];
    assert_eq!(point.states, None);
    assert_eq!(point.states(), States { best_ns: 9_000, worst_ns: 9_000 });
}

#[test]
fn a_newer_schema_is_told_before_its_strange_fields() {
    let said = complaint(|json| {
        json["schema"] = json!(SCHEMA + 1);
        json["decision"] = json!("elsewhere");
    });
    assert!(said.contains("field schema is 5, this program reads 4"), "{said}");
}

#[test]
fn a_damaged_field_is_named() {
    let said = complaint(|json| json["curves"][1]["points"][0]["median_ns"] = json!("fast"));
    assert!(said.contains("damaged at curves[1].points[0].median_ns: invalid type"), "{said}");
    let said = complaint(|json| json["decision"]["class"] = json!("warp"));
    assert!(said.contains("damaged at decision.class: unknown variant `warp`"), "{said}");
    let said = complaint(|json| drop(json.as_object_mut().unwrap().remove("spin_method")));
    assert!(said.contains("missing field `spin_method`"), "{said}");
    let said = complaint(|json| json["polling"] = json!({"state": "sometimes"}));
    assert!(said.contains("damaged at polling") && said.contains("sometimes"), "{said}");
}

#[test]
fn a_file_cut_short_or_foreign_is_refused_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with(dir.path(), |_| {});
    let path = store.save(&profile()).unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() - 2 {
        fs::write(&path, &whole[..cut]).unwrap();
        let error = load(&store, dir.path()).unwrap_err();
        assert!(matches!(error, ProfileError::Damaged { .. }), "{error}");
    }
    let array = format!("[{SCHEMA}]");
    for content in [&b"{}"[..], array.as_bytes(), b"\xff\xfe", b"null", b"{\"schema\": -1}"] {
        fs::write(&path, content).unwrap();
        let error = load(&store, dir.path()).unwrap_err();
        assert!(matches!(error, ProfileError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_profile_copied_over_anothers_is_refused() {
    let said = complaint(|json| json["device_id"] = json!("zram"));
    assert!(said.contains("field device_id is \"zram\""), "{said}");
}

#[test]
fn values_that_no_measurement_gives_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 9] = [
        ("curves[0].points[1].states.best_ns", |j| {
            j["curves"][0]["points"][1]["states"]["best_ns"] = json!(42_001);
        }),
        ("contested", |j| j["decision"]["class"] = json!("mainstream")),
        ("curves[0].points[1].size_bytes", |j| {
            j["curves"][0]["points"][1]["size_bytes"] = json!(4096);
        }),
        ("curves[1].points[0].p10_ns", |j| j["curves"][1]["points"][0]["p10_ns"] = json!(9_001)),
        ("curves[1].points[0].p90_ns", |j| j["curves"][1]["points"][0]["p90_ns"] = json!(1)),
        ("curves[1].mode", |j| j["curves"][1]["mode"] = json!("interrupt-block")),
        ("decision.switch_ns", |j| j["decision"]["switch_ns"] = json!(u64::MAX)),
        ("switches.direct[0].processes", |j| {
            j["switches"]["direct"][0]["processes"] = json!(0);
        }),
        ("polling.interrupts_per_request", |j| {
            j["polling"]["interrupts_per_request"] = json!(-1.0);
        }),
    ];
    for (field, change) in cases {
        let said = complaint(change);
        assert!(said.contains(&format!("field {field} ")), "{field}: {said}");
    }
}

#[test]
fn a_profile_that_could_not_be_read_again_is_never_saved() {
    let dir = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(dir.path());
    let mut profile = profile();
    profile.curves[0].points[0].cpu_ns_per_request = f64::NAN;
    let said = store.save(&profile).unwrap_err().to_string();
    assert!(said.contains("field curves[0].points[0].cpu_ns_per_request is NaN"), "{said}");
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn thresholds_of_nothing_and_of_everything_are_both_measurements() {
    let dir = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(dir.path());
    for size_threshold_bytes in [0, u64::MAX] {
        let mut profile = profile();
        profile.decision.size_threshold_bytes = size_threshold_bytes;
        store.save(&profile).unwrap();
        assert_eq!(load(&store, dir.path()).unwrap(), Some(profile));
    }
}

#[test]
fn a_damaged_profile_does_not_hide_the_others_and_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(dir.path());
    let other = DeviceProfile { scheduler: "kyber".into(), ..profile() };
    let good = store.save(&profile()).unwrap();
    store.save(&other).unwrap();
    fs::write(&good, "{").unwrap();
    fs::write(dir.path().join(".draft-1-0"), "{").unwrap();
    fs::create_dir(dir.path().join("odd.json")).unwrap();
    let listed = store.list().unwrap();
    let usable: Vec<_> = listed.iter().map(|listed| listed.profile.is_ok()).collect();
    assert_eq!(usable, [true, false, false]);

    let removed = store.remove("nvme:Fast_Drive:S1:n1").unwrap();
    assert_eq!(removed.len(), 2);
    assert!(!good.exists());
}

#[test]
fn only_profiles_of_the_store_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = ProfileStore::new(dir.path().join("profiles"));
    store.save(&profile()).unwrap();
    fs::write(dir.path().join("precious.json"), "{}").unwrap();
    for asked in ["../precious", "", "zram"] {
        let error = store.remove(asked).unwrap_err();
        assert!(matches!(error, ProfileError::Absent { .. }), "{error}");
    }
    let name = store.list().unwrap().remove(0).name;
    assert_eq!(store.remove(&name).unwrap(), [name]);
}

#[test]
fn a_date_is_right_across_leap_years() {
    let at = |measured_unix_s| DeviceProfile { measured_unix_s, ..profile() }.measured_utc();
    assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
    assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
    assert_eq!(at(1_772_323_199), "2026-02-28 23:59:59 UTC");
    assert_eq!(at(1_772_323_200), "2026-03-01 00:00:00 UTC");
}
