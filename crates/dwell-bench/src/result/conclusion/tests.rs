// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sentences about runs whose ratios are known.

use super::*;
use crate::conditions::Conditions;
use crate::result::{Ratio, Work};
use crate::sample;

/// A run with this interval of `smartcon` to `block` for each device, load, depth and size.
pub(super) fn run(cases: &[(&str, Load, u32, u64, f64, f64)]) -> Run {
    let sample = sample::run();
    let mut run = Run::new(sample.machine.clone(), vec![], vec![]);
    run.conditions = Some(Conditions { quiet: Some(true), ..Conditions::default() });
    for &(device, load, depth, kib, low, high) in cases {
        let work = Work::Requests(Requests { depth, ..Requests::random_reads() });
        let setting = Setting { device: device.into(), load, scheduler: None, work };
        for policy in ["block", "adaptive"] {
            let mut row = sample.rows[0].clone();
            (row.setting, row.size_bytes, row.policy) =
                (setting.clone(), kib << 10, policy.to_owned());
            let wall_ns = if load == Load::Idle { 60_000_000 } else { 1_000_000_000 };
            row.rounds.iter_mut().for_each(|round| round.wall_ns = wall_ns);
            row.emulated = device.starts_with("emu").then(|| "emulated".to_owned());
            run.rows.push(row);
        }
        let median = (low * high).sqrt();
        run.ratios.push(Ratio {
            setting,
            size_bytes: kib << 10,
            policy: "adaptive".into(),
            baseline: "block".into(),
            metric: Metric::Throughput,
            paired: Paired { median, low, high, rounds: 7 },
        });
    }
    run
}

fn says(run: &Run) -> String {
    let text = sentence(run, "block");
    assert!(text.ends_with('.') && !text.contains('\n') && !text.contains("  "), "{text}");
    text
}

#[test]
fn one_size_idle_and_beside_load_is_the_sentence_of_the_papers() {
    let nvme = "/dev/nvme0n1";
    let mut two = run(&[(nvme, Load::Idle, 1, 4, 1.33, 1.39), (nvme, Load::Cpu, 1, 4, 0.99, 1.01)]);
    assert_eq!(
        says(&two),
        "On this device, for random 4 KiB reads, dwell gains 1.36× [1.33–1.39] when idle and loses \
         nothing beside CPU load."
    );
    two.ratios.iter_mut().for_each(|ratio| ratio.baseline = "pread".into());
    assert!(
        sentence(&two, "pread").starts_with("On this device, for random 4 KiB reads against pread")
    );
}

#[test]
fn only_a_whole_interval_is_a_claim() {
    let one = |low, high| says(&run(&[("d", Load::Idle, 1, 4, low, high)]));
    let head = "On this device, for random 4 KiB reads, dwell";
    assert_eq!(one(1.021, 1.1), format!("{head} gains 1.06× [1.02–1.10] when idle."));
    assert_eq!(one(0.8, 0.9), format!("{head} loses: 0.85× [0.80–0.90] when idle."));
    assert_eq!(one(0.985, 1.015), format!("{head} makes no difference when idle."));
    // Within two percent it is no difference, on one side of 1 or not.
    assert_eq!(one(1.001, 1.019), format!("{head} makes no difference when idle."));
    assert_eq!(one(1.001, 1.021), format!("{head} gains 1.01× [1.00–1.02] when idle."));
    for (low, high) in [(1.0, 1.3), (0.7, 1.0), (0.97, 1.01), (0.2, 5.0)] {
        let text = one(low, high);
        assert!(text.contains("this run cannot tell what dwell does when idle ("), "{text}");
        assert!(text.ends_with(" More rounds (--rounds 28) would tell."), "{text}");
        assert!(!text.contains("gains") && !text.contains("loses"), "{text}");
    }
}

#[test]
fn fewer_than_six_rounds_claim_nothing() {
    let mut run = run(&[("d", Load::Idle, 1, 4, 1.3, 1.4)]);
    for (rounds, said) in [(1, "1 round cannot tell"), (5, "5 rounds cannot tell")] {
        run.ratios[0].paired.rounds = rounds;
        let text = says(&run);
        assert!(
            text.contains(said) && text.contains("--rounds") && !text.contains("gains"),
            "{text}"
        );
    }
    run.ended = Some("interrupted".into());
    assert!(says(&run).contains("ended early"));
}

#[test]
fn several_sizes_are_told_in_two_sentences_with_the_clearest_ratios() {
    let at = |kib, low, high| ("d", Load::Idle, 1, kib, low, high);
    let three = run(&[at(4, 1.33, 1.39), at(64, 0.99, 1.01), at(512, 0.95, 1.07)]);
    assert_eq!(
        says(&three),
        "On this device, for random reads, when idle dwell gains 1.36× [1.33–1.39] at 4 KiB, and \
         makes no difference at 64 KiB; this run cannot tell at 512 KiB when idle (1.01× \
         [0.95–1.07]). More rounds (--rounds 28) would tell."
    );
    let many = run(&[
        at(4, 1.33, 1.39),
        at(8, 1.05, 1.1),
        at(16, 1.4, 1.5),
        at(64, 0.7, 0.8),
        at(128, 0.9, 1.1),
        at(512, 0.9, 1.1),
    ]);
    assert_eq!(
        says(&many),
        "On this device, for random reads, when idle dwell gains 1.36× [1.33–1.39] at 4 KiB, 1.45× \
         [1.40–1.50] at 16 KiB and at 1 more size, and loses: 0.75× [0.70–0.80] at 64 KiB; \
         this run cannot tell at 128 KiB and 512 KiB when idle. More rounds (--rounds 28) would \
         tell."
    );
}

#[test]
fn where_no_size_is_certain_none_is_listed() {
    let at = |load, kib, low, high| ("d", load, 1, kib, low, high);
    let both = [at(Load::Idle, 4, 0.9, 1.1), at(Load::Idle, 64, 0.9, 1.1)];
    let text = says(&run(&both));
    let head = "On this device, for random reads, this run cannot tell what dwell does at any size";
    assert!(text.starts_with(&format!("{head} when idle. More")), "{text}");
    let more = [at(Load::Cpu, 4, 0.9, 1.1), at(Load::Cpu, 64, 0.99, 1.01)];
    let text = says(&run(&[both, more].concat()));
    let part =
        "cannot tell at any size when idle nor at 4 KiB beside CPU load (0.99× [0.90–1.10]).";
    assert!(text.contains(part), "{text}");
}

#[test]
fn several_loads_are_told_apart() {
    let text = says(&run(&[
        ("d", Load::Idle, 1, 4, 1.3, 1.4),
        ("d", Load::Idle, 1, 64, 0.99, 1.01),
        ("d", Load::Cpu, 1, 4, 0.2, 1.5),
        ("d", Load::Cpu, 1, 64, 0.99, 1.01),
    ]));
    assert_eq!(
        text,
        "On this device, for random reads, when idle dwell gains 1.35× [1.30–1.40] at 4 KiB, and \
         makes no difference at 64 KiB; beside CPU load it loses nothing at 64 KiB; this run \
         cannot tell at 4 KiB beside CPU load (0.55× [0.20–1.50]). More rounds (--rounds \
         28) would tell."
    );
}

#[test]
fn many_settings_are_counted() {
    let depth = |depth, low, high| ("d", Load::Idle, depth, 4, low, high);
    let text = says(&run(&[
        depth(1, 1.3, 1.4),
        depth(2, 1.5, 1.6),
        depth(4, 0.8, 0.9),
        depth(8, 0.99, 1.01),
        depth(16, 0.8, 1.2),
    ]));
    assert_eq!(
        text,
        "On this device, of 5 cases, dwell gains in 2 (1.55× [1.50–1.60]: 4 KiB, when idle, random \
         read, queue depth 2), loses in 1 (0.85× [0.80–0.90]: 4 KiB, when idle, random read, queue \
         depth 4), makes no difference in 1 and does what this run cannot tell in 1. More rounds \
         (--rounds 28) would tell."
    );
    let two = says(&run(&[depth(1, 1.3, 1.4), depth(16, 0.99, 1.01)]));
    assert!(two.contains("when idle, random read, queue depth 16"), "{two}");
}

#[test]
fn an_emulated_device_is_called_one() {
    let one = says(&run(&[("emu:z-nand", Load::Idle, 1, 4, 1.3, 1.4)]));
    assert!(
        one.starts_with("On this emulated device, for random 4 KiB reads, dwell gains"),
        "{one}"
    );
    let two = says(&run(&[
        ("loop", Load::Idle, 1, 4, 1.3, 1.4),
        ("emu:z-nand", Load::Idle, 1, 4, 1.3, 1.4),
    ]));
    assert_eq!(two.matches("dwell gains").count(), 2);
    assert!(
        two.starts_with("On loop, for random") && two.contains("On emu:z-nand, which is emulated,")
    );
}

fn lengthen(run: &mut Run, wall_ns: u64) {
    run.rows.iter_mut().flat_map(|row| &mut row.rounds).for_each(|round| round.wall_ns = wall_ns);
}

#[test]
fn short_batches_claim_nothing_beside_other_work() {
    let mut noisy = run(&[("d", Load::Idle, 1, 4, 2.17, 16.13)]);
    noisy.conditions = Some(Conditions { quiet: Some(false), ..Conditions::default() });
    assert_eq!(
        says(&noisy),
        "On this device, for random 4 KiB reads, this run cannot tell what dwell does beside what \
         else ran here (5.92× [2.17–16.13]). Batches of 60.0 ms tell nothing beside other work: a \
         quieter machine or longer ones (--batch-ms 1000) would."
    );
    let mut loaded = run(&[("d", Load::Cpu, 1, 4, 1.3, 1.4)]);
    assert!(says(&loaded).ends_with("dwell gains 1.35× [1.30–1.40] beside CPU load."));
    lengthen(&mut loaded, 60_000_000);
    assert!(says(&loaded).ends_with("beside other work: longer ones (--batch-ms 1000) would."));
}

#[test]
fn idle_is_said_only_of_a_machine_that_was_seen_to_be() {
    let mut run = run(&[("d", Load::Idle, 1, 4, 1.3, 1.4)]);
    run.conditions = None;
    assert!(says(&run).ends_with("with no load added."));
    run.conditions = Some(Conditions { quiet: Some(false), ..Conditions::default() });
    lengthen(&mut run, 1_000_000_000);
    assert!(says(&run).ends_with("beside what else ran here."));
    (run.ratios[0].paired.low, run.ratios[0].paired.high) = (0.8, 1.2);
    assert!(says(&run).ends_with("A quieter machine or more rounds (--rounds 28) would tell."));
}

#[test]
fn without_the_default_policy_or_its_baseline_nothing_is_claimed() {
    let mut run = run(&[("d", Load::Idle, 1, 4, 1.3, 1.4)]);
    assert!(sentence(&run, "pread").contains("says nothing about dwell: nothing of pread"));
    for row in &mut run.rows {
        row.policy = row.policy.replace("adaptive", "spin");
    }
    run.ratios[0].policy = "spin".into();
    let text = says(&run);
    assert!(
        text.contains("says nothing about dwell: adaptive") && !text.contains("gains"),
        "{text}"
    );
}
