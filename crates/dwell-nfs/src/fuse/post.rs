// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from the thread that hears the kernel to the thread that carries requests out.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use dwell::executor::{Elapsed, Handle as Tasks};

use super::asker::Asker;
use super::export::Export;

/// A program that waits for an answer is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// A request as it is carried out: a task that is started on the other thread.
type Job = Box<dyn FnOnce(&Tasks, &Rc<Export>, Running) + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
    waiting: Option<Waker>,
}

/// Requests on their way.
#[derive(Default)]
pub(super) struct Post(Mutex<State>);

/// Requests that are being carried out, and are to be although there will be no more.
pub(super) struct Rest(Rc<Cell<usize>>, Arc<Post>);

impl Rest {
    /// Returns when they have ended.
    pub async fn ended(&self) {
        poll_fn(|context| {
            if self.0.get() == 0 {
                return Poll::Ready(());
            }
            self.1.state().waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Counts a request that is being carried out.
struct Running(Rc<Cell<usize>>, Arc<Post>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
        if self.0.get() == 0 {
            self.1.wake();
        }
    }
}

impl Post {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let waiting = self.state().waiting.take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Has a request carried out, beside all others, as long as its program waits for the answer.
    /// A request that is given up is answered with an error, which nobody hears.
    pub fn answer<F: Future<Output = ()> + 'static>(
        &self,
        asked: &fuser::Request,
        work: impl FnOnce(Rc<Export>) -> F + Send + 'static,
    ) {
        let asker = Asker::from(asked);
        self.start(move |tasks, export, running| {
            let (tasks, work) = (tasks.clone(), work(export.clone()));
            async move {
                let mut work = pin!(work);
                while let Err(Elapsed) = tasks.timeout(LOOK, work.as_mut()).await {
                    if running.1.state().closed || asker.is_killed() {
                        return;
                    }
                }
            }
        });
    }

    /// Has a request carried out, beside all others, whether or not anybody waits for it.
    pub fn run<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Rc<Export>) -> F + Send + 'static,
    ) {
        self.start(move |_, export, running| {
            let work = work(export.clone());
            async move {
                work.await;
                drop(running);
            }
        });
    }

    fn start<F: Future<Output = ()> + 'static>(
        &self,
        begin: impl FnOnce(&Tasks, &Rc<Export>, Running) -> F + Send + 'static,
    ) {
        let job: Job = Box::new(move |tasks, export, running| {
            tasks.spawn(begin(tasks, export, running)).detach();
        });
        self.state().jobs.push_back(job);
        self.wake();
    }

    /// There are no more requests.
    pub fn close(&self) {
        self.state().closed = true;
        self.wake();
    }

    /// Carries requests out until there are no more: those that have not ended then.
    pub async fn carry_out(self: &Arc<Self>, tasks: &Tasks, export: &Rc<Export>) -> Rest {
        let running = Rc::new(Cell::new(0));
        let mut jobs = VecDeque::new();
        loop {
            let more = poll_fn(|context| {
                let mut state = self.state();
                if !state.jobs.is_empty() {
                    std::mem::swap(&mut jobs, &mut state.jobs);
                    return Poll::Ready(true);
                }
                if state.closed {
                    return Poll::Ready(false);
                }
                state.waiting = Some(context.waker().clone());
                Poll::Pending
            });
            if !more.await {
                return Rest(running, self.clone());
            }
            for job in jobs.drain(..) {
                running.set(running.get() + 1);
                job(tasks, export, Running(running.clone(), self.clone()));
            }
        }
    }
}
