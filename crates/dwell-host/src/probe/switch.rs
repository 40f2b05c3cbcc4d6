// SPDX-License-Identifier: MIT OR Apache-2.0
//! What blocking costs: direct, indirect, and the self switch (SmartCon §3).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use dwell_policy::Ns;

use dwell::monitor::sys;
use dwell::{arch, clock};

/// Process counts of the pipe ring.
pub const RING_PROCESSES: [usize; 6] = [2, 4, 8, 12, 16, 20];
/// Working sets of the indirect cost, in bytes.
pub const WORKING_SETS: [usize; 9] =
    [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 5 << 20, 10 << 20];

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: pipe2 writes two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were just opened and belong to nobody else.
        Ok(unsafe {
            Pipe { read: OwnedFd::from_raw_fd(ends[0]), write: OwnedFd::from_raw_fd(ends[1]) }
        })
    }
}

/// Moves one token byte; `false` when the other side is gone.
fn take(fd: i32) -> bool {
    let mut token = 0u8;
    // SAFETY: one live byte.
    unsafe { libc::read(fd, (&raw mut token).cast(), 1) == 1 }
}

fn give(fd: i32) -> bool {
    let token = 1u8;
    // SAFETY: one live byte.
    unsafe { libc::write(fd, (&raw const token).cast(), 1) == 1 }
}

/// CPUs that the calling thread may use.
pub fn allowed_cpus() -> Vec<usize> {
    sys::affinity(0)
        .map_or_else(|_| vec![0], |cpus| cpus.into_iter().map(|cpu| cpu as usize).collect())
}

/// Confines the calling thread to `cpus`; an empty list changes nothing.
pub fn pin(cpus: &[usize]) {
    if cpus.is_empty() {
        return;
    }
    // SAFETY: a zeroed set is empty, the indices come from `allowed_cpus`.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Confines a thread for as long as it lives, then gives the former CPUs back.
struct Pinned(Vec<usize>);

impl Pinned {
    fn to(cpu: usize) -> Self {
        let before = allowed_cpus();
        pin(&[cpu]);
        Pinned(before)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        pin(&self.0);
    }
}

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Sums it from end to end, as in SmartCon §3.2. Prefetchers see it coming and hide much of
    /// the reload.
    Sequential,
    /// Visits each cache line once in random order, where each line names the next: nothing can
    /// be fetched ahead, so the reload shows.
    Random,
}

/// Words of a cache line.
const LINE: usize = 8;

impl Access {
    /// A working set of `bytes` that can be touched in this way: for [`Access::Random`] one cycle
    /// through all its lines.
    pub fn working_set(self, bytes: usize) -> Vec<u64> {
        let mut words = vec![1u64; bytes / 8];
        let lines = words.len() / LINE;
        if self == Access::Sequential || lines == 0 {
            return words;
        }
        (0..lines).for_each(|line| words[line * LINE] = (line * LINE) as u64);
        // Sattolo's shuffle leaves exactly one cycle.
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for line in (1..lines).rev() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            words.swap(line * LINE, (random % line as u64) as usize * LINE);
        }
        words
    }

    /// Touches all of it.
    pub fn touch(self, words: &[u64]) -> u64 {
        let words = std::hint::black_box(words);
        match self {
            Access::Sequential => {
                std::hint::black_box(words.iter().fold(0, |sum, x| sum.wrapping_add(*x)))
            }
            Access::Random => {
                let lines = words.len() / LINE;
                std::hint::black_box((0..lines).fold(0, |at, _| words[at as usize]))
            }
        }
    }
}

/// A child process of the ring: killed and reaped when dropped.
struct Child(libc::pid_t);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child that this process started and has not reaped.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// In a process that was just forked: lets it end with `parent`, also if that ended meanwhile.
///
/// # Safety
/// Only in a child after a fork: it may exit at once.
unsafe fn end_with(parent: u32) {
    // SAFETY: system calls with numbers; `_exit` runs nothing of the parent's.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if std::os::unix::process::parent_id() != parent {
            libc::_exit(1);
        }
    }
}

/// Time per hop of a token round a ring of `processes`, each of which touches a working set of its
/// own at its turn; all on one CPU, so that every hop is a context switch.
fn ring_hop(processes: usize, working_set_bytes: usize, hops: usize) -> io::Result<Ns> {
    let _pinned = Pinned::to(allowed_cpus()[0]);
    let pipes = (0..processes).map(|_| Pipe::new()).collect::<io::Result<Vec<_>>>()?;
    let access = Access::Sequential;
    let array = access.working_set(working_set_bytes);
    let here = std::process::id();
    let mut children = Vec::new();
    for at in 1..processes {
        let (from, to) =
            (pipes[at].read.as_raw_fd(), pipes[(at + 1) % processes].write.as_raw_fd());
        // SAFETY: the child calls nothing that could need a lock held by another thread of the
        // parent at this moment: it maps, reads, writes and exits.
        match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: this process was just forked, and gets a private mapping of that length,
                // which is never unmapped.
                let own = unsafe {
                    end_with(here);
                    let memory = libc::mmap(
                        std::ptr::null_mut(),
                        working_set_bytes.max(4096),
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                        -1,
                        0,
                    );
                    if memory == libc::MAP_FAILED {
                        libc::_exit(1);
                    }
                    std::slice::from_raw_parts_mut(memory.cast::<u64>(), working_set_bytes / 8)
                };
                own.copy_from_slice(&array);
                while take(from) {
                    std::hint::black_box(access.touch(own));
                    if !give(to) {
                        break;
                    }
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) }
            }
            pid => children.push(Child(pid)),
        }
    }
    let (from, to) = (pipes[0].read.as_raw_fd(), pipes[1 % processes].write.as_raw_fd());
    let rounds = (hops / processes).max(4);
    let lap = |rounds: usize| -> io::Result<Ns> {
        let started = clock::now();
        for _ in 0..rounds {
            std::hint::black_box(access.touch(&array));
            if !give(to) || !take(from) {
                return Err(io::Error::other("a process of the switch-cost ring died"));
            }
        }
        Ok((clock::now() - started) / (rounds * processes) as Ns)
    };
    lap(2)?;
    let mut laps = (0..5).map(|_| lap(rounds)).collect::<io::Result<Vec<_>>>()?;
    laps.sort_unstable();
    Ok(laps[laps.len() / 2])
}

/// Direct cost of a context switch by a token round a ring of pipes, less what the pipe itself
/// costs one process: in nanoseconds (SmartCon §3.1, lmbench's method).
///
/// # Errors
/// No process or pipe could be made.
pub fn direct(processes: usize) -> io::Result<Ns> {
    let alone = ring_hop(1, 0, 2_000)?;
    Ok(ring_hop(processes.max(2), 0, 4_000)?.saturating_sub(alone))
}

/// Cost of a context switch between two processes that each sum `working_set_bytes` at their turn,
/// less what pipe and sum cost one process alone: in nanoseconds, direct cost included (SmartCon
/// §3.2).
///
/// # Errors
/// No process or pipe could be made.
pub fn indirect(working_set_bytes: usize) -> io::Result<Ns> {
    let hops = (20_000_000 / working_set_bytes.max(1)).clamp(12, 600);
    let alone = ring_hop(1, working_set_bytes, hops)?;
    Ok(ring_hop(2, working_set_bytes, hops)?.saturating_sub(alone))
}

/// Cost of blocking with nothing else to run: block, idle, wake (SmartCon §3.3, the self switch),
/// in nanoseconds. Two threads on two CPUs hand a word to and fro, once spinning and once
/// sleeping on it; the difference of a hand-over is the cost. `None` with a single CPU.
pub fn self_switch() -> Option<Ns> {
    let cpus = allowed_cpus();
    let (&here, &there) = (cpus.first()?, cpus.get(1)?);
    let spinning = hand_over(here, there, 4_000, false);
    let sleeping = hand_over(here, there, 1_000, true);
    Some(sleeping.saturating_sub(spinning))
}

/// Median time from one CPU writing a shared word until another has answered, halved: the cost of
/// a cache line crossing, in nanoseconds. `None` with a single CPU.
pub fn cross_core() -> Option<Ns> {
    let cpus = allowed_cpus();
    let (&here, &there) = (cpus.first()?, cpus.get(1)?);
    Some(hand_over(here, there, 4_000, false))
}

fn hand_over(here: usize, there: usize, rounds: u32, sleeping: bool) -> Ns {
    let word = AtomicU32::new(0);
    let futex = |operation: libc::c_int, value: u32| {
        // SAFETY: the word outlives both threads.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, 0usize) };
    };
    let await_word = |seen: u32| {
        while word.load(Ordering::Acquire) == seen {
            if sleeping {
                futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, seen);
            } else {
                arch::relax();
            }
        }
    };
    let pass = |value: u32| {
        word.store(value, Ordering::Release);
        if sleeping {
            futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    };
    let mut trips = Vec::with_capacity(rounds as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(&[there]);
            for round in 0..rounds {
                await_word(round * 2);
                pass(round * 2 + 2);
            }
        });
        let _pinned = Pinned::to(here);
        for round in 0..rounds {
            let started = clock::now();
            pass(round * 2 + 1);
            await_word(round * 2 + 1);
            trips.push(clock::now() - started);
        }
    });
    trips.sort_unstable();
    trips[trips.len() / 2] / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_processes_passes_the_token_and_leaves_no_child() {
        direct(3).unwrap();
        let flags = libc::WNOHANG | libc::__WNOTHREAD;
        // SAFETY: asks for any child of this thread without waiting.
        let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), flags) };
        assert_eq!(left, -1, "a child of the ring is still there");
    }

    #[test]
    fn a_process_of_the_ring_whose_parent_is_gone_ends() {
        // SAFETY: the child makes system calls and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: this is a child after a fork. Process 0 is nobody's parent here.
            unsafe {
                end_with(0);
                libc::_exit(0);
            }
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place to write to.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 1);
    }

    #[test]
    fn a_random_working_set_is_one_cycle_through_every_line() {
        let words = Access::Random.working_set(64 << 10);
        let (mut at, mut seen) = (0, std::collections::HashSet::new());
        while seen.insert(at) {
            at = words[at as usize];
        }
        assert_eq!((at, seen.len()), (0, 1024));
        assert_eq!(Access::Random.touch(&words), 0);
        assert_eq!(Access::Random.touch(&Access::Random.working_set(0)), 0);
        assert_eq!(Access::Sequential.touch(&Access::Sequential.working_set(800)), 100);
    }

    #[test]
    fn pinning_is_undone() {
        let before = allowed_cpus();
        drop(Pinned::to(before[0]));
        assert_eq!(allowed_cpus(), before);
    }
}
