// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one decision costs, by policy: `cargo run --release -p dwell-policy --example
//! decision_cost`.
//!
//! Each line is the median over many batches. Requests differ in size, backlog and sequence number,
//! so that neither the compiler nor the branch predictor knows the answer; the loop that hands them
//! out is measured by itself and taken off. `wait` is what a caller does besides: it looks up the
//! queue's estimate and fills in the request.

use std::hint::black_box;
use std::time::Instant;

use dwell_policy::policy::{Block, Hybrid, NAMES, Predictive, SmartCon, Spin, by_name};
use dwell_policy::{DeviceClass, Estimator, Kind, Mode, Profile, Wait, WaitPolicy};

const BATCHES: usize = 401;
const PER_BATCH: usize = 20_000;

/// Nanoseconds per item: the median, the first and the ninth decile of the batches.
fn measure(items: &[Wait<'_>], mut work: impl FnMut(&Wait<'_>)) -> (f64, f64, f64) {
    let mut each_ns: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let started = Instant::now();
            for item in items.iter().cycle().take(PER_BATCH) {
                work(black_box(item));
            }
            started.elapsed().as_nanos() as f64 / PER_BATCH as f64
        })
        .collect();
    each_ns.sort_by(f64::total_cmp);
    (each_ns[BATCHES / 2], each_ns[BATCHES / 10], each_ns[BATCHES * 9 / 10])
}

fn main() {
    let classes = [DeviceClass::VeryFast, DeviceClass::Fast, DeviceClass::Mainstream];
    let profiles = classes.map(|class| Profile { class, latency_ns: 10_000, ..Profile::default() });
    let mut estimator = Estimator::new();
    for size_bytes in [4096, 16 << 10, 64 << 10] {
        estimator.record(Kind::Read, size_bytes, Mode::Spin, 9_000 + size_bytes / 10);
        estimator.record(Kind::Read, size_bytes, Mode::Block, 14_000 + size_bytes / 10);
    }
    let requests = |profile| -> Vec<Wait<'_>> {
        (0..1021u64)
            .map(|sequence| {
                let size_bytes = [4096, 16 << 10, 64 << 10][sequence as usize * 7 % 11 % 3];
                let mut wait = Wait::new(Kind::Read, size_bytes, Some(profile));
                wait.backlog.bytes = [0, 0, 4096, 60 << 10][sequence as usize * 5 % 13 % 4];
                wait.estimate = estimator.of(Kind::Read, size_bytes);
                wait.sequence = sequence;
                wait
            })
            .collect()
    };
    let fast = requests(&profiles[1]);
    let (loop_ns, ..) = measure(&fast, |wait| {
        black_box(wait);
    });
    println!("{BATCHES} batches of {PER_BATCH} decisions; loop of {loop_ns:.1} ns taken off");
    println!("{:<24} {:>9} {:>9} {:>9}", "", "median ns", "p10 ns", "p90 ns");
    let show = |name: &str, (median, low, high): (f64, f64, f64)| {
        let own = |ns: f64| (ns - loop_ns).max(0.0);
        println!("{name:<24} {:>9.1} {:>9.1} {:>9.1}", own(median), own(low), own(high));
    };
    fn decide<P: WaitPolicy>(policy: &P, wait: &Wait<'_>) {
        black_box(policy.choose(wait));
    }
    show("block", measure(&fast, |wait| decide(&Block, wait)));
    show("spin", measure(&fast, |wait| decide(&Spin, wait)));
    show("hybrid", measure(&fast, |wait| decide(&Hybrid, wait)));
    for (class, profile) in classes.iter().zip(&profiles) {
        let requests = requests(profile);
        let smartcon = SmartCon { queue_limit: Some(8), ..SmartCon::default() };
        show(&format!("smartcon, {class}"), measure(&requests, |wait| decide(&smartcon, wait)));
    }
    show("predictive", measure(&fast, |wait| decide(&Predictive, wait)));
    for name in NAMES {
        let policy = black_box(by_name(name).expect("a policy has its name"));
        let cost = measure(&fast, |wait| {
            black_box(policy.choose(wait));
        });
        show(&format!("{name}, by dyn"), cost);
    }
    let cost = measure(&fast, |wait| {
        let mut own = Wait::new(wait.kind, wait.size_bytes, wait.profile);
        own.estimate = estimator.of(wait.kind, wait.size_bytes);
        own.backlog = wait.backlog;
        black_box(&own);
    });
    show("wait", cost);
    let cost = measure(&fast, |wait| {
        estimator_record(wait);
    });
    show("record", cost);
}

/// What a completion adds: one sample to an estimator of its own.
fn estimator_record(wait: &Wait<'_>) {
    thread_local! {
        static OWN: std::cell::RefCell<Estimator> = const { std::cell::RefCell::new(Estimator::new()) };
    }
    OWN.with_borrow_mut(|own| {
        own.record(wait.kind, wait.size_bytes, Mode::Spin, 9_000 + wait.sequence)
    });
}
