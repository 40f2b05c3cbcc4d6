// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulated device: bytes, faults, and that waiting for it ends.

mod common;

use common::sources::{behaves_like_an_array, decision, read, run, write};
use dwell::clock;
use dwell::emulated::wakeup::WakeMethod;
use dwell::emulated::{Emulated, Spec};
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::wait::wait;
use dwell_policy::{Decision, Mode, Route, Routes, WaitMachine};
use proptest::collection::vec;
use proptest::prelude::*;

fn open(address: &str) -> Emulated {
    Emulated::open(&address.parse::<Spec>().expect("an address")).expect("a device")
}

const MODES: [Mode; 3] = [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 5_000 }];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_values_are_read(
        steps in vec((any::<bool>(), 0u64..20_000, vec(any::<u8>(), 0..5_000)), 1..40),
    ) {
        behaves_like_an_array(&open("emu:mram,size=16KiB"), &steps);
        behaves_like_an_array(&open("emu:latency=1us,size=16KiB"), &steps);
    }

    #[test]
    fn absurd_offsets_are_the_end_of_the_device(offset in (16u64 << 10).., bytes in 1usize..100) {
        let mut queue = open("emu:latency=0ns,size=16KiB").queue(1).unwrap();
        let mut buffer = vec![0; bytes];
        let spin = decision(Mode::Spin, 0);
        prop_assert_eq!(run(&mut queue, read(&mut buffer, offset), &spin).0, 0);
        prop_assert_eq!(run(&mut queue, write(&buffer, offset), &spin).0, -libc::ENOSPC);
    }
}

#[test]
fn every_mode_and_every_wakeup_brings_the_right_bytes() {
    for method in [WakeMethod::Sleep, WakeMethod::TimerFd] {
        let device = open("emu:latency=30us,jitter=20%,size=64KiB").waking_by(method);
        assert_eq!(device.wakeup().method, method);
        let mut queue = device.queue(8).unwrap();
        for (at, mode) in MODES.into_iter().cycle().take(12).enumerate() {
            let data = vec![at as u8 + 1; 4096];
            let how = decision(mode, 30_000);
            assert_eq!(run(&mut queue, write(&data, at as u64 * 4096), &how).0, 4096);
            let mut buffer = vec![0; 4096];
            let (result, outcome) = run(&mut queue, read(&mut buffer, at as u64 * 4096), &how);
            assert_eq!((result, &buffer), (4096, &data));
            assert!(!outcome.expired || outcome.parks > 0);
        }
    }
}

#[test]
fn vectored_requests_move_their_pieces_in_order() {
    let mut queue = open("emu:latency=1us,size=4KiB").queue(1).unwrap();
    let (mut first, mut second) = ([1u8; 3], [2u8; 5]);
    let mut pieces = [&mut first[..], &mut second[..]]
        .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
    let spin = decision(Mode::Spin, 1_000);
    // SAFETY: the pieces outlive the waits below.
    let [put, get] = unsafe {
        use dwell::queue::Action::{ReadVectored, WriteVectored};
        [WriteVectored, ReadVectored]
            .map(|action| Io::vectored(action, 0, pieces.as_mut_ptr(), 2, 8, 10))
    };
    assert_eq!(run(&mut queue, put, &spin).0, 8);
    let mut all = [0; 10];
    assert_eq!(run(&mut queue, read(&mut all, 9), &spin).0, 10);
    assert_eq!(all, [0, 1, 1, 1, 2, 2, 2, 2, 2, 0]);
    (first, second) = ([0; 3], [0; 5]);
    assert_eq!(run(&mut queue, get, &spin).0, 8);
    assert_eq!((first, second), ([1; 3], [2; 5]));
}

#[test]
fn a_stalled_device_is_parked_on_and_does_not_hold_a_core() {
    let mut buffer = [0; 512];
    let device = open("emu:latency=1us,stall-after=1,stall-for=500ms,size=4KiB");
    let mut queue = device.queue(1).unwrap();
    let how = Decision { spin_limit_ns: 300_000, ..decision(Mode::Spin, 1_000) };
    assert_eq!(run(&mut queue, read(&mut buffer, 0), &how).0, 512);
    let (result, outcome) = run(&mut queue, read(&mut buffer, 0), &how);
    assert_eq!(result, 512);
    assert!(outcome.expired && outcome.parks > 0, "{outcome:?}");
    // It came back: the stall is over for everybody.
    assert_eq!(run(&mut queue, read(&mut buffer, 0), &how).0, 512);
}

#[test]
fn a_device_stalled_for_ever_ends_only_by_cancelling() {
    for method in [WakeMethod::Sleep, WakeMethod::TimerFd] {
        let device = open("emu:latency=1us,stall-after=0,size=4KiB").waking_by(method);
        let mut queue = device.queue(2).unwrap();
        let mut buffer = [0; 512];
        let how = Decision { spin_limit_ns: 100_000, ..decision(Mode::Spin, 1_000) };
        let now = clock::now();
        let ticket = queue.submit(read(&mut buffer, 0), how.route).unwrap();
        let machine = WaitMachine::new(&how, now, now).until(now + 500_000_000);
        let outcome = wait(&mut queue, machine, &mut |_| unreachable!("it is stalled"));
        assert!(!outcome.ready && outcome.expired && outcome.parks > 0, "{method:?} {outcome:?}");
        assert_eq!(queue.backlog().requests, 1);
        queue.cancel(ticket);
        let mut seen = Vec::new();
        assert_eq!(queue.poll(&mut |completion| seen.push(completion)), 1);
        assert_eq!(seen, [Completion { ticket, result: -libc::ECANCELED }]);
        assert_eq!(queue.backlog(), dwell_policy::Backlog::default());
        queue.cancel(ticket);
        assert_eq!(queue.poll(&mut |_| {}), 0);
    }
}

#[test]
fn every_third_request_fails_and_every_second_is_short() {
    let mut queue = open("emu:latency=0ns,error-every=3,short-every=2,size=4KiB").queue(1).unwrap();
    let spin = decision(Mode::Spin, 0);
    let data = [7; 1000];
    let results: Vec<i32> = (0..6).map(|_| run(&mut queue, write(&data, 0), &spin).0).collect();
    assert_eq!(results, [1000, 500, -libc::EIO, 500, 1000, -libc::EIO]);
}

#[test]
fn a_failed_or_short_write_leaves_the_rest_alone() {
    let device = open("emu:latency=0ns,short-every=2,error-every=3,size=4KiB");
    let mut queue = device.queue(1).unwrap();
    let spin = decision(Mode::Spin, 0);
    run(&mut queue, write(&[1; 100], 0), &spin);
    assert_eq!(run(&mut queue, write(&[2; 100], 0), &spin).0, 50);
    assert_eq!(run(&mut queue, write(&[3; 100], 0), &spin).0, -libc::EIO);
    run(&mut queue, read(&mut [0; 1], 0), &spin);
    let mut buffer = [0; 100];
    assert_eq!(run(&mut queue, read(&mut buffer, 0), &spin).0, 100);
    assert_eq!((&buffer[..50], &buffer[50..]), (&[2; 50][..], &[1; 50][..]));
}

#[test]
fn the_end_of_the_device_is_short_for_both_and_full_for_writes() {
    let mut queue = open("emu:latency=0ns,size=1000B").queue(1).unwrap();
    let spin = decision(Mode::Spin, 0);
    assert_eq!(run(&mut queue, write(&[1; 100], 950), &spin).0, 50);
    assert_eq!(run(&mut queue, write(&[1; 100], 1000), &spin).0, -libc::ENOSPC);
    assert_eq!(run(&mut queue, write(&[], 1000), &spin).0, 0);
    assert_eq!(run(&mut queue, read(&mut [0; 100], 950), &spin).0, 50);
    assert_eq!(run(&mut queue, read(&mut [0; 100], 1000), &spin).0, 0);
    // SAFETY: the number is the device's own.
    let sync = unsafe { Io::sync(0, true) };
    assert_eq!(run(&mut queue, sync, &spin).0, 0);
}

#[test]
fn a_full_queue_gives_the_request_back_and_tickets_are_unique() {
    let mut queue = open("emu:latency=10us,size=4KiB").queue(2).unwrap();
    let mut buffer = [0; 8];
    let mut tickets = Vec::new();
    for _ in 0..3 {
        tickets.push(queue.submit(read(&mut buffer, 0), Route::Interrupt).unwrap());
        tickets.push(queue.submit(read(&mut buffer, 0), Route::Interrupt).unwrap());
        let (full, io) = queue.submit(read(&mut buffer, 77), Route::Interrupt).unwrap_err();
        assert_eq!((full, io.offset(), queue.backlog().bytes), (Full, 77, 16));
        let mut found = 0;
        while found < 2 {
            found += queue.poll(&mut |_| {});
        }
    }
    tickets.sort_by_key(|ticket| ticket.0);
    tickets.dedup();
    assert_eq!(tickets.len(), 6);
}

#[test]
fn completions_come_by_deadline_not_by_submission() {
    let device = open("emu:latency=500ms,write-latency=100us,parallel=2,size=4KiB")
        .waking_by(WakeMethod::Sleep);
    let mut queue = device.queue(2).unwrap();
    let mut buffer = [0; 8];
    let slow = queue.submit(read(&mut buffer, 0), Route::Interrupt).unwrap();
    let quick = queue.submit(write(&[1; 8], 100), Route::Interrupt).unwrap();
    let due = queue.next_due();
    assert!(matches!(queue.arm(1), Wake::At(at) if at == due));
    queue.disarm();
    let mut order: Vec<Ticket> = Vec::new();
    while order.len() < 2 {
        queue.poll(&mut |completion| order.push(completion.ticket));
    }
    assert_eq!(order, [quick, slow]);
}

#[test]
fn only_memory_like_devices_are_served_inline() {
    for (address, inline) in [
        ("emu:mram", true),
        ("emu:pcm", true),
        ("emu:pcm,stall-after=5", false),
        ("emu:latency=999ns", true),
        ("emu:latency=10ns,write-latency=1us", false),
        ("emu:z-nand", false),
        ("emu:optane", false),
        ("emu:nand", false),
    ] {
        let device = open(&format!("{address},size=4KiB"));
        assert_eq!(device.routes().has(Route::Inline), inline, "{address}");
        assert!(device.routes().has(Route::Interrupt) && !device.routes().has(Route::Polled));
        let result = device.call(&write(&[1; 8], 0));
        assert_eq!(result, if inline { 8 } else { -libc::EOPNOTSUPP }, "{address}");
    }
    assert_eq!(open("emu:mram").routes(), Routes::INLINE | Routes::INTERRUPT);
}

#[test]
fn threads_share_the_device_and_its_bytes() {
    let device = open("emu:latency=2us,parallel=3,bandwidth=1GB/s,size=64KiB");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let device = device.clone();
            scope.spawn(move || {
                let mut queue = device.queue(1).unwrap();
                for round in 0..50 {
                    let how = decision(MODES[round % 3], 2_000);
                    let data = [thread * 50 + round as u8; 4096];
                    let at = u64::from(thread) * 16_384;
                    assert_eq!(run(&mut queue, write(&data, at), &how).0, 4096);
                    let mut buffer = [0; 4096];
                    assert_eq!(run(&mut queue, read(&mut buffer, at), &how).0, 4096);
                    assert_eq!(buffer, data);
                }
            });
        }
    });
}

#[test]
fn a_file_keeps_the_data_and_is_lengthened_but_never_shortened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("with, comma and 100%");
    let spec = Spec { file: Some(path.clone()), size_bytes: 8192, ..Spec::default() };
    let spec: Spec = spec.to_string().parse().unwrap();
    let spin = decision(Mode::Spin, 0);
    let device = Emulated::open(&spec).unwrap();
    assert_eq!(run(&mut device.queue(1).unwrap(), write(b"kept", 8188), &spin).0, 4);
    drop(device);
    assert_eq!(std::fs::read(&path).unwrap()[8188..], *b"kept");
    let again = Emulated::open(&Spec { size_bytes: 4096, ..spec.clone() }).unwrap();
    assert_eq!((again.bytes().unwrap(), path.metadata().unwrap().len()), (4096, 8192));
    let whole = Emulated::open(&Spec { size_bytes: 0, ..spec }).unwrap();
    assert_eq!(whole.spec().size_bytes, 8192);
    let mut buffer = [0; 4];
    assert_eq!(run(&mut whole.queue(1).unwrap(), read(&mut buffer, 8188), &spin).0, 4);
    assert_eq!(buffer, *b"kept");
}

#[test]
fn an_address_that_cannot_be_opened_says_why() {
    let gone: Spec = "emu:z-nand,file=/nonexistent/file".parse().unwrap();
    let error = Emulated::open(&gone).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/file: opening"), "{error}");
    assert_eq!(error.errno(), Some(libc::ENOENT));
    let folder = Emulated::open(&"emu:z-nand,file=/dev/null".parse().unwrap()).unwrap_err();
    assert!(folder.to_string().contains("regular file"), "{folder}");
    let by_hand = Spec { parallel: 0, ..Spec::default() };
    assert!(Emulated::open(&by_hand).unwrap_err().to_string().contains("parallel"));
    let device = open("emu:mram,size=4KiB");
    assert!(device.queue(0).is_err() && device.queue(u32::MAX).is_err());
}
