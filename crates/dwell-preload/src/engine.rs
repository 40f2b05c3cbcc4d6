// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of one process: which devices its descriptors are on, and a file for each.
#![allow(unsafe_code)]

use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, fs, io, thread};

use dwell::adopted::{self, Adopted};
use dwell::device::Device;
use dwell::ledger::{ControlReader, Header, Ledger, ProcessIo, Publisher, Snapshot, Steered, Told};
use dwell::monitor::{Config, SystemMonitor};
use dwell::profile::DeviceProfile;
use dwell::settings::{DeviceNames, RunOrder};
use dwell::{DeviceClass, File, WaitPolicy};
use dwell_channel::client::{self, Mount, SCHEME};

use crate::inside::Inside;
use crate::raw::bare;
use crate::table::{self, Word};
use crate::{account, inside, own, served};

/// What this process is told, once it is known.
static ORDER: AtomicPtr<RunOrder> = AtomicPtr::new(ptr::null_mut());
/// Whether anything is decided here.
static ON: AtomicBool = AtomicBool::new(false);
static RETIRED: AtomicBool = AtomicBool::new(false);
/// A word that reads zero in a process that was forked behind this library's back.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Devices that are told apart; what is on others passes.
const MOST_DEVICES: usize = 128;
static DEVICES: [AtomicPtr<Known>; MOST_DEVICES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MOST_DEVICES];
static DEVICE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// What a process keeps from its first device on.
static SERVICES: Mutex<Option<Services>> = Mutex::new(None);
static CONTROL: AtomicPtr<ControlReader> = AtomicPtr::new(ptr::null_mut());

struct Services {
    monitor: Option<Arc<SystemMonitor>>,
    publisher: Option<Arc<Publisher>>,
}

/// What is known of a device, for ever: descriptors name it by its number.
struct Known {
    number: u64,
    is_block: bool,
    /// None where its requests pass.
    files: Option<Files>,
}

/// The files of a device that is decided for.
enum Files {
    Device {
        buffered: Arc<File<Adopted>>,
        direct: Arc<File<Adopted>>,
    },
    /// A served mount: its requests take channels.
    Served(Arc<File<Mount>>),
}

/// What serves a descriptor's requests.
#[derive(Clone, Copy)]
pub enum Server {
    Device(&'static File<Adopted>),
    Served(&'static File<Mount>),
}

fn services() -> MutexGuard<'static, Option<Services>> {
    SERVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What this process was told.
pub fn order() -> Option<&'static RunOrder> {
    // SAFETY: set once, to what is never freed.
    unsafe { ORDER.load(Ordering::Acquire).as_ref() }
}

/// Whether anything is decided in this process.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Leaves everything to the kernel from now on.
pub fn switch_off() {
    ON.store(false, Ordering::Relaxed);
}

/// Begins as `order` says.
pub fn begin(order: RunOrder) -> io::Result<()> {
    ORDER.store(Box::into_raw(Box::new(order)), Ordering::Release);
    mark()?;
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

fn mark() -> io::Result<()> {
    const BYTES: usize = 4096;
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: fresh memory at an address of the kernel's choice, then advice about that memory.
    let word = unsafe {
        let page = libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
            return Err(io::Error::last_os_error());
        }
        page.cast::<AtomicU64>()
    };
    MARK.store(word, Ordering::Relaxed);
    own_mark();
    Ok(())
}

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The id of this process.
pub fn process() -> i32 {
    PROCESS.load(Ordering::Relaxed)
}

fn own_mark() {
    PROCESS.store(std::process::id() as i32, Ordering::Relaxed);
    // SAFETY: null, or a page that stays mapped.
    if let Some(word) = unsafe { MARK.load(Ordering::Relaxed).as_ref() } {
        word.store(1, Ordering::Relaxed);
    }
}

/// Whether this is the process that the engine began in, or a child whose fork it saw.
pub fn is_ours() -> bool {
    // SAFETY: null, or a page that stays mapped.
    unsafe { MARK.load(Ordering::Relaxed).as_ref() }
        .is_some_and(|word| word.load(Ordering::Relaxed) == 1)
}

/// Begins anew in a forked child: the parent's files, threads and ledger are none of its own.
pub fn begin_in_child() {
    let count = DEVICE_COUNT.swap(0, Ordering::Relaxed);
    for device in &DEVICES[..count.min(MOST_DEVICES)] {
        device.store(ptr::null_mut(), Ordering::Relaxed);
    }
    CONTROL.store(ptr::null_mut(), Ordering::Relaxed);
    // What the parent had is given up, not dropped: its thread is not here to be ended.
    std::mem::forget(services().take());
    table::clear_range(0, u32::MAX);
    account::begin_in_child();
    own::begin_in_child();
    own_mark();
}

/// Enters the engine; `None` where the call is to go straight through.
#[inline]
pub fn enter() -> Option<Inside> {
    if !is_on() {
        return None;
    }
    let inside = Inside::enter()?;
    if !is_ours() {
        switch_off();
        return None;
    }
    // SAFETY: null, or never freed.
    let control = unsafe { CONTROL.load(Ordering::Relaxed).as_ref() };
    if control.is_some_and(ControlReader::is_off) {
        return None;
    }
    Some(inside)
}

/// The device of a descriptor that was looked at.
#[inline]
fn device_of(word: Word) -> Option<&'static Known> {
    let device = DEVICES.get(usize::from(word.device()))?.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    unsafe { device.as_ref() }
}

/// What serves a descriptor's requests.
#[inline]
pub fn server_of(word: Word) -> Option<Server> {
    Some(match device_of(word)?.files.as_ref()? {
        Files::Device { direct, .. } if word.direct() => Server::Device(direct),
        Files::Device { buffered, .. } => Server::Device(buffered),
        Files::Served(file) => Server::Served(file),
    })
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
    let status = adopted::status(fd).ok()?;
    (key_of(&status)? == (known.number, known.is_block)).then_some(match known.is_block {
        true => u64::MAX,
        false => status.st_size as u64,
    })
}

/// The same for a descriptor of a served mount, of which nobody but the controller knows the length.
pub fn still_served(fd: i32, word: Word) -> bool {
    device_of(word).is_some_and(|known| served::is_on(fd, known.number))
}

/// Looks at a descriptor and enters it in the table. `flags` are those it was opened with, where
/// the calling thread has just opened it.
#[cold]
pub fn classify(fd: i32, flags: Option<i32>) -> Word {
    if usize::try_from(fd).is_ok_and(|fd| fd >= table::MOST) {
        return Word::PASSED;
    }
    if !is_on() {
        return Word::PASSED;
    }
    let word = classified(fd, flags);
    if let Some(word) = word {
        table::enter(fd, word);
    }
    word.unwrap_or(Word::PASSED)
}

/// `None` where it cannot be looked at. Enters the engine only where more than a look is needed.
fn classified(fd: i32, flags: Option<i32>) -> Option<Word> {
    let errno = inside::errno();
    let status = adopted::status(fd);
    inside::set_errno(errno);
    let status = status.ok()?;
    let Some((number, is_block)) = key_of(&status) else { return Some(Word::PASSED) };
    let at = match known(number, is_block) {
        Some(at) => at,
        None => {
            let _inside = enter()?;
            look_at_device(fd, number, is_block)
        }
    };
    let Some(at) = at else { return Some(Word::PASSED) };
    if is_excluded(fd)? {
        return Some(Word::PASSED);
    }
    let now = flags.unwrap_or_else(|| bare!(SYS_fcntl, fd, libc::F_GETFL));
    // A ring would refuse what it cannot serve at once; a path only names.
    if now < 0 || now & (libc::O_NONBLOCK | libc::O_PATH) != 0 {
        return Some(Word::PASSED);
    }
    let word = Word::decided(at, now & libc::O_DIRECT != 0, now & libc::O_APPEND != 0);
    Some(match flags {
        Some(_) => word.owned_by(inside::thread_number()),
        None => word,
    })
}

/// `None` where that cannot be asked now.
fn is_excluded(fd: i32) -> Option<bool> {
    let excludes = order().filter(|order| !order.settings.excluded_paths.is_empty());
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
            return Some(device.files.is_some().then_some(at as u8));
        }
    }
    None
}

/// Finds out what is to be done on a device that was not seen before. That takes reading files and
/// starting a thread, on a stack of its own: the caller's may be small.
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
        thread::scope(|scope| {
            let services = &mut *services;
            let look = move || files_of(fd, number, services);
            let looking = thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, look);
            looking.ok()?.join().ok()?
        })
    };
    let passes = found.is_none();
    let device = Box::into_raw(Box::new(Known { number, is_block, files: found }));
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

/// The files of a fast device, after the settings.
fn files_of(fd: i32, number: u64, services: &mut Option<Services>) -> Option<Files> {
    let order = order()?;
    if let Ok(mount) = Mount::of(fd) {
        return files_of_mount(mount.for_guest(served::keep), number, order, services);
    }
    let store = order.profiles();
    let device = Device::beneath(Path::new(&format!("/proc/self/fd/{fd}"))).ok()?;
    let effective = order.settings.for_device(&DeviceNames::of(&device));
    // A profile that cannot be used, which `dwell run` has said, is as good as none.
    let profile = store.of(&device).ok().flatten();
    let known = effective.known(profile.as_ref().map(DeviceProfile::known).unwrap_or_default());
    let decided = known.profile.is_some_and(|profile| {
        profile.class == DeviceClass::Fast || profile.ring_threshold_bytes > 0
    });
    if effective.exclude.value || !decided {
        return None;
    }
    let policy = effective.wait_policy().ok()?;
    let services = services.get_or_insert_with(|| Services::begin(order));
    let policy = services.steered(policy);
    let guarded = order.settings.general().guard.value && !order.observe;
    let key = key_of_number(number);
    let file = |direct: bool| {
        let source = Adopted::new(&known, direct);
        let (policy, monitor) = (policy.clone(), services.monitor.clone());
        let file = File::over(source, &device.kernel_name, &key, known, policy, monitor);
        let file = Arc::new(file.guarded(guarded));
        if let Some(publisher) = &services.publisher {
            publisher.add(&device.kernel_name, file.clone());
        }
        file
    };
    Some(Files::Device { buffered: file(false), direct: file(true) })
}

/// The file of a served mount. What its controller takes back or cannot do is the kernel's, so no guard has to
/// watch it.
fn files_of_mount(
    mount: Mount,
    number: u64,
    order: &RunOrder,
    services: &mut Option<Services>,
) -> Option<Files> {
    let name = mount.name();
    let effective = order.settings.for_device(&DeviceNames::new([name.as_str(), SCHEME]));
    let known = effective.known(client::known());
    let decided = known.profile.is_some_and(|profile| profile.class == DeviceClass::Fast);
    if effective.exclude.value || !decided {
        return None;
    }
    let policy = effective.wait_policy().ok()?;
    let services = services.get_or_insert_with(|| Services::begin(order));
    let (policy, monitor) = (services.steered(policy), services.monitor.clone());
    let file = Arc::new(File::over(mount, &name, &key_of_number(number), known, policy, monitor));
    if let Some(publisher) = &services.publisher {
        publisher.add(&name, file.clone());
    }
    Some(Files::Served(file))
}

/// Tells a device apart. A forked child shares nothing with its parent.
fn key_of_number(number: u64) -> String {
    format!("{}:{}@{}", libc::major(number), libc::minor(number), std::process::id())
}

impl Services {
    fn steered(&self, policy: Arc<dyn WaitPolicy>) -> Arc<dyn WaitPolicy> {
        match &self.publisher {
            Some(publisher) => Arc::new(Steered::new(policy, publisher.ledger().reader())),
            None => policy,
        }
    }

    /// The system monitor, and the ledger that it keeps up to date. A process can do without either.
    fn begin(order: &RunOrder) -> Services {
        let config = Config { host_page: Some(host_page()), ..Config::default() };
        let monitor = SystemMonitor::shared_with(config).ok();
        let publisher = ledger(order).map(|ledger| {
            let control = Box::into_raw(Box::new(ledger.reader()));
            CONTROL.store(control, Ordering::Relaxed);
            Arc::new(Publisher::new(ledger).passed_by(Box::new(account::passed)))
        });
        if let (Some(monitor), Some(publisher)) = (&monitor, &publisher) {
            publisher.each_window(monitor);
        }
        Services { monitor, publisher }
    }
}

fn ledger(order: &RunOrder) -> Option<Ledger> {
    let root_start_ticks = dwell::ledger::start_ticks(order.root_pid).unwrap_or(0);
    let header = Header {
        run: order.run_id,
        root_pid: order.root_pid,
        root_start_ticks,
        observe: order.observe,
        ..Header::default()
    };
    Ledger::create(order.ledger_dir.as_deref()?, &header).ok()
}

/// The page that this user's Dwell processes share.
fn host_page() -> std::path::PathBuf {
    let chosen = env::var_os("DWELL_HOST_PAGE").filter(|chosen| !chosen.is_empty());
    chosen.map_or_else(
        || {
            let user = dwell::capability::effective_uid().unwrap_or(0);
            Path::new("/dev/shm").join(format!("dwell-{user}"))
        },
        Into::into,
    )
}

/// Tells the ledger how things stand, before this process becomes another program.
pub fn publish() {
    let Some(_inside) = Inside::enter() else { return };
    if let Some(publisher) = services().as_ref().and_then(|services| services.publisher.as_ref()) {
        // Whoever watches will see older figures.
        const REST_NS: u64 = 200_000_000;
        let _ = publisher.publish_and_rest(REST_NS);
    }
}

/// Fewer bytes than these are not worth a ledger of a process that ends.
const WORTH_TELLING_BYTES: u64 = 64 << 10;

/// Tells the run what this process did, and ends its ledger.
pub fn settle() -> Option<Snapshot> {
    let order = order()?;
    let publisher = services().take().and_then(|services| services.publisher);
    let is_root = order.root_pid == process() as u32;
    let publisher = match publisher {
        Some(publisher) => Some(publisher),
        None if is_root || account::passed().bytes >= WORTH_TELLING_BYTES => ledger(order)
            .map(|ledger| Arc::new(Publisher::new(ledger).passed_by(Box::new(account::passed)))),
        None => return None,
    };
    let Some(publisher) = publisher else { return Some(without_ledger()) };
    let last = publisher.snapshot();
    match Arc::into_inner(publisher) {
        Some(publisher) => publisher.settle(),
        // The monitor is publishing at this moment, and gives the ledger up at once.
        None => thread::yield_now(),
    }
    Some(last)
}

fn without_ledger() -> Snapshot {
    let mut all = Snapshot { processes: 1, passed: account::passed(), ..Snapshot::default() };
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    all.io = ProcessIo::parse(&io);
    let count = DEVICE_COUNT.load(Ordering::Acquire).min(MOST_DEVICES);
    for device in &DEVICES[..count] {
        // SAFETY: never freed, and below the count never null.
        let known = unsafe { &*device.load(Ordering::Acquire) };
        match &known.files {
            Some(Files::Device { buffered, direct }) => {
                all.add_device(&buffered.tell());
                all.add_device(&direct.tell());
            }
            Some(Files::Served(file)) => all.add_device(&file.tell()),
            None => {}
        }
    }
    all
}

/// Whether the engine was ended before the process.
pub fn is_retired() -> bool {
    RETIRED.load(Ordering::Relaxed)
}

/// Ends the engine, its thread included, as long as the process may still do what that takes.
pub fn retire() {
    let Some(_inside) = enter() else { return };
    RETIRED.store(true, Ordering::Relaxed);
    switch_off();
    let monitor = services().as_ref().and_then(|services| services.monitor.clone());
    if let Some(monitor) = monitor {
        monitor.end();
    }
    settle();
}
