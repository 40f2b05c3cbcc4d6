// SPDX-License-Identifier: MIT OR Apache-2.0
use std::collections::BTreeSet;

use super::*;

const BATCH: &str = r#"
name = "two"
[[process]]
name = "sweep"
loop = { order = "sweep", bytes = 200000, visits = 3000, work = 8 }
[[process]]
name = "draw"
loop = { order = "draw", bytes = 200000, visits = 3000, work = 8 }
"#;

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("two.toml"), BATCH).unwrap();
    dir
}

fn sweep(dir: &tempfile::TempDir, more: &str) -> Result<Sweep> {
    let text = format!("batches = ['two.toml']\nseeds = 1\npolicies = ['sync', 'its']\n{more}");
    Sweep::parse(&text, dir.path())
}

fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|one| {
            let name = one.file_name().into_string().unwrap();
            (name, std::fs::read(one.path()).unwrap())
        })
        .collect()
}

#[test]
fn shards_make_the_same_files_as_one_machine_and_nothing_is_simulated_twice() {
    let dir = place();
    let grid = "[grid]\nswitch_ns = [1000, 5000]\nreplacement = ['lru', 'fifo', 'clock']\n";
    let sweep = sweep(&dir, grid).unwrap();
    let points = sweep.points().unwrap();
    let keys: BTreeSet<&str> = points.iter().map(|one| one.key.as_str()).collect();
    assert_eq!(keys.len(), 6);
    let (quiet, go_on) = (|_: &str, _: &str, _: f64| (), AtomicBool::new(false));
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let all = sweep.run(&points, &whole, &quiet, &go_on).unwrap();
    assert_eq!(all, Swept { simulated: 6, kept: 0 });
    for number in 1..=4 {
        let part = Shard { number, of: 4 }.part(points.clone());
        sweep.run(&part, &parts, &quiet, &go_on).unwrap();
    }
    assert_eq!(content(&whole), content(&parts));
    // A sweep simulates lost points again, and no others.
    let lost = whole.join(format!("{}.parquet", keys.first().unwrap()));
    std::fs::remove_file(lost).unwrap();
    let again = sweep.run(&points, &whole, &quiet, &go_on).unwrap();
    assert_eq!(again, Swept { simulated: 1, kept: 5 });
    assert_eq!(content(&whole), content(&parts));
}

#[test]
fn keys_follow_the_content_and_not_the_name() {
    assert!(content::code().iter().all(Option::is_some));
    let dir = place();
    let keys = |sweep: &Sweep| -> Vec<String> {
        sweep.points().unwrap().into_iter().map(|one| one.key).collect()
    };
    let first = keys(&sweep(&dir, "").unwrap());
    std::fs::write(dir.path().join("two.toml"), BATCH.replace("3000", "3001")).unwrap();
    assert_ne!(keys(&sweep(&dir, "").unwrap()), first);
    std::fs::write(dir.path().join("two.toml"), BATCH).unwrap();
    assert_eq!(keys(&sweep(&dir, "").unwrap()), first);
}

#[test]
fn draws_are_the_same_everywhere_and_stay_between_their_ends() {
    let dir = place();
    let draw = "[draw]\ncount = 20\nseed = 7\nbetween = { switch_ns = [10, 12] }\n";
    let points = sweep(&dir, draw).unwrap().points().unwrap();
    let found: BTreeSet<&str> = points.iter().map(|one| one.sets[0].as_str()).collect();
    assert_eq!(found, ["switch_ns=10", "switch_ns=11", "switch_ns=12"].into());
    assert_eq!(sweep(&dir, draw).unwrap().points().unwrap(), points);
}

#[test]
fn a_wrong_sweep_is_named() {
    let dir = place();
    let said = |more: &str| {
        let points = sweep(&dir, more).and_then(|sweep| sweep.points());
        format!("{:#}", points.unwrap_err())
    };
    for (more, names) in [
        ("grids = 1", "grids"),
        ("[grid]\nswitch_nss = [1]", "switch_nss"),
        ("[grid]\nreplacement = ['rlu']", "replacement=rlu"),
        ("[grid]\nswitch_ns = []", "grid.switch_ns"),
        ("[draw]\ncount = 1\nbetween = { switch_ns = ['a', 2] }", "draw.between.switch_ns"),
        ("[draw]\ncount = 1\nbetween = { switch_ns = [3, 2] }", "draw.between.switch_ns"),
    ] {
        assert!(said(more).contains(names), "{more}: {}", said(more));
    }
    let none = Sweep::parse("batches = ['none.toml']", dir.path()).unwrap().points();
    assert!(format!("{:#}", none.unwrap_err()).contains("none.toml"));
    for shard in ["0/4", "5/4", "1", "1/0", "a/b"] {
        assert!(shard.parse::<Shard>().is_err(), "{shard}");
    }
}
