// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dropped future frees no buffer that somebody may still write to.

mod common;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Random, data, disk};
use dwell::buffer::{Aligned, IoBuf, IoBufMut};
use dwell_tokio::File;

const BYTES: usize = 4096;
const FREED: u8 = 0xdd;

/// Memory of a test that shows whether it was written to after it was freed.
struct Watched {
    memory: *mut u8,
    dropped: Arc<AtomicUsize>,
}

// SAFETY: the memory is its own until it is dropped.
unsafe impl Send for Watched {}

impl Watched {
    fn new(dropped: &Arc<AtomicUsize>) -> (Watched, *const u8) {
        let memory = ManuallyDrop::new(Aligned::new(BYTES)).as_mut_ptr();
        (Watched { memory, dropped: dropped.clone() }, memory)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: leaked memory of that length, which nobody else may use now.
        unsafe { self.memory.write_bytes(FREED, BYTES) };
        self.dropped.fetch_add(1, Ordering::Release);
    }
}

// SAFETY: leaked memory does not move.
unsafe impl IoBuf for Watched {
    fn data(&self) -> (*const u8, usize) {
        (self.memory, BYTES)
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Watched {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.memory, BYTES)
    }
}

/// Begins reads, drops their futures at any moment, and looks at the memory afterwards.
async fn drop_many(file: File, most_wait_us: u64, seed: u64) {
    const READS: usize = 400;
    let (mut random, dropped) = (Random(seed), Arc::new(AtomicUsize::new(0)));
    let mut places = Vec::new();
    for _ in 0..READS {
        let (buffer, place) = Watched::new(&dropped);
        places.push(place as usize);
        let offset = random.below(200) * BYTES as u64;
        let read = tokio::spawn(file.read_at(buffer, offset));
        match random.below(3) {
            0 => drop(
                tokio::time::timeout(Duration::from_micros(random.below(most_wait_us)), read).await,
            ),
            1 => read.abort(),
            _ => assert_eq!(read.await.unwrap().unwrap().0, BYTES),
        }
    }
    let began = Instant::now();
    while dropped.load(Ordering::Acquire) < READS {
        assert!(began.elapsed() < Duration::from_secs(20), "{dropped:?} of {READS} are free");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A request that still had one of them would write to it now.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for place in places {
        // SAFETY: leaked memory, which has no owner any more.
        let bytes = unsafe { std::slice::from_raw_parts(place as *const u8, BYTES) };
        assert!(bytes.iter().all(|byte| *byte == FREED), "written to after it was freed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn buffers_of_dropped_reads_of_a_file_are_freed_once_nobody_writes_there() {
    let dir = disk();
    let path = dir.path().join("data");
    std::fs::write(&path, data(200 * BYTES, 0, 1)).unwrap();
    drop_many(File::open(&path).await.unwrap(), 100, 3).await;
    match File::open_with(dwell::options().direct(true), &path).await {
        Ok(file) => drop_many(file, 300, 4).await,
        Err(error) => println!("SKIP: no direct I/O to the directory of the tests: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn buffers_of_dropped_reads_of_a_slow_device_are_freed_once_nobody_writes_there() {
    let file = File::open("emu:latency=300us,size=1MiB").await.unwrap();
    drop_many(file, 600, 5).await;
}

#[tokio::test]
async fn a_request_that_takes_long_keeps_neither_the_task_nor_the_runtime() {
    let file = File::open("emu:latency=400ms,size=64KiB").await.unwrap();
    let began = Instant::now();
    let read = file.read_at(vec![0; BYTES], 0);
    let in_time = tokio::time::timeout(Duration::from_millis(20), read).await;
    assert!(in_time.is_err() && began.elapsed() < Duration::from_millis(300));
    // The file serves others meanwhile.
    let (first, second) =
        tokio::join!(file.read_at(vec![0; BYTES], 0), file.read_at(vec![0; BYTES], 4096));
    assert_eq!((first.unwrap().0, second.unwrap().0), (BYTES, BYTES));
}

#[tokio::test]
async fn a_future_that_was_never_polled_asks_for_nothing() {
    let file = File::open("emu:latency=5us,size=64KiB").await.unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    drop(file.read_at(Watched::new(&dropped).0, 0));
    assert_eq!(dropped.load(Ordering::Acquire), 1);
    assert_eq!(file.file().stats().requests(), 0);
}
