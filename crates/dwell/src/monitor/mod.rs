// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system monitor (SmartCon §4.2): how busy others keep the CPUs, and who may spin.
//!
//! One thread per process samples the machine once per window and publishes a [`Load`] in one
//! word; the I/O path reads that word through a [`LoadReader`] and nothing else. How many threads
//! of all Dwell processes of a host may spin at once is a limit that the processes share through
//! a [`HostPage`]; within a process a [`SpinPermit`] bounds the spinning threads by its leases.
//!
//! ```no_run
//! use dwell::monitor::{Config, SystemMonitor};
//!
//! let monitor = SystemMonitor::start(Config::default())?;
//! let (reader, permit) = (monitor.reader(), monitor.permit());
//! reader.note_request();
//! let load = reader.load();
//! if !load.others_above() && load.may_spin {
//!     if let Some(_guard) = permit.try_spin() {
//!         // busy-wait
//!     }
//! } else if !load.may_spin {
//!     permit.want();
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod assess;
mod config;
pub(crate) mod host;
mod limit;
mod member;
mod overload;
mod permit;
#[doc(hidden)]
pub mod procstat;
mod quota;
mod sources;
mod sync;
#[doc(hidden)]
pub mod sys;
mod table;
mod window;

#[cfg(test)]
mod checked;
#[cfg(test)]
mod permit_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod table_tests;

pub use config::Config;
#[doc(hidden)]
pub use host::{HostPage, Peer, Sharing};
pub(crate) use limit::scatter;
#[doc(hidden)]
pub use overload::is_overloaded;
#[doc(hidden)]
pub use permit::{LoadReader, SpinGuard, SpinPermit};

use crate::clock;
use crate::fork::{ForkMark, OfProcess};
use crate::remembered::Remembered;
use dwell_policy::{Load, Ns};
use permit::Shared;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use window::Core;

/// Busy time of all CPUs since boot, in nanoseconds, in steps of 10 ms: differences over long spans
/// tell what everybody did. `None` where `/proc/stat` cannot be read.
#[doc(hidden)]
pub fn busy_ns() -> Option<Ns> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let every: Vec<u32> = (0..8192).collect();
    let none = procstat::CpuTimes::default();
    let ticks =
        procstat::parse(&text, &every).cpus.iter().map(|cpu| cpu.since(&none).0).sum::<u64>();
    Some(ticks * 10_000_000)
}

/// What the monitor itself costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Cost {
    /// Samples taken.
    pub samples: u64,
    /// CPU time that they took, in nanoseconds.
    pub cpu_ns: u64,
}

/// The monitor of this process: a thread that stops when this is dropped. It is shared in an
/// [`Arc`], and [`SystemMonitor::shared`] is the one that all parts of a process find.
#[derive(Debug)]
pub struct SystemMonitor {
    shared: Arc<Shared>,
    core: Arc<Mutex<Core>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    mark: ForkMark,
    config: Config,
    watchers: Watchers,
    kept: Kept,
    /// The host page and who shares it; what is remembered lies beside it.
    page: Option<(PathBuf, Sharing)>,
    remembered: OnceLock<Option<Result<Arc<Remembered>, String>>>,
}

/// Hears each window's load, until it says `false`.
#[doc(hidden)]
pub type Watcher = Box<dyn FnMut(Load) -> bool + Send>;

/// The monitor that is kept for its next user, as its own thread knows it.
type Kept = Arc<OnceLock<Weak<SystemMonitor>>>;

/// Those who hear of each window.
#[derive(Clone, Default)]
struct Watchers(Arc<Mutex<Vec<Watcher>>>);

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} watchers", lock(&self.0).len())
    }
}

/// The monitor of this process. It stays for a moment after its last user, so that a program that
/// opens one file after the other starts one thread.
static SHARED: OfProcess<Option<Arc<SystemMonitor>>> = OfProcess::new();
/// Windows without a user after which the monitor goes.
const LINGER: u32 = 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while it was held leaves numbers that the next window overwrites.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SystemMonitor {
    /// What its thread is called.
    pub const THREAD_NAME: &str = "dwell-monitor";

    /// Takes a first sample and starts the thread. Until the first window is over, nobody may spin;
    /// if nothing else was runnable at the start, one thread may that asks.
    ///
    /// # Errors
    /// A field of `config` that is out of its range, or a thread or memory that was refused.
    pub fn start(config: Config) -> io::Result<SystemMonitor> {
        config.check()?;
        let shared = Arc::new(Shared::new()?);
        let (window, mark, asked) = (config.window, ForkMark::new()?, config.clone());
        let page = config.host_page.clone().map(|page| (page, config.sharing));
        let core = Arc::new(Mutex::new(Core::new(config, &shared)));
        let stop = Arc::new(AtomicBool::new(false));
        let watchers = Watchers::default();
        let kept = Kept::default();
        let ticker = Ticker {
            shared: shared.clone(),
            core: core.clone(),
            stop: stop.clone(),
            watchers: watchers.clone(),
            kept: kept.clone(),
            window,
        };
        let thread = thread::Builder::new()
            .name(SystemMonitor::THREAD_NAME.to_string())
            .stack_size(256 << 10)
            .spawn(move || ticker.run())?;
        // Set before anyone has a handle that could look for it.
        let _ = shared.thread.set(thread.thread().clone());
        Ok(SystemMonitor {
            shared,
            core,
            stop,
            thread: Some(thread),
            mark,
            config: asked,
            watchers,
            kept,
            page,
            remembered: OnceLock::new(),
        })
    }

    /// The monitor that this process has, or a new one that shares the usual page with the other
    /// Dwell processes of this user (`/dev/shm/dwell-UID`).
    ///
    /// # Errors
    /// Those of [`SystemMonitor::start`].
    pub fn shared() -> io::Result<Arc<SystemMonitor>> {
        let host_page = Some(HostPage::usual(sys::effective_uid()));
        SystemMonitor::shared_with(Config { host_page, ..Config::default() })
    }

    /// The monitor that this process has, or a new one with this configuration: the first user's
    /// holds for all. A forked child starts its own.
    ///
    /// # Errors
    /// Those of [`SystemMonitor::start`].
    pub fn shared_with(config: Config) -> io::Result<Arc<SystemMonitor>> {
        let mut shared = SHARED.lock();
        if let Some(monitor) = shared.as_ref().filter(|monitor| monitor.serves(&config)) {
            return Ok(monitor.clone());
        }
        let monitor = Arc::new(SystemMonitor::start(config)?);
        let _ = monitor.kept.set(Arc::downgrade(&monitor));
        let before = shared.replace(monitor.clone());
        drop(shared);
        // It may wait for its thread, which may wait for the lock.
        drop(before);
        Ok(monitor)
    }

    /// Whether the next user may have it: not a forked child, whose parent has the thread, not once
    /// it has ended, and not as another configuration's that nobody uses any more.
    fn serves(self: &Arc<Self>, config: &Config) -> bool {
        let is_used = Arc::strong_count(self) > 1;
        self.mark.same_process() && !self.stop.load(Relaxed) && (is_used || self.config == *config)
    }

    /// Gives up a monitor that is kept for the next user, if there is none yet.
    fn leave(kept: &Weak<SystemMonitor>) {
        let mut shared = SHARED.lock();
        let ours = shared.as_ref().is_some_and(|monitor| Arc::as_ptr(monitor) == kept.as_ptr());
        let left = if ours && kept.strong_count() == 1 { shared.take() } else { None };
        drop(shared);
        drop(left);
    }

    /// What processes found out about devices, opened when it is first asked for. Where it cannot
    /// be had, each process finds out for itself.
    pub(crate) fn remembered(&self) -> Option<&Arc<Remembered>> {
        let open = || {
            let (page, sharing) = self.page.as_ref()?;
            let mut path = page.clone().into_os_string();
            path.push(format!("-learned-{}", Remembered::VERSION));
            let found = Remembered::open(path.as_ref(), *sharing).map(Arc::new);
            Some(found.map_err(|why| format!("{} {why}", path.display())))
        };
        self.remembered.get_or_init(open).as_ref()?.as_ref().ok()
    }

    /// Why what this process finds out about devices is lost when it ends; `None` where it is kept.
    pub fn forgets_because(&self) -> Option<&str> {
        match (self.remembered(), self.remembered.get()) {
            (None, Some(Some(Err(why)))) => Some(why),
            (None, _) => Some("no host page"),
            (Some(_), _) => None,
        }
    }

    /// A handle that reads the load.
    pub fn reader(&self) -> LoadReader {
        LoadReader(self.shared.clone())
    }

    /// A handle that admits spinning threads.
    #[doc(hidden)]
    pub fn permit(&self) -> SpinPermit {
        SpinPermit(self.shared.clone())
    }

    /// Ends the window now, on the calling thread, and publishes its load.
    pub fn sample_once(&self) -> Load {
        lock(&self.core).tick(&self.shared)
    }

    /// Calls `watcher` on the monitor's thread at the end of each window, until it says `false`.
    /// Windows are ten times as long while nobody makes requests.
    pub fn each_window(&self, watcher: Watcher) {
        let mut watchers = lock(&self.watchers.0);
        if !self.stop.load(Relaxed) {
            watchers.push(watcher);
        }
    }

    /// Keeps what belongs to a device for a moment after its last file: the next one finds it.
    pub(crate) fn keep<T: Send + Sync + 'static>(&self, of_device: &Arc<T>) {
        // Another file has it, and so had it kept.
        if Arc::strong_count(of_device) > 1 {
            return;
        }
        let (kept, mut unused) = (of_device.clone(), 0);
        self.each_window(Box::new(move |_| {
            unused = if Arc::strong_count(&kept) == 1 { unused + 1 } else { 0 };
            unused < LINGER
        }));
    }

    /// Why this process shares no limit with others; `None` when it does.
    pub fn alone_because(&self) -> Option<String> {
        lock(&self.core).host.alone_because().map(str::to_owned)
    }

    /// Whether the spinner limit leaves one for a process that does not spin yet.
    pub fn has_room(&self) -> bool {
        let core = lock(&self.core);
        core.host.taken(clock::now()) < core.last_limit
    }

    /// Spinners that the whole host may have, as this process saw it in the last window.
    pub fn spinner_limit(&self) -> u32 {
        lock(&self.core).last_limit
    }

    /// Ends the thread while others still hold the monitor, whose load then stays what it was.
    /// Waits until the thread is gone, for a second at most.
    pub fn end(&self) {
        self.stop.store(true, Relaxed);
        let Some(thread) = self.thread.as_ref().filter(|_| self.mark.same_process()) else {
            return;
        };
        thread.thread().unpark();
        for _ in 0..1000 {
            if thread.is_finished() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What the monitor has cost so far.
    pub fn cost(&self) -> Cost {
        lock(&self.core).cost
    }
}

impl Drop for SystemMonitor {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let Some(thread) = self.thread.take() else { return };
        // A watcher may have been the last to know of a file that held this monitor.
        let on_its_own_thread = thread.thread().id() == thread::current().id();
        if !self.mark.same_process() {
            // A forked child's thread stayed in the parent.
            std::mem::forget(thread);
        } else if !on_its_own_thread {
            thread.thread().unpark();
            // A panic of that thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The thread's part.
struct Ticker {
    shared: Arc<Shared>,
    core: Arc<Mutex<Core>>,
    stop: Arc<AtomicBool>,
    watchers: Watchers,
    kept: Kept,
    window: Duration,
}

/// Windows without a request after which the thread sleeps for long.
const DOZE_AFTER: u32 = 10;
/// Length of a long sleep, in windows.
const DOZE_WINDOWS: u32 = 10;

impl Ticker {
    fn run(self) {
        sys::block_signals();
        let (mut idle, mut unused) = (0, 0);
        // Processes that start together must not sample together.
        let mut seed = u64::from(std::process::id()) ^ clock::now();
        let mut wait = self.window / 2;
        loop {
            seed = limit::scatter(seed);
            let jitter = 0.9 + 0.2 * (seed >> 40) as f64 / (1u64 << 24) as f64;
            let dozing = idle >= DOZE_AFTER && self.shared.doze();
            self.sleep(if dozing { wait * DOZE_WINDOWS } else { wait.mul_f64(jitter) }, dozing);
            if self.stop.load(Relaxed) {
                // They hear nothing any more, and are dropped with nothing held.
                let deaf = std::mem::take(&mut *lock(&self.watchers.0));
                return drop(deaf);
            }
            wait = self.window;
            let mut core = lock(&self.core);
            core.dozes_next = idle + 1 >= DOZE_AFTER;
            let load = core.tick(&self.shared);
            idle = if core.requested { 0 } else { idle.saturating_add(1) };
            drop(core);
            lock(&self.watchers.0).retain_mut(|watcher| watcher(load));
            // Its count is read without a lock, which a forked child might find taken.
            let kept = self.kept.get().filter(|kept| kept.strong_count() == 1);
            let windows = if dozing { DOZE_WINDOWS } else { 1 };
            unused = if kept.is_some() { unused + windows } else { 0 };
            if let Some(kept) = kept.filter(|_| unused >= LINGER) {
                SystemMonitor::leave(kept);
            }
        }
    }

    /// Sleeps for the whole span, or, dozing, until a request is made. A first spinner is
    /// allowed when a thread wants to spin.
    fn sleep(&self, span: Duration, dozing: bool) {
        let until = Instant::now() + span;
        while !self.stop.load(Relaxed) && (!dozing || self.shared.dozes()) {
            if self.shared.wants_first() {
                lock(&self.core).allow_first(&self.shared);
            }
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
