// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads one block of a file and says what was decided for the request:
//! `cargo run -p dwell --example read -- FILE [OFFSET]`.

use std::error::Error;
use std::path::Path;

/// The block at `offset`, shorter at the end of the file, and the decision.
pub fn block(path: &Path, offset: u64) -> dwell::Result<(Vec<u8>, String)> {
    let file = dwell::open(path)?;
    let mut buffer = vec![0; 4096];
    let bytes = file.read_at(&mut buffer, offset)?;
    buffer.truncate(bytes);

    let rows = file.stats().rows;
    let decisions = rows.iter().map(|row| {
        format!("route {}, mode {}, reason {}", row.route.as_str(), row.mode.as_str(), row.reason)
    });
    Ok((buffer, decisions.collect::<Vec<_>>().join("; ")))
}

#[allow(dead_code)] // The tests of the examples call `block` themselves.
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name a file")?;
    let offset = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let (bytes, decided) = block(path.as_ref(), offset)?;
    println!("{} bytes at {offset}; {decided}", bytes.len());
    Ok(())
}
