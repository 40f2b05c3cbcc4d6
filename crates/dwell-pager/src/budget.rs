// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that many regions share, of one process or of several.
//!
//! Each region has a slot in a page that all processes of the budget map. It says there how much it
//! could use, how much it holds, and whether it faults. One process decides what each is granted:
//! that of the first slot, or another where that is late. A thread of each process sees to it that
//! its regions keep to that.
#![allow(unsafe_code)]

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dwell::fork::{ForkMark, OfProcess};
use dwell::{Error, Result};

use crate::group::{self, usual_budget_bytes};
use crate::mask::Quiet;
use crate::memory::{Area, PAGE_BYTES};
use crate::peers::{MARK_AT, Peers};
use crate::shared::Shared;
use crate::shares::{Claim, LEAST_PAGES, grants, shares, some_of, under_pressure};
use crate::signal;

/// Regions that a budget has slots for.
const SLOTS: usize = 160;
/// How often a process sees to its regions.
const ROUND: Duration = Duration::from_millis(100);
/// How often the kernel is asked how much processes wait for memory.
const PRESSURE: Duration = Duration::from_secs(1);
/// After so long without a decision, any process decides.
const LATE: Duration = Duration::from_millis(500);
/// How long a pin waits for others to give memory up, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);

/// One region; all zeros where the slot is free.
#[repr(C)]
struct Slot {
    /// The number of its process.
    owner: AtomicU32,
    /// Pages that it gets in any case, for its pins; that it can use, holds, and may have.
    least: AtomicU32,
    pages: AtomicU32,
    held: AtomicU32,
    granted: AtomicU32,
    /// Nice value + 20, and whether it faults.
    says: AtomicU32,
}

const ACTIVE: u32 = 1 << 8;

/// What was decided last, behind the slots.
#[repr(C)]
struct Last {
    /// Pages for all; 0 where nothing was decided yet.
    total: AtomicU32,
    /// Decisions so far.
    count: AtomicU32,
}

/// Memory for pages that regions share: by priority, by who faults, and by how much the machine
/// has. Under memory pressure (`/proc/pressure/memory`, or that of the control group) there is less
/// for all, and without it again as much as was asked for.
///
/// A process that may open the file of a shared budget may also shorten it, and a process that then
/// looks at it dies. So the file belongs to one user.
pub struct Budget {
    area: Area,
    /// The processes that share it, if it is shared.
    peers: Option<Peers>,
    /// Pages that were asked for.
    asked: u32,
    own: Mutex<Own>,
    wake: Condvar,
    mark: ForkMark,
}

/// What one process knows.
#[derive(Default)]
struct Own {
    regions: Vec<Member>,
    /// Whether the thread runs.
    runs: bool,
    pressure_at: Option<Instant>,
    /// Decisions of all processes when there was a new one last, and when that was.
    decided: Option<(u32, Instant)>,
}

struct Member {
    region: Weak<Shared>,
    slot: usize,
    /// Faults that had waited when it was last looked at.
    waited: u64,
}

impl Budget {
    /// So many bytes for the regions of this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: usize) -> Result<Arc<Budget>> {
        let path = Path::new("budget");
        let area = Area::new(1).and_then(|area| {
            // A forked child drops it too, and has one of its own to unmap.
            area.advise_range(0, 1, libc::MADV_DOFORK)?;
            area.advise_range(0, 1, libc::MADV_WIPEONFORK)?;
            Ok(area)
        });
        let area = area.map_err(|error| Error::io("mapping", path, None, error))?;
        Budget::over(area, None, bytes, path)
    }

    /// Half of the memory that can be had now, for all regions of this process for which nobody
    /// names a budget: each with such a half of its own, two would have all.
    ///
    /// # Errors
    /// As [`Budget::new`].
    pub(crate) fn usual() -> Result<Arc<Budget>> {
        static USUAL: OfProcess<Weak<Budget>> = OfProcess::new();
        let mut usual = USUAL.lock();
        if let Some(budget) = usual.upgrade().filter(|budget| budget.mark.same_process()) {
            return Ok(budget);
        }
        let budget = Budget::new(usual_budget_bytes())?;
        *usual = Arc::downgrade(&budget);
        Ok(budget)
    }

    /// So many bytes for the regions of all processes that name this file; it is made where it is
    /// missing. All name the same number of bytes.
    ///
    /// # Errors
    /// What the system says of the file; a file that is no budget.
    pub fn shared(path: impl AsRef<Path>, bytes: usize) -> Result<Arc<Budget>> {
        let path = path.as_ref();
        let (area, peers) = Peers::open(path, "budget", *b"DwBudge2")?;
        let budget = Budget::over(area, Some(peers), bytes, path)?;
        for slot in budget.slots() {
            // The process that had this number before has ended.
            let (own, free) = (budget.number(), 0);
            let _ = slot.owner.compare_exchange(own, free, Ordering::AcqRel, Ordering::Relaxed);
        }
        Ok(budget)
    }

    fn over(area: Area, peers: Option<Peers>, bytes: usize, path: &Path) -> Result<Arc<Budget>> {
        let asked = u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX);
        if asked < LEAST_PAGES {
            let least = LEAST_PAGES as usize * PAGE_BYTES;
            let what = format!("a budget of {bytes} bytes: no region works with less than {least}");
            return Err(Error::invalid(path, what));
        }
        let mark = ForkMark::new().map_err(|error| Error::io("mapping", path, None, error))?;
        let (own, wake) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Budget { area, peers, asked, own, wake, mark }))
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> usize {
        self.asked as usize * PAGE_BYTES
    }

    /// Bytes that all regions together may have now.
    pub fn bytes_now(&self) -> usize {
        self.total() as usize * PAGE_BYTES
    }

    /// The number of this process among those that share the budget.
    fn number(&self) -> u32 {
        self.peers.as_ref().map_or(1, Peers::number)
    }

    fn is_alive(&self, owner: u32) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.is_alive(owner))
    }

    fn slots(&self) -> &[Slot] {
        const { assert!(SLOTS * size_of::<Slot>() + size_of::<Last>() <= MARK_AT) };
        // SAFETY: a mapped page that lives as long as the budget, of which every value is a slot's;
        // it is only accessed by atomic words.
        unsafe { std::slice::from_raw_parts(self.area.start() as *const Slot, SLOTS) }
    }

    fn last(&self) -> &Last {
        let end = self.area.start() + SLOTS * size_of::<Slot>();
        // SAFETY: the page goes on behind the slots, and is only accessed by atomic words.
        unsafe { &*(end as *const Last) }
    }

    fn total(&self) -> u32 {
        match self.last().total.load(Ordering::Relaxed) {
            0 => self.asked,
            now => now.min(self.asked),
        }
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a region a slot, and at once what memory is free.
    pub(crate) fn join(self: &Arc<Budget>, region: &Arc<Shared>, nice: i8) -> Result<()> {
        let refuse = |what: &str| Err(Error::invalid(region.path(), what));
        if !self.mark.same_process() {
            return refuse(
                "the budget belongs to the process that opened it; a forked child opens one of its own",
            );
        }
        let _quiet = Quiet::new();
        let mut own = self.own();
        let number = self.number();
        let slot = self.slots().iter().position(|slot| {
            let before = slot.owner.load(Ordering::Relaxed);
            (before == 0 || !self.is_alive(before))
                && slot
                    .owner
                    .compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        });
        let Some(at) = slot else { return refuse("too many regions share the budget") };
        let slot = &self.slots()[at];
        slot.least.store(LEAST_PAGES, Ordering::Relaxed);
        slot.held.store(0, Ordering::Relaxed);
        slot.granted.store(0, Ordering::Relaxed);
        slot.says.store((i32::from(nice.clamp(-20, 19)) + 20) as u32 | ACTIVE, Ordering::Relaxed);
        slot.pages.store(region.pages.count(), Ordering::Release);
        own.regions.push(Member { region: Arc::downgrade(region), slot: at, waited: 0 });
        // The first tells the others of their new shares, and then theirs is free.
        (0..2).for_each(|_| self.round(&mut own));
        if !own.runs
            && let Err(error) = self.start(&mut own)
        {
            self.forget(&mut own, |other| std::ptr::eq(other, Arc::as_ptr(region)));
            return Err(Error::io("starting the thread of the budget", region.path(), None, error));
        }
        Ok(())
    }

    /// Takes a region's slot back.
    pub(crate) fn leave(&self, region: &Shared) {
        if !self.mark.same_process() {
            return;
        }
        let _quiet = Quiet::new();
        let mut own = self.own();
        self.forget(&mut own, |other| std::ptr::eq(other, region));
        self.wake.notify_all();
    }

    /// Counts pages of a region as pinned, and has other regions give memory up. Where they take
    /// longer than a second, the region goes beyond its grant.
    ///
    /// # Errors
    /// More than the budget can hold beside what other regions have pinned.
    pub(crate) fn pin(&self, region: &Shared, pages: &Range<u32>) -> Result<()> {
        let mut own = self.own();
        // Pins that are gone by now are in nobody's way.
        for member in &own.regions {
            if let Some(region) = member.region.upgrade() {
                region.tell(&self.slots()[member.slot]);
            }
        }
        let is_it = |member: &&Member| std::ptr::eq(member.region.as_ptr(), region);
        let Some(at) = own.regions.iter().find(is_it).map(|member| member.slot) else {
            return Err(Error::invalid(region.path(), "the region has left its budget"));
        };
        let slot = &self.slots()[at];
        let needed = {
            let mut books = region.lock();
            let new = region.unpinned(pages);
            let needed = region.least(books.pinned + new);
            // Others see this before it is compared with theirs: of two that pin at once, one
            // notices at least.
            let before = slot.least.swap(needed, Ordering::SeqCst);
            let others = self.live().filter(|other| !std::ptr::eq(*other, slot));
            let others = others.map(|other| u64::from(other.least.load(Ordering::SeqCst))).sum();
            if u64::from(needed) + others > self.asked.into() {
                slot.least.store(before, Ordering::SeqCst);
                return Err(self.too_many(region, new, needed, others));
            }
            region.count_pins(&mut books, pages);
            if needed <= books.frames.budget() {
                return Ok(());
            }
            needed
        };
        let until = Instant::now() + PATIENCE;
        let mut step = Duration::ZERO;
        loop {
            self.round(&mut own);
            if slot.granted.load(Ordering::Acquire) >= needed || Instant::now() >= until {
                return Ok(());
            }
            let waited = self.wake.wait_timeout(own, step);
            own = waited.unwrap_or_else(PoisonError::into_inner).0;
            step = STEP;
        }
    }

    fn too_many(&self, region: &Shared, new: u32, needed: u32, others: u64) -> Error {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        let what = format!(
            "pinning {} bytes more needs {} of the budget; the budget has {} bytes, and other regions need {} of \
             them: pin less at once, drop pins, or make the budget larger",
            bytes(new.into()),
            bytes(needed.into()),
            self.bytes(),
            bytes(others),
        );
        Error::invalid(region.path(), what)
    }

    /// The slots of regions whose processes live.
    fn live(&self) -> impl Iterator<Item = &Slot> {
        let number = self.number();
        self.slots().iter().filter(move |slot| match slot.owner.load(Ordering::Acquire) {
            0 => false,
            owner => owner == number || self.is_alive(owner),
        })
    }

    /// Frees the slots of regions that are gone, and of those that this says of.
    fn forget(&self, own: &mut Own, which: impl Fn(*const Shared) -> bool) {
        own.regions.retain(|member| {
            let stays = member.region.strong_count() > 0 && !which(member.region.as_ptr());
            if !stays {
                self.slots()[member.slot].owner.store(0, Ordering::Release);
            }
            stays
        });
    }

    fn start(self: &Arc<Budget>, own: &mut Own) -> std::io::Result<()> {
        let budget = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("dwell-budget".into());
        thread.spawn(move || {
            while let Some(budget) = budget.upgrade() {
                let own = budget.own();
                let (mut own, _) =
                    budget.wake.wait_timeout(own, ROUND).unwrap_or_else(PoisonError::into_inner);
                if own.regions.is_empty() {
                    own.runs = false;
                    return;
                }
                budget.look(&mut own);
                budget.round(&mut own);
            }
        })?;
        own.runs = true;
        Ok(())
    }

    /// Says what the regions of this process hold, and whether they fault.
    fn look(&self, own: &mut Own) {
        self.forget(own, |_| false);
        for member in &mut own.regions {
            let slot = &self.slots()[member.slot];
            let Some(region) = member.region.upgrade() else { continue };
            let waited = region.counters.reads_awaited.load(Ordering::Relaxed)
                + region.counters.rescued.load(Ordering::Relaxed);
            let nice = slot.says.load(Ordering::Relaxed) & !ACTIVE;
            let active = if waited > member.waited { ACTIVE } else { 0 };
            member.waited = waited;
            slot.says.store(nice | active, Ordering::Relaxed);
            region.tell(slot);
        }
    }

    /// Looks after the regions of this process, and after all where it decides.
    fn round(&self, own: &mut Own) {
        let taken: Vec<&Slot> = self.live().collect();
        let first = taken.first().map(|slot| slot.owner.load(Ordering::Relaxed));
        if first == Some(self.number()) {
            self.decide(own, &taken);
        } else if let Some(late) = self.is_late(own) {
            self.decide(own, &taken);
            // It goes on deciding until another process does.
            own.decided = Some((self.last().count.load(Ordering::Acquire), late));
        }
        for member in &own.regions {
            if let Some(region) = member.region.upgrade() {
                let slot = &self.slots()[member.slot];
                region.keep_to(slot.granted.load(Ordering::Acquire).max(LEAST_PAGES));
                region.tell(slot);
            }
        }
    }

    /// Since when no other process has decided, if that is some rounds ago: that of the first slot
    /// is stopped, say. Of several that notice at once, one decides.
    fn is_late(&self, own: &mut Own) -> Option<Instant> {
        let count = &self.last().count;
        let seen = count.load(Ordering::Acquire);
        match own.decided {
            Some((before, at)) if before == seen && at.elapsed() >= LATE => {
                let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
                let next = seen.wrapping_add(1);
                count.compare_exchange(seen, next, acquire, relaxed).is_ok().then_some(at)
            }
            Some((before, _)) if before == seen => None,
            _ => {
                own.decided = Some((seen, Instant::now()));
                None
            }
        }
    }

    fn decide(&self, own: &mut Own, taken: &[&Slot]) {
        self.last().count.fetch_add(1, Ordering::AcqRel);
        if own.pressure_at.is_none_or(|at| at.elapsed() >= PRESSURE) {
            own.pressure_at = Some(Instant::now());
            if let Some(pressure) = group::pressure().as_deref().and_then(some_of) {
                self.last()
                    .total
                    .store(under_pressure(self.total(), self.asked, pressure), Ordering::Relaxed);
            }
        }
        let claim = |slot: &&Slot| {
            let says = slot.says.load(Ordering::Relaxed);
            Claim {
                least: slot.least.load(Ordering::Relaxed),
                pages: slot.pages.load(Ordering::Relaxed),
                nice: ((says & 0xff) as i32 - 20) as i8,
                active: says & ACTIVE != 0,
            }
        };
        let claims: Vec<Claim> = taken.iter().map(claim).collect();
        let has: Vec<(u32, u32)> = taken
            .iter()
            .map(|slot| (slot.granted.load(Ordering::Relaxed), slot.held.load(Ordering::Acquire)))
            .collect();
        let grants = grants(self.total(), &shares(self.total(), &claims), &has);
        for (slot, grant) in taken.iter().zip(grants) {
            slot.granted.store(grant, Ordering::Release);
        }
    }
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Tells the owner of the budget how many pages are in memory, and how many have to be.
    fn tell(&self, slot: &Slot) {
        let _quiet = Quiet::new();
        let books = self.lock();
        slot.least.store(self.least(books.pinned), Ordering::Relaxed);
        slot.held.store(books.frames.in_memory(), Ordering::Release);
    }

    /// Has the region keep to so many pages, moving out what is beyond. Pinned pages stay, and a
    /// few to come and go by.
    fn keep_to(&self, pages: u32) {
        let quiet = Quiet::new();
        let beyond = {
            let mut books = self.lock();
            let pages = pages.max(self.least(books.pinned)).min(self.least(self.pages.count()));
            books.frames.set_budget(pages);
            self.budget.store(pages, Ordering::Relaxed);
            books.frames.in_memory() > pages
        };
        if beyond {
            signal::with_some_queue(self, quiet.mask(), |thread_queue| thread_queue.shrink(self));
        }
    }
}
