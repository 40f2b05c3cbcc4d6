// SPDX-License-Identifier: MIT OR Apache-2.0
//! A link driven by the executor: a call is a future, and one task moves the bytes of all calls.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use dwell::executor::{Handle, Watched};
use dwell_policy::Ns;
use slab::Slab;

use crate::engine::{Counters, Done, Failure, Settings};
use crate::error::Why;
use crate::link::{Link, TOGETHER_NS};
use crate::procedure::{Class, Procedure};
use crate::ranges::Held;

/// Bytes that a call sends, or that a read brought. Clones share them, so that they can be sent
/// again.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Bytes,
    /// Kept as long as a call may send it.
    held: Option<Rc<Held>>,
}

impl Payload {
    /// All of `bytes`.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Payload { bytes: bytes.into(), held: None }
    }

    /// The same bytes, to be written to a range that is held as long as a call may send them.
    pub(crate) fn held(&self, held: Option<Rc<Held>>) -> Self {
        Payload { held, ..self.clone() }
    }

    /// A part of it; beyond its end there is nothing.
    #[must_use]
    pub fn part(&self, part: Range<usize>) -> Self {
        let end = part.end.min(self.bytes.len());
        let bytes = self.bytes.slice(part.start.min(end)..end);
        Payload { bytes, held: self.held.clone() }
    }

    /// Its bytes, which are not copied.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Its length, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The encoded results of a call.
#[derive(Debug)]
pub(crate) struct Answered {
    pub bytes: Bytes,
    /// Whether the call was sent more than once.
    pub resent: bool,
}

/// A call whose answer is awaited.
#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Over(Result<Answered, Failure>),
    /// Nobody waits any more; the place is free once the answer is there.
    Abandoned,
}

struct Shared {
    link: RefCell<Link<Payload>>,
    slots: RefCell<Slab<Slot>>,
    has_news: Cell<bool>,
    /// Another connection of this client was looked at: this one is looked at too, before the
    /// thread sleeps.
    look: Cell<bool>,
    /// The client's other connections.
    others: RefCell<Vec<Weak<Shared>>>,
    driver: RefCell<Option<Waker>>,
    closing: Cell<bool>,
    tasks: Handle,
}

/// A connection to one program of a server. The last of its clones closes it.
pub struct Connection {
    shared: Rc<Shared>,
}

/// How a connection is doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// What happened so far.
    pub counters: Counters,
    /// Requests that may be outstanding now.
    pub window: u32,
    /// Smoothed round-trip time of data, in nanoseconds; 0 before any.
    pub round_trip_ns: Ns,
}

impl Connection {
    /// Begins to connect.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn open(tasks: &Handle, to: SocketAddr, settings: Settings) -> io::Result<Self> {
        let link = Link::new(tasks.now(), to, settings)?;
        let shared = Rc::new(Shared {
            link: RefCell::new(link),
            slots: RefCell::default(),
            has_news: Cell::new(true),
            look: Cell::new(false),
            others: RefCell::default(),
            driver: RefCell::default(),
            closing: Cell::new(false),
            tasks: tasks.clone(),
        });
        tasks.spawn(drive(shared.clone())).detach();
        Ok(Connection { shared })
    }

    /// Makes it one of a client's connections. A thread that wakes for one looks at all, so that
    /// one sleep serves the answers on all of them.
    pub(crate) fn join<'c>(&self, others: impl Iterator<Item = &'c Connection>) {
        for other in others {
            other.shared.others.borrow_mut().push(Rc::downgrade(&self.shared));
            self.shared.others.borrow_mut().push(Rc::downgrade(&other.shared));
        }
    }

    /// Calls a procedure; `keep` takes from its results what is to be kept.
    ///
    /// # Errors
    /// No answer, a refusal, an answer that makes no sense, no connection.
    pub async fn call<C: Procedure, T>(
        &self,
        call: &C,
        payload: Option<Payload>,
        keep: impl FnOnce(C::Results<'_>) -> T,
    ) -> Result<T, Why> {
        let bytes = self.results(call, payload).await?.bytes;
        Ok(call.read(&mut crate::xdr::Reader::new(&bytes)).map(keep)?)
    }

    /// The encoded results of a call.
    pub(crate) async fn results<C: Procedure>(
        &self,
        call: &C,
        payload: Option<Payload>,
    ) -> Result<Answered, Why> {
        let shared = &self.shared;
        if let Some(why) = shared.broken() {
            return Err(why);
        }
        let tag = shared.slots.borrow_mut().insert(Slot::Waiting(None));
        let now = shared.tasks.now();
        shared.link.borrow_mut().engine_mut().submit(now, call, payload, tag as u64);
        shared.tell();
        let waiting = Waiting { shared, tag };
        let results = poll_fn(|context| waiting.poll(context.waker())).await;
        drop(waiting);
        match (results, shared.broken()) {
            (Err(_), Some(why)) => Err(why),
            (Err(Failure::NoAnswer { after_ns }), None) => {
                let server = shared.link.borrow().server().to_string();
                Err(Why::NoAnswer { server, after_ns })
            }
            (results, _) => Ok(results?),
        }
    }

    /// The server asked for time.
    pub(crate) fn congested(&self) {
        let now = self.shared.tasks.now();
        self.shared.link.borrow_mut().engine_mut().congested(now);
    }

    /// Whether it was lost and is not being made again.
    pub(crate) fn is_down(&self) -> bool {
        self.shared.link.borrow().is_down()
    }

    /// Requests that are not over.
    pub fn pending(&self) -> usize {
        self.shared.link.borrow().engine().pending()
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        let link = self.shared.link.borrow();
        let engine = link.engine();
        let round_trip_ns = [Class::Write, Class::Read]
            .map(|class| engine.rtt(class).smoothed_ns())
            .into_iter()
            .max()
            .unwrap_or_default();
        Health { counters: engine.counters(), window: engine.window().size(), round_trip_ns }
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.closing.set(true);
        self.shared.tell();
    }
}

/// A call's place, given up when nobody waits any more.
struct Waiting<'s> {
    shared: &'s Shared,
    tag: usize,
}

impl Waiting<'_> {
    fn poll(&self, waker: &Waker) -> Poll<Result<Answered, Failure>> {
        let mut slots = self.shared.slots.borrow_mut();
        match &mut slots[self.tag] {
            Slot::Waiting(known) => {
                match known {
                    Some(known) => known.clone_from(waker),
                    None => *known = Some(waker.clone()),
                }
                Poll::Pending
            }
            slot => match std::mem::replace(slot, Slot::Abandoned) {
                Slot::Over(results) => Poll::Ready(results),
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut slots = self.shared.slots.borrow_mut();
        match &mut slots[self.tag] {
            slot @ Slot::Waiting(_) => {
                *slot = Slot::Abandoned;
                if self.shared.link.borrow_mut().engine_mut().abandon(self.tag as u64) {
                    slots.remove(self.tag);
                }
                // Others may be sent in its place.
                self.shared.tell();
            }
            _ => drop(slots.remove(self.tag)),
        }
    }
}

impl Shared {
    /// Why there is no connection, where none was ever made.
    fn broken(&self) -> Option<Why> {
        let link = self.link.borrow();
        let error = copy(link.broken()?);
        Some(Why::NoConnection { server: link.server().to_string(), error })
    }

    /// Has the driver look.
    fn tell(&self) {
        if !self.has_news.replace(true)
            && let Some(driver) = self.driver.borrow_mut().take()
        {
            driver.wake();
        }
    }

    /// Has the drivers of the other connections look at theirs.
    fn tell_others(&self) {
        self.others.borrow_mut().retain(|other| {
            let Some(other) = other.upgrade() else { return false };
            other.look.set(true);
            if let Some(driver) = other.driver.borrow_mut().take() {
                driver.wake();
            }
            true
        });
    }

    fn finish(&self, done: Done<Payload>) {
        let mut slots = self.slots.borrow_mut();
        let tag = done.tag as usize;
        match &mut slots[tag] {
            slot @ Slot::Waiting(_) => {
                let resent = done.resent;
                let results = done.results.map(|bytes| Answered { bytes, resent });
                let Slot::Waiting(waker) = std::mem::replace(slot, Slot::Over(results)) else {
                    return;
                };
                drop(slots);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            _ => drop(slots.remove(tag)),
        }
    }

    /// Fails all calls: there never was a connection.
    fn fail(&self) {
        let over: Vec<(usize, Option<Waker>)> = (self.slots.borrow_mut().iter_mut())
            .filter_map(|(tag, slot)| match slot {
                Slot::Waiting(waker) => Some((tag, waker.take())),
                _ => None,
            })
            .collect();
        for (tag, waker) in over {
            if let Some(slot) = self.slots.borrow_mut().get_mut(tag) {
                *slot = Slot::Over(Err(Failure::NoAnswer { after_ns: 0 }));
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// Callers have something to send, and nothing else happened.
    News,
    /// Bytes, room to send, or a moment.
    Look,
    /// As [`Woken::Look`], for another connection.
    LookToo,
}

/// Moves a connection's bytes until nobody has it any more.
async fn drive(shared: Rc<Shared>) {
    let mut watched: Option<Watched<Arc<OwnedFd>>> = None;
    let mut woken = Woken::Look;
    loop {
        let mut now = shared.tasks.now();
        shared.has_news.set(false);
        match woken {
            Woken::Look | Woken::LookToo => {
                shared.look.set(false);
                if woken == Woken::Look {
                    shared.tell_others();
                }
                let mut answered = false;
                shared.link.borrow_mut().turn(now, &mut |done| {
                    answered = true;
                    shared.finish(done);
                });
                if let Some(watched) = &watched {
                    // All there was has been read. What comes while others run is news.
                    watched.drained();
                }
                if answered {
                    // Tasks with answers make more requests: one system call sends them all. What
                    // to wait for is then found once.
                    shared.tasks.yield_now().await;
                    shared.has_news.set(false);
                    now = shared.tasks.now();
                    shared.link.borrow_mut().send(now);
                }
            }
            Woken::News => shared.link.borrow_mut().send(now),
        }
        if shared.closing.get() {
            return;
        }
        if shared.link.borrow().broken().is_some() {
            shared.fail();
            drop(watched.take());
            // Nothing will ever come; who calls is told at once.
            return;
        }
        let (interest, answers) = {
            let link = shared.link.borrow();
            (link.interest(), link.engine().worth_waking_for())
        };
        let same = match (&watched, &interest.readable) {
            (Some(watched), Some(descriptor)) => Arc::ptr_eq(watched.get(), descriptor),
            (None, None) => true,
            _ => false,
        };
        if !same {
            drop(watched.take());
            // Without being watched, the connection would only be looked at when a timer fires.
            watched = (interest.readable.as_ref())
                .and_then(|descriptor| shared.tasks.watch(descriptor.clone()).ok());
        }
        let together = (answers > 1).then(|| now.saturating_add(TOGETHER_NS));
        let at = interest.at.into_iter().chain(together).min();
        let low_water = shared.link.borrow().low_water(answers);
        woken = wait(&shared, watched.as_ref(), low_water, interest.writable, at).await;
    }
}

/// Waits for bytes, for room to send, for a moment, or for news from callers.
async fn wait(
    shared: &Shared,
    watched: Option<&Watched<Arc<OwnedFd>>>,
    low_water: usize,
    writable: bool,
    at: Option<Ns>,
) -> Woken {
    let mut readable = pin!(async {
        match watched {
            Some(watched) => watched.readable(low_water).await,
            None => std::future::pending().await,
        }
    });
    let mut room = pin!(async {
        match watched.filter(|_| writable) {
            Some(watched) => {
                // Room that was there before has been used up.
                let full = || Err(io::Error::from(io::ErrorKind::WouldBlock));
                let _ = watched.try_write_with(|_| -> io::Result<()> { full() });
                watched.writable().await;
            }
            None => std::future::pending().await,
        }
    });
    let mut timer = pin!(async {
        match at {
            Some(at) => shared.tasks.sleep_until(at).await,
            None => std::future::pending().await,
        }
    });
    poll_fn(|context| {
        let over = readable.as_mut().poll(context).is_ready()
            || room.as_mut().poll(context).is_ready()
            || timer.as_mut().poll(context).is_ready();
        if over {
            return Poll::Ready(Woken::Look);
        }
        if shared.look.get() {
            return Poll::Ready(Woken::LookToo);
        }
        if shared.has_news.get() {
            return Poll::Ready(Woken::News);
        }
        *shared.driver.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}
