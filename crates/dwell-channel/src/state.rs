// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the daemon's threads share.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dwell::monitor::SystemMonitor;
use dwell::parameters::DeviceParameters;
use dwell_policy::WaitPolicy;
use dwell_policy::policy::SmartCon;

use crate::channel::Channel;
use crate::counts::UserCommands;
use crate::grants::Token;
use crate::owners::Owners;
use crate::shares::Shares;

/// What a daemon is told.
#[derive(Clone)]
pub struct Options {
    /// Parameters of the device beneath the backing directory.
    pub known: DeviceParameters,
    /// How the serving thread waits while no channel asks for anything.
    pub policy: Arc<dyn WaitPolicy>,
    /// The system monitor that says how busy the machine is.
    pub monitor: Option<Arc<SystemMonitor>>,
    /// Open files that one channel can reach at a time.
    pub table_capacity: u32,
    /// Channels of one user.
    pub most_channels: u32,
    /// Memory of one user's channels, in bytes.
    pub most_bytes: u64,
    /// Memory of files that one user's channels have mapped, in bytes. Files beyond are reached in
    /// another way.
    pub most_mapped_bytes: u64,
    /// Commands in flight, of all channels, on files that are not memory. One user has half of them
    /// at most, two a third each, and so on: some are free for whoever comes next.
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
    /// Channels that the serving thread has not taken up yet.
    pub fresh: Mutex<Vec<Arc<Channel>>>,
    pub news: AtomicBool,
    pub stop: AtomicBool,
    /// Wakes the serving thread.
    pub wake: OwnedFd,
    /// Wakes the accepting thread.
    pub wake_acceptor: OwnedFd,
    pub counters: Counters,
    pub commands: UserCommands,
    /// How often the serving thread has heard that something has changed.
    pub heard: Mutex<u64>,
    pub hears: Condvar,
    /// What users have mapped, in bytes.
    pub mapped: Arc<Shares>,
}

impl State {
    pub fn channels(&self) -> MutexGuard<'_, HashMap<Token, Arc<Channel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fresh(&self) -> MutexGuard<'_, Vec<Arc<Channel>>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the serving thread that something has changed.
    pub fn tell_service(&self) {
        self.news.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn each_channel(&self, mut with: impl FnMut(&Channel)) {
        let all: Vec<_> = self.channels().values().cloned().collect();
        all.iter().for_each(|channel| with(channel));
    }
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
