// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tasks: spawned, joined, cancelled.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Core, Handle};

/// Takes a task out of the list of those that are not over.
struct Entry {
    core: Rc<Core>,
    key: usize,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The waker may hold the last of its task, so it goes after the list is let go of.
        let _waker = self.core.active.borrow_mut().try_remove(self.key);
    }
}

impl Handle {
    /// Runs a future beside the others. Its first step comes in its turn.
    ///
    /// Once the executor has been dropped nothing runs any more: the task is cancelled at once.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let core = &self.core;
        let entry = {
            let mut active = core.active.borrow_mut();
            Entry { core: core.clone(), key: active.insert(std::task::Waker::noop().clone()) }
        };
        let key = entry.key;
        let task = async move {
            let _entry = entry;
            future.await
        };
        let shared = core.shared.clone();
        let schedule = move |task| shared.schedule(task);
        let builder = async_task::Builder::new().propagate_panic(true);
        let (runnable, task) = builder.spawn_local(|()| task, schedule);
        if let Some(waker) = core.active.borrow_mut().get_mut(key) {
            *waker = runnable.waker();
        }
        match core.closed.get() {
            true => drop(runnable),
            false => runnable.schedule(),
        }
        JoinHandle { task }
    }
}

/// A task's result, to be awaited. Dropped, it cancels the task: its future is dropped at its next
/// turn.
///
/// A panic of the task goes on in whoever awaits it.
#[must_use = "dropping it cancels the task; detach() lets it go on"]
pub struct JoinHandle<T> {
    task: async_task::Task<T>,
}

impl<T> JoinHandle<T> {
    /// Lets the task go on by itself.
    pub fn detach(self) {
        self.task.detach();
    }

    /// Cancels the task and waits until its future is dropped: its result, if it was over before.
    pub async fn cancel(self) -> Option<T> {
        self.task.cancel().await
    }

    /// Whether the task is over.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    /// # Panics
    /// As the task did; and when the executor was dropped before the task was over.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(context)
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}
