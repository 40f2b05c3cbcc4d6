// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many threads of a host may spin, and how many of them each process may have.

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

/// The spinner limit, with hysteresis: it falls when there is no more room for all of them
/// and rises only when there is half a spinner of room to spare.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpinnerLimit {
    current: u32,
}

impl SpinnerLimit {
    /// The limit for this window: none when others are above the threshold, else `least` or more.
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

/// How many spinners a process wants, with hysteresis over windows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    idle_windows: u32,
    slack_windows: u32,
    content_windows: u32,
    target: u32,
}

impl Demand {
    /// Windows without a spin after which none is wanted, and without a refusal after which no
    /// more are.
    const IDLE_WINDOWS: u32 = 5;
    /// Windows with one too many after which one less is wanted.
    const SLACK_WINDOWS: u32 = 10;

    /// The spinners wanted after this window by a process that may have `held`.
    pub fn update(&mut self, window: &WindowUse, held: u32) -> u32 {
        let spun = window.starts > 0 || window.active > 0;
        self.idle_windows = if spun || window.refused { 0 } else { self.idle_windows + 1 };
        if self.idle_windows >= Self::IDLE_WINDOWS {
            *self = Demand::default();
            return 0;
        }
        // A refusal from before the first was granted does not ask for a second one.
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

/// Spreads numbers evenly over 64 bits.
pub fn scatter(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How many of `limit` spinners a process may have in a turn, where `wanted` are those that each
/// process wants and `me` is its place among them. They are handed out one at a time. The turn says
/// who comes first, and the limit does not: processes that see different limits agree on the order.
pub fn share(limit: u32, wanted: &[u32], me: usize, turn: u64) -> u32 {
    // A point that moves by the golden section of a circle comes to all its parts equally often.
    let point = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = ((u128::from(point) * wanted.len() as u128) >> 64) as usize;
    let in_order = || (first..wanted.len()).chain(0..first);
    let (mut left, mut mine) = (limit, 0);
    for level in 0.. {
        let before = left;
        for place in in_order().filter(|place| wanted[*place] > level) {
            if left == 0 {
                return mine;
            }
            (left, mine) = (left - 1, mine + u32::from(place == me));
        }
        if left == before {
            break;
        }
    }
    mine
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
        let mut limit = SpinnerLimit::default();
        for (room, above, spinners) in [
            (4.4, false, 3),
            (4.6, false, 4),
            (4.0, false, 4),
            (3.9, false, 3),
            (4.3, false, 3),
            (9.0, true, 0),
            (9.0, false, 8),
        ] {
            assert_eq!(limit.update(room, 0, above), spinners, "room {room}");
        }
    }

    #[test]
    fn a_lone_thread_may_spin_whatever_its_worker_uses_and_beside_others_needs_room_for_both() {
        let spinners = |cpus, others, worker_share| {
            let least = u32::from(others < HARDLY_ANYBODY);
            SpinnerLimit::default().update(room(cpus, others, worker_share), least, false)
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
        // One is granted; that it was missed before is no wish for a second one.
        assert_eq!(demand.update(&refused, 1), 1);
        assert_eq!(demand.update(&WINDOW, 1), 1);
        assert_eq!(demand.update(&WindowUse { refused: true, ..WINDOW }, 1), 2);
        for _ in 1..Demand::IDLE_WINDOWS {
            assert_eq!(demand.update(&WINDOW, 1), 2);
        }
        assert_eq!(demand.update(&WINDOW, 1), 1);
    }

    #[test]
    fn spinners_that_are_not_used_are_given_up() {
        let mut demand = Demand::default();
        for _ in 1..Demand::SLACK_WINDOWS {
            assert_eq!(demand.update(&WINDOW, 3), 3);
        }
        assert_eq!(demand.update(&WINDOW, 3), 2);
        let idle = WindowUse { starts: 0, spin_ns: 0, ..WINDOW };
        let wanted: Vec<u32> = (0..Demand::IDLE_WINDOWS).map(|_| demand.update(&idle, 1)).collect();
        assert_eq!(wanted, [1, 1, 1, 1, 0]);
    }

    fn shares(limit: u32, wanted: &[u32], turn: u64) -> Vec<u32> {
        (0..wanted.len()).map(|me| share(limit, wanted, me, turn)).collect()
    }

    #[test]
    fn the_limit_is_handed_out_to_those_who_want_it() {
        for (limit, wanted, expected) in [
            (6, &[10][..], &[6][..]),
            (6, &[10, 1], &[5, 1]),
            (6, &[0, 3, 3], &[0, 3, 3]),
            (7, &[2, 9, 2, 1], &[2, 2, 2, 1]),
            (0, &[1, 1], &[0, 0]),
            (255, &[u32::MAX, 5], &[250, 5]),
        ] {
            assert_eq!(shares(limit, wanted, 0), expected, "{limit} {wanted:?}");
        }
    }

    #[test]
    fn in_every_turn_the_limit_is_kept_and_used_and_nobody_waits_long() {
        for (count, limit) in (1..=64).flat_map(|count| [1, 2, 3, 12].map(|limit| (count, limit))) {
            let mut last = vec![0; count];
            for turn in 1..=3 * count as u64 {
                let shares = shares(limit, &vec![1; count], turn);
                assert_eq!(shares.iter().sum::<u32>(), limit.min(count as u32));
                for (last, _) in last.iter_mut().zip(shares).filter(|(_, share)| *share > 0) {
                    // Three times as long as if all came in a row.
                    let rounds = (count as u64).div_ceil(limit.into());
                    assert!(turn - *last <= 3 * rounds, "{count} {limit}: {}", turn - *last);
                    *last = turn;
                }
            }
            assert!(last.iter().all(|last| *last > 0));
        }
    }

    #[test]
    fn processes_that_see_limits_one_apart_exceed_the_lower_by_one() {
        for turn in 0..20 {
            let of = |me: usize| share(2 + (me as u32 & 1), &[1; 7], me, turn);
            assert!((0..7).map(of).sum::<u32>() <= 3, "turn {turn}");
        }
    }
}
