// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads of a copy, as the first one has them: it starts the others, copies files beside
//! them, and hears what they tell.

use std::cell::RefCell;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use super::helper::{self, Bell, Given, Heard, Line, News, Queue, Stop};
use super::threads::{self, Meter, Threads, WINDOW};
use super::{Copy, FILES_AT_ONCE, Job, Progress};
use crate::error::{Error, Result};
use crate::tree::Node;

/// A further thread.
struct Helper {
    /// None once it has ended.
    thread: Option<JoinHandle<()>>,
    stop: Arc<Stop>,
    is_ready: bool,
    /// The share of the time that it computed lately.
    busy: f64,
}

/// The threads of a copy. Dropped, it stops the further ones and waits for their ends.
pub(super) struct Team<'c, 'w> {
    copy: &'c Copy<'w>,
    /// On the sides of the copy that all files are from and go to.
    ends: (&'c Node, &'c Node),
    /// Files to be copied, the last first, as long as there is one thread.
    own: RefCell<Vec<Job>>,
    /// The same for several.
    queue: Arc<Queue>,
    news: (Sender<Heard>, Receiver<Heard>),
    bell: Arc<Bell>,
    helpers: RefCell<Vec<Helper>>,
}

impl<'c, 'w> Team<'c, 'w> {
    /// One thread, to copy these files, the last first.
    pub fn new(copy: &'c Copy<'w>, ends: (&'c Node, &'c Node), jobs: Vec<Job>) -> Self {
        Team {
            copy,
            ends,
            own: RefCell::new(jobs),
            queue: Arc::default(),
            news: channel(),
            bell: Arc::default(),
            helpers: RefCell::default(),
        }
    }

    /// Copies all files.
    pub async fn work(&self) -> Result<()> {
        let files = self.own.borrow().len();
        let wanted = match self.copy.options.threads {
            Threads::Fixed(count) => (count as usize).clamp(1, files.max(1)),
            Threads::Found => 1,
        };
        // Few files are shared, too.
        let at_once = FILES_AT_ONCE.min(files.div_ceil(wanted));
        for _ in 1..wanted {
            self.start(at_once);
        }
        let mut adding = pin!(self.add());
        let next = || self.take();
        let mut own = pin!(self.copy.files(at_once, &next));
        poll_fn(|context| {
            let _ = adding.as_mut().poll(context);
            let _ = self.hear(context);
            own.as_mut().poll(context)
        })
        .await?;
        // No file is left for a thread that is not there yet.
        poll_fn(|context| {
            let over = self.hear(context);
            let helpers = self.helpers.borrow();
            helpers.iter().filter(|helper| !helper.is_ready).for_each(|helper| helper.stop.tell());
            over
        })
        .await;
        Ok(())
    }

    fn take(&self) -> Option<Job> {
        let own = self.own.borrow_mut().pop();
        own.or_else(|| self.queue.take(self.ends.0, self.ends.1))
    }

    /// Starts one thread after the other as long as that pays. Never returns.
    async fn add(&self) {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        // Whatever one thread does, it stays alone.
        if self.copy.options.threads != Threads::Found || !threads::pays(&[1.0], cpus, 1) {
            return pending().await;
        }
        let mut meter = Meter::new(&self.copy.tasks);
        loop {
            self.copy.tasks.sleep(WINDOW).await;
            let mut busy = vec![meter.share()];
            busy.extend(self.helpers.borrow().iter().map(|helper| helper.busy));
            let files = self.own.borrow().len() + self.queue.len();
            if threads::pays(&busy, cpus, files) {
                self.start(FILES_AT_ONCE);
            }
        }
    }

    fn start(&self, at_once: usize) {
        self.queue.put(self.own.take());
        let stop = Arc::default();
        let thread = self.spawn(at_once, &stop).map_err(|error| self.refused(&error)).ok();
        self.copy.others.borrow_mut().push(Progress::default());
        self.helpers.borrow_mut().push(Helper { thread, stop, is_ready: false, busy: 0.0 });
    }

    fn spawn(&self, at_once: usize, stop: &Arc<Stop>) -> Result<JoinHandle<()>> {
        let (from, into) = (self.ends.0.base()?, self.ends.1.base()?);
        let number = self.helpers.borrow().len();
        let line = Line { number, news: self.news.0.clone(), bell: self.bell.clone() };
        let (options, queue, stop) = (self.copy.options, self.queue.clone(), stop.clone());
        let given = Given { from, into, options, at_once, queue, line, stop };
        thread::Builder::new()
            .name("dwell-copy".into())
            .spawn(|| helper::run(given))
            .map_err(|error| Error::new("starting a further thread", self.ends.1, error))
    }

    fn refused(&self, error: &Error) {
        let what = "a further thread cannot take part; the others copy its files";
        self.copy.watcher.noted(&format!("{error}: {what}"));
    }

    /// Hears what the further threads tell, and is ready once all of them have ended.
    fn hear(&self, context: &Context<'_>) -> Poll<()> {
        if self.helpers.borrow().is_empty() {
            return Poll::Ready(());
        }
        self.bell.wait(context);
        while let Ok((number, news)) = self.news.1.try_recv() {
            self.heard(number, news);
        }
        match self.helpers.borrow().iter().all(|helper| helper.thread.is_none()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn heard(&self, number: usize, news: News) {
        let helper = |change: &dyn Fn(&mut Helper)| change(&mut self.helpers.borrow_mut()[number]);
        match news {
            News::Ready => helper(&|helper| helper.is_ready = true),
            News::Busy(share) => helper(&|helper| helper.busy = share),
            News::Refused(error) => self.refused(&error),
            News::Failed(error) => self.copy.fail(error),
            News::Noted(line) => self.copy.watcher.noted(&line),
            News::Touched(place) => self.copy.touch(&self.ends.1.at(place)),
            News::Progress(progress) => {
                self.copy.others.borrow_mut()[number] = progress;
                self.copy.tell();
            }
            News::Over => {
                let thread = self.helpers.borrow_mut()[number].thread.take();
                if let Some(Err(panic)) = thread.map(JoinHandle::join) {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

impl Drop for Team<'_, '_> {
    fn drop(&mut self) {
        let helpers = self.helpers.take();
        helpers.iter().for_each(|helper| helper.stop.tell());
        for thread in helpers.into_iter().filter_map(|helper| helper.thread) {
            // Of its panic another one is told already, or nobody wants to know.
            let _ = thread.join();
        }
    }
}
