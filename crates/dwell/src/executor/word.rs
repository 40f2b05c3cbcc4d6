// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words in memory that other threads or processes change.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use super::reactor::WordWait;
use super::{Core, Handle};

impl Handle {
    /// Done once the word is not `seen` any more: what it is then. A thread that changes it must
    /// wake its futex (`FUTEX_WAKE`, not private).
    ///
    /// Where io_uring cannot wait for a futex (before Linux 6.7, or forbidden), a thread that waits
    /// for other things too looks at the word every now and then, at least every 2 ms.
    pub fn changed<W>(&self, word: Arc<W>, seen: u32) -> Changed
    where
        W: AsRef<AtomicU32> + 'static,
    {
        Changed { core: self.core.clone(), word, seen, key: None }
    }
}

/// See [`Handle::changed`].
#[must_use = "futures do nothing unless awaited"]
pub struct Changed {
    core: Rc<Core>,
    word: Arc<dyn AsRef<AtomicU32>>,
    seen: u32,
    key: Option<usize>,
}

impl Changed {
    fn leave(&mut self) {
        if let Some(key) = self.key.take() {
            let mut reactor = self.core.reactor.borrow_mut();
            let _wait = reactor.words.try_remove(key);
            reactor.platform.forget();
            drop(reactor);
        }
    }
}

impl Future for Changed {
    type Output = u32;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
        let now = (*self.word).as_ref().load(Ordering::Acquire);
        if now != self.seen {
            self.leave();
            return Poll::Ready(now);
        }
        let mut reactor = self.core.reactor.borrow_mut();
        let waker = context.waker().clone();
        let key = match self.key {
            Some(key) => {
                reactor.words[key].waker = waker;
                key
            }
            None => {
                let (word, seen) = (self.word.clone(), self.seen);
                reactor.words.insert(WordWait { word, seen, waker })
            }
        };
        drop(reactor);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.leave();
    }
}
