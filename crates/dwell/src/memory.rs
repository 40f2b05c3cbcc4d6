// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are memory: tmpfs, hugetlbfs, memfd, and files on DAX. A request is a copy.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dwell_policy::{Backlog, Route, Routes};

use crate::error::{Error, Result};
use crate::mapping::{self, Mapping};
use crate::queue::{Action, Completion, Full, InHandler, Io, Queue, SignalSafe, Ticket, Wake};
use crate::source::Source;

/// How a file is opened as memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether it may be written.
    pub writable: bool,
    /// The caller's word that nobody shortens the file or punches holes into it while it is open.
    ///
    /// A load or store beyond the end of a file, or to a hole when the file system is full, is not
    /// an error but a SIGBUS, which ends the process. The word is not needed for a file that is
    /// sealed against shrinking (F_SEAL_SHRINK, which only files from memfd_create can have). A
    /// file on DAX can be shortened like any other.
    pub assume_stable: bool,
}

/// An open file whose requests are copies to and from its memory.
///
/// It keeps the length that the file had when it was opened: reads end there, writes past it fail
/// with ENOSPC. Writers reserve the file's space first, so that a store never meets a full file
/// system.
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    file: File,
    data: Mapping,
    writable: bool,
}

impl Memory {
    /// Largest number of completions that one queue holds.
    pub const MAX_DEPTH: u32 = 1 << 16;

    /// Opens a file that is sealed against shrinking.
    ///
    /// # Errors
    /// As [`Memory::open_with`].
    pub fn open(path: impl AsRef<Path>, writable: bool) -> Result<Self> {
        Self::open_with(path, Options { writable, ..Options::default() })
    }

    /// Opens a file.
    ///
    /// # Errors
    /// What the system says, or a file that is not memory, is not stable, is empty or has holes.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let file = File::options()
            .read(true)
            .write(options.writable)
            .open(path)
            .map_err(|error| Error::io("opening", path, None, error))?;
        Self::from_file(file, path, options)
    }

    /// Takes over an open file; `path` names it in errors.
    ///
    /// # Errors
    /// As [`Memory::open_with`].
    pub fn from_file(file: File, path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let failed = |action| move |error| Error::io(action, path, None, error);
        let metadata = file.metadata().map_err(failed("reading the length"))?;
        let bytes = metadata.len();
        let refuse = |what: &str| Err(Error::invalid(path, what));
        if !metadata.is_file() {
            return refuse("not a regular file; open it through a kernel queue");
        }
        if !mapping::is_memory(&file).map_err(failed("asking for the file system"))? {
            return refuse(
                "its file system is not memory (tmpfs, hugetlbfs, memfd, DAX): a mapping would be \
                 the page cache, whose faults wait for the device inside a copy; open it through a \
                 kernel queue",
            );
        }
        if bytes == 0 {
            return refuse("is empty, there is nothing to map; give it its length first");
        }
        if !options.assume_stable && !mapping::sealed_against_shrinking(&file) {
            return refuse(
                "is not sealed against shrinking: if anybody shortens it while it is mapped, the \
                 next access ends this process with SIGBUS; use a sealed memfd, or set \
                 assume_stable if you know that nobody does",
            );
        }
        if options.writable {
            mapping::reserve(&file, bytes).map_err(failed("reserving space"))?;
        } else if std::os::unix::fs::MetadataExt::blocks(&metadata).saturating_mul(512) < bytes {
            return refuse(
                "has holes: reading one takes memory, and with none left that is a SIGBUS; open \
                 it writable once, which fills them",
            );
        }
        let data = Mapping::of_file(&file, bytes, options.writable).map_err(failed("mapping"))?;
        let shared = Shared { path: path.to_owned(), file, data, writable: options.writable };
        Ok(Memory { shared: Arc::new(shared) })
    }

    /// The file it was opened from.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl Shared {
    fn serve(&self, io: &Io) -> i32 {
        match io.action() {
            Action::Sync => mapping::sync(&self.file, false),
            Action::DataSync => mapping::sync(&self.file, true),
            Action::Write | Action::WriteVectored if !self.writable => -libc::EBADF,
            _ => match self.data.within(io.action(), io.offset(), io.bytes()) {
                Ok(bytes) => self.data.transfer(io, bytes) as i32,
                Err(error) => error,
            },
        }
    }
}

impl Source for Memory {
    type Queue = MemoryQueue;

    /// # Errors
    /// A depth of 0 or above [`Memory::MAX_DEPTH`].
    fn queue(&self, depth: u32) -> io::Result<MemoryQueue> {
        if depth == 0 || depth > Self::MAX_DEPTH {
            let what = format!("queue depth {depth}: must be from 1 to {}", Self::MAX_DEPTH);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let done = VecDeque::with_capacity(depth as usize);
        Ok(MemoryQueue { shared: self.shared.clone(), done, depth: depth as usize, next: 0 })
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<MemoryQueue>>> {
        self.queue(depth).map(|queue| Some(InHandler::new(queue)))
    }

    fn routes(&self) -> Routes {
        Routes::INLINE | Routes::INTERRUPT
    }

    fn call(&self, io: &Io) -> i32 {
        self.shared.serve(io)
    }

    fn target(&self) -> i32 {
        0
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.shared.data.bytes())
    }
}

/// One thread's queue to a file that is memory. Submitting copies; the next poll hands the
/// completion out.
#[derive(Debug)]
pub struct MemoryQueue {
    shared: Arc<Shared>,
    /// Over and not handed out. Its room for `depth` entries is allocated once.
    done: VecDeque<Completion>,
    depth: usize,
    next: u64,
}

// SAFETY: a request is served by copying within `submit`.
unsafe impl Queue for MemoryQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, _: Route) -> std::result::Result<Ticket, (Full, Io)> {
        if self.done.len() >= self.depth {
            return Err((Full, io));
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.done.push_back(Completion { ticket, result: self.shared.serve(&io) });
        Ok(ticket)
    }

    fn flush(&mut self) {}

    #[inline]
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let mut found = 0;
        while let Some(completion) = self.done.pop_front() {
            found += 1;
            out(completion);
        }
        found
    }

    /// There is something at once, or nothing ever.
    fn arm(&mut self, _: u32) -> Wake<'_> {
        if self.done.is_empty() { Wake::Never } else { Wake::At(0) }
    }

    /// Too late: every request is over when it was submitted.
    fn cancel(&mut self, _: Ticket) {}

    /// Nothing is ever ahead of a new request: a copy is over before submit returns.
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

// SAFETY: submit, flush, poll, arm and disarm allocate nothing: `done` holds at most `depth`
// entries and was made with room for them. They take no lock, do not panic and touch no
// thread-local but libc's errno, which is not initialised on first use. A fault on the mapping is
// the kernel's.
unsafe impl SignalSafe for MemoryQueue {}
