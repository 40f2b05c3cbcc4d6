// SPDX-License-Identifier: MIT OR Apache-2.0
//! An invented run, to look at tables and reports without measuring. Nothing in it was measured.

use crate::{
    compare::{self, Comparison, Measured as Ran, Results, UNTOUCHED, Variant},
    conditions::Conditions,
    machine::Machine,
    report::Curve,
    result::{Configured, Device, Load, Requests, RoundResult, Row, Run, Setting, Work},
    stats::SplitMix,
};

/// An invented run: two devices, idle and loaded, every policy and one peer.
pub fn run() -> Run {
    let device = |name: &str, description: &str, threshold| Device {
        name: name.into(),
        description: description.into(),
        class: Some("fast".into()),
        size_threshold_bytes: threshold,
    };
    let devices = vec![
        device("loop", "loop device on tmpfs, 1 GiB (invented)", Some(64 << 10)),
        device("nvme-emu", "emulated NVMe drive (invented)", None),
    ];
    let machine = Machine {
        cpu_model: "Invented CPU".into(),
        cpus: 2,
        memory_bytes: 48 << 30,
        kernel: "6.18.0".into(),
        clocksource: "tsc".into(),
        governor: None,
        virtualised: Some("virtual machine".into()),
        date: "2026-01-31T12:00:00Z".into(),
    };
    let command = ["dwell", "bench", "--device", "loop", "--rounds", "9"].map(String::from).into();
    let mut run = Run::new(machine, command, devices);
    run.tell(Some(Configured {
        name: "io-uring spin".into(),
        version: "1.2.3".into(),
        settings: vec!["one thread".into()],
    }));
    let mut random = SplitMix(7);
    for (device, load) in [("loop", Load::Idle), ("loop", Load::Cpu), ("nvme-emu", Load::Idle)] {
        let setting = Setting {
            device: device.into(),
            load,
            scheduler: None,
            work: Work::Requests(Requests::random_reads()),
        };
        let sizes: &[u64] = if device == "loop" { &[4, 16, 64, 256, 512] } else { &[4] };
        for &size in sizes {
            for policy in ["block", "spin", "hybrid", "smartcon", "adaptive", "io-uring spin"] {
                run.rows.push(Row {
                    setting: setting.clone(),
                    size_bytes: size << 10,
                    policy: policy.into(),
                    rounds: (0..9).map(|_| round(&mut random, policy, size << 10, load)).collect(),
                    emulated: (device == "nvme-emu")
                        .then(|| "software emulation: a wake-up costs 40 µs".into()),
                });
            }
        }
    }
    run.conditions = Some(conditions());
    run.conclude("block");
    run
}

fn conditions() -> Conditions {
    Conditions {
        quiet: Some(true),
        others_share: Some(0.006),
        stolen_share: Some(0.002),
        repeated_rounds: 3,
        noisy_rounds: 0,
        on_battery: Some(true),
        throttled: Some(true),
    }
}

/// An invented run with as much of everything as a report must hold: sixteen contenders, long
/// names, many settings, events, an early end.
pub fn crowded() -> Run {
    let contenders = [
        "block",
        "spin",
        "hybrid",
        "smartcon",
        "adaptive",
        "pread",
        "raw-cq-peek",
        "raw-get-events",
        "raw-taskrun-flag",
        "preadv2 RWF_HIPRI",
        "io_uring SQPOLL",
        "libaio",
        "POSIX AIO",
        "mmap",
        "smartcon:cpu-threshold=0.5",
        "smartcon:cpu-threshold=0.25+queue-limit=1+signal=total",
    ];
    let mut run = run();
    run.rows.clear();
    run.ended = Some("loop: block, round 4: read of 4096 bytes: Input/output error".into());
    run.notes = vec!["counters: user mode only".into()];
    let loads = [Load::Idle, Load::Cpu, Load::Io];
    let settings = loads.into_iter().flat_map(|load| [1, 32].map(|depth| (load, depth)));
    let mut random = SplitMix(11);
    for (load, depth) in settings {
        let setting = Setting {
            device: "loop".into(),
            load,
            scheduler: (depth > 1).then(|| "mq-deadline".into()),
            work: Work::Requests(Requests { depth, ..Requests::random_reads() }),
        };
        for size_bytes in [4 << 10, 16 << 10, 64 << 10, 512 << 10] {
            for name in contenders {
                let mut rounds: Vec<RoundResult> =
                    (0..3).map(|_| round(&mut random, name, size_bytes, load)).collect();
                for round in &mut rounds {
                    let events =
                        [("cycles", 4e4), ("instructions", 3e4), ("l1d_read_misses", 61.0)];
                    let count =
                        |(name, each): (&str, f64)| (name.to_owned(), round.requests as f64 * each);
                    round.counters = events.map(count).into();
                }
                run.rows.push(Row {
                    setting: setting.clone(),
                    size_bytes,
                    policy: name.into(),
                    rounds,
                    emulated: None,
                });
            }
        }
    }
    run.conclude("block");
    run
}

fn round(random: &mut SplitMix, policy: &str, size_bytes: u64, load: Load) -> RoundResult {
    let noise = |random: &mut SplitMix| 0.94 + random.below(1200) as f64 / 10_000.0;
    let copy_ns = size_bytes as f64 / 9.0;
    let service_ns = 13_000.0 + copy_ns;
    let blocks = match policy {
        "block" => true,
        "smartcon" | "adaptive" => load == Load::Cpu || size_bytes > 64 << 10,
        _ => false,
    };
    let (mean_ns, voluntary) = match (blocks, load) {
        (true, Load::Idle) => (service_ns + 15_500.0, 1.0),
        (true, _) => (service_ns + 9_000.0, 1.0),
        (false, Load::Idle) if policy == "hybrid" => (service_ns + 6_000.0, 0.9),
        (false, Load::Idle) => (service_ns + 1_500.0, 0.0),
        (false, _) => (service_ns * 5.0, 0.002),
    };
    let mean_ns = mean_ns * noise(random);
    let requests = (2e8 / mean_ns) as u64;
    let per_request = |ns: f64| (requests as f64 * ns) as u64;
    let spun_ns = match (blocks, policy) {
        (true, _) => 0.0,
        (_, "hybrid") => service_ns * 0.4,
        _ => service_ns * 0.85,
    };
    RoundResult {
        bytes: requests * size_bytes,
        requests,
        wall_ns: per_request(mean_ns),
        p50_ns: (mean_ns * 0.95) as u64,
        p99_ns: (mean_ns * 1.7 * noise(random)) as u64,
        p999_ns: (mean_ns * if load == Load::Cpu { 30.0 } else { 4.0 } * noise(random)) as u64,
        mean_ns: mean_ns as u64,
        voluntary_switches: per_request(voluntary),
        involuntary_switches: per_request(if load == Load::Cpu { 0.02 } else { 0.000_3 }),
        user_ns: per_request(900.0 + spun_ns),
        system_ns: per_request(2_600.0 + if blocks { 2_400.0 } else { 0.0 }),
        spin_ns: per_request(spun_ns),
        other_cpu_ns: per_request(copy_ns),
        stressor_ns: 0,
        counters: Default::default(),
        decisions: [(if blocks { "size" } else { "pays" }.to_owned(), requests)].into(),
        ..RoundResult::default()
    }
}

/// Invented curves of a probe: latency by size of two modes.
pub fn curves() -> Vec<Curve> {
    let curve = |mode: &str, fixed_ns: f64, ns_per_kib: f64| Curve {
        mode: mode.into(),
        points: (2..=9)
            .map(|power| {
                let size_bytes = 1024u64 << power;
                let ns = fixed_ns + ns_per_kib * (size_bytes >> 10) as f64;
                (size_bytes, ns, ns * 0.93, ns * 1.09)
            })
            .collect(),
    };
    vec![curve("block", 28_000.0, 110.0), curve("spin", 15_000.0, 240.0)]
}

/// An invented comparison: one policy faster, one slower, one neither.
pub fn comparison() -> Comparison {
    let mut random = SplitMix(3);
    let words = ["sqlite3", "test.db", ".read queries.sql"].map(String::from);
    let variants = [
        (UNTOUCHED, 1.0, 1.0),
        ("block", 1.0, 1.01),
        ("smartcon", 0.71, 1.4),
        ("hybrid", 1.1, 1.2),
    ]
    .map(|(name, time, cpu)| Variant {
        name: name.into(),
        words: match name {
            UNTOUCHED => words.to_vec(),
            _ => ["dwell", "run", "--policy", name, "--quiet", "--stats", "{stats}", "--"]
                .map(String::from)
                .into_iter()
                .chain(words.clone())
                .collect(),
        },
        rounds: (0..10)
            .map(|round| {
                let noise = 0.97 + random.below(60) as f64 / 1000.0;
                let drift = 1.0 + f64::from(round) / 50.0;
                let ns = |ms: f64| (ms * 1e6 * noise * drift) as u64;
                Ran {
                    place: round as usize % 4 + 1,
                    wall_ns: ns(840.0 * time),
                    user_ns: ns(210.0 * cpu),
                    system_ns: ns(130.0 * cpu),
                    voluntary_switches: (40_200.0 * noise / cpu.powi(8)) as u64,
                    involuntary_switches: (310.0 * noise) as u64,
                    major_faults: 2,
                    read_bytes: Some(300 << 20),
                    written_bytes: Some(12 << 20),
                    read_storage_bytes: Some(280 << 20),
                    written_storage_bytes: Some(13 << 20),
                    exit_status: Some(0),
                    signal: None,
                    told: None,
                    results_sum: "0123456789abcdef-400".into(),
                    stats: None,
                }
            })
            .collect(),
        finding: None,
        results: Results::Same,
    });
    let mut comparison = Comparison {
        schema: compare::SCHEMA,
        machine: run().machine,
        command: ["dwell", "compare", "--"]
            .map(String::from)
            .into_iter()
            .chain(words.clone())
            .collect(),
        program: words.to_vec(),
        setup: vec![],
        check: vec![],
        warmup: 1,
        variants: variants.into(),
        ratios: vec![],
        ended: None,
        notes: vec![],
    };
    comparison.conclude();
    comparison
}
