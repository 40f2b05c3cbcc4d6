// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has the kernel forget files, so that their descriptors are free again.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use dwell_mounts as mounts;
use fuser::{INodeNo, Notifier};

use super::tree::Tree;

/// Names of one user that the kernel is asked to forget before it is looked again.
const AT_ONCE: usize = 256;
/// Threads that ask, for each user. Each waits for the requests in its name's directory, and the
/// kernel lets in all that have waited for long enough before the next request. A user who looks up
/// names of one directory in as many threads as may wait at a time is still overtaken.
const FORGETTERS: usize = 32;

/// Users of whom something is being forgotten.
type Busy = Arc<Mutex<HashSet<u32>>>;

/// Names of one user that are being forgotten; that user is busy until this is dropped.
struct Round {
    account: u32,
    names: Vec<(u64, OsString)>,
    next: AtomicUsize,
    notifier: Notifier,
    busy: Busy,
}

/// Asks the kernel to forget what it has known longest of users who have nearly all they may have.
/// It may keep one user's directory busy for long: nobody waits for another's.
pub(super) fn forget_old(tree: &Weak<Tree>, mount: &Path, crowds: &Receiver<()>) {
    let busy = Busy::default();
    while crowds.recv().is_ok() {
        let Some(tree) = tree.upgrade() else { return };
        let Some(notifier) = tree.notifier.get() else { continue };
        let are_busy = users(&busy).clone();
        let oldest = tree
            .nodes
            .oldest(AT_ONCE, !is_mounted_below(mount), |account| !are_busy.contains(&account));
        for (account, names) in oldest {
            users(&busy).insert(account);
            let (notifier, busy) = (notifier.clone(), busy.clone());
            let threads = names.len().min(FORGETTERS);
            let next = AtomicUsize::new(0);
            let round = Arc::new(Round { account, names, next, notifier, busy });
            for _ in 0..threads {
                let asks = round.clone();
                let forgetter = thread::Builder::new().name("dwell-forget".to_owned());
                if forgetter.spawn(move || asks.forget()).is_err() {
                    round.forget();
                }
            }
        }
    }
}

fn users(busy: &Busy) -> std::sync::MutexGuard<'_, HashSet<u32>> {
    busy.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether something is mounted within the served tree. The kernel takes it off a directory that it
/// forgets.
fn is_mounted_below(mount: &Path) -> bool {
    let is_below = |at: &Path| at != mount && at.starts_with(mount);
    mounts::all().is_ok_and(|all| all.iter().any(|mounted| is_below(&mounted.at)))
}

impl Round {
    fn forget(&self) {
        while let Some((parent, name)) = self.names.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // A file that is open stays open, and one that is gone needs nothing.
            let _ = self.notifier.inval_entry(INodeNo(*parent), name);
        }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        users(&self.busy).remove(&self.account);
    }
}
