// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces from the text of Valgrind's lackey (`--trace-mem=yes`).

use std::io::BufRead;
use std::path::Path;

use crate::dictionary::{AccessKind, NewBlock, NewInstruction, Site};
use crate::error::{Error, Result};
use crate::format::About;
use crate::writer::{Writer, Written};

/// A block ends after so many instructions, if the program does not jump before.
const MOST_INSTRUCTIONS: usize = 32;

/// Reads lackey's lines (`I  addr,size`, ` L addr,size`, ` S …`, ` M …`) up to `limit`
/// instructions. What Valgrind says about itself (`==123== …`) is passed over; any other line is
/// an error that names its byte. Lackey tells no instruction bytes, so the trace has none.
pub fn lackey(
    text: &mut dyn BufRead,
    name: &Path,
    out: &Path,
    limit: u64,
    progress: &mut dyn FnMut(u64),
) -> Result<Written> {
    let about = About {
        architecture: "x86_64".into(),
        producer: concat!("dwell ", env!("CARGO_PKG_VERSION"), ", from lackey").into(),
        ..About::default()
    };
    let mut writer = Writer::create(out, &about)?;
    let mut pending = Pending::default();
    let (mut line, mut offset, mut instructions) = (Vec::new(), 0u64, 0u64);
    loop {
        line.clear();
        let bytes = text.read_until(b'\n', &mut line);
        let bytes = bytes.map_err(|e| Error::io("reading", name, e))? as u64;
        if bytes == 0 {
            break;
        }
        match parse(line.trim_ascii_end()) {
            Some(Line::Instruction(address, length)) => {
                if instructions >= limit {
                    break;
                }
                instructions += 1;
                if pending.block.instructions.len() >= MOST_INSTRUCTIONS
                    || address != pending.next_address
                {
                    pending.write(&mut writer)?;
                }
                let instruction = NewInstruction { address, length, bytes: Vec::new() };
                pending.block.instructions.push(instruction);
                pending.next_address = address.wrapping_add(length.into());
                if instructions.is_multiple_of(1 << 20) {
                    progress(instructions);
                }
            }
            Some(Line::Access(kind, address, size)) if !pending.block.instructions.is_empty() => {
                let instruction = pending.block.instructions.len() as u16 - 1;
                pending.block.sites.push(Site { instruction, size, kind });
                pending.addresses.push(address);
                if pending.block.sites.len() == crate::dictionary::MAX_IN_BLOCK {
                    pending.write(&mut writer)?;
                }
            }
            Some(Line::Access(..)) => {
                let what = "an access before any instruction";
                return Err(Error::damaged(name, offset, what));
            }
            Some(Line::Remark) => {}
            None => {
                let line = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
                let what = format!("no line of lackey's --trace-mem: {:?}", line.trim_end());
                return Err(Error::damaged(name, offset, what));
            }
        }
        offset += bytes;
    }
    pending.write(&mut writer)?;
    writer.finish()
}

#[derive(Default)]
struct Pending {
    block: NewBlock,
    addresses: Vec<u64>,
    next_address: u64,
}

impl Pending {
    fn write(&mut self, writer: &mut Writer) -> Result<()> {
        let block = &mut self.block;
        if block.instructions.is_empty() {
            return Ok(());
        }
        block.ways = vec![(block.instructions.len() as u16, block.sites.len() as u16)];
        let id = writer.define(block)?;
        writer.block(id, &self.addresses)?;
        *block = NewBlock::default();
        self.addresses.clear();
        Ok(())
    }
}

enum Line {
    Instruction(u64, u8),
    Access(AccessKind, u64, u16),
    Remark,
}

fn parse(line: &[u8]) -> Option<Line> {
    if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
        return Some(Line::Remark);
    }
    let (kind, rest) = line.split_at_checked(3)?;
    let rest = std::str::from_utf8(rest).ok()?;
    let (address, size) = rest.trim_start().split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size: u16 = size.parse().ok()?;
    let access = |kind| Some(Line::Access(kind, address, size));
    match kind {
        b"I  " => {
            let length = u8::try_from(size).ok()?;
            let fits = usize::from(length) <= crate::dictionary::MAX_INSTRUCTION_BYTES;
            fits.then_some(Line::Instruction(address, length))
        }
        b" L " => access(AccessKind::Load),
        b" S " => access(AccessKind::Store),
        b" M " => access(AccessKind::Modify),
        _ => None,
    }
}
