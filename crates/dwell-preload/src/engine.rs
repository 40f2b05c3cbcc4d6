// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of one process: which devices its descriptors are on, and a file for each.
#![allow(unsafe_code)]

mod decided;
mod services;

use decided::{Decided, Files, decided_of};
pub use services::{leave, monitor, publish, rest, retire, settle};

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use dwell::File;
use dwell::clock;
use dwell::external::{self, External};
use dwell::monitor::SystemMonitor;
use dwell_channel::client::Mount;
use dwell_host::settings::RunOrder;
use dwell_host::stats_page::{ControlReader, Publisher};

use crate::inside::Inside;
use crate::raw::bare;
use crate::stack::{self, STACK_BYTES};
use crate::table::{self, MOST_DEVICES, Word};
use crate::{account, inside, own, process, raw, report, served};

/// Devices that are told apart; what is on others passes.
static DEVICES: [AtomicPtr<Seen>; MOST_DEVICES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MOST_DEVICES];
static DEVICE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// What a process keeps from its first device on.
static SERVICES: Mutex<Option<Services>> = Mutex::new(None);
static CONTROL: AtomicPtr<ControlReader> = AtomicPtr::new(ptr::null_mut());

struct Services {
    monitor: Option<Arc<SystemMonitor>>,
    publisher: Option<Arc<Publisher>>,
}

/// A device of this process, kept for ever: descriptors name it by its number.
struct Seen {
    number: u64,
    is_block: bool,
    /// None where its requests pass.
    decided: Option<Decided>,
}

/// What serves a descriptor's requests.
#[derive(Clone, Copy)]
pub enum Server {
    Device(&'static File<External>),
    Served(&'static File<Mount>),
}

fn services() -> MutexGuard<'static, Option<Services>> {
    SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins as `order` says.
pub fn begin(order: RunOrder) -> io::Result<()> {
    let alone_ms = order.settings.general().leave_alone_ms.value;
    ALONE_NS.store(u64::from(alone_ms) * 1_000_000, Ordering::Relaxed);
    leave_alone();
    process::set_order(order);
    process::mark()?;
    own::make_room();
    process::switch_on();
    Ok(())
}

/// How long a process is left alone when it begins, in nanoseconds.
static ALONE_NS: AtomicU64 = AtomicU64::new(0);
/// Until when this one is; 0 once it no longer is.
static ALONE_UNTIL: AtomicU64 = AtomicU64::new(0);

fn leave_alone() {
    let alone_ns = ALONE_NS.load(Ordering::Relaxed);
    let until = if alone_ns > 0 { clock::now() + alone_ns } else { 0 };
    ALONE_UNTIL.store(until, Ordering::Relaxed);
}

/// Whether the process has just begun: most end soon, and would pay for an engine that they never
/// use.
#[inline]
pub fn leaves_alone() -> bool {
    let until = ALONE_UNTIL.load(Ordering::Relaxed);
    if until == 0 {
        return false;
    }
    let alone = clock::now() < until;
    if !alone {
        ALONE_UNTIL.store(0, Ordering::Relaxed);
    }
    alone
}

/// Leaves a child to the kernel that was forked past the C library's `fork`. Safe in a signal
/// handler.
pub fn leave_child() {
    process::switch_off();
    table::renew_range(0, u32::MAX);
    own::close_in_child();
    report::close_in_child();
}

/// Begins anew in a forked child: the parent's files, threads and stats page are none of its own.
pub fn begin_in_child() {
    process::claim();
    keep_devices();
    CONTROL.store(ptr::null_mut(), Ordering::Relaxed);
    // What the parent had is given up, not dropped: its thread is not here to be ended.
    std::mem::forget(services().take());
    table::renew_range(0, u32::MAX);
    account::begin_in_child();
    own::close_in_child();
    report::close_in_child();
    own::make_room();
    leave_alone();
}

/// Keeps in a child what it need not find out again.
fn keep_devices() {
    let count = DEVICE_COUNT.swap(0, Ordering::Relaxed).min(MOST_DEVICES);
    let mut kept = 0;
    for device in &DEVICES[..count] {
        let seen = device.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: never freed, and below the count never null.
        let Seen { number, is_block, decided } = unsafe { &*seen };
        let decided = match decided {
            Some(decided) => match decided.in_child() {
                None => continue,
                again => again,
            },
            None => None,
        };
        let seen = Seen { number: *number, is_block: *is_block, decided };
        DEVICES[kept].store(Box::into_raw(Box::new(seen)), Ordering::Relaxed);
        kept += 1;
    }
    DEVICE_COUNT.store(kept, Ordering::Relaxed);
}

/// Enters the engine; `None` where the call is to go straight through.
#[inline]
pub fn enter() -> Option<Inside> {
    if !process::is_on() {
        return None;
    }
    if process::is_foreign() {
        process::switch_off();
        return None;
    }
    let inside = Inside::enter()?;
    // SAFETY: null, or never freed.
    let control = unsafe { CONTROL.load(Ordering::Relaxed).as_ref() };
    if control.is_some_and(ControlReader::is_off) {
        return None;
    }
    Some(inside)
}

/// The device of a descriptor that was looked at.
#[inline]
fn device_of(word: Word) -> Option<&'static Seen> {
    let device = DEVICES.get(usize::from(word.device()))?.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { device.as_ref() }
}

#[inline]
fn decided_for(word: Word) -> Option<&'static Decided> {
    device_of(word)?.decided.as_ref()
}

/// What serves a descriptor's requests.
#[inline]
pub fn server_of(word: Word) -> Option<Server> {
    Some(match decided_for(word)?.files()? {
        Files::Device { direct, .. } if word.direct() => Server::Device(direct),
        Files::Device { buffered, .. } => Server::Device(buffered),
        Files::Served(file) => Server::Served(file),
    })
}

/// Whether it is time to open what serves a descriptor's requests. A process that is not left alone
/// at all is decided for from the first request on.
pub fn is_worth_opening(word: Word) -> bool {
    ALONE_NS.load(Ordering::Relaxed) == 0 || decided_for(word).is_some_and(Decided::is_waited_for)
}

/// Notes what a request came to before that, and how long it took.
pub fn took(word: Word, result: isize, ns: u64) {
    if let Some(decided) = decided_for(word) {
        decided.took(word.direct(), u64::try_from(result).unwrap_or(0), ns);
    }
}

/// Opens what serves a descriptor's requests.
#[cold]
pub fn open(word: Word) -> Option<Server> {
    if !own::may_borrow() {
        return None;
    }
    let _inside = enter()?;
    let decided = decided_for(word)?;
    let mut services = services();
    if ALONE_NS.load(Ordering::Relaxed) > 0 && decided.gives_way() {
        return None;
    }
    decided.open(&mut services)?;
    server_of(word)
}

/// What a descriptor is.
fn key_of(status: &libc::stat) -> Option<(u64, bool)> {
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG => Some((status.st_dev, false)),
        libc::S_IFBLK => Some((status.st_rdev, true)),
        _ => None,
    }
}

/// Whether a descriptor still is what its word says; then the length of its file, as far as that
/// matters to writes.
pub fn still(fd: i32, word: Word) -> Option<u64> {
    let known = device_of(word)?;
    // SAFETY: the number is one that the program uses.
    let status = unsafe { external::status(fd) }.ok()?;
    (key_of(&status)? == (known.number, known.is_block)).then_some(match known.is_block {
        true => u64::MAX,
        false => status.st_size as u64,
    })
}

/// As [`still`] for a descriptor of a served mount, of which nobody but the daemon knows the
/// length.
pub fn still_served(fd: i32, word: Word) -> bool {
    device_of(word).is_some_and(|known| served::is_on(fd, known.number))
}

/// How a descriptor was opened that the calling thread has just opened.
#[derive(Clone, Copy)]
pub struct Opening {
    pub flags: i32,
    /// The age of the table before.
    pub age: u32,
}

/// Looks at a descriptor and enters it in the table; its word now.
#[cold]
pub fn classify(fd: i32, opening: Option<Opening>) -> Word {
    if usize::try_from(fd).is_ok_and(|fd| fd >= table::MOST) {
        return Word::PASSED;
    }
    if !process::is_on() {
        return Word::PASSED;
    }
    let before = table::word(fd);
    match classified(fd, before, opening) {
        // Another thread is moving it; it is looked at once that is over.
        Some(_) if before.is_moving() => before,
        Some(found) => table::enter(fd, before, found),
        None => Word::PASSED,
    }
}

/// `None` where it cannot be looked at. Enters the engine only where more than a look is needed.
fn classified(fd: i32, before: Word, opening: Option<Opening>) -> Option<Word> {
    let errno = raw::errno();
    // SAFETY: as in `still`.
    let status = unsafe { external::status(fd) };
    raw::set_errno(errno);
    let status = status.ok()?;
    let Some((number, is_block)) = key_of(&status) else { return Some(Word::PASSED) };
    let at = match known(number, is_block) {
        Some(at) => at,
        None => {
            if !own::may_borrow() {
                return Some(Word::PASSED);
            }
            let _inside = enter()?;
            look_at_device(fd, number, is_block)
        }
    };
    let Some(at) = at else { return Some(Word::PASSED) };
    if is_excluded(fd)? {
        return Some(Word::PASSED);
    }
    let asked = || bare!(SYS_fcntl, fd, libc::F_GETFL);
    let now = opening.map_or_else(asked, |opening| opening.flags);
    // A ring would refuse what it cannot serve at once; a path only names.
    if now < 0 || now & (libc::O_NONBLOCK | libc::O_PATH) != 0 {
        return Some(Word::PASSED);
    }
    let mut word = Word::decided(at, now & libc::O_DIRECT != 0, now & libc::O_APPEND != 0);
    if now & (libc::O_DIRECT | libc::O_DSYNC) == 0 && is_device(at) {
        word = word.copying();
    }
    Some(match opening {
        Some(Opening { age, .. }) => word.owned_by(inside::thread_number(), age),
        None => word.owned_as(before),
    })
}

/// Whether it is a device, and not a served mount.
fn is_device(at: u8) -> bool {
    // SAFETY: never freed, and known, so not null.
    let known = unsafe { DEVICES[usize::from(at)].load(Ordering::Acquire).as_ref() };
    let decided = known.and_then(|known| known.decided.as_ref());
    decided.is_some_and(|decided| !matches!(decided.files(), Some(Files::Served(_))))
}

/// `None` where that cannot be asked now.
fn is_excluded(fd: i32) -> Option<bool> {
    let excludes = process::order().filter(|order| !order.settings.excluded_paths.is_empty());
    let Some(order) = excludes else { return Some(false) };
    let _inside = enter()?;
    let path = fs::read_link(format!("/proc/self/fd/{fd}"));
    Some(path.is_ok_and(|path| order.settings.excludes_path(&path).is_some()))
}

/// The number of a known device; `Some(None)` where it passes.
fn known(number: u64, is_block: bool) -> Option<Option<u8>> {
    let count = DEVICE_COUNT.load(Ordering::Acquire).min(MOST_DEVICES);
    for (at, device) in DEVICES[..count].iter().enumerate() {
        // SAFETY: never freed, and below the count never null.
        let device = unsafe { &*device.load(Ordering::Acquire) };
        if (device.number, device.is_block) == (number, is_block) {
            return Some(device.decided.is_some().then_some(at as u8));
        }
    }
    None
}

/// Finds out what is to be done on a device that was not seen before. That takes reading files and
/// perhaps starting a thread, on a stack of its own: the caller's may be small.
#[cold]
fn look_at_device(fd: i32, number: u64, is_block: bool) -> Option<u8> {
    let mut services = services();
    if let Some(at) = known(number, is_block) {
        return at;
    }
    let at = DEVICE_COUNT.load(Ordering::Relaxed);
    if at >= MOST_DEVICES {
        return None;
    }
    let found = if !is_block && is_no_disk(fd) {
        None
    } else {
        stack::on_its_own(STACK_BYTES, || decided_of(fd, number, &mut services)).flatten()
    };
    let passes = found.is_none();
    let device = Box::into_raw(Box::new(Seen { number, is_block, decided: found }));
    DEVICES[at].store(device, Ordering::Release);
    DEVICE_COUNT.store(at + 1, Ordering::Release);
    (!passes).then_some(at as u8)
}

/// File systems that are never worth a look, so that most programs need not look at all.
fn is_no_disk(fd: i32) -> bool {
    const CGROUP2: i64 = 0x6367_7270;
    const DEVPTS: i64 = 0x1cd1;
    const PIPE: i64 = 0x5049_5045;
    const PROC: i64 = 0x9fa0;
    const RAM: i64 = 0x8584_58f6;
    const SYS: i64 = 0x6265_6572;
    const TMP: i64 = 0x0102_1994;
    // SAFETY: zero bytes are a valid buffer.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer.
    let rc = unsafe { libc::fstatfs(fd, &mut status) };
    rc == 0 && [CGROUP2, DEVPTS, PIPE, PROC, RAM, SYS, TMP].contains(&(status.f_type as i64))
}
