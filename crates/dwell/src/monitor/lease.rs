// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many threads of a host may spin, and which process takes, keeps and passes on the seats:
//! pure decisions over a view of all seats.

/// Threads that may spin at once beside the others' work, each with the kernel workers that it
/// keeps busy.
pub fn room(effective_cpus: f64, others: f64, worker_share: f64) -> f64 {
    let room = effective_cpus * (1.0 - others) / (1.0 + worker_share);
    if room.is_finite() { room.clamp(0.0, 255.0) } else { 0.0 }
}

/// Utilisation by others below which one thread may spin however busy it keeps kernel workers.
/// Above it somebody may be using the CPU that a spinner's worker would take. A threshold that was
/// set takes its place.
pub const HARDLY_ANYBODY: f64 = 0.4;

/// The budget of spinners, with hysteresis: it falls when there is no more room for all of them
/// and rises only when there is half a spinner of room to spare.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    current: u32,
}

impl Budget {
    /// The budget for this window: none when others are above the threshold, else `least` or more.
    pub fn update(&mut self, room: f64, least: u32, above: bool) -> u32 {
        let (highest, lowest) = (room as u32, (room - 0.5).max(0.0) as u32);
        self.current = if above { 0 } else { self.current.clamp(lowest, highest).max(least) };
        self.current
    }
}

/// What the spinning threads of a process did in one window.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowUse {
    /// Spins that began.
    pub starts: u32,
    /// Threads spinning at the end of the window.
    pub active: u32,
    /// Whether a thread wanted to spin and could not.
    pub refused: bool,
    /// Time spun.
    pub spin_ns: u64,
    /// Length of the window.
    pub elapsed_ns: u64,
}

/// How many seats a process wants, with hysteresis over windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    idle_windows: u32,
    slack_windows: u32,
    content_windows: u32,
    target: u32,
}

impl Demand {
    /// Windows without a spin after which all seats are given up, and without a refusal after
    /// which no more are asked for.
    const IDLE_WINDOWS: u32 = 5;
    /// Windows with a seat too many after which one is given up.
    const SLACK_WINDOWS: u32 = 10;

    /// The seats wanted after this window by a process that holds `held`.
    pub fn update(&mut self, window: &WindowUse, held: u32) -> u32 {
        let spun = window.starts > 0 || window.active > 0;
        self.idle_windows = if spun || window.refused { 0 } else { self.idle_windows + 1 };
        if self.idle_windows >= Self::IDLE_WINDOWS {
            *self = Demand::default();
            return 0;
        }
        // A refusal from before the first seat came does not ask for a second one.
        if window.refused && (held == 0 || spun) {
            self.content_windows = 0;
            self.target = held.saturating_add(1).min(255);
        } else {
            self.content_windows += 1;
        }
        if self.content_windows >= Self::IDLE_WINDOWS || self.target < held {
            self.target = held;
        }
        let used = window.spin_ns.div_ceil(window.elapsed_ns.max(1));
        let needed = used.max(u64::from(window.active)).max(1);
        let slack = self.target <= held && u64::from(held) > needed;
        self.slack_windows = if slack { self.slack_windows + 1 } else { 0 };
        if self.slack_windows >= Self::SLACK_WINDOWS {
            self.slack_windows = 0;
            self.target = held - 1;
        }
        self.target
    }
}

/// The holder of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody, or somebody who is dead.
    Free,
    /// This process.
    Mine,
    /// Another process.
    Peer,
}

/// One seat: the right of one thread to spin, tied to one CPU of the host.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Number of the CPU, modulo the number of seats.
    pub cpu: u8,
    /// Its holder.
    pub holder: Holder,
    /// When it last changed hands, in milliseconds of the monotonic clock, wrapping.
    pub changed_ms: u32,
}

/// A live process that wants more seats than it holds.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// Its slot in the page.
    pub slot: u8,
    /// Seats that it holds.
    pub held: u32,
    /// Since when it wants more.
    pub since_ms: u32,
    /// The CPUs that it may run on, a bit per seat.
    pub cpus: [u64; 4],
}

impl Waiter {
    fn may_use(&self, cpu: u8) -> bool {
        self.cpus[usize::from(cpu >> 6)] >> (cpu & 63) & 1 == 1
    }
}

/// Everything that one process looks at when it decides.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The time.
    pub now_ms: u32,
    /// The length of this process's window.
    pub window_ms: u32,
    /// The budget, as this process sees it.
    pub budget: u32,
    /// Seats that this process wants in all.
    pub wanted: u32,
    /// Threads of this process that have been spinning for the whole window: their seats cannot
    /// be passed on, because the CPU would stay burnt.
    pub stuck: u32,
    /// Since when this process waits for a seat.
    pub waits_since_ms: u32,
    /// The slot of this process.
    pub slot: u8,
    /// The seats of the CPUs that this process may run on; the first `budget` of them count.
    pub seats: &'a [Seat],
    /// The other processes that wait.
    pub waiters: &'a [Waiter],
    /// How long a seat is kept when others wait, before jitter.
    pub max_hold_ms: u32,
    /// A number that differs from process to process.
    pub seed: u64,
}

/// What to do with one seat, by its place in [`View::seats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take it.
    Claim(usize),
    /// Leave it free.
    Release(usize),
    /// Hand it to the process in this slot.
    Pass(usize, u8),
}

/// Windows after which a free seat may be taken out of turn: whoever is first in line sleeps.
const TURN_WINDOWS: u32 = 3;

/// Milliseconds since `then`; 0 for what another process did a moment after our `now`.
pub fn age_ms(now_ms: u32, then_ms: u32) -> u32 {
    let age = now_ms.wrapping_sub(then_ms);
    if age > u32::MAX / 2 { 0 } else { age }
}

/// Spreads numbers evenly over 64 bits.
pub fn scatter(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What this process does now. The whole host changes at most a quarter of its budget (at least
/// one seat) per window, and gives up at most half of what is too much, so that processes neither
/// start nor stop in unison.
pub fn decide(view: &View<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    let budget = view.budget as usize;
    let fresh = |seat: &&Seat| age_ms(view.now_ms, seat.changed_ms) < view.window_ms;
    let step = (budget / 4).max(1);
    let mut recent = view.seats.iter().filter(fresh).count();
    let mut held = view.seats.iter().filter(|s| s.holder == Holder::Mine).count();
    let taken = view.seats.iter().filter(|s| s.holder != Holder::Free).count();
    let wanted = view.wanted as usize;

    let mut waiters: Vec<&Waiter> = view.waiters.iter().collect();
    waiters.sort_by_key(|w| (w.held, u32::MAX - age_ms(view.now_ms, w.since_ms), w.slot));
    let mut next_for = |cpu: u8, held: usize| {
        let i = waiters.iter().position(|w| w.may_use(cpu) && (w.held as usize) < held)?;
        Some(waiters.remove(i).slot)
    };

    // Too many seats for the budget: half of them now, the highest first.
    let beyond = view.seats.iter().skip(budget);
    let freed = beyond.clone().filter(fresh).filter(|s| s.holder == Holder::Free).count();
    let excess = beyond.filter(|s| s.holder != Holder::Free).count();
    let mut allowed = (excess + freed).div_ceil(2).saturating_sub(freed);
    for (i, seat) in view.seats.iter().enumerate().skip(budget).rev() {
        if allowed == 0 {
            break;
        }
        if seat.holder != Holder::Free {
            allowed -= 1;
        }
        if seat.holder == Holder::Mine {
            actions.push(Action::Release(i));
            held -= 1;
        }
    }

    // Seats that this process no longer needs, and one that it held for long enough.
    let keep = wanted.max(view.stuck as usize);
    for (i, seat) in view.seats.iter().enumerate().take(budget).rev() {
        if seat.holder != Holder::Mine {
            continue;
        }
        if held > keep {
            actions.push(match next_for(seat.cpu, usize::MAX).filter(|_| recent < step) {
                Some(slot) => Action::Pass(i, slot),
                None => Action::Release(i),
            });
            (held, recent) = (held - 1, recent + 1);
            continue;
        }
        let jitter = scatter(view.seed ^ u64::from(seat.changed_ms)) % 512;
        let hold_ms = u64::from(view.max_hold_ms) * (768 + jitter) / 1024;
        if held > view.stuck as usize
            && recent < step
            && u64::from(age_ms(view.now_ms, seat.changed_ms)) >= hold_ms
            && let Some(slot) = next_for(seat.cpu, held)
        {
            actions.push(Action::Pass(i, slot));
            (held, recent) = (held - 1, recent + 1);
        }
    }

    // A free seat, if it is this process's turn. Never in a window in which it gave one up.
    if actions.is_empty() && held < wanted && taken < budget && recent < step {
        let free = || {
            let seats = view.seats.iter().enumerate().take(budget);
            seats.filter(|(_, s)| s.holder == Holder::Free)
        };
        let place = (held as u32, u32::MAX - age_ms(view.now_ms, view.waits_since_ms), view.slot);
        let ahead = waiters
            .iter()
            .filter(|w| (w.held, u32::MAX - age_ms(view.now_ms, w.since_ms), w.slot) < place)
            .count();
        let idle = |s: &Seat| age_ms(view.now_ms, s.changed_ms) >= TURN_WINDOWS * view.window_ms;
        let my_turn = ahead < free().count();
        if let Some((i, _)) = free().find(|(_, s)| my_turn || idle(s)) {
            actions.push(Action::Claim(i));
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_leaves_room_for_others_and_for_kernel_workers() {
        for (effective, others, worker_share, spinners) in [
            (2.0, 0.0, 0.0, 2),
            (2.0, 0.0, 0.5, 1),
            (8.0, 0.5, 0.0, 4),
            (8.0, 0.5, 1.0, 2),
            (64.0, 0.25, 0.5, 32),
            (0.5, 0.0, 0.0, 0),
            (1e9, 0.0, 0.0, 255),
            (f64::NAN, 0.0, 0.0, 0),
        ] {
            assert_eq!(room(effective, others, worker_share) as u32, spinners);
        }
    }

    #[test]
    fn the_budget_rises_late_and_falls_at_once() {
        let mut budget = Budget::default();
        for (room, above, spinners) in [
            (4.4, false, 3),
            (4.6, false, 4),
            (4.0, false, 4),
            (3.9, false, 3),
            (4.3, false, 3),
            (9.0, true, 0),
            (9.0, false, 8),
        ] {
            assert_eq!(budget.update(room, 0, above), spinners, "room {room}");
        }
    }

    #[test]
    fn a_lone_thread_may_spin_whatever_its_worker_uses_and_beside_others_needs_room_for_both() {
        let spinners = |cpus, others, worker_share| {
            let least = u32::from(others < HARDLY_ANYBODY);
            Budget::default().update(room(cpus, others, worker_share), least, false)
        };
        assert_eq!(spinners(2.0, 0.05, 2.0), 1);
        assert_eq!(spinners(2.0, 0.45, 0.3), 0);
        assert_eq!(spinners(4.0, 0.45, 0.3), 1);
    }

    const WINDOW: WindowUse = WindowUse {
        starts: 100,
        active: 0,
        refused: false,
        spin_ns: 60_000_000,
        elapsed_ns: 100_000_000,
    };

    #[test]
    fn a_refused_process_asks_for_one_more_and_forgets_it_in_time() {
        let mut demand = Demand::default();
        let refused = WindowUse { starts: 0, spin_ns: 0, refused: true, ..WINDOW };
        let idle = WindowUse { starts: 0, spin_ns: 0, ..WINDOW };
        assert_eq!(demand.update(&refused, 0), 1);
        assert_eq!(demand.update(&idle, 0), 1);
        // The seat came; that it was missed before is no wish for a second one.
        assert_eq!(demand.update(&refused, 1), 1);
        assert_eq!(demand.update(&WINDOW, 1), 1);
        assert_eq!(demand.update(&WindowUse { refused: true, ..WINDOW }, 1), 2);
        for _ in 1..Demand::IDLE_WINDOWS {
            assert_eq!(demand.update(&WINDOW, 1), 2);
        }
        assert_eq!(demand.update(&WINDOW, 1), 1);
    }

    #[test]
    fn seats_that_are_not_used_are_given_up() {
        let mut demand = Demand::default();
        for _ in 1..Demand::SLACK_WINDOWS {
            assert_eq!(demand.update(&WINDOW, 3), 3);
        }
        assert_eq!(demand.update(&WINDOW, 3), 2);
        let idle = WindowUse { starts: 0, spin_ns: 0, ..WINDOW };
        let wanted: Vec<u32> = (0..Demand::IDLE_WINDOWS).map(|_| demand.update(&idle, 1)).collect();
        assert_eq!(wanted, [1, 1, 1, 1, 0]);
    }

    fn seat(holder: Holder, changed_ms: u32) -> Seat {
        Seat { cpu: 0, holder, changed_ms }
    }

    fn view<'a>(seats: &'a [Seat], waiters: &'a [Waiter]) -> View<'a> {
        View {
            now_ms: 10_000,
            window_ms: 100,
            budget: 1,
            wanted: 1,
            stuck: 0,
            waits_since_ms: 9_000,
            slot: 5,
            seats,
            waiters,
            max_hold_ms: 1000,
            seed: 3,
        }
    }

    #[test]
    fn a_seat_held_for_long_is_passed_on_unless_its_thread_never_stops() {
        let waiter = Waiter { slot: 9, held: 0, since_ms: 9_900, cpus: [1, 0, 0, 0] };
        let (old, new) = ([seat(Holder::Mine, 8_000)], [seat(Holder::Mine, 9_500)]);
        assert_eq!(decide(&view(&old, &[waiter])), [Action::Pass(0, 9)]);
        assert_eq!(decide(&view(&new, &[waiter])), []);
        assert_eq!(decide(&view(&old, &[])), []);
        let elsewhere = Waiter { cpus: [2, 0, 0, 0], ..waiter };
        assert_eq!(decide(&view(&old, &[elsewhere])), []);
        let waiting = [waiter];
        let stuck = View { stuck: 1, wanted: 0, ..view(&old, &waiting) };
        assert_eq!(decide(&stuck), []);
        let unused = View { wanted: 0, ..view(&new, &waiting) };
        assert_eq!(decide(&unused), [Action::Pass(0, 9)]);
    }

    #[test]
    fn a_free_seat_goes_to_whoever_waits_longest_or_after_a_while_to_anyone() {
        let first = Waiter { slot: 9, held: 0, since_ms: 8_000, cpus: [1, 0, 0, 0] };
        let later = Waiter { since_ms: 9_500, ..first };
        let free = [seat(Holder::Free, 9_850)];
        assert_eq!(decide(&view(&free, &[later])), [Action::Claim(0)]);
        assert_eq!(decide(&view(&free, &[first])), []);
        let has_some = Waiter { held: 1, ..first };
        assert_eq!(decide(&view(&free, &[has_some])), [Action::Claim(0)]);
        assert_eq!(decide(&view(&[seat(Holder::Free, 9_600)], &[first])), [Action::Claim(0)]);
        // It changed hands within this window.
        assert_eq!(decide(&view(&[seat(Holder::Free, 9_950)], &[])), []);
        assert_eq!(decide(&View { budget: 0, ..view(&free, &[]) }), []);
    }

    #[test]
    fn a_spinner_too_many_is_the_highest_seat_and_half_go_at_a_time() {
        let mut seats = [seat(Holder::Mine, 5_000); 8];
        seats[7].holder = Holder::Peer;
        let shrunk = View { budget: 3, wanted: 8, ..view(&seats, &[]) };
        assert_eq!(decide(&shrunk), [Action::Release(6), Action::Release(5)]);
    }
}
