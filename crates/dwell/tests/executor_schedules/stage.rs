// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stage in virtual time: a clock, devices, and actors who say what they see.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dwell::dwell_policy::{Backlog, Ns, Routes, Wait};
use dwell::executor::{Alarm, AsyncFile, Executor, Handle, Platform, Ready};
use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::{Decision, File, Mode, Reason, Route, WaitPolicy};

use super::common::fast;

/// What a look costs in this platform, a wake-up, and the choice of a ring to sleep in.
const LOOK_NS: Ns = 1_000;
const WAKE_NS: Ns = 5_000;
const CHOICE_NS: Ns = 2_000;
/// A ring that is no descriptor of this process.
const RING: i32 = -7;

type Story = Rc<RefCell<String>>;

/// A clock that only the executor's own acts move.
struct Virtual {
    clock: Arc<AtomicU64>,
    story: Story,
    /// Turns of a spin since the last word of the story.
    spun: Ns,
    /// What arrives on descriptors when: key in the order of watching.
    arrivals: VecDeque<(Ns, usize)>,
    arrived: Vec<usize>,
    wakeable: bool,
    /// The ring that was chosen to sleep in: when it has a completion. It watches nothing else.
    ring: Option<Ns>,
    ring_due: Arc<AtomicU64>,
}

impl Virtual {
    fn say(&mut self, what: &str) {
        let mut story = self.story.borrow_mut();
        if self.spun > 0 {
            story.push_str(&format!("spin {}, ", self.spun));
            self.spun = 0;
        }
        story.push_str(&format!("{what}, "));
    }
}

impl Platform for Virtual {
    fn now(&mut self) -> Ns {
        self.clock.load(Ordering::Relaxed)
    }

    fn relax(&mut self) {
        // A step of the machine is several looks; each costs its part.
        let turns = LOOK_NS / 10;
        self.clock.fetch_add(turns, Ordering::Relaxed);
        self.spun += turns;
    }

    fn alarm(&self) -> Alarm {
        Box::new(|| ())
    }

    fn arm(&mut self, wake: &Wake<'_>) -> bool {
        if let Wake::Ring { .. } = wake {
            self.ring = Some(self.ring_due.load(Ordering::Relaxed));
            self.clock.fetch_add(CHOICE_NS, Ordering::Relaxed);
        }
        self.wakeable
    }

    fn disarm(&mut self) {
        self.ring = None;
    }

    fn wait(&mut self, until: Option<Ns>) -> bool {
        let ring = self.ring.take();
        let arrival = self.arrivals.front().map(|(at, _)| *at).filter(|_| ring.is_none());
        let completion = ring.filter(|due| *due > self.now());
        let ends = until.into_iter().chain(arrival).chain(completion).min();
        let ends = ends.expect("asleep for ever");
        let now = self.now();
        self.say(&format!("sleep to {}", ends.max(now)));
        self.clock.store(ends.max(now) + WAKE_NS, Ordering::Relaxed);
        arrival.is_some_and(|at| at <= ends)
    }

    fn look(&mut self, ready: &mut dyn FnMut(usize, Ready)) {
        let now = self.now();
        while self.arrivals.front().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.arrivals.pop_front().expect("seen above");
            self.arrived.push(key);
        }
        for key in self.arrived.drain(..) {
            ready(key, Ready { readable: true, ..Ready::default() });
        }
    }

    fn watch(&mut self, _: BorrowedFd<'_>, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn unwatch(&mut self, _: BorrowedFd<'_>) {}
}

/// A device of a fixed latency that serves everything at once, in the platform's time.
pub(super) struct Device {
    clock: Arc<AtomicU64>,
    latency_ns: Ns,
    wakes: bool,
    /// Whether it wakes as a ring does, and then when its next completion comes.
    ring_due: Option<Arc<AtomicU64>>,
    /// How often its queue was asked to wake for how many.
    asked: Arc<Mutex<Vec<u32>>>,
}

pub(super) struct DeviceQueue {
    clock: Arc<AtomicU64>,
    latency_ns: Ns,
    wakes: bool,
    ring_due: Option<Arc<AtomicU64>>,
    asked: Arc<Mutex<Vec<u32>>>,
    next: u64,
    in_flight: VecDeque<(Ns, Ticket, u32)>,
}

impl Source for Device {
    type Queue = DeviceQueue;
    fn queue(&self, _: u32) -> io::Result<DeviceQueue> {
        Ok(DeviceQueue {
            clock: self.clock.clone(),
            latency_ns: self.latency_ns,
            wakes: self.wakes,
            ring_due: self.ring_due.clone(),
            asked: self.asked.clone(),
            next: 0,
            in_flight: VecDeque::new(),
        })
    }
    fn routes(&self) -> Routes {
        Routes::INTERRUPT
    }
    fn call(&self, _: &Io) -> i32 {
        -libc::EOPNOTSUPP
    }
    fn target(&self) -> i32 {
        0
    }
    fn bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
}

// SAFETY: it touches no memory.
unsafe impl Queue for DeviceQueue {
    type Op = Io;
    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        self.next += 1;
        let due = self.clock.load(Ordering::Relaxed) + self.latency_ns;
        self.in_flight.push_back((due, Ticket(self.next), io.bytes()));
        Ok(Ticket(self.next))
    }
    fn flush(&mut self) {}
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let now = self.clock.load(Ordering::Relaxed);
        let mut found = 0;
        while self.in_flight.front().is_some_and(|(due, ..)| *due <= now) {
            let (_, ticket, bytes) = self.in_flight.pop_front().expect("seen above");
            out(Completion { ticket, result: bytes as i32 });
            found += 1;
        }
        found
    }
    /// It wakes with the completion that makes `min_complete` of them, as a ring would.
    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        if !self.wakes {
            return Wake::Never;
        }
        self.asked.lock().unwrap().push(min_complete);
        let at = (min_complete as usize).min(self.in_flight.len()).saturating_sub(1);
        let Some((due, ..)) = self.in_flight.get(at) else { return Wake::Never };
        match &self.ring_due {
            Some(ring_due) => {
                ring_due.store(*due, Ordering::Relaxed);
                Wake::Ring { fd: RING, unsent: 0, min_complete }
            }
            None => Wake::At(*due),
        }
    }
    fn cancel(&mut self, _: Ticket) {}
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

/// Always this mode, expecting this latency.
struct Always(Mode, Ns);

impl WaitPolicy for Always {
    fn name(&self) -> &str {
        "always"
    }
    fn choose(&self, _: &Wait<'_>) -> Decision {
        Decision::new(Route::Interrupt, self.0, self.1, Reason::Fixed)
    }
}

pub(super) struct Stage {
    pub executor: Executor,
    pub clock: Arc<AtomicU64>,
    story: Story,
    pub asked: Arc<Mutex<Vec<u32>>>,
    ring_due: Arc<AtomicU64>,
}

impl Stage {
    pub fn new(arrivals: &[(Ns, usize)], wakeable: bool) -> Stage {
        let (clock, story) = (Arc::new(AtomicU64::new(0)), Story::default());
        let ring_due: Arc<AtomicU64> = Arc::default();
        let platform = Virtual {
            clock: clock.clone(),
            story: story.clone(),
            spun: 0,
            arrivals: arrivals.iter().copied().collect(),
            arrived: Vec::new(),
            wakeable,
            ring: None,
            ring_due: ring_due.clone(),
        };
        let executor = Executor::over(Box::new(platform), 64);
        Stage { executor, clock, story, asked: Arc::default(), ring_due }
    }

    pub fn device(&self, latency_ns: Ns, mode: Mode) -> AsyncFile<Device> {
        self.device_that(latency_ns, mode, true, fast())
    }

    /// A device whose queue is a ring.
    pub fn ring(&self, latency_ns: Ns) -> AsyncFile<Device> {
        let ring_due = Some(self.ring_due.clone());
        self.open(latency_ns, Mode::Block, true, ring_due, fast())
    }

    pub fn device_that(
        &self,
        latency_ns: Ns,
        mode: Mode,
        wakes: bool,
        parameters: DeviceParameters,
    ) -> AsyncFile<Device> {
        self.open(latency_ns, mode, wakes, None, parameters)
    }

    fn open(
        &self,
        latency_ns: Ns,
        mode: Mode,
        wakes: bool,
        ring_due: Option<Arc<AtomicU64>>,
        parameters: DeviceParameters,
    ) -> AsyncFile<Device> {
        let (clock, asked) = (self.clock.clone(), self.asked.clone());
        let device = Device { clock, latency_ns, wakes, ring_due, asked };
        let policy = Arc::new(Always(mode, latency_ns));
        let file = File::over(device, "device", "virtual", parameters, policy, None);
        self.executor.file(Arc::new(file)).unwrap()
    }

    pub fn actor(&self, name: &'static str) -> Actor {
        Actor { name, tasks: self.executor.handle(), story: self.story.clone() }
    }

    /// Runs until all have ended; the story.
    pub fn play(self, scenes: Vec<dwell::executor::JoinHandle<()>>) -> String {
        self.executor.block_on(async {
            for scene in scenes {
                scene.await;
            }
        });
        drop(self.executor);
        let story = self.story.take();
        story.trim_end_matches(", ").to_owned()
    }
}

#[derive(Clone)]
pub(super) struct Actor {
    name: &'static str,
    pub tasks: Handle,
    story: Story,
}

impl Actor {
    pub fn says(&self, what: &str) {
        let line = format!("{} {what} at {}, ", self.name, self.tasks.now());
        self.story.borrow_mut().push_str(&line);
    }

    pub async fn reads(&self, file: &AsyncFile<Device>) {
        file.read_at(vec![0; 512], 0).await.0.unwrap();
        self.says("read");
    }
}
