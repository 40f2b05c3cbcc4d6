// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread, many tasks: futures that wait for storage, timers, sockets and words together.
//!
//! A continuation is a future. When no task can go on, the
//! [`WaitMachine`](dwell_policy::WaitMachine) says whether the thread spins, naps or blocks, as was
//! decided for the request due first. It blocks for everything it waits for at once ([`Parker`]),
//! and until as many completions are there as are worth one wake-up.
//!
//! ```
//! use std::sync::Arc;
//! use dwell::executor::Executor;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("data");
//! # std::fs::write(&path, vec![7u8; 8 * 4096])?;
//! let executor = Executor::new()?;
//! let file = executor.file(Arc::new(dwell::File::open(&path)?))?;
//! let reads: Vec<_> = (0..8)
//!     .map(|at| {
//!         let file = file.clone();
//!         executor.spawn(async move { file.read_at(vec![0; 4096], at * 4096).await })
//!     })
//!     .collect();
//! executor.block_on(async {
//!     for read in reads {
//!         let (result, buffer) = read.await;
//!         assert_eq!((result?, buffer[0]), (4096, 7));
//!     }
//!     Ok::<(), dwell::Error>(())
//! })?;
//! # Ok(())
//! # }
//! ```

mod descriptor;
mod doorbell;
mod file;
mod idle;
mod inner;
mod platform;
mod reactor;
mod readiness;
mod request;
mod shared;
mod tasks;
mod time;
mod word;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_task::Runnable;
use dwell_policy::{Ns, Outcome};
use slab::Slab;

use crate::park::Parker;
use reactor::Reactor;
use shared::Shared;

#[doc(hidden)]
pub use descriptor::Watched;
pub use file::AsyncFile;
#[doc(hidden)]
pub use platform::{Alarm, Platform, Ready};
pub use tasks::JoinHandle;
pub use time::{Elapsed, Sleep};
#[doc(hidden)]
pub use word::Changed;

/// How long a dropped executor waits for requests before it leaves their memory to the kernel, in
/// nanoseconds.
const DROP_PATIENCE_NS: Ns = 200_000_000;

/// What an executor did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct Counts {
    /// Steps of tasks, that of `block_on` included.
    pub steps: u64,
    /// Times that no task could go on.
    pub waits: u64,
    /// Times that the thread blocked for that.
    pub parks: u64,
    /// Requests on queues that are over.
    pub completions: u64,
    /// Busy-waiting, in nanoseconds.
    pub spun_ns: Ns,
    /// Asleep on a timer, in nanoseconds.
    pub slept_ns: Ns,
    /// Parked, in nanoseconds.
    pub parked_ns: Ns,
}

impl Counts {
    fn waited(&mut self, outcome: &Outcome) {
        self.waits += 1;
        self.spun_ns += outcome.spun_ns;
        self.slept_ns += outcome.slept_ns;
        self.parked_ns += outcome.parked_ns;
    }
}

/// Runs tasks on the thread that made it. Dropped, it cancels them all.
pub struct Executor {
    handle: Handle,
}

/// Spawns tasks and makes what they wait for. Clones are handles of the same executor; once that is
/// dropped, nothing that is waited for comes any more.
#[derive(Clone)]
pub struct Handle {
    core: Rc<Core>,
}

struct Core {
    shared: Arc<Shared>,
    reactor: RefCell<Reactor>,
    /// Wakers of the tasks that are not over.
    active: RefCell<Slab<Waker>>,
    batch: RefCell<VecDeque<Runnable>>,
    running: Cell<bool>,
    closed: Cell<bool>,
    depth: u32,
}

impl Executor {
    /// Requests in flight on one queue; more wait for room.
    pub const DEPTH: u32 = 256;

    /// An executor of the calling thread.
    ///
    /// # Errors
    /// What the system refuses: no descriptor is left, say.
    pub fn new() -> io::Result<Self> {
        Self::with_depth(Self::DEPTH)
    }

    /// As [`Executor::new`], with up to `depth` requests in flight on one queue, from 1 to 4096.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn with_depth(depth: u32) -> io::Result<Self> {
        Ok(Self::over(Box::new(Parker::new()?), depth))
    }

    /// An executor in a platform of the caller's choosing.
    pub fn over(platform: Box<dyn Platform>, depth: u32) -> Self {
        let core = Core {
            shared: Arc::new(Shared::new(platform.alarm())),
            reactor: RefCell::new(Reactor::new(platform)),
            active: RefCell::default(),
            batch: RefCell::default(),
            running: Cell::new(false),
            closed: Cell::new(false),
            depth: depth.clamp(1, 4096),
        };
        Executor { handle: Handle { core: Rc::new(core) } }
    }

    /// A handle for tasks to keep.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs `future`, and all tasks beside it, until it is done. Tasks that are not over go on
    /// with the next call.
    ///
    /// # Panics
    /// Within a task of the same executor, which would wait for itself; and as `future` does.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let core = &*self.handle.core;
        let _running = Running::enter(core);
        let waker = Waker::from(core.shared.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        waker.wake_by_ref();
        loop {
            let main = core.shared.take(&mut core.batch.borrow_mut());
            if main {
                core.reactor.borrow_mut().counts.steps += 1;
                if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                    core.settle();
                    return done;
                }
            }
            core.run_batch();
            core.settle();
            let mut reactor = core.reactor.borrow_mut();
            match core.shared.has_news() {
                true => reactor.look(),
                false => reactor.wait(&core.shared),
            }
            drop(reactor);
            core.settle();
        }
    }
}

impl Deref for Executor {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        let core = &*self.handle.core;
        core.closed.set(true);
        loop {
            let wakers: Vec<Waker> =
                core.active.borrow().iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
            core.shared.take(&mut core.batch.borrow_mut());
            // A future may come back here when it is dropped.
            while let Some(task) = core.next_task() {
                drop(task);
            }
            core.settle();
            if core.active.borrow().is_empty() {
                break;
            }
            // Another thread is just about to wake the rest.
            if !core.shared.has_news() {
                core.reactor.borrow_mut().wait(&core.shared);
                core.settle();
            }
        }
        let mut reactor = core.reactor.borrow_mut();
        reactor.cancel_all();
        let until = reactor.platform.now().saturating_add(DROP_PATIENCE_NS);
        reactor.wait_for_ends(until);
        reactor.give_up(true);
        drop(reactor);
        core.settle();
    }
}

impl Handle {
    /// The time on the executor's clock, in nanoseconds: [`clock::now`](crate::clock::now), unless
    /// its platform has another.
    pub fn now(&self) -> Ns {
        self.core.reactor.borrow_mut().platform.now()
    }

    /// What the executor did so far.
    pub fn counts(&self) -> Counts {
        self.core.reactor.borrow().counts
    }

    /// Lets the other tasks that are ready go first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Core {
    fn next_task(&self) -> Option<Runnable> {
        self.batch.borrow_mut().pop_front()
    }

    /// Runs the tasks that were ready before; what they wake waits for the next turn.
    fn run_batch(&self) {
        let mut steps = 0;
        while let Some(task) = self.next_task() {
            steps += 1;
            task.run();
        }
        self.reactor.borrow_mut().counts.steps += steps;
    }

    /// Does what the reactor left for when it is let go of.
    fn settle(&self) {
        loop {
            let mut reactor = self.reactor.borrow_mut();
            if reactor.after.is_empty() {
                return;
            }
            let mut after = std::mem::take(&mut reactor.after);
            drop(reactor);
            after.run();
            let mut reactor = self.reactor.borrow_mut();
            if reactor.after.is_empty() {
                // With the room it has got.
                reactor.after = after;
            }
        }
    }
}

/// Marks an executor as running.
struct Running<'a>(&'a Core);

impl<'a> Running<'a> {
    fn enter(core: &'a Core) -> Self {
        assert!(!core.running.replace(true), "block_on within a task of the same executor");
        Running(core)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
    }
}
