// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program whose execution is in memory: executing it again decodes nothing.

use std::sync::Arc;

use crate::program::{Dictionary, Program, ProgramError, Source, Tape};

/// One execution of a program, held as it goes on a tape: 4 bytes an instruction, 8 an access.
pub struct Held {
    name: String,
    dictionary: Arc<Dictionary>,
    tape: Arc<Tape>,
    populated: Vec<(u64, u64)>,
}

impl Held {
    /// Executes `source` once and holds all of it.
    pub fn of(source: &dyn Source) -> Result<Held, ProgramError> {
        let mut program = source.open()?;
        let mut tape = Tape::default();
        let mut before = None;
        while before != Some(tape.len()) {
            before = Some(tape.len());
            program.fill(&mut tape)?;
        }
        Ok(Held {
            name: source.name().into(),
            dictionary: source.dictionary(),
            tape: Arc::new(tape),
            populated: source.populated().to_vec(),
        })
    }
}

impl Source for Held {
    fn name(&self) -> &str {
        &self.name
    }

    fn dictionary(&self) -> Arc<Dictionary> {
        self.dictionary.clone()
    }

    fn populated(&self) -> &[(u64, u64)] {
        &self.populated
    }

    fn open(&self) -> Result<Box<dyn Program>, ProgramError> {
        Ok(Box::new(Replaying { tape: self.tape.clone(), at: 0, access_at: 0 }))
    }
}

struct Replaying {
    tape: Arc<Tape>,
    at: usize,
    access_at: usize,
}

impl Program for Replaying {
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
        let steps = &self.tape.steps()[self.at..];
        let steps = &steps[..steps.len().min(4096)];
        let count: u32 = steps.iter().map(|step| step.accesses()).sum();
        let accesses = &self.tape.accesses()[self.access_at..][..count as usize];
        tape.steps.extend_from_slice(steps);
        tape.accesses.extend_from_slice(accesses);
        self.at += steps.len();
        self.access_at += accesses.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Loop, Order};
    use crate::{Params, survey};

    #[test]
    fn a_held_program_is_executed_as_often_as_asked_and_is_the_same() {
        let spec = Loop { store_every: 3, ..Loop::new(Order::Draw, 1 << 20, 5_000) };
        let program = spec.named("draw");
        let held = Held::of(&program).unwrap();
        assert_eq!((held.name(), held.dictionary().len()), ("draw", program.dictionary().len()));
        let surveyed = |source: &dyn Source| survey(source, &Params::default(), &mut |_| true);
        let expected = surveyed(&program).unwrap();
        assert!(expected.as_ref().is_some_and(|survey| survey.instructions > 2 * 4096));
        for _ in 0..2 {
            assert_eq!(surveyed(&held).unwrap(), expected);
        }
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_not_held() {
        assert!(Held::of(&Loop::new(Order::Draw, 8, 1).named("small")).is_err());
    }
}
