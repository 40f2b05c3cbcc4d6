// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a process executes: a dictionary of static instructions and a tape of executed ones.

use std::sync::Arc;

use crate::isa::{Decode, Instr, NotCode};

/// The static instructions of one program; steps name them by index.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    instrs: Vec<Instr>,
}

impl Dictionary {
    /// A dictionary of instructions made by hand.
    pub fn new(instrs: Vec<Instr>) -> Self {
        Dictionary { instrs }
    }

    /// Decodes x86-64 code once: pairs of address and bytes, one instruction each.
    pub fn decode<'a>(code: impl IntoIterator<Item = (u64, &'a [u8])>) -> Result<Self, NotCode> {
        let mut decode = Decode::new();
        let instrs = code.into_iter().map(|(address, bytes)| Ok(decode.one(address, bytes)?.0));
        Ok(Dictionary { instrs: instrs.collect::<Result<_, _>>()? })
    }

    /// The instruction with this index; one that touches nothing where there is none.
    #[inline]
    pub fn get(&self, index: u32) -> &Instr {
        self.instrs.get(index as usize).unwrap_or(&Instr::NOTHING)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.instrs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.instrs.is_empty()
    }
}

/// One access to memory, in one word: address, size, direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u64);

impl Access {
    const ADDRESS: u64 = (1 << 47) - 1;
    const STORE: u64 = 1 << 63;

    /// A load of `size_bytes` (1 to 4096) at a user-space address.
    pub const fn load(address: u64, size_bytes: u32) -> Access {
        let size = if size_bytes > 4096 { 4096 } else { size_bytes } as u64;
        Access(address & Self::ADDRESS | size << 47)
    }

    /// A store of `size_bytes` (1 to 4096) at a user-space address.
    pub const fn store(address: u64, size_bytes: u32) -> Access {
        Access(Self::load(address, size_bytes).0 | Self::STORE)
    }

    /// This access at another address.
    #[inline]
    #[must_use]
    pub const fn at(self, address: u64) -> Access {
        Access(self.0 & !Self::ADDRESS | address & Self::ADDRESS)
    }

    /// The store to what this access loads.
    #[must_use]
    pub const fn as_store(self) -> Access {
        Access(self.0 | Self::STORE)
    }

    /// Where it begins.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 & Self::ADDRESS
    }

    /// How many bytes it touches; at least 1.
    #[inline]
    pub const fn size_bytes(self) -> u64 {
        let size = self.0 >> 47 & 0xffff;
        if size == 0 { 1 } else { size }
    }

    /// The last byte that it touches.
    #[inline]
    pub const fn last(self) -> u64 {
        self.address() + self.size_bytes() - 1
    }

    /// Whether it writes.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 & Self::STORE != 0
    }

    /// The page of its first byte.
    #[inline]
    pub const fn page(self) -> u64 {
        self.address() >> 12
    }
}

/// One executed instruction: its index in the dictionary and how many accesses it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed(u32);

impl Executed {
    /// The most accesses of one step.
    pub const MAX_ACCESSES: usize = 31;

    /// Its index in the dictionary.
    #[inline]
    pub const fn instr(self) -> u32 {
        self.0 >> 5
    }

    /// How many accesses it made.
    #[inline]
    pub const fn accesses(self) -> u32 {
        self.0 & 31
    }
}

/// A stretch of executed instructions, flat.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    pub(crate) steps: Vec<Executed>,
    pub(crate) accesses: Vec<Access>,
}

impl Tape {
    /// Adds one executed instruction (index below 2^27) with its accesses in their order; those of
    /// one instruction beyond 31 are left out.
    #[inline]
    pub fn push(&mut self, instr: u32, accesses: &[Access]) {
        let taken = accesses.len().min(Executed::MAX_ACCESSES);
        self.push_count(instr, taken);
        self.accesses.extend_from_slice(&accesses[..taken]);
    }

    /// Adds one executed instruction whose accesses, at most 31, are added beside it.
    #[inline]
    pub(crate) fn push_count(&mut self, instr: u32, accesses: usize) {
        debug_assert!(accesses <= Executed::MAX_ACCESSES);
        self.steps.push(Executed(instr << 5 | accesses as u32));
    }

    /// The instructions on it.
    pub fn steps(&self) -> &[Executed] {
        &self.steps
    }

    /// Their accesses, in order.
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// How many instructions are on it.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.accesses.clear();
    }
}

/// Why a program could not go on: what it is and what a person can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProgramError(pub String);

/// One execution of a program, from its first instruction to its last.
pub trait Program: Send {
    /// Adds the next instructions to `tape`, some thousands at a time; adding none is the end.
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError>;
}

/// A program that can be executed any number of times, always the same.
pub trait Source: Send + Sync {
    /// Its name in tables.
    fn name(&self) -> &str;
    /// Its static instructions.
    fn dictionary(&self) -> Arc<Dictionary>;
    /// Pages that it has before its first instruction, as ranges of first page and count in rising
    /// order: what was left out has touched them.
    fn populated(&self) -> &[(u64, u64)] {
        &[]
    }
    /// A new execution.
    fn open(&self) -> Result<Box<dyn Program>, ProgramError>;
}

/// A window on one execution that can be read ahead of where the process stands.
pub(crate) struct Window {
    program: Box<dyn Program>,
    tape: Tape,
    /// The next step of the process.
    pub at: usize,
    /// The next access of the process.
    pub access_at: usize,
    ended: bool,
}

impl Window {
    const KEEP: usize = 1 << 16;

    pub(crate) fn new(program: Box<dyn Program>) -> Self {
        Window { program, tape: Tape::default(), at: 0, access_at: 0, ended: false }
    }

    /// Makes the step at `at` readable; `false` at the end of the program. Nothing that was
    /// readable before moves.
    #[inline]
    pub(crate) fn reach(&mut self, at: usize) -> Result<bool, ProgramError> {
        while at >= self.tape.len() {
            if self.ended {
                return Ok(false);
            }
            let before = self.tape.len();
            self.program.fill(&mut self.tape)?;
            self.ended = self.tape.len() == before;
        }
        Ok(true)
    }

    /// Makes the process's next step readable; steps behind it may go, so indices move.
    #[cold]
    pub(crate) fn advance(&mut self) -> Result<bool, ProgramError> {
        if self.at >= Self::KEEP {
            self.tape.steps.drain(..self.at);
            self.tape.accesses.drain(..self.access_at);
            (self.at, self.access_at) = (0, 0);
        }
        self.reach(self.at)
    }

    /// Lets steps go that are far behind the process, which keeps the one that it is at. A policy
    /// that reads ahead at every fault keeps the process from ever reaching the end of the tape.
    pub(crate) fn forget(&mut self) {
        if self.at > Self::KEEP {
            let (steps, accesses) =
                (self.at - 1, self.access_at.saturating_sub(Executed::MAX_ACCESSES));
            self.tape.steps.drain(..steps);
            self.tape.accesses.drain(..accesses);
            self.at -= steps;
            self.access_at -= accesses;
        }
    }

    #[inline]
    pub(crate) fn steps(&self) -> &[Executed] {
        &self.tape.steps
    }

    #[inline]
    pub(crate) fn accesses(&self) -> &[Access] {
        &self.tape.accesses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_keeps_address_size_and_direction() {
        let store = Access::store(0x7fff_ffff_f123, 64);
        assert_eq!((store.address(), store.size_bytes()), (0x7fff_ffff_f123, 64));
        assert!(store.is_store() && !Access::load(1, 4096).is_store());
        assert_eq!(Access::load(1, 4096).last(), 4096);
        assert_eq!(Access::load(8, 0).last(), 8);
    }

    #[test]
    fn a_window_reads_ahead_without_moving_and_ends_where_the_program_ends() {
        struct Three(u32);
        impl Program for Three {
            fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
                if self.0 < 3 {
                    tape.push(self.0, &[Access::load(u64::from(self.0), 1)]);
                    self.0 += 1;
                }
                Ok(())
            }
        }
        let mut window = Window::new(Box::new(Three(0)));
        assert!(window.reach(2).unwrap() && !window.reach(3).unwrap());
        assert_eq!(window.at, 0);
        assert_eq!(window.steps()[2].instr(), 2);
        assert_eq!(window.accesses()[1].address(), 1);
    }

    #[test]
    fn a_window_read_ahead_at_every_step_stays_small() {
        struct Endless(u32);
        impl Program for Endless {
            fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
                for _ in 0..4096 {
                    tape.push(self.0 % 1000, &[Access::load(u64::from(self.0), 1)]);
                    self.0 += 1;
                }
                Ok(())
            }
        }
        let mut window = Window::new(Box::new(Endless(0)));
        for step in 0..500_000u32 {
            assert!(window.reach(window.at + 10_000).unwrap());
            assert_eq!(window.steps()[window.at].instr(), step % 1000);
            assert_eq!(window.accesses()[window.access_at].address(), u64::from(step));
            window.at += 1;
            window.access_at += 1;
            window.forget();
        }
        assert!(
            window.steps().len() < 2 * Window::KEEP && window.accesses().len() < 2 * Window::KEEP
        );
    }
}
