// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same sums without BPF: tracepoints through perf's rings, put together by a thread of this
//! process.
//!
//! Every event is copied to user space, so this costs more than BPF does, and events can be lost.

mod event;
mod ring;
mod story;
mod tracefs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ring::Rings;
use story::Story;
use tracefs::Tracepoints;

use crate::sums::Sums;
use crate::{Error, Follow, Result};

/// A trace by tracepoints that is under way.
pub struct Perf {
    story: Arc<Mutex<Story>>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Perf {
    /// Begins to follow these processes, or all.
    pub fn start(follow: Follow, followed: &[u32]) -> Result<Perf> {
        let points = Tracepoints::read()?;
        let rings = Rings::open(&points)?;
        let own = std::process::id();
        let left_out = if follow == Follow::Process(own) { 0 } else { own };
        let everything = follow == Follow::Everything;
        let story = Arc::new(Mutex::new(Story::new(everything, left_out, followed)));
        let stop = Arc::new(AtomicBool::new(false));
        let (told, stopped) = (story.clone(), stop.clone());
        let reader = std::thread::Builder::new()
            .name("dwell-advise".into())
            .spawn(move || read(rings, &points, &told, &stopped))
            .map_err(|error| Error::Io { path: "a thread".to_owned(), error })?;
        Ok(Perf { story, stop, reader: Some(reader) })
    }

    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows no more children of this process.
    pub fn started(&self) {
        self.story().leave(std::process::id(), ring::now_ns());
    }

    /// Follows more processes.
    pub fn follow(&self, processes: &[u32]) {
        self.story().follow(processes);
    }

    /// The processes that are followed.
    pub fn followed(&self) -> Vec<u32> {
        self.story().followed()
    }

    /// What was summed up so far, with all that has happened until now; from zero again if `again`.
    pub fn sums(&mut self, again: bool) -> Sums {
        if !again {
            self.end();
        }
        self.story().sums(again)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        self.end();
    }
}

/// Takes events from the rings until it is stopped, and once more after that.
fn read(mut rings: Rings, points: &Tracepoints, story: &Mutex<Story>, stop: &AtomicBool) {
    let mut events = vec![];
    loop {
        let last = stop.load(Ordering::Acquire);
        // What was written before now is in the rings; later events wait for the next look.
        let now = ring::now_ns();
        let lost = rings.take(points, &mut events);
        events.sort_by_key(|event: &event::Event| event.at);
        let ready = events.partition_point(|event| event.at <= now);
        {
            let mut story = story.lock().unwrap_or_else(PoisonError::into_inner);
            story.lose(lost);
            events.drain(..ready).for_each(|event| story.tell(event));
            story.took(ring::used_ns());
        }
        if last {
            return;
        }
        rings.wait();
    }
}
