// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking until any of many things: rings, descriptors, words, moments, other threads.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use dwell_policy::{Ns, WaitMachine};

use super::alarm_clock::AlarmClock;
use super::enter_ring;
use crate::clock::{self, PreciseTimers};
use crate::eventfd::Event;
use crate::executor::{Alarm, Platform, Ready};
use crate::fork::ForkMark;
use crate::queue::{Wake, Watch};
use crate::ring::{Completed, Ring, SpinMethod};
use crate::{arch, ring};

/// Keys in the epoll that are nobody's.
const ALARM: u64 = u64::MAX;
const QUEUE: u64 = u64::MAX - 1;
const CLOCK: u64 = u64::MAX - 2;
/// News taken by one call.
const EVENTS: usize = 64;
/// Words watched at once.
const WORDS: u32 = 64;

/// The bed of one thread that waits for many things.
///
/// Descriptors are watched by an epoll, which tells of each change once. A thread that has requests
/// on a ring sleeps in that ring, which watches the epoll: the call that sends the requests also
/// waits, for as many completions as are worth it. Without a ring it sleeps in the epoll. Words are
/// watched by a ring, so without io_uring nothing wakes a thread for them, and it naps.
///
/// While it exists, the thread's timers are exact ([timer slack][prctl] of 1 ns).
///
/// [prctl]: https://man7.org/linux/man-pages/man2/PR_SET_TIMERSLACK.2const.html
pub struct Parker {
    epoll: OwnedFd,
    alarm: Arc<Event>,
    /// Ends sleeps in the epoll.
    clock: AlarmClock,
    /// To be watched again by a forked child, which has an epoll of its own.
    watched: Vec<(RawFd, u64)>,
    events: Vec<libc::epoll_event>,
    /// The ring to sleep in.
    main: Option<(RawFd, u32, u32)>,
    words: Option<Ring>,
    /// Whether words were armed for the next wait.
    word_armed: bool,
    mark: ForkMark,
    _precise: PreciseTimers,
    _this_thread: PhantomData<*const ()>,
}

impl Parker {
    /// For the calling thread.
    ///
    /// # Errors
    /// What the system refuses: no descriptor is left, say.
    pub fn new() -> io::Result<Self> {
        let (epoll, alarm) = (new_epoll()?, Arc::new(Event::new()?));
        control(&epoll, libc::EPOLL_CTL_ADD, alarm.as_fd().as_raw_fd(), EDGE, ALARM)?;
        let clock = AlarmClock::new()?;
        control(&epoll, libc::EPOLL_CTL_ADD, clock.descriptor(), EDGE, CLOCK)?;
        Ok(Parker {
            epoll,
            alarm,
            clock,
            watched: Vec::new(),
            events: Vec::with_capacity(EVENTS),
            main: None,
            words: None,
            word_armed: false,
            mark: ForkMark::new()?,
            _precise: PreciseTimers::new(),
            _this_thread: PhantomData,
        })
    }

    /// In a forked child, epoll and alarm are the parent's: its own take their numbers.
    fn after_fork(&mut self) {
        let own = || {
            let (epoll, alarm, mark) = (new_epoll()?, Event::new()?, ForkMark::new()?);
            let clock = AlarmClock::new()?;
            replace(&self.epoll, &epoll)?;
            replace(&*self.alarm, &alarm)?;
            io::Result::Ok((clock, mark))
        };
        // Nothing to be had: the child looks without sleeping long, and tries again.
        let Ok((clock, mark)) = own() else { return };
        (self.clock, self.mark) = (clock, mark);
        (self.words, self.main) = (None, None);
        self.events.clear();
        let alarm = self.alarm.as_fd().as_raw_fd();
        let _ = control(&self.epoll, libc::EPOLL_CTL_ADD, alarm, EDGE, ALARM);
        let _ = control(&self.epoll, libc::EPOLL_CTL_ADD, self.clock.descriptor(), EDGE, CLOCK);
        for (descriptor, key) in &self.watched {
            let _ = control(&self.epoll, libc::EPOLL_CTL_ADD, *descriptor, EDGE, *key);
        }
    }

    fn arm_descriptor(&self, descriptor: RawFd, write: bool) -> bool {
        let events = libc::EPOLLIN | libc::EPOLLONESHOT | if write { libc::EPOLLOUT } else { 0 };
        // It was armed before, as a rule.
        let again = control(&self.epoll, libc::EPOLL_CTL_MOD, descriptor, events, QUEUE);
        again
            .or_else(|_| control(&self.epoll, libc::EPOLL_CTL_ADD, descriptor, events, QUEUE))
            .is_ok()
    }

    fn arm_word(&mut self, word: &std::sync::atomic::AtomicU32, seen: u32) -> bool {
        if self.words.as_ref().is_none_or(|ring| !ring.usable()) {
            self.words = match ring::unavailable() {
                Some(_) => None,
                None => Ring::new(WORDS, Completed::ByInterrupt(SpinMethod::CqPeek)).ok(),
            };
        }
        self.word_armed = true;
        self.words.as_mut().is_some_and(|ring| ring.watch_word(word, seen))
    }

    /// Sleeps in the ring for words, or where another ring is slept in, has that watch it. Whether
    /// words can end the sleep.
    fn prepare_words(&mut self) -> bool {
        let Some(ring) = &mut self.words else { return false };
        let epoll = self.epoll.as_fd();
        if self.main.is_none() && ring.watch(epoll) == Watch::Fired {
            ring.watch(epoll);
        }
        let wake = if self.main.is_some() { ring.arm_beside() } else { ring.arm(1) };
        match wake {
            Wake::Ring { fd, unsent, min_complete } => {
                self.main = Some((fd, unsent, min_complete));
                true
            }
            Wake::Descriptor(descriptor) => self.arm_descriptor(descriptor, false),
            _ => false,
        }
    }

    fn epoll_wait(&mut self, until: Option<Ns>) {
        let span = until.map(|until| clock::timespec(until.saturating_sub(clock::now())));
        let span = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (fd, room) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        self.events.clear();
        // SAFETY: room for EVENTS events, a live or null timespec, no signal mask.
        let found = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                fd,
                room,
                EVENTS as libc::c_int,
                span,
                std::ptr::null::<libc::sigset_t>(),
                8usize,
            )
        };
        let found = match found {
            // A kernel before 5.11.
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) => {
                super::poll_descriptor(fd, false, until);
                // SAFETY: as above.
                unsafe { libc::epoll_wait(fd, room, EVENTS as libc::c_int, 0).into() }
            }
            found => found,
        };
        // SAFETY: the kernel has filled so many.
        unsafe { self.events.set_len(usize::try_from(found).unwrap_or(0)) };
    }
}

impl Platform for Parker {
    #[inline]
    fn now(&mut self) -> Ns {
        clock::now()
    }

    #[inline]
    fn relax(&mut self) {
        arch::relax();
    }

    fn alarm(&self) -> Alarm {
        let alarm = self.alarm.clone();
        Box::new(move || alarm.add())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn disarm(&mut self) {
        (self.main, self.word_armed) = (None, false);
    }

    fn arm(&mut self, wake: &Wake<'_>) -> bool {
        match *wake {
            Wake::Never => false,
            Wake::At(_) => true,
            Wake::Ring { fd, unsent, min_complete } => {
                self.main = Some((fd, unsent, min_complete));
                true
            }
            Wake::Descriptor(fd) => self.arm_descriptor(fd, false),
            Wake::Socket { fd, write, .. } => self.arm_descriptor(fd, write),
            Wake::Word { word, seen } => self.arm_word(word, seen),
        }
    }

    /// A word's memory may be mapped anew, and the ring would take the new word for the old one.
    fn forget(&mut self) {
        if self.words.as_ref().is_some_and(Ring::watches_words) {
            self.words = None;
        }
    }

    fn wait(&mut self, until: Option<Ns>) -> bool {
        if !self.mark.same_process() {
            self.after_fork();
            return true;
        }
        let word_armed = std::mem::take(&mut self.word_armed);
        let until = match word_armed && !self.prepare_words() {
            true => Some(until.unwrap_or(Ns::MAX).min(clock::now() + WaitMachine::MAX_NAP_NS)),
            false => until,
        };
        match self.main.take() {
            Some((fd, unsent, min_complete)) => enter_ring(fd, unsent, min_complete, until),
            None => {
                let ends = |at: &Ns| self.clock.ends_sleep(clock::now(), *at);
                let until = if until.as_ref().is_some_and(ends) { None } else { until };
                self.epoll_wait(until);
            }
        }
        if word_armed && let Some(ring) = &mut self.words {
            ring.poll(&mut |_| {});
            return true;
        }
        !self.events.is_empty()
    }

    fn look(&mut self, ready: &mut dyn FnMut(usize, Ready)) {
        if !self.mark.same_process() {
            self.after_fork();
        }
        if self.events.is_empty() {
            self.epoll_wait(Some(0));
        }
        for event in self.events.drain(..) {
            let (flags, key) = (event.events as i32, event.u64);
            if [ALARM, QUEUE, CLOCK].contains(&key) {
                continue;
            }
            let wrong = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            let ended = flags & (libc::EPOLLRDHUP | libc::EPOLLHUP) != 0;
            let readable = flags & libc::EPOLLIN != 0 || ended || wrong;
            let writable = flags & libc::EPOLLOUT != 0 || wrong;
            ready(key as usize, Ready { readable, writable, ended });
        }
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()> {
        if !self.mark.same_process() {
            self.after_fork();
        }
        let (descriptor, key) = (descriptor.as_raw_fd(), key as u64);
        control(&self.epoll, libc::EPOLL_CTL_ADD, descriptor, EDGE, key)?;
        self.watched.push((descriptor, key));
        Ok(())
    }

    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) {
        if !self.mark.same_process() {
            self.after_fork();
        }
        let descriptor = descriptor.as_raw_fd();
        self.watched.retain(|(other, _)| *other != descriptor);
        let _ = control(&self.epoll, libc::EPOLL_CTL_DEL, descriptor, 0, 0);
    }
}

/// Whatever happens to a descriptor, told once.
const EDGE: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;

fn new_epoll() -> io::Result<OwnedFd> {
    // SAFETY: a flag.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: just made, and nobody else's.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the number of `old` mean `new`.
fn replace(old: &impl AsFd, new: &impl AsFd) -> io::Result<()> {
    let (old, new) = (old.as_fd().as_raw_fd(), new.as_fd().as_raw_fd());
    // SAFETY: two open descriptors; the one that is closed by this keeps its number.
    match unsafe { libc::dup3(new, old, libc::O_CLOEXEC) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn control(epoll: &OwnedFd, what: i32, fd: RawFd, events: i32, key: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: key };
    // SAFETY: an open epoll and a live event; a descriptor that is none is refused.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), what, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a socket is readable only once it holds as many bytes as [`set_low_water`] says.
pub(crate) fn counts_bytes(socket: BorrowedFd<'_>) -> bool {
    let (mut protocol, mut size): (libc::c_int, _) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: an open descriptor, room for an int and its size. Anything but a socket refuses.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PROTOCOL,
            (&raw mut protocol).cast(),
            &mut size,
        )
    };
    rc == 0 && protocol == libc::IPPROTO_TCP
}

/// Sets from how many bytes on a socket is readable; whether it could.
pub(crate) fn set_low_water(socket: BorrowedFd<'_>, bytes: u32) -> bool {
    let bytes = bytes as libc::c_int;
    // SAFETY: an open descriptor and a live int.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as u32,
        )
    };
    rc == 0
}
