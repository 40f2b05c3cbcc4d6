// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for several completions at once: how many end a wait, and who sends what.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use dwell::Route;
use dwell::buffer::Aligned;
use dwell::dwell_policy::{Backlog, Decision, Mode, Reason, WaitMachine, Woken};
use dwell::park::park;
use dwell::queue::{Action, Completion, Full, Io, Queue, Ticket, Wake};
use dwell::ring::{self, Completed, Ring, SpinMethod};
use dwell::wait::{Several, wait_for};

/// Hands out so many completions at each look, then none.
struct Looks(VecDeque<usize>);

// SAFETY: it takes no request.
unsafe impl Queue for Looks {
    type Op = Io;

    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        Err((Full, io))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let handed = self.0.pop_front().unwrap_or(0);
        (0..handed).for_each(|_| out(Completion { ticket: Ticket(0), result: 0 }));
        handed
    }

    fn arm(&mut self, _: u32) -> Wake<'_> {
        Wake::At(0)
    }

    fn cancel(&mut self, _: Ticket) {}

    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

fn taken_by(looks: &[usize], mode: Mode, several: Several) -> usize {
    let mut queue = Looks(looks.iter().copied().collect());
    let decision = Decision::new(Route::Interrupt, mode, 1_000_000, Reason::Fixed);
    let now = dwell::clock::now();
    let mut taken = 0;
    let outcome = wait_for(&mut queue, WaitMachine::new(&decision, now, now), several, &mut |_| {
        taken += 1;
        true
    });
    assert!(outcome.ready);
    taken
}

#[test]
fn a_spin_takes_enough_or_what_its_patience_allows() {
    let patient = |min_complete| Several { min_complete, patience_ns: 10_000_000_000 };
    assert_eq!(taken_by(&[0, 1, 0, 0, 2, 1, 5], Mode::Spin, patient(4)), 4);
    assert_eq!(taken_by(&[0, 1, 5, 1], Mode::Spin, patient(4)), 6);
    assert_eq!(taken_by(&[0, 1, 0, 1], Mode::Spin, Several::ONE), 1);
    // Nothing more comes: the wait ends all the same.
    assert_eq!(taken_by(&[1], Mode::Spin, Several { min_complete: 4, patience_ns: 100_000 }), 1);
}

#[test]
fn a_waiter_that_has_slept_takes_what_is_there() {
    let patient = Several { min_complete: 4, patience_ns: 10_000_000_000 };
    assert_eq!(taken_by(&[0, 1, 7], Mode::Block, patient), 1);
}

/// A ring as a queue of its own.
struct Only<'r>(&'r mut Ring);
// SAFETY: as the ring, and it takes no request.
unsafe impl Queue for Only<'_> {
    type Op = Io;
    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        Err((Full, io))
    }
    fn flush(&mut self) {
        self.0.flush();
    }
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        self.0.poll(out)
    }
    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        self.0.arm(min_complete)
    }
    fn cancel(&mut self, _: Ticket) {}
    fn backlog(&self) -> Backlog {
        self.0.backlog()
    }
}

fn data() -> (tempfile::TempPath, std::fs::File) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; 1 << 16]).unwrap();
    let plain = file.reopen().unwrap();
    (file.into_temp_path(), plain)
}

#[test]
fn a_waiting_call_sends_what_is_unsent_and_returns_with_enough() {
    if let Some(why) = ring::unavailable() {
        return println!("SKIP: {why}");
    }
    for method in SpinMethod::ALL {
        let (_path, file) = data();
        let mut ring = Ring::new(8, Completed::ByInterrupt(method)).unwrap();
        let mut buffers: Vec<Aligned> = (0..8).map(|_| Aligned::new(4096)).collect();
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let offset = at as u64 * 4096;
            // SAFETY: the buffers live until all completions are out.
            let submitted = unsafe {
                let memory = buffer.as_mut_ptr();
                let io = Io::plain(Action::Read, file.as_raw_fd(), memory, 4096, offset);
                ring.submit(&io)
            };
            submitted.unwrap();
        }
        assert!(matches!(ring.arm(5), Wake::Ring { unsent: 8, min_complete: 5, .. }));
        let mut taken = 0;
        while taken < 8 {
            let left = 8 - taken as u32;
            assert_eq!(park(&mut Only(&mut ring), None, left.min(5), &mut |_| {}), Woken::Look);
            taken += ring.poll(&mut |completion| assert_eq!(completion.result, 4096));
        }
        // What was sent is known to be sent: nothing is left for another call.
        assert!(matches!(ring.arm(1), Wake::Ring { unsent: 0, min_complete: 1, .. }));
        assert_eq!(ring.backlog(), Backlog::default());
        assert!(buffers.iter().all(|buffer| buffer.iter().all(|&byte| byte == 7)));
    }
}

#[test]
fn a_completion_is_not_kept_waiting_for_those_that_do_not_come() {
    if let Some(why) = ring::unavailable() {
        return println!("SKIP: {why}");
    }
    let (ended, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut ring = Ring::new(4, Completed::ByInterrupt(SpinMethod::TaskrunFlag)).unwrap();
        let mut bytes = [0u8; 4];
        for byte in &mut bytes {
            // SAFETY: the bytes live until all completions are out.
            unsafe {
                let io = Io::plain(Action::Read, reader.as_raw_fd(), byte, 1, u64::MAX);
                ring.submit(&io).unwrap();
            }
        }
        writer.write_all(&[1]).unwrap();
        let mut taken = 0;
        while taken == 0 {
            assert_eq!(park(&mut Only(&mut ring), None, 4, &mut |_| {}), Woken::Look);
            taken += ring.poll(&mut |_| {});
        }
        ended.send(taken).unwrap();
        writer.write_all(&[1; 3]).unwrap();
        while taken < 4 {
            taken += ring.poll(&mut |_| {});
        }
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(1));
}
