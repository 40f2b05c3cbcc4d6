// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each generator against its definition, by counting.

use std::collections::BTreeMap;

use super::*;
use crate::workload::{WorkloadFile, shipped};

fn spec_of(name: &str, scale: f64) -> Spec {
    shipped(name).unwrap().variants().unwrap().remove(0).spec.scaled(scale)
}

fn stream_of(spec: &Spec) -> Stream<'_> {
    let threads = &spec.threads[0];
    let share = Share::of(spec, spec.set(&threads.files).unwrap(), 0);
    Stream::new(spec, threads, share, 7)
}

/// Operations that so many passes through the loop complete, checked as they come: only what is
/// there is opened, read within its length, deleted.
fn counted(stream: &mut Stream<'_>, loops: u64) -> BTreeMap<&'static str, u64> {
    let mut operations = BTreeMap::new();
    let mut open = None;
    let mut lengths: Vec<_> = stream.share.entries().iter().map(|e| e.start_bytes).collect();
    while stream.loops() < loops {
        let step = stream.next().expect("something to do");
        match step.act {
            Act::Open(file) => {
                assert!(open.is_none() && lengths[file].is_some());
                open = Some(file);
            }
            Act::Create(file) => {
                assert!(open.is_none() && lengths[file].is_none());
                lengths[file] = Some(0);
                open = Some(file);
            }
            Act::Close => assert!(open.take().is_some()),
            Act::Delete(file) => {
                assert!(open != Some(file) && lengths[file].take().is_some());
            }
            Act::Stat(file) => assert!(lengths[file].is_some()),
            Act::Read { offset, bytes } => {
                assert!(bytes > 0 && offset + bytes <= lengths[open.unwrap()].unwrap());
            }
            Act::Write { offset, bytes } => {
                assert!(bytes > 0 && bytes <= stream.threads.io_bytes);
                assert!(!stream.spec.direct || (offset | bytes) % 4096 == 0);
                let length = lengths[open.unwrap()].as_mut().unwrap();
                assert!(offset <= *length, "a hole");
                *length = (*length).max(offset + bytes);
            }
            Act::Sync { .. } => assert!(open.is_some()),
        }
        if let Some(name) = step.done {
            *operations.entry(name).or_default() += 1;
        }
    }
    let modelled = stream.share.entries().iter().map(|entry| entry.bytes);
    assert!(modelled.eq(lengths));
    operations
}

#[test]
fn a_pass_of_each_filebench_workload_is_what_filebench_defines() {
    let cases: [(&str, &[(&str, u64)]); 2] = [
        (
            "fileserver",
            &[
                ("append", 1),
                ("close", 3),
                ("create", 1),
                ("delete", 1),
                ("open", 2),
                ("read-whole", 1),
                ("stat", 1),
                ("write-whole", 1),
            ],
        ),
        (
            "varmail",
            &[
                ("append", 2),
                ("close", 3),
                ("create", 1),
                ("delete", 1),
                ("fsync", 2),
                ("open", 2),
                ("read-whole", 2),
            ],
        ),
    ];
    for (name, per_loop) in cases {
        for spec in [spec_of(name, 1.0), spec_of(&format!("{name}-light"), 0.2)] {
            let operations = counted(&mut stream_of(&spec), 1000);
            let expected = per_loop.iter().map(|&(name, times)| (name, times * 1000));
            assert!(operations.into_iter().eq(expected), "{name}");
        }
    }
}

#[test]
fn appends_have_their_distribution() {
    let mut spec = spec_of("varmail", 1.0);
    spec.direct = false;
    let mut stream = stream_of(&spec);
    let mut sizes = Vec::new();
    while sizes.len() < 20_000 {
        let step = stream.next().unwrap();
        if let (Act::Write { bytes, .. }, Some("append")) = (step.act, step.done) {
            sizes.push(bytes);
        }
    }
    let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
    assert!((mean - 8192.0).abs() < 150.0, "{mean}");
    assert!(sizes.iter().all(|bytes| (1..=16_384).contains(bytes)));
    let below = sizes.iter().filter(|bytes| **bytes <= 4096).count();
    assert!((below as f64 / 5000.0 - 1.0).abs() < 0.05, "{below}");
}

#[test]
fn biases_of_postmark_are_shares_of_ten() {
    for (read_bias, create_bias) in [(0, 5), (3, 5), (10, 5), (5, 0), (5, 10)] {
        let mut file = shipped("postmark").unwrap();
        file.set("file_bytes=10000").unwrap();
        file.set(&format!("read_bias={read_bias}")).unwrap();
        file.set(&format!("create_bias={create_bias}")).unwrap();
        let variants = file.variants().unwrap();
        let [variant] = &variants[..] else { panic!("{} variants", variants.len()) };
        let mut stream = stream_of(&variant.spec);
        let of = |counts: &BTreeMap<&str, u64>, name| counts.get(name).copied().unwrap_or(0);
        let counts = counted(&mut stream, 10_000);
        let (reads, appends) = (of(&counts, "read-whole"), of(&counts, "append"));
        assert_eq!(reads + appends, 10_000);
        assert!(reads.abs_diff(read_bias * 1000) < 150, "{reads} of bias {read_bias}");
        let (created, deleted) = (of(&counts, "create"), of(&counts, "delete"));
        assert_eq!((created + deleted, created), (10_000, of(&counts, "write-whole")));
        // A set that is full or empty is kept so.
        assert!(created.abs_diff(5000) < 600, "{created} created, bias {create_bias}");
    }
}

#[test]
fn inward_is_first_last_second_last_but_one() {
    let spec = spec_of("whole-random", 0.01);
    let blocks = spec.files[0].size_bytes.mean() as u64 / 4096;
    let mut stream = stream_of(&spec);
    assert_eq!(stream.next().unwrap().act, Act::Open(0));
    let mut seen = Vec::new();
    while stream.loops() < 1 {
        let Act::Read { offset, bytes: 4096 } = stream.next().unwrap().act else { panic!() };
        seen.push(offset / 4096);
    }
    assert_eq!(seen[..4], [0, blocks - 1, 1, blocks - 2]);
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..blocks));
}

#[test]
fn plain_reads_go_through_the_file_or_anywhere_in_it() {
    let offsets = |name: &str, count: usize| -> Vec<u64> {
        let spec = spec_of(name, 0.02);
        let mut stream = stream_of(&spec);
        let step = std::iter::from_fn(|| stream.next());
        let places = step.filter_map(|step| match step.act {
            Act::Read { offset, .. } | Act::Write { offset, .. } => Some(offset / 4096),
            _ => None,
        });
        places.take(count).collect()
    };
    let blocks = (5 << 20) / 4096;
    assert!(
        offsets("seq-read", blocks + 2)
            .iter()
            .enumerate()
            .all(|(i, &at)| { at == (i % blocks) as u64 })
    );
    let random = offsets("rand-write", 10_000);
    let low = random.iter().filter(|at| **at < blocks as u64 / 4).count();
    assert!((low as f64 / 2500.0 - 1.0).abs() < 0.1, "{low}");
    let rewritten = offsets("bonnie-rewrite", 6);
    assert_eq!(rewritten, [0, 0, 2, 2, 4, 4]);
}

#[test]
fn the_same_seed_is_the_same_stream_and_others_differ() {
    let spec = spec_of("fileserver", 0.1);
    let acts = |seed| {
        let mut stream = stream_of(&spec);
        stream.restart(seed);
        (0..500).map(|_| stream.next().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(acts(1), acts(1));
    assert_ne!(acts(1), acts(2));
}

#[test]
fn every_shipped_workload_can_go_on_for_ever() {
    for (name, text) in crate::workload::SHIPPED {
        let file = WorkloadFile::parse(*name, text).unwrap();
        for variant in file.variants().unwrap_or_else(|error| panic!("{error:#}")) {
            assert_eq!(&variant.spec.name, name);
            let spec = variant.spec.scaled(0.01);
            counted(&mut stream_of(&spec), 200);
        }
    }
}

#[test]
fn a_loop_that_finds_nothing_to_do_ends() {
    let spec = WorkloadFile::parse(
        "w",
        r#"name = "w"
           about = ""
           files = [{ name = "d", count = 1, size_bytes = { fixed = 1 } }]
           [[threads]]
           instances = 1
           files = "d"
           io_bytes = 4096
           loop = [{ op = "close" }]"#,
    );
    let spec = spec.unwrap().variants().unwrap().remove(0).spec;
    assert_eq!(stream_of(&spec).next(), None);
}
