// SPDX-License-Identifier: MIT OR Apache-2.0
//! A region: the memory, and what a program may ask of it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dwell::{Error, File, Result, clock};

use crate::advice::Advice;
use crate::budget::Budget;
use crate::frames::Kind;
use crate::mask::{Mask, Quiet};
use crate::memory::{Area, PAGE_BYTES};
use crate::open;
use crate::options::{Faults, Options};
use crate::pages::{AHEAD, DIRTY, SPILLED, State};
use crate::registered::Registered;
use crate::shared::Shared;
use crate::signal;
use crate::stats::{Statistics, add};
use crate::thread::Handler;

/// An opened source as memory. Threads share it by reference.
///
/// Dropping it ends the mapping, as `munmap` does: whoever touches the memory after that is lost.
/// What was written and not synced is written back then, and an error of that told to nobody; see
/// [`Region::close`].
pub struct Region {
    pub(crate) mode: Mode,
}

pub(crate) enum Mode {
    Paged {
        shared: Arc<Shared>,
        /// Where the handler of SIGBUS knows it.
        known: Option<usize>,
        handler: Option<Handler>,
        /// What it shares with other regions.
        budget: Option<Arc<Budget>>,
    },
    /// The kernel's own mapping.
    Mapped { file: Arc<File>, area: Area, writes_back: bool, why: String },
}

impl Region {
    /// Makes `file` memory.
    ///
    /// # Errors
    /// An empty source, a budget too small, a source that cannot be read in a signal handler
    /// (inline), one that cannot be written (shared); where userfaultfd is missing or restricted,
    /// one line that says so.
    pub fn open(file: impl Into<Arc<File>>, options: &Options) -> Result<Region> {
        let file = file.into();
        let mapped = |why: String, (area, writes_back)| Region {
            mode: Mode::Mapped { file: file.clone(), area, writes_back, why },
        };
        if let Some(why) = open::why_mapped(&file, options)? {
            return Ok(mapped(why.to_owned(), open::mapped(&file, options)?));
        }
        Region::begin(&file, options).or_else(|error| {
            let why = error.to_string();
            Ok(mapped(why, open::instead(&file, options, error)?))
        })
    }

    /// A region with what handles its faults.
    fn begin(file: &Arc<File>, options: &Options) -> Result<Region> {
        let shared = Arc::new(open::paged(file, options)?);
        let budget = options.shared_budget.clone();
        if let Some(budget) = &budget {
            budget.join(&shared, options.nice)?;
        }
        // From here on it ends as a region does, whatever it has by then.
        let mut region =
            Region { mode: Mode::Paged { shared, known: None, handler: None, budget } };
        if let Mode::Paged { shared, known, handler, .. } = &mut region.mode {
            match options.faults {
                Faults::Inline => *known = Some(open::enter(shared)?),
                Faults::Thread => {
                    *handler = Some(Handler::start(shared, options.handler_spins_ns)?);
                }
            }
        }
        Ok(region)
    }

    fn paged(&self) -> Option<&Arc<Shared>> {
        match &self.mode {
            Mode::Paged { shared, .. } => Some(shared),
            Mode::Mapped { .. } => None,
        }
    }

    /// Bytes that may be in memory at the moment; `None` where the kernel decides.
    pub(crate) fn holds_bytes(&self) -> Option<usize> {
        self.paged().map(|shared| shared.budget() as usize * PAGE_BYTES)
    }

    pub(crate) fn area(&self) -> &Area {
        match &self.mode {
            Mode::Paged { shared, .. } => &shared.area,
            Mode::Mapped { area, .. } => area,
        }
    }

    /// Start of the memory, page-aligned. Nobody may touch it after the region is gone, nor in a
    /// forked child.
    pub fn as_ptr(&self) -> *mut u8 {
        self.area().start() as *mut u8
    }

    /// Length of the source in bytes; the memory goes on with zeros to the end of the page.
    pub fn len(&self) -> usize {
        match &self.mode {
            Mode::Paged { shared, .. } => shared.bytes as usize,
            Mode::Mapped { area, .. } => area.bytes_asked(),
        }
    }

    /// Always `false`: an empty source cannot be opened.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The file beneath.
    pub fn file(&self) -> &File {
        match &self.mode {
            Mode::Paged { shared, .. } => &shared.file,
            Mode::Mapped { file, .. } => file,
        }
    }

    /// How pages come in, for a table: `move`, `copy`, or `mmap` where the kernel maps the source.
    pub fn method(&self) -> &'static str {
        match &self.mode {
            Mode::Paged { shared, .. } if shared.copies || shared.writes => "copy",
            Mode::Paged { .. } => "move",
            Mode::Mapped { .. } => "mmap",
        }
    }

    /// Why the kernel maps the source, in one line; `None` of a region with a budget.
    pub fn why_mapped(&self) -> Option<&str> {
        match &self.mode {
            Mode::Paged { .. } => None,
            Mode::Mapped { why, .. } => Some(why),
        }
    }

    /// Gives the calling thread a queue of its own. A thread without one faults correctly too, but
    /// reads by plain calls, and ahead only what follows in the same call.
    ///
    /// # Errors
    /// What the source refuses; a thread that is registered already, or too many of them.
    pub fn register_thread(&self) -> Result<Registered> {
        let Some(shared) = self.paged() else { return Ok(Registered::of(None)) };
        shared.here()?;
        if matches!(&self.mode, Mode::Paged { handler: Some(_), .. }) {
            return Ok(Registered::of(None));
        }
        let number = open::register(shared)?;
        Ok(Registered::of(Some((shared.clone(), number))))
    }

    /// The pages of a range of bytes.
    pub(crate) fn pages(&self, range: &Range<usize>) -> Result<Range<u32>> {
        if range.start > range.end || range.end > self.len() {
            let what = format!(
                "bytes {} to {} are not within the region of {} bytes",
                range.start,
                range.end,
                self.len()
            );
            return Err(Error::invalid(self.file().path(), what));
        }
        Ok((range.start / PAGE_BYTES) as u32..range.end.div_ceil(PAGE_BYTES) as u32)
    }

    /// Brings a range of bytes into memory. Pages brought in may leave again before they are used,
    /// if the budget is small; see [`Region::pin`].
    ///
    /// # Errors
    /// A range past the end, or what the source refuses.
    pub fn prefault(&self, range: Range<usize>) -> Result<()> {
        let pages = self.pages(&range)?;
        let Some(shared) = self.paged() else { return self.populate(&range) };
        shared.here()?;
        let quiet = Quiet::new();
        pages.into_iter().try_for_each(|page| shared.bring(page, quiet.mask()))
    }

    pub(crate) fn populate(&self, range: &Range<usize>) -> Result<()> {
        let pages = self.pages(range)?;
        let count = (pages.end - pages.start) as usize;
        self.area()
            .advise_range(pages.start as usize, count, libc::MADV_POPULATE_READ)
            .map_err(|error| Error::io("reading", self.file().path(), None, error))
    }

    /// Says how a range of bytes will be used.
    ///
    /// # Errors
    /// A range past the end; with [`Advice::DontNeed`], what the source refuses to take.
    pub fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        let pages = self.pages(&range)?;
        let Some(shared) = self.paged() else {
            let count = (pages.end - pages.start) as usize;
            return self
                .area()
                .advise_range(pages.start as usize, count, advice.of_kernel())
                .map_err(|error| Error::io("madvise", self.file().path(), None, error));
        };
        shared.here()?;
        if advice == Advice::DontNeed {
            return self.drop_pages(shared, pages);
        }
        let quiet = Quiet::new();
        shared.lock().said.note(advice, pages);
        if advice == Advice::WillNeed {
            signal::with_own_queue(shared, quiet.mask(), |thread_queue| {
                thread_queue.run_ahead(shared)
            });
        }
        Ok(())
    }

    fn drop_pages(&self, shared: &Arc<Shared>, pages: Range<u32>) -> Result<()> {
        if shared.writes_back {
            crate::sync::write_back(shared, pages.clone())?;
        }
        for page in pages {
            while !shared.drop_page(page) {
                crate::sync::await_step(shared, page);
            }
        }
        Ok(())
    }

    /// Publishes that the byte at `offset` will be touched soon; hints are followed in their order,
    /// by the faults of any thread. `false` when the ring is full. Costs some nanoseconds; never
    /// waits. A registered thread that finds many in the ring follows them itself, so that their
    /// pages are on their way before the next fault.
    #[inline]
    pub fn hint(&self, offset: usize) -> bool {
        let Mode::Paged { shared, .. } = &self.mode else { return false };
        let waiting = shared.hints.publish(offset as u64);
        if waiting.is_some_and(|waiting| shared.hints.is_batch(waiting)) {
            follow_hints(shared);
        }
        waiting.is_some()
    }

    /// Writes all that was written to the region back and makes it durable.
    ///
    /// # Errors
    /// What the source refused, now or since the last sync; those pages stay in memory and are
    /// tried again. EDEADLK in a signal handler that interrupted a sync of its own thread.
    pub fn sync(&self) -> Result<()> {
        self.sync_range(0..self.len())
    }

    /// As [`Region::sync`], for a range of bytes.
    ///
    /// # Errors
    /// As [`Region::sync`]; a range past the end.
    pub fn sync_range(&self, range: Range<usize>) -> Result<()> {
        let pages = self.pages(&range)?;
        match &self.mode {
            Mode::Paged { shared, .. } if shared.writes_back => {
                shared.here()?;
                crate::sync::make_durable(shared, pages)
            }
            Mode::Mapped { area, writes_back: true, .. } => {
                let count = (pages.end - pages.start) as usize;
                area.flush(pages.start as usize, count)
                    .map_err(|error| Error::io("msync", self.file().path(), None, error))
            }
            _ => Ok(()),
        }
    }

    /// What was counted so far.
    pub fn statistics(&self) -> Statistics {
        let Some(shared) = self.paged() else { return Statistics::default() };
        if !shared.is_here() {
            // In a forked child another thread may have held the lock, and holds it for ever.
            return shared.counters.read();
        }
        let _quiet = Quiet::new();
        let books = shared.lock();
        Statistics {
            resident: books.frames.in_memory().into(),
            peak: books.frames.peak().into(),
            ..shared.counters.read()
        }
    }

    /// Ends the region, as dropping it does, and says what a last sync could not write.
    ///
    /// # Errors
    /// As [`Region::sync`].
    pub fn close(self) -> Result<()> {
        self.sync()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Mode::Paged { shared, known, handler, budget } = &mut self.mode else { return };
        if !shared.is_here() {
            // In a forked child: the region is the parent's.
            shared.area.forget();
            shared.pool.forget();
            if let Some(handler) = handler.take() {
                handler.forget();
            }
            return;
        }
        if let Some(budget) = budget {
            budget.leave(shared);
        }
        if shared.writes_back {
            let _ = crate::sync::write_back_last(shared, 0..shared.pages.count());
        }
        shared.closing.store(true, Ordering::Release);
        if let Some(handler) = handler.take() {
            handler.stop();
        }
        shared.area.unmap();
        shared.wake_all();
        if let Some(known) = known.take() {
            signal::leave(known);
        }
    }
}

/// Follows what hints are in the ring, if the calling thread has a thread queue for that.
#[cold]
fn follow_hints(shared: &Shared) {
    if shared.is_here() {
        let quiet = Quiet::new();
        signal::with_own_queue(shared, quiet.mask(), |thread_queue| thread_queue.run_ahead(shared));
    }
}

impl Shared {
    /// Only the process that opened a region has it.
    pub(crate) fn here(&self) -> Result<()> {
        match self.is_here() {
            true => Ok(()),
            false => Err(Error::invalid(
                self.path(),
                "this region belongs to the process that opened it; a forked child opens one of its own",
            )),
        }
    }

    /// Wakes the threads that wait for the handler thread: they find what has come in the place of
    /// the region. The kernel does so only once nobody has the userfaultfd, which pins keep.
    pub(crate) fn wake_all(&self) {
        self.uffd.wake(self.area.start(), self.area.pages() * PAGE_BYTES);
    }

    /// Brings a page in for a call of the program's, with signals kept out.
    pub(crate) fn bring(&self, page: u32, mask: Mask) -> Result<()> {
        self.cure(page);
        let began = clock::now();
        signal::with_some_queue(self, mask, |thread_queue| thread_queue.fault(self, page, began))
            .map_err(|errno| {
                let source = std::io::Error::from_raw_os_error(errno);
                Error::io("read", self.path(), Some(u64::from(page) * PAGE_BYTES as u64), source)
            })
    }

    /// Makes a page absent. Pinned pages stay, and those of a shared region that somebody is at or
    /// that were written to since they were written back. A private page must lose what was written
    /// to it: `false` where somebody is at the page.
    fn drop_page(&self, page: u32) -> bool {
        let quiet = Quiet::new();
        let mut books = self.lock();
        if self.pages.state(page) == State::Present && !self.pages.stays(page) {
            let frame = self.pages.frame(page);
            books.frames.unlink(frame);
            self.pages.set(page, State::Moving, 0);
            drop(books);
            if self.writes_back {
                signal::with_some_queue(self, quiet.mask(), |thread_queue| {
                    thread_queue.evict_run(self, page, 1)
                });
                books = self.lock();
            } else {
                let moved = self.take_out(page, frame, 1).is_ok();
                books = self.lock();
                let (state, kind) = match moved {
                    true => (State::Standby, Kind::STANDBY),
                    false => (State::Present, Kind::present(0)),
                };
                self.pages.set(page, state, 0);
                books.frames.hold(frame, page, kind);
            }
        }
        let word = self.pages.get(page);
        match State::of(word) {
            State::Standby if self.writes_back && word & DIRTY != 0 => return true,
            State::Standby => {
                let frame = self.pages.frame(page);
                books.frames.unlink(frame);
                self.pages.set(page, State::Absent, 0);
                books.frames.push(frame, Kind::FREE);
                add(&self.counters.prefetched_wasted, u64::from(word & AHEAD != 0));
            }
            State::Absent => {}
            State::Moving | State::Writing if !self.writes_back => return false,
            // The thread queue that reads it finds it absent, and frees its frame.
            State::Reading if !self.writes_back => self.pages.set(page, State::Absent, 0),
            _ => return true,
        }
        // What a private region had written is lost: the source has what counts.
        self.pages.mark(page, 0, SPILLED);
        true
    }
}
