// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices that stall: a fault waits as long as they do, and a signal that ends the process ends it
//! all the same.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{mem, ptr, thread};

use common::alone::{is_child, succeeds};
use common::gate::gated;
use common::{BOTH, byte_at, emulated, file, pages, read, region, shared, write};
use dwell_pager::{Ahead, Faults, PAGE_BYTES};

const BYTES: usize = 64 * PAGE_BYTES;
/// What a forked child ends with where the machine has no regions.
const SKIPPED: i32 = 200;

#[test]
fn threads_that_wait_for_one_page_of_a_stalled_device_wait_as_long_as_it_stalls() {
    let name = "threads_that_wait_for_one_page_of_a_stalled_device_wait_as_long_as_it_stalls";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for faults in BOTH {
        let device = Arc::new(emulated(&path, "latency=5us,stall-after=1,stall-for=1600ms"));
        let options = pages(64).ahead(Ahead::Nothing).faults(faults);
        let Some(region) = region(device, &options) else { return };
        assert_eq!(read(&region, 0), byte_at(0));
        thread::scope(|scope| {
            for id in 0..4 {
                let region = &region;
                scope.spawn(move || {
                    let _registered = (id % 2 == 0).then(|| region.register_thread().unwrap());
                    assert_eq!(read(region, PAGE_BYTES + id), byte_at(PAGE_BYTES + id));
                });
            }
        });
        assert_eq!(region.statistics().read_errors, 0);
    }
}

/// Runs `work` in a forked child, and `meet` with its number meanwhile; how the child ended: its
/// exit status, or the negative signal. A child that has not ended after a minute is killed.
fn beside(work: impl FnOnce() -> i32, meet: impl FnOnce(i32)) -> i32 {
    // SAFETY: the child is of one thread, runs `work` and ends without running anything of the
    // parent's.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: as above.
            unsafe { libc::_exit(code.unwrap_or(101)) }
        }
        pid => {
            meet(pid);
            ended(pid)
        }
    }
}

/// How a child ended, which is killed after a while.
fn ended(pid: i32) -> i32 {
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: a child of this process and a live integer.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if began.elapsed() > Duration::from_secs(60) => {
                // SAFETY: as above.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            0 => thread::sleep(Duration::from_millis(2)),
            _ if libc::WIFSIGNALED(status) => return -libc::WTERMSIG(status),
            _ => return libc::WEXITSTATUS(status),
        }
    }
}

/// Waits until a process of one thread is in the pager's hands (SIGUSR2, which it catches, is kept
/// out), and sends it a signal.
fn signal_in_the_pager(pid: i32, signal: i32) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return };
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if blocked.is_some_and(|mask| mask >> (libc::SIGUSR2 - 1) & 1 != 0) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a child that is not waited for yet.
    unsafe { libc::kill(pid, signal) };
}

/// A signal that came, and how many.
static CAME: AtomicUsize = AtomicUsize::new(0);
/// Memory that the handler touches, 0 where none.
static TOUCHED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: i32) {
    let at = TOUCHED.load(Ordering::SeqCst);
    if at != 0 {
        // SAFETY: within a region that lives.
        let byte = unsafe { (at as *const u8).read_volatile() };
        assert_eq!(byte, byte_at(9 * PAGE_BYTES));
    }
    CAME.fetch_add(1, Ordering::SeqCst);
}

fn catch(signal: i32) {
    // SAFETY: a handler of the kind that the call takes.
    unsafe { libc::signal(signal, count as extern "C" fn(i32) as libc::sighandler_t) };
}

/// Ways into a stalled device. The first request is served; the device then stalls for ever.
const WAYS: [&str; 7] = [
    "registered",
    "unregistered",
    "by a thread",
    "in a call",
    "prefault",
    "sync",
    "write back in a fault",
];

fn stall(way: &str, path: &std::path::Path) -> i32 {
    catch(libc::SIGUSR2);
    let source = match way {
        "in a call" => {
            let requests = AtomicUsize::new(0);
            gated(path, move |_| {
                while requests.fetch_add(1, Ordering::SeqCst) > 0 {
                    thread::sleep(Duration::from_secs(1));
                }
                None
            })
        }
        "write back in a fault" => {
            Arc::new(emulated(path, "latency=5us,stall-after=9,stall-for=forever"))
        }
        _ => Arc::new(emulated(path, "latency=5us,stall-after=1,stall-for=forever")),
    };
    let faults = if way == "by a thread" { Faults::Thread } else { Faults::Inline };
    let options = shared(8).ahead(Ahead::Nothing).faults(faults);
    let Some(region) = region(source, &options) else { return SKIPPED };
    let _registered = (way == "registered").then(|| region.register_thread().unwrap());
    write(&region, 0, 1);
    match way {
        "prefault" => drop(region.prefault(0..2 * PAGE_BYTES)),
        "sync" => drop(region.sync()),
        "write back in a fault" => {
            (0..40).for_each(|page| write(&region, page * PAGE_BYTES, 1));
        }
        _ => drop(read(&region, PAGE_BYTES)),
    }
    1
}

#[test]
fn a_signal_that_ends_the_process_ends_it_while_a_device_stalls() {
    let name = "a_signal_that_ends_the_process_ends_it_while_a_device_stalls";
    if !is_child() {
        return succeeds(name, "-");
    }
    // Inherited, it may be ignored. A child has it from its first instruction on: the signal may
    // come before it runs.
    // SAFETY: the disposition of a signal.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
    let (_dir, path) = file(BYTES);
    for way in WAYS {
        let status = beside(
            || stall(way, &path),
            |child| match way {
                // Nothing is kept out of the program's threads there.
                "sync" | "by a thread" => {
                    thread::sleep(Duration::from_millis(100));
                    // SAFETY: as in `signal_in_the_pager`.
                    unsafe { libc::kill(child, libc::SIGINT) };
                }
                _ => signal_in_the_pager(child, libc::SIGINT),
            },
        );
        assert!(status == -libc::SIGINT || status == SKIPPED, "{way}: {status}");
    }
}

#[test]
fn a_signal_that_the_program_catches_or_blocks_waits_until_the_fault_is_over() {
    let name = "a_signal_that_the_program_catches_or_blocks_waits_until_the_fault_is_over";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for blocked in [false, true] {
        let status = beside(
            || {
                catch(libc::SIGUSR2);
                if blocked {
                    // SAFETY: a live set of one signal.
                    unsafe {
                        let mut set = mem::zeroed();
                        libc::sigemptyset(&mut set);
                        libc::sigaddset(&mut set, libc::SIGINT);
                        libc::sigprocmask(libc::SIG_BLOCK, &set, ptr::null_mut());
                    }
                } else {
                    catch(libc::SIGINT);
                }
                let device = emulated(&path, "latency=5us,stall-after=1,stall-for=700ms");
                let Some(region) = region(Arc::new(device), &pages(8).ahead(Ahead::Nothing)) else {
                    return SKIPPED;
                };
                // The handler faults itself.
                TOUCHED.store(region.as_ptr() as usize + 9 * PAGE_BYTES, Ordering::SeqCst);
                assert_eq!(read(&region, 0), byte_at(0));
                assert_eq!(read(&region, PAGE_BYTES), byte_at(PAGE_BYTES));
                assert_eq!(read(&region, 2 * PAGE_BYTES), byte_at(2 * PAGE_BYTES));
                // SAFETY: a live set.
                let is_pending = unsafe {
                    let mut set = mem::zeroed();
                    libc::sigpending(&mut set);
                    libc::sigismember(&set, libc::SIGINT) == 1
                };
                assert_eq!(
                    (CAME.load(Ordering::SeqCst), is_pending),
                    (usize::from(!blocked), blocked)
                );
                0
            },
            |child| signal_in_the_pager(child, libc::SIGINT),
        );
        assert!(status == 0 || status == SKIPPED, "blocked: {blocked}: {status}");
    }
}
