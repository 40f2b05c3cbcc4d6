// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose every request is decided.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dwell_policy::{
    Call, Decision, Estimator, Kind, Mode, Reason, Route, Wait, WaitMachine, WaitPolicy,
};
use thread_local::ThreadLocal;

use crate::any::AnySource;
use crate::buffer::Aligned;
use crate::clock;
use crate::error::{Error, Result};
use crate::known::{InFlight, Known};
use crate::monitor::SystemMonitor;
use crate::open::Options;
use crate::queue::{Action, Io, Queue};
use crate::source::Source;
use crate::stats::{Counters, Stats};
use crate::wait::wait;

/// Largest single transfer, in bytes: the kernel's own limit, rounded to a page.
pub const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// One inline request in this many is timed.
const SAMPLE_ONE_IN: u64 = 64;

/// After a miss of the page cache, this many reads ask it before they wait.
const CACHE_HEAT: u8 = 32;

/// Gone when a thread that ends has begun to take its thread-locals down: the destructors of others
/// may still make requests then.
struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {}
}

thread_local! {
    static ALIVE: Alive = {
        // What the `ThreadLocal`s keep is made first, so that it is taken down after this.
        ThreadLocal::<u8>::new().get_or_default();
        Alive
    };
}

/// An open file, device or address. Threads share it by reference; each has its own queue.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, vec![7u8; 8192]).unwrap();
/// let file = dwell::File::open(&path)?;
/// let mut buffer = [0u8; 4096];
/// assert_eq!(file.read_at(&mut buffer, 4096)?, 4096);
/// assert_eq!(buffer[0], 7);
///
/// // A device that was never probed is passed through, and the statistics say so.
/// assert_eq!(file.stats().because(dwell::Reason::Unprobed), 1);
/// # Ok(())
/// # }
/// ```
pub struct File<S: Source = AnySource>
where
    S::Queue: Send,
{
    pub(crate) source: S,
    path: PathBuf,
    policy: Arc<dyn WaitPolicy>,
    pub(crate) known: Known,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) monitor: Option<SystemMonitor>,
    /// Set where no size, backlog or load can change the decision: requests go inline unasked.
    always: Option<(Mode, Reason)>,
    callers: ThreadLocal<RefCell<Caller<S::Queue>>>,
    counters: ThreadLocal<Counters>,
}

/// What one thread keeps for its requests on one file.
struct Caller<Q> {
    queue: Option<Q>,
    estimator: Estimator,
    sequence: u64,
    cache_heat: u8,
}

impl<Q> Default for Caller<Q> {
    fn default() -> Self {
        Caller { queue: None, estimator: Estimator::new(), sequence: 0, cache_heat: 0 }
    }
}

impl File {
    /// Opens `address` for reading with the default policy: a path, or the address of a scheme
    /// (`emu:z-nand`, or one that [`register`](crate::open::register) made known).
    ///
    /// # Errors
    /// What the system refuses, with the path; directories and unknown presets.
    pub fn open(address: impl AsRef<Path>) -> Result<File> {
        Options::new().open(address)
    }

    /// Choices for opening.
    pub fn options() -> Options {
        Options::new()
    }
}

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// A file over a source of any kind. `device` tells devices apart: files with the same name
    /// share one backlog.
    pub fn over(
        source: S,
        path: impl Into<PathBuf>,
        device: &str,
        known: Known,
        policy: Arc<dyn WaitPolicy>,
        monitor: Option<SystemMonitor>,
    ) -> Self {
        let inline = source.routes().has(Route::Inline);
        let always = policy.always_inline(known.profile.as_ref()).filter(|_| inline);
        File {
            source,
            path: path.into(),
            policy,
            known,
            in_flight: InFlight::of(device),
            monitor,
            always,
            callers: ThreadLocal::new(),
            counters: ThreadLocal::new(),
        }
    }

    /// The path or address it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is open beneath.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// What is known of its device.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Its policy.
    pub fn policy(&self) -> &dyn WaitPolicy {
        &*self.policy
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn bytes(&self) -> Result<u64> {
        self.source.bytes().map_err(|error| Error::io("stat", &self.path, None, error))
    }

    /// What its requests did, over all threads.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.counters.iter())
    }

    /// Reads at `offset` and returns the number of bytes read; 0 at the end. Any buffer will do:
    /// where direct I/O wants alignment, an aligned one goes between.
    ///
    /// # Errors
    /// What the system refuses, with path and offset.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = buffer.len().min(MAX_TRANSFER_BYTES);
        if !self.aligned(buffer.as_ptr(), bytes, offset) {
            return self
                .read_around(bytes, offset, |data| buffer[..data.len()].copy_from_slice(data));
        }
        // SAFETY: the buffer is borrowed until this call returns, which it does only when the
        // completion is out.
        let io = unsafe {
            Io::plain(Action::Read, self.source.target(), buffer.as_mut_ptr(), bytes as u32, offset)
        };
        self.request(&io)
    }

    /// Reads until `buffer` is full.
    ///
    /// # Errors
    /// What the system refuses; the end of the file before the buffer is full.
    pub fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
        while !buffer.is_empty() {
            let done = self.read_at(buffer, offset)?;
            if done == 0 {
                let end = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                return Err(Error::io("read", &self.path, Some(offset), end));
            }
            buffer = &mut buffer[done..];
            offset += done as u64;
        }
        Ok(())
    }

    /// Writes at `offset` and returns the number of bytes written.
    ///
    /// # Errors
    /// What the system refuses, with path and offset; an offset or length that direct I/O cannot
    /// write without reading first.
    pub fn write_at(&self, buffer: &[u8], offset: u64) -> Result<usize> {
        let bytes = buffer.len().min(MAX_TRANSFER_BYTES);
        let between;
        let memory = if self.aligned(buffer.as_ptr(), bytes, offset) {
            buffer.as_ptr()
        } else {
            self.writable_directly(bytes, offset)?;
            between = self.copied(&[IoSlice::new(&buffer[..bytes])], bytes);
            between.as_ptr()
        };
        // SAFETY: a write does not change the memory, and `buffer` or `between` outlives the call.
        let io = unsafe {
            Io::plain(Action::Write, self.source.target(), memory.cast_mut(), bytes as u32, offset)
        };
        self.request(&io)
    }

    /// Writes all of `buffer`.
    ///
    /// # Errors
    /// As [`File::write_at`]; a device that takes no more.
    pub fn write_all_at(&self, mut buffer: &[u8], mut offset: u64) -> Result<()> {
        while !buffer.is_empty() {
            let done = self.write_at(buffer, offset)?;
            if done == 0 {
                let full = std::io::Error::from(std::io::ErrorKind::WriteZero);
                return Err(Error::io("write", &self.path, Some(offset), full));
            }
            buffer = &buffer[done..];
            offset += done as u64;
        }
        Ok(())
    }

    /// Reads at `offset` into several buffers, in order, as one request.
    ///
    /// # Errors
    /// As [`File::read_at`]; more buffers than the system takes.
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let bytes = self.sum(buffers.iter().map(|piece| piece.len()))?;
        if !buffers.iter().all(|piece| self.aligned(piece.as_ptr(), piece.len(), offset)) {
            return self.read_around(bytes, offset, |mut data| {
                for piece in buffers.iter_mut() {
                    let (now, later) = data.split_at(data.len().min(piece.len()));
                    piece[..now.len()].copy_from_slice(now);
                    data = later;
                }
            });
        }
        // SAFETY: an IoSliceMut has an iovec's layout; all memory is borrowed until the completion.
        let io = unsafe {
            Io::vectored(
                Action::ReadVectored,
                self.source.target(),
                buffers.as_ptr().cast(),
                buffers.len() as u32,
                bytes as u32,
                offset,
            )
        };
        self.request(&io)
    }

    /// Writes several buffers at `offset`, in order, as one request.
    ///
    /// # Errors
    /// As [`File::write_at`]; more buffers than the system takes.
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let bytes = self.sum(buffers.iter().map(|piece| piece.len()))?;
        if !buffers.iter().all(|piece| self.aligned(piece.as_ptr(), piece.len(), offset)) {
            self.writable_directly(bytes, offset)?;
            return self.write_at(&self.copied(buffers, bytes), offset);
        }
        // SAFETY: an IoSlice has an iovec's layout; all memory is borrowed until the completion.
        let io = unsafe {
            Io::vectored(
                Action::WriteVectored,
                self.source.target(),
                buffers.as_ptr().cast(),
                buffers.len() as u32,
                bytes as u32,
                offset,
            )
        };
        self.request(&io)
    }

    /// Makes data and metadata durable.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sync(&self) -> Result<()> {
        self.request(&Io::sync(self.source.target(), false)).map(drop)
    }

    /// Makes data durable, and the metadata that reading it back needs.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sync_data(&self) -> Result<()> {
        self.request(&Io::sync(self.source.target(), true)).map(drop)
    }

    pub(crate) fn aligned(&self, memory: *const u8, bytes: usize, offset: u64) -> bool {
        let mask = u64::from(self.source.alignment()) - 1;
        (memory as u64 | bytes as u64 | offset) & mask == 0
    }

    fn sum(&self, mut lengths: impl ExactSizeIterator<Item = usize>) -> Result<usize> {
        const MOST: usize = 1024;
        if lengths.len() > MOST {
            let what = format!("{} buffers in one request; at most {MOST}", lengths.len());
            return Err(Error::invalid(&self.path, what));
        }
        lengths
            .try_fold(0usize, |sum, bytes| {
                sum.checked_add(bytes).filter(|sum| *sum <= MAX_TRANSFER_BYTES)
            })
            .ok_or_else(|| {
                let what = format!("more than {MAX_TRANSFER_BYTES} bytes in one request; split it");
                Error::invalid(&self.path, what)
            })
    }

    /// A direct read of any range: reads the aligned range around it.
    fn read_around(&self, bytes: usize, offset: u64, take: impl FnOnce(&[u8])) -> Result<usize> {
        let align = u64::from(self.source.alignment());
        let first = offset & !(align - 1);
        let skip = (offset - first) as usize;
        let align = align as usize;
        let whole = (skip + bytes).next_multiple_of(align);
        let most = MAX_TRANSFER_BYTES - MAX_TRANSFER_BYTES % align;
        let mut between = Aligned::for_blocks_of(whole.min(most), align);
        let done = self.read_at(&mut between, first)?;
        let data = &between[skip.min(done)..done.min(skip + bytes)];
        take(data);
        Ok(data.len())
    }

    fn writable_directly(&self, bytes: usize, offset: u64) -> Result<()> {
        let align = u64::from(self.source.alignment());
        if (bytes as u64 | offset) & (align - 1) == 0 {
            return Ok(());
        }
        let what = format!(
            "a direct write of {bytes} bytes at byte {offset}: both must be multiples of {align}; \
             pad the write or open the file without direct I/O"
        );
        Err(Error::invalid(&self.path, what))
    }

    /// An aligned copy of several pieces.
    fn copied(&self, pieces: &[IoSlice<'_>], bytes: usize) -> Aligned {
        let mut between = Aligned::for_blocks_of(bytes, self.source.alignment() as usize);
        let mut at = 0;
        for piece in pieces {
            between[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        between
    }

    /// No file reaches so far; to an io_uring the last offset of all would mean "where the
    /// descriptor stands".
    pub(crate) fn reachable(&self, offset: u64) -> Result<()> {
        if i64::try_from(offset).is_ok() {
            return Ok(());
        }
        let what = format!("byte {offset} is past what any file can hold");
        Err(Error::invalid(&self.path, what))
    }

    fn request(&self, io: &Io) -> Result<usize> {
        self.reachable(io.offset)?;
        let Some(counters) = self.counters() else {
            return self.outcome(io, self.call_if_inline(io));
        };
        let result = match self.always {
            Some((mode, why)) => self.inline(counters, io, mode, why),
            None => match self.callers.get_or_default().try_borrow_mut() {
                Ok(mut caller) => self.decide(counters, &mut caller, io),
                // A signal handler interrupted a request of its own thread.
                Err(_) => self.unqueued(counters, io),
            },
        };
        counters.moved(io.action.kind(), result);
        self.outcome(io, result)
    }

    pub(crate) fn outcome(&self, io: &Io, result: i32) -> Result<usize> {
        if result >= 0 {
            return Ok(result as usize);
        }
        let offset = (io.action.kind() != Kind::Sync).then_some(io.offset);
        let source = std::io::Error::from_raw_os_error(-result);
        Err(Error::io(io.action.as_str(), &self.path, offset, source))
    }

    /// Serves inline what a ring refused and a synchronous call can do: polling that the device
    /// does not have after all, or a request that it could not take now. Gives any other result
    /// back as it is.
    pub(crate) fn retried_inline(&self, io: &Io, decision: &Decision, result: i32) -> i32 {
        let refused =
            matches!(-result, libc::EOPNOTSUPP | libc::EINVAL) && decision.route == Route::Polled;
        let again = refused || matches!(-result, libc::EAGAIN | libc::EINTR);
        if decision.route == Route::Inline || !again || !self.source.routes().has(Route::Inline) {
            return result;
        }
        let served = self.source.call(io);
        // A request that is wrong on every route says nothing of polling.
        if refused && served != result {
            self.source.refused(Route::Polled);
        }
        served
    }

    pub(crate) fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.policy.choose(wait)
    }

    /// The inline route without a decision: sampled timing only.
    #[inline]
    fn inline(&self, counters: &Counters, io: &Io, mode: Mode, why: Reason) -> i32 {
        let before = counters.decided(Route::Inline, mode, why);
        if !before.is_multiple_of(SAMPLE_ONE_IN) {
            return self.source.call(io);
        }
        let started = clock::now();
        let result = self.source.call(io);
        counters.sampled(clock::now() - started);
        result
    }

    /// Where no queue can be had.
    #[cold]
    fn unqueued(&self, counters: &Counters, io: &Io) -> i32 {
        if !self.source.routes().has(Route::Inline) {
            return -libc::EBUSY;
        }
        self.inline(counters, io, Mode::Block, Reason::NoQueue)
    }

    #[cold]
    fn call_if_inline(&self, io: &Io) -> i32 {
        match self.source.routes().has(Route::Inline) {
            true => self.source.call(io),
            false => -libc::EBUSY,
        }
    }

    /// The calling thread's counters; none while the thread ends and what it kept is gone already.
    #[inline]
    pub(crate) fn counters(&self) -> Option<&Counters> {
        ALIVE.try_with(|_| ()).is_ok().then(|| self.counters.get_or_default())
    }

    /// The walk of one request: page cache, decision, submission, wait, estimate.
    fn decide(&self, counters: &Counters, caller: &mut Caller<S::Queue>, io: &Io) -> i32 {
        let kind = io.action.kind();
        if kind == Kind::Read
            && self.source.caches()
            && let Some(result) = self.ask_cache(counters, caller, io)
        {
            return result;
        }
        let mut routes = self.source.routes();
        if kind == Kind::Sync {
            routes = routes.without(Route::Polled);
        }
        let wait = Wait {
            kind,
            size_bytes: u64::from(io.bytes),
            backlog: self.in_flight.ahead(),
            call: Call::Blocking,
            routes,
            profile: self.known.profile.as_ref(),
            estimate: caller.estimator.of(kind, u64::from(io.bytes)),
            load: self.load(),
            nice: 0,
            sequence: caller.sequence,
        };
        caller.sequence += 1;
        let mut decision = self.policy.choose(&wait);
        let permit = self.permit(&wait, &mut decision);
        self.in_flight.enter(io.bytes);
        let (result, latency_ns) = if decision.route == Route::Inline {
            let started = clock::now();
            let result = self.source.call(io);
            counters.decided(Route::Inline, decision.mode, decision.why);
            (result, clock::now() - started)
        } else {
            self.queued(counters, caller, io, &decision)
        };
        self.in_flight.leave(io.bytes);
        drop(permit);
        if result == io.bytes as i32 {
            caller.estimator.record(kind, u64::from(io.bytes), decision.mode, latency_ns);
        }
        result
    }

    /// A request on the thread's queue, waited for. The time is the wait's, in nanoseconds.
    fn queued(
        &self,
        counters: &Counters,
        caller: &mut Caller<S::Queue>,
        io: &Io,
        decision: &Decision,
    ) -> (i32, u64) {
        if caller.queue.is_none() {
            caller.queue = self.source.call_queue().ok();
        }
        let Some(queue) = &mut caller.queue else { return (self.unqueued(counters, io), 0) };
        let submitted = clock::now();
        let Ok(ticket) = queue.submit(*io, decision.route) else {
            return (self.unqueued(counters, io), 0);
        };
        queue.flush();
        let mut result = 0;
        let machine = WaitMachine::new(decision, submitted, submitted);
        let outcome = wait(queue, machine, &mut |completion| {
            let ours = completion.ticket == ticket;
            if ours {
                result = completion.result;
            }
            ours
        });
        counters.waited(decision, &outcome);
        self.spun(&outcome);
        self.worked(io.bytes);
        (self.retried_inline(io, decision, result), outcome.ended - submitted)
    }

    /// Whether a read came up short because the file ends there.
    fn ends(&self, io: &Io, result: i32) -> bool {
        self.source.bytes().is_ok_and(|bytes| io.offset + result as u64 >= bytes)
    }

    /// Asks the page cache before waiting (SmartCon Fig. 6), but only a file with recent misses:
    /// for others the question costs more than it saves. `None` when the device has to be asked.
    fn ask_cache(
        &self,
        counters: &Counters,
        caller: &mut Caller<S::Queue>,
        io: &Io,
    ) -> Option<i32> {
        if caller.cache_heat == 0 {
            let before = counters.decided(Route::Inline, Mode::Block, Reason::Cached);
            if !before.is_multiple_of(SAMPLE_ONE_IN / 8) {
                return Some(self.source.call(io));
            }
            let started = clock::now();
            let result = self.source.call(io);
            let took_ns = clock::now() - started;
            counters.sampled(took_ns);
            let device_ns = self.known.profile.map_or(0, |p| p.latency_of(u64::from(io.bytes)));
            if took_ns > (device_ns / 2).max(2_000) {
                caller.cache_heat = CACHE_HEAT;
            }
            return Some(result);
        }
        match self.source.cached(io) {
            // Part of it was there: the call completes the rest, as a read of a file must.
            Some(result) if result > 0 && result < io.bytes as i32 && !self.ends(io, result) => {
                caller.cache_heat = CACHE_HEAT;
                None
            }
            Some(result) => {
                caller.cache_heat -= 1;
                counters.decided(Route::Inline, Mode::Spin, Reason::Cached);
                Some(result)
            }
            None => {
                caller.cache_heat = CACHE_HEAT;
                None
            }
        }
    }
}
