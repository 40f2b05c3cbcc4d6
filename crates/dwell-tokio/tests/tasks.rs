// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many tasks on many threads, the thread beneath them, and futures without a runtime.

mod common;

use std::future::Future;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Random, data, disk};
use dwell_tokio::{File, Stream};

/// The thread is the process's: tests that count it or start it go one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "dwell-tokio").count()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

#[test]
fn many_tasks_write_and_read_what_they_wrote() {
    const TASKS: u64 = 64;
    const BYTES: usize = 3000;
    let _alone = ALONE.lock();
    let dir = disk();
    let path = dir.path().join("data");
    runtime().block_on(async {
        let options = dwell::options().write(true).create_new(true);
        let file = File::open_with(options, &path).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let file = file.clone();
                tokio::spawn(async move {
                    let mut random = Random(task + 1);
                    for round in 0..30 {
                        let offset = task * 10_000 + random.below(7_000);
                        let written = data(BYTES, offset, round);
                        let buffer = file.write_all_at(written, offset).await.unwrap();
                        let read = file.read_exact_at(vec![0; BYTES], offset).await.unwrap();
                        assert!(read == buffer, "task {task}, round {round}");
                    }
                    file.sync_data().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let stats = file.file().stats();
        assert_eq!(stats.errors, 0);
        assert_eq!(stats.bytes_read, TASKS * 30 * BYTES as u64);
        assert_eq!(file.metadata().await.unwrap().len(), file.bytes().await.unwrap());
    });
}

#[test]
fn the_thread_starts_with_the_first_file_and_ends_with_the_last() {
    let _alone = ALONE.lock();
    let runtime = runtime();
    let wait_for = |wanted: usize| {
        let began = Instant::now();
        while threads() != wanted {
            assert!(began.elapsed() < Duration::from_secs(20), "{} threads", threads());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(0);
    let address = "emu:latency=5us,size=64KiB";
    for _ in 0..3 {
        let files = runtime.block_on(async {
            let mut files = Vec::new();
            for _ in 0..10 {
                files.push(File::open(address).await.unwrap());
            }
            files[9].read_at(vec![0; 512], 0).await.unwrap();
            files
        });
        assert_eq!(threads(), 1);
        drop(files);
        wait_for(0);
    }
}

#[test]
fn futures_need_no_runtime_of_tokios() {
    let _alone = ALONE.lock();
    let executor = dwell::executor::Executor::new().unwrap();
    let read = executor.block_on(async {
        let file = dwell_tokio::open("emu:latency=5us,size=64KiB").await?;
        assert_eq!(file.bytes().await?, 65536);
        Ok::<_, dwell::Error>(file.read_at(vec![1; 512], 0).await?)
    });
    assert_eq!(read.unwrap(), (512, vec![0; 512]));
}

#[test]
fn bytes_of_the_crate_bytes_are_buffers() {
    use bytes::{Bytes, BytesMut};
    use dwell::buffer::Spare;

    let _alone = ALONE.lock();
    let dir = disk();
    runtime().block_on(async {
        let options = dwell::options().write(true).create_new(true);
        let file = File::open_with(options, dir.path().join("data")).await.unwrap();
        file.write_all_at(Bytes::from_static(b"hello"), 0).await.unwrap();
        let spare = Spare::new(BytesMut::with_capacity(100));
        let (bytes, spare) = file.read_at(spare, 0).await.unwrap();
        assert_eq!((bytes, &spare.into_inner()[..]), (5, &b"hello"[..]));
    });
}

#[test]
fn registered_buffers_are_read_as_others() {
    use dwell::buffer::Pool;

    let _alone = ALONE.lock();
    let dir = disk();
    let path = dir.path().join("data");
    std::fs::write(&path, [7; 8192]).unwrap();
    runtime().block_on(async {
        let file = dwell_tokio::open(&path).await.unwrap();
        let pool = Pool::new(2, 4096);
        file.register(&pool).await.unwrap();
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        let reads = tokio::join!(file.read_exact_at(first, 0), file.read_exact_at(second, 4096));
        assert!(*reads.0.unwrap() == [7; 4096] && *reads.1.unwrap() == [7; 4096]);
        // Pools that are dropped make room for others.
        for _ in 0..40 {
            file.register(&Pool::new(1, 4096)).await.unwrap();
        }
    });
}

#[test]
fn files_streams_and_futures_can_go_to_other_threads() {
    fn send<T: Send + 'static>(_: impl Fn() -> T) {}
    fn sync<T: Send + Sync + 'static>() {}
    fn future(file: &'static File) -> impl Future + Send {
        async move {
            let _ = File::open("data").await;
            let _ = file.read_exact_at(vec![0; 1], 0).await;
            let _ = file.write_all_at(vec![0; 1], 0).await;
            let _ = (file.sync().await, file.sync_data().await, file.set_len(0).await);
        }
    }
    sync::<File>();
    send::<Stream>(|| unreachable!());
    let _ = future;
}
