// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that handles a region's faults, where the faulting threads do not: one queue, many
//! faults at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use dwell::executor::{Alarm, Platform};
use dwell::park::Parker;
use dwell::queue::{Action, Queue, Watch};
use dwell::{Error, Result, arch, clock};
use dwell_policy::{Decision, Driver, Kind as Asked, Mode, Ns, Reason, Route};
use dwell_policy::{WaitMachine, Woken, drive};

use crate::ahead::Plan;
use crate::fault::{INSTALLS, PATIENCE_NS, account};
use crate::mask::Quiet;
use crate::memory::PAGE_BYTES;
use crate::open;
use crate::pages::{AHEAD, HINTED, POISONED, State};
use crate::shared::{Books, Shared};
use crate::stats::add;
use crate::thread_queue::ThreadQueue;
use crate::thread_queues::HANDLER;
use crate::uffd::Uffd;

/// What the parker knows the userfaultfd by.
const FAULTS: usize = 0;
/// Pages that others are at are looked at again after this long, in nanoseconds.
const RECHECK_NS: Ns = 50_000;

/// The handler thread of a region.
pub(crate) struct Handler {
    stop: Arc<AtomicBool>,
    alarm: Alarm,
    thread: JoinHandle<()>,
}

impl Handler {
    /// Starts it; faults that come before wait for it.
    pub fn start(shared: &Arc<Shared>, spin_ns: Ns) -> Result<Handler> {
        let failed = |error| Error::io("starting the handler thread", shared.path(), None, error);
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (region, stopped) = (shared.clone(), stop.clone());
        let quiet = Quiet::new();
        let thread = std::thread::Builder::new().name("dwell-pager".into()).spawn(move || {
            let made = Serving::new(region, stopped, spin_ns);
            match made {
                Ok(mut serving) => {
                    let _ = tell.send(Ok(serving.parker.alarm()));
                    drop(tell);
                    serving.run();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        });
        drop(quiet);
        let thread = thread.map_err(failed)?;
        let alarm = told.recv().map_err(|_| failed(io::ErrorKind::Other.into()))??;
        Ok(Handler { stop, alarm, thread })
    }

    /// Ends it. Threads that wait for a page then wait until the region is unmapped.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        (self.alarm)();
        let _ = self.thread.join();
    }

    /// In a forked child there is no such thread.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

/// A fault that is being handled.
#[derive(Clone, Copy)]
struct Pending {
    page: u32,
    /// Whether its read was sent by this thread.
    sent: bool,
    /// Whether other pages are read together with it.
    along: bool,
    began: Ns,
}

/// What came of a look at a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The faulting thread goes on.
    Over,
    /// It got further, and may get further still.
    Further,
    /// A request of this thread's own is in flight for it.
    Sent,
    /// Others have its page, or the frames: nobody tells when they are done.
    Elsewhere,
}

struct Serving {
    sh: Arc<Shared>,
    thread_queue: ThreadQueue,
    parker: Parker,
    pending: Vec<Pending>,
    /// Whether a fault waits for what others do.
    elsewhere: bool,
    /// Whether the look before a sleep found anything.
    news: bool,
    plan: Plan,
    stop: Arc<AtomicBool>,
    spin_ns: Ns,
}

impl Serving {
    fn new(sh: Arc<Shared>, stop: Arc<AtomicBool>, spin_ns: Ns) -> Result<Serving> {
        let failed = |error| Error::io("starting the handler thread", sh.path(), None, error);
        let thread_queue = open::handler_thread_queue(&sh)?;
        let mut parker = Parker::new().map_err(failed)?;
        parker.watch(sh.uffd.descriptor(), FAULTS).map_err(failed)?;
        let (pending, plan) = (Vec::new(), Plan::default());
        let (elsewhere, news) = (false, false);
        Ok(Serving { sh, thread_queue, parker, pending, elsewhere, news, plan, stop, spin_ns })
    }

    fn run(&mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let decision = self.decide();
            let now = clock::now();
            let machine = WaitMachine::new(&decision, now, now);
            let sh = self.sh.clone();
            account(&sh, &drive(machine, self));
        }
        const LAST_NS: Ns = 5_000_000_000;
        if !self.thread_queue.drain(&self.sh, clock::now() + LAST_NS) {
            // A device that answers no more may still write to the frames: they are given up.
            std::mem::forget(self.sh.clone());
        }
    }

    /// How to wait: as the policy says while somebody waits for a page, and else for the next
    /// fault, which comes when it likes.
    fn decide(&mut self) -> Decision {
        if self.thread_queue.in_flight > 0 && !self.pending.is_empty() {
            let mut decision = self.thread_queue.decide(&self.sh, Asked::Read, PAGE_BYTES);
            decision.route = Route::Interrupt;
            return decision;
        }
        let mode = if self.spin_ns > 0 { Mode::Spin } else { Mode::Block };
        let mut decision = Decision::new(Route::Interrupt, mode, 0, Reason::Fixed);
        decision.spin_limit_ns = self.spin_ns;
        decision
    }

    /// Takes faults in and goes on with those that are here; whether anything happened. Where
    /// nothing did, all faults wait: for requests in flight, or for others.
    fn work(&mut self) -> bool {
        let mut addresses = [0; Uffd::FAULTS];
        let told = self.sh.uffd.faults(&mut addresses);
        for address in &addresses[..told] {
            let Some(page) = self.sh.area.page_of(*address) else { continue };
            let page = page as u32;
            if self.pending.iter().any(|pending| pending.page == page) {
                continue;
            }
            add(&self.sh.counters.faults, 1);
            self.pending.push(Pending { page, sent: false, along: false, began: clock::now() });
        }
        let landed = self.thread_queue.in_flight;
        self.thread_queue.look();
        self.thread_queue.land(&self.sh);
        let mut news = told > 0 || landed != self.thread_queue.in_flight;
        self.elsewhere = false;
        let mut at = 0;
        while at < self.pending.len() {
            let step = self.step(at);
            news |= matches!(step, Step::Over | Step::Further);
            self.elsewhere |= step == Step::Elsewhere;
            match step {
                Step::Over => {
                    let began = self.pending.swap_remove(at).began;
                    add(&self.sh.counters.fault_ns, clock::now().saturating_sub(began));
                }
                Step::Further => {}
                Step::Sent | Step::Elsewhere => at += 1,
            }
        }
        if news {
            // The device is kept at work: the next plan takes the place of this one.
            let (sh, mut plan) = (self.sh.clone(), self.plan);
            while self.thread_queue.issue(&sh, &mut plan) {}
            self.plan = plan;
        }
        self.thread_queue.flush();
        news
    }

    /// Goes on with one fault.
    fn step(&mut self, at: usize) -> Step {
        let sh = self.sh.clone();
        let Pending { page, sent, along, began } = self.pending[at];
        self.thread_queue.alone = None;
        if self.thread_queue.take_error(page).is_some() {
            // What could not be read may be a page beside it.
            if along {
                self.thread_queue.alone = Some(page);
            } else if self.refuse(page, State::Absent) {
                return Step::Over;
            }
        }
        let mut books = sh.lock();
        let word = sh.pages.get(page);
        match State::of(word) {
            State::Present => {
                drop(books);
                if sh.is_lost(page) {
                    return Step::Further;
                }
                sh.uffd.wake(sh.area.at(page as usize), PAGE_BYTES);
                Step::Over
            }
            State::Standby => {
                if !sent {
                    add(&sh.counters.rescued, 1);
                    sh.asked_again(&mut books, page);
                    self.plan(&books, page);
                }
                let mut pages = [0; INSTALLS];
                let plan = self.plan;
                let count = self.thread_queue.gather(&sh, &mut books, page, &plan, &mut pages);
                drop(books);
                let installed = sh.install(&mut pages[..count], self.thread_queue.class(), page);
                match installed {
                    _ if sh.pages.state(page) == State::Present => Step::Over,
                    // Others are at its memory: a fork, a device.
                    Ok(()) | Err(libc::EAGAIN | libc::EBUSY) => Step::Elsewhere,
                    Err(_) => self.refused(page, State::Standby),
                }
            }
            State::Reading => {
                if word & AHEAD != 0 {
                    sh.pages.mark(page, 0, AHEAD | HINTED);
                    add(&sh.counters.prefetched_used, 1);
                    add(&sh.counters.joined, 1);
                    self.plan(&books, page);
                    (self.pending[at].sent, self.pending[at].along) = (true, true);
                }
                match books.frames.owner(sh.pages.frame(page)) == HANDLER {
                    true => Step::Sent,
                    false => Step::Elsewhere,
                }
            }
            State::Absent => {
                let planned = self.thread_queue.plan(&sh, &books, page);
                let wanted = self.thread_queue.granule(&sh, &books, page, &planned);
                let Some((first, run)) = self.thread_queue.reserve(&sh, &mut books, page, wanted)
                else {
                    drop(books);
                    return self.make_room(began);
                };
                drop(books);
                self.follow(planned);
                add(&sh.counters.reads_awaited, 1);
                (self.pending[at].sent, self.pending[at].along) = (true, run.count > 1);
                let bytes = sh.bytes_of(first, run.count);
                let mut decision = self.thread_queue.decide(&sh, Asked::Read, bytes);
                if self.thread_queue.has_queue() {
                    // Others wait for this thread too: it does not go into a call for one of them.
                    decision.route = Route::Interrupt;
                }
                if sh.fill(run).is_err() {
                    self.thread_queue.abandon(&sh, first, run);
                    return self.refused(page, State::Absent);
                }
                let sent = self.thread_queue.send(&sh, Action::Read, first, run, &decision);
                let Some(flight) = sent else {
                    self.thread_queue.abandon(&sh, first, run);
                    return Step::Elsewhere;
                };
                self.thread_queue.requests[flight].timed = true;
                if self.thread_queue.requests[flight].done {
                    self.thread_queue.land(&sh);
                }
                Step::Further
            }
            State::Moving | State::Writing => Step::Elsewhere,
        }
    }

    /// Sees to it that there is a frame for a fault that found none.
    fn make_room(&mut self, began: Ns) -> Step {
        let sh = self.sh.clone();
        if self.thread_queue.make_room(&sh) > 0 {
            return Step::Further;
        }
        // What this thread has sent itself comes back with frames too.
        let passing = self.thread_queue.in_flight > 0 || sh.lock().is_passing();
        if passing && clock::now() < began + PATIENCE_NS {
            return Step::Elsewhere;
        }
        if self.thread_queue.make_last_room(&sh) { Step::Further } else { Step::Elsewhere }
    }

    /// What this fault asks for ahead, which is done when time is idle.
    fn plan(&mut self, books: &Books, page: u32) {
        let plan = self.thread_queue.plan(&self.sh, books, page);
        self.follow(plan);
    }

    fn follow(&mut self, plan: Plan) {
        if plan != Plan::default() {
            self.plan = plan;
        }
    }

    fn refused(&mut self, page: u32, state: State) -> Step {
        if self.refuse(page, state) { Step::Over } else { Step::Elsewhere }
    }

    /// The page cannot be had: who waits for it gets SIGBUS, unless it is in another state by now.
    fn refuse(&mut self, page: u32, state: State) -> bool {
        let _books = self.sh.lock();
        if self.sh.pages.state(page) != state {
            return false;
        }
        self.sh.pages.mark(page, POISONED, 0);
        let is_poisoned = self.sh.uffd.poison(self.sh.area.at(page as usize), PAGE_BYTES);
        match is_poisoned {
            true => add(&self.sh.counters.read_errors, 1),
            // It is tried again, and may be written to then: with the mark, a cure would throw
            // that away.
            false => self.sh.pages.mark(page, 0, POISONED),
        }
        is_poisoned
    }
}

impl Driver for Serving {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        if std::mem::take(&mut self.news) {
            return true;
        }
        for _ in 0..4 {
            if self.work() || self.stop.load(Ordering::Acquire) {
                return true;
            }
            arch::relax();
        }
        false
    }

    fn offer(&mut self, _: Ns) -> bool {
        let sh = self.sh.clone();
        let mut plan = self.plan;
        let more = self.thread_queue.steal(&sh, &mut plan);
        self.plan = plan;
        more
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        self.parker.disarm();
        let mut due = until;
        if self.thread_queue.in_flight > 0
            && let Some(queue) = self.thread_queue.queue()
        {
            if let Some(descriptor) = self.parker.descriptor() {
                // A sleep in the queue's ring ends with a fault too. One that came before is looked
                // for below.
                if queue.watch(descriptor) == Watch::Fired {
                    queue.watch(descriptor);
                }
            }
            let wake = queue.arm(1);
            if let dwell::queue::Wake::At(at) | dwell::queue::Wake::Socket { at: Some(at), .. } =
                wake
            {
                due = Some(due.map_or(at, |due| due.min(at)));
            }
            if !self.parker.arm(&wake) {
                if let Some(queue) = self.thread_queue.queue() {
                    queue.disarm();
                }
                return Woken::Unwakeable;
            }
        }
        // What came between the last look and now would not wake anyone.
        self.news = self.work();
        if !self.news && !self.stop.load(Ordering::Acquire) {
            if self.elsewhere {
                let again = clock::now() + RECHECK_NS;
                due = Some(due.map_or(again, |due| due.min(again)));
            }
            self.parker.wait(due);
            self.parker.look(&mut |_, _| {});
        }
        if let Some(queue) = self.thread_queue.queue() {
            queue.disarm();
        }
        Woken::Look
    }
}

impl Shared {
    /// Lets a page be tried again that could not be had.
    pub fn cure(&self, page: u32) {
        while self.pages.get(page) & POISONED != 0 {
            let books = self.lock();
            let word = self.pages.get(page);
            if State::of(word) == State::Moving {
                // Its data may be at its place already, and nowhere else.
                drop(books);
                crate::sync::await_step(self, page);
                continue;
            }
            // Without the mark it may be present, and written to.
            if word & POISONED != 0 {
                self.pages.mark(page, 0, POISONED);
                let _ = self.area.advise_range(page as usize, 1, libc::MADV_DONTNEED);
            }
            return;
        }
    }
}
