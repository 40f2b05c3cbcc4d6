// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::perf::event::READ;

const DEVICE: u32 = 7 << 20;
const PROGRAM: u32 = 4_000_001;
const THREAD: u32 = 4_000_002;

fn event(at: u64, thread: u32, what: What) -> Event {
    let process = if thread == THREAD { PROGRAM } else { thread };
    Event { at, cpu: 0, within: None, process, thread, what }
}

fn request(operation: u8) -> Request {
    Request { device: DEVICE, sector: 8, bytes: 4096, operation }
}

/// A thread reads, sleeps, and is woken by the interrupt on an idle CPU.
fn told(call: Option<i16>, state: u64) -> Sums {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let (read, sleep) = (request(READ), What::Switch { state, next: 0 });
    if let Some(call) = call {
        story.tell(event(90, THREAD, What::Enter(call)));
    }
    for (at, thread, what) in [
        (100, THREAD, What::Insert(read)),
        (105, THREAD, What::Issue(read)),
        (110, THREAD, sleep),
        (200, 0, What::Complete(read)),
        (201, 0, What::Waking(THREAD)),
        (205, 0, What::Switch { state: 0, next: THREAD }),
    ] {
        story.tell(event(at, thread, what));
    }
    story.sums(false)
}

#[test]
fn a_wait_is_split_at_its_completion_and_its_wake_up() {
    let sums = told(Some(libc::SYS_pread64 as i16), UNINTERRUPTIBLE);
    let [(key, sum)] = &sums.waits[..] else { panic!("one wait") };
    assert_eq!((key.tgid, key.device, key.call), (PROGRAM, DEVICE, libc::SYS_pread64 as i16));
    assert_eq!((key.operation, key.size_bits, key.iowait), (READ, 12, 1));
    let [other, queue, device, kernel, wake, busy, ..] = sum.parts;
    assert_eq!((sum.count, sum.nanos), (1, 95));
    assert_eq!((other, queue, device, kernel, wake, busy), (0, 0, 90, 1, 4, 0));
    let [(key, load)] = &sums.devices[..] else { panic!("one device") };
    assert_eq!((key.device, load.count, load.queue_nanos, load.device_nanos), (DEVICE, 1, 5, 95));
    assert_eq!(load.in_flight, 1);
    assert_eq!(sums.threads.len(), 1);
}

/// The waits of a thread that is woken after its request completed and, if `asleep` is not set,
/// before its CPU has switched away from it.
fn woken(asleep: bool, interrupt: bool) -> Sums {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let read = request(READ);
    let on_another = |at, what| Event {
        cpu: 1,
        within: interrupt.then_some(Interrupt::Hard),
        ..event(at, 0, what)
    };
    let switch = event(if asleep { 110 } else { 130 }, THREAD, What::Switch { state: 2, next: 0 });
    let mut events = vec![
        event(50, THREAD, What::Switch { state: 1, next: 0 }),
        event(60, 0, What::Switch { state: 0, next: THREAD }),
        event(100, THREAD, What::Issue(read)),
        switch,
        on_another(120, What::Complete(read)),
        on_another(121, What::Waking(THREAD)),
        event(140, 0, What::Switch { state: 0, next: THREAD }),
        // It sleeps once more, for something else.
        event(150, THREAD, What::Switch { state: 1, next: 0 }),
        event(170, 4_000_030, What::Waking(THREAD)),
        event(180, 0, What::Switch { state: 0, next: THREAD }),
    ];
    events.sort_by_key(|event| event.at);
    events.into_iter().for_each(|event| story.tell(event));
    story.sums(false)
}

#[test]
fn a_wake_up_that_comes_before_the_switch_is_of_the_wait_that_it_ends() {
    for interrupt in [false, true] {
        for (asleep, nanos) in [(true, 30), (false, 10)] {
            let sums = woken(asleep, interrupt);
            let found = sums.waits.iter().map(|(key, sum)| (key.device, sum.count, sum.nanos));
            assert_eq!(found.collect::<Vec<_>>(), [(0, 2, 40), (DEVICE, 1, nanos)], "{asleep}");
        }
    }
}

/// The devices of a thread that sleeps between a completion on another CPU and its wake-up.
fn devices_of_wait_after_completion(within: Option<Interrupt>, state: u64) -> Vec<(u32, u64)> {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let on_another = |at, what| Event { cpu: 1, within, ..event(at, 0, what) };
    for event in [
        event(100, THREAD, What::Issue(request(READ))),
        on_another(120, What::Complete(request(READ))),
        event(122, THREAD, What::Switch { state, next: 0 }),
        on_another(125, What::Waking(THREAD)),
        event(140, 0, What::Switch { state: 0, next: THREAD }),
    ] {
        story.tell(event);
    }
    let sums = story.sums(false);
    sums.waits.iter().map(|(key, sum)| (key.device, sum.nanos)).collect()
}

#[test]
fn a_request_that_completed_just_before_its_thread_slept_is_what_it_waited_for() {
    for within in [None, Some(Interrupt::Soft)] {
        assert_eq!(devices_of_wait_after_completion(within, UNINTERRUPTIBLE), [(DEVICE, 18)]);
        // A thread that waits for something else, which this completion does not explain.
        assert_eq!(devices_of_wait_after_completion(within, 1), [(0, 18)]);
    }
}

#[test]
fn a_thread_whose_switch_was_not_told_runs_from_its_next_event() {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let read = request(READ);
    for (at, thread, what) in [
        (90, THREAD, What::Enter(libc::SYS_pread64 as i16)),
        (100, THREAD, What::Issue(read)),
        (110, THREAD, What::Switch { state: UNINTERRUPTIBLE, next: 0 }),
        (200, 0, What::Complete(read)),
        (201, 0, What::Waking(THREAD)),
        (210, THREAD, What::Exit),
        (220, THREAD, What::Enter(libc::SYS_pread64 as i16)),
    ] {
        story.tell(event(at, thread, what));
    }
    let sums = story.sums(false);
    let [(key, sum)] = &sums.waits[..] else { panic!("one wait") };
    assert_eq!((key.device, sum.count, sum.nanos), (DEVICE, 1, 100));
    assert_eq!(sum.parts[Part::Wake as usize], 9);
    assert!(sums.notes[0].contains("not tell of: 1;"), "{:?}", sums.notes);
}

#[test]
fn a_sleep_in_no_call_is_a_fault_and_one_without_a_request_no_wait() {
    let sums = told(None, UNINTERRUPTIBLE);
    assert_eq!(sums.waits[0].0.call, NO_CALL);
    let mut story = Story::new(false, 0, &[PROGRAM]);
    story.tell(event(100, THREAD, What::Switch { state: 1, next: 0 }));
    story.tell(event(150, 0, What::Waking(THREAD)));
    story.tell(event(160, 0, What::Switch { state: 0, next: THREAD }));
    let sums = story.sums(false);
    assert_eq!((sums.waits[0].0.device, sums.waits[0].0.iowait), (0, 0));
    assert!(sums.threads.is_empty());
}

/// A wait whose request completed `within` an interrupt, and that another ended `later_ns` after it
/// ended or, if `ended` is none, while it still ran.
fn device_ns(within: Option<Interrupt>, ended: Option<Interrupt>, later_ns: u64) -> u64 {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let read = request(READ);
    let other = 4_000_020;
    story.tell(event(100, THREAD, What::Issue(read)));
    story.tell(event(110, THREAD, What::Switch { state: UNINTERRUPTIBLE, next: other }));
    story.tell(Event { within, ..event(200, other, What::Complete(read)) });
    if let Some(interrupt) = ended {
        story.tell(event(201, other, What::Ends(interrupt)));
    }
    let waker_within = within.filter(|_| ended != within);
    let woken = What::Waking(THREAD);
    story.tell(Event { within: waker_within, ..event(200 + later_ns, other, woken) });
    story.tell(event(300 + later_ns, other, What::Switch { state: 0, next: THREAD }));
    story.sums(false).waits[0].1.parts[Part::Device as usize]
}

#[test]
fn a_completion_in_an_interrupt_explains_wake_ups_until_that_interrupt_ends() {
    let (hard, soft) = (Some(Interrupt::Hard), Some(Interrupt::Soft));
    for interrupt in [hard, soft] {
        assert_eq!(device_ns(interrupt, None, 10_000_000), 90);
        assert_eq!(device_ns(interrupt, interrupt, 5), 0);
    }
    // One that interrupted it ends.
    assert_eq!(device_ns(soft, hard, 10), 90);
}

#[test]
fn a_completion_outside_interrupts_explains_wake_ups_by_a_program_for_a_moment() {
    assert_eq!(device_ns(None, None, PROGRAM_NS - 1), 90);
    assert_eq!(device_ns(None, None, PROGRAM_NS), 0);
}

#[test]
fn a_process_not_followed_has_no_waits_and_children_are_followed() {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    story.tell(event(10, 77, What::Switch { state: 1, next: 0 }));
    assert!(story.sums(false).waits.is_empty());
    let new = |thread, flags| What::NewTask { thread, flags };
    story.tell(event(20, THREAD, new(4_000_010, 0)));
    story.tell(event(21, THREAD, new(4_000_011, CLONE_THREAD)));
    story.tell(event(22, 77, new(4_000_012, 0)));
    let mut followed = story.followed();
    followed.sort_unstable();
    assert_eq!(followed, [PROGRAM, 4_000_010]);
    // A child that was made before its parent was left is followed, whenever that is told.
    story.leave(PROGRAM, 30);
    story.tell(event(25, THREAD, new(4_000_013, 0)));
    story.tell(event(35, THREAD, new(4_000_014, 0)));
    let mut followed = story.followed();
    followed.sort_unstable();
    assert_eq!(followed, [4_000_010, 4_000_013]);
}

#[test]
fn tasks_that_are_gone_are_forgotten_and_their_waits_stay() {
    let mut story = Story::new(false, 0, &[PROGRAM]);
    let read = request(READ);
    let merged = Request { sector: 16, ..read };
    for (at, thread, what) in [
        (90, THREAD, What::Enter(libc::SYS_pread64 as i16)),
        (100, THREAD, What::Insert(read)),
        (101, THREAD, What::Insert(merged)),
        (102, THREAD, What::Merge(merged)),
        (110, THREAD, What::Switch { state: UNINTERRUPTIBLE, next: 0 }),
        (200, 0, What::Complete(read)),
        (201, 0, What::Waking(THREAD)),
        (205, 0, What::Switch { state: 0, next: THREAD }),
        (300, 0, What::Free(THREAD)),
        (301, 0, What::Free(PROGRAM)),
    ] {
        story.tell(event(at, thread, what));
    }
    assert!(story.followed().is_empty() && story.in_flight.is_empty());
    assert!(story.tasks.is_empty() && story.calls.is_empty());
    let sums = story.sums(true);
    assert_eq!(sums.devices[0].1.in_flight, 1);
    let [ended] = &sums.threads[..] else { panic!("one process") };
    assert_eq!((ended.tgid, ended.waits, ended.last - ended.first), (PROGRAM, 1, 95));
    assert!(story.threads.is_empty());
}
