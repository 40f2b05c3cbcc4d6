// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf's events: a ring for each CPU, into which the kernel writes tracepoints in the order of
//! time.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::event::{Event, Interrupt, What};
use super::tracefs::{Point, Tracepoints};
use crate::{Error, Issued, Result};

const PAGE_BYTES: usize = 4096;
/// Of events, besides the page that tells where they are.
const DATA_BYTES: usize = 4 << 20;
/// The reader looks at least so often, in milliseconds.
const LOOK_MS: i32 = 20;

const TYPE_TRACEPOINT: u32 = 2;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_RAW: u64 = 1 << 10;
const USE_CLOCKID: u64 = 1 << 25;
const WATERMARK: u64 = 1 << 14;
const FD_CLOEXEC: u64 = 1 << 3;
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
const IOC_SET_OUTPUT: libc::Ioctl = 0x2405;
const IOC_SET_FILTER: libc::Ioctl = 0x4008_2406;

/// `struct perf_event_attr`, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// Offsets in the first page of a ring.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

struct Ring {
    memory: *mut u8,
    cpu: u32,
    events: Vec<OwnedFd>,
}

// SAFETY: the memory is this ring's alone, and only its owner reads it.
unsafe impl Send for Ring {}

/// The rings of all CPUs.
pub struct Rings(Vec<Ring>);

/// The clock that events carry.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread.
pub fn used_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The CPUs that are online, of a text such as `0-3,8`.
fn cpus(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

impl Rings {
    /// Opens them for all tracepoints.
    pub fn open(points: &Tracepoints) -> Result<Rings> {
        const ONLINE: &str = "/sys/devices/system/cpu/online";
        let online = fs::read_to_string(ONLINE)
            .map_err(|error| Error::Io { path: ONLINE.to_owned(), error })?;
        let rings = cpus(&online).into_iter().map(|cpu| Ring::open(points, cpu));
        rings.collect::<io::Result<_>>().map(Rings).map_err(|error| {
            const CALL: &str = "perf_event_open";
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    Error::of_refusal(CALL, format!("{CALL}: {error}"), true)
                }
                _ => Error::of_refusal(CALL, error.to_string(), false),
            }
        })
    }

    /// Waits for events, or a while.
    pub fn wait(&self) {
        let of = |ring: &Ring| libc::pollfd {
            fd: ring.events[0].as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut all: Vec<libc::pollfd> = self.0.iter().map(of).collect();
        // SAFETY: as many open descriptors as it says.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, LOOK_MS) };
    }

    /// Takes all events; how many were lost.
    pub fn take(&mut self, points: &Tracepoints, events: &mut Vec<Event>) -> u64 {
        self.0.iter_mut().map(|ring| ring.take(points, events)).sum()
    }
}

impl Ring {
    fn open(points: &Tracepoints, cpu: u32) -> io::Result<Ring> {
        let mut events = Vec::new();
        for point in Point::ALL.into_iter().filter(|point| points.of(*point).id != 0) {
            let event = opened(points.of(point).id, cpu)?;
            if point.is_call() {
                filter(&event, &calls())?;
            }
            events.push(event);
        }
        let bytes = PAGE_BYTES + DATA_BYTES;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of an event's ring, at an address of the kernel's choice.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, events[0].as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Ring { memory: memory.cast(), cpu, events };
        for event in &ring.events[1..] {
            // SAFETY: two open events of one CPU.
            let rc = unsafe {
                libc::ioctl(event.as_raw_fd(), IOC_SET_OUTPUT, ring.events[0].as_raw_fd())
            };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the ring's first page, which the kernel reads and writes as
        // one.
        unsafe { &*self.memory.add(offset).cast::<AtomicU64>() }
    }

    /// Bytes of the ring, which begins anew at its end.
    fn copy(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut copied = vec![0; bytes];
        let start = at as usize % DATA_BYTES;
        let first = bytes.min(DATA_BYTES - start);
        // SAFETY: within the ring's data, and as much room; the kernel writes only beyond the head.
        unsafe {
            let data = self.memory.add(PAGE_BYTES);
            ptr::copy_nonoverlapping(data.add(start), copied.as_mut_ptr(), first);
            ptr::copy_nonoverlapping(data, copied.as_mut_ptr().add(first), bytes - first);
        }
        copied
    }

    fn take(&mut self, points: &Tracepoints, events: &mut Vec<Event>) -> u64 {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let mut tail = self.word(TAIL).load(Ordering::Relaxed);
        let mut lost = 0;
        while tail < head {
            let header = self.copy(tail, 8);
            let kind = u32::from_ne_bytes(header[..4].try_into().unwrap_or_default());
            let size = usize::from(u16::from_ne_bytes(header[6..].try_into().unwrap_or_default()));
            if size < 8 {
                break;
            }
            let record = self.copy(tail + 8, size - 8);
            match kind {
                RECORD_SAMPLE => events.extend(self.event(points, &record)),
                RECORD_LOST => lost += number(&record, 8, 8).unwrap_or(0),
                _ => {}
            }
            tail += size as u64;
        }
        self.word(TAIL).store(tail, Ordering::Release);
        lost
    }

    fn event(&self, points: &Tracepoints, record: &[u8]) -> Option<Event> {
        let (process, thread) = (number(record, 0, 4)? as u32, number(record, 4, 4)? as u32);
        let at = number(record, 8, 8)?;
        let raw = record.get(20..)?;
        let id = number(raw, 0, 2)?;
        let point = Point::ALL.into_iter().find(|point| points.of(*point).id == id)?;
        let described = points.of(point);
        let what = What::of(described, point, raw)?;
        let within = Interrupt::of(described, raw);
        Some(Event { at, cpu: self.cpu, within, process, thread, what })
    }
}

fn number(bytes: &[u8], at: usize, count: usize) -> Option<u64> {
    let mut whole = [0; 8];
    whole.get_mut(..count)?.copy_from_slice(bytes.get(at..at + count)?);
    Some(u64::from_ne_bytes(whole))
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and used by nobody any more.
        unsafe { libc::munmap(self.memory.cast(), PAGE_BYTES + DATA_BYTES) };
    }
}

fn opened(id: u64, cpu: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: TYPE_TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config: id,
        sample_period: 1,
        sample_type: SAMPLE_TID | SAMPLE_TIME | SAMPLE_RAW,
        flags: USE_CLOCKID | WATERMARK,
        wakeup_watermark: DATA_BYTES as u32 / 8,
        clockid: libc::CLOCK_MONOTONIC,
        ..Attributes::default()
    };
    // SAFETY: attributes of the size that they say; every process, one CPU, no group.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, -1, cpu, -1, FD_CLOEXEC)
    };
    match i32::try_from(fd) {
        // SAFETY: just made, and nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calls that say how storage is asked for, as a filter.
fn calls() -> String {
    let named = (0..512).filter(|number| Issued::of_call(*number) != Issued::Other);
    named.map(|number| format!("id=={number}")).collect::<Vec<_>>().join("||")
}

fn filter(event: &OwnedFd, text: &str) -> io::Result<()> {
    let text = CString::new(text)?;
    // SAFETY: an open event and a text that ends.
    match unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_FILTER, text.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_listed_by_ranges() {
        assert_eq!(cpus("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cpus("0"), [0]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn reads_and_rings_are_among_the_calls_and_locks_are_not() {
        let calls = calls();
        let has =
            |number: libc::c_long| calls.split("||").any(|one| one == format!("id=={number}"));
        assert!(has(libc::SYS_pread64) && has(libc::SYS_io_uring_enter) && has(libc::SYS_fsync));
        assert!(!has(libc::SYS_futex));
    }
}
