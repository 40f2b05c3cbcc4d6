// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way from the thread that hears the kernel to the thread that carries requests out.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use dwell::executor::Handle as Tasks;

use super::export::Export;

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

    /// Has a request carried out, beside all others.
    pub fn run<F: Future<Output = ()> + 'static>(
        &self,
        work: impl FnOnce(Rc<Export>) -> F + Send + 'static,
    ) {
        let job: Job = Box::new(move |tasks, export, running| {
            let work = work(export.clone());
            let whole = async move {
                work.await;
                drop(running);
            };
            tasks.spawn(whole).detach();
        });
        self.state().jobs.push_back(job);
        self.wake();
    }

    /// There are no more requests.
    pub fn close(&self) {
        self.state().closed = true;
        self.wake();
    }

    /// Carries requests out until there are no more, and all have ended.
    pub async fn carry_out(self: &Arc<Self>, tasks: &Tasks, export: &Rc<Export>) {
        let running = Rc::new(Cell::new(0));
        let mut jobs = VecDeque::new();
        loop {
            let more = poll_fn(|context| {
                let mut state = self.state();
                if !state.jobs.is_empty() {
                    std::mem::swap(&mut jobs, &mut state.jobs);
                    return Poll::Ready(true);
                }
                if state.closed && running.get() == 0 {
                    return Poll::Ready(false);
                }
                state.waiting = Some(context.waker().clone());
                Poll::Pending
            });
            if !more.await {
                return;
            }
            for job in jobs.drain(..) {
                running.set(running.get() + 1);
                job(tasks, export, Running(running.clone(), self.clone()));
            }
        }
    }
}
