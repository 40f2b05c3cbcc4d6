// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of a trace as a trace of its own.

use std::path::Path;

use crate::error::{Error, Result};
use crate::reader::{Event, Reader};
use crate::writer::{Writer, Written};

/// Copies the blocks from the one that holds instruction `skip` on, until at least `limit`
/// instructions are copied: blocks stay whole. `progress` hears how many are.
///
/// # Errors
/// A trace that ends before instruction `skip`: then no file is made. What the system refuses; a
/// damaged trace.
pub fn cut(
    trace: &mut Reader,
    out: &Path,
    skip: u64,
    limit: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Written> {
    if skip >= trace.instructions() {
        let (path, all) = (trace.path().display(), trace.instructions());
        return Err(Error::Invalid(format!(
            "{path}: holds {all} instructions, and none from number {skip} on; skip fewer"
        )));
    }
    let mut about = trace.about().clone();
    let from = trace.seek(skip)?;
    about.skipped_instructions += from;
    let mut writer = Writer::create(out, &about)?;
    writer.thread(trace.thread());
    // Only what runs in this part is described in it.
    let mut ids = vec![0u32; trace.dictionary().blocks().len()];
    let mut told = 0;
    while writer.instructions() < limit {
        match trace.next_event()? {
            None => break,
            Some(Event::Thread(thread)) => writer.thread(thread),
            Some(Event::Syscall(number)) => writer.syscall(number),
            Some(Event::Block(run)) => {
                let id = &mut ids[run.id as usize];
                if *id == 0 {
                    *id = writer.define(&run.definition())?;
                }
                writer.block(*id, run.addresses)?;
            }
        }
        if writer.instructions() - told > 1 << 22 {
            told = writer.instructions();
            progress(told);
        }
    }
    writer.finish()
}
