// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the simulator is on one core: references a second over the caches alone, instructions a
//! second per policy.

use std::time::Instant;

use dwell_sim::synthetic::{Loop, Order};
use dwell_sim::{Machine, Params, PolicyKind, Source, Survey, Task, survey};

fn main() {
    let million = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20u64);
    let visits = million * 1_000_000 / 4;
    let specs = [
        Loop { work: 5, store_every: 4, ..Loop::new(Order::Sweep, 32 << 20, visits / 2) },
        Loop { work: 5, hot_percent: 95, ..Loop::new(Order::Draw, 32 << 20, visits / 2) },
    ];
    let params = Params::default();
    let programs: Vec<_> =
        specs.iter().enumerate().map(|(at, spec)| spec.named(&format!("p{at}"))).collect();
    let dense = Loop { work: 0, ..Loop::new(Order::Sweep, 4 << 20, visits) };
    cache_only("dense", &dense.named("dense"), &params);
    let mut surveys = Vec::new();
    for (program, what) in programs.iter().zip(["sweep", "draw"]) {
        surveys.push(cache_only(what, program, &params));
    }
    let dram_bytes =
        surveys.iter().map(|survey| survey.working_set_pages * 4096).sum::<u64>() * 3 / 4;
    for kind in PolicyKind::ALL {
        let tasks: Vec<_> = programs
            .iter()
            .zip(&surveys)
            .zip([-5, 5])
            .map(|((program, survey), nice)| Task { source: program, nice, pages: &survey.pages })
            .collect();
        let began = Instant::now();
        let mut machine = Machine::new(&params, kind, 1, dram_bytes, &tasks)
            .expect("the parameters make a machine");
        machine.run(&mut |_| true).expect("a loop can be executed");
        let seconds = began.elapsed().as_secs_f64();
        let report = machine.report("speed");
        println!(
            "{:13} {:6.1} M instructions/s, {} of them pre-executed besides; {} major faults, {} misses",
            kind.as_str(),
            report.instructions as f64 / seconds / 1e6,
            report.preexecution.instructions,
            report.faults.major(),
            report.accesses.dram,
        );
    }
}

fn cache_only(what: &str, program: &dyn Source, params: &Params) -> Survey {
    let began = Instant::now();
    let survey = survey(program, params, &mut |_| true);
    let survey = survey.expect("a loop can be executed").expect("it was not stopped");
    let seconds = began.elapsed().as_secs_f64();
    let accesses = survey.accesses;
    let references = accesses.l1 + accesses.l2 + accesses.llc + accesses.dram;
    println!(
        "cache only, {what}: {:.1} M references/s, {:.1} M instructions/s",
        references as f64 / seconds / 1e6,
        survey.instructions as f64 / seconds / 1e6
    );
    survey
}
