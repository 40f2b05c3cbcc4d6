// SPDX-License-Identifier: MIT OR Apache-2.0
//! The static side of a trace: blocks, their instructions, and where those touch memory.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::format::{put_varint, take_varint, unzigzag, zigzag};

/// Most instructions, and most accesses, of one block.
pub const MAX_IN_BLOCK: usize = 4096;
/// Longest instruction in bytes: Valgrind counts its own marks in a program as one instruction.
pub const MAX_INSTRUCTION_BYTES: usize = 31;
/// Most instructions, accesses and blocks of one dictionary.
const MAX_ITEMS: usize = 1 << 26;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads, then writes the same bytes.
    Modify,
}

impl AccessKind {
    pub(crate) fn of(code: u64) -> Option<Self> {
        [AccessKind::Load, AccessKind::Store, AccessKind::Modify].get(code as usize).copied()
    }

    /// Whether memory is read.
    pub fn reads(self) -> bool {
        self != AccessKind::Store
    }

    /// Whether memory is written.
    pub fn writes(self) -> bool {
        self != AccessKind::Load
    }
}

/// A place in the code that touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Which instruction of its block, from 0.
    pub instruction: u16,
    /// Bytes touched.
    pub size: u16,
    /// The kind of access.
    pub kind: AccessKind,
}

/// One instruction of a new block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewInstruction {
    /// Where it stands.
    pub address: u64,
    /// Its length in bytes.
    pub length: u8,
    /// Its bytes, or nothing where they are not known.
    pub bytes: Vec<u8>,
}

/// Straight-line code that is entered at its first instruction only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NewBlock {
    /// Its instructions in order.
    pub instructions: Vec<NewInstruction>,
    /// Its accesses in order.
    pub sites: Vec<Site>,
    /// The ways to run it, by instructions and accesses performed; usually one, all of both.
    /// Each way has an id of its own. An instruction that left early has performed fewer accesses
    /// than it has sites.
    pub ways: Vec<(u16, u16)>,
}

impl NewBlock {
    /// Checks the block; the error says what is wrong with it.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.instructions.is_empty() || self.instructions.len() > MAX_IN_BLOCK {
            return Err("a block has 1 to 4096 instructions");
        }
        if self.sites.len() > MAX_IN_BLOCK {
            return Err("a block has at most 4096 accesses");
        }
        let length = |i: &NewInstruction| {
            usize::from(i.length) <= MAX_INSTRUCTION_BYTES
                && (i.bytes.is_empty() || i.bytes.len() == usize::from(i.length))
        };
        if !self.instructions.iter().all(length) {
            return Err("an instruction has at most 31 bytes, and as many as it is long");
        }
        if !self.sites.is_sorted_by_key(|site| site.instruction) {
            return Err("accesses stand in the order of their instructions");
        }
        if self.sites.iter().any(|site| usize::from(site.instruction) >= self.instructions.len()) {
            return Err("an access belongs to an instruction of its block");
        }
        let fits = |&(instructions, sites): &(u16, u16)| {
            (1..=self.instructions.len()).contains(&usize::from(instructions))
                && usize::from(sites) <= self.sites.len()
                && self.sites[..usize::from(sites)].iter().all(|s| s.instruction < instructions)
        };
        if self.ways.is_empty() || self.ways.len() > MAX_IN_BLOCK || !self.ways.iter().all(fits) {
            return Err("each way to run a block is a part of it");
        }
        Ok(())
    }
}

/// A block as it runs: so many instructions from one address on, with so many accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction.
    pub address: u64,
    /// Place of the first instruction in [`Dictionary::instructions`].
    pub first_instruction: u32,
    /// Place of the first access in [`Dictionary::sites`].
    pub first_site: u32,
    /// Instructions performed.
    pub instruction_count: u16,
    /// Accesses performed.
    pub site_count: u16,
}

/// One instruction of the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Where it stands.
    pub address: u64,
    /// Length in bytes.
    pub length: u8,
    /// Whether the bytes are known.
    pub has_bytes: bool,
    first_byte: u32,
}

/// All blocks that a trace names.
#[derive(Clone, Debug)]
pub struct Dictionary {
    blocks: Vec<Block>,
    instructions: Vec<Instruction>,
    sites: Vec<Site>,
    bytes: Vec<u8>,
    next_address: u64,
}

impl Default for Dictionary {
    fn default() -> Self {
        // Id 0 names no block: in the stream it introduces other events.
        Dictionary {
            blocks: vec![Block::default()],
            instructions: Vec::new(),
            sites: Vec::new(),
            bytes: Vec::new(),
            next_address: 0,
        }
    }
}

impl Dictionary {
    /// Blocks by id; the first, id 0, is none.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// All instructions; a block's stand together.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// All accesses; a block's stand together.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The instructions that a run of `block` performs.
    pub fn instructions_of(&self, block: &Block) -> &[Instruction] {
        let first = block.first_instruction as usize;
        &self.instructions[first..first + usize::from(block.instruction_count)]
    }

    /// The accesses that a run of `block` performs.
    #[inline]
    pub fn sites_of(&self, block: &Block) -> &[Site] {
        let first = block.first_site as usize;
        &self.sites[first..first + usize::from(block.site_count)]
    }

    /// The bytes of an instruction; none where they are not known.
    pub fn bytes_of(&self, instruction: &Instruction) -> &[u8] {
        let length = if instruction.has_bytes { usize::from(instruction.length) } else { 0 };
        let first = instruction.first_byte as usize;
        &self.bytes[first..first + length]
    }

    /// Adds a block and answers the id of its first way; the others follow it.
    pub(crate) fn add(&mut self, block: &NewBlock) -> Result<u32, &'static str> {
        block.check()?;
        let full = self.sites.len().max(self.instructions.len()).max(self.blocks.len()) > MAX_ITEMS;
        if full || self.bytes.len() > 1 << 30 {
            return Err("more code than a trace can describe");
        }
        let id = self.blocks.len() as u32;
        let (first_instruction, first_site) = (self.instructions.len(), self.sites.len());
        for instruction in &block.instructions {
            self.instructions.push(Instruction {
                address: instruction.address,
                length: instruction.length,
                has_bytes: !instruction.bytes.is_empty(),
                first_byte: self.bytes.len() as u32,
            });
            self.bytes.extend_from_slice(&instruction.bytes);
            self.next_address = instruction.address.wrapping_add(instruction.length.into());
        }
        self.sites.extend_from_slice(&block.sites);
        self.blocks.extend(block.ways.iter().map(|&(instruction_count, site_count)| Block {
            address: block.instructions[0].address,
            first_instruction: first_instruction as u32,
            first_site: first_site as u32,
            instruction_count,
            site_count,
        }));
        Ok(id)
    }

    /// Appends the description of a block that is about to be added.
    pub(crate) fn describe(&self, block: &NewBlock, out: &mut Vec<u8>) {
        for count in [block.instructions.len(), block.sites.len(), block.ways.len()] {
            put_varint(out, count as u64);
        }
        let mut next = self.next_address;
        for instruction in &block.instructions {
            put_varint(out, zigzag(instruction.address.wrapping_sub(next) as i64));
            let unknown = u8::from(instruction.bytes.is_empty()) << 7;
            out.push(instruction.length | unknown);
            out.extend_from_slice(&instruction.bytes);
            next = instruction.address.wrapping_add(instruction.length.into());
        }
        let mut last = 0;
        for site in &block.sites {
            put_varint(out, u64::from(site.instruction - last));
            out.push(site.kind as u8);
            put_varint(out, site.size.into());
            last = site.instruction;
        }
        for &(instructions, sites) in &block.ways {
            put_varint(out, instructions.into());
            put_varint(out, sites.into());
        }
    }

    /// Adds all blocks described by the bytes of one dictionary chunk.
    pub(crate) fn extend_from(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        while at < bytes.len() {
            let block = self.parse(bytes, &mut at).ok_or("a block's description is cut short")?;
            self.add(&block)?;
        }
        Ok(())
    }

    fn parse(&self, bytes: &[u8], at: &mut usize) -> Option<NewBlock> {
        let mut count = || {
            let count = take_varint(bytes, at)? as usize;
            (count <= MAX_IN_BLOCK).then_some(count)
        };
        let (instructions, sites, ways) = (count()?, count()?, count()?);
        let mut block = NewBlock::default();
        let mut next = self.next_address;
        for _ in 0..instructions {
            let address = next.wrapping_add(unzigzag(take_varint(bytes, at)?) as u64);
            let first = *bytes.get(*at)?;
            *at += 1;
            let length = first & 0x7f;
            let known = if first < 0x80 { usize::from(length) } else { 0 };
            let code = bytes.get(*at..*at + known)?;
            *at += known;
            next = address.wrapping_add(length.into());
            block.instructions.push(NewInstruction { address, length, bytes: code.to_vec() });
        }
        let mut last = 0u64;
        for _ in 0..sites {
            last = last.checked_add(take_varint(bytes, at)?)?;
            let kind = AccessKind::of((*bytes.get(*at)?).into())?;
            *at += 1;
            let size = u16::try_from(take_varint(bytes, at)?).ok()?;
            block.sites.push(Site { instruction: u16::try_from(last).ok()?, size, kind });
        }
        for _ in 0..ways {
            let mut part = || u16::try_from(take_varint(bytes, at)?).ok();
            block.ways.push((part()?, part()?));
        }
        Some(block)
    }

    /// The block with that id, as it would be defined anew.
    pub(crate) fn definition(&self, block: &Block) -> NewBlock {
        let instruction = |i: &Instruction| NewInstruction {
            address: i.address,
            length: i.length,
            bytes: self.bytes_of(i).to_vec(),
        };
        NewBlock {
            instructions: self.instructions_of(block).iter().map(instruction).collect(),
            sites: self.sites_of(block).to_vec(),
            ways: vec![(block.instruction_count, block.site_count)],
        }
    }
}

/// Finds blocks that were defined before.
#[derive(Default)]
pub(crate) struct Known {
    ids: HashMap<u64, Vec<(NewBlock, u32)>>,
}

impl Known {
    pub(crate) fn find(&self, block: &NewBlock) -> Option<u32> {
        let same = self.ids.get(&hash(block))?.iter().find(|(known, _)| known == block)?;
        Some(same.1)
    }

    pub(crate) fn insert(&mut self, block: &NewBlock, id: u32) {
        self.ids.entry(hash(block)).or_default().push((block.clone(), id));
    }
}

fn hash(block: &NewBlock) -> u64 {
    let mut hasher = DefaultHasher::new();
    block.hash(&mut hasher);
    hasher.finish()
}
