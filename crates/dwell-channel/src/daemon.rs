// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon: makes channels for clients that connect, grants and takes back, and keeps the thread
//! that serves them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use dwell::monitor::SystemMonitor;
use dwell::parameters::DeviceParameters;
use dwell_policy::WaitPolicy;
use dwell_policy::policy::SmartCon;
use rustix::event::EventfdFlags;

use crate::accept::Acceptor;
use crate::channel::Channel;
use crate::counts::UserCommands;
use crate::credentials;
use crate::grants::{DrainGuard, Errno, GrantReply, Grants, Inode, OpenFile, Reach, Token, Why};
use crate::owners::Owners;
use crate::service::Service;
use crate::shares::Shares;
use crate::socket;
use crate::way::Way;

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

/// What the daemon's channels did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Channels that are open.
    pub channels: u64,
    /// Open files that they reach now.
    pub reachable: u64,
    /// Channels made so far.
    pub made: u64,
    /// Channels ended because their client broke the protocol.
    pub broken: u64,
    /// Commands served.
    pub commands: u64,
    /// Commands answered with "no such entry".
    pub missing: u64,
    /// Grants given.
    pub grants: u64,
    /// Times that the serving thread slept.
    pub sleeps: u64,
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

    fn each_channel(&self, mut with: impl FnMut(&Channel)) {
        let all: Vec<_> = self.channels().values().cloned().collect();
        all.iter().for_each(|channel| with(channel));
    }
}

/// A running daemon. It ends, and all its channels with it, when it is dropped.
pub struct Daemon {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a daemon under a name that nobody can guess.
    ///
    /// # Errors
    /// What the system refuses: a thread, a socket, random bytes.
    pub fn start(options: Options) -> io::Result<Daemon> {
        credentials::with_what_is_needed(|| Self::start_here(options))?
    }

    fn start_here(options: Options) -> io::Result<Daemon> {
        let mut number = [0u8; 16];
        random(&mut number)?;
        let place = format!("dwell-{:032x}", u128::from_le_bytes(number)).into_bytes();
        let listener = socket::listen(&place)?;
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let state = Arc::new(State {
            mapped: Shares::new(options.most_mapped_bytes),
            heard: Mutex::default(),
            hears: Condvar::new(),
            options,
            place,
            channels: Mutex::default(),
            fresh: Mutex::default(),
            news: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake: event()?,
            wake_acceptor: event()?,
            counters: Counters::default(),
            commands: UserCommands::default(),
        });
        let acceptor = Acceptor::new(state.clone(), listener);
        let service = Service::new(state.clone())?;
        let mut daemon = Daemon { state, threads: Vec::new() };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        daemon.threads.push(thread("dwell-accept").spawn(move || acceptor.run())?);
        daemon.threads.push(thread("dwell-channels").spawn(move || service.run())?);
        Ok(daemon)
    }

    /// Whether the thread that serves channels takes notice within that time: a service manager may
    /// ask.
    pub fn answers(&self, within: Duration) -> bool {
        let heard = self.state.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *heard;
        self.state.tell_service();
        let wait = self.state.hears.wait_timeout_while(heard, within, |heard| *heard == before);
        let (heard, _) = wait.unwrap_or_else(PoisonError::into_inner);
        *heard != before
    }

    /// The commands of its channels so far, by user and kind. Subordinate users count as their
    /// owner.
    pub fn commands(&self) -> BTreeMap<u32, BTreeMap<String, u64>> {
        self.state.commands.by_user()
    }

    /// What its channels did so far.
    pub fn tally(&self) -> Tally {
        let counters = &self.state.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (mut channels, mut reachable) = (0, 0);
        self.state.each_channel(|channel| {
            channels += 1;
            reachable += channel.table().len() as u64;
        });
        Tally {
            channels,
            reachable,
            made: of(&counters.made),
            broken: of(&counters.broken),
            commands: self.state.commands.sum(),
            missing: of(&counters.missing),
            grants: of(&counters.grants),
            sleeps: of(&counters.sleeps),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.state.wake_acceptor, &1u64.to_ne_bytes());
        self.state.tell_service();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.revoke_all();
    }
}

impl Grants for Daemon {
    fn place(&self) -> &[u8] {
        &self.state.place
    }

    fn grant(&self, token: &Token, open: &Arc<OpenFile>) -> Result<GrantReply, Errno> {
        let channel = self.state.channels().get(token).cloned().ok_or(Errno(libc::ENXIO))?;
        loop {
            let epoch = open.inode.wait_until_free();
            // Made before the table is locked: the channel is not to wait for it.
            let way = Way::to(open, epoch, self.account(open.opener.uid()), &self.state.mapped)
                .ok_or(Errno(libc::EBUSY))?;
            let bytes = open.file.metadata().map_err(|_| Errno(libc::EBADF))?.len();
            let mut table = channel.table();
            match open.inode.reach(epoch) {
                Reach::Held => continue,
                Reach::Mapped => return Err(Errno(libc::EBUSY)),
                Reach::Free => {}
            }
            if channel.ended.load(Ordering::Acquire) {
                return Err(Errno(libc::ENXIO));
            }
            open.granted.store(true, Ordering::Release);
            let in_memory = matches!(way, Way::Memory { .. });
            let (entry, generation) = table.insert(open.clone(), way);
            self.state.counters.grants.fetch_add(1, Ordering::Relaxed);
            return Ok(GrantReply { open: open.id(), entry, generation, bytes, in_memory });
        }
    }

    fn account(&self, uid: u32) -> u32 {
        self.state.options.owners.of(uid)
    }

    fn suspect(&self, open: &Arc<OpenFile>) {
        if open.granted.load(Ordering::Acquire) {
            self.state.each_channel(|channel| channel.table().remove_open(open.id()));
        }
    }

    fn release(&self, open: &Arc<OpenFile>) {
        self.suspect(open);
        open.inode.stamp(open.file.as_fd());
    }

    fn drain(&self, inode: &Arc<Inode>, why: Why) -> DrainGuard {
        let granted = inode.hold(why);
        let guard = DrainGuard::of(inode.clone());
        if granted {
            self.state.each_channel(|channel| channel.table().remove_inode(inode));
            inode.settle();
        }
        guard
    }

    fn revoke_all(&self) {
        let all: Vec<_> = self.state.channels().drain().map(|(_, channel)| channel).collect();
        all.iter().for_each(|channel| channel.end());
        self.state.tell_service();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_answers_as_long_as_its_thread_serves() {
        let mut daemon = Daemon::start(Options::default()).unwrap();
        assert!((0..3).all(|_| daemon.answers(Duration::from_secs(20))));
        daemon.state.stop.store(true, Ordering::Release);
        daemon.state.tell_service();
        let _ = rustix::io::write(&daemon.state.wake_acceptor, &1u64.to_ne_bytes());
        daemon.threads.drain(..).for_each(|thread| thread.join().unwrap());
        assert!(!daemon.answers(Duration::from_millis(10)));
    }
}
