// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking requests to any source, for tests.
#![allow(dead_code)]

use dwell::clock;
use dwell::queue::{Action, Io, Queue};
use dwell::source::Source;
use dwell::wait::wait;
use dwell_policy::{Decision, Mode, Outcome, Reason, Route, WaitMachine};

/// A decision for the interrupt route that predicts `expected_ns`.
pub fn decision(mode: Mode, expected_ns: u64) -> Decision {
    Decision::new(Route::Interrupt, mode, expected_ns, Reason::Fixed)
}

/// A read into `buffer`.
pub fn read(buffer: &mut [u8], offset: u64) -> Io {
    // SAFETY: every test waits for the completion, or drops the queue, before the buffer goes.
    unsafe { Io::plain(Action::Read, 0, buffer.as_mut_ptr(), buffer.len() as u32, offset) }
}

/// A write from `data`.
pub fn write(data: &[u8], offset: u64) -> Io {
    // SAFETY: as above; a write only reads the memory.
    unsafe { Io::plain(Action::Write, 0, data.as_ptr().cast_mut(), data.len() as u32, offset) }
}

/// Submits one request and waits for it.
pub fn run<Q: Queue<Op = Io>>(queue: &mut Q, io: Io, decision: &Decision) -> (i32, Outcome) {
    let submitted = clock::now();
    let ticket = queue.submit(io, decision.route).expect("the queue has room");
    queue.flush();
    let mut result = None;
    let machine = WaitMachine::new(decision, submitted, clock::now());
    let outcome = wait(queue, machine, &mut |completion| {
        assert_eq!(completion.ticket, ticket);
        result = Some(completion.result);
        true
    });
    assert!(outcome.ready);
    (result.expect("a wait without a limit ends with a completion"), outcome)
}

/// Reads and writes at random, inline and queued, and holds a plain array against it.
pub fn behaves_like_an_array<S: Source>(source: &S, steps: &[(bool, u64, Vec<u8>)]) {
    let size = source.bytes().expect("a length") as usize;
    let mut model = vec![0u8; size];
    let mut queue = source.queue(4).expect("a queue");
    let inline = source.routes().has(Route::Inline);
    for (at, (writes, offset, data)) in steps.iter().enumerate() {
        let room = size.saturating_sub(usize::try_from(*offset).unwrap_or(usize::MAX));
        let within = data.len().min(room);
        let start = (*offset as usize).min(size);
        let mode = [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 1 }][at % 3];
        let mut buffer = vec![0xee; data.len()];
        let io = if *writes { write(data, *offset) } else { read(&mut buffer, *offset) };
        let result = if inline && at % 2 == 0 {
            source.call(&io)
        } else {
            run(&mut queue, io, &decision(mode, 1_000)).0
        };
        if *writes && within == 0 && !data.is_empty() {
            assert_eq!(result, -libc::ENOSPC);
        } else {
            assert_eq!(result, within as i32);
        }
        if *writes {
            model[start..start + within].copy_from_slice(&data[..within]);
        } else {
            assert_eq!(buffer[..within], model[start..start + within]);
            assert!(buffer[within..].iter().all(|&byte| byte == 0xee), "wrote past what it read");
        }
    }
}
