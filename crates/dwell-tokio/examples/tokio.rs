// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the lines of a file on tokio, with eight reads in flight:
//! `cargo run -p dwell-tokio --example tokio -- FILE`.

use std::error::Error;
use std::path::Path;

use tokio::task::JoinSet;

const TASKS: u64 = 8;
const PIECE: u64 = 64 << 10;

/// How many line ends are in a file.
pub async fn lines(path: &Path) -> Result<usize, Box<dyn Error>> {
    let file = dwell_tokio::open(path).await?;
    let bytes = file.bytes().await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let file = file.clone();
        tasks.spawn(async move {
            let (mut lines, mut buffer) = (0, vec![0; PIECE as usize]);
            // Every eighth piece is this task's. Its buffer goes out and comes back.
            for offset in (task * PIECE..bytes).step_by((TASKS * PIECE) as usize) {
                let (read, back) = file.read_at(buffer, offset).await?;
                lines += back[..read].iter().filter(|byte| **byte == b'\n').count();
                buffer = back;
            }
            Ok::<usize, dwell::Error>(lines)
        });
    }
    let mut lines = 0;
    while let Some(task) = tasks.join_next().await {
        lines += task??;
    }
    Ok(lines)
}

#[allow(dead_code)] // The test of the example calls `lines` itself.
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    println!("{}", lines(path.as_ref()).await?);
    Ok(())
}
