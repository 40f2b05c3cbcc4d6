// SPDX-License-Identifier: MIT OR Apache-2.0
//! A further thread of a copy: what it is given, what it does, and what it tells the first one.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use dwell::clock;
use dwell::executor::{Executor, Handle as Tasks};
use dwell_policy::Ns;

use super::threads::{Meter, Threads, WINDOW};
use super::{Copy, Job, Options, Progress, Watcher};
use crate::error::{Error, Result};
use crate::lineage::Lineage;
use crate::tree::{Base, Facts, Node, Place};

/// How often a further thread tells how far it is, in nanoseconds.
const TOLD_NS: Ns = 10_000_000;

/// What the first thread hears of a further one.
pub(crate) enum News {
    /// It has mounted what it needs.
    Ready,
    /// It cannot take part.
    Refused(Error),
    /// How far it is.
    Progress(Progress),
    /// The share of the time that it computed lately.
    Busy(f64),
    /// As [`Watcher::failed`].
    Failed(Error),
    /// As [`Watcher::noted`].
    Noted(String),
    /// A directory here in which it made names.
    Touched(Place),
    /// It ends, and tells no more.
    Over,
}

/// A further thread's number, and what it tells.
pub(crate) type Heard = (usize, News);

/// Wakes a task of another thread.
#[derive(Default)]
pub(crate) struct Bell(Mutex<Option<Waker>>);

impl Bell {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be followed by a look at what there is.
    pub fn wait(&self, context: &Context<'_>) {
        match &mut *self.waker() {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
    }

    /// Wakes the task that waits. What it looks for must be there before.
    pub fn ring(&self) {
        let waker = self.waker().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Tells a further thread that it is not needed any more.
#[derive(Default)]
pub(super) struct Stop {
    is_told: AtomicBool,
    bell: Bell,
}

impl Stop {
    pub fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
        self.bell.ring();
    }

    fn is_told(&self, context: &Context<'_>) -> bool {
        self.bell.wait(context);
        self.is_told.load(Ordering::Acquire)
    }
}

/// By what the first thread hears a further one.
#[derive(Clone)]
pub(crate) struct Line {
    pub number: usize,
    pub news: Sender<Heard>,
    pub bell: Arc<Bell>,
}

impl Line {
    fn tell(&self, news: News) {
        // If the first thread has stopped the copy, nobody hears.
        let _ = self.news.send((self.number, news));
        self.bell.ring();
    }
}

/// Tells that a thread ends, even if it panics.
struct Ending(Line);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.tell(News::Over);
    }
}

/// What hears how the files of a thread go.
pub(crate) enum Listener<'w> {
    /// On the first thread.
    Watcher(&'w dyn Watcher),
    /// On a further one: the first thread, which is not told how far it is before this time.
    First(Line, Cell<Ns>),
}

impl Listener<'_> {
    pub fn progress(&self, progress: &Progress) {
        match self {
            Listener::Watcher(watcher) => watcher.progress(progress),
            Listener::First(line, due) => {
                let now = clock::now();
                if now >= due.get() {
                    due.set(now + TOLD_NS);
                    line.tell(News::Progress(progress.clone()));
                }
            }
        }
    }

    pub fn failed(&self, error: Error) {
        match self {
            Listener::Watcher(watcher) => watcher.failed(&error),
            Listener::First(line, _) => line.tell(News::Failed(error)),
        }
    }

    pub fn noted(&self, text: &str) {
        match self {
            Listener::Watcher(watcher) => watcher.noted(text),
            Listener::First(line, _) => line.tell(News::Noted(text.to_owned())),
        }
    }
}

/// A file to be copied, for any thread.
struct Parcel {
    from: Place,
    into: Place,
    facts: Facts,
    name: Vec<u8>,
}

/// Files that no thread has begun to copy, the last first.
#[derive(Default)]
pub(super) struct Queue(Mutex<Vec<Parcel>>);

impl Queue {
    fn parcels(&self) -> MutexGuard<'_, Vec<Parcel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, jobs: Vec<Job>) {
        let parcel = |job: Job| {
            let Job { from, into, facts, name, .. } = job;
            Parcel { from: from.into_place(), into: into.into_place(), facts, name }
        };
        self.parcels().extend(jobs.into_iter().map(parcel));
    }

    /// The next one, as a thread that has these ends reaches it.
    pub fn take(&self, from: &Node, into: &Node) -> Option<Job> {
        let Parcel { from: source, into: directory, facts, name } = self.parcels().pop()?;
        let (from, into) = (from.at(source), into.at(directory));
        Some(Job { from, facts, into, name, lineage: Lineage::default() })
    }

    pub fn len(&self) -> usize {
        self.parcels().len()
    }
}

/// What a further thread is given.
pub(super) struct Given {
    pub from: Base,
    pub into: Base,
    pub options: Options,
    pub at_once: usize,
    pub queue: Arc<Queue>,
    pub line: Line,
    pub stop: Arc<Stop>,
}

/// Copies files of the queue until it is empty, on the calling thread.
pub(super) fn run(given: Given) {
    // Dropped last.
    let ending = Ending(given.line.clone());
    let executor = match Executor::new() {
        Ok(executor) => executor,
        Err(error) => {
            let what = "setting up the executor of a further thread";
            return ending.0.tell(News::Refused(Error::new(what, "dwell-copy", error)));
        }
    };
    let (tasks, stop) = (executor.handle(), given.stop.clone());
    let mut work = pin!(work(&tasks, given));
    let worked = executor.block_on(poll_fn(|context| match stop.is_told(context) {
        true => Poll::Ready(Ok(())),
        false => work.as_mut().poll(context),
    }));
    if let Err(error) = worked {
        ending.0.tell(News::Refused(error));
    }
}

/// Tells how much the calling thread computes.
async fn measure(tasks: Tasks, line: Line) {
    let mut meter = Meter::new(&tasks);
    loop {
        tasks.sleep(WINDOW).await;
        line.tell(News::Busy(meter.share()));
    }
}

async fn work(tasks: &Tasks, given: Given) -> Result<()> {
    let Given { from, into, options, at_once, queue, line, .. } = given;
    let (from, into) = (from.open(tasks).await?, into.open(tasks).await?);
    line.tell(News::Ready);
    let measures = options.threads == Threads::Found;
    let measuring = measures.then(|| tasks.spawn(measure(tasks.clone(), line.clone())));
    let clients: Vec<_> = [&from, &into].into_iter().filter_map(Node::client).cloned().collect();
    let listener = Listener::First(line.clone(), Cell::default());
    let copy = Copy::heard_by(listener, tasks, options, clients.clone());
    copy.files(at_once, &|| queue.take(&from, &into)).await?;
    drop(measuring);
    copy.look();
    line.tell(News::Progress(copy.sum()));
    for directory in copy.touched() {
        line.tell(News::Touched(directory.into_place()));
    }
    for client in clients {
        client.unmount().await;
    }
    Ok(())
}
