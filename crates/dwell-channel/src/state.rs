// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the daemon's threads share.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::balance::Taken;
use crate::channel::Channel;
use crate::counts::{Counted, Counters};
use crate::grants::Token;
use crate::options::{Options, cpus};
use crate::post::Post;
use crate::shares::Shares;
use crate::slow::Slow;

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
    /// Memory of users' channels, in bytes, also of those that are gone while the kernel may still
    /// write there.
    pub memory: Arc<Shares>,
    /// What users have mapped, in bytes.
    pub mapped: Arc<Shares>,
    /// Threads for requests that no ring takes.
    pub slow: Slow,
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
            memory: Shares::new(options.most_bytes),
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
            slow: Slow::default(),
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
