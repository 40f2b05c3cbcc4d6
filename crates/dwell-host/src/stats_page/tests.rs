// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stats pages between processes: who sees what, who may say what, and what is left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};

use proptest::prelude::*;

use super::*;
use dwell::stats::Stats;

/// A place whose name is not taken yet, and what keeps it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("dwell");
    (parent, dir)
}

fn device(name: &str, bytes_read: u64) -> Device {
    let mut stats = Stats::default();
    stats.bytes_read = bytes_read;
    Device { name: name.into(), stats, ..Device::default() }
}

fn told(devices: Vec<Device>) -> Snapshot {
    Snapshot { processes: 1, published_ns: clock::now(), devices, ..Snapshot::default() }
}

/// A file as the process `pid` would have left it.
fn left_behind(dir: &Path, pid: u32, ticks: u64, header: &Header, snapshot: &Snapshot) -> PathBuf {
    let path = dir.join(place::name_of(pid, ticks));
    let mut words = first_page(header, &Control::default());
    let (process, rows) = published(snapshot, MOST_DEVICES);
    words[AT_PROCESS..][..PROCESS_WORDS].copy_from_slice(&process);
    words.extend(rows);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(&path, bytes).unwrap();
    path
}

/// A process that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper(Command::new("sleep").arg("60").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_published_page_is_seen_and_goes_with_the_process() {
    let (_parent, dir) = place();
    let header = Header { run: 7, shadow: true, ..Header::default() };
    let stats_page = StatsPage::create(&dir, &header).unwrap();
    stats_page.publish(&told(vec![device("loop0", 4096)])).unwrap();
    let entries = list(&dir).unwrap();
    let seen = entries[0].snapshot.as_ref().unwrap();
    assert_eq!((entries.len(), entries[0].pid), (1, std::process::id()));
    assert_eq!((seen.stats().bytes_read, seen.header.run), (4096, 7));
    assert!(seen.header.shadow && seen.header.command.starts_with("dwell"));
    assert_eq!(seen.header.root_pid, std::process::id());

    // Rows beyond those that the file had room for at first.
    let many: Vec<Device> = (0..20).map(|number| device(&format!("d{number}"), 1)).collect();
    stats_page.publish(&told(many)).unwrap();
    let seen = read(stats_page.path()).unwrap();
    assert_eq!((seen.devices.len(), seen.stats().bytes_read), (MOST_DEVICES, 20));
    stats_page.publish(&told(Vec::new())).unwrap();
    assert!(read(stats_page.path()).unwrap().devices.is_empty());

    stats_page.retire();
    assert!(list(&dir).unwrap().is_empty() && fs::read_dir(&dir).unwrap().next().is_none());
}

#[test]
fn a_file_that_was_replaced_is_not_grown() {
    let (_parent, dir) = place();
    let stats_page = StatsPage::create(&dir, &Header::default()).unwrap();
    fs::remove_file(stats_page.path()).unwrap();
    fs::write(stats_page.path(), "other").unwrap();
    let many: Vec<Device> = (0..5).map(|number| device(&format!("d{number}"), 1)).collect();
    stats_page.publish(&told(many)).unwrap();
    assert_eq!(fs::read(stats_page.path()).unwrap(), b"other");
    assert!(read(stats_page.path()).unwrap_err().to_string().contains("too few"));
}

#[test]
fn orders_are_heard_and_wrong_ones_are_refused() {
    let (_parent, dir) = place();
    let stats_page = StatsPage::create(&dir, &Header::default()).unwrap();
    let (reader, pid) = (stats_page.reader(), std::process::id());
    assert_eq!((reader.generation(), reader.is_off()), (0, false));
    order(&dir, pid, "off").unwrap();
    assert_eq!((reader.generation(), reader.is_off()), (1, true));
    let told = order(&dir, pid, "policy=block").unwrap();
    assert_eq!(told, Control { generation: 2, off: false, policy: Some("block".into()) });
    assert_eq!(reader.control(), told);
    order(&dir, pid, "off").unwrap();
    let told = order(&dir, pid, "on").unwrap();
    assert_eq!((reader.control(), told.policy.as_deref()), (told.clone(), Some("block")));
    // A publication does not change what was ordered.
    stats_page.publish(&Snapshot::default()).unwrap();
    assert_eq!(stats_page.control(), told);

    for (pid, what, says) in [
        (pid, "policy=fast", "no such policy; there are adaptive, block, spin"),
        (pid, "policy", "no such order; there are policy=NAME, off and on"),
        (pid, "", "no such order"),
        (1 << 30, "off", "process 1073741824: no such process"),
        (std::os::unix::process::parent_id(), "off", "not under Dwell"),
    ] {
        let error = order(&dir, pid, what).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    if sys::effective_uid() == 0 {
        let mut other = Command::new("sleep");
        std::os::unix::process::CommandExt::uid(&mut other, 65534);
        let other = Sleeper(other.arg("60").spawn().unwrap());
        let error = order(&dir, other.0.id(), "off").unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
    } else {
        let error = order(&dir, 1, "off").unwrap_err().to_string();
        assert!(error.contains("belongs to user 0"), "{error}");
    }
    left_behind(&dir, 1 << 30, 5, stats_page.header(), &Snapshot::default());
    let error = order(&dir, 1 << 30, "off").unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn a_dead_process_is_forgotten_and_its_figures_are_kept_for_its_run() {
    let (_parent, dir) = place();
    let root = Sleeper::new();
    let header = Header {
        run: 42,
        root_pid: root.0.id(),
        root_start_ticks: start_ticks(root.0.id()).unwrap(),
        namespace: process::namespace(),
        ..Header::default()
    };
    let ours = StatsPage::create(&dir, &header).unwrap();
    ours.publish(&told(vec![device("loop0", 1)])).unwrap();
    let before = Header { root_pid: 1 << 30, root_start_ticks: 3, ..header.clone() };
    let paths = [
        left_behind(&dir, 1 << 30, 5, &header, &told(vec![device("loop0", 10)])),
        left_behind(&dir, std::process::id(), 5, &header, &told(vec![device("loop0", 100)])),
        left_behind(&dir, 1 << 29, 5, &before, &told(vec![device("loop0", 1000)])),
        dir.join("run-000000000000002b"),
    ];
    fs::write(&paths[3], "damaged").unwrap();
    assert_eq!(gather(&dir, 42).unwrap().stats().bytes_read, 1111);
    assert_eq!(list(&dir).unwrap().len(), 1);
    assert!(paths.iter().all(|path| !path.exists()));
    // The third was of a run that has ended.
    let sum = gather(&dir, 42).unwrap();
    assert_eq!((sum.stats().bytes_read, sum.processes), (111, 3));
    ours.settle(&told(vec![device("loop0", 2)]));
    assert_eq!(gather(&dir, 42).unwrap().stats().bytes_read, 112);
    assert!(list(&dir).unwrap().is_empty());
    drop(root);
    list(&dir).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn bytes_of_a_process_that_was_waited_for_are_its_parents() {
    let (_parent, dir) = place();
    let header = Header { run: 7, ..Header::default() };
    let stats_page = StatsPage::create(&dir, &header).unwrap();
    let with_io = |rchar| Snapshot {
        io: ProcessIo { rchar, ..ProcessIo::default() },
        ..told(vec![device("loop0", rchar)])
    };
    // The kernel has added the dead one's bytes to its parent's.
    left_behind(&dir, 1 << 30, 5, stats_page.header(), &with_io(10));
    stats_page.publish(&with_io(12)).unwrap();
    for _ in 0..2 {
        let sum = gather(&dir, 7).unwrap();
        assert_eq!((sum.io.rchar, sum.stats().bytes_read), (12, 22));
        // Clears what the dead one has left.
        list(&dir).unwrap();
    }
}

#[test]
fn a_run_that_ends_leaves_nothing() {
    let (_parent, dir) = place();
    let header = Header { run: 9, ..Header::default() };
    let stats_page = StatsPage::create(&dir, &header).unwrap();
    stats_page.publish(&told(vec![device("loop0", 1)])).unwrap();
    left_behind(&dir, 1 << 30, 5, stats_page.header(), &told(vec![device("loop0", 10)]));
    assert_eq!(gather(&dir, 9).unwrap().stats().bytes_read, 11);
    end_run(&dir, 9);
    assert_eq!(gather(&dir, 9).unwrap().stats().bytes_read, 1);
    drop(stats_page);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_process_that_executes_another_program_keeps_its_place_in_the_run() {
    let (_parent, dir) = place();
    let header = Header { run: 5, ..Header::default() };
    let before = StatsPage::create(&dir, &header).unwrap();
    before.publish(&told(vec![device("loop0", 3)])).unwrap();
    // The program that was executed knows nothing of what was mapped.
    std::mem::forget(before);
    let after = StatsPage::create(&dir, &header).unwrap();
    after.publish(&told(vec![device("loop0", 4)])).unwrap();
    let sum = gather(&dir, 5).unwrap();
    assert_eq!((sum.stats().bytes_read, sum.processes), (7, 1));
}

#[test]
fn a_process_begins_with_what_its_root_was_told() {
    let (_parent, dir) = place();
    let root = Sleeper::new();
    let (pid, ticks) = (root.0.id(), start_ticks(root.0.id()).unwrap());
    let header = Header { run: 5, root_pid: pid, root_start_ticks: ticks, ..Header::default() };
    place::made(&dir).unwrap();
    left_behind(&dir, pid, ticks, &header, &Snapshot::default());
    order(&dir, pid, "policy=spin").unwrap();
    order(&dir, pid, "off").unwrap();
    let control = StatsPage::create(&dir, &header).unwrap().control();
    assert_eq!(control, Control { generation: 2, off: true, policy: Some("spin".into()) });
}

#[test]
fn a_place_that_cannot_be_used_is_an_error_that_names_it() {
    let (parent, dir) = place();
    let missing = parent.path().join("no/such");
    let error = StatsPage::create(&missing, &Header::default()).unwrap_err().to_string();
    assert!(error.contains("no/such") && error.contains("No such file"), "{error}");
    assert!(list(&missing).unwrap().is_empty());
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    for error in [
        StatsPage::create(&dir, &Header::default()).map(drop).unwrap_err(),
        list(&dir).map(drop).unwrap_err(),
        order(&dir, 1, "off").map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("mode 0777"), "{error}");
    }
}

#[test]
fn a_file_that_is_no_stats_page_is_listed_with_the_reason() {
    let (_parent, dir) = place();
    place::made(&dir).unwrap();
    let root = Sleeper::new();
    let path = dir.join(place::name_of(root.0.id(), start_ticks(root.0.id()).unwrap()));
    fs::write(&path, vec![0; 8192]).unwrap();
    let entries = list(&dir).unwrap();
    let error = entries[0].snapshot.as_ref().unwrap_err().to_string();
    assert!(error.contains("no stats page of Dwell's") && error.contains(path.to_str().unwrap()));
    fs::write(&path, vec![0; MOST_WORDS * 8 + 1]).unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("longer than"));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(read(&path).is_err());
}

#[test]
fn a_process_of_another_pid_namespace_is_known_by_its_signs_of_life() {
    let (_parent, dir) = place();
    place::made(&dir).unwrap();
    let header = Header { namespace: 1, ..Header::default() };
    let path = left_behind(&dir, 1 << 30, 5, &header, &told(Vec::new()));
    assert_eq!(list(&dir).unwrap().len(), 1);
    left_behind(&dir, 1 << 30, 5, &header, &Snapshot::default());
    assert!(list(&dir).unwrap().is_empty() && path.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_are_survived(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..(words_for(2) * 8)),
        admitted in any::<bool>(),
    ) {
        let (_parent, dir) = place();
        place::made(&dir).unwrap();
        if admitted && bytes.len() >= 16 {
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
        }
        let me = std::process::id();
        let path = dir.join(place::name_of(me, start_ticks(me).unwrap()));
        fs::write(&path, &bytes).unwrap();
        fs::write(dir.join("run-0000000000000007"), &bytes).unwrap();
        let _ = gather(&dir, 7);
        let _ = order(&dir, me, "off");
        for entry in list(&dir).unwrap() {
            if let Ok(told) = entry.snapshot {
                prop_assert!(told.devices.len() <= MOST_DEVICES);
            }
        }
        let stats_page = StatsPage::create(&dir, &Header { run: 7, ..Header::default() }).unwrap();
        stats_page.publish(&Snapshot::default()).unwrap();
        prop_assert!(read(stats_page.path()).is_ok());
    }
}
