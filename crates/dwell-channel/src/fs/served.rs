// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request on its way to the tree: counted, and answered by this thread or by one that may wait.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuser::{FileHandle, ReplyDirectoryPlus, ReplyEntry, Request};
use rustix::io::Errno;

use super::counts::Asked;
use super::node::Room;
use super::replies::{entry, out};
use super::tree::{Entry, Tree};

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

    /// Answers a request by which the kernel comes to know one more file. If the user has nearly
    /// all that one may have, it waits on a thread of that user's: nobody else waits with it, and
    /// what the kernel forgets is heard here.
    pub fn with_room(
        &self,
        request: &Request,
        answer: impl FnOnce(&Tree, Result<Room, Errno>) + Send + 'static,
    ) {
        let uid = request.uid();
        match self.tree.room(uid) {
            Some(room) => answer(&self.tree, Ok(room)),
            None => self.slowly(request, move |tree| answer(tree, tree.wait_for_room(uid))),
        }
    }

    /// Answers a look-up, as [`Served::with_room`] unless the kernel knows the file already.
    pub fn look_up(&self, request: &Request, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let uid = request.uid();
        let room = self.tree.room(uid);
        let is_crowded = room.is_none();
        match self.tree.lookup(parent, name, room) {
            Err(Errno::NFILE) if is_crowded => {
                let name = name.to_owned();
                self.slowly(request, move |tree| {
                    let room = tree.wait_for_room(uid);
                    entry(reply, room.and_then(|room| tree.lookup(parent, &name, Some(room))));
                });
            }
            found => entry(reply, found),
        }
    }

    /// Answers READDIRPLUS: with what there is room for, or after a while with one entry.
    pub fn list(
        &self,
        request: &Request,
        handle: FileHandle,
        place: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let uid = request.uid();
        match fill(&mut reply, &self.tree, (handle, place), || self.tree.room(uid)) {
            Err(Errno::NFILE) => self.slowly(request, move |tree| {
                let filled = tree.wait_for_room(uid).and_then(|room| {
                    let mut first = Some(room);
                    let room = || first.take().or_else(|| tree.room(uid));
                    fill(&mut reply, tree, (handle, place), room)
                });
                all(reply, filled);
            }),
            filled => all(reply, filled),
        }
    }
}

fn fill(
    reply: &mut ReplyDirectoryPlus,
    tree: &Tree,
    (handle, place): (FileHandle, u64),
    room: impl FnMut() -> Option<Room>,
) -> Result<(), Errno> {
    tree.readdirplus(handle, place, room, |next, name, entry| {
        let Entry { attr, generation, fresh, .. } = entry;
        !reply.add(attr.ino, next, name, fresh, attr, *generation)
    })
}

fn all(reply: ReplyDirectoryPlus, filled: Result<(), Errno>) {
    match filled {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(out(error)),
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
