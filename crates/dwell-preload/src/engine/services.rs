// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process keeps beside its devices, the monitor and the stats page, from their beginning to
//! what they tell at its end.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{env, fs, thread};

use dwell::WaitPolicy;
use dwell::monitor::{Config, SystemMonitor};
use dwell_host::places;
use dwell_host::settings::RunOrder;
use dwell_host::stats_page::{Header, ProcessIo, Publisher, Snapshot, StatsPage, Steered, Told};

use super::*;
use crate::account;

impl Services {
    pub(super) fn steered(&self, policy: Arc<dyn WaitPolicy>) -> Arc<dyn WaitPolicy> {
        match &self.publisher {
            Some(publisher) => Arc::new(Steered::new(policy, publisher.stats_page().reader())),
            None => policy,
        }
    }

    /// The system monitor, and the stats page that it keeps up to date. A process can do without
    /// either.
    pub(super) fn begin(order: &RunOrder) -> Services {
        let user = dwell_host::capability::effective_uid();
        let variables = |name: &str| env::var_os(name);
        let host_page = Some(places::host_page(user, &variables));
        let off_switch = places::off_switch(user, &variables);
        let spin_cap = order.settings.general().spin_cap.map(|set| set.value);
        let config = Config { host_page, off_switch, spin_cap, ..Config::default() };
        let monitor = SystemMonitor::shared_with(config).ok();
        let publisher = stats_page(order).map(|stats_page| {
            let control = Box::into_raw(Box::new(stats_page.reader()));
            CONTROL.store(control, Ordering::Relaxed);
            Arc::new(Publisher::new(stats_page).passed_by(Box::new(account::passed)))
        });
        if let (Some(monitor), Some(publisher)) = (&monitor, &publisher) {
            publisher.each_window(monitor);
        }
        Services { monitor, publisher }
    }
}

fn stats_page(order: &RunOrder) -> Option<StatsPage> {
    let root_start_ticks = dwell_host::stats_page::start_ticks(order.root_pid).unwrap_or(0);
    let header = Header {
        run: order.run_id,
        root_pid: order.root_pid,
        root_start_ticks,
        shadow: order.shadow,
        ..Header::default()
    };
    StatsPage::create(order.stats_dir.as_deref()?, &header).ok()
}

/// The process's system monitor, begun if need be.
pub fn monitor() -> Option<Arc<SystemMonitor>> {
    let order = process::order()?;
    services().get_or_insert_with(|| Services::begin(order)).monitor.clone()
}

/// Tells the stats page how things stand, before this process becomes another program.
pub fn publish() {
    let Some(_inside) = Inside::enter() else { return };
    if let Some(publisher) = services().as_ref().and_then(|services| services.publisher.as_ref()) {
        // A reader of the stats page will see older figures.
        const REST_NS: u64 = 200_000_000;
        let _ = publisher.publish_and_rest(REST_NS);
    }
}

/// Fewer bytes than these are not worth a stats page of a process that ends.
const WORTH_TELLING_BYTES: u64 = 64 << 10;

/// Tells the run what this process did, and ends its stats page.
pub fn settle() -> Option<Snapshot> {
    let order = process::order()?;
    let publisher = services().take().and_then(|services| services.publisher);
    let is_root = order.root_pid == process::id() as u32;
    let publisher = match publisher {
        Some(publisher) => Some(publisher),
        None if is_root || account::passed().bytes >= WORTH_TELLING_BYTES => {
            stats_page(order).map(|stats_page| {
                Arc::new(Publisher::new(stats_page).passed_by(Box::new(account::passed)))
            })
        }
        None => return None,
    };
    Some(publisher.map_or_else(without_stats_page, |publisher| publisher.settle()))
}

/// Ends the stats page and tells nobody.
pub fn leave() {
    let publisher = services().take().and_then(|services| services.publisher);
    // The monitor may be publishing at this moment, and gives the stats page up at once.
    drop(publisher);
}

fn without_stats_page() -> Snapshot {
    let mut all = Snapshot { processes: 1, passed: account::passed(), ..Snapshot::default() };
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    all.io = ProcessIo::parse(&io);
    let count = DEVICE_COUNT.load(Ordering::Acquire).min(MOST_DEVICES);
    for device in &DEVICES[..count] {
        // SAFETY: never freed, and below the count never null.
        let known = unsafe { &*device.load(Ordering::Acquire) };
        match known.decided.as_ref().and_then(|decided| decided.files()) {
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

/// Ends the engine, its thread included, as long as the process may still do what that takes.
pub fn retire() {
    process::set_retired();
    if let Some(_inside) = enter() {
        end_thread();
        settle();
    }
    process::switch_off();
    // Nothing is looked after any more that would take calls.
    table::shared_with_others();
}

/// Leaves everything to the kernel from now on, without a thread of the engine's. What was done so
/// far is told at the end.
pub fn rest() {
    if let Some(_inside) = enter() {
        end_thread();
    }
}

fn end_thread() {
    process::switch_off();
    let monitor = services().as_ref().and_then(|services| services.monitor.clone());
    if let Some(monitor) = monitor {
        monitor.end();
        wait_for_its_end();
    }
}

/// A thread that can be joined may still be one of the process for the kernel, which then refuses
/// what it grants to one alone.
fn wait_for_its_end() {
    const LOOKS: u32 = 1000;
    for _ in 0..LOOKS {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let mut names = tasks.map(|task| fs::read(task.path().join("comm")).unwrap_or_default());
        if !names.any(|name| name.trim_ascii_end() == SystemMonitor::THREAD_NAME.as_bytes()) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
