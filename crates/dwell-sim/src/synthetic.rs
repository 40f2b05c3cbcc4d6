// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs made by hand: scripts written step by step, and loops that sweep, draw or follow
//! pointers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::isa::{Instr, Regs, reg};
use crate::program::{Access, Dictionary, Program, ProgramError, Source, Tape};
use crate::rng::Rng;

/// A program written instruction by instruction.
#[derive(Clone, Debug)]
pub struct Script {
    name: String,
    instrs: Vec<Instr>,
    tape: Tape,
}

impl Script {
    /// An empty program.
    pub fn new(name: &str) -> Self {
        Script { name: name.into(), instrs: vec![Instr::NOTHING], tape: Tape::default() }
    }

    /// Any instruction with its accesses.
    #[must_use]
    pub fn instr(mut self, instr: Instr, accesses: &[Access]) -> Self {
        let index = self.instrs.iter().position(|&other| other == instr).unwrap_or_else(|| {
            self.instrs.push(instr);
            self.instrs.len() - 1
        });
        self.tape.push(index as u32, accesses);
        self
    }

    /// Loads `to` from `address`, which register `at` holds.
    #[must_use]
    pub fn load(self, to: Regs, at: Regs, address: u64, size_bytes: u32) -> Self {
        self.instr(Instr::load(to, at), &[Access::load(address, size_bytes)])
    }

    /// Stores `from` at `address`, which register `at` holds.
    #[must_use]
    pub fn store(self, from: Regs, at: Regs, address: u64, size_bytes: u32) -> Self {
        self.instr(Instr::store(from, at), &[Access::store(address, size_bytes)])
    }

    /// Computes `to` from `from`.
    #[must_use]
    pub fn compute(self, to: Regs, from: Regs) -> Self {
        self.instr(Instr::compute(to, from), &[])
    }

    /// A branch that depends on `on`.
    #[must_use]
    pub fn branch(self, on: Regs) -> Self {
        self.instr(Instr::branch(on), &[])
    }

    /// So many instructions that touch nothing.
    #[must_use]
    pub fn work(mut self, instructions: u64) -> Self {
        (0..instructions).for_each(|_| self.tape.push(0, &[]));
        self
    }
}

struct Once(Tape);

impl Program for Once {
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
        tape.steps.append(&mut self.0.steps);
        tape.accesses.append(&mut self.0.accesses);
        Ok(())
    }
}

impl Source for Script {
    fn name(&self) -> &str {
        &self.name
    }
    fn dictionary(&self) -> Arc<Dictionary> {
        Arc::new(Dictionary::new(self.instrs.clone()))
    }
    fn open(&self) -> Result<Box<dyn Program>, ProgramError> {
        Ok(Box::new(Once(self.tape.clone())))
    }
}

/// The order in which a loop visits its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One after the other, from the first byte to the last, again and again.
    Sweep,
    /// Drawn evenly; the address does not depend on what was loaded before.
    Draw,
    /// Drawn evenly; each address depends on what was loaded before.
    Chase,
}

/// A loop over a stretch of memory, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// The order of its visits.
    pub order: Order,
    /// The stretch, in bytes.
    pub bytes: u64,
    /// How many visits it makes.
    pub visits: u64,
    /// Distance between visits of a sweep, in bytes.
    #[serde(default = "eight")]
    pub stride_bytes: u64,
    /// Instructions between two visits that touch no memory.
    #[serde(default = "eight")]
    pub work: u64,
    /// One visit in so many stores; 0 for none.
    #[serde(default)]
    pub store_every: u64,
    /// Percentage of drawn visits that go to the first tenth of the stretch.
    #[serde(default)]
    pub hot_percent: u64,
    /// Where the stretch begins.
    #[serde(default = "heap")]
    pub base: u64,
    /// What the draws depend on.
    #[serde(default)]
    pub seed: u64,
}

fn eight() -> u64 {
    8
}

fn heap() -> u64 {
    1 << 32
}

impl Loop {
    /// A loop of so many visits to so many bytes.
    pub fn new(order: Order, bytes: u64, visits: u64) -> Self {
        Loop {
            order,
            bytes,
            visits,
            stride_bytes: eight(),
            work: eight(),
            store_every: 0,
            hot_percent: 0,
            base: heap(),
            seed: 0,
        }
    }

    /// Whether it can be executed: if not, what must be different.
    pub fn check(&self) -> Result<(), String> {
        if self.bytes < 80 || self.bytes > 1 << 40 {
            return Err(format!("bytes = {}: must be 80 to 2^40", self.bytes));
        }
        if self.base.saturating_add(self.bytes) > 1 << 47 {
            return Err(format!("base = {:#x}: the stretch must end below 2^47", self.base));
        }
        if self.hot_percent > 100 {
            return Err(format!("hot_percent = {}: must be at most 100", self.hot_percent));
        }
        if self.work > 1 << 20 {
            return Err(format!("work = {}: must be at most 2^20", self.work));
        }
        Ok(())
    }

    /// This loop as a program of that name.
    pub fn named(&self, name: &str) -> Looping {
        Looping { name: name.into(), spec: self.clone() }
    }
}

/// A [`Loop`] with a name.
#[derive(Clone, Debug)]
pub struct Looping {
    name: String,
    spec: Loop,
}

/// Instructions of the loop, by index: a load, the same whose address was loaded before, a store,
/// something computed from what was loaded, the loop's counter, its branch.
const LOAD: u32 = 0;
const CHASE: u32 = 1;
const STORE: u32 = 2;
const USE: u32 = 3;
const COUNT: u32 = 4;
const BRANCH: u32 = 5;

impl Source for Looping {
    fn name(&self) -> &str {
        &self.name
    }

    fn dictionary(&self) -> Arc<Dictionary> {
        Arc::new(Dictionary::new(vec![
            Instr::load(reg::RAX, reg::RBX),
            Instr::load(reg::RAX, reg::RAX),
            Instr::store(reg::RDX, reg::RBX),
            Instr::compute(reg::RDX | reg::FLAGS, reg::RAX | reg::RDX),
            Instr::compute(reg::RBX | reg::FLAGS, reg::RBX),
            Instr::branch(reg::FLAGS),
        ]))
    }

    fn open(&self) -> Result<Box<dyn Program>, ProgramError> {
        self.spec.check().map_err(ProgramError)?;
        Ok(Box::new(Turning { rng: Rng::new(self.spec.seed), spec: self.spec.clone(), visit: 0 }))
    }
}

struct Turning {
    spec: Loop,
    rng: Rng,
    visit: u64,
}

impl Program for Turning {
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
        let spec = &self.spec;
        let words = spec.bytes / 8;
        let stop = spec.visits.min(self.visit.saturating_add(4096 / (spec.work + 3) + 1));
        while self.visit < stop {
            let word = match spec.order {
                Order::Sweep => self.visit.wrapping_mul(spec.stride_bytes) / 8 % words,
                _ if self.rng.below(100) < spec.hot_percent => self.rng.below(words / 10),
                _ => self.rng.below(words),
            };
            let address = spec.base + word * 8;
            self.visit += 1;
            if spec.store_every > 0 && self.visit.is_multiple_of(spec.store_every) {
                tape.push(STORE, &[Access::store(address, 8)]);
            } else {
                let load = if spec.order == Order::Chase { CHASE } else { LOAD };
                tape.push(load, &[Access::load(address, 8)]);
            }
            tape.push(USE, &[]);
            (0..spec.work).for_each(|_| tape.push(COUNT, &[]));
            tape.push(BRANCH, &[]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &dyn Source) -> Tape {
        let mut program = source.open().unwrap();
        let mut tape = Tape::default();
        loop {
            let before = tape.len();
            program.fill(&mut tape).unwrap();
            if tape.len() == before {
                return tape;
            }
        }
    }

    #[test]
    fn a_sweep_visits_words_in_order_and_begins_again() {
        let spec = Loop { stride_bytes: 64, work: 1, ..Loop::new(Order::Sweep, 128, 3) };
        let tape = all(&spec.named("sweep"));
        let at: Vec<_> = tape.accesses.iter().map(|access| access.address() - (1 << 32)).collect();
        assert_eq!(at, [0, 64, 0]);
        assert_eq!(tape.len(), 3 * 4);
    }

    #[test]
    fn draws_stay_in_the_stretch_and_repeat_with_the_seed() {
        let spec =
            Loop { hot_percent: 90, store_every: 3, ..Loop::new(Order::Draw, 1 << 20, 10_000) };
        let tape = all(&spec.named("draw"));
        let inside = |access: &Access| (1 << 32..(1 << 32) + (1 << 20)).contains(&access.address());
        assert!(tape.accesses.iter().all(inside));
        assert_eq!(tape.accesses.iter().filter(|access| access.is_store()).count(), 3_333);
        assert_eq!(all(&spec.named("again")).accesses, tape.accesses);
        assert!(Loop::new(Order::Draw, 8, 1).named("small").open().is_err());
    }
}
