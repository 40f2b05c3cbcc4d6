// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process's part in the host page: signs of life, what peers use, seats taken and passed on.

use super::lease::{self, Action, Holder, Seat, View, Waiter};
use super::sync::SLOTS;
use super::table::{Field, Identity, Owner, SeatWord, Table, halves, seats, slots};

/// Silent periods after which a seat's holder, or a slot's process, is suspected to be dead.
const SUSPECT_PERIODS: u64 = 3;
/// Silent periods after which a seat is taken from its holder even if it lives.
const SEAT_PERIODS: u64 = 10;
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
    /// Requests.
    pub requests: u64,
    /// Length of the window.
    pub elapsed_ns: u64,
    /// Milliseconds until its next report.
    pub period_ms: u32,
    /// Hash of the control group whose quota binds it; 0 for none.
    pub group: u64,
}

/// What peers use of our CPUs, in CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fellows {
    /// Busy-waiting.
    pub spin_cpus: f64,
    /// Kernel workers.
    pub worker_cpus: f64,
    /// The part of `spin_cpus` in our own control group.
    pub group_spin_cpus: f64,
    /// Live processes beside us.
    pub count: u32,
}

/// What a process asks of the page.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Its budget of spinners for the whole host.
    pub budget: u32,
    /// Seats that it wants.
    pub wanted: u32,
    /// Its threads that never stopped spinning in the last window.
    pub stuck: u32,
    /// Its window.
    pub window_ms: u32,
    /// How long a seat is kept when others wait, before jitter.
    pub max_hold_ms: u32,
}

/// One process's part.
#[derive(Debug)]
pub struct Member {
    identity: Identity,
    slot: Option<u8>,
    cpus: [u64; 4],
    /// Seats of our CPUs, ascending.
    seats: Vec<u8>,
    /// Whether seats of CPUs that were lost may still be held.
    moved: bool,
    waits_since_ms: Option<u32>,
    totals: Report,
    sweep_at: u8,
}

fn ms(now_ns: u64) -> u32 {
    (now_ns / 1_000_000) as u32
}

impl Member {
    /// A process that has no slot yet.
    pub fn new(identity: Identity) -> Member {
        Member {
            identity,
            slot: None,
            cpus: [0; 4],
            seats: Vec::new(),
            moved: false,
            waits_since_ms: None,
            totals: Report::default(),
            sweep_at: identity.pid() as u8,
        }
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
        if mask == self.cpus {
            return;
        }
        (self.cpus, self.moved) = (mask, true);
        let cpus = self.cpus;
        self.seats.clear();
        self.seats.extend(seats().filter(|c| cpus[usize::from(c >> 6)] >> (c & 63) & 1 == 1));
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
                for field in [Field::Rate, Field::Wanted, Field::Leased] {
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
        let totals = &mut self.totals;
        totals.spin_ns = totals.spin_ns.saturating_add(own.spin_ns);
        totals.worker_ns = totals.worker_ns.saturating_add(own.worker_ns);
        totals.requests = totals.requests.saturating_add(own.requests);
        let rate = |ns: u64| {
            (u128::from(ns) * 1_000_000 / u128::from(own.elapsed_ns.max(1))).min(256_000_000) as u32
        };
        table.set(slot, Field::SpinNs, totals.spin_ns);
        table.set(slot, Field::WorkerNs, totals.worker_ns);
        table.set(slot, Field::Requests, totals.requests);
        table.set(slot, Field::Rate, halves(rate(own.spin_ns), rate(own.worker_ns)));
        table.set(slot, Field::Group, own.group);
        table.set(slot, Field::PeriodMs, u64::from(own.period_ms));
        table.set_cpus(slot, self.cpus);
        table.set(slot, Field::HeartbeatNs, now_ns);
        true
    }

    /// What peers use of our CPUs, by their last reports.
    pub fn peers(&self, table: Table<'_>, now_ns: u64, group: u64) -> Fellows {
        let mut sum = Fellows::default();
        for slot in slots() {
            if Some(slot) == self.slot
                || table.identity(slot).is_none()
                || table.silent_periods(slot, now_ns) >= SUSPECT_PERIODS
            {
                continue;
            }
            sum.count += 1;
            let theirs = table.cpus(slot);
            let count = |mask: [u64; 4]| mask.iter().map(|w| w.count_ones()).sum::<u32>();
            let (all, shared) =
                (count(theirs), count(std::array::from_fn(|i| theirs[i] & self.cpus[i])));
            if shared == 0 {
                continue;
            }
            // Where a peer runs is not known: it is taken to be spread over its CPUs.
            let overlap = f64::from(shared) / f64::from(all);
            let (spin, worker) = table.get_halves(slot, Field::Rate);
            let in_cpus = |rate: u32| (f64::from(rate) / 1e6).min(f64::from(all)) * overlap;
            sum.spin_cpus += in_cpus(spin);
            sum.worker_cpus += in_cpus(worker);
            if group != 0 && table.get(slot, Field::Group) == group {
                sum.group_spin_cpus += in_cpus(spin);
            }
        }
        sum
    }

    /// Takes, keeps, passes on and gives up seats; answers with the number held afterwards.
    pub fn settle(&mut self, table: Table<'_>, now_ns: u64, ask: &Ask, gone: Gone<'_>) -> u32 {
        let Some(me) = self.slot else { return 0 };
        let (now_ms, my_owner) = (ms(now_ns), Owner::new(me, self.identity));
        self.sweep(table, now_ns, gone);
        if std::mem::take(&mut self.moved) {
            let cpus = self.cpus;
            let lost = |cpu: &u8| cpus[usize::from(cpu >> 6)] >> (cpu & 63) & 1 == 0;
            Self::free_seats(table, my_owner, now_ms, seats().filter(lost));
        }

        let words: Vec<SeatWord> = self.seats.iter().map(|&cpu| table.seat(cpu)).collect();
        let mut held_by = [0u32; SLOTS];
        let mut seats = Vec::with_capacity(words.len());
        for (&cpu, word) in self.seats.iter().zip(&words) {
            let holder = match word.owner() {
                Some(owner) if owner == my_owner => Holder::Mine,
                Some(owner) if Self::holds(table, owner, now_ns, gone) => Holder::Peer,
                _ => Holder::Free,
            };
            if let (Holder::Peer, Some(owner)) = (holder, word.owner()) {
                held_by[usize::from(owner.slot)] += 1;
            }
            seats.push(Seat { cpu, holder, changed_ms: word.changed_ms() });
        }
        let held = seats.iter().filter(|s| s.holder == Holder::Mine).count() as u32;

        // A process without a budget does not queue for seats that it may not use.
        let wanted = if ask.budget == 0 { 0 } else { ask.wanted };
        self.waits_since_ms = (wanted > held).then(|| self.waits_since_ms.unwrap_or(now_ms));
        let waits_since_ms = self.waits_since_ms.unwrap_or(now_ms);
        table.set(me, Field::Wanted, halves(wanted, waits_since_ms));

        let waiters = self.waiters(table, now_ns, &held_by);
        let actions = lease::decide(&View {
            now_ms,
            window_ms: ask.window_ms,
            budget: ask.budget,
            wanted: ask.wanted,
            stuck: ask.stuck,
            waits_since_ms,
            slot: me,
            seats: &seats,
            waiters: &waiters,
            max_hold_ms: ask.max_hold_ms,
            seed: self.identity.0,
        });
        let mut held = held;
        for action in actions {
            let (at, to) = match action {
                Action::Claim(at) => (at, Some(my_owner)),
                Action::Release(at) => (at, None),
                Action::Pass(at, slot) => {
                    (at, table.identity(slot).map(|identity| Owner::new(slot, identity)))
                }
            };
            let done = table.change_seat(self.seats[at], words[at], SeatWord::new(to, now_ms));
            match action {
                Action::Claim(_) if done => {
                    held += 1;
                    self.waits_since_ms = None;
                }
                Action::Claim(_) => {}
                // A seat that could not be given up was taken from us.
                Action::Release(_) | Action::Pass(..) => held -= 1,
            }
        }
        let since = seats.iter().filter(|s| s.holder == Holder::Mine).map(|s| s.changed_ms);
        table.set(me, Field::Leased, halves(held, since.min().unwrap_or(now_ms)));
        held
    }

    fn waiters(&self, table: Table<'_>, now_ns: u64, held_by: &[u32; SLOTS]) -> Vec<Waiter> {
        let mut waiters = Vec::new();
        for slot in slots() {
            if Some(slot) == self.slot || table.identity(slot).is_none() {
                continue;
            }
            let (wanted, since_ms) = table.get_halves(slot, Field::Wanted);
            let held = held_by[usize::from(slot)];
            if wanted > held && table.silent_periods(slot, now_ns) < SUSPECT_PERIODS {
                waiters.push(Waiter { slot, held, since_ms, cpus: table.cpus(slot) });
            }
        }
        waiters
    }

    /// Whether the owner of a seat is there and holds on to it.
    fn holds(table: Table<'_>, owner: Owner, now_ns: u64, gone: Gone<'_>) -> bool {
        let Some(identity) = table.identity(owner.slot) else { return false };
        Owner::new(owner.slot, identity) == owner
            && match table.silent_periods(owner.slot, now_ns) {
                0..SUSPECT_PERIODS => true,
                SEAT_PERIODS.. => false,
                _ => !gone(identity),
            }
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

    /// Gives up all seats and the slot.
    pub fn leave(&mut self, table: Table<'_>, now_ns: u64) {
        let Some(slot) = self.slot.take() else { return };
        Self::free_seats(table, Owner::new(slot, self.identity), ms(now_ns), seats());
        table.change_identity(slot, Some(self.identity), None);
    }

    fn free_seats(table: Table<'_>, owner: Owner, now_ms: u32, cpus: impl Iterator<Item = u8>) {
        for cpu in cpus {
            let seen = table.seat(cpu);
            if seen.owner() == Some(owner) {
                table.change_seat(cpu, seen, SeatWord::new(None, now_ms));
            }
        }
    }
}
