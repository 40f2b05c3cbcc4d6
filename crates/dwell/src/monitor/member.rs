// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process's part in the host page: signs of life, what peers use, its share of the limit.

use super::limit;
use super::sync::SLOTS;
use super::table::{Field, Identity, Table, halves, slots};

/// Silent periods after which a process is suspected to be dead.
const SUSPECT_PERIODS: u64 = 3;
/// Silent periods after which a process has no share even if it lives.
const LATE_PERIODS: u64 = 10;
/// Silent periods after which a slot is taken from its process even if it lives.
const SLOT_PERIODS: u64 = 50;

/// Whether a process is known to be dead.
pub type Gone<'a> = &'a dyn Fn(Identity) -> bool;

/// What a process tells its peers about its last window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Time spun, within its CPU time.
    pub spin_ns: u64,
    /// CPU time of the kernel workers that served it.
    pub worker_ns: u64,
    /// Length of the window.
    pub elapsed_ns: u64,
    /// Milliseconds until its next report.
    pub period_ms: u32,
    /// Hash of the control group whose quota binds it; 0 for none.
    pub group: u64,
}

/// What peers use of our CPUs, in CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeerTotals {
    /// Busy-waiting.
    pub spin_cpus: f64,
    /// Kernel workers.
    pub worker_cpus: f64,
    /// The part of `spin_cpus` in our own control group.
    pub group_spin_cpus: f64,
    /// Busy-waiting on whatever CPUs.
    pub all_spin_cpus: f64,
}

/// What a process asks of the page.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Its limit of spinners for the whole host.
    pub limit: u32,
    /// Spinners that it wants.
    pub wanted: u32,
    /// Its window.
    pub window_ms: u32,
    /// Length of a turn, where not all can have what they want.
    pub turn_ms: u32,
}

/// One process's part.
#[derive(Debug)]
pub struct Member {
    identity: Identity,
    slot: Option<u8>,
    cpus: [u64; 4],
    sweep_at: u8,
}

impl Member {
    /// A process that has no slot yet.
    pub fn new(identity: Identity) -> Member {
        Member { identity, slot: None, cpus: [0; 4], sweep_at: identity.pid() as u8 }
    }

    /// The identity of the member's process.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The slot that it has.
    #[cfg(test)]
    pub fn slot(&self) -> Option<u8> {
        self.slot
    }

    /// Sets the CPUs that the process may run on.
    pub fn set_cpus(&mut self, cpus: impl Iterator<Item = u32>) {
        let mut mask = [0u64; 4];
        for cpu in cpus {
            let cpu = cpu as u8;
            mask[usize::from(cpu >> 6)] |= 1 << (cpu & 63);
        }
        self.cpus = mask;
    }

    /// Takes a slot if it has none (any more); `false` when all are taken by the living.
    fn join(&mut self, table: Table<'_>, now_ns: u64, gone: Gone<'_>) -> bool {
        if let Some(slot) = self.slot
            && table.identity(slot) == Some(self.identity)
        {
            return true;
        }
        self.slot = None;
        let start = self.identity.pid() as usize;
        let order = || (0..SLOTS).map(|i| ((start + i) % SLOTS) as u8);
        let free = order().map(|slot| (slot, None));
        let dead = order().filter_map(|slot| {
            let identity = table.identity(slot)?;
            Self::is_dead(table, slot, identity, now_ns, gone).then_some((slot, Some(identity)))
        });
        // Taken as it was seen: somebody else may come first.
        for (slot, seen) in free.chain(dead) {
            if table.identity(slot) != seen {
                continue;
            }
            // The sign of life comes first: a peer must not find us dead on arrival.
            table.set(slot, Field::PeriodMs, 1000);
            table.set(slot, Field::HeartbeatNs, now_ns);
            if table.change_identity(slot, seen, Some(self.identity)) {
                for field in [Field::Rate, Field::Wanted, Field::Allowed] {
                    table.set(slot, field, 0);
                }
                self.slot = Some(slot);
                return true;
            }
        }
        false
    }

    /// Whether the process that was seen in a slot is dead.
    fn is_dead(
        table: Table<'_>,
        slot: u8,
        identity: Identity,
        now_ns: u64,
        gone: Gone<'_>,
    ) -> bool {
        match table.silent_periods(slot, now_ns) {
            0..SUSPECT_PERIODS => false,
            SLOT_PERIODS.. => true,
            _ => gone(identity),
        }
    }

    /// Publishes the last window. `false` when the page is full.
    pub fn report(&mut self, table: Table<'_>, now_ns: u64, own: &Report, gone: Gone<'_>) -> bool {
        if !self.join(table, now_ns, gone) {
            return false;
        }
        let Some(slot) = self.slot else { return false };
        let rate = |ns: u64| {
            (u128::from(ns) * 1_000_000 / u128::from(own.elapsed_ns.max(1))).min(256_000_000) as u32
        };
        table.set(slot, Field::Rate, halves(rate(own.spin_ns), rate(own.worker_ns)));
        table.set(slot, Field::Group, own.group);
        table.set(slot, Field::PeriodMs, u64::from(own.period_ms));
        table.set_cpus(slot, self.cpus);
        table.set(slot, Field::HeartbeatNs, now_ns);
        self.sweep(table, now_ns, gone);
        true
    }

    /// What peers use of our CPUs, by their last reports.
    pub fn peers(&self, table: Table<'_>, now_ns: u64, group: u64) -> PeerTotals {
        let mut sum = PeerTotals::default();
        for slot in slots() {
            if Some(slot) == self.slot
                || table.identity(slot).is_none()
                || table.silent_periods(slot, now_ns) >= SUSPECT_PERIODS
            {
                continue;
            }
            let theirs = table.cpus(slot);
            let all: u32 = theirs.iter().map(|word| word.count_ones()).sum();
            let (spin, worker) = table.get_halves(slot, Field::Rate);
            let in_cpus = |rate: u32| (f64::from(rate) / 1e6).min(f64::from(all));
            sum.all_spin_cpus += in_cpus(spin);
            let shared = self.shared_cpus(theirs);
            if shared == 0 {
                continue;
            }
            // Where a peer runs is not known: it is taken to be spread over its CPUs.
            let overlap = f64::from(shared) / f64::from(all);
            sum.spin_cpus += in_cpus(spin) * overlap;
            sum.worker_cpus += in_cpus(worker) * overlap;
            if group != 0 && table.get(slot, Field::Group) == group {
                sum.group_spin_cpus += in_cpus(spin) * overlap;
            }
        }
        sum
    }

    /// Shares the limit with the other processes of our CPUs; answers with the spinners that this
    /// process may have. Each process looks once per window: for so long the sum can differ from
    /// the limit after one began or ended to want spinners.
    pub fn share(&self, table: Table<'_>, now_ns: u64, ask: &Ask, gone: Gone<'_>) -> u32 {
        let Some(slot) = self.slot else { return 0 };
        // A process without a limit asks for nothing that it may not use.
        let wanted = if ask.limit == 0 { 0 } else { ask.wanted };
        table.set(slot, Field::Wanted, wanted.into());
        let allowed = self.allowed(table, now_ns, &Ask { wanted, ..*ask }, gone);
        table.set(slot, Field::Allowed, allowed.into());
        allowed
    }

    /// Takes a first spinner in the middle of a window, if the others leave one and it is our turn.
    pub fn take_first(&self, table: Table<'_>, now_ns: u64, ask: &Ask, gone: Gone<'_>) -> bool {
        let Some(slot) = self.slot else { return false };
        let first = Ask { wanted: 1, ..*ask };
        let free = self.taken(table, now_ns, gone) < ask.limit
            && self.allowed(table, now_ns, &first, gone) > 0;
        table.set(slot, Field::Wanted, 1);
        table.set(slot, Field::Allowed, free.into());
        free
    }

    /// Spinners that the other processes of our CPUs may have.
    pub fn taken(&self, table: Table<'_>, now_ns: u64, gone: Gone<'_>) -> u32 {
        self.sharers(table, now_ns, Field::Allowed, gone).map(|(_, theirs)| theirs).sum()
    }

    fn allowed(&self, table: Table<'_>, now_ns: u64, ask: &Ask, gone: Gone<'_>) -> u32 {
        let mut wanted = vec![ask.wanted];
        let mut me = 0;
        for (slot, theirs) in self.sharers(table, now_ns, Field::Wanted, gone) {
            let is_before = Some(slot) < self.slot;
            wanted.insert(if is_before { me } else { wanted.len() }, theirs);
            me += usize::from(is_before);
        }
        let turn_ns = u64::from(ask.turn_ms.max(4 * ask.window_ms)) * 1_000_000;
        let at = |ns: u64| limit::share(ask.limit, &wanted, me, ns / turn_ns);
        // Those whose turn it was may not have looked since.
        let window_ns = u64::from(ask.window_ms) * 1_000_000;
        at(now_ns).min(at(now_ns.saturating_sub(window_ns)))
    }

    /// The slots of live processes that share CPUs with us, ascending, each with the part of its
    /// spinners that falls to those CPUs, if any does.
    fn sharers<'a>(
        &'a self,
        table: Table<'a>,
        now_ns: u64,
        field: Field,
        gone: Gone<'a>,
    ) -> impl Iterator<Item = (u8, u32)> {
        slots().filter(|slot| Some(*slot) != self.slot).filter_map(move |slot| {
            let (theirs, identity) = (table.cpus(slot), table.identity(slot)?);
            let all = theirs.iter().map(|word| word.count_ones()).sum::<u32>();
            let spinners = table.get(slot, field).min(255) as u32;
            let spinners = (spinners * self.shared_cpus(theirs)).checked_div(all)?;
            // The kernel is asked as soon as a sign of life is overdue: a process that has ended
            // must not keep a spinner from the next.
            let lives = || match table.silent_periods(slot, now_ns) {
                0 => true,
                LATE_PERIODS.. => false,
                _ => !gone(identity),
            };
            // What this process had before an exec is in its own way.
            let is_other = identity != self.identity;
            (is_other && spinners > 0 && lives()).then_some((slot, spinners))
        })
    }

    /// How many of these CPUs are also ours.
    fn shared_cpus(&self, theirs: [u64; 4]) -> u32 {
        theirs.iter().zip(self.cpus).map(|(theirs, ours)| (theirs & ours).count_ones()).sum()
    }

    /// Frees at most one slot of the dead, so that a window's cost stays small.
    fn sweep(&mut self, table: Table<'_>, now_ns: u64, gone: Gone<'_>) {
        for _ in 0..SLOTS {
            let slot = ((usize::from(self.sweep_at) + 1) % SLOTS) as u8;
            self.sweep_at = slot;
            let Some(identity) = table.identity(slot) else { continue };
            if table.silent_periods(slot, now_ns) < SUSPECT_PERIODS {
                continue;
            }
            if Self::is_dead(table, slot, identity, now_ns, gone) {
                table.change_identity(slot, Some(identity), None);
            }
            return;
        }
    }

    /// Gives up the slot.
    pub fn leave(&mut self, table: Table<'_>) {
        if let Some(slot) = self.slot.take() {
            table.change_identity(slot, Some(self.identity), None);
        }
    }
}
