// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all threads of one region share.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dwell::fork::ForkMark;
use dwell::kernel::Kernel;
use dwell::queue::{Action, Io};
use dwell::source::Source;
use dwell::{Error, File, WaitPolicy};

use crate::advice::Said;
use crate::board::Board;
use crate::frames::{Frames, Kind, Run, Taken};
use crate::granule::MOST_PAGES;
use crate::hints::Hints;
use crate::memory::{Area, PAGE_BYTES, is_there};
use crate::pages::{AHEAD, DIRTY, Pages, State};
use crate::stats::{Counters, add};
use crate::thread_queue::ThreadQueue;
use crate::thread_queues::ThreadQueues;
use crate::uffd::Uffd;

/// Thread queues for threads that have none of their own.
pub(crate) const GUESTS: usize = 8;

/// Bytes that are in memory twice at most while pages are copied, beyond the budget.
const MOST_TWICE_BYTES: usize = 16 * PAGE_BYTES;

/// State that one thread at a time changes. The lock is held for bookkeeping alone, never across a
/// system call or an access to the region; outside of handlers, with signals kept out.
#[derive(Debug)]
pub(crate) struct Books {
    pub frames: Frames,
    /// What the program said of pages.
    pub said: Said,
    /// Pages that are pinned.
    pub pinned: u32,
    /// Pages that a sync keeps where they are for the moment.
    pub syncing: u32,
}

impl Books {
    /// Whether frames come back without the caller's doing that can be had then.
    pub fn is_passing(&self) -> bool {
        self.frames.passing() + self.syncing > 0
    }
}

/// One region.
pub(crate) struct Shared {
    pub file: Arc<File>,
    pub uffd: Uffd,
    /// What the program sees, and the frames' places.
    pub area: Area,
    pub pool: Area,
    pub pages: Pages,
    pub books: Mutex<Books>,
    /// Held by the one sync that writes back: of two, the one with the older data could end last.
    pub one_sync: Mutex<()>,
    pub counters: Counters,
    pub hints: Hints,
    /// Length of the source, in bytes.
    pub bytes: u64,
    /// Whether the program may write, and whether the source takes what it wrote.
    pub writes: bool,
    pub writes_back: bool,
    pub spill: Option<Kernel>,
    pub policy: Arc<dyn WaitPolicy>,
    /// Pages that may be in memory.
    pub budget: AtomicU32,
    /// Most pages in a window that is read ahead, as was asked for.
    pub ahead: u32,
    /// Pages that one fault reads, 0 where the accesses decide.
    pub granule: u32,
    pub board: Arc<Board>,
    pub thread_queues: ThreadQueues<ThreadQueue>,
    pub guests: Vec<Mutex<ThreadQueue>>,
    pub copies: bool,
    /// Whether a call of the source goes on whatever signals come: direct I/O on a block device.
    pub deaf: bool,
    /// Whether faults note their stages.
    pub stages: bool,
    pub depth: u32,
    pub mark: ForkMark,
    pub closing: AtomicBool,
    /// Error number of a write that the source refused since the last sync, and its offset.
    pub failed: AtomicU32,
    pub failed_at: AtomicU64,
}

impl Shared {
    pub fn books(frames: Frames) -> Mutex<Books> {
        Mutex::new(Books { frames, said: Said::default(), pinned: 0, syncing: 0 })
    }

    pub fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages that may be in memory at the moment.
    pub fn budget(&self) -> u32 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Most pages in all windows together that are read ahead.
    pub fn ahead_most(&self) -> u32 {
        self.budget() / 4
    }

    /// Most pages in one of them.
    pub fn ahead_limit(&self) -> u32 {
        self.ahead.min(self.ahead_most())
    }

    /// Most pages of a granule.
    pub fn granule_most(&self) -> u32 {
        1 << (self.budget() / 8).clamp(1, MOST_PAGES).ilog2()
    }

    /// Frames kept ready for the next faults; the pages in them have their second chance.
    pub fn ready_target(&self) -> u32 {
        (self.budget() / 8).clamp(1, 4096)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The last byte of a page that the source has, counted from the page's first.
    pub fn bytes_of(&self, page: u32, count: u32) -> usize {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        (self.bytes - offset.min(self.bytes)).min(u64::from(count) * PAGE_BYTES as u64) as usize
    }

    /// A request for the frames' places. Reads ask for whole blocks; a write never goes past the
    /// end.
    pub fn io(
        &self,
        source: &impl Source,
        action: Action,
        page: u32,
        frame: u32,
        part: Part,
    ) -> Io {
        let Part { skip, bytes } = part;
        let align = source.alignment().max(1) as usize;
        let bytes = if action == Action::Read { bytes.next_multiple_of(align) } else { bytes };
        let offset = u64::from(page) * PAGE_BYTES as u64 + skip as u64;
        let memory = self.pool.at(frame as usize) + skip;
        crate::thread_queue::io(action, source.target(), memory, bytes as u32, offset)
    }

    /// Makes a run's places ready to be read into.
    pub fn fill(&self, run: Run) -> Result<(), i32> {
        static ZEROS: [u8; 16 * PAGE_BYTES] = [0; 16 * PAGE_BYTES];
        if !run.hollow {
            return Ok(());
        }
        let mut at = 0;
        let end = run.count as usize * PAGE_BYTES;
        while at < end {
            let bytes = (end - at).min(ZEROS.len());
            let place = self.pool.at(run.first as usize) + at;
            match self.uffd.copy_pages(place, ZEROS.as_ptr() as usize, bytes, false) {
                Ok(()) => at += bytes,
                Err((done, libc::EAGAIN)) => at += done,
                // It is there already.
                Err((done, libc::EEXIST)) => at += done + PAGE_BYTES,
                Err((_, errno)) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Takes up to `want` frames for reading, or says that room must be made first.
    pub fn take(&self, books: &mut Books, want: u32) -> Option<Run> {
        let mut taken = Taken::default();
        let run = books.frames.take(want, &self.pages, &mut taken);
        add(&self.counters.prefetched_wasted, u64::from(taken.wasted));
        run
    }

    /// Takes the frame of the oldest page that was read ahead and not asked for.
    pub fn take_ahead(&self, books: &mut Books) -> Option<Run> {
        let first = books.frames.oldest(Kind::AHEAD)?;
        books.frames.unlink(first);
        self.pages.set(books.frames.page(first), State::Absent, 0);
        add(&self.counters.prefetched_wasted, 1);
        Some(Run { first, count: 1, hollow: false })
    }

    /// As [`Shared::take`], of what is left when no room could be made.
    pub fn take_last(&self, books: &mut Books) -> Option<Run> {
        let mut taken = Taken::default();
        let (run, over) = books.frames.take_last(&self.pages, &mut taken)?;
        add(&self.counters.prefetched_wasted, u64::from(taken.wasted));
        add(&self.counters.over_budget, u64::from(over));
        Some(run)
    }

    /// A page on standby is wanted back: if it had been in the region before, this was its second
    /// chance, and it will stay for longer.
    pub fn asked_again(&self, books: &mut Books, page: u32) {
        let word = self.pages.get(page);
        if State::of(word) == State::Standby && word & AHEAD == 0 {
            add(&self.counters.second_chances, 1);
            books.frames.keep(self.pages.frame(page));
        }
    }

    /// Brings pages that are [`State::Moving`] and in frames into the region. Those that cannot
    /// come in stay beside it. The pages get sorted. The error is that of the page `wanted`.
    pub fn install(&self, pages: &mut [u32], class: u8, wanted: u32) -> Result<(), i32> {
        pages.sort_unstable();
        let mut failed = Ok(());
        let mut at = 0;
        while at < pages.len() {
            let run = self.run_of(&pages[at..]);
            let dirty = self.pages.get(pages[at]) & DIRTY;
            let result = self.bring_in(pages[at], run as u32, dirty != 0);
            let came = result.map_or_else(|(came, _)| came as usize, |()| run);
            let mut books = self.lock();
            for page in &pages[at..at + came] {
                let frame = self.pages.frame(*page);
                self.pages.set(*page, State::Present, 0);
                books.frames.hold(frame, *page, Kind::present(class));
            }
            if let Err((_, errno)) = result {
                let page = pages[at + came];
                let frame = self.pages.frame(page);
                self.pages.set(page, State::Standby, dirty);
                let kind = if dirty != 0 { Kind::DIRTY } else { Kind::STANDBY };
                books.frames.hold(frame, page, kind);
                if page == wanted {
                    failed = Err(errno);
                }
                at += 1;
            }
            at += came;
        }
        failed
    }

    /// How many of these pages follow each other in the region and in the frames.
    pub fn run_of(&self, pages: &[u32]) -> usize {
        let (page, frame) = (pages[0], self.pages.frame(pages[0]));
        let dirty = self.pages.get(page) & DIRTY;
        (1..pages.len())
            .find(|at| {
                let step = *at as u32;
                pages[*at] != page + step
                    || self.pages.frame(page + step) != frame + step
                    || self.pages.get(page + step) & DIRTY != dirty
            })
            .unwrap_or(pages.len())
    }

    /// Frames to region. What came before an error is told in pages.
    fn bring_in(&self, page: u32, count: u32, dirty: bool) -> Result<(), (u32, i32)> {
        let frame = self.pages.frame(page);
        // A moved page is not protected against writing until the kernel is asked to, and a write
        // until then would go unnoticed. A copied page is protected from the beginning.
        let copies = self.copies || self.writes && !dirty;
        let to = self.area.at(page as usize);
        let from = self.pool.at(frame as usize);
        self.transfer(to, from, count, copies, self.writes && !dirty, Some(frame))
    }

    /// Region to frames.
    pub fn take_out(&self, page: u32, frame: u32, count: u32) -> Result<(), (u32, i32)> {
        let to = self.pool.at(frame as usize);
        let from = self.area.at(page as usize);
        let done = self.transfer(to, from, count, self.copies, false, None);
        if self.copies {
            let moved = done.map_or_else(|(moved, _)| moved, |()| count);
            if moved > 0 {
                let _ = self.area.advise_range(page as usize, moved as usize, libc::MADV_DONTNEED);
            }
        }
        done
    }

    fn transfer(
        &self,
        to: usize,
        from: usize,
        count: u32,
        copies: bool,
        protected: bool,
        from_frame: Option<u32>,
    ) -> Result<(), (u32, i32)> {
        let (mut at, end) = (0, count as usize * PAGE_BYTES);
        let mut copies = copies;
        let mut patience = 64;
        let mut result = Ok(());
        while at < end {
            // A copied page is in memory twice until its frame gives its own up.
            let bytes = (end - at).min(if copies { MOST_TWICE_BYTES } else { usize::MAX });
            let moved = match copies {
                true => self.uffd.copy_pages(to + at, from + at, bytes, protected),
                false => self.uffd.move_pages(to + at, from + at, bytes),
            };
            let (done, errno) = match moved {
                Ok(()) => (bytes, 0),
                Err(stopped) => stopped,
            };
            if let (true, Some(frame)) = (copies && done > 0, from_frame) {
                // The frame's memory is in the region now, as if it had been moved.
                let first = frame as usize + at / PAGE_BYTES;
                let _ = self.pool.advise_range(first, done / PAGE_BYTES, libc::MADV_DONTNEED);
            }
            at += done;
            match errno {
                0 => {}
                libc::EAGAIN if patience > 0 || done > 0 => patience -= i32::from(done == 0),
                // A device is not quite done with it; it is in a moment.
                libc::EBUSY if patience > 0 => patience -= 1,
                // Having met another's lock, Linux 6.18 tries a page again that it has moved
                // already.
                libc::EEXIST if !copies && !is_there(from + at) && is_there(to + at) => {
                    at += PAGE_BYTES;
                }
                // It will not be moved: shared with a child from before, say.
                libc::EBUSY if !copies && from_frame.is_some() => copies = true,
                errno => {
                    result = Err(((at / PAGE_BYTES) as u32, errno));
                    break;
                }
            }
        }
        result
    }

    /// Whether a page that counts as present is not there: the program itself has given it up, by
    /// `madvise` say. It is absent then, and read again when it is wanted.
    pub fn is_lost(&self, page: u32) -> bool {
        let address = self.area.at(page as usize);
        if !self.uffd.is_empty(address) {
            return false;
        }
        // Nobody moves it while it is looked at again.
        let mut books = self.lock();
        if self.pages.state(page) != State::Present {
            return true;
        }
        let frame = self.pages.frame(page);
        let kind = books.frames.kind(frame);
        books.frames.unlink(frame);
        self.pages.set(page, State::Moving, 0);
        drop(books);
        let lost = self.uffd.is_empty(address);
        let mut books = self.lock();
        if lost {
            self.pages.set(page, State::Absent, 0);
            books.frames.hollow(frame);
        } else {
            self.pages.set(page, State::Present, 0);
            books.frames.hold(frame, page, kind);
        }
        lost
    }

    /// Notes a write that the source refused, for the next sync to tell.
    pub fn write_failed(&self, page: u32, errno: i32) {
        add(&self.counters.write_errors, 1);
        self.failed_at.store(u64::from(page) * PAGE_BYTES as u64, Ordering::Relaxed);
        self.failed.store(errno as u32, Ordering::Release);
    }

    /// The write that was refused since this was last asked.
    pub fn taken_failure(&self) -> Option<Error> {
        let errno = self.failed.swap(0, Ordering::AcqRel);
        (errno != 0).then(|| {
            let at = self.failed_at.load(Ordering::Relaxed);
            let source = std::io::Error::from_raw_os_error(errno as i32);
            Error::io("writing back", self.path(), Some(at), source)
        })
    }

    /// Whether the calling process is the one that opened the region.
    pub fn is_here(&self) -> bool {
        self.mark.same_process()
    }
}

/// A part of a request that covers several pages, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub skip: usize,
    pub bytes: usize,
}
