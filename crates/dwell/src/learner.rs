// SPDX-License-Identifier: MIT OR Apache-2.0
//! What requests teach about a device: every thread hears its own, and all act on what was found.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use dwell_policy::switchback::{Seen, Step, Switchback, Told};
use dwell_policy::{Arm, Arms, BUCKETS, Call, Goal, Kind, Learned, Ns, Wait, bucket};

use crate::clock;
use crate::ledger::LearnerState;
use crate::remembered::{Place, Remembered};

/// Directions, load states and size buckets.
pub(crate) const CELLS: usize = 2 * 2 * BUCKETS;

/// What was found out about one device. Its open files share it, those through the page cache and those
/// around it apart. Each direction and size bucket is searched for itself, with and without others who
/// want the CPUs.
///
/// Nothing here allocates or waits for a lock once it is made: a request may come from a signal handler.
#[derive(Debug)]
pub struct Learner {
    goal: Goal,
    cells: Box<[Cell]>,
    /// What other processes found and are to find.
    remembered: Option<Place>,
    /// Whose turn it is to try something, where that is nobody else's business.
    turn: AtomicU64,
}

/// A turn is held in steps of 2^26 ns, about 67 ms.
const TURN_SHIFT: u32 = 26;
const TURN_HOLDER: u64 = (1 << 30) - 1;

/// Who tries something: a process, of whose number there are 22 bits, and its cell.
fn holder(at: usize) -> u64 {
    u64::from(std::process::id()) << 8 & TURN_HOLDER | at as u64
}

/// The turn of this process's cell, until shortly after a moment.
fn turn_until(at: usize, until: Ns) -> u64 {
    ((until >> TURN_SHIFT) + 1) << 30 | holder(at)
}

/// One direction, load state and size bucket.
#[derive(Debug)]
struct Cell {
    /// The step in force ([`Word`]); 0 before the first request.
    word: AtomicU64,
    /// Requests that begin from then on count, and somebody asks for the next step after this.
    from: AtomicU64,
    until: AtomicU64,
    /// What threads have told so far: requests, latency, metered requests, CPU time.
    seen: [AtomicU64; 4],
    search: Mutex<Switchback>,
}

/// A step in one word: its number, whether it is a trial, and its arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(number: u64, step: Step) -> Word {
        Word(number << 3 | u64::from(step.trial) << 2 | (step.arm as u64 + 1))
    }

    fn number(self) -> u64 {
        self.0 >> 3
    }

    fn learned(self) -> Option<Learned> {
        let arm = Arm::ALL.get((self.0 & 3).checked_sub(1)? as usize)?;
        Some(Learned { arm: *arm, trial: self.0 >> 2 & 1 == 1 })
    }
}

/// The step that a request was asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    cell: usize,
    word: Word,
    offered: Arms,
}

impl Asked {
    /// What a policy may know of it.
    pub fn learned(self) -> Option<Learned> {
        self.word.learned()
    }
}

/// How a request was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub arm: Option<Arm>,
    pub began: Ns,
    pub latency_ns: Ns,
    /// The thread's CPU time, where it was measured.
    pub cpu_ns: Option<Ns>,
}

/// What one thread has heard and not yet told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearing {
    tallies: [Tally; Hearing::TALLIES],
    metered: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cell: usize,
    word: Word,
    seen: Seen,
}

impl Hearing {
    /// Cells that a thread hears of at once; more, and it tells sooner.
    const TALLIES: usize = 8;
    /// A thread tells all others after so many requests.
    const TELL_AFTER: u64 = 16;
    /// The CPU time of one request in so many is measured.
    const METER_ONE_IN: u64 = 16;
}

fn cell_of(wait: &Wait<'_>) -> Option<usize> {
    let direction = match (wait.kind, wait.call) {
        (Kind::Read, Call::Blocking) => 0,
        (Kind::Write, Call::Blocking) => 1,
        (Kind::Sync, _) | (_, Call::Queued) => return None,
    };
    let crowded = usize::from(wait.load.others_above());
    Some((direction * 2 + crowded) * BUCKETS + bucket(wait.size_bytes))
}

impl Learner {
    fn new(goal: Goal, remembered: Option<Place>) -> Learner {
        let cells = (0..CELLS).map(|_| Cell::new(goal)).collect();
        Learner { goal, cells, remembered, turn: AtomicU64::new(0) }
    }

    /// What is found out about the device that files call by this name and use in this manner, for
    /// this goal.
    pub(crate) fn of(
        device: &str,
        manner: &str,
        goal: Goal,
        remembered: Option<&Arc<Remembered>>,
    ) -> Arc<Learner> {
        type Devices = HashMap<(String, Goal), Weak<Learner>>;
        static DEVICES: OnceLock<Mutex<Devices>> = OnceLock::new();
        let devices = DEVICES.get_or_init(Default::default);
        let mut devices = devices.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (format!("{device} {manner}"), goal);
        if let Some(known) = devices.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        devices.retain(|_, learner| learner.strong_count() > 0);
        let lasting = device.split_once('@').map_or(device, |(lasting, _)| lasting);
        let place = remembered.and_then(|all| all.place(&format!("{lasting} {manner} {goal}")));
        let fresh = Arc::new(Learner::new(goal, place));
        devices.insert(key, Arc::downgrade(&fresh));
        fresh
    }

    /// The step for a request; `None` where there is nothing to choose.
    #[inline]
    pub(crate) fn ask(&self, wait: &Wait<'_>) -> Option<Asked> {
        let cell = cell_of(wait)?;
        let all = Arms::on(wait.routes);
        // Where others want the CPUs, a spinner takes them away from somebody.
        let offered = if wait.load.others_above() { all.without(Arm::Spin) } else { all };
        let word = Word(self.cells[cell].word.load(Relaxed));
        offered.is_choice().then_some(Asked { cell, word, offered })
    }

    /// Whether a request that begins now is to be heard of.
    #[inline]
    pub(crate) fn listens(&self, asked: Asked, now: Ns) -> bool {
        now >= self.cells[asked.cell].from.load(Relaxed)
    }

    /// Whether the CPU time of this thread's next request is to be measured.
    #[inline]
    pub(crate) fn meters(&self, hearing: &mut Hearing, asked: Asked, now: Ns) -> bool {
        if self.goal.cpu_price() == 0.0 || !self.listens(asked, now) {
            return false;
        }
        hearing.metered = hearing.metered.wrapping_add(1);
        hearing.metered % Hearing::METER_ONE_IN == 1
    }

    /// Hears how a request was served.
    #[inline]
    pub(crate) fn hear(&self, hearing: &mut Hearing, asked: Asked, taken: Taken) {
        let cell = &self.cells[asked.cell];
        let now = taken.began.saturating_add(taken.latency_ns);
        let Some(learned) = asked.learned() else {
            if let Some(prior) = taken.arm.filter(|arm| asked.offered.has(*arm)) {
                self.begin(asked.cell, prior, asked.offered, now);
            }
            return;
        };
        if taken.began < cell.from.load(Relaxed) {
            return;
        }
        let tally = &mut hearing.tallies[asked.cell % Hearing::TALLIES];
        if (tally.cell, tally.word) != (asked.cell, asked.word) {
            self.tell(tally);
            *tally = Tally { cell: asked.cell, word: asked.word, seen: Seen::default() };
        }
        if taken.arm == Some(learned.arm) {
            tally.seen.add(Seen {
                requests: 1,
                latency_ns: taken.latency_ns,
                metered: taken.cpu_ns.is_some().into(),
                cpu_ns: taken.cpu_ns.unwrap_or(0),
            });
        }
        let is_over = now >= cell.until.load(Relaxed);
        if is_over || tally.seen.requests >= Hearing::TELL_AFTER {
            self.tell(tally);
        }
        if is_over {
            self.step(asked.cell, now);
        }
    }

    /// Tells all threads what one has heard, if that step still lasts.
    fn tell(&self, tally: &mut Tally) {
        let Seen { requests, latency_ns, metered, cpu_ns } = std::mem::take(&mut tally.seen);
        let cell = &self.cells[tally.cell];
        if requests == 0 || cell.word.load(Relaxed) != tally.word.0 {
            return;
        }
        for (sum, more) in cell.seen.iter().zip([requests, latency_ns, metered, cpu_ns]) {
            sum.fetch_add(more, Relaxed);
        }
    }

    #[cold]
    fn begin(&self, at: usize, prior: Arm, offered: Arms, now: Ns) {
        let cell = &self.cells[at];
        // Somebody else who begins it at this moment does so for all.
        let Ok(mut search) = cell.search.try_lock() else { return };
        if search.is_begun() {
            return;
        }
        if !self.restore(at, &mut search, offered, now) {
            search.begin(now, self.of_next_size(at, offered).unwrap_or(prior), offered);
        }
        cell.publish(search.now());
    }

    /// What was found of the nearest size, at most four times as large or small. The switches that a
    /// spin saves are of no size.
    fn of_next_size(&self, at: usize, offered: Arms) -> Option<Arm> {
        let same_kind = |next: &usize| *next < CELLS && next / BUCKETS == at / BUCKETS;
        let sizes = [1, 2].into_iter().flat_map(|far| [at.wrapping_sub(far), at + far]);
        let known = |next: usize| self.cells[next].search.try_lock().ok()?.found();
        sizes.filter(same_kind).filter_map(known).find(|arm| offered.has(*arm))
    }

    /// Begins with what another process found, if there is such a thing.
    fn restore(&self, at: usize, search: &mut Switchback, offered: Arms, now: Ns) -> bool {
        let remembered = self.remembered.as_ref();
        remembered.is_some_and(|place| search.restore(now, &place.recall(at), offered))
    }

    #[cold]
    fn step(&self, at: usize, now: Ns) {
        let cell = &self.cells[at];
        let Ok(mut search) = cell.search.try_lock() else { return };
        if now < cell.until.load(Relaxed) {
            return;
        }
        let [requests, latency_ns, metered, cpu_ns] =
            std::array::from_fn(|sum: usize| cell.seen[sum].swap(0, Relaxed));
        let turn = self.claim(at, now, now);
        let seen = Seen { requests, latency_ns, metered, cpu_ns };
        let step = search.step(now, seen, turn.is_some());
        match turn {
            Some(turn) if search.is_trying() => self.hold(turn, at, step.until),
            Some(turn) => self.give_back(turn),
            None => {}
        }
        if let (false, Some(remembered)) = (search.is_trying(), &self.remembered) {
            remembered.remember(at, search.save(now));
        }
        cell.publish(step);
    }

    /// The cell that tries something, and until when at most. Two trials at once on one device would
    /// see each other.
    fn turn(&self) -> &AtomicU64 {
        self.remembered.as_ref().map_or(&self.turn, Place::turn)
    }

    /// Takes the device's turn to try something, or keeps it, until then; the word that says so.
    fn claim(&self, at: usize, now: Ns, until: Ns) -> Option<u64> {
        let held = self.turn().load(Relaxed);
        let is_over = held >> 30 < now >> TURN_SHIFT;
        if held != 0 && !is_over && held & TURN_HOLDER != holder(at) {
            return None;
        }
        let claimed = turn_until(at, until);
        self.turn().compare_exchange(held, claimed, Relaxed, Relaxed).ok().map(|_| claimed)
    }

    /// Keeps the turn until a step ends. Whoever has it may stop asking, so it ends by itself soon after.
    fn hold(&self, turn: u64, at: usize, until: Ns) {
        // Another process may have taken it meanwhile, and then keeps it.
        let _ = self.turn().compare_exchange(turn, turn_until(at, until), Relaxed, Relaxed);
    }

    fn give_back(&self, turn: u64) {
        // As above.
        let _ = self.turn().compare_exchange(turn, 0, Relaxed, Relaxed);
    }

    /// What is known of requests like this one: the step in force, and each arm.
    pub fn told(&self, wait: &Wait<'_>) -> Option<Known> {
        let cell = &self.cells[cell_of(wait)?];
        let mut search = *cell.search.try_lock().ok()?;
        if !search.is_begun() {
            let offered = Arms::on(wait.routes);
            if !self.restore(cell_of(wait)?, &mut search, offered, clock::now()) {
                return None;
            }
        }
        Some(Known {
            incumbent: search.incumbent(),
            trial: search.now().trial.then_some(search.now().arm),
            switches: search.switches(),
            arms: Arm::ALL.map(|arm| search.told(arm)),
        })
    }

    /// What it has found, for a ledger.
    pub fn state(&self) -> LearnerState {
        let mut state = LearnerState { learns: true, ..LearnerState::default() };
        for cell in &self.cells {
            let Ok(search) = cell.search.try_lock() else { continue };
            if !search.is_begun() {
                continue;
            }
            state.kinds += 1;
            state.spins += u32::from(search.incumbent() == Arm::Spin);
            state.switches += u64::from(search.switches());
            state.trials +=
                Arm::ALL.map(|arm| u64::from(search.told(arm).trials)).iter().sum::<u64>();
        }
        state
    }
}

impl Cell {
    fn new(goal: Goal) -> Cell {
        Cell {
            word: AtomicU64::new(0),
            from: AtomicU64::new(0),
            until: AtomicU64::new(0),
            seen: [const { AtomicU64::new(0) }; 4],
            search: Mutex::new(Switchback::idle(goal)),
        }
    }

    /// Makes a step the one in force. One that is only prolonged keeps its number, so that what was
    /// heard of it still counts.
    fn publish(&self, step: Step) {
        let before = Word(self.word.load(Relaxed));
        let same = before != Word::default()
            && self.from.load(Relaxed) == step.from
            && before.learned() == Some(Learned { arm: step.arm, trial: step.trial });
        self.from.store(step.from, Relaxed);
        self.until.store(step.until, Relaxed);
        if !same {
            self.word.store(Word::new(before.number() + 1, step).0, Relaxed);
        }
    }
}

/// What is known of one kind and size of request on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The arm that serves but for trials.
    pub incumbent: Arm,
    /// The arm on trial now.
    pub trial: Option<Arm>,
    /// How often another arm became the incumbent.
    pub switches: u32,
    /// Each arm, in the order of [`Arm::ALL`].
    pub arms: [Told; dwell_policy::ARMS],
}

#[cfg(test)]
mod tests {
    use dwell_policy::policy::Adaptive;
    use dwell_policy::{Load, Routes, WaitPolicy};

    use super::*;
    use crate::monitor::Sharing;

    const SECOND: Ns = 1_000_000_000;

    /// A device in virtual time, used by one thread without a pause.
    struct World {
        learner: Learner,
        hearing: Hearing,
        now: Ns,
        /// Latency of a call, on a ring, and spun for.
        takes_ns: [Ns; 3],
        load: Load,
        routes: Routes,
    }

    impl World {
        fn new(remembered: Option<Place>, takes_ns: [Ns; 3]) -> World {
            World {
                learner: Learner::new(Goal::Latency, remembered),
                hearing: Hearing::default(),
                now: SECOND,
                takes_ns,
                load: Load::default(),
                routes: Routes::INLINE | Routes::INTERRUPT,
            }
        }

        fn wait(&self, kind: Kind, size_bytes: u64) -> Wait<'static> {
            let (load, routes) = (self.load, self.routes);
            Wait { load, routes, ..Wait::new(kind, size_bytes, None) }
        }

        /// Serves one request and says how.
        fn request(&mut self, kind: Kind, size_bytes: u64) -> Arm {
            let mut wait = self.wait(kind, size_bytes);
            let asked = self.learner.ask(&wait);
            wait.learned = asked.and_then(Asked::learned);
            let decision = Adaptive::default().choose(&wait);
            let arm = Arm::of(&decision).unwrap();
            let (began, latency_ns) = (self.now, self.takes_ns[arm as usize]);
            self.now += latency_ns;
            if let Some(asked) = asked {
                let taken = Taken { arm: Some(arm), began, latency_ns, cpu_ns: None };
                self.learner.hear(&mut self.hearing, asked, taken);
            }
            arm
        }

        /// Requests for so long, and how many of them each arm served.
        fn requests(&mut self, kind: Kind, size_bytes: u64, span_ns: Ns) -> [u64; 3] {
            let until = self.now + span_ns;
            let mut served = [0; 3];
            while self.now < until {
                served[self.request(kind, size_bytes) as usize] += 1;
            }
            served
        }

        fn incumbent(&self, kind: Kind, size_bytes: u64) -> Option<Arm> {
            self.learner.told(&self.wait(kind, size_bytes)).map(|known| known.incumbent)
        }
    }

    #[test]
    fn each_direction_and_size_is_searched_for_itself() {
        let mut world = World::new(None, [30_000, 40_000, 10_000]);
        assert_eq!(world.request(Kind::Read, 4096), Arm::Call);
        world.requests(Kind::Read, 4096, 2 * SECOND);
        assert_eq!(world.incumbent(Kind::Read, 4096), Some(Arm::Spin));
        assert_eq!(world.incumbent(Kind::Write, 4096), None);
        assert_eq!(world.incumbent(Kind::Read, 8192), None);
        world.takes_ns = [10_000, 40_000, 30_000];
        world.requests(Kind::Write, 4096, 2 * SECOND);
        assert_eq!(world.incumbent(Kind::Write, 4096), Some(Arm::Call));
        assert_eq!(world.incumbent(Kind::Read, 4096), Some(Arm::Spin));
        let state = world.learner.state();
        assert_eq!((state.kinds, state.spins, state.switches), (2, 1, 1));
    }

    #[test]
    fn a_new_size_begins_with_what_was_found_of_the_nearest() {
        let mut world = World::new(None, [30_000, 40_000, 10_000]);
        world.requests(Kind::Read, 4096, 10 * SECOND);
        for size_bytes in [1024, 2048, 8192, 16384] {
            world.request(Kind::Read, size_bytes);
            assert_eq!(world.incumbent(Kind::Read, size_bytes), Some(Arm::Spin), "{size_bytes}");
        }
        // Too far from the only size that has found something, or in the other direction.
        for (kind, size_bytes) in
            [(Kind::Read, 32768), (Kind::Read, 512), (Kind::Write, 4096), (Kind::Read, 65536)]
        {
            world.request(kind, size_bytes);
            assert_eq!(world.incumbent(kind, size_bytes), Some(Arm::Call), "{kind:?} {size_bytes}");
        }
    }

    #[test]
    fn once_settled_few_requests_try_anything() {
        let mut world = World::new(None, [30_000, 40_000, 10_000]);
        world.requests(Kind::Read, 4096, 300 * SECOND);
        let [call, ring, spin] = world.requests(Kind::Read, 4096, 300 * SECOND);
        assert!((call + ring) * 1000 < 3 * spin, "{call} {ring} {spin}");
    }

    #[test]
    fn beside_others_nobody_spins_and_afterwards_what_was_known_holds() {
        let mut world = World::new(None, [30_000, 20_000, 10_000]);
        world.requests(Kind::Read, 4096, 2 * SECOND);
        world.load = Load::new(1.0, 1.0, 0.5);
        let [_, ring, spin] = world.requests(Kind::Read, 4096, 60 * SECOND);
        assert_eq!((world.incumbent(Kind::Read, 4096), spin), (Some(Arm::Ring), 0));
        assert!(ring > 0);
        world.load = Load::default();
        assert_eq!(world.request(Kind::Read, 4096), Arm::Spin);
    }

    #[test]
    fn a_sync_one_of_several_and_what_only_a_call_can_do_are_not_compared() {
        let mut world = World::new(None, [30_000, 20_000, 10_000]);
        let queued = Wait { call: Call::Queued, ..world.wait(Kind::Read, 4096) };
        assert_eq!(world.learner.ask(&queued), None);
        assert_eq!(world.learner.ask(&world.wait(Kind::Sync, 0)), None);
        world.routes = Routes::INLINE;
        assert_eq!(world.requests(Kind::Read, 4096, SECOND)[1..], [0, 0]);
        assert_eq!(world.incumbent(Kind::Read, 4096), None);
    }

    #[test]
    fn what_was_served_otherwise_is_not_heard_of() {
        let mut world = World::new(None, [30_000, 20_000, 10_000]);
        world.request(Kind::Read, 4096);
        // The policy is another: it calls whatever is asked for.
        for _ in 0..100_000 {
            let asked = world.learner.ask(&world.wait(Kind::Read, 4096)).unwrap();
            let (began, latency_ns) = (world.now, 30_000);
            world.now += latency_ns;
            let taken = Taken { arm: Some(Arm::Call), began, latency_ns, cpu_ns: None };
            world.learner.hear(&mut world.hearing, asked, taken);
        }
        let known = world.learner.told(&world.wait(Kind::Read, 4096)).unwrap();
        assert_eq!((known.incumbent, known.arms[Arm::Spin as usize].trials), (Arm::Call, 0));
    }

    #[test]
    fn the_next_process_begins_with_what_this_one_found_and_only_one_tries_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Remembered::open(&dir.path().join("learned"), Sharing::SameUser).unwrap();
        let place = || Arc::new(open()).place("7:0 direct").unwrap();
        let mut one = World::new(Some(place()), [30_000, 20_000, 10_000]);
        one.requests(Kind::Read, 4096, 10 * SECOND);
        let mut other = World::new(Some(place()), [30_000, 20_000, 10_000]);
        other.now = one.now;
        assert_eq!(other.incumbent(Kind::Read, 4096), Some(Arm::Spin));
        other.request(Kind::Read, 4096);
        assert_eq!(other.request(Kind::Read, 4096), Arm::Spin);
        let now = one.now;
        let turn = one.learner.claim(3, now, now + SECOND).unwrap();
        assert_eq!(other.learner.claim(4, now + SECOND, now + SECOND), None);
        assert!(one.learner.claim(3, now, now + SECOND).is_some());
        // Its holder may have gone.
        let late = now + 2 * SECOND;
        assert!(other.learner.claim(4, late, late).is_some());
        // What is over cannot be held on to.
        one.learner.hold(turn, 3, late + SECOND);
        assert!(other.learner.claim(4, late, late).is_some());
    }

    #[test]
    fn a_ring_alone_leaves_nothing_to_choose_where_nobody_may_spin() {
        let mut world = World::new(None, [30_000, 20_000, 10_000]);
        world.routes = Routes::INTERRUPT;
        assert!(world.learner.ask(&world.wait(Kind::Read, 4096)).is_some());
        world.load = Load::new(1.0, 1.0, 0.5);
        assert_eq!(world.learner.ask(&world.wait(Kind::Read, 4096)), None);
    }
}
