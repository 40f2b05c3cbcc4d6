// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a trace: events in order, from any instruction on.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::chunk::{ChunkDecoder, Decoded};
use crate::dictionary::{Block, Dictionary, Instruction, NewBlock, Site};
use crate::error::{Error, Result};
use crate::format::{
    About, CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, END_MAGIC, FILE_HEADER_BYTES, MAGIC,
    TRAILER_BYTES, VERSION, u32_at, u64_at,
};

/// What a trace can be read from.
pub trait Source: Read + Seek + Send {}

impl<T: Read + Seek + Send> Source for T {}

/// A run of one block.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The block's id: its place in [`Dictionary::blocks`].
    pub id: u32,
    /// Which instructions and accesses it performs.
    pub block: &'a Block,
    /// Where each access went; 0 where its condition did not hold.
    pub addresses: &'a [u64],
    dictionary: &'a Dictionary,
}

impl<'a> Run<'a> {
    /// The accesses performed, with their addresses.
    pub fn accesses(&self) -> impl ExactSizeIterator<Item = (&'a Site, u64)> + use<'a> {
        self.dictionary.sites_of(self.block).iter().zip(self.addresses.iter().copied())
    }

    /// The trace's dictionary.
    pub fn dictionary(&self) -> &'a Dictionary {
        self.dictionary
    }

    /// The block as it would be defined in another trace.
    pub fn definition(&self) -> NewBlock {
        self.dictionary.definition(self.block)
    }

    /// The instructions performed, each with its accesses.
    pub fn instructions(&self) -> impl Iterator<Item = Executed<'a>> + use<'a> {
        let (sites, addresses) = (self.dictionary.sites_of(self.block), self.addresses);
        let first = self.block.first_instruction as usize;
        let mut done = 0;
        self.dictionary.instructions_of(self.block).iter().enumerate().map(
            move |(number, instruction)| {
                let rest = &sites[done..];
                let mine = |site: &&Site| usize::from(site.instruction) == number;
                let from = done;
                done += rest.iter().take_while(mine).count();
                Executed {
                    number: first + number,
                    instruction,
                    sites: &sites[from..done],
                    addresses: &addresses[from..done],
                }
            },
        )
    }
}

/// One instruction as it ran.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// Its place in [`Dictionary::instructions`], and in whatever a program keeps for each.
    pub number: usize,
    /// Where it stands.
    pub instruction: &'a Instruction,
    /// Its accesses.
    pub sites: &'a [Site],
    /// Where they went; 0 where a condition did not hold.
    pub addresses: &'a [u64],
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A block ran.
    Block(Run<'a>),
    /// That thread runs from here on.
    Thread(u32),
    /// The running thread called the kernel, with that number.
    Syscall(u64),
}

#[derive(Clone, Copy)]
struct Chunk {
    header: ChunkHeader,
    offset: u64,
    /// Instructions in all chunks before.
    before: u64,
}

/// A trace being read.
pub struct Reader {
    path: PathBuf,
    file: Box<dyn Source>,
    about: About,
    dictionary: Dictionary,
    chunks: Vec<Chunk>,
    cut_short_at: Option<u64>,
    decoder: ChunkDecoder,
    payload: Vec<u8>,
    next_chunk: usize,
    in_chunk: Option<u64>,
    thread: u32,
    announce: bool,
    instruction: u64,
}

impl Reader {
    /// Opens a trace and reads its dictionary. A file that ends too early is opened as far as its
    /// chunks are whole: see [`Reader::cut_short_at`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = File::open(&path).map_err(|e| Error::io("opening the trace", &path, e))?;
        Self::from(Box::new(file), path)
    }

    /// Reads from `file`, called `path` in errors.
    pub fn from(file: Box<dyn Source>, path: impl Into<PathBuf>) -> Result<Self> {
        let mut reader = Reader {
            path: path.into(),
            file,
            about: About::default(),
            dictionary: Dictionary::default(),
            chunks: Vec::new(),
            cut_short_at: None,
            decoder: ChunkDecoder::new(),
            payload: Vec::new(),
            next_chunk: 0,
            in_chunk: None,
            thread: 0,
            announce: false,
            instruction: 0,
        };
        let bytes = reader.file.seek(SeekFrom::End(0)).map_err(|e| reader.failed(e))?;
        reader.check_file_header(bytes)?;
        let headers = match reader.read_index(bytes)? {
            Some(headers) => headers,
            None => reader.scan(bytes)?,
        };
        reader.read_static(headers)?;
        Ok(reader)
    }

    /// What it is called in errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was recorded, and how.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// All blocks that the trace names, also those that only run later.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Instructions in the whole trace.
    pub fn instructions(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.header.instructions).sum()
    }

    /// Accesses to data in the whole trace.
    pub fn accesses(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.header.accesses).sum()
    }

    /// Bytes of all chunks, packed.
    pub fn packed_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.header.payload_bytes).sum()
    }

    /// Where the file ends too early, in bytes: what comes before is whole, what came after is
    /// lost.
    pub fn cut_short_at(&self) -> Option<u64> {
        self.cut_short_at
    }

    /// The thread that runs.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The number of the next instruction, from 0.
    pub fn instruction(&self) -> u64 {
        self.instruction
    }

    /// Goes to the block that holds instruction `instruction`, or to the end, and answers the
    /// number of that block's first instruction.
    pub fn seek(&mut self, instruction: u64) -> Result<u64> {
        let after = self.chunks.partition_point(|chunk| chunk.before <= instruction);
        self.go_to_chunk(after.saturating_sub(1));
        // The event that reaches the instruction is found first, then gone to from the same chunk.
        let mut events = 0u64;
        let mut reached = self.instruction;
        while let Some(event) = self.next_event()? {
            if let Event::Block(run) = event {
                let end = reached + u64::from(run.block.instruction_count);
                if end > instruction {
                    break;
                }
                reached = end;
            }
            events += 1;
        }
        self.go_to_chunk(after.saturating_sub(1));
        for _ in 0..events {
            self.next_event()?;
        }
        Ok(self.instruction)
    }

    /// Goes to the first event.
    pub fn rewind(&mut self) {
        self.go_to_chunk(0);
    }

    fn go_to_chunk(&mut self, chunk: usize) {
        self.decoder.stop();
        self.in_chunk = None;
        self.next_chunk = chunk;
        self.thread = 0;
        self.announce = false;
        self.instruction = self.chunks.get(chunk).map_or(self.instructions(), |c| c.before);
    }

    /// The next event, or `None` at the end. What it refers to is valid until the next call.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>> {
        loop {
            if self.announce {
                self.announce = false;
                return Ok(Some(Event::Thread(self.thread)));
            }
            match self.decoder.next(&self.dictionary) {
                Ok(Decoded::Block(id)) => {
                    let block = &self.dictionary.blocks()[id as usize];
                    self.instruction += u64::from(block.instruction_count);
                    return Ok(Some(Event::Block(Run {
                        id,
                        block,
                        addresses: &self.decoder.addresses()[..usize::from(block.site_count)],
                        dictionary: &self.dictionary,
                    })));
                }
                Ok(Decoded::Thread(thread)) => {
                    self.thread = thread;
                    return Ok(Some(Event::Thread(thread)));
                }
                Ok(Decoded::Syscall(number)) => return Ok(Some(Event::Syscall(number))),
                Ok(Decoded::End) => {
                    if !self.begin_chunk()? {
                        return Ok(None);
                    }
                }
                Err(what) => return Err(self.damaged(what)),
            }
        }
    }

    #[cold]
    fn damaged(&mut self, what: &str) -> Error {
        self.decoder.stop();
        self.next_chunk = self.chunks.len();
        Error::damaged(&self.path, self.in_chunk.unwrap_or(0), what)
    }

    #[cold]
    fn begin_chunk(&mut self) -> Result<bool> {
        let Some(&chunk) = self.chunks.get(self.next_chunk) else {
            return Ok(false);
        };
        if self.in_chunk.is_some() && self.instruction != chunk.before {
            return Err(self.damaged("another number of instructions than its header says"));
        }
        self.in_chunk = Some(chunk.offset);
        self.read_payload(&chunk.header, chunk.offset)?;
        match self.decoder.begin(&self.payload, &self.dictionary) {
            Ok(thread) => {
                self.announce = thread != self.thread;
                self.thread = thread;
            }
            Err(what) => return Err(self.damaged(what)),
        }
        self.next_chunk += 1;
        Ok(true)
    }

    fn check_file_header(&mut self, bytes: u64) -> Result<()> {
        let foreign = |path: &Path, what: String| Error::Foreign { path: path.to_owned(), what };
        let mut header = [0; FILE_HEADER_BYTES];
        let here = bytes.min(FILE_HEADER_BYTES as u64) as usize;
        self.read_at(0, &mut header[..here])?;
        if bytes == 0 {
            return Err(foreign(&self.path, "not a Dwell trace: the file is empty".into()));
        }
        let magic = here.min(MAGIC.len());
        if header[..magic] != MAGIC[..magic] {
            return Err(foreign(
                &self.path,
                format!(
                    "not a Dwell trace: byte 0 begins {:02x?}, not \"DWELLTRC\"",
                    &header[..magic]
                ),
            ));
        }
        if here < FILE_HEADER_BYTES {
            return Err(Error::damaged(&self.path, bytes, "the file ends within its header"));
        }
        if u32_at(&header, 12) != crc32fast::hash(&header[..12]) {
            return Err(Error::damaged(&self.path, 0, "the file header's checksum does not fit"));
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(foreign(
                &self.path,
                format!(
                    "a trace of version {version} (byte 8); this program reads version {VERSION}"
                ),
            ));
        }
        Ok(())
    }

    /// The chunks that the index names, or `None` where the file was not closed.
    fn read_index(&mut self, bytes: u64) -> Result<Option<Vec<(ChunkHeader, u64)>>> {
        let Some(at) = bytes.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
        let mut trailer = [0; TRAILER_BYTES];
        self.read_at(at, &mut trailer)?;
        if trailer[8..] != END_MAGIC {
            return Ok(None);
        }
        let offset = u64_at(&trailer, 0);
        let header = match self.header_at(offset, at) {
            Ok(Some(header)) if header.kind == ChunkKind::Index => header,
            Err(Error::Io { action, path, error }) => {
                return Err(Error::Io { action, path, error });
            }
            _ => {
                let what = format!("the trailer names an index at byte {offset}: there is none");
                return Err(Error::damaged(&self.path, at, what));
            }
        };
        self.read_payload(&header, offset)?;
        const ENTRY: usize = 8 + CHUNK_HEADER_BYTES;
        let mut headers = Vec::with_capacity(self.payload.len() / ENTRY);
        for entry in self.payload.chunks(ENTRY) {
            let header = entry[8.min(entry.len())..].try_into().ok().map(ChunkHeader::from_bytes);
            match header {
                Some(Ok(header)) => headers.push((header, u64_at(entry, 0))),
                _ => return Err(Error::damaged(&self.path, offset, "an entry of the index")),
            }
        }
        Ok(Some(headers))
    }

    /// Goes through the chunks one by one until the file ends.
    fn scan(&mut self, bytes: u64) -> Result<Vec<(ChunkHeader, u64)>> {
        let mut headers = Vec::new();
        let mut offset = FILE_HEADER_BYTES as u64;
        while let Some(header) = self.header_at(offset, bytes)? {
            let end = offset + CHUNK_HEADER_BYTES as u64 + header.payload_bytes;
            if end > bytes || header.kind == ChunkKind::Index {
                break;
            }
            headers.push((header, offset));
            offset = end;
        }
        self.cut_short_at = Some(offset);
        Ok(headers)
    }

    /// The chunk header at `offset`, or `None` where the file ends before it does.
    fn header_at(&mut self, offset: u64, bytes: u64) -> Result<Option<ChunkHeader>> {
        if offset.saturating_add(CHUNK_HEADER_BYTES as u64) > bytes {
            return Ok(None);
        }
        let mut header = [0; CHUNK_HEADER_BYTES];
        self.read_at(offset, &mut header)?;
        let header = ChunkHeader::from_bytes(&header);
        header.map(Some).map_err(|what| Error::damaged(&self.path, offset, what))
    }

    fn read_static(&mut self, headers: Vec<(ChunkHeader, u64)>) -> Result<()> {
        let mut before = 0u64;
        for (header, offset) in headers {
            match header.kind {
                ChunkKind::About => {
                    self.read_payload(&header, offset)?;
                    self.about = serde_json::from_slice(&self.payload)
                        .map_err(|e| Error::damaged(&self.path, offset, e.to_string()))?;
                }
                ChunkKind::Dictionary => {
                    self.read_payload(&header, offset)?;
                    let mut bytes = Vec::new();
                    let unpacked = match self.payload.len() {
                        0..4 => Err("a dictionary without its length"),
                        _ => {
                            let raw = u32_at(&self.payload, 0) as usize;
                            crate::chunk::unpack(&self.payload[4..], raw, 0, &mut bytes)
                        }
                    };
                    unpacked
                        .and_then(|()| self.dictionary.extend_from(&bytes))
                        .map_err(|what| Error::damaged(&self.path, offset, what))?;
                }
                ChunkKind::Events => {
                    self.chunks.push(Chunk { header, offset, before });
                    before = before.saturating_add(header.instructions);
                }
                ChunkKind::Index => {}
            }
        }
        Ok(())
    }

    fn read_payload(&mut self, header: &ChunkHeader, offset: u64) -> Result<()> {
        // The index tells the same again: where both differ, one of them is damaged.
        let mut there = [0; CHUNK_HEADER_BYTES];
        self.read_at(offset, &mut there)?;
        if there != header.to_bytes() {
            return Err(Error::damaged(&self.path, offset, "another chunk than the index names"));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(header.payload_bytes as usize, 0);
        let read = self.read_at(offset.saturating_add(CHUNK_HEADER_BYTES as u64), &mut payload);
        self.payload = payload;
        read?;
        if crc32fast::hash(&self.payload) != header.payload_crc {
            let what = "the chunk's checksum does not fit";
            return Err(Error::damaged(&self.path, offset, what));
        }
        Ok(())
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let sought = self.file.seek(SeekFrom::Start(offset));
        match sought.and_then(|_| self.file.read_exact(bytes)) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Error::damaged(&self.path, offset, "the file ends before what it announces"))
            }
            Err(e) => Err(self.failed(e)),
        }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::io("reading the trace", &self.path, source)
    }
}
