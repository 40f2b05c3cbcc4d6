// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serving a directory from the first moment to the last: takes over what a killed daemon left, mounts,
//! and stops.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use dwell_mounts::{self as mounts, How, SERVED};
use fuser::{Config, INodeNo, MountOption, Session, SessionACL};
use rustix::fs::{Access, FileType, Mode, OFlags};
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use super::caller::{Callers, take_umask};
use super::filesystem::Served;
use super::hidden::Hidden;
use super::lock::lock;
use super::node::Nodes;
use super::passthrough::{DataPath, Passthrough, TMPFS, kind_of};
use super::slow::Slow;
use super::tree::{Table, Tree};
use crate::credentials;
use crate::grants::{Grants, Inodes};
use crate::shares::Shares;

/// What went wrong with serving a directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{path}: {action}: {error}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It cannot be done so; the text says what to do.
    #[error("{path}: {what}")]
    Invalid {
        /// The directory.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// Programs use it.
    #[error("{path}: in use{}; end them, or stop with --force: they get errors", by(.users))]
    Busy {
        /// The mount.
        path: PathBuf,
        /// Some of those that use it, as far as this user may know.
        users: Vec<String>,
    },
    /// What a daemon in another process said.
    #[error("{0}")]
    Refused(String),
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

impl Error {
    pub(super) fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Error::Io { action, path: path.to_owned(), error: error.into() }
    }

    pub(super) fn invalid(path: &Path, what: impl Into<String>) -> Self {
        Error::Invalid { path: path.to_owned(), what: what.into() }
    }
}

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// Where: a directory. It may be the backing one.
    pub mount: PathBuf,
    /// Whether other processes are to be kept off the backing directory.
    pub private: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Whether the kernel is to carry out reads and writes by itself where it can.
    pub passthrough: bool,
}

/// What the channels of a daemon are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Clients that have one.
    pub channels: u64,
    /// Grants of open files so far.
    pub grants: u64,
    /// Commands served so far.
    #[serde(default)]
    pub commands: u64,
}

/// What a server says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The daemon's process.
    pub pid: u32,
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// Where.
    pub mount: PathBuf,
    /// Whether the backing directory is hidden.
    pub private: bool,
    /// Whether it serves every user, or its own alone.
    pub every_user: bool,
    /// Whether files can be mapped shared (Linux 6.6).
    pub shared_mappings: bool,
    /// How reads, writes and mappings reach the backing files.
    #[serde(default)]
    pub data_path: DataPath,
    /// Since when, in seconds of Unix time.
    pub since_unix_s: u64,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Files that the kernel knows.
    pub known_files: usize,
    /// Files that are open.
    pub open_files: usize,
    /// Directories that are open.
    pub open_directories: usize,
    /// The channels.
    pub channels: Channels,
    /// The kernel's requests, by kind.
    pub requests: BTreeMap<String, u64>,
}

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
    /// Serves a directory, at a place that [`take_over`] has found free.
    ///
    /// The limit of open files of this process is raised as far as it goes: every file that the kernel knows
    /// takes one.
    ///
    /// # Errors
    /// What cannot be opened, mounted or hidden, and why.
    pub fn start(
        options: &Options,
        grants: Arc<dyn Grants>,
        count_channels: impl Fn() -> Channels + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        let start = || Self::start_here(options, grants, count_channels);
        credentials::with_what_is_needed(start).unwrap_or_else(|error| {
            Err(Error::io("capabilities cannot be given up", &options.mount, error))
        })
    }

    fn start_here(
        options: &Options,
        grants: Arc<dyn Grants>,
        count_channels: impl Fn() -> Channels + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        let (backing, mount) = places(options)?;
        // Names of the backing directory are looked up in it, whatever is mounted above later.
        let root = open_directory(&backing)?;
        open_directory(&mount)?;
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

        let (crowded, crowds) = sync_channel(1);
        let passthrough = Passthrough::new(options.passthrough, &callers, &root);
        let in_memory = kind_of(&root) == Some(TMPFS);
        let most_files = raise_open_files();
        let nodes = Nodes::new(root, most_files / 4 * 3)
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
            in_memory,
            open_flags: OnceLock::new(),
            shared_mappings: OnceLock::new(),
            notifier: OnceLock::new(),
            crowded,
        });
        let options = Options { backing, mount, ..options.clone() };
        let session =
            Session::new(Served(tree.clone()), &options.mount, &config(&options, every_user))
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
        let tree = Arc::downgrade(&tree);
        let no_thread =
            |error| Error::io("no thread to serve it", &server.shared.options.mount, error);
        thread::Builder::new()
            .name("dwell-forget".to_owned())
            .spawn(move || forget_old(&tree, &crowds))
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

    /// Ends serving. Without `force` only if nobody uses the mount; with it, channels are drained and revoked
    /// and whoever still has files open gets errors.
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

/// Clears away what a killed daemon left where another is to serve: its mount, and what hid its backing
/// directory. Says what was there.
///
/// # Errors
/// Somebody serves there; what is missing or no directory; a mount that cannot be cleared away.
pub fn take_over(options: &Options) -> Result<Vec<String>, Error> {
    let (backing, mount) = places(options)?;
    let mut notes = Vec::new();
    clear_away(&mount, &mut notes)?;
    clear_away(&backing, &mut notes)?;
    open_directory(&backing)?;
    open_directory(&mount)?;
    Ok(notes)
}

/// The backing directory and the mount as absolute paths.
fn places(options: &Options) -> Result<(PathBuf, PathBuf), Error> {
    let found = |path: &Path| {
        mounts::absolute(path).map_err(|error| Error::io("cannot be found", path, error))
    };
    Ok((found(&options.backing)?, found(&options.mount)?))
}

fn clear_away(at: &Path, notes: &mut Vec<String>) -> Result<(), Error> {
    let find = || {
        let found = mounts::mounted_at(at)
            .map_err(|error| Error::io("mounts cannot be read", at, error))?;
        Ok(found.filter(mounts::Mounted::is_ours))
    };
    while let Some(found) = find()? {
        if !found.is_stale() {
            let what =
                "is served already (dwell serve status tells by whom; dwell serve stop ends it)";
            return Err(Error::invalid(at, what));
        }
        mounts::unmount(at, How::Now).map_err(|error| {
            Error::io("a killed controller's mount cannot be cleared away", at, error)
        })?;
        notes.push(format!("{}: took over from a controller that was killed", at.display()));
    }
    Ok(())
}

fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::io("cannot be opened", path, error))?;
    let stat = rustix::fs::fstat(&opened)
        .map_err(|error| Error::io("cannot be looked at", path, error))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(opened),
        _ => Err(Error::invalid(path, "is no directory")),
    }
}

/// The oldest kernel whose FUSE leaves nothing for a server to check: from 5.13 on it sees to it that only owners set flags
/// (`chattr`), and 5.15 is the oldest that is maintained.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Whether a kernel's release (`uname -r`) is old enough to be refused.
fn is_too_old(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < OLDEST_KERNEL,
        // A release of another form is none of an old kernel.
        _ => false,
    }
}

/// What every request will need.
fn check_system(mount: &Path) -> Result<(), Error> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_too_old(&release) {
        let (major, minor) = OLDEST_KERNEL;
        let what = format!(
            "is not served on Linux {release}, which does not check all rights; Linux {major}.{minor} or newer is needed"
        );
        return Err(Error::invalid(mount, what));
    }
    let need = |what: &'static str| move |error: rustix::io::Errno| Error::io(what, mount, error);
    rustix::fs::stat("/dev/fuse").map_err(need(
        "/dev/fuse is needed to serve it (modprobe fuse; in a container, pass the device in)",
    ))?;
    rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).map_err(need(
        "this user may not open /dev/fuse, which is needed to serve it (its mode is 666 elsewhere)",
    ))?;
    rustix::fs::stat("/proc/self/fd").map_err(need("/proc is needed to serve it"))?;
    super::node::open_at(rustix::fs::CWD, OsStr::new("."), OFlags::PATH, Mode::empty())
        .map_err(need("openat2 is needed to serve it (Linux 5.6)"))?;
    thread::spawn(|| take_umask(0o077)).join().unwrap_or(Err(rustix::io::Errno::AGAIN)).map_err(
        need("threads need a umask of their own to serve it (unshare of CLONE_FS is refused)"),
    )
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

/// Files and directories that one user may have open, of so many descriptors. A quarter of all is for what is open, and one that
/// a channel reaches past the page cache takes two.
fn files_per_user(most_files: usize, every_user: bool) -> u64 {
    let part = if every_user { 16 } else { 8 };
    (most_files / part).max(16) as u64
}

fn config(options: &Options, every_user: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(mounts::source(SERVED, &options.backing)),
        MountOption::Subtype("dwell".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.acl = if every_user { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(2));
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

/// Asks the kernel to forget what it has known longest, whenever descriptors get scarce.
fn forget_old(tree: &Weak<Tree>, crowds: &Receiver<()>) {
    while crowds.recv().is_ok() {
        let Some(tree) = tree.upgrade() else { return };
        let Some(notifier) = tree.notifier.get() else { continue };
        for (parent, name) in tree.nodes.oldest() {
            // What is open or gone stays as it is.
            let _ = notifier.inval_entry(INodeNo(parent), &name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_below_5_15_are_refused() {
        for old in ["5.8.0", "5.10.0-28-amd64", "4.19.0", "5.14.21-150500.55-default"] {
            assert!(is_too_old(old), "{old}");
        }
        for new in ["5.15.0", "5.15", "6.1.0-18-amd64", "6.18.44-fc-v669", "10.0.1", "unknown"] {
            assert!(!is_too_old(new), "{new}");
        }
    }
}
