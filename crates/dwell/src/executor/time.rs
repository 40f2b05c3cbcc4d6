// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping until a moment, and giving up at one.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use dwell_policy::Ns;

use super::{Core, Handle};
use crate::clock;
use crate::timers::TimerId;

/// A moment passed before a future was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done in time")]
pub struct Elapsed;

impl Handle {
    /// Done once [`Handle::now`] shows `at`. A thread that blocked meanwhile is late by what
    /// its timer and the wake-up cost.
    pub fn sleep_until(&self, at: Ns) -> Sleep {
        Sleep { core: self.core.clone(), at, timer: None }
    }

    /// Done once `span` has passed on the clock that [`Handle::now`] shows.
    pub fn sleep(&self, span: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(clock::ns_of(span)))
    }

    /// Runs a future for `span` at most, and drops it then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dwell::executor::{Elapsed, Executor};
    ///
    /// let executor = Executor::new()?;
    /// let never = executor.timeout(Duration::from_millis(1), std::future::pending::<()>());
    /// assert_eq!(executor.block_on(never), Err(Elapsed));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Elapsed`] when it was not done by then.
    pub async fn timeout<F: Future>(
        &self,
        span: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        self.timeout_at(self.now().saturating_add(clock::ns_of(span)), future).await
    }

    /// Runs a future until the moment `at`, and drops it then.
    ///
    /// # Errors
    /// [`Elapsed`] when it was not done by then.
    pub async fn timeout_at<F: Future>(&self, at: Ns, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        let mut sleep = self.sleep_until(at);
        poll_fn(|context| {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed))
        })
        .await
    }
}

/// See [`Handle::sleep_until`].
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    core: Rc<Core>,
    at: Ns,
    timer: Option<TimerId>,
}

impl Sleep {
    /// When it is done.
    pub fn at(&self) -> Ns {
        self.at
    }

    /// Has it be done at another moment.
    pub fn reset(&mut self, at: Ns) {
        self.at = at;
        if let Some(timer) = self.timer
            && !self.core.reactor.borrow_mut().timers.reset(timer, at)
        {
            self.timer = None;
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut reactor = self.core.reactor.borrow_mut();
        let set = self.timer.and_then(|timer| reactor.timers.get_mut(timer));
        if let Some(waker) = set {
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        if reactor.platform.now() >= self.at {
            return Poll::Ready(());
        }
        let timer = reactor.timers.insert(self.at, context.waker().clone());
        drop(reactor);
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let timer = self.timer.take();
        let _waker = timer.and_then(|timer| self.core.reactor.borrow_mut().timers.remove(timer));
    }
}
