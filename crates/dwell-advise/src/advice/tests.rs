// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::Cost;

const MICRO: u64 = 1000;

/// A thousand waits for `device`, each with these parts.
fn waits(device: &str, operation: Operation, issued: Issued, each: Parts) -> Wait {
    let count = 1000;
    let mut parts = Parts::default();
    (0..count).for_each(|_| parts += each);
    let mut latency = vec![0; 28];
    latency[(63 - each.total_ns().leading_zeros() as usize).saturating_sub(7)] = count;
    Wait {
        process: 7,
        program: "test".to_owned(),
        device: device.to_owned(),
        operation,
        issued,
        size_bytes: 4096,
        through_thread: false,
        count,
        parts,
        latency,
    }
}

/// A program that did nothing but wait, on one thread.
fn seen(waits: Vec<Wait>) -> Seen {
    let ns: u64 = waits.iter().map(|wait| wait.parts.total_ns()).sum();
    Seen {
        seconds: ns as f64 / 1e9,
        thread_seconds: ns as f64 / 1e9,
        waits,
        other_waits: 0,
        other_seconds: 0.0,
        devices: vec![],
        cost: Cost::default(),
        notes: vec![],
    }
}

fn only(seen: &Seen) -> Advice {
    let mut advice = advise(seen);
    assert_eq!(advice.len(), 1, "{advice:?}");
    advice.remove(0)
}

fn parts(device_us: u64, wake_us: u64) -> Parts {
    Parts { device_ns: device_us * MICRO, wake_ns: wake_us * MICRO, ..Parts::default() }
}

#[test]
fn waking_of_reads_by_calls_is_what_spinning_gains() {
    let advice = only(&seen(vec![waits("nvme0n1", Operation::Read, Issued::Call, parts(12, 4))]));
    assert_eq!(advice.remedy, Remedy::Spin);
    assert!((advice.gain - 16.0 / 12.0).abs() < 1e-9, "{advice:?}");
    assert!(advice.text.contains("4.0 of 16.0 µs are waking"), "{}", advice.text);
}

#[test]
fn the_time_between_waits_counts_as_well() {
    let mut seen = seen(vec![waits("nvme0n1", Operation::Read, Issued::Call, parts(12, 4))]);
    seen.thread_seconds *= 2.0;
    seen.seconds *= 2.0;
    assert!((only(&seen).gain - 32.0 / 28.0).abs() < 1e-9);
}

#[test]
fn the_same_waits_by_io_uring_are_not_for_dwell_run() {
    for issued in [Issued::IoUring, Issued::Libaio, Issued::Fault] {
        let advice = only(&seen(vec![waits("nvme0n1", Operation::Read, issued, parts(12, 4))]));
        assert_eq!(advice.remedy, Remedy::Library);
        assert!(!advice.text.contains("Try: dwell run"), "{}", advice.text);
    }
}

#[test]
fn a_slow_device_leaves_nothing_to_gain() {
    let advice = only(&seen(vec![waits("sda", Operation::Read, Issued::Call, parts(5000, 4))]));
    assert_eq!((advice.remedy, advice.gain), (Remedy::Nothing, 1.0));
    assert!(advice.text.starts_with("Nothing to gain on sda: 100 %"), "{}", advice.text);
}

#[test]
fn discards_are_named_before_anything_else() {
    let advice = only(&seen(vec![
        waits("vda", Operation::Discard, Issued::Name, parts(500, 4)),
        waits("vda", Operation::Write, Issued::Sync, parts(40, 4)),
    ]));
    assert_eq!(advice.remedy, Remedy::KeepFiles);
    assert!(advice.text.contains("journal_mode=PERSIST"));
}

#[test]
fn a_busy_cpu_is_no_reason_to_spin() {
    let each = Parts { device_ns: 10 * MICRO, busy_ns: 90 * MICRO, ..Parts::default() };
    let advice = only(&seen(vec![waits("loop0", Operation::Read, Issued::Call, each)]));
    assert_eq!(advice.remedy, Remedy::Cpus);
}

#[test]
fn a_full_queue_is_the_devices_limit() {
    let each = Parts { device_ns: 10 * MICRO, queue_ns: 90 * MICRO, ..Parts::default() };
    let advice = only(&seen(vec![waits("loop0", Operation::Read, Issued::Libaio, each)]));
    assert_eq!(advice.remedy, Remedy::LessInFlight);
}

#[test]
fn flushes_want_commits_together() {
    let advice = only(&seen(vec![waits("vda", Operation::Flush, Issued::Sync, parts(400, 4))]));
    assert_eq!((advice.remedy, advice.gain), (Remedy::GroupCommits, 1.0));
}

#[test]
fn a_device_that_hardly_matters_gets_no_sentence() {
    let mut seen = seen(vec![
        waits("nvme0n1", Operation::Read, Issued::Call, parts(96, 4)),
        waits("vda", Operation::Discard, Issued::Other, parts(2, 1)),
    ]);
    assert_eq!(advise(&seen).len(), 1);
    seen.waits[1].parts.device_ns *= 10;
    assert_eq!(advise(&seen).len(), 2);
}

#[test]
fn a_program_that_hardly_waits_gains_nothing() {
    let mut seen = seen(vec![waits("nvme0n1", Operation::Read, Issued::Call, parts(12, 4))]);
    seen.seconds *= 200.0;
    assert_eq!(
        only(&seen).text,
        "Nothing to gain: threads waited for storage for 0.5 % of the time."
    );
    seen.waits.clear();
    assert_eq!(only(&seen).text, "Nothing to gain: no thread waited for storage.");
}

#[test]
fn a_wait_that_was_not_split_is_not_judged() {
    let each = Parts { other_ns: 30 * MICRO, ..Parts::default() };
    let advice = only(&seen(vec![waits("loop0", Operation::Read, Issued::Call, each)]));
    assert_eq!((advice.remedy, advice.gain), (Remedy::Nothing, 1.0));
    assert!(advice.text.ends_with("it is not known where it went."), "{}", advice.text);
}

#[test]
fn a_quantile_is_the_upper_end_of_its_power_of_two() {
    let total = &totals(&seen(vec![waits("a", Operation::Read, Issued::Call, parts(12, 4))]))[0];
    assert_eq!((total.quantile_ns(0.5), total.quantile_ns(1.0)), (16384, 16384));
    assert_eq!(total.mean_ns(), 16_000);
}
