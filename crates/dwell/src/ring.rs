// SPDX-License-Identifier: MIT OR Apache-2.0
//! One io_uring: requests in, completions out, looked for in the way that is cheapest here.
#![allow(unsafe_code)]

mod entry;
mod lost;
mod registered;
mod wake;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use dwell_policy::Backlog;
use io_uring::{IoUring, opcode, squeue};

use crate::eventfd::Event;
use crate::fork::ForkMark;
use crate::queue::{Action, Completion, Full, Io, Ticket};
use crate::seccomp;
use registered::Registered;

/// How a spinning thread looks for completions on an interrupt ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum SpinMethod {
    /// Reads the completion queue in shared memory. The kernel interrupts the thread to post.
    CqPeek,
    /// Enters the kernel at each look (`DEFER_TASKRUN`): no interrupt of the thread, but a call.
    GetEvents,
    /// Reads a flag in shared memory and enters the kernel once it says that something is there
    /// (`DEFER_TASKRUN` with `TASKRUN_FLAG`): neither.
    #[default]
    TaskrunFlag,
}

impl SpinMethod {
    /// All methods.
    pub const ALL: [SpinMethod; 3] =
        [SpinMethod::CqPeek, SpinMethod::GetEvents, SpinMethod::TaskrunFlag];

    /// The word used in profiles and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            SpinMethod::CqPeek => "cq-peek",
            SpinMethod::GetEvents => "get-events",
            SpinMethod::TaskrunFlag => "taskrun-flag",
        }
    }
}

impl std::fmt::Display for SpinMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What completes a ring's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The device's interrupt.
    ByInterrupt(SpinMethod),
    /// Polling from inside the kernel (`IOPOLL`).
    ByPolling,
}

/// Why this process cannot have an io_uring, if it cannot. Asked once per process.
pub fn unavailable() -> Option<&'static str> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    WHY.get_or_init(|| {
        if seccomp::is_deadly(libc::SYS_io_uring_setup) {
            return Some("a seccomp filter kills who sets up an io_uring".to_owned());
        }
        match IoUring::new(2).err()?.raw_os_error() {
            Some(libc::ENOSYS) => Some("this kernel has no io_uring".to_owned()),
            Some(libc::EPERM) => {
                let why = "io_uring is forbidden here (seccomp filter or kernel.io_uring_disabled)";
                Some(why.to_owned())
            }
            // A limit on descriptors or memory may pass.
            _ => None,
        }
    })
    .as_deref()
}

#[derive(Clone, Copy)]
struct Slot {
    bytes: u32,
    generation: u32,
    busy: bool,
    /// Whether it only reads, so that it may be carried out again.
    reads: bool,
}

/// An io_uring of one thread. At most as many requests are in flight as its queues hold, so
/// completions never overflow.
pub struct Ring {
    /// Not dropped in a forked child: its memory was not inherited, so something else may lie
    /// there.
    uring: ManuallyDrop<IoUring>,
    completed: Completed,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots of the entries that the kernel has not taken yet, oldest first.
    unsent: VecDeque<u32>,
    /// Entries that the kernel has taken so far, and how many it had when a waiting call was last
    /// told to send some.
    sent: u64,
    armed_after: Option<u64>,
    /// Whether a descriptor of others is watched, and whether it has become readable since.
    watching: bool,
    fired: bool,
    /// Addresses of the words that are watched.
    words: Vec<usize>,
    /// The kernel cannot watch words (before 6.7).
    wordless: bool,
    /// Why the kernel takes no entry and hands out nothing any more: a filter installed since, a
    /// descriptor that was closed, another thread than the ring's.
    broken: Option<i32>,
    /// The kernel's side is to stay as long as the process.
    kept: bool,
    /// Whether a thread was told to sleep in it; whether it did, and nobody has looked since.
    armed: bool,
    slept: bool,
    /// Tells those who sleep elsewhere of completions that only a call brings out.
    news: Option<Event>,
    backlog: Backlog,
    registered: Registered,
    mark: ForkMark,
}

/// Cancellations complete too; nobody waits for those, and they have no slot.
const CANCELLATION: u64 = u64::MAX;
/// So does what is watched for others: a descriptor, or a word, whose address stands beside this
/// bit, which no ticket and no address has.
const WATCHED: u64 = u64::MAX - 1;
const WORD: u64 = 1 << 63;
const NO_SLOT: u32 = u32::MAX;

const GETEVENTS: u32 = 1;

impl Ring {
    /// A ring for `entries` requests in flight, owned by the calling thread. Where the kernel is
    /// too old for a spin method, the ring is looked at by [`SpinMethod::CqPeek`].
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(entries: u32, completed: Completed) -> io::Result<Ring> {
        let entries = entries.clamp(1, 4096).next_power_of_two();
        let (uring, completed) = match Self::set_up(entries, completed) {
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && completed != Completed::ByPolling =>
            {
                let plain = Completed::ByInterrupt(SpinMethod::CqPeek);
                (IoUring::builder().dontfork().build(entries)?, plain)
            }
            made => (made?, completed),
        };
        let slots =
            vec![Slot { bytes: 0, generation: 0, busy: false, reads: false }; entries as usize];
        Ok(Ring {
            uring: ManuallyDrop::new(uring),
            completed,
            slots,
            free: (0..entries).rev().collect(),
            unsent: VecDeque::with_capacity(entries as usize),
            sent: 0,
            armed_after: None,
            watching: false,
            fired: false,
            words: Vec::new(),
            wordless: false,
            broken: None,
            kept: false,
            armed: false,
            slept: false,
            news: None,
            backlog: Backlog::default(),
            registered: Registered::default(),
            mark: ForkMark::new()?,
        })
    }

    fn set_up(entries: u32, completed: Completed) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_single_issuer();
        match completed {
            Completed::ByPolling => builder.setup_iopoll(),
            Completed::ByInterrupt(SpinMethod::CqPeek) => &mut builder,
            // The flag tells of a completion that no call brings out.
            Completed::ByInterrupt(SpinMethod::GetEvents | SpinMethod::TaskrunFlag) => {
                builder.setup_defer_taskrun().setup_taskrun_flag()
            }
        };
        builder.build(entries)
    }

    /// Whether it takes requests: not in a forked child of the process that made it, and not once
    /// the kernel has refused it for good. What the kernel never took still completes, as cancelled
    /// or to be tried again; of the rest tells [`Ring::is_lost`].
    pub fn usable(&self) -> bool {
        self.broken.is_none() && self.mark.same_process()
    }

    /// How it is completed: what was asked for, or what the kernel could do.
    pub fn completed(&self) -> Completed {
        self.completed
    }

    /// Takes a request in; [`Ring::flush`] or the next look sends it.
    ///
    /// # Safety
    /// What was promised for `io` holds until its completion is out, and it is in flight only once.
    ///
    /// # Errors
    /// [`Full`] when as many requests are in flight as the ring holds, or it is not usable.
    pub unsafe fn submit(&mut self, io: &Io) -> Result<Ticket, Full> {
        if !self.usable() {
            return Err(Full);
        }
        let slot = self.free.pop().ok_or(Full)?;
        let ticket = u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot);
        let mut entry = self.registered.entry(io).user_data(ticket).personality(io.personality());
        if io.may_block() {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        if !self.push(&entry, slot) {
            self.free.push(slot);
            return Err(Full);
        }
        let entered = &mut self.slots[slot as usize];
        (entered.bytes, entered.busy) = (io.bytes(), true);
        entered.reads = matches!(io.action(), Action::Read | Action::ReadVectored);
        self.backlog.bytes += u64::from(io.bytes());
        self.backlog.requests += 1;
        Ok(Ticket(ticket))
    }

    fn push(&mut self, entry: &squeue::Entry, slot: u32) -> bool {
        for _ in 0..2 {
            // SAFETY: the Io's maker promised that its memory outlives the request, and a slot
            // is held until the completion is out.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                self.unsent.push_back(slot);
                return true;
            }
            self.flush();
        }
        false
    }

    /// Sends what was held back. What the kernel cannot take now (EAGAIN, EBUSY) goes out with a
    /// later look. What it refuses for good completes with EAGAIN: nothing was done, and another
    /// route can serve it.
    pub fn flush(&mut self) {
        if !self.unsent.is_empty() && self.usable() {
            self.enter(0);
        }
    }

    fn enter(&mut self, flags: u32) {
        self.forget_sent();
        let unsent = if self.broken.is_some() { 0 } else { self.unsent.len() };
        // SAFETY: no argument is passed, and the entries were pushed by `submit`.
        match unsafe { self.uring.submitter().enter::<()>(unsent as u32, 0, flags, None) } {
            Ok(_) => self.forget_sent(),
            Err(error) => {
                let later = matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM | libc::EBADR)
                );
                if !later {
                    self.broken = Some(error.raw_os_error().unwrap_or(libc::EIO));
                }
            }
        }
    }

    /// Sends what was held back and hands out the completions that are there, by one call at most.
    #[inline]
    pub fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        if !self.mark.same_process() {
            return self.cancelled_by_fork(out);
        }
        if !self.unsent.is_empty() {
            self.forget_sent();
        }
        let submission = self.uring.submission();
        let (due, overflow) = (submission.taskrun(), submission.cq_overflow());
        drop(submission);
        // A sleep that brought nothing may be one that the kernel refuses.
        let fetch = std::mem::take(&mut self.slept)
            | match self.completed {
                Completed::ByPolling | Completed::ByInterrupt(SpinMethod::GetEvents) => {
                    self.backlog.requests > 0
                }
                Completed::ByInterrupt(SpinMethod::TaskrunFlag) => due || overflow,
                Completed::ByInterrupt(SpinMethod::CqPeek) => overflow,
            };
        if self.broken.is_none() {
            if !self.unsent.is_empty() {
                // A call that only sends leaves more completions to be fetched together.
                self.enter(if fetch { GETEVENTS } else { 0 });
            } else if fetch && self.uring.completion().is_empty() {
                self.enter(GETEVENTS);
            }
        }
        let handed = self.drain(out);
        match self.broken {
            Some(_) => handed + self.never_sent(out) + self.ended_unseen(out),
            None => handed,
        }
    }

    fn drain(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let Ring { uring, slots, free, backlog, watching, fired, words, wordless, .. } = self;
        let mut handed = 0;
        for event in uring.completion() {
            let ticket = event.user_data();
            if ticket == CANCELLATION {
                continue;
            }
            if ticket == WATCHED {
                (*watching, *fired) = (false, true);
                continue;
            }
            if ticket & WORD != 0 {
                words.retain(|word| *word as u64 != ticket & !WORD);
                *wordless |= event.result() == -libc::EINVAL;
                continue;
            }
            let at = ticket as u32;
            let Some(slot) = slots.get_mut(at as usize) else { continue };
            if !slot.busy || u64::from(slot.generation) != ticket >> 32 {
                continue;
            }
            release(slot, at, free, backlog);
            handed += 1;
            out(Completion { ticket: Ticket(ticket), result: event.result() });
        }
        handed
    }

    /// Gives one request back that the kernel never saw or that another process waits for.
    fn give_back(&mut self, at: u32, errno: i32, out: &mut dyn FnMut(Completion)) -> usize {
        let Some(slot) = self.slots.get_mut(at as usize).filter(|slot| slot.busy) else { return 0 };
        let ticket = Ticket(u64::from(slot.generation) << 32 | u64::from(at));
        release(slot, at, &mut self.free, &mut self.backlog);
        out(Completion { ticket, result: -errno });
        1
    }

    #[cold]
    fn never_sent(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let mut handed = 0;
        while let Some(at) = self.unsent.pop_front() {
            handed += self.give_back(at, libc::EAGAIN, out);
        }
        handed
    }

    #[cold]
    fn cancelled_by_fork(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        self.unsent.clear();
        (0..self.slots.len() as u32).map(|at| self.give_back(at, libc::ECANCELED, out)).sum()
    }

    /// Takes note of the entries that the kernel has taken from a waiting call.
    fn forget_sent(&mut self) {
        let held_back = self.uring.submission().len();
        let sent = self.unsent.len().saturating_sub(held_back);
        self.unsent.drain(..sent);
        self.sent += sent as u64;
    }

    /// Asks the kernel to end a request early. A polled request ends by itself.
    pub fn cancel(&mut self, ticket: Ticket) {
        if self.completed != Completed::ByPolling && self.usable() {
            let entry = opcode::AsyncCancel::new(ticket.0).build().user_data(CANCELLATION);
            if self.push(&entry, NO_SLOT) {
                self.flush();
            }
        }
    }

    /// Registers the credentials that the calling thread has at this moment, for requests that are
    /// to be carried out with them ([`Io::as_personality`]), whatever the thread's are by then.
    ///
    /// # Errors
    /// What the kernel refuses: more than 65,535 of them, above all.
    pub fn personality(&mut self) -> io::Result<u16> {
        if !self.usable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.uring.submitter().register_personality()
    }

    /// Forgets what [`Ring::personality`] returned. Requests in flight keep it.
    pub fn forget_personality(&mut self, personality: u16) {
        self.flush();
        if self.usable() {
            // A ring that was made anew since never knew it.
            let _ = self.uring.submitter().unregister_personality(personality);
        }
    }

    /// The requests in flight.
    pub fn backlog(&self) -> Backlog {
        self.backlog
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.mark.same_process() && !self.kept {
            self.unregister();
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.uring) };
        }
    }
}

fn release(slot: &mut Slot, at: u32, free: &mut Vec<u32>, backlog: &mut Backlog) {
    slot.busy = false;
    slot.generation = slot.generation.wrapping_add(1) & 0x0fff_ffff;
    free.push(at);
    backlog.bytes -= u64::from(slot.bytes);
    backlog.requests -= 1;
}
