// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files as memory under a limit: every way finds the same bytes, is counted, and is held to the
//! limit.

use std::path::{Path, PathBuf};

use dwell_bench::fixture::{FileSystem, Fixture as _, LoopOnTmpfs, Unavailable};
use dwell_bench::loads::serve;
use dwell_bench::pager::{
    DEVICE, Entry, MMAP, Method, Order, PAGE_BYTES, Plan, Program, REGION, STAGES, SWAP, UMAP,
    Visits, Work, has_umap, limit_bytes, limits, measure,
};
use dwell_bench::result::{Device, Run};
use dwell_workloads::csr;

/// Arguments that lead this test program to [`helper`].
const HIDDEN: [&str; 5] = ["--ignored", "--exact", "--nocapture", "helper", "help-now"];
const LIMIT: u64 = 12 << 20;
/// What the kernel reads ahead at once of most devices.
const AHEAD: u64 = 128 << 10;

#[test]
#[ignore = "run by other tests as a child"]
fn helper() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "help-now")
        && let Err(why) = serve(&arguments)
    {
        eprintln!("{why:#}");
        std::process::exit(1);
    }
}

fn entry(address: &Path, work: Work, methods: &[&str]) -> Entry {
    Entry {
        device: "file".into(),
        address: address.into(),
        profile: None,
        work,
        methods: methods.iter().map(|name| Method::of(name).unwrap()).collect(),
        limit_bytes: LIMIT,
        most_ns: 20_000_000_000,
        emulated: None,
    }
}

fn plan(entries: Vec<Entry>) -> Plan {
    let device = Device {
        name: "file".into(),
        description: "a file".into(),
        class: None,
        size_threshold_bytes: None,
    };
    Plan {
        devices: vec![device],
        entries,
        baseline: "mmap".into(),
        rounds: 2,
        best_only: false,
        hidden: HIDDEN.map(String::from).into(),
        stop: Default::default(),
    }
}

fn run(entries: Vec<Entry>) -> Run {
    measure(&plan(entries), vec![], &mut |_, _| {}).unwrap_or_else(|why| panic!("{why:#}"))
}

fn visits(order: Order, visits: u64) -> Work {
    Work::Visits(Visits { order, visits, whole: true, turns: 0, timed: false })
}

/// A file of random bytes on the disk of the build, and where it is.
fn file(bytes: usize) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = filled(directory.path(), bytes);
    (directory, path)
}

/// The same on a device in memory that is never busy, with this much read-ahead. The read-ahead of
/// a disk may exceed the limit. The kernel kills a process that waits too long for all of that.
fn quick_file(bytes: usize, ahead_bytes: u64) -> Result<(FileSystem, PathBuf), Unavailable> {
    let device = LoopOnTmpfs::blank(2 * bytes as u64 + (16 << 20))?;
    let name = device.path().file_name().unwrap().to_str().unwrap();
    let setting = format!("/sys/block/{name}/queue/read_ahead_kb");
    let build = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let system = FileSystem::new(Box::new(device), "ext4", build)?;
    std::fs::write(&setting, (ahead_bytes >> 10).to_string()).unwrap();
    let path = filled(system.path(), bytes);
    Ok((system, path))
}

fn filled(directory: &Path, bytes: usize) -> PathBuf {
    let path = directory.join("data");
    let mut word = 1u64;
    let mut content = Vec::with_capacity(bytes);
    while content.len() < bytes {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        content.extend_from_slice(&word.to_be_bytes());
    }
    std::fs::write(&path, content).unwrap();
    path
}

/// Counts of one contender, by name.
fn counted(run: &Run, method: &str, name: &str) -> u64 {
    let row = run.rows.iter().find(|row| row.policy == method).unwrap();
    assert_eq!(row.rounds.len(), 2, "{method}");
    row.rounds.iter().map(|round| round.paging[name]).max().unwrap()
}

/// Whether regions can be had; says so where not.
fn regions() -> bool {
    let (_kept, path) = file(1 << 20);
    let file = dwell::Options::new().open(&path).unwrap();
    match dwell_pager::Region::open(file, &dwell_pager::Options::new(1 << 19)) {
        Ok(_) => true,
        Err(why) => {
            println!("SKIP: {why}");
            false
        }
    }
}

#[test]
fn the_kernels_ways_are_held_to_the_limit_and_read_what_left_memory_again() {
    if let Err(why) = limits() {
        return println!("SKIP: {why}");
    }
    const PAGES: u64 = 3 * LIMIT / PAGE_BYTES as u64;
    let (_kept, path) = match quick_file(PAGES as usize * PAGE_BYTES, AHEAD) {
        Ok(made) => made,
        Err(why) => return println!("SKIP: {why}"),
    };
    let run = run(vec![entry(&path, visits(Order::Sequential, 2 * PAGES), &MMAP)]);
    for method in MMAP {
        let peak = counted(&run, method, "peak_bytes");
        assert!((LIMIT / 2..=LIMIT).contains(&peak), "{method}: {peak}");
    }
    // Without reading ahead, every page is a fault, each time.
    let faults = counted(&run, "mmap-random", "major_faults");
    assert!(faults > PAGES * 3 / 2, "{faults} of {PAGES}");
    assert!(counted(&run, "mmap", "major_faults") < faults / 4);
    assert!(run.ratios.iter().any(|ratio| ratio.policy == "mmap-random"));
}

/// Whether the kernel has swap space on zram now.
fn swaps() -> bool {
    std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.contains("zram"))
}

#[test]
fn memory_that_is_swapped_has_the_files_bytes_and_leaves_no_swap_space() {
    const PAGES: u64 = 3 * LIMIT / PAGE_BYTES as u64;
    if swaps() {
        return println!("SKIP: this machine swaps to zram already");
    }
    let (_kept, path) = file(PAGES as usize * PAGE_BYTES);
    let work = visits(Order::Random, PAGES);
    let run = run(vec![entry(&path, work, &[DEVICE, SWAP])]);
    assert!(!swaps());
    if let Some(why) = run.left_out.iter().find(|why| why.starts_with(SWAP)) {
        return println!("SKIP: {why}");
    }
    if limits().is_ok() {
        assert!(counted(&run, SWAP, "major_faults") > PAGES / 20);
        assert!(counted(&run, SWAP, "peak_bytes") <= LIMIT);
    }
}

#[test]
fn umap_finds_the_same_within_the_limit_or_is_left_out_with_the_reason() {
    // Where `make peers` has built it.
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/libumap.so");
    let beside = std::env::current_exe().unwrap().with_file_name("libumap.so");
    let _ = std::fs::copy(built, &beside);
    const PAGES: u64 = LIMIT / PAGE_BYTES as u64;
    let (_kept, path) = file(PAGES as usize * PAGE_BYTES);
    let methods: Vec<&str> = [DEVICE].into_iter().chain(UMAP).collect();
    let over =
        Entry { limit_bytes: LIMIT / 2, ..entry(&path, visits(Order::Random, PAGES), &methods) };
    let run = run(vec![over]);
    if let Err(why) = has_umap() {
        assert!(run.left_out.iter().any(|told| told.contains(&why)), "{:?}", run.left_out);
        return println!("SKIP: {why}");
    }
    for method in UMAP {
        let row = run.rows.iter().find(|row| row.policy == method).unwrap();
        assert!(row.rounds.iter().all(|round| round.requests == PAGES), "{method}");
        if limits().is_ok() {
            assert!(counted(&run, method, "peak_bytes") <= LIMIT / 2, "{method}");
        }
    }
}

#[test]
fn a_limit_has_room_for_what_the_kernel_reads_ahead_of_the_device() {
    const MUCH: u64 = 8 << 20;
    let work = visits(Order::Sequential, 4);
    let ((_less, little), (_more, much)) = match (quick_file(4096, AHEAD), quick_file(4096, MUCH)) {
        (Ok(little), Ok(much)) => (little, much),
        (Err(why), _) | (_, Err(why)) => return println!("SKIP: {why}"),
    };
    let limit = |path: &Path, paged| limit_bytes(work, path, LIMIT, paged);
    assert!((4 << 20..3 * MUCH).contains(&limit(&little, 1)));
    assert!((3 * MUCH..4 * MUCH).contains(&limit(&much, 1)));
    // Which is no share of more.
    assert_eq!(limit(&much, 8 * MUCH), limit(&little, 8 * MUCH));
    let address = Path::new("emu:latency=1us,size=1MiB");
    assert_eq!(limit(address, 1), limit(&little, 1));
}

#[test]
fn walks_over_graphs_find_the_same_by_every_way() {
    if let Err(why) = limits() {
        return println!("SKIP: {why}");
    }
    let (_kept, directory) = file(8);
    let graph = directory.with_file_name("graph.csr");
    csr::generate(12, &graph).unwrap();
    let methods: Vec<&str> = match regions() {
        true => vec!["mmap", "mmap-random-hints", "region", "region-hints"],
        false => vec!["mmap", "mmap-random-hints"],
    };
    let entries = Program::ALL.map(|program| entry(&graph, Work::Graph(program), &methods)).into();
    let run = run(entries);
    assert_eq!(run.rows.len(), 4 * methods.len());
    for row in &run.rows {
        assert!(row.rounds.iter().all(|round| round.operations["done"] == 1 && round.wall_ns > 0));
    }
}

#[test]
fn a_sort_in_place_and_a_search_find_the_same_by_every_way() {
    if !regions() || limits().is_err() {
        return println!("SKIP: regions and limits are needed");
    }
    let (_kept, path) = file(LIMIT as usize * 2);
    let graph = path.with_file_name("graph.csr");
    csr::generate(12, &graph).unwrap();
    let search = Work::Graph(Program::BreadthFirst);
    let run = run(vec![
        entry(&path, Work::Sort, &["mmap-random", "region"]),
        entry(&graph, search, &["mmap-random", "region", "region-hints"]),
    ]);
    assert_eq!(run.rows.len(), 5);
    for row in &run.rows {
        assert!(row.rounds.iter().all(|round| round.operations["done"] == 1 && round.wall_ns > 0));
    }
    // The last turn's words are in the file, in their order.
    let bytes = std::fs::read(&path).unwrap();
    let (words, _) = bytes.as_chunks();
    assert!(words.is_sorted_by_key(|word| u64::from_le_bytes(*word)));
}

#[test]
fn stages_of_faults_are_told_and_make_up_the_whole() {
    if !regions() {
        return;
    }
    let (_kept, path) = file(LIMIT as usize * 2);
    let timed =
        Visits { order: Order::Shuffled, visits: 2000, whole: false, turns: 0, timed: true };
    let run = run(vec![entry(&path, Work::Visits(timed), &["region-stages"])]);
    for round in &run.rows[0].rounds {
        let stages = STAGES.map(|stage| round.paging[&format!("{stage}_ns")]);
        assert!(stages.iter().all(|ns| *ns > 0), "{stages:?}");
    }
}

#[test]
fn regions_find_the_same_as_the_kernel_within_their_budgets() {
    if !regions() {
        return;
    }
    const PAGES: u64 = LIMIT / PAGE_BYTES as u64;
    let (_kept, path) = file(PAGES as usize * PAGE_BYTES);
    let two = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let mut methods: Vec<&str> = REGION
        .into_iter()
        .filter(|method| two || !["other", "spins"].iter().any(|w| method.ends_with(w)))
        .collect();
    // The kernel's mode that reads nothing ahead: on a disk, read-ahead may be more than the limit.
    methods.extend(["mmap-random", DEVICE]);
    let orders = [Order::Random, Order::Strided { pages: 7 }, Order::Window { pages: 40 }];
    for order in orders {
        let over = Entry { limit_bytes: LIMIT / 2, ..entry(&path, visits(order, PAGES), &methods) };
        let run = run(vec![over]);
        for method in REGION.into_iter().filter(|method| methods.contains(method)) {
            assert!(counted(&run, method, "major_faults") > 0, "{method}");
            assert!(counted(&run, method, "evicted") > 0, "{method}");
            if limits().is_ok() {
                let peak = counted(&run, method, "peak_bytes");
                assert!(peak <= LIMIT / 2, "{method}: {peak}");
            }
        }
    }
}

#[test]
fn an_impossible_case_is_said_with_the_contenders_name() {
    let (_kept, path) = file(1 << 20);
    let missing = path.with_file_name("none");
    let of = |entry: Entry| {
        format!("{:#}", measure(&plan(vec![entry]), vec![], &mut |_, _| {}).unwrap_err())
    };
    let walk = Work::Graph(Program::ShortestPaths);
    let told = of(entry(&path, walk, &[DEVICE]));
    assert!(told.contains("device") && told.contains("only visited"), "{told}");
    let told = of(entry(&missing, visits(Order::Random, 1), &[DEVICE]));
    assert!(told.contains("none"), "{told}");
    let told =
        of(Entry { limit_bytes: 768 << 10, ..entry(&path, visits(Order::Random, 1), &["region"]) });
    assert!(told.contains("leaves no room"), "{told}");
    if limits().is_ok() {
        let told = of(entry(&path, walk, &["mmap"]));
        assert!(told.contains("mmap") && told.contains("no graph"), "{told}");
    }
}
