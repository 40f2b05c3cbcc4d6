// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the threads that page tell each other their priorities, and whether they want the CPU.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use dwell::{Error, Result};

use crate::memory::{Area, PAGE_BYTES};

/// Threads that a board has seats for.
const SEATS: usize = 128;

/// One thread: 0 where the seat is free.
#[repr(C)]
struct Seat {
    process: AtomicU32,
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
            Arc::new(Board { area: area.unwrap_or_else(|_| Area::none()), cpus: cpus() })
        })
        .clone()
    }

    /// One that all processes share that name this file; it is made where it is missing.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn shared(path: &Path) -> Result<Arc<Board>> {
        let failed = |action| move |error| Error::io(action, path, None, error);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed("opening the board"))?;
        file.set_len(PAGE_BYTES as u64).map_err(failed("sizing the board"))?;
        let area = Area::of_file(file.as_raw_fd(), PAGE_BYTES, true, true)
            .map_err(failed("mapping the board"))?;
        Ok(Arc::new(Board { area, cpus: cpus() }))
    }

    fn seats(&self) -> &[Seat] {
        if self.area.pages() == 0 {
            return &[];
        }
        // SAFETY: a mapped page that lives as long as the board, of which every value is a seat's;
        // it is only accessed by atomic words.
        unsafe { std::slice::from_raw_parts(self.area.start() as *const Seat, SEATS) }
    }

    /// How many seats were ever taken, from the first: a fault looks at no others.
    fn taken(&self) -> Option<&AtomicU32> {
        const { assert!((SEATS + 1) * size_of::<Seat>() <= PAGE_BYTES) };
        let end = self.seats().as_ptr_range().end;
        // SAFETY: the page goes on behind the seats, and is only accessed by atomic words.
        (self.area.pages() > 0).then(|| unsafe { &(*end).process })
    }

    /// Takes a seat for a thread of this process; without one it is not compared with others.
    pub(crate) fn sit(&self, nice: i8) -> Option<usize> {
        let own = std::process::id();
        let at = self.seats().iter().position(|seat| {
            let process = seat.process.load(Ordering::Relaxed);
            (process == 0 || !alive(process))
                && seat
                    .process
                    .compare_exchange(process, own, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        })?;
        self.taken()?.fetch_max(at as u32 + 1, Ordering::AcqRel);
        self.seats()[at].says.store(says(nice, true), Ordering::Release);
        Some(at)
    }

    pub(crate) fn leave(&self, at: usize) {
        let seat = &self.seats()[at];
        seat.says.store(0, Ordering::Release);
        seat.process.store(0, Ordering::Release);
    }

    /// Says whether the thread in a seat wants the CPU.
    pub(crate) fn wants_cpu(&self, at: usize, nice: i8, wants: bool) {
        self.seats()[at].says.store(says(nice, wants), Ordering::Release);
    }

    /// The nice value of the thread that could have the CPU of the thread in seat `at` next: of all
    /// others that want one, those of highest priority have the other CPUs, and the next in order
    /// waits. `None` where everyone has one.
    pub(crate) fn next(&self, at: Option<usize>) -> Option<i8> {
        let mut of_nice = [0u16; NICES + 1];
        let mut others = 0;
        let taken = self.taken().map_or(0, |taken| taken.load(Ordering::Acquire) as usize);
        for (seat, its) in self.seats().iter().take(taken).enumerate() {
            let says = its.says.load(Ordering::Relaxed);
            if says & WANTS_CPU != 0 && Some(seat) != at {
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

    /// Frees the seats of processes that have ended without saying so.
    pub(crate) fn sweep(&self) {
        let own = std::process::id();
        for seat in self.seats() {
            let process = seat.process.load(Ordering::Relaxed);
            if process != 0 && process != own && !alive(process) {
                seat.says.store(0, Ordering::Relaxed);
                let _ =
                    seat.process.compare_exchange(process, 0, Ordering::AcqRel, Ordering::Relaxed);
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

pub(crate) fn alive(process: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let rc = unsafe { libc::kill(process as libc::pid_t, 0) };
    rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
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
        let board = Board { area: Arc::into_inner(board).unwrap().area, cpus: 2 };
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
    fn processes_see_each_other_and_the_seats_of_the_dead_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("board");
        let (one, other) = (Board::shared(&path).unwrap(), Board::shared(&path).unwrap());
        one.sit(3).unwrap();
        assert!(other.seats()[0].says.load(Ordering::Relaxed) & WANTS_CPU != 0);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        other.seats()[1].process.store(child.id(), Ordering::Relaxed);
        other.seats()[1].says.store(says(0, true), Ordering::Relaxed);
        child.wait().unwrap();
        other.sweep();
        assert_eq!(one.seats()[1].process.load(Ordering::Relaxed), 0);
        assert_eq!(one.seats()[0].process.load(Ordering::Relaxed), std::process::id());
    }
}
