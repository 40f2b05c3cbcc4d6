// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose every request is decided.
#![allow(unsafe_code)]

mod caller;
mod descriptor;

use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dwell_policy::{DeviceClass, Mode, Reason, Route, WaitPolicy};
use thread_local::ThreadLocal;

use crate::admission::Admission;
use crate::any::AnySource;
use crate::buffer::Aligned;
use crate::clock;
use crate::device;
use crate::error::{Error, ErrorKind, Result};
use crate::learner::Learner;
use crate::monitor::SystemMonitor;
use crate::off;
use crate::parameters::{DeviceParameters, InFlight};
use crate::queue::{Action, Io};
use crate::share::{Share, Steering};
use crate::source::Source;
use crate::stats::{Counters, Stats};

pub use caller::Heat;
use caller::of_thread;
pub(crate) use caller::{Caller, Turn};

/// Largest single transfer, in bytes: the kernel's own limit, rounded to a page.
pub const MAX_TRANSFER_BYTES: usize = 0x7fff_f000;

/// Gone when a thread that ends has begun to take its thread-locals down: the destructors of others
/// may still make requests then.
struct Alive;

impl Drop for Alive {
    fn drop(&mut self) {}
}

thread_local! {
    static ALIVE: Alive = {
        // What the `ThreadLocal`s keep and the rings are made first, so that they are taken down
        // after this.
        ThreadLocal::<u8>::new().get_or_default();
        crate::kernel::prepare_thread();
        Alive
    };
}

/// Makes what the calling thread's requests need on whatever file, so that it is there when the
/// thread ends: what is made later is taken down earlier.
pub fn prepare_thread() {
    // A thread that is ending makes nothing any more.
    let _ = ALIVE.try_with(|_| ());
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
/// // The page cache had the data, and the statistics say so.
/// assert_eq!(file.stats().because(dwell::Reason::Cached), 1);
/// # Ok(())
/// # }
/// ```
pub struct File<S: Source = AnySource>
where
    S::Queue: Send,
{
    pub(crate) source: S,
    path: PathBuf,
    pub(crate) policy: Arc<dyn WaitPolicy>,
    pub(crate) parameters: DeviceParameters,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) admission: Option<Admission>,
    pub(crate) learner: Option<Arc<Learner>>,
    device: Box<str>,
    /// Whether decisions are only recorded.
    pub(crate) shadow: bool,
    pub(crate) steering: Steering,
    /// Set where no size, backlog or load can change the decision: requests go inline unasked.
    pub(crate) always: Option<(Mode, Reason)>,
    pub(crate) callers: ThreadLocal<Caller<S::Queue>>,
    pub(crate) counters: ThreadLocal<Counters>,
}

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// A file over a source of any kind. `device` tells devices apart: files with the same name
    /// share one backlog. What follows an `@` in it tells processes apart, which share what they
    /// [learn](Learner) all the same.
    pub fn over(
        source: S,
        path: impl Into<PathBuf>,
        device: &str,
        parameters: DeviceParameters,
        policy: Arc<dyn WaitPolicy>,
        monitor: Option<Arc<SystemMonitor>>,
    ) -> Self {
        if monitor.is_none() {
            off::look_at_times(clock::now());
        }
        let inline = source.routes().has(Route::Inline);
        // Requests of a fast device count as backlog for others, whatever their own policy.
        let fast = parameters.profile.is_some_and(|profile| profile.class == DeviceClass::Fast);
        let always = policy.always_inline(parameters.profile.as_ref()).filter(|_| inline && !fast);
        let manner = if source.caches() { "cached" } else { "direct" };
        let learner = policy.goal().map(|goal| {
            let remembered = monitor.as_ref().and_then(|monitor| monitor.remembered());
            Learner::of(device, manner, goal, remembered)
        });
        let in_flight = InFlight::of(device);
        let number = device.split_once('@').map_or(device, |(number, _)| number);
        if let Some(monitor) = &monitor {
            monitor.keep(&in_flight);
            learner.iter().for_each(|learner| monitor.keep(learner));
            if policy.looks_at_backlog() {
                in_flight.watch(number, monitor);
            }
        }
        let admission =
            monitor.map(|monitor| Admission::new(monitor, device::may_need_worker(number)));
        File {
            source,
            path: path.into(),
            policy,
            parameters,
            in_flight,
            admission,
            learner,
            device: device.into(),
            shadow: false,
            steering: Steering::All,
            always,
            callers: ThreadLocal::new(),
            counters: ThreadLocal::new(),
        }
    }

    /// The same file, whose decisions are only recorded: every request goes the kernel's own way.
    /// Nothing is tried, and none of the spinner limit is used.
    #[must_use]
    pub fn in_shadow(mut self, on: bool) -> Self {
        self.shadow = on;
        self
    }

    /// The same file, of whose requests only a part is steered; all of them without a share. Those
    /// of a device whose one decision holds for all requests are not divided.
    #[must_use]
    #[doc(hidden)]
    pub fn in_part(mut self, share: Option<Share>) -> Self {
        self.steering = Steering::of(share);
        self
    }

    /// By how many percent steered requests took longer than those held back, once that has turned
    /// its device off; else 0.
    pub fn regressed_percent(&self) -> u64 {
        match &self.steering {
            Steering::Spans(spans) => spans.excess_percent(),
            Steering::All | Steering::Nothing => 0,
        }
    }

    /// The learner of its device; `None` under a policy that does not want to know.
    #[doc(hidden)]
    pub fn learner(&self) -> Option<&Learner> {
        self.learner.as_deref()
    }

    /// What tells its device apart from others.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The path or address it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The source open beneath.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The parameters of its device.
    #[doc(hidden)]
    pub fn parameters(&self) -> &DeviceParameters {
        &self.parameters
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
        self.requested(&io)
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
            between = self.copied(&[IoSlice::new(&buffer[..bytes])], bytes, offset)?;
            between.as_ptr()
        };
        // SAFETY: a write does not change the memory, and `buffer` or `between` outlives the call.
        let io = unsafe {
            Io::plain(Action::Write, self.source.target(), memory.cast_mut(), bytes as u32, offset)
        };
        self.requested(&io)
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
        self.requested(&io)
    }

    /// Writes several buffers at `offset`, in order, as one request.
    ///
    /// # Errors
    /// As [`File::write_at`]; more buffers than the system takes.
    pub fn write_vectored_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        let bytes = self.sum(buffers.iter().map(|piece| piece.len()))?;
        if !buffers.iter().all(|piece| self.aligned(piece.as_ptr(), piece.len(), offset)) {
            self.writable_directly(bytes, offset)?;
            return self.write_at(&self.copied(buffers, bytes, offset)?, offset);
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
        self.requested(&io)
    }

    /// Makes data and metadata durable.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sync(&self) -> Result<()> {
        // SAFETY: the target is the source's own, which outlives this call.
        let io = unsafe { Io::sync(self.source.target(), false) };
        self.requested(&io).map(drop)
    }

    /// Makes data durable, and the metadata that reading it back needs.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sync_data(&self) -> Result<()> {
        // SAFETY: the target is the source's own, which outlives this call.
        let io = unsafe { Io::sync(self.source.target(), true) };
        self.requested(&io).map(drop)
    }

    pub(crate) fn aligned(&self, memory: *const u8, bytes: usize, offset: u64) -> bool {
        let mask = u64::from(self.source.alignment()) - 1;
        (memory as u64 | bytes as u64 | offset) & mask == 0
    }

    fn sum(&self, mut lengths: impl ExactSizeIterator<Item = usize>) -> Result<usize> {
        const MOST: usize = 1024;
        if lengths.len() > MOST {
            let what = format!("{} buffers in one request; at most {MOST}", lengths.len());
            return Err(Error::refused(ErrorKind::OutOfRange, &self.path, what));
        }
        lengths
            .try_fold(0usize, |sum, bytes| {
                sum.checked_add(bytes).filter(|sum| *sum <= MAX_TRANSFER_BYTES)
            })
            .ok_or_else(|| {
                let what = format!("more than {MAX_TRANSFER_BYTES} bytes in one request; split it");
                Error::refused(ErrorKind::OutOfRange, &self.path, what)
            })
    }

    /// A direct read of any range: reads the aligned range around it.
    fn read_around(&self, bytes: usize, offset: u64, take: impl FnOnce(&[u8])) -> Result<usize> {
        let align = u64::from(self.source.alignment());
        let first = offset & !(align - 1);
        let skip = (offset - first) as usize;
        let align = align as usize;
        let whole = (skip + bytes).next_multiple_of(align);
        let mut between = self.between("read", whole.min(self.most_bytes()), offset)?;
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
        Err(Error::refused(ErrorKind::Unaligned, &self.path, what))
    }

    /// The most that goes in one request, as direct I/O takes it.
    pub(crate) fn most_bytes(&self) -> usize {
        MAX_TRANSFER_BYTES - MAX_TRANSFER_BYTES % self.source.alignment() as usize
    }

    /// Memory between the caller's and the device.
    fn between(&self, action: &'static str, bytes: usize, offset: u64) -> Result<Aligned> {
        let made = Aligned::try_for_blocks_of(bytes, self.source.alignment() as usize);
        let failed = || std::io::Error::from_raw_os_error(libc::ENOMEM);
        made.ok_or_else(|| Error::io(action, &self.path, Some(offset), failed()))
    }

    /// An aligned copy of several pieces.
    fn copied(&self, pieces: &[IoSlice<'_>], bytes: usize, offset: u64) -> Result<Aligned> {
        let mut between = self.between("write", bytes, offset)?;
        let mut at = 0;
        for piece in pieces {
            between[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        Ok(between)
    }

    /// No file reaches so far; to io_uring the last offset means "where the descriptor stands".
    pub(crate) fn reachable(&self, offset: u64) -> Result<()> {
        if i64::try_from(offset).is_ok() {
            return Ok(());
        }
        let what = format!("byte {offset} is past what any file can hold");
        Err(Error::refused(ErrorKind::OutOfRange, &self.path, what))
    }

    /// The calling thread's counters; none while the thread ends and what it kept is gone already.
    #[inline]
    pub(crate) fn counters(&self) -> Option<&Counters> {
        ALIVE.try_with(|_| ()).is_ok().then(|| of_thread(&self.counters))
    }

    /// What the calling thread keeps for its requests.
    #[inline]
    pub(crate) fn caller(&self) -> &Caller<S::Queue> {
        of_thread(&self.callers)
    }
}
