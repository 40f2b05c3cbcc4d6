// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the daemon's threads share.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dwell::monitor::SystemMonitor;
use dwell::parameters::DeviceParameters;
use dwell_policy::WaitPolicy;
use dwell_policy::policy::SmartCon;
use rustix::event::{EventfdFlags, eventfd};

use crate::balance::Taken;
use crate::channel::Channel;
use crate::counts::Counted;
use crate::grants::Token;
use crate::owners::Owners;
use crate::post::Post;
use crate::shares::Shares;

/// What a daemon is told.
#[derive(Clone)]
pub struct Options {
    /// Parameters of the device beneath the backing directory.
    pub known: DeviceParameters,
    /// How a serving thread waits while no channel asks for anything.
    pub policy: Arc<dyn WaitPolicy>,
    /// The system monitor that says how busy the machine is. Without one, all CPUs are taken to be
    /// idle.
    pub monitor: Option<Arc<SystemMonitor>>,
    /// Threads that serve channels, at most; one at least, and half of the CPUs by default.
    pub most_threads: u32,
    /// Open files that one channel can reach at a time.
    pub table_capacity: u32,
    /// Channels of one user.
    pub most_channels: u32,
    /// Memory of one user's channels, in bytes.
    pub most_bytes: u64,
    /// Memory of files that one user's channels have mapped, in bytes. Files beyond are reached in
    /// another way.
    pub most_mapped_bytes: u64,
    /// Commands in flight, of all channels of one thread, on files that are not memory. One user
    /// has half of them at most, two a third each, and so on: some are free for whoever comes
    /// next.
    pub device_depth: u32,
    /// How long a connection may take to say what it wants.
    pub patience: Duration,
    /// Whose subordinate users share with their owner.
    pub owners: Arc<Owners>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            known: DeviceParameters::default(),
            policy: Arc::new(SmartCon::default()),
            monitor: None,
            most_threads: cpus() / 2,
            table_capacity: 1024,
            most_channels: 512,
            most_bytes: 1 << 30,
            most_mapped_bytes: 256 << 30,
            device_depth: 512,
            patience: Duration::from_secs(1),
            owners: Arc::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub made: AtomicU64,
    pub broken: AtomicU64,
    pub missing: AtomicU64,
    pub grants: AtomicU64,
    pub sleeps: AtomicU64,
}

/// What the threads share.
pub(crate) struct State {
    pub options: Options,
    pub place: Vec<u8>,
    pub channels: Mutex<HashMap<Token, Arc<Channel>>>,
    /// Those of the serving threads.
    pub posts: Vec<Post>,
    /// CPUs that this process may use.
    pub cpus: u32,
    /// CPUs that they took lately.
    pub taken: Mutex<Taken>,
    pub stop: AtomicBool,
    /// Wakes the accepting thread.
    pub wake_acceptor: OwnedFd,
    pub counters: Counters,
    /// The commands of channels that are over, by user.
    pub past: Mutex<HashMap<u32, Counted>>,
    /// What users have mapped, in bytes.
    pub mapped: Arc<Shares>,
}

/// Serving threads, however many CPUs there are.
const MOST_THREADS: u32 = 64;

impl State {
    /// What a daemon at this place begins with.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new(options: Options, place: Vec<u8>) -> io::Result<State> {
        let threads = options.most_threads.clamp(1, MOST_THREADS);
        Ok(State {
            mapped: Shares::new(options.most_mapped_bytes),
            posts: (0..threads).map(|_| Post::new()).collect::<io::Result<_>>()?,
            cpus: cpus(),
            taken: Mutex::default(),
            options,
            place,
            channels: Mutex::default(),
            stop: AtomicBool::new(false),
            wake_acceptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counters: Counters::default(),
            past: Mutex::default(),
        })
    }

    pub fn channels(&self) -> MutexGuard<'_, HashMap<Token, Arc<Channel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the serving threads that something has changed.
    pub fn tell_service(&self) {
        self.posts.iter().for_each(Post::tell);
    }

    /// Ends a channel and takes it off the list, once it is served no more. What it did stays
    /// counted.
    pub fn forget(&self, channel: &Channel) {
        channel.end();
        let mut channels = self.channels();
        channels.remove(&channel.token);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.entry(channel.account).or_default().add(&channel.commands);
    }

    /// The commands so far, by user.
    pub fn commands(&self) -> BTreeMap<u32, Counted> {
        let channels = self.channels();
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: BTreeMap<_, _> =
            past.iter().map(|(user, counted)| (*user, *counted)).collect();
        for channel in channels.values() {
            all.entry(channel.account).or_default().add(&channel.commands);
        }
        all
    }

    pub fn each_channel(&self, mut with: impl FnMut(&Channel)) {
        let all: Vec<_> = self.channels().values().cloned().collect();
        all.iter().for_each(|channel| with(channel));
    }
}

fn cpus() -> u32 {
    thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}

/// Fills `out` with bytes that nobody can guess.
pub(crate) fn random(out: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < out.len() {
        match rustix::rand::getrandom(&mut out[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
