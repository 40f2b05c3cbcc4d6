// SPDX-License-Identifier: MIT OR Apache-2.0
//! Schedules: what the engine sends when, as text.

use std::fmt::Write as _;

use super::*;
use crate::nfs3::{ChangeAttributes, GetAttributes, Handle, Read, SetAttributes, Stable, Write};

const MS: Ns = 1_000_000;

/// An engine and all that it said, a line each.
struct Play {
    engine: Engine<Vec<u8>>,
    now: Ns,
    told: String,
}

fn handle() -> Handle {
    Handle::new(b"file").unwrap()
}

impl Play {
    fn new(change: impl FnOnce(&mut Settings), transport: Transport) -> Self {
        let mut settings = Settings::new(transport);
        change(&mut settings);
        let mut engine = Engine::new(settings);
        engine.connected(0);
        Play { engine, now: 0, told: String::new() }
    }

    fn write(&mut self, tag: u64, bytes: u32) {
        let call = Write { file: handle(), offset: tag, bytes, stable: Stable::Unstable };
        self.engine.submit(self.now, &call, Some(vec![tag as u8; bytes as usize]), tag);
    }

    fn change(&mut self, tag: u64) {
        let to = SetAttributes::default();
        self.engine.submit(self.now, &ChangeAttributes { file: handle(), to }, None, tag);
    }

    fn read(&mut self, tag: u64, bytes: u32) {
        self.engine.submit(self.now, &Read { file: handle(), offset: 0, bytes }, None, tag);
    }

    fn at(&mut self, now: Ns) {
        self.now = now;
        let told = &mut self.told;
        let stays = self.engine.timers(now, &mut |done| {
            let _ = writeln!(
                told,
                "{} ms: {} fails: {}",
                now / MS,
                done.tag,
                done.results.unwrap_err()
            );
        });
        if !stays {
            let _ = writeln!(told, "{} ms: silent", now / MS);
        }
        self.send();
    }

    /// Sends all that there is to send, and tells the XIDs.
    fn send(&mut self) {
        loop {
            let mut slices = Vec::new();
            self.engine.outgoing(&mut slices);
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            if bytes.is_empty() {
                return;
            }
            let mut xids = Vec::new();
            if self.engine.settings.transport == Transport::Datagram {
                xids.push(rpc::xid(&bytes).unwrap());
            } else {
                let mut at = 0;
                while at < bytes.len() {
                    let mark = u32::from_be_bytes(*bytes[at..].first_chunk().unwrap());
                    xids.push(rpc::xid(&bytes[at + 4..]).unwrap());
                    at += 4 + (mark & 0x7fff_ffff) as usize;
                }
                assert_eq!(at, bytes.len());
            }
            let _ = writeln!(self.told, "{} ms: sends {xids:?}", self.now / MS);
            self.engine.sent(self.now, bytes.len());
        }
    }

    fn reply(&mut self, message: &[u8]) {
        let (told, now) = (&mut self.told, self.now);
        let mut done = |done: Done<Vec<u8>>| {
            let results = done.results.map(|results| results.len());
            let _ = writeln!(told, "{} ms: {} ends: {results:?}", now / MS, done.tag);
        };
        match self.engine.settings.transport {
            Transport::Datagram => {
                self.engine.datagram(now, &Bytes::copy_from_slice(message), &mut done)
            }
            Transport::Stream => {
                let record = [&record::mark(message.len() as u32)[..], message].concat();
                self.engine.room()[..record.len()].copy_from_slice(&record);
                self.engine.received(now, record.len(), &mut done).unwrap();
            }
        }
        self.send();
    }

    fn answer(&mut self, xid: u32) {
        self.reply(&accepted(xid, 100));
    }

    fn told(&self, expected: &str) {
        let lines = |text: &str| {
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert_eq!(lines(&self.told), lines(expected));
    }
}

/// An answer whose results, of so many bytes, say that the server refused: those of any procedure.
fn accepted(xid: u32, results: usize) -> Vec<u8> {
    let head = [xid, 1, 0, 0, 0, 0].into_iter().flat_map(|word| word.to_be_bytes());
    let refused = [0, 0, 0, 1].into_iter().chain(std::iter::repeat(0));
    head.chain(refused.take(results)).collect()
}

#[test]
fn a_lost_request_is_sent_again_with_its_xid_ever_more_slowly() {
    let mut play = Play::new(|s| s.give_up_ns = 1000 * MS, Transport::Datagram);
    play.read(7, 8);
    play.at(0);
    for _ in 0..4 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
    }
    play.answer(1);
    play.told(
        "0 ms: sends [1]
         100 ms: sends [1]
         300 ms: sends [1]
         700 ms: sends [1]
         1000 ms: 7 fails: the server did not answer for 1 s",
    );
    let counters = play.engine.counters();
    assert_eq!((counters.resends, counters.strays, counters.answered), (3, 1, 0));
    assert_eq!(play.engine.next_timer(), None);
}

#[test]
fn a_request_that_a_server_keeps_dropping_is_at_last_sent_as_a_new_one() {
    let mut play = Play::new(|s| s.give_up_ns = 10_000 * MS, Transport::Datagram);
    play.read(7, 8);
    play.at(0);
    for _ in 0..6 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
    }
    play.answer(1);
    play.answer(2);
    play.told(
        "0 ms: sends [1]
         100 ms: sends [1]
         300 ms: sends [1]
         700 ms: sends [1]
         1500 ms: sends [1]
         3100 ms: sends [1]
         6300 ms: sends [2]
         6300 ms: 7 ends: Ok(100)",
    );
    assert_eq!(play.engine.counters().strays, 1);
}

#[test]
fn a_write_keeps_its_xid_so_that_a_late_copy_cannot_undo_a_later_write() {
    let mut play = Play::new(|s| s.give_up_ns = 60_000 * MS, Transport::Datagram);
    play.write(7, 8);
    play.at(0);
    for _ in 0..15 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
    }
    assert_eq!(play.engine.counters().resends, 15);
    assert!(play.told.lines().all(|line| line.ends_with("sends [1]")), "{}", play.told);
    play.answer(1);
    assert_eq!(play.engine.pending(), 0);
}

/// A change, of a server that has answered one at once.
fn changing(give_up_ns: Ns) -> Play {
    let mut play = Play::new(|s| s.give_up_ns = give_up_ns, Transport::Datagram);
    play.change(7);
    play.at(0);
    play.answer(1);
    play.change(8);
    play.at(0);
    play
}

#[test]
fn a_slow_server_gets_few_copies_of_what_makes_it_work() {
    let mut play = changing(60_000 * MS);
    for _ in 0..5 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
    }
    play.told(
        "0 ms: sends [1]
         0 ms: 7 ends: Ok(100)
         0 ms: sends [2]
         1 ms: sends [2]
         101 ms: sends [2]
         1101 ms: sends [2]
         11101 ms: sends [2]
         21101 ms: sends [2]",
    );
}

#[test]
fn a_change_that_later_ones_overtook_was_lost_and_is_sent_again_sooner() {
    let mut play = changing(4_000 * MS);
    for xid in 3..6 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
        play.change(9);
        play.at(at + 1);
        play.answer(xid);
    }
    // And once more well before it is given up.
    for _ in 0..2 {
        let at = play.engine.next_timer().unwrap();
        play.at(at);
    }
    play.told(
        "0 ms: sends [1]
         0 ms: 7 ends: Ok(100)
         0 ms: sends [2]
         1 ms: sends [2]
         1 ms: sends [3]
         1 ms: 9 ends: Ok(100)
         11 ms: sends [2]
         11 ms: sends [4]
         11 ms: 9 ends: Ok(100)
         111 ms: sends [2]
         111 ms: sends [5]
         111 ms: 9 ends: Ok(100)
         1111 ms: sends [2]
         2555 ms: sends [2]",
    );
}

/// A server that refused a call as one of its own failures.
fn failed(xid: u32) -> Vec<u8> {
    [xid, 1, 0, 0, 0, 5].into_iter().flat_map(|word: u32| word.to_be_bytes()).collect()
}

#[test]
fn a_copy_that_is_refused_while_the_server_may_be_at_another_is_sent_again_as_it_is() {
    let mut play = Play::new(|_| (), Transport::Stream);
    play.write(7, 8);
    play.read(8, 8);
    play.at(0);
    // Sent once: the server did not carry it out.
    play.reply(&failed(2));
    play.engine.disconnected();
    play.engine.connected(MS);
    play.at(MS);
    play.reply(&failed(1));
    let at = play.engine.next_timer().unwrap();
    play.at(at);
    play.reply(&failed(1));
    let at = play.engine.next_timer().unwrap();
    play.at(at);
    play.answer(1);
    play.told(
        "0 ms: sends [1, 2]
         0 ms: 8 ends: Err(Refused(System))
         1 ms: sends [1]
         21 ms: sends [1]
         61 ms: sends [1]
         61 ms: 7 ends: Ok(100)",
    );
}

#[test]
fn the_window_bounds_what_is_outstanding() {
    let mut play = Play::new(|s| s.window = WindowKind::Fixed(2), Transport::Stream);
    for tag in 10..15 {
        play.write(tag, 5);
    }
    play.at(0);
    play.now = 3 * MS;
    play.answer(2);
    play.answer(2);
    play.answer(1);
    play.told(
        "0 ms: sends [1, 2]
         3 ms: 11 ends: Ok(100)
         3 ms: sends [3]
         3 ms: 10 ends: Ok(100)
         3 ms: sends [4]",
    );
    assert_eq!(play.engine.pending(), 3);
}

#[test]
fn socket_buffers_bound_it_too_but_never_to_nothing() {
    let mut play = Play::new(
        |s| (s.window, s.send_bytes) = (WindowKind::Fixed(32), 20_000),
        Transport::Datagram,
    );
    play.write(1, 30_000);
    play.write(2, 8192);
    play.write(3, 8192);
    play.write(4, 8192);
    play.at(0);
    play.answer(1);
    play.told(
        "0 ms: sends [1]
         0 ms: 1 ends: Ok(100)
         0 ms: sends [2]
         0 ms: sends [3]",
    );
}

#[test]
fn a_new_connection_replays_in_order_with_the_old_xids() {
    let mut play = Play::new(|s| s.first_xid = u32::MAX, Transport::Stream);
    for tag in 0..3 {
        play.write(tag, 4);
    }
    play.at(0);
    play.answer(0);
    play.engine.disconnected();
    play.write(3, 4);
    play.at(5 * MS);
    play.engine.connected(6 * MS);
    play.at(6 * MS);
    play.told(
        "0 ms: sends [4294967295, 0, 1]
         0 ms: 1 ends: Ok(100)
         6 ms: sends [4294967295, 1, 2]",
    );
    assert_eq!((play.engine.counters().replays, play.engine.counters().reconnects), (2, 1));
}

#[test]
fn a_request_that_was_half_sent_begins_anew_on_the_next_connection() {
    let mut play = Play::new(|_| (), Transport::Stream);
    play.write(0, 4);
    play.engine.sent(0, 10);
    play.engine.disconnected();
    play.engine.connected(1);
    play.at(1);
    play.told("0 ms: sends [1]");
}

#[test]
fn an_abandoned_request_is_never_sent_unless_some_of_it_was() {
    let mut play = Play::new(|s| s.window = WindowKind::Fixed(3), Transport::Stream);
    play.write(0, 4);
    play.at(0);
    // Half sent, about to be sent, in the queue.
    for tag in 1..=4 {
        play.write(tag, 4);
    }
    play.engine.sent(0, 10);
    assert_eq!([0, 1, 2, 3].map(|tag| play.engine.abandon(tag)), [false, false, true, true]);
    assert_eq!((play.engine.pending(), play.engine.backlog_bytes()), (3, 12));
    play.engine.disconnected();
    play.at(1);
    play.engine.connected(2);
    play.at(2);
    play.answer(1);
    play.told(
        "0 ms: sends [1]
         0 ms: 1 fails: the server did not answer for 60 s
         0 ms: sends [1, 5]
         0 ms: 0 ends: Ok(100)",
    );
}

#[test]
fn a_stream_that_is_silent_while_answers_are_due_is_given_up() {
    let mut play = Play::new(|s| s.silence_ns = 50 * MS, Transport::Stream);
    play.at(40 * MS);
    play.write(0, 4);
    play.at(40 * MS);
    assert_eq!(play.engine.next_timer(), Some(90 * MS));
    play.at(90 * MS);
    play.told("40 ms: sends [1]\n 90 ms: silent");
}

#[test]
fn a_stream_that_takes_no_more_of_a_request_is_given_up() {
    let mut play = Play::new(|s| s.silence_ns = 50 * MS, Transport::Stream);
    play.write(0, 4);
    play.engine.sent(10 * MS, 10);
    // It still takes some now and then.
    play.engine.sent(40 * MS, 10);
    assert_eq!(play.engine.next_timer(), Some(90 * MS));
    assert!(play.engine.timers(89 * MS, &mut |_| ()));
    assert!(!play.engine.timers(90 * MS, &mut |_| ()));
}

#[test]
fn refusals_and_nonsense_end_a_request_of_a_stream_but_not_of_datagrams() {
    let mut stream = Play::new(|_| (), Transport::Stream);
    stream.write(0, 4);
    stream.read(1, 4);
    stream.at(0);
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
    stream.reply(&words(&[1, 1, 1, 1, 5]));
    stream.reply(&words(&[2, 1, 7]));
    stream.reply(&words(&[77, 1, 7]));
    stream.reply(b"ab");
    assert!(stream.told.contains("0 ends: Err(Refused(Credential(5)))"), "{}", stream.told);
    assert!(stream.told.contains("1 ends: Err(Malformed("), "{}", stream.told);
    let counters = stream.engine.counters();
    assert_eq!((counters.strays, counters.garbage), (1, 1));

    let mut datagrams = Play::new(|_| (), Transport::Datagram);
    datagrams.write(0, 4);
    datagrams.at(0);
    for end in 0..24 {
        datagrams.reply(&accepted(1, 0)[..end]);
    }
    assert_eq!(datagrams.engine.pending(), 1);
    datagrams.answer(1);
    assert_eq!(datagrams.engine.pending(), 0);
}

#[test]
fn the_low_water_mark_is_what_the_answers_need_at_least() {
    let mut play = Play::new(|s| s.window = WindowKind::Fixed(8), Transport::Stream);
    assert_eq!(play.engine.low_water(4), 1);
    for tag in 0..8 {
        play.write(tag, 8);
    }
    play.at(0);
    // Mark, head, status, no change, count, stability, verifier.
    let least = 4 + 24 + 4 + 8 + 16;
    assert_eq!(play.engine.low_water(1), 1);
    assert_eq!(play.engine.low_water(4), 4 * least);
    // Answers turn out to be longer, and part of one is here already.
    play.answer(1);
    assert_eq!(play.engine.low_water(4), 4 * (4 + 24 + 100));
    play.engine.room()[..10].copy_from_slice(&[0x80, 0, 0, 124, 0, 0, 0, 2, 0, 0]);
    play.engine.received(0, 10, &mut |_| unreachable!()).unwrap();
    assert_eq!(play.engine.low_water(4), 4 * 128 - 6);
    let mut reads = Play::new(|s| s.window = WindowKind::Fixed(8), Transport::Stream);
    reads.read(0, 8192);
    reads.read(1, 100);
    reads.at(0);
    assert_eq!(reads.engine.low_water(2), 2 * (4 + 24 + 4 + 16) + 8292);
}

#[test]
fn more_of_a_large_window_is_slept_for_while_enough_waits_at_the_server() {
    let mut play = Play::new(|s| s.window = WindowKind::Fixed(32), Transport::Stream);
    assert_eq!(play.engine.worth_waking_for(), 1);
    for tag in 0..32 {
        play.write(tag, 8);
    }
    play.at(0);
    assert_eq!(play.engine.worth_waking_for(), 16);
    // As long as answers take what an idle server takes, nothing waits there.
    play.now = MS;
    play.answer(1);
    assert_eq!(play.engine.worth_waking_for(), 16);
    play.now = 30 * MS;
    for xid in 2..10 {
        play.answer(xid);
    }
    // Of 23 that take 20 ms in place of 1 one is being served; eight are left to wait.
    assert_eq!(play.engine.worth_waking_for(), 23 - 1 - 8);
}

#[test]
fn an_answer_to_a_request_sent_twice_teaches_nothing_about_time() {
    let mut play = Play::new(|_| (), Transport::Datagram);
    play.write(0, 4);
    play.at(0);
    play.at(100 * MS);
    play.now = 101 * MS;
    play.answer(1);
    assert_eq!(play.engine.rtt(Class::Write).smoothed_ns(), 0);
    play.engine.submit(play.now, &GetAttributes(handle()), None, 9);
    play.send();
    play.now += 3 * MS;
    play.answer(2);
    assert_eq!(play.engine.rtt(Class::Metadata).smoothed_ns(), 3 * MS);
}
