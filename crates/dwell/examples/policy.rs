// SPDX-License-Identifier: MIT OR Apache-2.0
//! A wait policy of one's own: spin for small reads while few others want the CPU, else block.
//! `cargo run -p dwell --example policy -- FILE`. The command takes such a policy too: see
//! `examples/own-policy`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use dwell::dwell_policy::Wait;
use dwell::{Decision, Kind, Reason, WaitPolicy, policy};

/// Spins for reads of at most so many bytes.
pub struct SmallReads {
    /// Longest read that is spun for.
    pub most_bytes: u64,
}

impl WaitPolicy for SmallReads {
    fn name(&self) -> &str {
        "small-reads"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        match wait.kind {
            Kind::Read if wait.load.others_above() => policy::block(wait, Reason::CpuBusy),
            Kind::Read if wait.size_bytes <= self.most_bytes => policy::spin(wait, Reason::Pays),
            Kind::Read => policy::block(wait, Reason::Size),
            _ => policy::block(wait, Reason::Fixed),
        }
    }
}

/// Reads 4 KiB and 64 KiB under the policy: how many requests spun, and how many blocked.
pub fn reads(path: &Path) -> dwell::Result<(u64, u64)> {
    let own = Arc::new(SmallReads { most_bytes: 8192 });
    // `options` would connect the file with the system monitor; this one sees an idle machine.
    let file = dwell::Options::new().policy(own).open(path)?;
    for bytes in [4096, 65536] {
        file.read_at(&mut vec![0; bytes], 0)?;
    }
    let stats = file.stats();
    Ok((stats.spins(), stats.requests() - stats.spins()))
}

#[allow(dead_code)] // The tests of the examples call `reads` themselves.
fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file, or emu:latency=20us")?;
    let (spun, blocked) = reads(path.as_ref())?;
    println!("{spun} spun, {blocked} blocked");
    Ok(())
}
