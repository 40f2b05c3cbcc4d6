// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread reads a file with many requests in flight, sends it over a connection and keeps time:
//! `cargo run --release -p dwell --example one_thread -- FILE`.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use dwell::executor::Executor;

const PIECE: u64 = 64 << 10;
const IN_FLIGHT: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let out = TcpStream::connect(listener.local_addr()?)?;
    out.set_nonblocking(true)?;
    let mut far = listener.accept()?.0;
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        far.read_to_end(&mut all).map(|bytes| bytes as u64)
    });

    let executor = Executor::new()?;
    let (file, out) = (Arc::new(dwell::File::open(&path)?), executor.watch(out)?);
    let bytes = file.bytes()?;
    let file = executor.file(file)?;
    let clock = executor.handle();
    let progress = executor.spawn(async move {
        let began = clock.now();
        loop {
            clock.sleep(Duration::from_millis(100)).await;
            let ms = (clock.now() - began) / 1_000_000;
            println!("{ms} ms: {:?}", clock.counts());
        }
    });
    executor.block_on(async {
        let mut ahead = VecDeque::new();
        let mut next = (0..bytes).step_by(PIECE as usize);
        loop {
            while ahead.len() < IN_FLIGHT
                && let Some(at) = next.next()
            {
                let file = file.clone();
                ahead.push_back(executor.spawn(async move {
                    file.read_at(vec![0; PIECE.min(bytes - at) as usize], at).await
                }));
            }
            let Some(first) = ahead.pop_front() else { break };
            let (result, piece) = first.await;
            let mut left = &piece[..result?];
            while !left.is_empty() {
                let sent = out.write_with(|mut out| out.write(left)).await?;
                left = &left[sent..];
            }
        }
        Ok::<(), Box<dyn Error>>(())
    })?;
    drop((progress, out));
    println!("{} bytes sent, {} received", bytes, reader.join().expect("it does not panic")?);
    println!("{:?}", executor.counts());
    Ok(())
}
