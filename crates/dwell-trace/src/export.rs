// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces as ChampSim's records: 64 bytes per instruction.

use std::collections::BTreeSet;
use std::io::Write;

use crate::dictionary::AccessKind;
use crate::error::{Error, Result};
use crate::reader::{Event, Executed, Reader};
use crate::registers::{Flow, Operands, Registers, operands};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// ChampSim's numbers of the registers from which it tells the kinds of branches apart.
const STACK_POINTER: u8 = 6;
const FLAGS: u8 = 25;
const INSTRUCTION_POINTER: u8 = 26;
/// Its numbers of the general registers, in hardware's order.
const GENERAL: [u8; 16] = [10, 9, 8, 7, STACK_POINTER, 5, 4, 3, 11, 12, 13, 14, 15, 16, 17, 18];

/// Writes one record per instruction of thread `thread`, or of all threads in the order in which
/// they ran, and answers how many. A register or access beyond those that a record holds is left
/// out.
///
/// # Errors
/// A trace without an instruction of that thread, before anything is written. What `out` refuses; a
/// damaged trace.
pub fn champsim(
    trace: &mut Reader,
    out: &mut dyn Write,
    thread: Option<u32>,
    limit: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    trace.rewind();
    let operands = operands(trace.dictionary());
    let mut waiting: Option<([u8; RECORD_BYTES], u64)> = None;
    let (mut records, mut running) = (0u64, trace.thread());
    let mut others = BTreeSet::new();
    let failed = |e| Error::io("writing records", std::path::Path::new("output"), e);
    while let Some(event) = trace.next_event()? {
        let run = match event {
            Event::Block(run) if thread.is_none_or(|thread| thread == running) => run,
            Event::Thread(thread) => {
                running = thread;
                continue;
            }
            Event::Block(_) => {
                others.insert(running);
                continue;
            }
            Event::Syscall(_) => continue,
        };
        for executed in run.instructions() {
            // Whether a branch was taken shows where the next instruction stands.
            if let Some((mut record, next)) = waiting.take() {
                record[9] &= u8::from(executed.instruction.address != next);
                out.write_all(&record).map_err(failed)?;
            }
            if records >= limit {
                return Ok(records);
            }
            records += 1;
            if records.is_multiple_of(1 << 20) {
                progress(records);
            }
            let next = executed.instruction.address + u64::from(executed.instruction.length);
            waiting = Some((record(&executed, &operands[executed.number]), next));
        }
    }
    if records == 0 {
        let (path, others) = (trace.path().display(), others.iter().map(u32::to_string));
        let others = others.collect::<Vec<_>>().join(", ");
        return Err(Error::Invalid(match thread {
            Some(thread) => {
                format!("{path}: has no instruction of thread {thread}; its threads are {others}")
            }
            None => format!("{path}: has no instruction"),
        }));
    }
    if let Some((mut record, _)) = waiting {
        record[9] = 0;
        out.write_all(&record).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(records)
}

fn record(executed: &Executed<'_>, operands: &Operands) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..8].copy_from_slice(&executed.instruction.address.to_le_bytes());
    let jumps = !matches!(operands.flow, Flow::Next | Flow::System);
    record[8] = jumps.into();
    record[9] = jumps.into();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    // ChampSim tells branches apart by these, so they come first.
    if jumps {
        writes.push(INSTRUCTION_POINTER);
        match operands.flow {
            Flow::Branch => reads.extend([INSTRUCTION_POINTER, FLAGS]),
            Flow::Jump | Flow::Call => reads.push(INSTRUCTION_POINTER),
            _ => {}
        }
        if matches!(operands.flow, Flow::Call | Flow::IndirectCall | Flow::Return) {
            reads.push(STACK_POINTER);
            writes.push(STACK_POINTER);
        }
    }
    let named = |registers: Registers| registers.numbers().map(champsim_register);
    for (list, registers) in [(&mut reads, operands.reads), (&mut writes, operands.writes)] {
        for register in named(registers) {
            // A conditional jump that read a general register would be taken for an indirect one.
            let counted = register < 19 && register != STACK_POINTER;
            if !(list.contains(&register) || operands.flow == Flow::Branch && counted) {
                list.push(register);
            }
        }
    }
    for (slot, register) in record[10..12].iter_mut().zip(writes) {
        *slot = register;
    }
    for (slot, register) in record[12..16].iter_mut().zip(reads) {
        *slot = register;
    }
    let touched = |write: bool| {
        let wanted = move |kind: AccessKind| if write { kind.writes() } else { kind.reads() };
        executed.sites.iter().zip(executed.addresses).filter_map(move |(site, &address)| {
            (address != 0 && wanted(site.kind)).then_some(address)
        })
    };
    for (slot, address) in record[16..32].chunks_mut(8).zip(touched(true)) {
        slot.copy_from_slice(&address.to_le_bytes());
    }
    for (slot, address) in record[32..64].chunks_mut(8).zip(touched(false)) {
        slot.copy_from_slice(&address.to_le_bytes());
    }
    record
}

fn champsim_register(number: u32) -> u8 {
    match number {
        0..16 => GENERAL[number as usize],
        48 => FLAGS,
        // Out of the way of those with a meaning.
        other => 64 + other as u8,
    }
}
