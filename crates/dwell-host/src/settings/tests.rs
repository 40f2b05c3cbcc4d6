// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of reading settings, of their layers, and of what holds in the end.

use super::*;
use dwell::device::{Device, DeviceKind};
use dwell::parameters::DeviceParameters;

const ALL: &str = r#"
policy = "hybrid"
cpu_threshold = "30%"
queue_limit = 4
cpu_signal = "total"
goal = "latency"
shadow = true

[[device]]
match = "nvme*"
policy = "smartcon"
class = "fast"
size_threshold = "64KiB"
largest_threshold = 131072
cpu_threshold = 0.5
queue_limit = 2
cpu_signal = "others"
exclude = false

[exclude]
paths = ["/var/log/**", "*.tmp"]
programs = ["sshd"]

[probe]
on_add = true
"#;

fn parsed(text: &str, origin: &str) -> Settings {
    Settings::parse(text, origin).unwrap()
}

fn nvme() -> DeviceNames {
    DeviceNames::new(["nvme0n1", "/dev/nvme0n1", "nvme:Samsung_980:S1:n1"])
}

#[test]
fn every_key_is_understood_and_remembers_its_line() {
    let settings = parsed(ALL, "a.toml");
    let general = settings.general();
    assert_eq!(general.policy.to_string(), "hybrid (a.toml:2)");
    assert_eq!(general.cpu_threshold.unwrap().to_string(), "0.3 (a.toml:3)");
    assert!(general.shadow.value && general.probe_on_add.value);
    let device = settings.for_device(&nvme());
    assert_eq!(device.policy.to_string(), "smartcon (a.toml:11)");
    assert_eq!(device.goal.to_string(), "latency (a.toml:6)");
    assert_eq!(device.class.clone().unwrap().to_string(), "fast (a.toml:12)");
    assert_eq!(device.size_threshold_bytes.clone().unwrap().to_string(), "65536 (a.toml:13)");
    assert_eq!(device.largest_threshold_bytes.clone().unwrap().value, 128 << 10);
    assert_eq!(device.cpu_threshold.clone().unwrap().value, 0.5);
    assert_eq!(device.cpu_signal.value, CpuSignal::Others);
    assert_eq!(device.exclude.to_string(), "false (a.toml:18)");
    assert_eq!(device.wait_policy().unwrap().name(), "smartcon");
    let path = settings.excludes_path("/var/log/a/b".as_ref()).unwrap();
    assert_eq!(path.to_string(), "/var/log/** (a.toml:21)");
    assert!(settings.excludes_path("/srv/data".as_ref()).is_none());
    assert!(settings.excludes_program("/usr/sbin/sshd".as_ref()).is_some());
    assert!(settings.excludes_program("/usr/sbin/sshd-session".as_ref()).is_none());
}

#[test]
fn a_setting_that_nobody_made_has_its_default() {
    for settings in [Settings::default(), parsed("", "empty.toml")] {
        let general = settings.general();
        assert_eq!(general.policy, Set::default("adaptive".to_owned()));
        assert_eq!(general.leave_alone_ms, Set::default(20));
        assert_eq!(general.shadow, Set::default(false));
        assert_eq!(general.probe_on_add, Set::default(false));
        let device = settings.for_device(&nvme());
        assert_eq!(device.policy.origin, Origin::Default);
        assert_eq!(device.exclude, Set::default(false));
        let probed = DeviceParameters {
            profile: Some(dwell_policy::Profile::default()),
            ..DeviceParameters::default()
        };
        assert_eq!(device.parameters(probed), probed);
        assert_eq!(device.parameters(DeviceParameters::default()), DeviceParameters::default());
    }
}

#[test]
fn a_cap_on_spinning_is_a_share_of_the_cpus_and_the_former_name_of_a_shadow_holds() {
    let general = parsed("spin_cap = \"25%\"\nobserve = true", "a.toml").general();
    assert_eq!(general.spin_cap.unwrap().to_string(), "0.25 (a.toml:1)");
    assert_eq!(general.shadow.to_string(), "true (a.toml:2)");
    assert_eq!(parsed("", "a").general().spin_cap, None);
    let error = Settings::parse("spin_cap = 25", "a.toml").unwrap_err().to_string();
    assert!(error.starts_with("a.toml:1: spin_cap: ") && error.contains("write 0 to 1"), "{error}");
}

#[test]
fn a_share_is_said_for_all_devices_or_for_one_and_a_wrong_one_is_named() {
    let text =
        "steer = \"5% of hosts\"\n[[device]]\nmatch = \"nvme*\"\nsteer = \"0.2 of requests\"";
    let settings = parsed(text, "a.toml");
    let of = |names: &DeviceNames| settings.for_device(names).steer.unwrap().to_string();
    assert_eq!(of(&nvme()), "20% of requests (a.toml:4)");
    assert_eq!(of(&DeviceNames::new(["sda"])), "5% of hosts (a.toml:1)");
    assert_eq!(parsed("", "a").for_device(&nvme()).steer, None);
    for (text, says) in [
        ("steer = \"5%\"", "does not say of what"),
        ("steer = \"5% of disks\"", "cannot be divided"),
        ("steer = 0.05", "expected a string"),
    ] {
        let error = Settings::parse(text, "a.toml").unwrap_err().to_string();
        assert!(error.starts_with("a.toml:1: steer: ") && error.contains(says), "{error}");
    }
}

#[test]
fn a_wrong_setting_is_named_with_file_line_and_key() {
    for (line, from, to, key, says) in [
        (2, "policy = \"hybrid\"", "policy = \"fastest\"", "policy", "there are adaptive, block"),
        (2, "policy = \"hybrid\"", "policy = 3", "policy", "expected a string"),
        (2, "policy = \"hybrid\"", "polcy = \"spin\"", "polcy", "did you mean `policy`?"),
        (3, "\"30%\"", "\"130%\"", "cpu_threshold", "write 0 to 1"),
        (3, "\"30%\"", "1.5", "cpu_threshold", "write 0 to 1"),
        (3, "\"30%\"", "nan", "cpu_threshold", "write 0 to 1"),
        (3, "\"30%\"", "true", "cpu_threshold", "a fraction such as 0.3"),
        (4, "queue_limit = 4", "queue_limit = -1", "queue_limit", "u32"),
        (5, "\"total\"", "\"all\"", "cpu_signal", "`others` or `total`"),
        (6, "goal = \"latency\"", "goal = \"speed\"", "goal", "balanced"),
        (6, "goal = \"latency\"", "leave_alone_ms = -1", "leave_alone_ms", "u32"),
        (9, "match = \"nvme*\"", "", "device[0]", "missing field `match`"),
        (10, "match = \"nvme*\"", "match = \"[n\"", "device[0].match", "is no pattern"),
        (10, "match = \"nvme*\"", "match = \"\"", "device[0].match", "empty"),
        (11, "\"smartcon\"", "\"smart\"", "device[0].policy", "\"smart\" is no policy"),
        (12, "\"fast\"", "\"faster\"", "device[0].class", "`very-fast`, `fast`, `mainstream`"),
        (13, "\"64KiB\"", "\"64kb\"", "device[0].size_threshold", "write kiB"),
        (13, "\"64KiB\"", "0", "device[0].size_threshold", "at least 1 byte"),
        (13, "\"64KiB\"", "-1", "device[0].size_threshold", "not negative"),
        (13, "\"64KiB\"", "\"4GiB\"", "device[0].size_threshold", "less than 2GiB"),
        (13, "\"64KiB\"", "false", "device[0].size_threshold", "a size such as"),
        (18, "exclude = false", "excluded = true", "device[0].excluded", "did you mean `exclude`?"),
        (21, "\"*.tmp\"", "\"a/*.tmp\"", "exclude.paths[1]", "start it with /"),
        (22, "\"sshd\"", "7", "exclude.programs[0]", "expected a string"),
        (22, "[\"sshd\"]", "\"sshd\"", "exclude.programs", "expected a sequence"),
        (25, "on_add", "on_plug", "probe.on_plug", "expected `on_add`"),
    ] {
        assert!(ALL.contains(from), "{from}");
        let error = Settings::parse(&ALL.replacen(from, to, 1), "/etc/dwell.toml").unwrap_err();
        let text = error.to_string();
        let start = format!("/etc/dwell.toml:{line}: {key}: ");
        assert!(text.starts_with(&start) && text.contains(says), "{from} → {to}: {text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn a_text_that_is_not_toml_is_named_with_its_line() {
    for (text, line) in [
        ("policy = ", 1),
        ("\n\npolicy", 3),
        ("policy = \"a\npolicy = \"b\"", 1),
        ("shadow = true\nshadow = false", 2),
        ("[device]\nmatch = \"x\"", 1),
        ("\u{feff}shadow = maybe", 1),
        ("[probe]\non_add = [[[[[[", 2),
    ] {
        let error = Settings::parse(text, "a.toml").unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.to_string().starts_with(&format!("a.toml:{line}: ")), "{error}");
    }
    assert!(Settings::parse(&"[".repeat(100_000), "a.toml").is_err());
    assert!(Settings::parse(&format!("a = {}", "[".repeat(100_000)), "a.toml").is_err());
}

#[test]
fn a_later_layer_wins_key_by_key_and_exclusions_add_up() {
    let system = parsed(
        "policy = \"block\"\nleave_alone_ms = 7\n[exclude]\npaths = [\"/a\"]\nprograms = [\"x\"]",
        "system",
    );
    let user = parsed("policy = \"hybrid\"\n[exclude]\npaths = [\"/b\"]", "user");
    let given = parsed("shadow = true", "given");
    let settings = system.under(user).under(given);
    let general = settings.general();
    assert_eq!(general.policy.to_string(), "hybrid (user:1)");
    assert_eq!(general.leave_alone_ms.to_string(), "7 (system:2)");
    assert_eq!(general.shadow.to_string(), "true (given:1)");
    for path in ["/a", "/b"] {
        assert!(settings.excludes_path(path.as_ref()).is_some(), "{path}");
    }
    assert!(settings.excludes_program("/bin/x".as_ref()).is_some());
}

#[test]
fn the_device_wins_over_the_general_and_the_command_line_over_both() {
    let system = parsed(
        "[[device]]\nmatch = \"nvme*\"\npolicy = \"spin\"\nqueue_limit = 1\n\
         [[device]]\nmatch = \"*Samsung*\"\nqueue_limit = 2",
        "system",
    );
    let user = parsed("policy = \"block\"\nqueue_limit = 9", "user");
    let mut settings = system.under(user);
    let device = settings.for_device(&nvme());
    assert_eq!(device.policy.to_string(), "spin (system:3)");
    assert_eq!(device.queue_limit.unwrap().to_string(), "2 (system:7)");
    let other = settings.for_device(&DeviceNames::new(["vda"]));
    assert_eq!(other.policy.to_string(), "block (user:1)");
    assert_eq!(other.queue_limit.unwrap().to_string(), "9 (user:2)");

    settings = settings.under(Settings {
        waiting: Waiting {
            policy: Some(Set::option("--policy", "predictive".to_owned())),
            ..Waiting::default()
        },
        ..Settings::default()
    });
    let device = settings.for_device(&nvme());
    assert_eq!(device.policy.to_string(), "predictive (--policy)");
    assert_eq!(device.queue_limit.unwrap().to_string(), "2 (system:7)");
}

#[test]
fn settings_replace_the_findings_of_a_probe() {
    let settings = parsed(
        "[[device]]\nmatch = \"a\"\nclass = \"mainstream\"\n\
         [[device]]\nmatch = \"b\"\nlargest_threshold = \"16k\"\n\
         [[device]]\nmatch = \"c\"\nsize_threshold = \"8k\"\nlargest_threshold = \"1M\"",
        "a.toml",
    );
    let of = |name: &str| settings.for_device(&DeviceNames::new([name]));
    let unprobed = of("a").parameters(DeviceParameters::default()).profile.unwrap();
    assert_eq!(unprobed.class, DeviceClass::Mainstream);
    let probed = DeviceParameters {
        profile: Some(dwell_policy::Profile::default()),
        ..DeviceParameters::default()
    };
    assert_eq!(of("b").parameters(probed).profile.unwrap().size_threshold_bytes, 16 << 10);
    assert_eq!(of("c").parameters(probed).profile.unwrap().size_threshold_bytes, 8 << 10);
    // Nor is a request that is one of several waited for as the probe would have it.
    let several = |name: &str| of(name).parameters(probed).profile.unwrap().async_threshold_bytes;
    assert_eq!((several("a"), several("b"), several("c")), (0, 16 << 10, 8 << 10));
    // A size alone does not say how fast a device is.
    assert_eq!(of("c").parameters(DeviceParameters::default()).profile, None);
}

#[test]
fn a_partition_answers_to_its_disks_names_and_to_its_mounts() {
    let device = |name: &str, dev_t, partition, beneath| Device {
        id: format!("virtio:{name}"),
        kernel_name: name.to_owned(),
        kind: DeviceKind::Virtio,
        dev_t,
        model: Some("QEMU HARDDISK".to_owned()),
        size_bytes: 1,
        logical_block_bytes: 512,
        scheduler: "none".to_owned(),
        io_poll: false,
        rotational: false,
        dax: false,
        read_only: false,
        partition,
        kernel_worker: false,
        filesystem: None,
        irqs: Vec::new(),
        beneath,
    };
    let disk = device("vda", libc::makedev(254, 0), None, Vec::new());
    let part = device("vda1", libc::makedev(254, 1), Some(1), vec![disk]);
    let table = "30 1 254:1 / /var/lib/pg rw - ext4 /dev/vda1 rw\n31 1 0:9 / /x rw - tmpfs t rw\n";
    let names = DeviceNames::with_mounts(&part, table);
    for pattern in ["vda1", "vda", "/dev/vda?", "virtio:*", "QEMU*", "/var/lib/pg"] {
        let text = format!("[[device]]\nmatch = {pattern:?}\nexclude = true");
        assert!(parsed(&text, "a").for_device(&names).exclude.value, "{pattern}");
    }
    let text = "[[device]]\nmatch = \"/x\"\nexclude = true";
    assert!(!parsed(text, "a").for_device(&names).exclude.value);
}

#[test]
fn an_order_survives_the_environment() {
    let order = RunOrder {
        run_id: u64::MAX,
        root_pid: 1,
        policy: Some("spin".to_owned()),
        shadow: true,
        stats_dir: None,
        stats_file: Some("/tmp/stats".into()),
        profile_dir: "/p".into(),
        machine_profile_dir: Some("/m".into()),
        quiet: true,
        verbose: true,
        channels: true,
        filters: 2,
        pager: Some(Paging {
            files: vec![Pattern::of_path("*.pack").unwrap()],
            budget_bytes: 1 << 20,
            stderr: Some((1, 2)),
        }),
        settings: parsed(ALL, "a.toml"),
    };
    let text = serde_json::to_string(&order).unwrap();
    assert_eq!(serde_json::from_str::<RunOrder>(&text).unwrap(), order);
    let least = r#"{"run_id": 1, "root_pid": 2, "profile_dir": "/p"}"#;
    assert_eq!(serde_json::from_str::<RunOrder>(least).unwrap().settings, Settings::default());
    assert!(serde_json::from_str::<RunOrder>("{}").is_err());
    let broken = text.replace("/var/log/**", "/var/log/**x");
    assert!(serde_json::from_str::<RunOrder>(&broken).is_err());
}

#[test]
fn the_example_says_every_key_and_changes_nothing() {
    let text = include_str!("../../../../packaging/dwell.toml");
    let settings = parsed(text, "packaging/dwell.toml");
    assert_eq!(settings, Settings::default(), "what is not commented out would be in force");
    // Each example, with its mark taken off.
    let said: String = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| !line.starts_with([' ', '#']) && !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let settings = parsed(&said, "packaging/dwell.toml");
    let general = settings.general();
    assert!(general.spin_cap.is_some() && settings.waiting.steer.is_some());
    let origins =
        [&general.leave_alone_ms.origin, &general.shadow.origin, &general.probe_on_add.origin];
    assert!(origins.iter().all(|origin| **origin != Origin::Default), "{said}");
    let said = |waiting: &Waiting| {
        waiting.policy.is_some()
            && waiting.cpu_threshold.is_some()
            && waiting.queue_limit.is_some()
            && waiting.cpu_signal.is_some()
    };
    assert!(said(&settings.waiting));
    assert!(settings.devices.iter().any(|device| device.class.is_some()));
    assert!(settings.devices.iter().any(|device| device.size_threshold_bytes.is_some()));
    assert!(settings.devices.iter().any(|device| device.largest_threshold_bytes.is_some()));
    assert!(settings.devices.iter().any(|device| device.exclude.is_some()));
    assert!(!settings.excluded_paths.is_empty() && !settings.excluded_programs.is_empty());
}

/// The keys of a table, as the error names them for one that there is not.
fn keys_of(table: &str) -> Vec<String> {
    let text = format!("{table}\nno_such_key_at_all_whatever = 1\n");
    let error = Settings::parse(&text, "x.toml").unwrap_err().to_string();
    let expected = error.split_once("expected").unwrap().1;
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_book_and_the_example_file_name_every_key() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    let example = include_str!("../../../../packaging/dwell.toml");
    for (table, head) in [
        ("", ""),
        ("device", "[[device]]\nmatch = \"x\""),
        ("exclude", "[exclude]"),
        ("probe", "[probe]"),
    ] {
        let keys = keys_of(head);
        assert!(!keys.is_empty(), "{table}");
        // A table has keys of its own, and `observe` is the older name of `shadow`.
        let is_table =
            |key: &str| ["device", "exclude", "probe"].contains(&key) && table.is_empty();
        for key in keys.iter().filter(|key| !is_table(key) && *key != "observe") {
            let of_table = if table.is_empty() { String::new() } else { format!("{table}.") };
            let named = [format!("`{of_table}{key}`"), format!("`.{key}`")];
            assert!(
                named.iter().any(|name| page.contains(name)),
                "configuration.md: {table} {key}"
            );
            assert!(example.contains(&format!("\n#{key} = ")), "dwell.toml: {key}");
        }
    }
}
