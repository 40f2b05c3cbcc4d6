// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copying: whole trees, and which of it is there already.

mod between;
mod dataless;
mod helper;
mod plan;
mod team;
mod threads;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::AddAssign;
use std::path::PathBuf;
use std::rc::Rc;

use dwell::executor::Handle as Tasks;

pub use between::between;
use dataless::Named;
use helper::Listener;
pub use plan::{Effect, Planned, plan};
use team::Team;
pub use threads::Threads;

use crate::client::Client;
use crate::engine::Counters;
use crate::error::{Error, Result, system};
use crate::file::all;
use crate::keep::Keep;
use crate::lineage::Lineage;
use crate::memory::Memory;
use crate::nfs3::Kind;
use crate::resume;
use crate::tree::{Facts, Local, Node, checked};

/// So much is written before it is made durable and recorded, in bytes, where nothing else is said.
pub const EXTENT_BYTES: u64 = 64 << 20;
/// Files here are read into chunks of so many bytes, each for several reads.
const READ_BYTES: usize = 4 << 20;
/// Files copied beside each other by one thread.
const FILES_AT_ONCE: usize = 16;

/// How to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Directories too, with all that is in them.
    pub recursive: bool,
    /// Goes on where an earlier copy of an unchanged source broke off, and leaves out files that
    /// are there already: of the same length and time. Times are kept for that.
    pub resume: bool,
    /// The target is the copy itself. Without it, a copy to a directory goes into that directory.
    pub onto: bool,
    /// Reads back what was written and compares checksums.
    pub verify: bool,
    /// Keeps times, owners, set-user-id, set-group-id and sticky bits, and which names are those of
    /// one file.
    pub times: bool,
    /// So much is written before it is made durable and recorded, in bytes: what a resumed copy
    /// writes again at most.
    pub extent_bytes: u64,
    /// Threads that copy files, once the first one has gone through the tree.
    pub threads: Threads,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            recursive: false,
            resume: false,
            onto: false,
            verify: false,
            times: false,
            extent_bytes: EXTENT_BYTES,
            threads: Threads::Fixed(1),
        }
    }
}

impl Options {
    /// A directory is copied only if that was asked for.
    fn allow(&self, from: &Node, facts: &Facts) -> Result<()> {
        if facts.kind == Kind::Directory && !self.recursive {
            return Err(Error::invalid(from, "is a directory; --recursive copies it"));
        }
        Ok(())
    }
}

/// Whether a resumed copy leaves a file out because of what is there.
fn is_there(facts: &Facts, there: &Facts) -> bool {
    (there.kind, there.bytes) == (Kind::File, facts.bytes) && there.modified == facts.modified
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
    /// Window of all connections; of those of a thread that has ended, the last.
    pub window: u32,
    /// Round-trip time of data, in nanoseconds.
    pub round_trip_ns: u64,
    /// What happened on the connections.
    pub counters: Counters,
}

impl AddAssign<&Progress> for Progress {
    fn add_assign(&mut self, other: &Progress) {
        // A server may tell any length.
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.files, other.files);
        add(&mut self.files_done, other.files_done);
        add(&mut self.files_there, other.files_there);
        add(&mut self.bytes, other.bytes);
        add(&mut self.bytes_done, other.bytes_done);
        add(&mut self.bytes_there, other.bytes_there);
        add(&mut self.bytes_again, other.bytes_again);
        add(&mut self.verified, other.verified);
        self.window += other.window;
        self.round_trip_ns = self.round_trip_ns.max(other.round_trip_ns);
        self.counters += other.counters;
    }
}

/// Hears how a copy goes, on the thread that began it.
pub trait Watcher {
    /// It has come further.
    fn progress(&self, progress: &Progress);
    /// Something could not be copied; the rest goes on.
    fn failed(&self, error: &Error);
    /// Something that a person wants to know, in one line: an earlier copy cannot be resumed, say.
    fn noted(&self, line: &str) {
        let _ = line;
    }
}

/// Something that is to be copied into a directory.
pub(crate) struct Job {
    pub from: Node,
    pub facts: Facts,
    pub into: Node,
    pub name: Vec<u8>,
    /// The directories that it is in.
    pub lineage: Lineage,
}

/// One copy of a file or a tree.
pub struct Copy<'w> {
    pub(crate) tasks: Tasks,
    pub(crate) options: Options,
    pub(crate) watcher: Listener<'w>,
    /// That of the calling thread.
    pub(crate) progress: RefCell<Progress>,
    /// That of further threads, as they told last.
    others: RefCell<Vec<Progress>>,
    /// What files here are read into.
    pub(crate) memory: Rc<RefCell<Memory>>,
    clients: Vec<Rc<Client>>,
    failures: Cell<u64>,
    /// Directories here in which names were made.
    touched: RefCell<BTreeMap<PathBuf, Local>>,
}

impl<'w> Copy<'w> {
    /// A copy that has not begun; `clients` are the servers it has to do with.
    pub fn new(
        tasks: &Tasks,
        options: Options,
        clients: Vec<Rc<Client>>,
        watcher: &'w dyn Watcher,
    ) -> Self {
        Self::heard_by(Listener::Watcher(watcher), tasks, options, clients)
    }

    fn heard_by(
        watcher: Listener<'w>,
        tasks: &Tasks,
        options: Options,
        clients: Vec<Rc<Client>>,
    ) -> Self {
        Copy {
            tasks: tasks.clone(),
            options,
            watcher,
            progress: RefCell::default(),
            others: RefCell::default(),
            memory: Rc::new(RefCell::new(Memory::new(READ_BYTES))),
            clients,
            failures: Cell::new(0),
            touched: RefCell::default(),
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        Keep { times: self.options.times || self.options.resume, rights: self.options.times }
    }

    /// Copies `from` into the directory `into` by this name: how it went, and how much could not be
    /// copied.
    ///
    /// # Errors
    /// What keeps anything from being copied.
    pub async fn run(&self, from: Node, into: Node, name: &[u8]) -> Result<(Progress, u64)> {
        let facts = from.facts().await?;
        let ends = (from.clone(), into.clone());
        let mut jobs = Vec::new();
        let mut directories = Vec::new();
        // Files that have more than one name, and their further names.
        let (mut known, mut names) = (HashSet::new(), Vec::new());
        let mut todo =
            vec![Job { from, facts, into, name: name.to_vec(), lineage: Lineage::default() }];
        self.options.allow(&todo[0].from, &facts)?;
        while let Some(job) = todo.pop() {
            if self.keep().times && !job.facts.times_fit {
                let what = "NFS has times from 1970 to 2106 alone; the copy gets the nearest";
                self.watcher.noted(&format!("{}: {what}", job.from));
            }
            match job.facts.kind {
                Kind::File => {
                    let number = (job.facts.file_system, job.facts.file);
                    if self.options.times && job.facts.links > 1 && !known.insert(number) {
                        names.push((number, job));
                        continue;
                    }
                    let mut progress = self.progress.borrow_mut();
                    progress.files += 1;
                    // A server may tell any length.
                    progress.bytes = progress.bytes.saturating_add(job.facts.bytes);
                    jobs.push(job);
                }
                Kind::Directory => match self.enter(&job).await {
                    Ok((made, inside, lineage)) => {
                        let inner = inside.into_iter().map(|(name, from, facts)| Job {
                            from,
                            facts,
                            into: made.clone(),
                            name,
                            lineage: lineage.clone(),
                        });
                        todo.extend(inner);
                        directories.push((made, job.facts));
                    }
                    Err(error) => self.fail(error),
                },
                _ => {
                    if let Err(error) = self.dataless(&job).await {
                        self.fail(error);
                    }
                }
            }
        }
        let firsts: HashMap<_, _> = (jobs.iter().filter(|_| !names.is_empty()))
            .filter(|job| job.facts.links > 1)
            .map(|job| {
                let number = (job.facts.file_system, job.facts.file);
                (number, Named { into: job.into.clone(), name: job.name.clone() })
            })
            .collect();
        jobs.reverse();
        Team::new(self, (&ends.0, &ends.1), jobs).work().await?;
        for (number, job) in names {
            if let Some(first) = firsts.get(&number)
                && let Err(error) = self.name(&job, first).await
            {
                self.fail(error);
            }
        }
        // A file copied into a directory changes its times.
        while let Some((made, facts)) = directories.pop() {
            let done = async {
                let there = made.facts().await?;
                made.take_after(&facts, &there, self.keep()).await
            };
            if let Err(error) = done.await {
                self.fail(error);
            }
        }
        self.sync_names();
        self.tell();
        Ok((self.sum(), self.failures.get()))
    }

    /// Copies files beside each other, so many at once, until there is no next one.
    async fn files(&self, at_once: usize, next: &dyn Fn() -> Option<Job>) -> Result<()> {
        let worker = || async {
            while let Some(job) = next() {
                if let Err(error) = self.file(&job).await {
                    self.fail(error);
                }
            }
            Ok(())
        };
        all((0..at_once).map(|_| worker()).collect()).await
    }

    fn fail(&self, error: Error) {
        self.failures.set(self.failures.get() + 1);
        self.watcher.failed(error);
    }

    /// Makes names that were made here durable. Servers do that by themselves.
    fn sync_names(&self) {
        for (path, directory) in self.touched.take() {
            match directory.sync() {
                // File systems that have nothing to make durable.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => self.fail(system("sync", &path)(error)),
                Ok(()) => {}
            }
        }
    }

    /// Names in this directory are to be made durable.
    pub(crate) fn touch(&self, directory: &Node) {
        if let Node::Local(local) = directory {
            self.touched.borrow_mut().insert(local.path().to_owned(), local.clone());
        }
    }

    /// The directories in which names are to be made durable, which are then another's to do.
    fn touched(&self) -> impl Iterator<Item = Node> {
        self.touched.take().into_values().map(Node::Local)
    }

    pub(crate) fn tell(&self) {
        self.look();
        let is_alone = self.others.borrow().is_empty();
        match is_alone {
            true => self.watcher.progress(&self.progress.borrow()),
            false => self.watcher.progress(&self.sum()),
        }
    }

    /// How far all threads are.
    fn sum(&self) -> Progress {
        let mut all = self.progress.borrow().clone();
        self.others.borrow().iter().for_each(|other| all += other);
        all
    }

    /// Looks how the connections are doing.
    fn look(&self) {
        let mut progress = self.progress.borrow_mut();
        (progress.window, progress.round_trip_ns) = (0, 0);
        progress.counters = Counters::default();
        for client in &self.clients {
            let health = client.health();
            progress.window += health.window;
            progress.round_trip_ns = progress.round_trip_ns.max(health.round_trip_ns);
            progress.counters += health.counters;
        }
    }

    /// Makes the copy of a directory: it, and what is to be copied into it.
    async fn enter(&self, job: &Job) -> Result<(Node, Vec<(Vec<u8>, Node, Facts)>, Lineage)> {
        let name = checked(&job.name, &job.from)?;
        let lineage = job.lineage.enter(job.from.identity(&job.facts), &job.from)?;
        let inside = job.from.list().await?;
        self.touch(&job.into);
        Ok((job.into.make_directory(name, job.facts.mode).await?, inside, lineage))
    }

    async fn file(&self, job: &Job) -> Result<()> {
        let Job { from, facts, into, name, .. } = job;
        let name = checked(name, from)?;
        if self.options.resume
            && let Some((_, there)) = into.get(name).await?
            && is_there(facts, &there)
        {
            if facts.bytes > self.options.extent_bytes {
                // A copy that was killed after it gave the file its name left its record.
                into.remove(&resume::names(name).1).await?;
            }
            let mut progress = self.progress.borrow_mut();
            progress.files_done += 1;
            progress.files_there += 1;
            progress.bytes_done += facts.bytes;
            progress.bytes_there += facts.bytes;
            drop(progress);
            self.tell();
            return Ok(());
        }
        self.touch(into);
        let mut part = self.part(job, name).await?;
        {
            let mut progress = self.progress.borrow_mut();
            progress.bytes_done += part.start();
            progress.bytes_there += part.start();
        }
        let filled = self.fill(job, name, &mut part).await;
        if let Err(error) = &filled {
            self.leave(job, &part, error).await;
            return filled;
        }
        self.progress.borrow_mut().files_done += 1;
        self.tell();
        Ok(())
    }
}
