// SPDX-License-Identifier: MIT OR Apache-2.0
//! A source that does what a test's script says.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dwell::dwell_policy::{Backlog, Kind, Routes};
use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::{File, Route, WaitPolicy};

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Served.
    Done,
    /// Refused with this error number.
    Refused(i32),
    /// Only so many bytes.
    Short(u32),
    /// Served at the look after so many.
    Late(u32),
    /// Served once the test says so by [`Fake::release`].
    Held,
    /// Served once it was asked to end; the answer is then this error number.
    Cancellable(i32),
    /// Nothing, ever.
    Never,
}

/// How its queues wake a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    Never,
    Word,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub submitted: Vec<Route>,
    pub calls: usize,
    pub cached: usize,
    pub refused: Vec<Route>,
    pub cancelled: usize,
    /// Times that a thread was about to block until a queue wakes it.
    pub armed: usize,
}

pub struct State {
    pub data: Vec<u8>,
    pub routes: Routes,
    pub alignment: u32,
    pub waking: Waking,
    pub no_queue: bool,
    /// Requests that fit into one of its queues.
    pub room: u32,
    /// Hands out the latest request first.
    pub reversed: bool,
    /// A completion of no request goes before each one.
    pub strays: bool,
    /// Fate of the requests to come; [`Answer::Done`] beyond.
    pub queued: VecDeque<Answer>,
    pub called: VecDeque<Answer>,
    /// Answers of the cache to come; `None`, a miss, beyond. A length serves so many bytes.
    pub cache: Option<VecDeque<Option<u32>>>,
    pub call_takes: Duration,
    pub queue_takes: Duration,
    pub log: Log,
    released: u32,
}

/// A source over memory; clones share it.
#[derive(Clone)]
pub struct Fake {
    pub state: Arc<Mutex<State>>,
    word: Arc<AtomicU32>,
}

impl Fake {
    pub fn new(bytes: u64, seed: u64) -> Fake {
        let mut data = vec![0; bytes as usize];
        super::fill(&mut data, 0, seed);
        let state = State {
            data,
            routes: Routes::INLINE | Routes::INTERRUPT,
            alignment: 1,
            waking: Waking::Word,
            no_queue: false,
            room: u32::MAX,
            reversed: false,
            strays: false,
            queued: VecDeque::new(),
            called: VecDeque::new(),
            cache: None,
            call_takes: Duration::ZERO,
            queue_takes: Duration::ZERO,
            log: Log::default(),
            released: 0,
        };
        Fake { state: Arc::new(Mutex::new(state)), word: Arc::default() }
    }

    /// As set up by `change`.
    pub fn with(self, change: impl FnOnce(&mut State)) -> Fake {
        change(&mut self.lock());
        self
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn log(&self) -> Log {
        self.lock().log.clone()
    }

    /// Lets one held request complete and wakes who waits for it.
    pub fn release(&self) {
        self.lock().released += 1;
        self.word.fetch_add(1, Ordering::Release);
        // SAFETY: the word lives as long as self.
        unsafe { libc::syscall(libc::SYS_futex, self.word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Waits, a minute at most, for a thread that blocks to wait for one of its queues.
    pub fn wait_until_armed(&self) {
        for _ in 0..60_000 {
            if self.log().armed > 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A file over it, on a device of its own.
    pub fn open(
        &self,
        parameters: DeviceParameters,
        policy: impl WaitPolicy + 'static,
    ) -> File<Fake> {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        let device = format!("fake:{}", DEVICES.fetch_add(1, Ordering::Relaxed));
        File::over(self.clone(), "fake", &device, parameters, Arc::new(policy), None)
    }
}

impl State {
    fn serve(&mut self, io: &Io, most: u32) -> i32 {
        let kind = io.action().kind();
        if kind == Kind::Sync {
            return 0;
        }
        let (mut at, mut left) = (io.offset() as usize, most.min(io.bytes()) as usize);
        let mut moved = 0;
        for (memory, bytes) in io.each_piece() {
            let now = bytes.min(left).min(self.data.len().saturating_sub(at));
            if now == 0 {
                continue;
            }
            let data = &mut self.data[at..at + now];
            // SAFETY: whoever made the Io keeps its memory valid until the completion, which is
            // handed out only after this.
            unsafe {
                match kind {
                    Kind::Read => std::ptr::copy_nonoverlapping(data.as_ptr(), memory, now),
                    _ => std::ptr::copy_nonoverlapping(memory, data.as_mut_ptr(), now),
                }
            }
            (at, left, moved) = (at + now, left - now, moved + now);
        }
        moved as i32
    }
}

impl Source for Fake {
    type Queue = FakeQueue;

    fn queue(&self, _depth: u32) -> io::Result<FakeQueue> {
        if self.lock().no_queue {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let takes = self.lock().queue_takes;
        std::thread::sleep(takes);
        Ok(FakeQueue { fake: self.clone(), next: 0, waiting: VecDeque::new() })
    }

    fn routes(&self) -> Routes {
        let state = self.lock();
        state.log.refused.iter().fold(state.routes, |routes, route| routes.without(*route))
    }

    fn call(&self, io: &Io) -> i32 {
        let mut state = self.lock();
        state.log.calls += 1;
        let takes = state.call_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        match state.called.pop_front().unwrap_or(Answer::Done) {
            Answer::Refused(errno) => -errno,
            Answer::Short(bytes) => state.serve(io, bytes),
            _ => state.serve(io, u32::MAX),
        }
    }

    fn caches(&self) -> bool {
        self.lock().cache.is_some()
    }

    fn cached(&self, io: &Io) -> Option<i32> {
        let mut state = self.lock();
        state.log.cached += 1;
        let bytes = state.cache.as_mut()?.pop_front()??;
        Some(state.serve(io, bytes))
    }

    fn refused(&self, route: Route) {
        self.lock().log.refused.push(route);
    }

    fn target(&self) -> i32 {
        -1
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.lock().data.len() as u64)
    }

    fn alignment(&self) -> u32 {
        self.lock().alignment
    }
}

pub struct FakeQueue {
    fake: Fake,
    next: u64,
    waiting: VecDeque<(Ticket, Io, Answer)>,
}

// SAFETY: it touches no memory but that of a request whose completion it is about to hand out.
unsafe impl Queue for FakeQueue {
    type Op = Io;

    fn submit(&mut self, op: Io, route: Route) -> Result<Ticket, (Full, Io)> {
        let mut state = self.fake.lock();
        if self.waiting.len() >= state.room as usize {
            return Err((Full, op));
        }
        state.log.submitted.push(route);
        let answer = state.queued.pop_front().unwrap_or(Answer::Done);
        // Far apart, so that they collide in whatever table they are kept in.
        self.next += 4096;
        self.waiting.push_back((Ticket(self.next), op, answer));
        Ok(Ticket(self.next))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let mut ready = Vec::new();
        {
            let mut state = self.fake.lock();
            let mut waiting = std::mem::take(&mut self.waiting);
            for (ticket, io, answer) in waiting.drain(..) {
                let result = match answer {
                    Answer::Done => state.serve(&io, u32::MAX),
                    Answer::Refused(errno) => -errno,
                    Answer::Short(bytes) => state.serve(&io, bytes),
                    Answer::Late(0) => state.serve(&io, u32::MAX),
                    Answer::Held if state.released > 0 => {
                        state.released -= 1;
                        state.serve(&io, u32::MAX)
                    }
                    Answer::Late(looks) => {
                        self.waiting.push_back((ticket, io, Answer::Late(looks - 1)));
                        continue;
                    }
                    waits => {
                        self.waiting.push_back((ticket, io, waits));
                        continue;
                    }
                };
                if state.strays {
                    ready.push(Completion { ticket: Ticket(u64::MAX - ticket.0), result: 1 });
                }
                ready.push(Completion { ticket, result });
            }
            if state.reversed {
                ready.reverse();
            }
        }
        ready.iter().for_each(|completion| out(*completion));
        ready.len()
    }

    fn arm(&mut self, _: u32) -> Wake<'_> {
        let soon = self.waiting.iter().any(|(_, _, answer)| matches!(answer, Answer::Late(_)));
        let mut state = self.fake.lock();
        state.log.armed += 1;
        if soon || state.waking == Waking::Never {
            return Wake::Never;
        }
        drop(state);
        let word = &*self.fake.word;
        Wake::Word { word, seen: word.load(Ordering::Acquire) }
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.fake.lock().log.cancelled += 1;
        for (_, _, answer) in self.waiting.iter_mut().filter(|(known, ..)| *known == ticket) {
            if let Answer::Cancellable(errno) = *answer {
                *answer = Answer::Refused(errno);
            }
        }
    }

    fn backlog(&self) -> Backlog {
        let bytes = self.waiting.iter().map(|(_, io, _)| u64::from(io.bytes())).sum();
        Backlog { bytes, requests: self.waiting.len() as u32 }
    }
}
