// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring under every order in which two threads can meet.

use dwell_channel::ring::{Beside, Consumer, Cursor, Producer, Word};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

struct Index(AtomicU32);
struct Slot(AtomicU64);

impl Cursor for Index {
    fn observe(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
    fn publish(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
    fn publish_and_fence(&self, value: u32) {
        self.0.swap(value, Ordering::SeqCst);
    }
}

impl Word for Slot {
    fn copy(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

struct Memory {
    tail: Index,
    head: Index,
    slots: Vec<Slot>,
    belongs_to: Index,
    copy: [Slot; 2],
    asleep: AtomicU32,
}

fn memory(entries: usize) -> Arc<Memory> {
    Arc::new(Memory {
        tail: Index(AtomicU32::new(0)),
        head: Index(AtomicU32::new(0)),
        slots: (0..entries * 2).map(|_| Slot(AtomicU64::new(0))).collect(),
        belongs_to: Index(AtomicU32::new(0)),
        copy: [Slot(AtomicU64::new(0)), Slot(AtomicU64::new(0))],
        asleep: AtomicU32::new(0),
    })
}

#[test]
fn entries_come_out_whole_in_order_and_once() {
    loom::model(|| {
        let memory = memory(2);
        let theirs = memory.clone();
        let producing = loom::thread::spawn(move || {
            let mut producer = Producer::new(2);
            let mut next = 1u64;
            for _ in 0..3 {
                if producer.room(1, &theirs.head).unwrap() > 0 {
                    producer.put(&theirs.slots, [next, !next]);
                    producer.publish(&theirs.tail, &theirs.belongs_to);
                    next += 1;
                }
            }
            next
        });
        let mut consumer = Consumer::new(2);
        let mut next = 1;
        let take = |consumer: &mut Consumer, next: &mut u64| {
            for _ in 0..consumer.ready(&memory.tail).unwrap() {
                assert_eq!(consumer.take(&memory.slots), [*next, !*next]);
                *next += 1;
            }
            consumer.release(&memory.head);
        };
        take(&mut consumer, &mut next);
        take(&mut consumer, &mut next);
        let last = producing.join().unwrap();
        take(&mut consumer, &mut next);
        assert_eq!(next, last);
    });
}

/// A side that sleeps is rung, or has seen the entry: never neither.
#[test]
fn no_entry_is_slept_through() {
    loom::model(|| {
        let memory = memory(2);
        let theirs = memory.clone();
        let producing = loom::thread::spawn(move || {
            let mut producer = Producer::new(2);
            producer.put(&theirs.slots, [7, 8]);
            producer.publish(&theirs.tail, &theirs.belongs_to);
            // A read-modify-write stands for the store and the load that follow each other in one
            // order: loom knows no such order of plain loads.
            theirs.asleep.fetch_add(0, Ordering::SeqCst) != 0
        });
        memory.asleep.swap(1, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let mut consumer = Consumer::new(2);
        let seen = consumer.ready(&memory.tail).unwrap() > 0;
        let rung = producing.join().unwrap();
        assert!(seen || rung);
    });
}

#[test]
fn a_batch_is_published_in_one_store() {
    loom::model(|| {
        let memory = memory(4);
        let theirs = memory.clone();
        let producing = loom::thread::spawn(move || {
            let mut producer = Producer::new(4);
            for n in 0..3u64 {
                producer.put(&theirs.slots, [n, n]);
            }
            producer.publish(&theirs.tail, &theirs.belongs_to);
        });
        let mut consumer = Consumer::new(4);
        let ready = consumer.ready(&memory.tail).unwrap();
        assert!(ready == 0 || ready == 3);
        for n in 0..u64::from(ready) {
            assert_eq!(consumer.take(&memory.slots), [n, n]);
        }
        producing.join().unwrap();
    });
}

impl Memory {
    fn beside(&self) -> Beside<'_, Index, Slot> {
        Beside { belongs_to: &self.belongs_to, words: &self.copy }
    }
}

/// Entries beside the cursor where all before were taken, in the ring else: none is torn, lost or
/// taken twice.
#[test]
fn copies_beside_the_cursor_are_those_of_their_entries() {
    loom::model(|| {
        let memory = memory(2);
        let theirs = memory.clone();
        let producing = loom::thread::spawn(move || {
            let mut producer = Producer::new(2);
            let mut next = 1u64;
            for _ in 0..2 {
                let room = producer.room(2, &theirs.head).unwrap();
                if room == 0 {
                    continue;
                }
                producer.put(&theirs.slots, [next, !next]);
                match room {
                    2 => producer.publish_beside(&theirs.tail, theirs.beside(), [next, !next]),
                    _ => producer.publish(&theirs.tail, &theirs.belongs_to),
                }
                next += 1;
            }
            next
        });
        let mut consumer = Consumer::new(2);
        let mut next = 1;
        let take = |consumer: &mut Consumer, next: &mut u64| {
            for _ in 0..consumer.ready(&memory.tail).unwrap() {
                let beside = consumer.take_beside(memory.beside());
                let entry = beside.unwrap_or_else(|| consumer.take(&memory.slots));
                assert_eq!(entry, [*next, !*next]);
                *next += 1;
            }
            consumer.release(&memory.head);
        };
        take(&mut consumer, &mut next);
        take(&mut consumer, &mut next);
        let last = producing.join().unwrap();
        take(&mut consumer, &mut next);
        assert_eq!(next, last);
    });
}
