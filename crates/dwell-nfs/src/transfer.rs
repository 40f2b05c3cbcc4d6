// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file of a copy: its data with many requests under way, what is recorded of it, and its end.

use std::cell::{Cell, RefCell};

use blake3::Hash;

use crate::connection::Payload;
use crate::copy::{Copy, Job};
use crate::error::{Error, Result, Why};
use crate::file::all;
use crate::holes;
use crate::nfs3::Kind;
use crate::resume::{self, Extent, HEAD_BYTES, LINE_BYTES, Record};
use crate::tree::{Facts, Node, Source, Target};

/// Length of one request between files here, in bytes.
const LOCAL_BYTES: u32 = 256 << 10;
/// Longest record that is read, in bytes: enough for a file of some TiB.
const MOST_RECORD_BYTES: u64 = 64 << 20;

/// A file's copy in progress. Under the file's own name there is never half a file.
pub(crate) struct Part {
    name: Vec<u8>,
    record_name: Vec<u8>,
    node: Node,
    target: Target,
    /// Its number, where it is a file here.
    number: u64,
    /// What it had already, in bytes.
    start: u64,
    /// Its record, and where its next line goes.
    record: Option<(Target, u64)>,
    is_left_over: bool,
    /// How much of it is durable and recorded, in bytes.
    kept_bytes: u64,
}

impl Part {
    /// What it had already, in bytes.
    pub fn start(&self) -> u64 {
        self.start
    }
}

/// What each side moves at once.
fn chunk_bytes(source: &Source, target: &Target) -> u64 {
    let bytes = [source.read_bytes(), target.write_bytes()];
    u64::from(bytes.into_iter().flatten().min().unwrap_or(LOCAL_BYTES))
}

/// How many of so many chunks are under way at once.
fn at_once(source: &Source, target: Option<&Target>, chunks: u64) -> u64 {
    let clients = [source.client(), target.and_then(Target::client)];
    let most = clients.into_iter().flatten().map(|client| client.most_outstanding());
    u64::from(most.max().unwrap_or(4)).min(chunks)
}

impl Copy<'_> {
    /// The part to write to: that of an earlier copy of this source, if it is to be resumed, or a
    /// new one.
    pub(crate) async fn part(&self, job: &Job, name: &[u8]) -> Result<Part> {
        let (name, record_name) = resume::names(name);
        if self.options.resume
            && let Some(part) = self.begun(job, &name, &record_name).await?
        {
            return Ok(part);
        }
        let (node, target, is_left_over) =
            job.into.create(&self.tasks, &name, job.facts.mode).await?;
        let number = node.number()?;
        let (start, record, kept_bytes) = (0, None, 0);
        Ok(Part {
            name,
            record_name,
            node,
            target,
            number,
            start,
            record,
            is_left_over,
            kept_bytes,
        })
    }

    /// The part of an earlier copy, cut behind what is sure to be this source's data.
    async fn begun(&self, job: &Job, name: &[u8], record_name: &[u8]) -> Result<Option<Part>> {
        let is_file = |found: &(Node, Facts)| found.1.kind == Kind::File;
        let Some((node, there)) = job.into.get(name).await?.filter(is_file) else {
            return Ok(None);
        };
        let anew = |why: &str| {
            let line = format!("{}: {why}; it is copied from its beginning", job.from);
            self.watcher.noted(&line);
            Ok(None)
        };
        if there.links > 1 {
            return anew("the part that is there has another name, too");
        }
        let node = node.hold(&there)?;
        let record = match job.into.get(record_name).await?.filter(is_file) {
            Some((node, facts)) if facts.bytes <= MOST_RECORD_BYTES && facts.links == 1 => {
                Some(node.hold(&facts)?)
            }
            _ => None,
        };
        let said = match &record {
            Some(record) => Record::read(&self.read_whole(record).await?, &job.facts),
            None => Record::None,
        };
        let extents = match said {
            Record::Durable(extents) => extents,
            Record::OfAnother => return anew("the source has changed since the copy began"),
            // Shorter parts never have one.
            Record::None if there.bytes <= self.options.extent_bytes => return Ok(None),
            Record::None => return anew("the part that is there has no record of its source"),
        };
        let back = node.open(&self.tasks, &self.memory)?;
        let mut sound = 0;
        for extent in &extents {
            let Extent { start, bytes, chunk, .. } = *extent;
            let sums = match extent.end() <= there.bytes.min(job.facts.bytes) {
                true => self.sums(&back, start, bytes, chunk).await?,
                false => break,
            };
            if Extent::new(start, bytes, chunk, sums) != *extent {
                break;
            }
            sound += 1;
        }
        let start = extents[..sound].last().map_or(0, Extent::end);
        if sound < extents.len() {
            let part = job.into.path_of(name);
            let what = "what is there is not what was written";
            let line = format!("{part}: {what}; it is copied again from byte {start} on");
            self.watcher.noted(&line);
        }
        let (Some(record), true) = (record, sound > 0) else { return Ok(None) };
        node.set_length(start).await?;
        let lines = HEAD_BYTES + sound as u64 * LINE_BYTES;
        record.set_length(lines).await?;
        Ok(Some(Part {
            name: name.to_vec(),
            record_name: record_name.to_vec(),
            number: node.number()?,
            target: node.open_to_write(&self.tasks)?,
            node,
            start,
            record: Some((record.open_to_write(&self.tasks)?, lines)),
            is_left_over: false,
            kept_bytes: start,
        }))
    }

    async fn read_whole(&self, file: &Node) -> Result<Vec<u8>> {
        let source = file.open(&self.tasks, &self.memory)?;
        let mut whole = Vec::new();
        while (whole.len() as u64) < MOST_RECORD_BYTES {
            let bytes = source.read_bytes().unwrap_or(LOCAL_BYTES);
            let data = source.read(whole.len() as u64, bytes).await?;
            if data.is_empty() {
                break;
            }
            whole.extend_from_slice(data.as_ref());
        }
        Ok(whole)
    }

    /// Checksums of the chunks of a range.
    async fn sums(&self, source: &Source, start: u64, bytes: u64, chunk: u64) -> Result<Vec<u32>> {
        let read_chunk = u64::from(source.read_bytes().unwrap_or(LOCAL_BYTES)).min(chunk) as u32;
        let sums = RefCell::new(vec![0; bytes.div_ceil(chunk) as usize]);
        let next = Cell::new(0);
        let worker = || async {
            loop {
                let at = next.get();
                if at >= bytes {
                    return Ok(());
                }
                next.set(at + chunk);
                let mut sum = crc32fast::Hasher::new();
                let update = &mut |data: &[u8]| sum.update(data);
                each(source, start + at, chunk.min(bytes - at), read_chunk, update).await?;
                sums.borrow_mut()[(at / chunk) as usize] = sum.finalize();
            }
        };
        let workers = at_once(source, None, bytes.div_ceil(chunk));
        all((0..workers).map(|_| worker()).collect()).await?;
        Ok(sums.into_inner())
    }

    /// Writes a part to its end and gives it the file's name.
    pub(crate) async fn fill(&self, job: &Job, name: &[u8], part: &mut Part) -> Result<()> {
        let Job { from, facts, into, .. } = job;
        let source = from.open(&self.tasks, &self.memory)?;
        let (end, sums) = self.data(job, &source, part).await?;
        if is_sparse(job) || end < facts.bytes {
            part.node.set_length(end).await?;
            part.target.commit().await?;
        }
        if self.options.verify {
            self.verify(&source, part, end, sums).await?;
            self.progress.borrow_mut().verified += 1;
        }
        let there = match into.get(&part.name).await? {
            Some(found) if part.node.is(part.number, &found).await => Some(found.1),
            _ => None,
        };
        let Some(there) = there.filter(|there| there.bytes == end) else {
            let what = "another program has changed or replaced it meanwhile";
            return Err(Error::invalid(into.path_of(&part.name), what));
        };
        part.node.take_after(facts, &there, self.keep()).await?;
        into.rename(&part.node, &part.name, name).await?;
        // The file is there; its record is only in the way.
        if (part.record.is_some() || part.is_left_over)
            && let Err(error) = into.remove(&part.record_name).await
        {
            self.watcher.noted(&error.to_string());
        }
        Ok(())
    }

    /// What failed leaves a part that can be resumed, or none.
    pub(crate) async fn leave(&self, job: &Job, part: &Part, why: &Error) {
        let path = job.into.path_of(&part.name);
        if matches!(why.why, Why::NoAnswer { .. }) {
            return self.watcher.noted(&format!("{path}: a part of the copy may be left there"));
        }
        match job.into.get(&part.name).await {
            Ok(Some(found)) if part.node.is(part.number, &found).await => {}
            _ => return,
        }
        if part.kept_bytes > 0 {
            let bytes = part.kept_bytes;
            let line = format!("{path}: has the first {bytes} bytes; --resume goes on from there");
            return self.watcher.noted(&line);
        }
        if let Err(error) = job.into.remove(&part.name).await {
            self.watcher.noted(&error.to_string());
        }
    }

    /// Copies the data that the part does not have: where it ends, and the checksum of each chunk
    /// if they are to be verified.
    async fn data(&self, job: &Job, source: &Source, part: &mut Part) -> Result<(u64, Vec<Hash>)> {
        let chunk = chunk_bytes(source, &part.target);
        let step = (self.options.extent_bytes / chunk).max(1) * chunk;
        let recorded = job.facts.bytes - part.start > step || part.start > 0;
        let is_sparse = is_sparse(job);
        // One call writes all of it and makes it durable.
        let is_whole = part.start == 0 && job.facts.bytes <= chunk && !is_sparse;
        let sum = |data: &[u8]| Sum {
            crc: if recorded { crc32fast::hash(data) } else { 0 },
            hash: self.options.verify.then(|| blake3::hash(data)),
        };
        let zeros = vec![0; if is_sparse { chunk as usize } else { 0 }];
        let sum_of_zeros = sum(&zeros);
        let end = Cell::new(job.facts.bytes);
        let (mut extent, mut all_sums) = (part.start, Vec::new());
        while extent < end.get() {
            let next = Cell::new(extent);
            let stop = (extent + step).min(end.get());
            let summed = if recorded || self.options.verify { stop - extent } else { 0 };
            let sums = RefCell::new(vec![Sum::default(); summed.div_ceil(chunk) as usize]);
            let target = &part.target;
            let worker = || async {
                loop {
                    let at = next.get();
                    if at >= stop.min(end.get()) {
                        return Ok(());
                    }
                    let place = ((at - extent) / chunk) as usize;
                    if is_sparse && let Some(hole) = hole(source, at, stop, chunk) {
                        next.set(at + hole);
                        let mut sums = sums.borrow_mut();
                        for (place, place_sum) in sums.iter_mut().enumerate().skip(place) {
                            let start = place as u64 * chunk;
                            if start >= at + hole - extent {
                                break;
                            }
                            *place_sum = match chunk.min(stop - extent - start) {
                                whole if whole == chunk => sum_of_zeros,
                                part => sum(&zeros[..part as usize]),
                            };
                        }
                        self.progress.borrow_mut().bytes_done += hole;
                        continue;
                    }
                    next.set(at + chunk);
                    let wanted = chunk.min(stop - at);
                    let data = source.read(at, wanted as u32).await?;
                    let bytes = data.len() as u64;
                    if bytes < wanted {
                        // The source became shorter meanwhile.
                        end.set(end.get().min(at + bytes));
                    }
                    if let Some(place) = sums.borrow_mut().get_mut(place) {
                        *place = sum(data.as_ref());
                    }
                    match is_whole && bytes == job.facts.bytes {
                        true => target.write_whole(data).await?,
                        false => write(target, at, data, is_sparse).await?,
                    }
                    self.progress.borrow_mut().bytes_done += bytes;
                    self.tell();
                }
            };
            let workers = at_once(source, Some(target), (stop - extent).div_ceil(chunk));
            all((0..workers).map(|_| worker()).collect()).await?;
            let again = target.commit().await?;
            self.progress.borrow_mut().bytes_again += again;
            let sums = sums.into_inner();
            if recorded && stop < end.get() {
                let crcs = sums.iter().map(|sum| sum.crc);
                self.record(job, part, Extent::new(extent, stop - extent, chunk, crcs)).await?;
            }
            all_sums.extend(sums.into_iter().filter_map(|sum| sum.hash));
            extent = stop;
        }
        Ok((end.get(), all_sums))
    }

    /// Notes that an extent is durable, durably.
    async fn record(&self, job: &Job, part: &mut Part, extent: Extent) -> Result<()> {
        let (record, at) = match part.record.take() {
            Some(record) => record,
            None => {
                let made = job.into.create(&self.tasks, &part.record_name, 0o600).await?;
                let head = resume::head(&job.facts).into_bytes();
                made.1.write(0, Payload::new(head)).await?;
                (made.1, HEAD_BYTES)
            }
        };
        let record = &part.record.insert((record, at + LINE_BYTES)).0;
        record.write(at, Payload::new(extent.line().into_bytes())).await?;
        record.commit().await?;
        part.kept_bytes = extent.end();
        Ok(())
    }

    /// Reads back what was written and compares it with the checksums of what was read; what an
    /// earlier copy wrote, with the source.
    async fn verify(&self, source: &Source, part: &Part, end: u64, sums: Vec<Hash>) -> Result<()> {
        let back = part.node.open(&self.tasks, &self.memory)?;
        let start = part.start;
        // As the data was written, so that the checksums fit.
        let chunk = chunk_bytes(source, &part.target);
        let back_bytes = u64::from(back.read_bytes().unwrap_or(LOCAL_BYTES));
        let read_chunk = chunk.min(back_bytes) as u32;
        let next = Cell::new(0);
        let worker = || async {
            loop {
                let at: u64 = next.get();
                let stop = if at < start { start } else { end };
                if at >= end {
                    return Ok(());
                }
                let length = chunk.min(stop - at);
                next.set(at + length);
                let there = hash(&back, at, length, read_chunk).await?;
                let wanted = match at < start {
                    true => hash(source, at, length, read_chunk).await?,
                    false => sums[((at - start) / chunk) as usize],
                };
                if there != wanted {
                    let what = "what was read back is not what was written";
                    let wrong = Why::Invalid(what.into());
                    return Err(Error::new("verifying", &part.node, wrong).at(at));
                }
            }
        };
        let chunks = end.div_ceil(chunk);
        let workers = at_once(source, None, chunks).max(at_once(&back, None, chunks));
        all((0..workers).map(|_| worker()).collect()).await
    }
}

/// Whether a file has holes, or may have.
fn is_sparse(job: &Job) -> bool {
    job.facts.used_bytes < job.facts.bytes
}

/// Checksums of a chunk: for the record, which costs little, and to verify.
#[derive(Clone, Copy, Default)]
struct Sum {
    crc: u32,
    hash: Option<Hash>,
}

/// How much of a hole lies at `at`, in whole chunks or up to `stop`, in bytes.
fn hole(source: &Source, at: u64, stop: u64, chunk: u64) -> Option<u64> {
    let hole = match source.data_from(at) {
        data if data >= stop => stop - at,
        data => (data - at) / chunk * chunk,
    };
    (hole > 0).then_some(hole)
}

/// Writes data; of a file that has holes, only what is not zero.
async fn write(target: &Target, at: u64, data: Payload, is_sparse: bool) -> Result<()> {
    if !is_sparse {
        return target.write(at, data).await;
    }
    let runs: Vec<_> = holes::runs(data.as_ref()).collect();
    for run in runs {
        target.write(at + run.start as u64, data.part(run)).await?;
    }
    Ok(())
}

async fn hash(source: &Source, offset: u64, bytes: u64, chunk: u32) -> Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    let update = &mut |data: &[u8]| {
        hasher.update(data);
    };
    each(source, offset, bytes, chunk, update).await?;
    Ok(hasher.finalize())
}

/// Reads a range piece by piece.
async fn each(
    source: &Source,
    offset: u64,
    bytes: u64,
    chunk: u32,
    take: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        let wanted = u64::from(chunk).min(bytes - done) as u32;
        let data = source.read(offset + done, wanted).await?;
        if data.is_empty() {
            break;
        }
        take(data.as_ref());
        done += data.len() as u64;
    }
    Ok(())
}
