// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams and files do what tokio's own file does: the same bytes, lengths and errors.

mod common;

use std::io::SeekFrom;
use std::path::Path;

use common::{Random, byte_at, data, disk};
use dwell::ErrorKind;
use dwell_tokio::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// What one step gave: a count or position, or an error number.
type Given = Result<u64, Option<i32>>;

fn given(result: std::io::Result<u64>) -> Given {
    result.map_err(|error| error.raw_os_error())
}

async fn both(dir: &Path) -> (dwell_tokio::Stream, tokio::fs::File) {
    let (one, other) = (dir.join("dwell"), dir.join("tokio"));
    std::fs::write(&one, data(100_000, 0, 1)).unwrap();
    std::fs::write(&other, data(100_000, 0, 1)).unwrap();
    let mut options = tokio::fs::OpenOptions::new();
    let other = options.read(true).write(true).open(other).await.unwrap();
    let one = File::open_with(dwell::options().write(true), one).await.unwrap();
    (one.stream().unwrap(), other)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_gives_the_same_bytes_positions_and_errors() {
    for seed in 1..=8 {
        let dir = disk();
        let (mut one, mut other) = both(dir.path()).await;
        let mut random = Random(seed);
        for step in 0..400 {
            let bytes = random.below(9_000) as usize;
            let (a, b): (Given, Given) = match random.below(6) {
                0 | 1 => {
                    let (mut first, mut second) = (vec![0; bytes], vec![0; bytes]);
                    let a = given(one.read_exact(&mut first).await.map(|bytes| bytes as u64));
                    let b = given(other.read_exact(&mut second).await.map(|bytes| bytes as u64));
                    if a.is_ok() {
                        assert!(first == second, "seed {seed}, step {step}");
                    }
                    (a, b)
                }
                2 => {
                    let written = data(bytes, random.below(1000), seed + step);
                    let a = given(one.write_all(&written).await.map(|()| 0));
                    (a, given(other.write_all(&written).await.map(|()| 0)))
                }
                3 => {
                    let a = given(one.flush().await.map(|()| 0));
                    (a, given(other.flush().await.map(|()| 0)))
                }
                4 => {
                    let length = random.below(120_000);
                    other.flush().await.unwrap();
                    one.flush().await.unwrap();
                    let a = given(one.file().set_len(length).await.map(|()| 0).map_err(Into::into));
                    (a, given(other.set_len(length).await.map(|()| 0)))
                }
                _ => {
                    let by = random.below(150_000) as i64 - 75_000;
                    let to = match random.below(3) {
                        0 => SeekFrom::Start(by.unsigned_abs()),
                        1 => SeekFrom::Current(by),
                        _ => SeekFrom::End(by),
                    };
                    let (a, b) = (one.seek(to).await, other.seek(to).await);
                    // A seek to before the beginning has no number of the system's here.
                    assert_eq!(
                        a.as_ref().map_err(std::io::Error::kind).ok(),
                        b.as_ref().map_err(std::io::Error::kind).ok()
                    );
                    (a.map_err(|_| None), b.map_err(|_| None))
                }
            };
            assert_eq!(a, b, "seed {seed}, step {step}");
            // How far a read that fails has come is nobody's promise.
            if a.is_err() {
                one.rewind().await.unwrap();
                other.rewind().await.unwrap();
            }
        }
        one.shutdown().await.unwrap();
        other.shutdown().await.unwrap();
        let found = |name| std::fs::read(dir.path().join(name)).unwrap();
        assert!(found("dwell") == found("tokio"), "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_number_of_tokios() {
    let dir = disk();
    let path = dir.path().join("data");
    let missing = std::io::Error::from(File::open(&path).await.unwrap_err());
    let of_tokio = tokio::fs::File::open(&path).await.unwrap_err();
    assert_eq!(missing.raw_os_error(), of_tokio.raw_os_error());
    assert_eq!(missing.kind(), of_tokio.kind());

    std::fs::write(&path, data(10, 0, 1)).unwrap();
    let file = File::open(&path).await.unwrap();
    let failed = file.write_at(vec![1; 3], 5).await.unwrap_err();
    assert!(failed.to_string().contains("write at byte 5"), "{failed}");
    assert_eq!(failed.buffer.as_deref(), Some(&[1; 3][..]));
    let read_only = std::io::Error::from(failed);
    let mut of_tokio = tokio::fs::File::open(&path).await.unwrap();
    of_tokio.write_all(&[1; 3]).await.unwrap();
    let of_tokio = of_tokio.flush().await.unwrap_err();
    assert_eq!(read_only.raw_os_error(), of_tokio.raw_os_error());
    assert_eq!(read_only.raw_os_error(), Some(libc::EBADF));

    let mut stream = file.stream().unwrap();
    let told = match stream.write_all(&[1; 3]).await {
        Ok(()) => stream.flush().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(told.raw_os_error(), Some(libc::EBADF));
    // The error is told once, and the stream goes on.
    stream.flush().await.unwrap();
    stream.rewind().await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, data(10, 0, 1));

    let directory = File::open(dir.path()).await.unwrap_err();
    assert_eq!(directory.kind(), ErrorKind::NotStorage);
    let end = file.read_exact_at(vec![0; 20], 5).await.unwrap_err();
    assert_eq!(std::io::Error::from(end).kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_a_dropped_stream_accepted_is_written() {
    let dir = disk();
    let path = dir.path().join("data");
    let options = dwell::options().write(true).create_new(true);
    let mut stream = File::open_with(options, &path).await.unwrap().stream().unwrap();
    let written = data(1 << 20, 0, 7);
    stream.write_all(&written).await.unwrap();
    drop(stream);
    for _ in 0..1000 {
        if std::fs::read(&path).unwrap() == written {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes are there", std::fs::metadata(&path).unwrap().len());
}

#[tokio::test]
async fn a_stream_of_a_direct_file_is_refused_and_its_requests_want_alignment() {
    let dir = disk();
    let path = dir.path().join("data");
    std::fs::write(&path, data(8192, 0, 1)).unwrap();
    let Ok(file) = File::open_with(dwell::options().direct(true), &path).await else {
        println!("SKIP: no direct I/O in the directory for temporary files");
        return;
    };
    assert_eq!(file.stream().map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    let failed = file.read_at(vec![0; 10], 1).await.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Unaligned);
    assert_eq!(failed.buffer.unwrap().len(), 10);
    let buffer = file.read_exact_at(dwell::buffer::Aligned::new(4096), 4096).await.unwrap();
    assert_eq!(buffer[1], byte_at(4097, 1));
}
