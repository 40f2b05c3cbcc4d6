// SPDX-License-Identifier: MIT OR Apache-2.0
//! An arm's turn in a round of a sweep: what runs before it, and on which CPUs it is measured.
//!
//! How long a request takes depends on what came before: on the CPU that the kernel's worker was
//! left on, and on whether that has halted. So an arm is measured first as it settles by itself,
//! and then in both states on purpose. A spin drives the worker to another CPU; the thread stays,
//! then follows.

/// What runs before an arm is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The arm itself, until it has settled.
    Itself,
    /// A thread that spins on this CPU.
    Spinning(usize),
}

/// A part of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// What runs first, unmeasured.
    pub before: Before,
    /// Where the arm is measured then, one batch after the other. `None` leaves the choice to the
    /// scheduler.
    pub places: [Option<usize>; 2],
}

/// The legs of an arm that settles, and nothing else.
pub const SETTLED: [Leg; 1] = [Leg { before: Before::Itself, places: [None; 2] }];

/// The legs of an arm that is measured in both states, with the CPUs that the thread may use. The
/// CPU to spin on changes from round to round.
pub fn both_states(round: usize, cpus: &[usize]) -> Vec<Leg> {
    let mut legs = SETTLED.to_vec();
    if !cpus.is_empty() {
        let [here, there] = [0, 1].map(|next| cpus[(round + next) % cpus.len()]);
        let places = [Some(here), Some(there)];
        legs.push(Leg { before: Before::Spinning(here), places });
    }
    legs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_measured_where_it_settles_and_after_a_spin_on_both_cpus() {
        let after_a_spin = |round| both_states(round, &[2, 5])[1].clone();
        let [here, there] = [Some(2), Some(5)];
        let leg = |before, places| Leg { before, places };
        assert_eq!(both_states(0, &[2, 5])[..1], SETTLED);
        assert_eq!(after_a_spin(0), leg(Before::Spinning(2), [here, there]));
        assert_eq!(after_a_spin(1), leg(Before::Spinning(5), [there, here]));
        assert_eq!(after_a_spin(2), after_a_spin(0));
    }

    #[test]
    fn a_thread_with_one_cpu_stays_there() {
        let leg = Leg { before: Before::Spinning(7), places: [Some(7); 2] };
        assert_eq!(both_states(4, &[7])[1], leg);
        assert_eq!(both_states(4, &[]), SETTLED);
    }
}
