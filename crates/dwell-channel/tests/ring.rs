// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cursors that cannot be: each ends the channel, none reaches memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use dwell_channel::ring::{Beside, Consumer, Producer};

fn slots(entries: usize) -> Vec<AtomicU64> {
    (0..entries * 2).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn a_tail_that_jumps_is_an_error() {
    for jump in [9, 16, 1000, 1 << 31, u32::MAX] {
        let mut consumer = Consumer::new(8);
        let tail = AtomicU32::new(jump);
        let broken = consumer.ready(&tail).unwrap_err();
        assert_eq!((broken.cursor, broken.first, broken.last), (jump, 0, 8));
    }
}

#[test]
fn a_tail_that_goes_back_is_an_error() {
    let (mut consumer, slots) = (Consumer::new(8), slots(8));
    let tail = AtomicU32::new(3);
    for _ in 0..consumer.ready(&tail).unwrap() {
        let _: [u64; 2] = consumer.take(&slots);
    }
    tail.store(2, Relaxed);
    assert!(consumer.ready(&tail).is_err());
}

#[test]
fn a_head_ahead_of_the_tail_or_behind_itself_is_an_error() {
    let (mut producer, slots) = (Producer::new(4), slots(4));
    let head = AtomicU32::new(0);
    for n in 0..4 {
        assert!(producer.room(1, &head).unwrap() > 0);
        producer.put(&slots, [n, n]);
    }
    assert_eq!(producer.room(1, &head), Ok(0));
    for wrong in [5, 6, 1 << 31, u32::MAX] {
        head.store(wrong, Relaxed);
        assert!(producer.room(1, &head).is_err(), "{wrong}");
    }
    head.store(3, Relaxed);
    assert_eq!(producer.room(2, &head), Ok(3));
    head.store(2, Relaxed);
    assert!(producer.room(4, &head).is_err());
}

#[test]
fn cursors_wrap_around_after_four_billion() {
    let (tail, head, slots) = (AtomicU32::new(0), AtomicU32::new(0), slots(2));
    let belongs_to = AtomicU32::new(0);
    let (mut producer, mut consumer) = (Producer::new(2), Consumer::new(2));
    // So many that a cursor that does not wrap is seen; the whole way would take minutes. Miri
    // takes its time.
    let rounds = if cfg!(miri) { 500 } else { 100_000u64 };
    for n in 0..rounds {
        assert!(producer.room(1, &head).unwrap() > 0);
        producer.put(&slots, [n, !n]);
        producer.publish(&tail, &belongs_to);
        assert_eq!(consumer.ready(&tail), Ok(1));
        assert_eq!(consumer.take(&slots), [n, !n]);
        consumer.release(&head);
    }
}

#[test]
fn a_copy_beside_the_cursor_is_taken_for_its_own_entry_only() {
    let (tail, head, slots) = (AtomicU32::new(0), AtomicU32::new(0), slots(4));
    let (belongs_to, words) = (AtomicU32::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
    let beside = || Beside { belongs_to: &belongs_to, words: &words };
    let (mut producer, mut consumer) = (Producer::new(4), Consumer::new(4));
    producer.put(&slots, [1, 2]);
    producer.publish_beside(&tail, beside(), [1, 2]);
    assert_eq!(consumer.ready(&tail), Ok(1));
    assert_eq!(consumer.take_beside(beside()), Some([1, 2]));
    assert_eq!((consumer.ready(&tail), producer.room(4, &head)), (Ok(0), Ok(3)));
    consumer.release(&head);
    assert_eq!(producer.room(4, &head), Ok(4));
    // Without a copy, from the ring; and so each of several.
    producer.put(&slots, [3, 4]);
    producer.publish(&tail, &belongs_to);
    assert_eq!((consumer.ready(&tail), consumer.take_beside::<2>(beside())), (Ok(1), None));
    assert_eq!(consumer.take(&slots), [3, 4]);
    for n in 5..7 {
        producer.put(&slots, [n, n]);
    }
    producer.publish_beside(&tail, beside(), [6, 6]);
    assert_eq!((consumer.ready(&tail), consumer.take_beside::<2>(beside())), (Ok(2), None));
    assert_eq!(consumer.take(&slots), [5, 5]);
    assert_eq!(consumer.take_beside(beside()), Some([6, 6]));
    // An entry that is published again without its copy is taken from the ring.
    producer.put(&slots, [7, 8]);
    producer.publish_beside(&tail, beside(), [7, 8]);
    producer.publish(&tail, &belongs_to);
    assert_eq!((consumer.ready(&tail), consumer.take_beside::<2>(beside())), (Ok(1), None));
    assert_eq!(consumer.take(&slots), [7, 8]);
}
