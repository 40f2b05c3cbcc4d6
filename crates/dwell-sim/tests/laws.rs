// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds in every simulation: time adds up, faults have one cause, a seed gives one report.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dwell_sim::synthetic::{Loop, Order};
use dwell_sim::{
    Batch, Kept, Machine, Params, Plan, PolicyKind, Report, SimError, Source, Task, resume,
    simulate, survey,
};
use proptest::prelude::*;

fn check(report: &Report) {
    assert_eq!(report.time.total_ns(), report.elapsed_ns, "every nanosecond has one account");
    assert_eq!(
        report.processes.iter().map(|process| process.finish_ns).max(),
        Some(report.elapsed_ns)
    );
    let instructions: u64 = report.processes.iter().map(|process| process.instructions).sum();
    assert_eq!(instructions, report.instructions);
    let majors: u64 = report.processes.iter().map(|process| process.major_faults).sum();
    assert_eq!(majors, report.faults.major());
    assert_eq!(
        report.waits.spun + report.waits.blocked,
        report.faults.major() + report.faults.late
    );
    let prefetches = report.prefetches;
    assert_eq!(
        prefetches.issued,
        prefetches.used + prefetches.late + prefetches.unused,
        "{prefetches:?}"
    );
    assert_eq!((prefetches.used, prefetches.late), (report.faults.prefetched, report.faults.late));
    let ahead = report.preexecution;
    assert!(ahead.lines_used <= ahead.lines && ahead.invalid <= ahead.instructions);
    assert!(ahead.stalled_ns <= ahead.filled_ns && ahead.filled_ns <= ahead.offered_ns);
    assert_eq!(report.time.cache_miss_ns, report.accesses.dram * 50);
}

fn any_loop() -> impl Strategy<Value = Loop> {
    let order = prop::sample::select(vec![Order::Sweep, Order::Draw, Order::Chase]);
    (order, 1u64..40, 1u64..800, 0u64..30, 0u64..4, 0u64..100, any::<u64>()).prop_map(
        |(order, pages, visits, work, store_every, hot_percent, seed)| Loop {
            stride_bytes: 1032,
            work,
            store_every,
            hot_percent,
            seed,
            ..Loop::new(order, pages * 4096, visits)
        },
    )
}

fn any_sets() -> impl Strategy<Value = Vec<&'static str>> {
    let choices: [&[&str]; 13] = [
        &["replacement=clock", "replacement=lru", "replacement=fifo"],
        &["first_touch=anonymous", "first_touch=storage", "first_touch=zero"],
        &["prefetched=minor-fault", "prefetched=mapped"],
        &["sync_prefetch_by=group", "sync_prefetch_by=virtual"],
        &["recovery=timer", "recovery=interrupt"],
        &["preexecute_miss=wait", "preexecute_miss=overlap", "preexecute_miss=invalid"],
        &["tlb_entries=1536", "tlb_entries=0", "tlb_entries=12"],
        &["preexecute_misses=10", "preexecute_misses=1", "preexecute_cache_split=own"],
        &["runahead_at=fault", "runahead_at=miss", "runahead_at=both"],
        &["slice_scale=1", "slice_scale=0.0001", "slice_scale=0.0000001"],
        &["device_channels=1", "device_channels=16"],
        &["device_jitter_percent=0", "device_jitter_percent=40"],
        &[
            "l2_bytes=0",
            "l2_bytes=64K",
            "l1_bytes=0",
            "line_bytes=128",
            "switch_lines=100",
            "wake_to=head",
            "pte_inv=keep",
        ],
    ];
    let each = choices.map(|words| prop::sample::select(words.to_vec()));
    each.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn time_faults_and_pages_add_up_and_a_seed_gives_one_report(
        loops in prop::collection::vec((any_loop(), -20i8..20), 1..4),
        sets in any_sets(),
        frames in 0u64..30,
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        seed in any::<u64>(),
    ) {
        let mut params = Params::default();
        params.set("llc_bytes=64K").unwrap();
        sets.iter().for_each(|set| params.set(set).unwrap());
        let programs: Vec<_> = loops.iter().map(|(spec, _)| spec.named("loop")).collect();
        let pages: Vec<_> = programs
            .iter()
            .map(|program| survey(program, &params, &mut |_| true).unwrap().unwrap().on_device(&params))
            .collect();
        let tasks: Vec<_> = programs.iter().zip(&pages).zip(&loops)
            .map(|((program, pages), (_, nice))| Task { source: program, nice: *nice, pages })
            .collect();
        let dram_bytes = (loops.len() as u64 + 2 + frames) * 4096;
        let run = || {
            let mut machine = Machine::new(&params, kind, seed, dram_bytes, &tasks).unwrap();
            machine.run(&mut |_| true).unwrap();
            machine.report("any")
        };
        let report = run();
        check(&report);
        prop_assert_eq!(serde_json::to_string(&run()).unwrap(), serde_json::to_string(&report).unwrap());
    }
}

/// Six processes that fault often: three sweep, three draw, and DRAM holds half of their pages.
const FAULT_HEAVY: &str = r#"
    name = "fault_heavy"
    set = { llc_bytes = "256K", slice_scale = 0.001, dram_percent = 50 }
    process = [
        { name = "s1", loop = { order = "sweep", bytes = 400000, visits = 40000, stride_bytes = 40, work = 4 } },
        { name = "s2", loop = { order = "sweep", bytes = 600000, visits = 40000, stride_bytes = 40, work = 6, store_every = 5 } },
        { name = "s3", loop = { order = "sweep", bytes = 500000, visits = 40000, stride_bytes = 40, work = 8 } },
        { name = "d1", loop = { order = "draw", bytes = 300000, visits = 20000, work = 8, hot_percent = 80, seed = 1 } },
        { name = "d2", loop = { order = "draw", bytes = 300000, visits = 20000, work = 8, hot_percent = 90, seed = 2 } },
        { name = "c1", loop = { order = "chase", bytes = 200000, visits = 20000, work = 8, hot_percent = 90, seed = 3 } },
    ]
"#;

fn plan(seeds: u64) -> Plan {
    let batch = Batch::parse(FAULT_HEAVY).unwrap();
    let sources = batch.sources(&mut |_, _| unreachable!()).unwrap();
    Plan::of(&batch, sources, seeds).unwrap()
}

fn no_progress(_: dwell_sim::Progress) {}

#[test]
fn a_batch_runs_under_all_policies_and_seeds_and_is_the_same_the_second_time() {
    let go = AtomicBool::new(false);
    let told = AtomicU64::new(0);
    let tell = |progress: dwell_sim::Progress| {
        assert!(progress.of_instructions == 0 || progress.instructions <= progress.of_instructions);
        told.fetch_max(progress.runs, Ordering::Relaxed);
    };
    let runs = simulate(&plan(3), &tell, &go).unwrap();
    assert_eq!((runs.reports.len(), told.into_inner()), (15, 15));
    runs.reports.iter().for_each(check);
    assert_eq!(simulate(&plan(3), &no_progress, &go).unwrap(), runs);
    let text = serde_json::to_string(&runs.reports[0]).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), runs.reports[0]);

    // Another seed draws other priorities.
    let nices =
        |report: &Report| report.processes.iter().map(|process| process.nice).collect::<Vec<_>>();
    assert_ne!(nices(&runs.reports[0]), nices(&runs.reports[1]));

    let mean = |kind, of: &dyn Fn(&Report) -> f64| {
        let of_kind: Vec<_> =
            runs.reports.iter().filter(|report| report.policy == kind).map(of).collect();
        of_kind.iter().sum::<f64>() / of_kind.len() as f64
    };
    let idle = |kind| mean(kind, &|report| report.idle.total_ns() as f64);
    let majors = |kind| mean(kind, &|report| report.faults.major() as f64);
    let misses = |kind| mean(kind, &|report| report.accesses.dram as f64);
    use PolicyKind::{Async, Its, Sync, SyncPrefetch, SyncRunahead};
    // A switch costs more than the wait that it saves.
    assert!(idle(Async) > idle(Sync));
    // Prefetched pages do not fault, and pre-executed accesses do not miss.
    assert!(majors(SyncPrefetch) < majors(Sync) && majors(Its) < majors(Sync));
    assert!(misses(SyncRunahead) < misses(Sync));
    assert!(idle(Its) < idle(Sync));
}

/// Reports in memory, as if another run had made them.
#[derive(Default)]
struct Memory(Mutex<Vec<Report>>);

impl Kept for Memory {
    fn find(&self, policy: PolicyKind, seed: u64) -> Option<Report> {
        let reports = self.0.lock().unwrap();
        reports.iter().find(|report| (report.policy, report.seed) == (policy, seed)).cloned()
    }

    fn keep(&self, report: &Report) -> Result<(), String> {
        self.0.lock().unwrap().push(report.clone());
        Ok(())
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_with_what_is_missing_and_ends_as_one_that_was_not() {
    let go = AtomicBool::new(false);
    let whole = simulate(&plan(2), &no_progress, &go).unwrap();
    let kept = Memory(Mutex::new(whole.reports[..7].to_vec()));
    // Told from several threads, so the last word need not be the furthest.
    let (told, of) = (AtomicU64::new(0), AtomicU64::new(0));
    let tell = |progress: dwell_sim::Progress| {
        told.fetch_max(progress.instructions, Ordering::Relaxed);
        of.fetch_max(progress.of_instructions, Ordering::Relaxed);
    };
    let resumed = resume(&plan(2), &kept, &tell, &go);
    assert_eq!(resumed.unwrap(), whole);
    assert_eq!(told.into_inner(), of.into_inner());
    assert_eq!(kept.0.into_inner().unwrap().len(), 10);
}

#[test]
fn a_run_stops_soon_when_it_is_cancelled() {
    let mut plan = plan(1);
    let long = Loop { work: 100, ..Loop::new(Order::Sweep, 1 << 20, 1 << 40) };
    plan.sources = vec![Arc::new(long.named("for ever")) as Arc<dyn Source>];
    let cancel = AtomicBool::new(false);
    let tell = |progress: dwell_sim::Progress| {
        if progress.instructions > 1_000_000 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    assert_eq!(simulate(&plan, &tell, &cancel), Err(SimError::Cancelled));
}

#[test]
fn a_program_that_fails_is_named() {
    struct Damaged;
    impl Source for Damaged {
        fn name(&self) -> &str {
            "wrf"
        }
        fn dictionary(&self) -> Arc<dwell_sim::Dictionary> {
            Arc::default()
        }
        fn open(&self) -> Result<Box<dyn dwell_sim::Program>, dwell_sim::ProgramError> {
            Err(dwell_sim::ProgramError("damaged at byte 17".into()))
        }
    }
    let mut plan = plan(1);
    plan.sources[0] = Arc::new(Damaged);
    let error = simulate(&plan, &no_progress, &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.to_string(), "wrf: damaged at byte 17");
}
