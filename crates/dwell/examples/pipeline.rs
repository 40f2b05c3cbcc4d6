// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sums the bytes of a file with 16 reads in flight from one thread:
//! `cargo run -p dwell --example pipeline -- FILE`.

use std::error::Error;
use std::path::Path;

use dwell::buffer::Aligned;

const DEPTH: u32 = 16;
const PIECE: u64 = 64 << 10;

/// The sum of all bytes, in any order.
pub fn sum(path: &Path) -> dwell::Result<u64> {
    let file = dwell::open(path)?;
    let mut offsets = (0..file.bytes()?).step_by(PIECE as usize);
    let mut pipeline = file.pipeline(DEPTH)?;
    let mut sum = 0;
    // Each request owns its buffer. A buffer that comes back goes out again.
    let mut idle: Vec<_> = (0..DEPTH).map(|_| Aligned::new(PIECE as usize)).collect();
    loop {
        while let Some(buffer) = idle.pop() {
            match offsets.next() {
                Some(offset) => {
                    pipeline.read_at(buffer, offset).map_err(|(error, _buffer)| error)?
                }
                None => break,
            };
        }
        let Some(done) = pipeline.next() else { return Ok(sum) };
        let bytes = done.result?;
        if let Some(buffer) = done.buffer {
            sum += buffer[..bytes].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            idle.push(buffer);
        }
    }
}

#[allow(dead_code)] // The tests of the examples call `sum` themselves.
fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    println!("{}", sum(path.as_ref())?);
    Ok(())
}
