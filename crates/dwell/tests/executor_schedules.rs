// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor in virtual time: what runs when, and what the thread does meanwhile, as text.

mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::fast;
use dwell::dwell_policy::{Backlog, Ns, Profile, Routes, Wait};
use dwell::executor::{Alarm, AsyncFile, Executor, Handle, Platform, Ready};
use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::{Decision, File, Mode, Reason, Route, WaitPolicy};

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
struct Device {
    clock: Arc<AtomicU64>,
    latency_ns: Ns,
    wakes: bool,
    /// Whether it wakes as a ring does, and then when its next completion comes.
    ring_due: Option<Arc<AtomicU64>>,
    /// How often its queue was asked to wake for how many.
    asked: Arc<Mutex<Vec<u32>>>,
}

struct DeviceQueue {
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
    /// It wakes with the completion that makes enough of them, as a ring would.
    fn arm(&mut self, enough: u32) -> Wake<'_> {
        if !self.wakes {
            return Wake::Never;
        }
        self.asked.lock().unwrap().push(enough);
        let at = (enough as usize).min(self.in_flight.len()).saturating_sub(1);
        let Some((due, ..)) = self.in_flight.get(at) else { return Wake::Never };
        match &self.ring_due {
            Some(ring_due) => {
                ring_due.store(*due, Ordering::Relaxed);
                Wake::Ring { fd: RING, unsent: 0, enough }
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

struct Stage {
    executor: Executor,
    clock: Arc<AtomicU64>,
    story: Story,
    asked: Arc<Mutex<Vec<u32>>>,
    ring_due: Arc<AtomicU64>,
}

impl Stage {
    fn new(arrivals: &[(Ns, usize)], wakeable: bool) -> Stage {
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

    fn device(&self, latency_ns: Ns, mode: Mode) -> AsyncFile<Device> {
        self.device_that(latency_ns, mode, true, fast())
    }

    /// A device whose queue is a ring.
    fn ring(&self, latency_ns: Ns) -> AsyncFile<Device> {
        let ring_due = Some(self.ring_due.clone());
        self.open(latency_ns, Mode::Block, true, ring_due, fast())
    }

    fn device_that(
        &self,
        latency_ns: Ns,
        mode: Mode,
        wakes: bool,
        known: DeviceParameters,
    ) -> AsyncFile<Device> {
        self.open(latency_ns, mode, wakes, None, known)
    }

    fn open(
        &self,
        latency_ns: Ns,
        mode: Mode,
        wakes: bool,
        ring_due: Option<Arc<AtomicU64>>,
        known: DeviceParameters,
    ) -> AsyncFile<Device> {
        let (clock, asked) = (self.clock.clone(), self.asked.clone());
        let device = Device { clock, latency_ns, wakes, ring_due, asked };
        let policy = Arc::new(Always(mode, latency_ns));
        let file = File::over(device, "device", "virtual", known, policy, None);
        self.executor.file(Arc::new(file)).unwrap()
    }

    fn actor(&self, name: &'static str) -> Actor {
        Actor { name, tasks: self.executor.handle(), story: self.story.clone() }
    }

    /// Runs until all have ended; the story.
    fn play(self, scenes: Vec<dwell::executor::JoinHandle<()>>) -> String {
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
struct Actor {
    name: &'static str,
    tasks: Handle,
    story: Story,
}

impl Actor {
    fn says(&self, what: &str) {
        let line = format!("{} {what} at {}, ", self.name, self.tasks.now());
        self.story.borrow_mut().push_str(&line);
    }

    async fn reads(&self, file: &AsyncFile<Device>) {
        file.read_at(vec![0; 512], 0).await.0.unwrap();
        self.says("read");
    }
}

#[test]
fn a_blocked_request_is_slept_for_and_a_spun_one_spun_for() {
    let schedule = |mode| {
        let stage = Stage::new(&[], true);
        let (file, a) = (stage.device(20_000, mode), stage.actor("a"));
        let scene = stage.executor.spawn(async move { a.reads(&file).await });
        stage.play(vec![scene])
    };
    assert_eq!(schedule(Mode::Block), "sleep to 20000, a read at 25000");
    assert_eq!(schedule(Mode::Spin), "a read at 20000");
    assert_eq!(schedule(Mode::Hybrid { sleep_ns: 9_000 }), "sleep to 9000, a read at 20000");
}

#[test]
fn the_request_due_first_decides_for_all() {
    let schedule = |first: Mode, second: Mode| {
        let stage = Stage::new(&[], true);
        let (near, far) = (stage.device(20_000, first), stage.device(60_000, second));
        let (a, b) = (stage.actor("a"), stage.actor("b"));
        let scenes = vec![
            stage.executor.spawn(async move { b.reads(&far).await }),
            stage.executor.spawn(async move { a.reads(&near).await }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(Mode::Spin, Mode::Block),
        "a read at 20000, spin 20000, sleep to 60000, b read at 65000"
    );
    assert_eq!(
        schedule(Mode::Block, Mode::Spin),
        "sleep to 20000, a read at 25000, b read at 60000"
    );
}

#[test]
fn a_timer_ends_a_spin_and_a_sleep_and_what_comes_later_goes_on() {
    let schedule = |mode| {
        let stage = Stage::new(&[], true);
        let (file, a, b) = (stage.device(40_000, mode), stage.actor("a"), stage.actor("b"));
        let scenes = vec![
            stage.executor.spawn(async move { a.reads(&file).await }),
            stage.executor.spawn(async move {
                for at in [10_000, 30_000, 12_000] {
                    b.tasks.sleep_until(at).await;
                    b.says("woke");
                }
            }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(Mode::Block),
        "sleep to 10000, b woke at 15000, sleep to 30000, b woke at 35000, b woke at 35000, \
         sleep to 40000, a read at 45000"
    );
    assert_eq!(
        schedule(Mode::Spin),
        "b woke at 10500, b woke at 30000, b woke at 30000, a read at 40000"
    );
}

#[test]
fn an_arrival_on_a_socket_ends_a_sleep_for_storage() {
    let stage = Stage::new(&[(8_000, 0), (50_000, 0)], true);
    let (file, a, b) = (stage.device(30_000, Mode::Block), stage.actor("a"), stage.actor("b"));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = stage.executor.watch(socket).unwrap();
    let scenes = vec![
        stage.executor.spawn(async move { a.reads(&file).await }),
        stage.executor.spawn(async move {
            assert!(socket.get().as_fd().try_clone_to_owned().is_ok());
            for _ in 0..2 {
                socket.readable(1).await;
                b.says("heard");
                let would_block = || io::Error::from(io::ErrorKind::WouldBlock);
                socket.try_read_with(|_| io::Result::<()>::Err(would_block())).unwrap_err();
            }
        }),
    ];
    assert_eq!(
        stage.play(scenes),
        "sleep to 8000, b heard at 13000, sleep to 30000, a read at 35000, sleep to 50000, \
         b heard at 55000"
    );
}

/// A word that nobody changes until somebody is heard.
#[derive(Default)]
struct Word(AtomicU32);

impl AsRef<AtomicU32> for Word {
    fn as_ref(&self) -> &AtomicU32 {
        &self.0
    }
}

#[test]
fn a_ring_that_was_chosen_and_not_slept_in_is_not_slept_in_later() {
    let schedule = |latency_ns| {
        let stage = Stage::new(&[(50_000, 0)], true);
        let file = stage.ring(latency_ns);
        let (a, b, c) = (stage.actor("a"), stage.actor("b"), stage.actor("c"));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = stage.executor.watch(socket).unwrap();
        let word = Arc::new(Word::default());
        let seen = word.clone();
        let scenes = vec![
            stage.executor.spawn(async move { a.reads(&file).await }),
            // Because of the word, the thread looks once more after it has chosen the ring.
            stage.executor.spawn(async move {
                b.tasks.changed(seen, 0).await;
                b.says("saw");
            }),
            stage.executor.spawn(async move {
                socket.readable(1).await;
                c.says("heard");
                word.0.store(1, Ordering::Release);
            }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(20_000),
        "sleep to 20000, a read at 25000, sleep to 50000, c heard at 55000, b saw at 55000"
    );
    // The completion came while the ring was being chosen: the last look finds it. The arrival ends
    // the next sleep.
    assert_eq!(schedule(1_000), "a read at 2000, sleep to 50000, c heard at 55000, b saw at 55000");
}

#[test]
fn what_wakes_nobody_is_napped_for_ever_longer() {
    let stage = Stage::new(&[], true);
    let file = stage.device_that(300_000, Mode::Block, false, fast());
    let a = stage.actor("a");
    let scene = stage.executor.spawn(async move { a.reads(&file).await });
    // Naps of 50, 100 and 200 µs, each with the wake-up and the looks that follow.
    assert_eq!(
        stage.play(vec![scene]),
        "spin 1500, sleep to 51500, spin 1500, sleep to 158000, spin 1500, sleep to 364500, \
         a read at 369500"
    );
}

#[test]
fn a_deep_queue_is_slept_for_until_enough_has_come() {
    let profile = Profile { switch_ns: 20_000, ..fast().profile.unwrap() };
    let known = DeviceParameters { profile: Some(profile), ..fast() };
    let stage = Stage::new(&[], true);
    let file = stage.device_that(64_000, Mode::Block, true, known);
    let mut scenes = Vec::new();
    for task in 0..32 {
        let (file, tasks) = (file.clone(), stage.executor.handle());
        scenes.push(stage.executor.spawn(async move {
            // They begin 2 µs apart and stay so.
            tasks.sleep_until(task * 2_000).await;
            for _ in 0..20 {
                file.read_at(vec![0; 512], 0).await.0.unwrap();
            }
        }));
    }
    let (asked, counts) = (stage.asked.clone(), stage.executor.handle());
    let story = stage.play(scenes);
    let counts = counts.counts();
    assert_eq!(counts.completions, 640);
    let asked = asked.lock().unwrap();
    assert_eq!((asked[0], asked.iter().max()), (1, Some(&8)), "a quarter of 32 at most: {story}");
    assert!(counts.parks < 640 / 4, "{counts:?}");
}

#[test]
fn tasks_that_are_always_ready_do_not_starve_the_rest() {
    let stage = Stage::new(&[(1_000, 0)], true);
    let (file, a, b) = (stage.device(10_000, Mode::Block), stage.actor("a"), stage.actor("b"));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = stage.executor.watch(socket).unwrap();
    let (busy, clock) = (stage.executor.handle(), stage.clock.clone());
    let works = stage.executor.spawn(async move {
        for _ in 0..50 {
            clock.fetch_add(1_000, Ordering::Relaxed);
            busy.yield_now().await;
        }
    });
    let scenes = vec![
        works,
        stage.executor.spawn(async move { a.reads(&file).await }),
        stage.executor.spawn(async move {
            socket.readable(1).await;
            b.says("heard");
        }),
    ];
    assert_eq!(stage.play(scenes), "a read at 12000, b heard at 21000");
}

#[test]
fn a_schedule_is_the_same_every_time() {
    let play = || {
        let stage = Stage::new(&[(3_000, 0), (9_000, 0), (100_000, 0)], true);
        let files = [
            (7_000, Mode::Spin),
            (31_000, Mode::Block),
            (15_000, Mode::Hybrid { sleep_ns: 4_000 }),
        ];
        let mut scenes = Vec::new();
        for (name, (latency_ns, mode)) in ["a", "b", "c"].into_iter().zip(files) {
            let (file, actor) = (stage.device(latency_ns, mode), stage.actor(name));
            scenes.push(stage.executor.spawn(async move {
                for round in 0..5 {
                    actor.reads(&file).await;
                    actor.tasks.sleep(Duration::from_nanos(round * 3_000)).await;
                }
            }));
        }
        stage.play(scenes)
    };
    let first = play();
    assert_eq!(first, play());
    assert_eq!(first.matches("read").count(), 15);
}
