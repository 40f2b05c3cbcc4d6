// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request on its way to the tree: counted, and answered by this thread or by one that may wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuser::Request;

use super::counts::Asked;
use super::tree::Tree;

/// What the kernel talks to.
pub(super) struct Served {
    pub tree: Arc<Tree>,
    /// Threads that may still wait for a device: all that take requests but one.
    may_wait: AtomicUsize,
}

impl Served {
    /// A tree, whose requests so many threads take.
    pub fn new(tree: Arc<Tree>, threads: usize) -> Self {
        Served { tree, may_wait: AtomicUsize::new(threads.saturating_sub(1)) }
    }

    /// The tree, which carries the request out.
    pub fn count(&self, asked: Asked) -> &Tree {
        self.tree.counts.one(asked);
        &self.tree
    }

    /// Lets this thread wait for a device; `None` where no other would be left to take requests.
    pub fn wait(&self) -> Option<Waiting<'_>> {
        let one_less = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        self.may_wait.fetch_update(order, order, one_less).ok().map(|_| Waiting(&self.may_wait))
    }

    /// Answers a request: here, or on a thread of its own where it may take long or this one may
    /// not wait.
    pub fn answer(
        &self,
        request: &Request,
        may_take_long: bool,
        answer: impl FnOnce(&Tree) + Send + 'static,
    ) {
        match self.wait().filter(|_| !may_take_long) {
            Some(_waits) => answer(&self.tree),
            None => self.slowly(request, answer),
        }
    }

    /// Answers a request that may take long on a thread that has nothing else to do.
    pub fn slowly(&self, request: &Request, answer: impl FnOnce(&Tree) + Send + 'static) {
        let tree = self.tree.clone();
        self.tree.slow.run(tree.grants.account(request.uid()), move || answer(&tree));
    }
}

/// A thread that may wait for a device, until this is dropped.
#[must_use]
pub(super) struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
