// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the threads that page tell each other their priorities, and whether they want the CPU.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use dwell::Result;

use crate::memory::Area;
use crate::peers::{MARK_AT, Peers};

/// Threads that a board has slots for.
const SLOTS: usize = 128;

/// One thread: 0 where the slot is free.
#[repr(C)]
struct Slot {
    /// The number of its process.
    owner: AtomicU32,
    /// Nice value + 21, and whether it wants the CPU.
    says: AtomicU32,
}

const WANTS_CPU: u32 = 1 << 8;
const NICES: usize = 40;

/// Threads that page, with their nice values, and whether they want the CPU at the moment: from
/// this a thread that has to wait knows whether one of higher priority could have its CPU
/// meanwhile.
///
/// Threads of one process share one board by default; processes share one by naming the same file.
/// A process that may open that file may also shorten it, and a process that then looks at it dies.
/// So the file belongs to one user.
pub struct Board {
    area: Area,
    /// The processes that share it, if it is shared.
    peers: Option<Peers>,
    /// CPUs that this process may use.
    cpus: usize,
}

impl Board {
    /// The calling process's own.
    pub fn of_process() -> Arc<Board> {
        static OWN: OnceLock<Arc<Board>> = OnceLock::new();
        OWN.get_or_init(|| {
            let area = Area::new(1).and_then(|area| {
                area.advise_range(0, 1, libc::MADV_DOFORK)?;
                area.advise_range(0, 1, libc::MADV_WIPEONFORK)?;
                Ok(area)
            });
            let area = area.unwrap_or_else(|_| Area::none());
            Arc::new(Board { area, peers: None, cpus: cpus() })
        })
        .clone()
    }

    /// One that all processes share that name this file; it is made where it is missing.
    ///
    /// # Errors
    /// What the system says of the file; a file that is no board.
    pub fn shared(path: &Path) -> Result<Arc<Board>> {
        let (area, peers) = Peers::open(path, "board", *b"DwBoard1")?;
        let board = Board { area, peers: Some(peers), cpus: cpus() };
        let own = board.number();
        board.free(|owner| owner == own);
        Ok(Arc::new(board))
    }

    /// The number of this process among those that share the board.
    fn number(&self) -> u32 {
        self.peers.as_ref().map_or(1, Peers::number)
    }

    fn is_alive(&self, owner: u32) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.is_alive(owner))
    }

    fn slots(&self) -> &[Slot] {
        if self.area.pages() == 0 {
            return &[];
        }
        // SAFETY: a mapped page that lives as long as the board, of which every value is a slot's;
        // it is only accessed by atomic words.
        unsafe { std::slice::from_raw_parts(self.area.start() as *const Slot, SLOTS) }
    }

    /// How many slots were ever taken, from the first: a fault looks at no others.
    fn taken(&self) -> Option<&AtomicU32> {
        const { assert!((SLOTS + 1) * size_of::<Slot>() <= MARK_AT) };
        let end = self.slots().as_ptr_range().end;
        // SAFETY: the page goes on behind the slots, and is only accessed by atomic words.
        (self.area.pages() > 0).then(|| unsafe { &(*end).owner })
    }

    /// Takes a slot for a thread of this process; without one it is not compared with others.
    pub(crate) fn sit(&self, nice: i8) -> Option<usize> {
        let own = self.number();
        let at = self.slots().iter().position(|slot| {
            let owner = slot.owner.load(Ordering::Relaxed);
            (owner == 0 || !self.is_alive(owner))
                && slot
                    .owner
                    .compare_exchange(owner, own, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        self.taken()?.fetch_max(at as u32 + 1, Ordering::AcqRel);
        self.slots()[at].says.store(says(nice, true), Ordering::Release);
        Some(at)
    }

    pub(crate) fn leave(&self, at: usize) {
        let slot = &self.slots()[at];
        slot.says.store(0, Ordering::Release);
        slot.owner.store(0, Ordering::Release);
    }

    /// Says whether the thread in a slot wants the CPU.
    pub(crate) fn wants_cpu(&self, at: usize, nice: i8, wants: bool) {
        self.slots()[at].says.store(says(nice, wants), Ordering::Release);
    }

    /// The nice value of the thread that could have the CPU of the thread in slot `at` next: of all
    /// others that want one, those of highest priority have the other CPUs, and the next in order
    /// waits. `None` where everyone has one.
    pub(crate) fn next(&self, at: Option<usize>) -> Option<i8> {
        let mut of_nice = [0u16; NICES + 1];
        let mut others = 0;
        let taken = self.taken().map_or(0, |taken| taken.load(Ordering::Acquire) as usize);
        for (slot, its) in self.slots().iter().take(taken).enumerate() {
            let says = its.says.load(Ordering::Relaxed);
            if says & WANTS_CPU != 0 && Some(slot) != at {
                of_nice[((says & 0xff) as usize).min(NICES)] += 1;
                others += 1;
            }
        }
        if others < self.cpus {
            return None;
        }
        let mut before = 0;
        let level = of_nice.iter().position(|count| {
            before += usize::from(*count);
            before >= self.cpus
        })?;
        Some(level as i8 - 21)
    }

    /// Frees the slots of processes that have ended without saying so.
    pub(crate) fn sweep(&self) {
        let own = self.number();
        self.free(|owner| owner != own && !self.is_alive(owner));
    }

    /// Frees the slots of some owners.
    fn free(&self, which: impl Fn(u32) -> bool) {
        for slot in self.slots() {
            let owner = slot.owner.load(Ordering::Relaxed);
            if owner != 0 && which(owner) {
                slot.says.store(0, Ordering::Relaxed);
                let _ = slot.owner.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

fn says(nice: i8, wants: bool) -> u32 {
    (i32::from(nice).clamp(-20, 19) + 21) as u32 | if wants { WANTS_CPU } else { 0 }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The calling thread's nice value.
pub(crate) fn own_nice() -> i8 {
    // SAFETY: asks about the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    nice.clamp(-20, 19) as i8
}

/// The calling thread's id, which no other thread of the machine has while it lives.
pub(crate) fn own_id() -> u32 {
    // SAFETY: asks for a number.
    unsafe { libc::gettid() as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_to_run_is_the_one_for_whom_no_cpu_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::shared(&dir.path().join("board")).unwrap();
        let board = Board { cpus: 2, ..Arc::into_inner(board).unwrap() };
        let me = board.sit(5).unwrap();
        let high = board.sit(-5).unwrap();
        assert_eq!(board.next(Some(me)), None);
        let equal = board.sit(5).unwrap();
        assert_eq!(board.next(Some(me)), Some(5));
        let middle = board.sit(0).unwrap();
        assert_eq!(board.next(Some(me)), Some(0));
        board.wants_cpu(middle, 0, false);
        assert_eq!(board.next(Some(me)), Some(5));
        board.leave(equal);
        assert_eq!(board.next(Some(me)), None);
        board.leave(high);
        board.wants_cpu(middle, 0, true);
        assert_eq!(board.next(Some(me)), None);
    }

    #[test]
    fn processes_see_each_other_and_the_slots_of_the_dead_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let (one, other) = (Board::shared(&path).unwrap(), Board::shared(&path).unwrap());
        one.sit(3).unwrap();
        assert!(other.slots()[0].says.load(Ordering::Relaxed) & WANTS_CPU != 0);
        let ended = Board::shared(&path).unwrap();
        let number = ended.number();
        assert_eq!(ended.sit(0), Some(1));
        other.sweep();
        assert_eq!(one.slots()[1].owner.load(Ordering::Relaxed), number);
        // As where its process is killed: nobody frees its slot.
        drop(ended);
        other.sweep();
        assert_eq!(one.slots()[1].owner.load(Ordering::Relaxed), 0);
        assert_eq!(one.slots()[0].owner.load(Ordering::Relaxed), one.number());
    }
}
