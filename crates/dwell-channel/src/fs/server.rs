// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serving a directory from the first moment to the last: mounts, and stops.

#[cfg(test)]
mod crowded;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dwell_mounts::{self as mounts, How, SERVED};
use fuser::{Config, MountOption, SessionACL};
use rustix::process::{Resource, Rlimit};

use super::caller::Callers;
use super::charges::Charges;
use super::error::Error;
use super::facts::{Channels, Facts};
use super::forget::forget_old;
use super::hidden::Hidden;
use super::lock::lock;
use super::node::Nodes;
use super::options::Options;
use super::passthrough::{Passthrough, TMPFS, kind_of};
use super::preconditions::{check_system, open_directory, open_mount, places};
use super::served::Served;
use super::tree::{Table, Tree, lifetime};
use super::watch::Watch;
use crate::credentials;
use crate::grants::{Grants, Inodes};
use crate::shares::Shares;
use crate::slow::Slow;

/// What one user's writes may hold of the daemon's memory while they wait, as much as channels may.
const MOST_WAITING_BYTES: u64 = 1 << 30;

/// A served directory. Dropping it stops it at once.
pub struct Server {
    shared: Arc<Shared>,
}

/// Stops and questions a server from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

struct Shared {
    tree: Arc<Tree>,
    options: Options,
    every_user: bool,
    since_unix_s: u64,
    count_channels: Box<dyn Fn() -> Channels + Send + Sync>,
    hidden: Mutex<Option<Hidden>>,
    /// Keeps other daemons off the backing directory.
    lock: Mutex<Option<OwnedFd>>,
    ended: Mutex<Option<Result<(), String>>>,
    ends: Condvar,
}

impl Server {
    /// Serves a directory, at a place that [`super::take_over`] has readied.
    ///
    /// The limit of open files of this process is raised as far as it goes: every file that the
    /// kernel knows takes one.
    ///
    /// # Errors
    /// What cannot be opened, mounted or hidden, and why.
    pub fn start(
        options: &Options,
        grants: Arc<dyn Grants>,
        count_channels: impl Fn() -> Channels + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        Self::start_with(raise_open_files(), options, grants, count_channels)
    }

    /// As [`Server::start`], with so many descriptors.
    fn start_with(
        most_files: usize,
        options: &Options,
        grants: Arc<dyn Grants>,
        count_channels: impl Fn() -> Channels + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        let start = || Self::start_here(most_files, options, grants, count_channels);
        credentials::with_what_is_needed(start).unwrap_or_else(|error| {
            Err(Error::io("capabilities cannot be given up", &options.mount, error))
        })
    }

    fn start_here(
        most_files: usize,
        options: &Options,
        grants: Arc<dyn Grants>,
        count_channels: impl Fn() -> Channels + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        let (backing, mount) = places(options)?;
        // Names of the backing directory are looked up in it, whatever is mounted above later.
        let root = open_directory(&backing)?;
        open_mount(&mount)?;
        let lock = lock(&root, &backing)?;
        let callers = Callers::of_this_process()
            .map_err(|error| Error::io("cannot learn who this process is", &mount, error))?;
        let every_user = matches!(callers, Callers::All { .. });
        check_system(&mount)?;

        let private = options.private && backing != mount;
        let hidden =
            private.then(|| Hidden::hide(&backing, every_user)).transpose().map_err(|error| {
                let what = format!(
                    "cannot be hidden: {error}; --private needs a directory that you own, or root"
                );
                Error::invalid(&backing, what)
            })?;

        let no_thread = |error| Error::io("no thread to serve it", &mount, error);
        let watch = Watch::new(&mount).map_err(no_thread)?;
        let (crowded, crowds) = sync_channel(1);
        let passthrough = Passthrough::new(options.passthrough, &callers, &root);
        let in_memory = kind_of(&root) == Some(TMPFS);
        let charges = Charges::new(most_files / 4 * 3, !every_user);
        let nodes = Nodes::new(root, charges)
            .map_err(|error| Error::io("cannot be looked at", &backing, error))?;
        let tree = Arc::new(Tree {
            nodes,
            files: Table::default(),
            directories: Table::default(),
            inodes: Inodes::default(),
            grants,
            counts: Default::default(),
            callers,
            passthrough,
            open_files: Shares::new(files_per_user(most_files, every_user)),
            slow: Slow::default(),
            waiting: Shares::new(MOST_WAITING_BYTES),
            watch,
            in_memory,
            lifetime: lifetime(options.private || backing == mount),
            open_flags: OnceLock::new(),
            shared_mappings: OnceLock::new(),
            notifier: OnceLock::new(),
            crowded,
        });
        let options = Options { backing, mount, ..options.clone() };
        let served = Served::new(tree.clone(), threads(&options));
        let session = mounts::session(served, &options.mount, &config(&options, every_user))
            .map_err(|error| mount_error(&options.mount, error))?;
        let _ = tree.notifier.set(session.notifier());
        let session = session
            .spawn()
            .map_err(|error| Error::io("no thread to serve it", &options.mount, error))?;

        let since_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let shared = Arc::new(Shared {
            tree: tree.clone(),
            options,
            every_user,
            since_unix_s,
            count_channels: Box::new(count_channels),
            hidden: Mutex::new(hidden),
            lock: Mutex::new(lock),
            ended: Mutex::new(None),
            ends: Condvar::new(),
        });
        let server = Server { shared: shared.clone() };
        let (tree, mount) = (Arc::downgrade(&tree), shared.options.mount.clone());
        let no_thread =
            |error| Error::io("no thread to serve it", &server.shared.options.mount, error);
        thread::Builder::new()
            .name("dwell-forget".to_owned())
            .spawn(move || forget_old(&tree, &mount, &crowds))
            .map_err(no_thread)?;
        thread::Builder::new()
            .name("dwell-end".to_owned())
            .spawn(move || shared.end(session.join().map_err(|error| error.to_string())))
            .map_err(no_thread)?;
        Ok(server)
    }

    /// A handle for other threads.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// Returns when nothing is served any more: stopped, or unmounted by anybody.
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn wait(&self) -> Result<(), Error> {
        let mut ended = self.shared.lock();
        loop {
            match ended.take() {
                Some(result) => {
                    *ended = Some(result.clone());
                    let path = &self.shared.options.mount;
                    return result.map_err(|what| Error::invalid(path, what));
                }
                None => {
                    ended = self.shared.ends.wait(ended).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to do.
        let _ = self.stopper().stop(true);
    }
}

impl Stopper {
    /// What the server is doing.
    pub fn facts(&self) -> Facts {
        let Shared { tree, options, .. } = &*self.0;
        Facts {
            pid: std::process::id(),
            backing: options.backing.clone(),
            mount: options.mount.clone(),
            private: options.private,
            every_user: self.0.every_user,
            shared_mappings: tree.shared_mappings.get().copied().unwrap_or(false),
            data_path: tree.passthrough.path(),
            since_unix_s: self.0.since_unix_s,
            threads: options.threads,
            known_files: tree.nodes.len(),
            open_files: tree.files.len(),
            open_directories: tree.directories.len(),
            channels: (self.0.count_channels)(),
            requests: tree.counts.made(),
        }
    }

    /// Whether somebody takes up within that time what the kernel asks: a service manager may want
    /// to know. It does not matter whether a device answers.
    pub fn answers(&self, within: Duration) -> bool {
        self.0.tree.watch.comes_back(within)
    }

    /// Ends serving. Without `force` only if nobody uses the mount; with it, channels are drained
    /// and revoked and whoever still has files open gets errors.
    ///
    /// # Errors
    /// Somebody uses it, or the system refuses to unmount.
    pub fn stop(&self, force: bool) -> Result<(), Error> {
        if self.0.lock().is_some() {
            return Ok(());
        }
        let mount = &self.0.options.mount;
        if force {
            self.0.tree.grants.revoke_all();
        }
        match mounts::unmount(mount, if force { How::Now } else { How::Idle }) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(Error::Busy { path: mount.clone(), users: mounts::users(mount, 5) });
            }
            // Unmounted by somebody else at the same time.
            Err(_) if !mounts::mounted_at(mount).is_ok_and(|found| found.is_some()) => {}
            Err(error) => return Err(Error::io("cannot be unmounted", mount, error)),
        }
        self.0.end(Ok(()));
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is served any more.
    fn end(&self, how: Result<(), String>) {
        {
            let mut ended = self.lock();
            if ended.is_some() {
                return;
            }
            *ended = Some(how);
        }
        self.tree.grants.revoke_all();
        drop(self.hidden.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.ends.notify_all();
    }
}

/// As many files as this process may have open from now on.
fn raise_open_files() -> usize {
    let found = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: found.maximum, maximum: found.maximum };
    let now = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => found.current,
    };
    now.map_or(1 << 20, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Files and directories that one user may have open, of so many descriptors. A quarter of all is
/// for what is open, and one that a channel reaches past the page cache takes two.
fn files_per_user(most_files: usize, every_user: bool) -> u64 {
    let part = if every_user { 16 } else { 8 };
    (most_files / part).max(16) as u64
}

/// Threads that take the kernel's requests. One of them never waits for a device.
fn threads(options: &Options) -> usize {
    options.threads.max(2)
}

fn config(options: &Options, every_user: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(mounts::source(SERVED, &options.backing)),
        MountOption::Subtype("dwell".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.acl = if every_user { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads(options));
    config.clone_fd = true;
    config
}

fn mount_error(mount: &Path, error: io::Error) -> Error {
    let text = error.to_string();
    match error.kind() {
        io::ErrorKind::NotFound => Error::invalid(
            mount,
            "cannot be mounted: neither the right to mount nor fusermount3 (package fuse3) is there",
        ),
        _ => Error::invalid(mount, format!("cannot be mounted: {}", text.trim())),
    }
}
