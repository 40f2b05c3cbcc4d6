// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copying: one file with many requests under way, whole trees, resuming, verifying.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dwell::executor::Handle as Tasks;

pub use crate::between::between;
use crate::client::Client;
use crate::engine::Counters;
use crate::error::{Error, Result, Why};
use crate::file::all;
use crate::nfs3::Kind;
use crate::tree::{Facts, Node, Source, Target, checked};

/// So much is written before it is made durable, in bytes. A copy that broke off has lost no more
/// than that before its end, so resuming begins so far before it.
pub const EXTENT_BYTES: u64 = 64 << 20;
/// Between files here, in bytes.
const LOCAL_BYTES: u32 = 256 << 10;
/// Files copied beside each other.
const FILES_AT_ONCE: usize = 8;
/// Names that long leave no room for the name of a copy in progress.
const LONGEST_NAME: usize = 200;

/// How to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Directories too, with all that is in them.
    pub recursive: bool,
    /// Goes on where an earlier copy broke off, and leaves out files that are there already: of the
    /// same length and time. Times are kept for that.
    pub resume: bool,
    /// Reads back what was written and compares checksums.
    pub verify: bool,
    /// Keeps times.
    pub times: bool,
}

/// How far a copy is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Files found so far.
    pub files: u64,
    /// Files done.
    pub files_done: u64,
    /// Files left out, because they are there already.
    pub files_there: u64,
    /// Bytes of the files found so far.
    pub bytes: u64,
    /// Bytes copied, or there already.
    pub bytes_done: u64,
    /// Bytes of these that were there already.
    pub bytes_there: u64,
    /// Bytes that were sent again because a server was restarted.
    pub bytes_again: u64,
    /// Files read back and found equal.
    pub verified: u64,
    /// Window of all connections.
    pub window: u32,
    /// Round-trip time of data, in nanoseconds.
    pub round_trip_ns: u64,
    /// What happened on the connections.
    pub counters: Counters,
}

/// Hears how a copy goes.
pub trait Watcher {
    /// It has come further.
    fn progress(&self, progress: &Progress);
    /// Something could not be copied; the rest goes on.
    fn failed(&self, error: &Error);
}

struct Job {
    from: Node,
    facts: Facts,
    into: Node,
    name: Vec<u8>,
}

/// One copy of a file or a tree.
pub struct Copy<'w> {
    tasks: Tasks,
    options: Options,
    watcher: &'w dyn Watcher,
    progress: RefCell<Progress>,
    clients: Vec<Rc<Client>>,
    failures: Cell<u64>,
}

fn times(options: &Options) -> bool {
    options.times || options.resume
}

impl<'w> Copy<'w> {
    /// A copy that has not begun; `clients` are the servers it has to do with.
    pub fn new(
        tasks: &Tasks,
        options: Options,
        clients: Vec<Rc<Client>>,
        watcher: &'w dyn Watcher,
    ) -> Self {
        let (progress, failures) = (RefCell::default(), Cell::new(0));
        Copy { tasks: tasks.clone(), options, watcher, progress, clients, failures }
    }

    /// Copies `from` into the directory `into` by this name: how it went, and how much could not be
    /// copied.
    ///
    /// # Errors
    /// What keeps anything from being copied.
    pub async fn run(&self, from: Node, into: Node, name: &[u8]) -> Result<(Progress, u64)> {
        let facts = from.facts().await?;
        let mut jobs = Vec::new();
        let mut directories = Vec::new();
        let mut todo = vec![Job { from, facts, into, name: name.to_vec() }];
        if facts.kind == Kind::Directory && !self.options.recursive {
            return Err(Error::invalid(&todo[0].from, "is a directory; --recursive copies it"));
        }
        while let Some(job) = todo.pop() {
            match job.facts.kind {
                Kind::File => {
                    let mut progress = self.progress.borrow_mut();
                    progress.files += 1;
                    progress.bytes += job.facts.bytes;
                    jobs.push(job);
                }
                Kind::Directory => match self.enter(&job).await {
                    Ok((made, inside)) => {
                        let inner = inside.into_iter().map(|(name, from, facts)| Job {
                            from,
                            facts,
                            into: made.clone(),
                            name,
                        });
                        todo.extend(inner);
                        directories.push((made, job.facts));
                    }
                    Err(error) => self.fail(&error),
                },
                Kind::Link => {
                    if let Err(error) = self.link(&job).await {
                        self.fail(&error);
                    }
                }
                kind => {
                    let what = format!(
                        "is a {}: only files, directories and links are copied",
                        kind.as_str()
                    );
                    self.fail(&Error::invalid(&job.from, what));
                }
            }
        }
        jobs.reverse();
        let jobs = RefCell::new(jobs);
        let worker = || async {
            loop {
                // Not held across the copy.
                let job = jobs.borrow_mut().pop();
                let Some(job) = job else { return Ok(()) };
                if let Err(error) = self.file(&job).await {
                    self.fail(&error);
                }
            }
        };
        all((0..FILES_AT_ONCE).map(|_| worker()).collect()).await?;
        // What is copied into a directory changes its times.
        while let Some((made, facts)) = directories.pop() {
            if let Err(error) = made.take_after(&facts, times(&self.options)).await {
                self.fail(&error);
            }
        }
        self.tell();
        Ok((self.progress.borrow().clone(), self.failures.get()))
    }

    fn fail(&self, error: &Error) {
        self.failures.set(self.failures.get() + 1);
        self.watcher.failed(error);
    }

    fn tell(&self) {
        let mut progress = self.progress.borrow_mut();
        (progress.window, progress.round_trip_ns) = (0, 0);
        progress.counters = Counters::default();
        for client in &self.clients {
            let health = client.health();
            progress.window += health.window;
            progress.round_trip_ns = progress.round_trip_ns.max(health.round_trip_ns);
            progress.counters += health.counters;
        }
        self.watcher.progress(&progress);
    }

    async fn enter(&self, job: &Job) -> Result<(Node, Vec<(Vec<u8>, Node, Facts)>)> {
        let name = checked(&job.name, &job.from)?;
        let inside = job.from.list().await?;
        Ok((job.into.make_directory(name, job.facts.mode).await?, inside))
    }

    async fn link(&self, job: &Job) -> Result<()> {
        let target = job.from.link().await?;
        job.into.make_link(checked(&job.name, &job.from)?, &target).await
    }

    async fn file(&self, job: &Job) -> Result<()> {
        let Job { from, facts, into, name } = job;
        let name = checked(name, from)?;
        if self.options.resume
            && let Some((_, there)) = into.get(name).await?
            && (there.kind, there.bytes) == (Kind::File, facts.bytes)
            && there.modified == facts.modified
        {
            let mut progress = self.progress.borrow_mut();
            progress.files_done += 1;
            progress.files_there += 1;
            progress.bytes_done += facts.bytes;
            progress.bytes_there += facts.bytes;
            drop(progress);
            self.tell();
            return Ok(());
        }
        // Under its own name there is never half a file.
        let part = match name.len() <= LONGEST_NAME {
            true => [b".", name, b".dwell-part"].concat(),
            false => name.to_vec(),
        };
        let begun = match self.options.resume && part != name {
            true => into.get(&part).await?,
            false => None,
        };
        // What was written before the source last changed is not of this source.
        let begun =
            begun.filter(|(_, there)| there.kind == Kind::File && there.modified > facts.modified);
        let start = begun.as_ref().map_or(0, |(_, there)| {
            (there.bytes.min(facts.bytes) / EXTENT_BYTES).saturating_sub(1) * EXTENT_BYTES
        });
        let source = from.open(&self.tasks)?;
        let (node, target) = into.create(&self.tasks, &part, facts.mode).await?;
        if begun.is_none() {
            node.set_length(0).await?;
        }
        {
            let mut progress = self.progress.borrow_mut();
            progress.bytes_done += start;
            progress.bytes_there += start;
        }
        let (end, sums) = self.data(&source, &target, start, facts.bytes).await?;
        if begun.is_some_and(|(_, there)| there.bytes > end) {
            node.set_length(end).await?;
        }
        if self.options.verify {
            self.verify(&source, &node, start, end, sums).await?;
            self.progress.borrow_mut().verified += 1;
        }
        node.take_after(facts, times(&self.options)).await?;
        if part != name {
            into.rename(&node, &part, name).await?;
        }
        self.progress.borrow_mut().files_done += 1;
        self.tell();
        Ok(())
    }

    fn chunk_bytes(source: &Source, target: &Target) -> u64 {
        let bytes = [source.read_bytes(), target.write_bytes()];
        u64::from(bytes.into_iter().flatten().min().unwrap_or(LOCAL_BYTES))
    }

    fn at_once(source: &Source, target: Option<&Target>) -> u32 {
        let clients = [source.client(), target.and_then(Target::client)];
        let most = clients.into_iter().flatten().map(|client| client.most_outstanding());
        most.max().unwrap_or(4)
    }

    /// Copies the data from `start` on: where it ends, and the checksum of each chunk.
    async fn data(
        &self,
        source: &Source,
        target: &Target,
        start: u64,
        expected: u64,
    ) -> Result<(u64, Vec<blake3::Hash>)> {
        let chunk = Self::chunk_bytes(source, target);
        let at_once = Self::at_once(source, Some(target));
        let sums = RefCell::new(Vec::new());
        let end = Cell::new(expected);
        let mut extent = start;
        let step = (EXTENT_BYTES / chunk).max(1) * chunk;
        while extent < end.get() {
            let next = Cell::new(extent);
            let stop = (extent + step).min(end.get());
            let worker = || async {
                loop {
                    let at = next.get();
                    if at >= stop.min(end.get()) {
                        return Ok(());
                    }
                    next.set(at + chunk);
                    let data = source.read(at, chunk.min(stop - at) as u32).await?;
                    if (data.len() as u64) < chunk.min(stop - at) {
                        // The source became shorter meanwhile.
                        end.set(end.get().min(at + data.len() as u64));
                    }
                    if self.options.verify {
                        let place = ((at - start) / chunk) as usize;
                        let mut sums = sums.borrow_mut();
                        if sums.len() <= place {
                            sums.resize(place + 1, blake3::Hash::from([0; 32]));
                        }
                        sums[place] = blake3::hash(data.as_ref());
                    }
                    let bytes = data.len() as u64;
                    target.write(at, data).await?;
                    self.progress.borrow_mut().bytes_done += bytes;
                    self.tell();
                }
            };
            all((0..at_once).map(|_| worker()).collect()).await?;
            let again = target.commit().await?;
            self.progress.borrow_mut().bytes_again += again;
            extent = stop;
        }
        Ok((end.get(), sums.into_inner()))
    }

    /// Reads back what was written and compares it with the checksums of what was read; what an earlier
    /// copy wrote, with the source.
    async fn verify(
        &self,
        source: &Source,
        written: &Node,
        start: u64,
        end: u64,
        sums: Vec<blake3::Hash>,
    ) -> Result<()> {
        let back = written.open(&self.tasks)?;
        let bytes = [source.read_bytes(), back.read_bytes()];
        let target_bytes = match written {
            Node::Remote { client, .. } => Some(client.write_bytes()),
            Node::Local(_) => None,
        };
        let chunk_of = |bytes: &[Option<u32>]| {
            u64::from(bytes.iter().flatten().min().copied().unwrap_or(LOCAL_BYTES))
        };
        // As the data was written, so that the checksums fit.
        let chunk = chunk_of(&[source.read_bytes(), target_bytes]);
        let at_once = Self::at_once(source, None).max(Self::at_once(&back, None));
        let read_chunk = chunk_of(&bytes).min(chunk);
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
                let there = hash(&back, at, length, read_chunk as u32).await?;
                let wanted = match at < start {
                    true => hash(source, at, length, read_chunk as u32).await?,
                    false => sums[((at - start) / chunk) as usize],
                };
                if there != wanted {
                    let what = "what was read back is not what was written";
                    let wrong = Why::Invalid(what.into());
                    return Err(Error::new("verifying", written, wrong).at(at));
                }
            }
        };
        all((0..at_once).map(|_| worker()).collect()).await
    }
}

async fn hash(source: &Source, offset: u64, bytes: u64, chunk: u32) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut done = 0;
    while done < bytes {
        let wanted = u64::from(chunk).min(bytes - done) as u32;
        let data = source.read(offset + done, wanted).await?;
        if data.is_empty() {
            break;
        }
        hasher.update(data.as_ref());
        done += data.len() as u64;
    }
    Ok(hasher.finalize())
}
