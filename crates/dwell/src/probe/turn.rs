// SPDX-License-Identifier: MIT OR Apache-2.0
//! A way's turn in a round of a sweep: what runs before it, and on which CPUs it is measured.
//!
//! How long a blocked request takes depends on what came before: on the CPU that the kernel's worker
//! was left on, and on whether it has halted. So blocking is measured in both of its states on
//! purpose. After a spin the worker is on another CPU; the thread that blocks moves to it and back.

/// What runs before a way is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The way itself, until it has settled.
    Itself,
    /// The way itself, for long.
    Long,
    /// A thread that spins on this CPU.
    Spinning(usize),
}

/// One way's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// What runs first, unmeasured.
    pub before: Before,
    /// Where the way is measured then, one part of its time after the other. `None` leaves the choice
    /// to the scheduler.
    pub places: Vec<Option<usize>>,
}

/// Parts of a turn of blocking.
const PARTS: usize = 4;

impl Turn {
    /// A turn of a way that has one state.
    pub fn free() -> Turn {
        Turn { before: Before::Itself, places: vec![None] }
    }

    /// A turn of a blocking way, with the CPUs that the thread may use. Rounds after spinning and
    /// rounds after long blocking alternate, and the CPU to spin on changes from one to the next.
    pub fn of_blocking(round: usize, cpus: &[usize]) -> Turn {
        if round % 2 == 1 || cpus.is_empty() {
            return Turn { before: Before::Long, places: vec![None; PARTS] };
        }
        let cpu = |part: usize| cpus[(round / 2 + part % 2) % cpus.len()];
        let places = (0..PARTS).map(|part| Some(cpu(part))).collect();
        Turn { before: Before::Spinning(cpu(0)), places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocking_is_measured_after_spinning_on_both_cpus_and_after_long_blocking() {
        let turn = |round| Turn::of_blocking(round, &[2, 5]);
        let places = [2, 5, 2, 5].map(Some).to_vec();
        assert_eq!(turn(0), Turn { before: Before::Spinning(2), places });
        assert_eq!(turn(1), Turn { before: Before::Long, places: vec![None; 4] });
        let places = [5, 2, 5, 2].map(Some).to_vec();
        assert_eq!(turn(2), Turn { before: Before::Spinning(5), places });
        assert_eq!(turn(3), turn(1));
    }

    #[test]
    fn a_thread_with_one_cpu_stays_there() {
        let places = vec![Some(7); 4];
        assert_eq!(Turn::of_blocking(4, &[7]), Turn { before: Before::Spinning(7), places });
    }
}
