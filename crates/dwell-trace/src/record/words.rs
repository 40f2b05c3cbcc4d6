// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words of a ring into a trace: see `valgrind/ring.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::dictionary::{AccessKind, Block, MAX_IN_BLOCK, NewBlock, NewInstruction, Site};
use crate::error::{Error, Result};
use crate::writer::Writer;

const DEFINE: u64 = 1;
const THREAD: u64 = 2;
const SYSCALL: u64 = 3;

/// The blocks of one process under its tool's numbers.
pub(super) struct Words {
    ids: Vec<(u32, Block)>,
}

impl Words {
    pub(super) fn new() -> Self {
        Words { ids: vec![(0, Block::default())] }
    }

    /// Writes what the words of one slot say, up to `limit` instructions in all.
    pub(super) fn write(
        &mut self,
        words: &[AtomicU64],
        limit: u64,
        writer: &mut Writer,
    ) -> Result<()> {
        let word = |at: usize| words.get(at).map(|word| word.load(Ordering::Relaxed));
        let mut at = 0;
        while let Some(head) = word(at) {
            at += 1;
            let value = head & (!0 >> 8);
            match head >> 56 {
                0 => {
                    let known = usize::try_from(head).ok().and_then(|id| self.ids.get(id));
                    let &(id, ref block) = known.ok_or_else(|| wrong("a block never defined"))?;
                    let end = at + usize::from(block.site_count);
                    let addresses = words.get(at..end).ok_or_else(|| wrong("a block cut short"))?;
                    if id == 0 || writer.instructions() >= limit {
                        return if id == 0 {
                            Err(wrong("a block without a number"))
                        } else {
                            Ok(())
                        };
                    }
                    writer.run(id, block, |i| addresses[i].load(Ordering::Relaxed))?;
                    at = end;
                }
                DEFINE => {
                    let end = at.saturating_add(value as usize);
                    let words =
                        words.get(at..end).ok_or_else(|| wrong("a definition cut short"))?;
                    let words: Vec<u64> = words.iter().map(|w| w.load(Ordering::Relaxed)).collect();
                    self.define(&words, writer)?;
                    at = end;
                }
                THREAD => writer.thread(value as u32),
                SYSCALL => writer.syscall(value),
                _ => return Err(wrong("a word of no known kind")),
            }
        }
        Ok(())
    }

    fn define(&mut self, words: &[u64], writer: &mut Writer) -> Result<()> {
        let (first, block) = parse(words).ok_or_else(|| wrong("a definition that ends early"))?;
        if first as usize != self.ids.len() {
            return Err(wrong("block numbers out of order"));
        }
        let id = writer.define(&block)?;
        for id in (id..).take(block.ways.len()) {
            self.ids.push((id, writer.dictionary().blocks()[id as usize]));
        }
        Ok(())
    }
}

fn parse(words: &[u64]) -> Option<(u64, NewBlock)> {
    let mut words = words.iter().copied();
    let count = |words: &mut dyn Iterator<Item = u64>| {
        let count = words.next()? as usize;
        (count <= MAX_IN_BLOCK).then_some(count)
    };
    let first = words.next()?;
    let (instructions, sites, ways) = (count(&mut words)?, count(&mut words)?, count(&mut words)?);
    let mut block = NewBlock::default();
    for _ in 0..instructions {
        let (address, length) = (words.next()?, u8::try_from(words.next()?).ok()?);
        let mut bytes = Vec::with_capacity(length.into());
        while bytes.len() < length.into() {
            bytes.extend_from_slice(&words.next()?.to_le_bytes());
        }
        bytes.truncate(length.into());
        block.instructions.push(NewInstruction { address, length, bytes });
    }
    for _ in 0..sites {
        let word = words.next()?;
        let kind = AccessKind::of(word >> 32)?;
        block.sites.push(Site { instruction: word as u16, size: (word >> 16) as u16, kind });
    }
    for _ in 0..ways {
        let word = words.next()?;
        block.ways.push((word as u16, (word >> 16) as u16));
    }
    Some((first, block))
}

fn wrong(what: &str) -> Error {
    Error::Invalid(format!("the Valgrind tool sent {what}; build it anew: make trace-tool"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::About;

    fn write(words: &[u64]) -> Result<u64> {
        let words: Vec<AtomicU64> = words.iter().copied().map(AtomicU64::new).collect();
        let mut writer = Writer::to(Box::new(std::io::sink()), "sink", &About::default())?;
        Words::new().write(&words, u64::MAX, &mut writer)?;
        Ok(writer.finish()?.accesses)
    }

    /// Block 1: one instruction of two bytes with a store of 4 bytes.
    const ONE: [u64; 10] =
        [DEFINE << 56 | 9, 1, 1, 1, 1, 0x1000, 2, 0x0389, 4 << 16 | 1 << 32, 1 | 1 << 16];

    #[test]
    fn a_definition_and_its_runs_are_written() {
        let runs = [1, 0x7000, THREAD << 56 | 2, 1, 0x7004, SYSCALL << 56 | 60];
        assert_eq!(write(&[&ONE[..], &runs].concat()).unwrap(), 2);
    }

    #[test]
    fn words_that_make_no_sense_are_errors() {
        for words in [
            &[1u64, 2][..],
            &[0],
            &[u64::MAX],
            &[DEFINE << 56 | 9],
            &[&ONE[..], &[1]].concat(),
            &[&ONE[..], &ONE[..]].concat(),
            &[DEFINE << 56 | 1, 1],
        ] {
            assert!(write(words).is_err(), "{words:x?}");
        }
    }
}
