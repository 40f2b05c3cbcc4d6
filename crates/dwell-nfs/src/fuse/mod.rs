// SPDX-License-Identifier: MIT OR Apache-2.0
//! An export as a directory of this machine, through the kernel's FUSE: any program uses the
//! client. One thread hears the kernel's requests, another carries all of them out beside each
//! other.

mod asker;
mod data;
mod export;
mod freshness;
mod kernel;
mod nodes;
mod post;
mod reserved;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dwell::executor::{Elapsed, Executor};
use dwell_mounts::{self as mounts, EXPORT, How};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};

use crate::client::Client;
use crate::engine::Counters;
use crate::error::{Error, Result, Why};
use crate::url::{GiveUp, Url};
use export::{Export, Told};
use post::Post;

/// A server that does not answer when it is mounted is given up after so long, as mount(8) does.
const OPENING: Duration = Duration::from_secs(120);
/// Programs that use a mount, so many of them are named.
const MOST_USERS: usize = 5;

/// A mounted export. Dropping it leaves the mount to whoever waits for its end.
pub struct Mounted {
    at: PathBuf,
    session: BackgroundSession,
    worker: JoinHandle<u64>,
    post: Arc<Post>,
}

/// Unmounts from another thread.
#[derive(Clone)]
pub struct Stopper(PathBuf);

fn failed(action: &'static str, at: &Path) -> impl Fn(io::Error) -> Error {
    let path = at.display().to_string();
    move |error| Error::new(action, &path, error)
}

/// Whether a killed daemon left a mount at a place, in whose stead the next one is put.
///
/// # Errors
/// An export is mounted there; what the system refuses.
pub fn is_left_behind(at: &Path) -> Result<bool> {
    let at = mounts::absolute(at).map_err(failed("finding the directory", at))?;
    let Some(there) = export_at(&at)? else { return Ok(false) };
    if !there.is_stale() {
        return Err(Error::invalid(at.display(), "an export is mounted there already"));
    }
    Ok(true)
}

/// Unmounts an export if nobody uses it; with `force`, also if somebody does, who then gets errors.
///
/// # Errors
/// Nothing is mounted there; somebody uses it; what the system refuses.
pub fn unmount(at: &Path, force: bool) -> Result<()> {
    unmount_as(at, |there| force || there.is_stale())
}

fn export_at(at: &Path) -> Result<Option<mounts::Mounted>> {
    let there = mounts::mounted_at(at).map_err(failed("reading the table of mounts", at))?;
    Ok(there.filter(|there| there.is_from(&[EXPORT])))
}

fn unmount_as(at: &Path, is_forced: impl FnOnce(&mounts::Mounted) -> bool) -> Result<()> {
    let at = mounts::absolute(at).map_err(failed("finding the directory", at))?;
    let Some(there) = export_at(&at)? else {
        return Err(Error::invalid(at.display(), "no export is mounted there"));
    };
    let how = if is_forced(&there) { How::Now } else { How::Idle };
    mounts::unmount(&at, how).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let users = mounts::users(&at, MOST_USERS).join(", ");
            let by = if users.is_empty() { String::new() } else { format!(" by {users}") };
            Error::invalid(at.display(), format!("in use{by}; --force unmounts it nevertheless"))
        }
        _ => failed("unmounting", &at)(error),
    })
}

impl Mounted {
    /// Mounts an export, or a directory in it, at a directory of this machine. Nobody but this user
    /// may look in: to the server every request is this user's. A request waits for the server as
    /// long as its program does, unless the address says when it fails.
    ///
    /// # Errors
    /// What the server or the system says.
    pub fn start(url: &Url, at: &Path) -> Result<Mounted> {
        Self::start_telling(url, at, |_| {})
    }

    /// As [`Mounted::start`]. `told` hears of data that could not be made durable, where no program
    /// can be told any more: those that wrote it have closed the file.
    ///
    /// # Errors
    /// As [`Mounted::start`].
    pub fn start_telling(
        url: &Url,
        at: &Path,
        told: impl FnMut(&Error) + Send + 'static,
    ) -> Result<Mounted> {
        let at = mounts::absolute(at).map_err(failed("finding the directory", at))?;
        if !is_left_behind(&at)? {
            let found = std::fs::metadata(&at).map_err(failed("finding the directory", &at))?;
            if !found.is_dir() {
                return Err(Error::invalid(at.display(), "is no directory"));
            }
        }
        let post = Arc::new(Post::default());
        let (sender, receiver) = mpsc::channel();
        let (theirs, mut address) = (post.clone(), url.clone());
        address.retry.give_up.get_or_insert(GiveUp::Never);
        let worker = thread::Builder::new()
            .name("dwell-nfs".into())
            .spawn(move || serve(&address, &theirs, Box::new(told), &sender))
            .map_err(failed("starting a thread", &at))?;
        let found = receiver.recv().unwrap_or_else(|_| {
            Err(Error::invalid(url, "the thread that should serve it has ended"))
        });
        let root = match found {
            Ok(root) => root,
            Err(error) => {
                let _ = worker.join();
                return Err(error);
            }
        };
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(mounts::source(EXPORT, url.to_string())),
            MountOption::Subtype("dwell".into()),
        ];
        config.acl = SessionACL::Owner;
        let session = mounts::session(kernel::Kernel::new(post.clone()), &at, &config);
        let session = session.inspect_err(|_| post.close());
        let session = session.map_err(failed("mounting", &at))?;
        let notifier = session.notifier();
        post.run(move |export| async move { export.began(root, notifier) });
        let session = session.spawn().map_err(failed("starting a thread", &at))?;
        Ok(Mounted { at, session, worker, post })
    }

    /// A handle for other threads.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.at.clone())
    }

    /// What happened on its connections so far.
    pub fn counters(&self) -> Counters {
        let (sender, receiver) = mpsc::channel();
        self.post.run(move |export| async move {
            // The caller waits for it.
            let _ = sender.send(export.counters());
        });
        receiver.recv().unwrap_or_default()
    }

    /// Returns when it is unmounted, by whomever. What was written is durable then, if the server
    /// still answers.
    ///
    /// # Errors
    /// The connection to the kernel broke; what programs wrote is lost.
    pub fn wait(self) -> Result<()> {
        let ended = self.session.join();
        self.post.close();
        let lost = self.worker.join().unwrap_or_default();
        ended.map_err(failed("serving", &self.at))?;
        if lost > 0 {
            let what = format!("{lost} bytes that programs wrote were never made durable");
            return Err(Error::invalid(self.at.display(), what));
        }
        Ok(())
    }
}

impl Stopper {
    /// As [`unmount`], for the process that serves the mount: it does not ask the server whether
    /// anybody answers for it, which would wait for a server that is away.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn stop(&self, force: bool) -> Result<()> {
        unmount_as(&self.0, |_| force)
    }

    /// Whether an export is mounted there still. Without one, what was written is being made
    /// durable, as long as the server answers.
    pub fn is_mounted(&self) -> bool {
        export_at(&self.0).is_ok_and(|there| there.is_some())
    }
}

/// What was found of a mount's root.
pub(super) type Root = crate::client::Found;

/// Mounts at the server, says how that went, and carries out the kernel's requests until there are
/// no more. How much of what was written is lost, in bytes.
fn serve(url: &Url, post: &Arc<Post>, unheard: Told, told: &mpsc::Sender<Result<Root>>) -> u64 {
    let executor = match Executor::new() {
        Ok(executor) => executor,
        Err(error) => {
            let _ = told.send(Err(Error::new("setting up the executor", url, error)));
            return 0;
        }
    };
    let tasks = executor.handle();
    executor.block_on(async {
        let opened = async {
            let client = Client::mount(&tasks, url).await?;
            let root = client.require_followed(url).await?;
            match root.attributes.kind {
                crate::nfs3::Kind::Directory => Ok((client, root)),
                _ => Err(Error::invalid(url, "is no directory")),
            }
        };
        let opened = tasks.timeout(OPENING, opened).await.unwrap_or_else(|Elapsed| {
            let after_ns = OPENING.as_nanos() as u64;
            Err(Error::new("mounting", url, Why::NoAnswer { server: url.server(), after_ns }))
        });
        match opened {
            Ok((client, root)) => {
                let export = Export::new(client, unheard);
                let _ = told.send(Ok(root));
                let rest = post.carry_out(&tasks, &export).await;
                export.end(rest.ended()).await
            }
            Err(error) => {
                let _ = told.send(Err(error));
                0
            }
        }
    })
}
