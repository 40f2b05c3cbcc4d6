// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders, those written by hand among them: the same requests, the right bytes.

use std::time::Duration;

use dwell_bench::batch::Batch;
use dwell_bench::contender::{Contender, HAND_WRITTEN, check_name, policy_of};
use dwell_bench::entrant::Entrant;
use dwell_bench::result::{Direction, Pattern, Requests};
use dwell_bench::run::run;
use dwell_bench::subject::Subject;

use super::{emulated, monitor, plan, subject};

/// The contender, or `None` with the reason where the device cannot be polled.
fn open(name: &str, subject: &Subject) -> Option<Contender> {
    match Contender::open(name, subject, &monitor()) {
        Err(error) if name == "raw-iopoll" => {
            let text = format!("{error:#}");
            assert!(text.contains("polled completions") && !text.contains('\n'), "{text}");
            println!("SKIP: {text}");
            None
        }
        contender => Some(contender.unwrap()),
    }
}

#[test]
fn hand_written_loops_are_left_out_where_they_cannot_go() {
    let plan_ = plan(&["block", "pread", "raw-cq-peek"]);
    let run_ = run(&plan_, &[emulated("")], &monitor(), vec![], &mut |_| {}).unwrap();
    assert_eq!(run_.rows.len(), 1);
    let subject = emulated("");
    let error = Entrant::open("pread", &subject, &monitor()).err().unwrap().to_string();
    assert!(error.contains("scheme"), "{error}");
}

#[test]
fn every_hand_written_loop_reads_and_writes_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let content: Vec<u8> = (0..32768u32).map(|i| (i / 128) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let subject = subject(&path, 32768, true);
    for name in HAND_WRITTEN.into_iter().chain(["block", "spin"]) {
        let Some(mut contender) = open(name, &subject) else { continue };
        let mut buffer = vec![0; 4096];
        contender.request(Direction::Read, &mut buffer, 8192).unwrap();
        assert_eq!(buffer, content[8192..12288], "{name}");
        contender.request(Direction::Write, &mut buffer, 0).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..4096], buffer, "{name}");
        std::fs::write(&path, &content).unwrap();
        let beyond = contender.request(Direction::Read, &mut buffer, 30000);
        assert!(beyond.is_err(), "{name} read beyond the end");
    }
}

#[test]
fn every_contender_serves_every_depth_with_the_right_bytes() {
    const SIZE: usize = 4096;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let content: Vec<u8> = (0..64 * SIZE).map(|i| (i / SIZE) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let bytes = content.len() as u64;
    let subject = subject(&path, bytes, true);
    for name in HAND_WRITTEN.into_iter().chain(["block", "spin"]) {
        let Some(mut contender) = open(name, &subject) else { continue };
        // More than the rings begin with, and then fewer again.
        for (pattern, depth) in
            [(Pattern::Rand, 1), (Pattern::Seq, 8), (Pattern::Rand, 33), (Pattern::Seq, 2)]
        {
            let what = format!("{name} {pattern} {depth}");
            let requests = Requests { pattern, direction: Direction::Read, depth };
            let mut batch = Batch::new(requests, SIZE as u64, bytes, 7);
            let mut buffers = batch.buffers();
            // Without time, then with some: the last bytes are there when the batch ends.
            for span in [Duration::ZERO, Duration::from_millis(5)] {
                let round = contender.serve(&mut batch, &mut buffers, span).unwrap().round;
                assert_eq!(round.bytes, round.requests * SIZE as u64, "{what}");
                assert!(round.requests >= 3 && round.p50_ns > 0, "{what}");
                assert!(round.wall_ns >= span.as_nanos() as u64, "{what}");
            }
            assert_eq!(buffers.len(), depth as usize, "{what}");
            for buffer in &buffers {
                assert!(buffer[0] < 64 && buffer.iter().all(|byte| *byte == buffer[0]), "{what}");
            }
            let writes = Requests { direction: Direction::Write, ..requests };
            let mut batch = Batch::new(writes, SIZE as u64, bytes, 7);
            let mut buffers = batch.buffers();
            buffers.iter_mut().for_each(|buffer| buffer.fill(99));
            contender.serve(&mut batch, &mut buffers, Duration::ZERO).unwrap();
            let now = std::fs::read(&path).unwrap();
            let written = now.chunks(SIZE).filter(|block| block.iter().all(|byte| *byte == 99));
            assert!(written.count() >= 1, "{what}");
            std::fs::write(&path, &content).unwrap();
            // Reads past the end come back short, and say so at any depth.
            let requests = Requests { pattern: Pattern::Rand, direction: Direction::Read, depth };
            let mut beyond = Batch::new(requests, SIZE as u64, 1 << 40, 7);
            let mut buffers = beyond.buffers();
            let served = contender.serve(&mut beyond, &mut buffers, Duration::ZERO);
            assert!(served.is_err(), "{what}");
        }
    }
}

#[test]
fn policies_take_the_parameters_they_have_and_no_others() {
    let smartcon = "smartcon:cpu-threshold=0.25+queue-limit=1+signal=total";
    assert_eq!(policy_of(smartcon).unwrap().name(), "smartcon");
    for (name, part) in [
        ("smartcon:cpu-threshold=2", "0 to 1"),
        ("smartcon:cpu-threshold=NaN", "0 to 1"),
        ("smartcon:queue-limit=-1", "queue-limit"),
        ("smartcon:colour=red", "colour"),
        ("block:signal=total", "only adaptive and smartcon"),
        ("adaptive:goal=speed", "latency|balanced|efficient"),
        ("spin:pause=maybe", "pause=on|off"),
        ("smartcon:pause=maybe", "pause=on|off"),
        ("nonsense", "nonsense"),
        ("", "no such policy"),
    ] {
        let error = format!("{:#}", check_name(name).unwrap_err());
        assert!(error.contains(part), "{name}: {error}");
    }
    for name in [
        "raw-get-events",
        "adaptive:goal=latency",
        "spin:pause=off",
        "smartcon:pause=on+queue-limit=1",
    ] {
        check_name(name).unwrap();
    }
}
