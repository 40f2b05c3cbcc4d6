// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a trace, chunk by chunk, in one pass.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::chunk::ChunkEncoder;
use crate::dictionary::{Block, Dictionary, Known, NewBlock};
use crate::error::{Error, Result};
use crate::format::{About, ChunkHeader, ChunkKind, file_header, trailer};

/// Events and accesses after which a chunk ends. Predictors start anew in each, so shorter ones
/// pack worse; longer ones take more memory to read.
const CHUNK_ITEMS: u64 = 16 << 20;

/// A trace being written. It is whole only after [`Writer::finish`].
pub struct Writer {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    offset: u64,
    chunk_items: u64,
    dictionary: Dictionary,
    known: Known,
    pending: Vec<u8>,
    encoder: ChunkEncoder,
    index: Vec<(ChunkHeader, u64)>,
    instructions: u64,
    blocks: u64,
    accesses: u64,
}

/// What a finished trace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Instructions executed.
    pub instructions: u64,
    /// Runs of blocks.
    pub blocks: u64,
    /// Accesses to data.
    pub accesses: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Writer {
    /// Makes the file, or empties it.
    pub fn create(path: impl Into<PathBuf>, about: &About) -> Result<Self> {
        let path = path.into();
        let file = File::create(&path).map_err(|e| Error::io("creating the trace", &path, e))?;
        Self::to(Box::new(file), path, about)
    }

    /// Writes to `out`, called `path` in errors.
    pub fn to(out: Box<dyn Write + Send>, path: impl Into<PathBuf>, about: &About) -> Result<Self> {
        let mut writer = Writer {
            path: path.into(),
            out,
            offset: 0,
            chunk_items: CHUNK_ITEMS,
            dictionary: Dictionary::default(),
            known: Known::default(),
            pending: Vec::new(),
            encoder: ChunkEncoder::new(),
            index: Vec::new(),
            instructions: 0,
            blocks: 0,
            accesses: 0,
        };
        writer.put(&file_header())?;
        let text = serde_json::to_vec(about).map_err(|e| Error::Invalid(e.to_string()))?;
        writer.chunk(plain(ChunkKind::About, &text), &text)?;
        Ok(writer)
    }

    /// Ends chunks after so many events and accesses instead of 16 Mi; at most 64 Mi.
    pub fn chunk_items(mut self, items: u64) -> Self {
        self.chunk_items = items.clamp(1, 4 * CHUNK_ITEMS);
        self
    }

    /// Where the trace goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The blocks defined so far.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Instructions written so far.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// The id of a block's first way, the others follow; one that is known keeps its ids.
    pub fn define(&mut self, block: &NewBlock) -> Result<u32> {
        if let Some(id) = self.known.find(block) {
            return Ok(id);
        }
        block.check().map_err(|why| Error::Invalid(format!("a block to define: {why}")))?;
        self.dictionary.describe(block, &mut self.pending);
        let id = self.dictionary.add(block).map_err(|why| Error::Invalid(why.into()))?;
        self.encoder.know_sites(self.dictionary.sites().len());
        self.known.insert(block, id);
        Ok(id)
    }

    /// A run of a defined block with as many addresses as it performs accesses; 0 where a
    /// condition kept one from being performed.
    pub fn block(&mut self, id: u32, addresses: &[u64]) -> Result<()> {
        let block = self.defined(id)?;
        if addresses.len() != usize::from(block.site_count) {
            return Err(Error::Invalid(format!(
                "block {id} performs {} accesses, not {}",
                block.site_count,
                addresses.len()
            )));
        }
        self.run(id, &block, |i| addresses[i])
    }

    fn defined(&self, id: u32) -> Result<Block> {
        let block = self.dictionary.blocks().get(id as usize).filter(|_| id > 0);
        block.copied().ok_or_else(|| Error::Invalid(format!("block {id} was not defined")))
    }

    #[inline(always)]
    pub(crate) fn run(
        &mut self,
        id: u32,
        block: &Block,
        address: impl Fn(usize) -> u64,
    ) -> Result<()> {
        self.encoder.block(id, block, address);
        self.instructions += u64::from(block.instruction_count);
        self.accesses += u64::from(block.site_count);
        self.blocks += 1;
        if self.encoder.items() >= self.chunk_items { self.flush() } else { Ok(()) }
    }

    /// Another thread runs from here on; the first is 0 unless said.
    pub fn thread(&mut self, thread: u32) {
        self.encoder.thread(thread);
    }

    /// The running thread calls the kernel.
    pub fn syscall(&mut self, number: u64) {
        self.encoder.syscall(number);
    }

    /// Ends the chunk, so that all events so far are in the file.
    pub fn flush(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            let pending = std::mem::take(&mut self.pending);
            let packed = zstd::bulk::compress(&pending, 3).map_err(|e| self.failed(e))?;
            let mut payload = (pending.len() as u32).to_le_bytes().to_vec();
            payload.extend_from_slice(&packed);
            self.chunk(plain(ChunkKind::Dictionary, &payload), &payload)?;
        }
        if self.encoder.items() > 0 {
            let (header, payload) = self.encoder.finish().map_err(|e| self.failed(e))?;
            self.chunk(header, &payload)?;
        }
        Ok(())
    }

    /// Writes what is left and the index.
    pub fn finish(mut self) -> Result<Written> {
        self.flush()?;
        let index_offset = self.offset;
        let mut payload = Vec::new();
        for (header, offset) in &self.index {
            payload.extend_from_slice(&offset.to_le_bytes());
            payload.extend_from_slice(&header.to_bytes());
        }
        self.chunk(plain(ChunkKind::Index, &payload), &payload)?;
        self.put(&trailer(index_offset))?;
        self.out.flush().map_err(|e| self.failed(e))?;
        let Writer { instructions, blocks, accesses, offset: bytes, .. } = self;
        Ok(Written { instructions, blocks, accesses, bytes })
    }

    fn chunk(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<()> {
        self.index.push((header, self.offset));
        self.put(&header.to_bytes())?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|e| self.failed(e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::io("writing", &self.path, source)
    }
}

fn plain(kind: ChunkKind, payload: &[u8]) -> ChunkHeader {
    ChunkHeader {
        kind,
        payload_bytes: payload.len() as u64,
        instructions: 0,
        accesses: 0,
        payload_crc: crc32fast::hash(payload),
    }
}
