// SPDX-License-Identifier: MIT OR Apache-2.0
//! What requests teach about a device: every thread hears its own, and all act on what was found.

mod cell;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use dwell_policy::switchback::{Seen, Switchback, Told};
use dwell_policy::{
    Arm, Arms, BUCKETS, Call, Decision, Goal, Kind, Learned, Ns, Reason, Wait, bucket,
};

use crate::clock;
use crate::fork::{ForkMark, OfProcess};
use crate::remembered::{CELLS, Place, Remembered};

use cell::{Cell, Word};

/// What was found out about one device. Its open files share it, those through the page cache and
/// those around it apart. Each direction and size bucket is searched for itself, with and without
/// others who want the CPUs. For a pipeline's requests it hears how fast they come out one after
/// another; their size is that of as many as the pipeline takes.
///
/// Nothing here allocates or waits for a lock once it is made: a request may come from a signal
/// handler.
#[derive(Debug)]
pub struct Learner {
    goal: Goal,
    cells: Box<[Cell]>,
    /// What other processes found and are to find.
    remembered: Option<Place>,
    /// Whose turn it is to try something, where that is nobody else's business.
    turn: AtomicU64,
    /// A forked child has a learner of its own, which shares with others what it finds.
    mark: Option<ForkMark>,
}

/// A turn is held in steps of 2^26 ns, about 67 ms.
const TURN_SHIFT: u32 = 26;
const TURN_HOLDER: u64 = (1 << 30) - 1;

/// The holder of a turn to try something: 22 bits of the process's number, and its cell.
fn holder(at: usize) -> u64 {
    u64::from(std::process::id()) << 8 & TURN_HOLDER | at as u64
}

/// The turn of this process's cell, until shortly after a moment.
fn turn_until(at: usize, until: Ns) -> u64 {
    ((until >> TURN_SHIFT) + 1) << 30 | holder(at)
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

    /// The arm that a decision counts for. Before anything was learned, one that blocked only for
    /// want of a spinner is the policy's word for spinning. Waking a server that sleeps is what the
    /// arm costs that needs it.
    pub fn arm(self, decision: &Decision) -> Arm {
        match (self.learned(), decision.reason) {
            (Some(learned), Reason::Asleep | Reason::SpinnerLimit) => learned.arm,
            (None, Reason::SpinnerLimit) if self.offered.has(Arm::Poll) => Arm::Poll,
            (None, Reason::SpinnerLimit) => Arm::Spin,
            _ => Arm::of(decision),
        }
    }

    /// Whether it was made beside others who want the CPUs, and decided by what was measured there.
    pub fn spares_others(self) -> bool {
        has_others_above(self.cell) && self.learned().is_some()
    }
}

/// How a request was served, or several of a pipeline one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub arm: Option<Arm>,
    pub requests: u64,
    /// Of so many such, this one was timed.
    pub stands_for: u64,
    pub began: Ns,
    /// From then to the end of the last.
    pub took_ns: Ns,
    /// The thread's CPU time, where it was measured.
    pub cpu_ns: Option<Ns>,
}

/// A call that is timed, and heard of once it is over.
pub(crate) struct Heard<'a> {
    pub learner: &'a Learner,
    pub hearing: &'a RefCell<Hearing>,
    pub asked: Asked,
    pub bytes: u64,
    pub stands_for: u64,
    pub began: Ns,
}

impl Heard<'_> {
    /// It came to that; how long it took.
    pub fn done(self, result: i32) -> Ns {
        let Heard { learner, hearing, asked, bytes, stands_for, began } = self;
        let took_ns = clock::now() - began;
        if u64::try_from(result) == Ok(bytes)
            && let Ok(mut hearing) = hearing.try_borrow_mut()
        {
            let arm = asked.learned().map(|learned| learned.arm);
            let taken = Taken { arm, requests: 1, stands_for, began, took_ns, cpu_ns: None };
            learner.hear(&mut hearing, asked, taken);
        }
        took_ns
    }
}

/// What one thread has heard and not yet told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hearing {
    tallies: [Tally; Hearing::TALLIES],
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
}

/// The CPU time of one request in so long is measured. Measuring takes two system calls, which must
/// not show in the 99th percentile of a device of 3 µs.
const METER_EVERY_NS: Ns = 500_000;

/// The cell of a request, of which a pipeline takes `depth`.
fn cell_of(wait: &Wait<'_>, depth: u32) -> Option<usize> {
    let queued = usize::from(wait.call == Call::Async);
    let direction = match wait.kind {
        Kind::Read => 0,
        Kind::Write => 1,
        Kind::Sync => return None,
    };
    let others_above = usize::from(wait.load.others_above());
    let together_bytes = wait.size_bytes.saturating_mul(depth.into());
    Some(((queued * 2 + direction) * 2 + others_above) * BUCKETS + bucket(together_bytes))
}

/// Whether a cell's requests are those beside others who want the CPUs.
const fn has_others_above(cell: usize) -> bool {
    cell / BUCKETS % 2 == 1
}

impl Learner {
    fn new(goal: Goal, remembered: Option<Place>) -> Learner {
        let cells = (0..CELLS).map(|at| Cell::new(goal, has_others_above(at)));
        let (turn, mark) = (AtomicU64::new(0), ForkMark::new().ok());
        Learner { goal, cells: cells.collect(), remembered, turn, mark }
    }

    /// The learner of the device that files call by this name and use in this manner, for this
    /// goal.
    pub(crate) fn of(
        device: &str,
        manner: &str,
        goal: Goal,
        remembered: Option<&Arc<Remembered>>,
    ) -> Arc<Learner> {
        type Devices = HashMap<(String, Goal), Weak<Learner>>;
        static DEVICES: OfProcess<Devices> = OfProcess::new();
        let mut devices = DEVICES.lock();
        let key = (format!("{device} {manner}"), goal);
        let is_ours =
            |learner: &Arc<Learner>| learner.mark.as_ref().is_none_or(ForkMark::same_process);
        if let Some(known) = devices.get(&key).and_then(Weak::upgrade).filter(is_ours) {
            return known;
        }
        devices.retain(|_, learner| learner.strong_count() > 0);
        let lasting = device.split_once('@').map_or(device, |(lasting, _)| lasting);
        let place = remembered.and_then(|all| all.place(&format!("{lasting} {manner} {goal}")));
        let fresh = Arc::new(Learner::new(goal, place));
        devices.insert(key, Arc::downgrade(&fresh));
        fresh
    }

    /// The step for a request, of which up to `depth` go together; `None` where there is nothing to
    /// choose.
    #[inline]
    pub(crate) fn ask(&self, wait: &Wait<'_>, depth: u32) -> Option<Asked> {
        let (cell, offered) = (cell_of(wait, depth)?, Arms::of(wait, depth));
        let word = Word(self.cells[cell].word.load(Relaxed));
        offered.is_choice().then_some(Asked { cell, word, offered })
    }

    /// Whether the step still lasts in which a request was asked for.
    #[inline]
    pub(crate) fn is_now(&self, asked: Asked) -> bool {
        self.cells[asked.cell].word.load(Relaxed) == asked.word.0
    }

    /// Whether a request that begins now is to be heard of.
    #[inline]
    pub(crate) fn listens(&self, asked: Asked, now: Ns) -> bool {
        now >= self.cells[asked.cell].from.load(Relaxed)
    }

    /// Whether the thread's CPU time for a request that begins now is to be measured.
    #[inline]
    pub(crate) fn is_to_meter(&self, asked: Asked, now: Ns) -> bool {
        let cell = &self.cells[asked.cell];
        cell.meters && self.listens(asked, now) && now >= cell.meter_at.load(Relaxed)
    }

    /// The same, and whoever asks does it.
    #[inline]
    pub(crate) fn meters(&self, asked: Asked, now: Ns) -> bool {
        let is_due = self.is_to_meter(asked, now);
        if is_due {
            let next = now.saturating_add(METER_EVERY_NS);
            self.cells[asked.cell].meter_at.store(next, Relaxed);
        }
        is_due
    }

    /// For how many a request by the call stands that is to be timed, after so many of this
    /// thread's; `None` for one that is not.
    #[inline]
    pub(crate) fn times(&self, asked: Asked, calls: u64) -> Option<u64> {
        // Even of requests that come in a pattern, each kind is timed as often.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let untimed_shift = match asked.learned() {
            Some(Learned { trial: false, .. }) => {
                self.cells[asked.cell].untimed_shift.load(Relaxed)
            }
            _ => 0,
        };
        let scattered = calls.wrapping_mul(GOLDEN);
        let is_timed = scattered.checked_shr(64 - untimed_shift).unwrap_or(0) == 0;
        is_timed.then_some(1 << untimed_shift)
    }

    /// Hears how a request was served.
    #[inline]
    pub(crate) fn hear(&self, hearing: &mut Hearing, asked: Asked, taken: Taken) {
        let cell = &self.cells[asked.cell];
        let now = taken.began.saturating_add(taken.took_ns);
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
            let slow_ns = cell.slow.load(Relaxed).saturating_mul(taken.requests);
            tally.seen.add(Seen {
                requests: taken.requests * taken.stands_for,
                latency_ns: taken.took_ns * taken.stands_for,
                slow_ns: taken.took_ns.saturating_sub(slow_ns) * taken.stands_for,
                metered: if taken.cpu_ns.is_some() { taken.requests } else { 0 },
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
        let Seen { requests, latency_ns, slow_ns, metered, cpu_ns } =
            std::mem::take(&mut tally.seen);
        let cell = &self.cells[tally.cell];
        if requests == 0 || cell.word.load(Relaxed) != tally.word.0 {
            return;
        }
        for (sum, more) in cell.seen.iter().zip([requests, latency_ns, slow_ns, metered, cpu_ns]) {
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

    /// What was found of the nearest size, at most four times as large or small. The switches that
    /// a spin saves are of no size.
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
        let [requests, latency_ns, slow_ns, metered, cpu_ns] =
            std::array::from_fn(|sum: usize| cell.seen[sum].swap(0, Relaxed));
        cell.space(requests, &search);
        let turn = self.claim(at, now, now);
        let seen = Seen { requests, latency_ns, slow_ns, metered, cpu_ns };
        if let Some(remembered) = &self.remembered {
            search.hear_of(now, &remembered.recall(at));
        }
        let step = search.step(now, seen, turn.is_some());
        match turn {
            Some(turn) if search.is_trying() => self.hold(turn, at, step.until),
            Some(turn) => self.give_back(turn),
            None => {}
        }
        if let Some(remembered) = &self.remembered {
            remembered.remember(at, search.save());
        }
        cell.publish(step);
    }

    /// The cell that tries something, and until when at most. Two trials at once on one device
    /// would see each other.
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

    /// Keeps the turn until a step ends. Its holder may stop asking, so it ends by itself soon
    /// after.
    fn hold(&self, turn: u64, at: usize, until: Ns) {
        // Another process may have taken it meanwhile, and then keeps it.
        let _ = self.turn().compare_exchange(turn, turn_until(at, until), Relaxed, Relaxed);
    }

    fn give_back(&self, turn: u64) {
        // As above.
        let _ = self.turn().compare_exchange(turn, 0, Relaxed, Relaxed);
    }

    /// The summary for requests like this one, of which up to `depth` go together: the step in
    /// force, and each arm.
    pub fn told(&self, wait: &Wait<'_>, depth: u32) -> Option<LearnerSummary> {
        let at = cell_of(wait, depth)?;
        let cell = &self.cells[at];
        let mut search = *cell.search.try_lock().ok()?;
        let offered = Arms::of(wait, depth);
        if !search.is_begun() && !self.restore(at, &mut search, offered, clock::now()) {
            return None;
        }
        Some(LearnerSummary {
            incumbent: search.incumbent(),
            trial: search.now().trial.then_some(search.now().arm),
            cpu_price: self.goal.cpu_price(),
            others_above: has_others_above(at),
            switches: search.switches(),
            offered: search.offered(),
            arms: Arm::ALL.map(|arm| search.told(arm)),
        })
    }

    /// What it has found, in sums.
    pub fn state(&self) -> LearnerState {
        let mut state = LearnerState { learns: true, ..LearnerState::default() };
        for cell in &self.cells {
            let Ok(search) = cell.search.try_lock() else { continue };
            if !search.is_begun() {
                continue;
            }
            state.kinds += 1;
            state.spins += u32::from(search.incumbent().spins());
            state.switches += u64::from(search.switches());
            state.trials +=
                Arm::ALL.map(|arm| u64::from(search.told(arm).trials)).iter().sum::<u64>();
        }
        state
    }
}

/// What was found out about a device by comparing arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct LearnerState {
    /// Whether anything is compared at all.
    pub learns: bool,
    /// Kinds and sizes of request that are compared.
    pub kinds: u32,
    /// Those of them that are spun for.
    pub spins: u32,
    /// How often the arm for a kind and size changed.
    pub switches: u64,
    /// How often another arm was tried.
    pub trials: u64,
}

/// The state of the search for one kind and size of request on a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnerSummary {
    /// The arm that serves but for trials.
    pub incumbent: Arm,
    /// The arm on trial now.
    pub trial: Option<Arm>,
    /// What a nanosecond of CPU time counts for, in nanoseconds of latency.
    pub cpu_price: f64,
    /// Whether others want the CPUs: an arm that spins must then take no more CPU time than one
    /// that blocks.
    pub others_above: bool,
    /// How often another arm became the incumbent.
    pub switches: u32,
    /// The arms that such requests can take.
    pub offered: Arms,
    /// Each arm, in the order of [`Arm::ALL`].
    pub arms: [Told; dwell_policy::ARMS],
}

#[cfg(test)]
mod tests;
