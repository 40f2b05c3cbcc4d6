// SPDX-License-Identifier: MIT OR Apache-2.0
//! Schedules as text: hand-written programs, every nanosecond accounted for by hand.

use dwell_sim::isa::reg::{RAX, RBX};
use dwell_sim::synthetic::Script;
use dwell_sim::{Machine, Params, PolicyKind, Report, Source, Task, Timeline, survey};

/// One instruction is 1 ns; only the last-level cache, no TLB, pages on the device; the rest as the
/// paper or our defaults say: fault 500 ns, submission 100, device 3,000 + 258, interrupt 500,
/// switch 7,000, miss 50.
const SIMPLE: [&str; 7] = [
    "instruction_ps=1000",
    "l1_bytes=0",
    "llc_hit_ns=0",
    "tlb_entries=0",
    "tlb_shootdown_ns=0",
    "first_touch=storage",
    "preexecute_miss=wait",
];

fn run(kind: PolicyKind, sets: &[&str], scripts: &[(Script, i8)]) -> (Timeline, Report) {
    let mut params = Params::default();
    SIMPLE.iter().chain(sets).for_each(|set| params.set(set).unwrap());
    let pages: Vec<_> = scripts
        .iter()
        .map(|(script, _)| {
            survey(script, &params, &mut |_| true).unwrap().unwrap().on_device(&params)
        })
        .collect();
    let tasks: Vec<_> = scripts
        .iter()
        .zip(&pages)
        .map(|((script, nice), pages)| Task { source: script, nice: *nice, pages })
        .collect();
    let dram_bytes = if params.dram_bytes > 0 { params.dram_bytes } else { 64 << 12 };
    let mut machine = Machine::new(&params, kind, 1, dram_bytes, &tasks).unwrap();
    machine.keep_timeline();
    machine.run(&mut |_| true).unwrap();
    let report = machine.report("test");
    assert_eq!(report.time.total_ns(), report.elapsed_ns, "time accounted is time elapsed");
    (machine.timeline().unwrap().clone(), report)
}

fn lines(timeline: &Timeline) -> Vec<String> {
    timeline.to_string().lines().map(str::to_string).collect()
}

fn one_fault(name: &str) -> Script {
    Script::new(name).work(1_000).load(RAX, RBX, 0x1000, 8).work(1_000)
}

#[test]
fn two_processes_spin_for_one_page_each() {
    let (timeline, report) =
        run(PolicyKind::Sync, &[], &[(one_fault("a"), 0), (one_fault("b"), 0)]);
    assert_eq!(
        lines(&timeline),
        [
            "0 a runs",
            "1601 a spins for 0x1",
            "4859 a gets 0x1",
            "5909 a ends",
            "12909 b runs",
            "14510 b spins for 0x1",
            "17768 b gets 0x1",
            "18818 b ends",
        ]
    );
    assert_eq!(report.time.spin_ns, 2 * 3_258);
    assert_eq!(report.time.cache_miss_ns, 2 * 50);
    assert_eq!(report.time.kernel_ns, 2 * 600);
    assert_eq!(report.time.run_ns, 2 * 2_001);
    assert_eq!((report.faults.first, report.faults.major(), report.waits.spun), (2, 2, 2));
}

#[test]
fn two_processes_leave_the_cpu_to_each_other() {
    let (timeline, report) =
        run(PolicyKind::Async, &[], &[(one_fault("a"), 0), (one_fault("b"), 0)]);
    assert_eq!(
        lines(&timeline),
        [
            "0 a runs",
            "1601 a blocks on 0x1",
            "8601 b runs",
            "10202 b blocks on 0x1",
            "17202 a runs",
            "17702 a gets 0x1",
            "18752 a ends",
            "25752 b runs",
            "26252 b gets 0x1",
            "27302 b ends",
        ]
    );
    assert_eq!((report.switches, report.waits.blocked), (3, 2));
    assert_eq!(report.idle.total_ns(), 3 * 7_000 + 2 * 50);
}

#[test]
fn a_process_alone_that_blocks_leaves_the_cpu_idle_and_switches_back() {
    let (timeline, report) = run(PolicyKind::Async, &[], &[(one_fault("a"), 0)]);
    assert_eq!(
        lines(&timeline)[1..4],
        ["1601 a blocks on 0x1", "11859 a runs", "12359 a gets 0x1"]
    );
    assert_eq!((report.time.nobody_ready_ns, report.time.switch_ns), (3_258, 7_000));
}

#[test]
fn slices_end_and_who_is_ready_takes_turns() {
    // 100 ms at nice 0, scaled to 1 us.
    let work = |name: &str, instructions| (Script::new(name).work(instructions), 0);
    let (timeline, report) =
        run(PolicyKind::Sync, &["slice_scale=0.00001"], &[work("a", 2_500), work("b", 1_500)]);
    assert_eq!(timeline.turns(), "a b a b a");
    assert_eq!(
        lines(&timeline),
        [
            "0 a runs",
            "1000 a yields",
            "8000 b runs",
            "9000 b yields",
            "16000 a runs",
            "17000 a yields",
            "24000 b runs",
            "24500 b ends",
            "31500 a runs",
            "32000 a ends",
        ]
    );
    assert_eq!(report.switches, 4);
}

#[test]
fn a_higher_priority_has_a_longer_slice_and_a_lone_process_keeps_the_cpu() {
    let work = |name: &str, nice| (Script::new(name).work(30_000), nice);
    let sets = ["slice_scale=0.00001"];
    // 8 us against 50 ns.
    let (timeline, report) = run(PolicyKind::Sync, &sets, &[work("high", -20), work("low", 19)]);
    assert_eq!(timeline.turns(), "high low high low high low high low");
    assert_eq!(report.processes[0].finish_ns, 30_000 + 3 * 50 + 6 * 7_000);
    let (timeline, _) = run(PolicyKind::Sync, &sets, &[work("alone", 19)]);
    assert_eq!(lines(&timeline), ["0 alone runs", "30000 alone ends"]);
}

#[test]
fn a_wait_uses_up_the_slice() {
    let sets = ["slice_scale=0.00005"];
    let (timeline, _) =
        run(PolicyKind::Sync, &sets, &[(one_fault("a"), 0), (Script::new("b").work(10), 0)]);
    // The slice of 5 us ends 141 ns after the page came.
    assert_eq!(lines(&timeline)[2..4], ["4859 a gets 0x1", "5000 a yields"]);
}

#[test]
fn idle_time_stealing_lets_the_lower_priority_give_way_and_the_higher_one_stays() {
    let scripts = [(one_fault("low"), 10), (one_fault("high"), -10)];
    let sets = ["its_prefetch=false", "its_preexecute=false"];
    let (timeline, report) = run(PolicyKind::Its, &sets, &scripts);
    assert_eq!(
        lines(&timeline),
        [
            "0 low runs",
            // 300 to the self-sacrificing thread.
            "1901 low blocks on 0x1",
            "8901 high runs",
            "10502 high spins for 0x1",
            "13760 high gets 0x1",
            "14810 high ends",
            "21810 low runs",
            "22310 low gets 0x1",
            "23360 low ends",
        ]
    );
    assert_eq!((report.waits.spun, report.waits.blocked), (1, 1));
}

#[test]
fn a_process_with_nobody_behind_it_or_an_equal_one_keeps_the_cpu() {
    for scripts in [vec![(one_fault("a"), 19)], vec![(one_fault("a"), 5), (one_fault("b"), 5)]] {
        let (_, report) = run(PolicyKind::Its, &[], &scripts);
        assert_eq!(report.waits.blocked, 0);
    }
}

fn four_pages(between: u64) -> Script {
    (1..5).fold(Script::new("a"), |script, page| script.load(RAX, RBX, page << 12, 8).work(between))
}

#[test]
fn the_wait_is_used_for_a_prefetch_and_then_for_pre_execution() {
    let (timeline, report) = run(PolicyKind::Its, &["prefetch_pages=2"], &[(four_pages(6_000), 0)]);
    assert_eq!(
        lines(&timeline)[..5],
        [
            "0 a runs",
            // 1 + 500 + 100: the page comes at 3,859.
            "601 a spins for 0x1",
            // 300 to the thread, 2 entries looked at, 100 each to submit.
            "1003 a prefetches 0x2",
            "1103 a prefetches 0x3",
            // Ticks of 100 ns from 1,103: noticed at 3,903 after 2,800 instructions; 100 to
            // restore.
            "4003 a pre-executed 2800",
        ]
    );
    assert_eq!(lines(&timeline)[5], "4003 a gets 0x1");
    // Prefetched pages arrived meanwhile: minor faults. The fourth page was not among them.
    assert!(
        lines(&timeline)[6].ends_with("a finds 0x2")
            && lines(&timeline)[7].ends_with("a finds 0x3")
    );
    assert_eq!((report.faults.major(), report.faults.prefetched), (2, 2));
    assert_eq!((report.prefetches.issued, report.prefetches.used), (2, 2));
    assert_eq!(report.prefetches.accuracy(), 1.0);
}

#[test]
fn recovery_by_interrupt_is_noticed_when_the_interrupt_is_through() {
    let (timeline, _) =
        run(PolicyKind::Its, &["prefetch_pages=0", "recovery=interrupt"], &[(one_fault("a"), 0)]);
    // Pre-execution begins at 1,901 and has 1,000 instructions only; then the spin goes on.
    assert_eq!(lines(&timeline)[2..4], ["3001 a pre-executed 1000", "4859 a gets 0x1"]);
    let (timeline, _) = run(
        PolicyKind::Its,
        &["prefetch_pages=0", "recovery=interrupt"],
        &[(four_pages(6_000), 0)],
    );
    // The page comes at 3,859 and the interrupt is through at 4,359.
    assert_eq!(lines(&timeline)[2], "4459 a pre-executed 3458");
}

#[test]
fn a_late_prefetch_is_waited_for_only_as_long_as_it_takes() {
    let (timeline, report) = run(
        PolicyKind::SyncPrefetch,
        &["prefetch_group_pages=4", "device_channels=1"],
        &[(four_pages(10), 0)],
    );
    assert_eq!(
        lines(&timeline)[..8],
        [
            "0 a runs",
            "601 a spins for 0x1",
            // The group is pages 0 to 3; 4 entries looked at.
            "705 a prefetches 0x2",
            "805 a prefetches 0x3",
            "3859 a gets 0x1",
            // One channel: page 2 comes at 6,859. A miss, 10 and 1 instructions.
            "3920 a is early for 0x2",
            "4420 a spins for 0x2",
            "6859 a gets 0x2",
        ]
    );
    assert_eq!((report.faults.first, report.faults.late), (2, 2));
    assert_eq!(report.prefetches.late, 2);
}

#[test]
fn a_page_that_left_dram_is_asked_for_again_and_a_changed_one_is_written_first() {
    let script = Script::new("a")
        .store(RAX, RBX, 0x1000, 8)
        .load(RAX, RBX, 0x2000, 8)
        .load(RAX, RBX, 0x3000, 8)
        .load(RAX, RBX, 0x4000, 8)
        .load(RAX, RBX, 0x1000, 8);
    let (timeline, report) =
        run(PolicyKind::Sync, &["dram_bytes=12288", "replacement=lru"], &[(script, 0)]);
    assert_eq!((report.faults.first, report.faults.again, report.written_pages), (4, 1, 1));
    let losses: Vec<_> =
        lines(&timeline).into_iter().filter(|line| line.contains("loses")).collect();
    assert!(losses[0].ends_with("a loses 0x1") && losses[1].ends_with("a loses 0x2"));
}

#[test]
fn pages_of_zeroes_cost_a_minor_fault_and_no_device() {
    let (timeline, report) = run(PolicyKind::Sync, &["first_touch=zero"], &[(one_fault("a"), 0)]);
    assert_eq!(lines(&timeline), ["0 a runs", "1501 a gets zeroes at 0x1", "2551 a ends"]);
    assert_eq!((report.faults.zero, report.faults.major()), (1, 0));
}

#[test]
fn anonymous_pages_are_zeroed_at_first_touch_and_swapped_afterwards() {
    let script = Script::new("a")
        .store(RAX, RBX, 0x1000, 8)
        .load(RAX, RBX, 0x2000, 8)
        .store(RAX, RBX, 0x3000, 8)
        .store(RAX, RBX, 0x4000, 8)
        .load(RAX, RBX, 0x1000, 8);
    let sets = ["dram_bytes=12288", "replacement=lru", "first_touch=anonymous"];
    let (timeline, report) = run(PolicyKind::Sync, &sets, &[(script, 0)]);
    assert_eq!(lines(&timeline)[1], "501 a gets zeroes at 0x1");
    // Page 2 is of a file; page 1 left for page 4, was written, and comes back from the device.
    assert_eq!((report.faults.zero, report.faults.first, report.faults.again), (3, 1, 1));
    assert_eq!(report.written_pages, 1);
}

#[test]
fn a_translation_that_is_not_in_the_tlb_costs_a_walk_and_one_that_is_taken_back_a_shootdown() {
    let script = Script::new("a")
        .load(RAX, RBX, 0x1000, 8)
        .load(RAX, RBX, 0x3000, 8)
        .load(RAX, RBX, 0x1000, 8)
        .load(RAX, RBX, 0x1008, 8);
    let sets = ["tlb_entries=2", "tlb_ways=1", "tlb_walk_ns=20"];
    let (timeline, report) = run(PolicyKind::Sync, &sets, &[(script, 0)]);
    assert_eq!(
        lines(&timeline),
        [
            "0 a runs",
            "601 a spins for 0x1",
            "3859 a gets 0x1",
            // A walk and a miss.
            "4530 a spins for 0x3",
            "7788 a gets 0x3",
            // Both again; page 3 has taken the place of page 1 in the TLB, so that is walked for.
            "7880 a ends",
        ]
    );
    assert_eq!((report.accesses.tlb_misses, report.time.tlb_walk_ns), (3, 60));

    let kernel_ns = |shootdown: &str| {
        let sets = ["dram_bytes=12288", shootdown];
        run(PolicyKind::Sync, &sets, &[(four_pages(10), 0)]).1.time.kernel_ns
    };
    assert_eq!(kernel_ns("tlb_shootdown_ns=100"), kernel_ns("tlb_shootdown_ns=0") + 100);
}

#[test]
fn a_switch_empties_the_tlb() {
    let again = |name: &str| (Script::new(name).work(990).load(RAX, RBX, 0x1000, 8).work(1_000), 0);
    let sets = ["tlb_entries=2", "tlb_ways=1", "first_touch=zero", "slice_scale=0.00002"];
    // Slices of 2 us; the second half touches no page, so each process walks once.
    let (_, report) = run(PolicyKind::Sync, &sets, &[again("a"), again("b")]);
    assert_eq!((report.switches, report.accesses.tlb_misses), (3, 2));
    let twice = |name: &str| {
        let script = Script::new(name).load(RAX, RBX, 0x1000, 8).work(2_000);
        (script.load(RAX, RBX, 0x1000, 8), 0)
    };
    let (_, report) = run(PolicyKind::Sync, &sets, &[twice("a"), twice("b")]);
    assert_eq!((report.switches, report.accesses.tlb_misses), (3, 4));
}

#[test]
fn a_spin_past_its_deadline_leaves_the_cpu() {
    let sets = ["device_channels=1", "device_read_ns=3000", "device_jitter_percent=0"];
    let (_, report) = run(PolicyKind::Sync, &sets, &[(one_fault("a"), 0)]);
    assert_eq!((report.waits.spun, report.waits.expired), (1, 0));
}

#[test]
fn the_same_programs_without_pre_execution_and_prefetch_end_with_the_same_instructions() {
    let scripts = [(four_pages(500), -5), (one_fault("b"), 5)];
    let reports = PolicyKind::ALL.map(|kind| run(kind, &[], &scripts).1);
    for report in &reports {
        assert_eq!(report.instructions, reports[0].instructions);
        assert_eq!(report.accesses.dram + report.accesses.llc, 5);
    }
}

#[test]
fn too_little_dram_is_refused() {
    let script = one_fault("a");
    let tasks = [Task { source: &script as &dyn Source, nice: 0, pages: &[] }];
    let error = Machine::new(&Params::default(), PolicyKind::Sync, 1, 4096, &tasks).err().unwrap();
    assert_eq!(error.to_string(), "1 pages of DRAM for 1 processes: give at least 3 (dram_bytes)");
}
