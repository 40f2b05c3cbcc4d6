// SPDX-License-Identifier: MIT OR Apache-2.0
//! The daemon: makes channels for clients that connect, grants and takes back, and keeps the
//! threads that serve them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::accept::Acceptor;
use crate::access::Access;
use crate::counts::Counted;
use crate::credentials;
use crate::grants::{DrainGuard, Errno, GrantReply, Grants, Inode, OpenFile, Reach, Token, Why};
pub use crate::options::Options;
use crate::post::Post;
use crate::service::Service;
use crate::socket;
use crate::state::{State, random};

/// What the daemon's channels did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Channels that are open.
    pub channels: u64,
    /// Threads that serve them.
    pub threads: u64,
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
    /// Times that a serving thread slept.
    pub sleeps: u64,
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
        let state = Arc::new(State::new(options, place)?);
        let acceptor = Acceptor::new(state.clone(), listener);
        let services = (0..state.posts.len()).map(|own| Service::new(state.clone(), own));
        let services = services.collect::<io::Result<Vec<_>>>()?;
        let mut daemon = Daemon { state, threads: Vec::new() };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        daemon.threads.push(thread("dwell-accept").spawn(move || acceptor.run())?);
        for service in services {
            daemon.threads.push(thread("dwell-channels").spawn(move || service.run())?);
        }
        Ok(daemon)
    }

    /// Whether each thread that serves channels takes notice within that time: a service manager
    /// may ask.
    pub fn answers(&self, within: Duration) -> bool {
        let (posts, by) = (&self.state.posts, Instant::now() + within);
        let before: Vec<u64> = posts.iter().map(Post::ask).collect();
        posts.iter().zip(before).all(|(post, before)| post.has_answered(before, by))
    }

    /// The commands of its channels so far, by user and kind. Subordinate users count as their
    /// owner.
    pub fn commands(&self) -> BTreeMap<u32, BTreeMap<String, u64>> {
        let by_kind = |(user, counted): (u32, Counted)| (user, counted.by_kind());
        self.state.commands().into_iter().map(by_kind).collect()
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
            threads: self.state.posts.iter().filter(|post| post.channels() > 0).count() as u64,
            reachable,
            made: of(&counters.made),
            broken: of(&counters.broken),
            commands: self.state.commands().values().map(Counted::sum).sum(),
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
            let access =
                Access::to(open, epoch, self.account(open.opener.uid()), &self.state.mapped)
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
            let in_memory = matches!(access, Access::Memory { .. });
            let (entry, generation) = table.insert(open.clone(), access);
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
