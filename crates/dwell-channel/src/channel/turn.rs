// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns: what a user may ask for in one, and commands of which a part is served.

use crate::wire::{Command, Done};

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing was asked for, or nothing can be answered now.
    Idle,
    /// Commands were served.
    Worked,
    /// The channel has ended.
    Over,
}

/// What one user may still ask for before the next has a turn: all channels of a user share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub commands: u32,
    /// That are still moved at most.
    pub bytes: u64,
}

impl Allowance {
    /// One turn's, while no other user's channel is awake. No piece of a command is longer.
    pub const ALONE: Allowance = Allowance { commands: 32, bytes: 256 << 10 };
    /// One turn's while others may have a command: they wait for it.
    pub const AMONG_OTHERS: Allowance = Allowance { commands: 4, bytes: 4 << 10 };

    #[cfg(test)]
    pub fn pages(&self) -> usize {
        self.bytes as usize / 4096
    }

    /// Whether the next user's turn has come.
    pub fn is_spent(&self) -> bool {
        self.commands == 0 || self.bytes == 0
    }

    pub fn spend(&mut self, bytes: u32) {
        self.commands = self.commands.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(bytes));
    }
}

/// A command, and how much of it was moved so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub command: Command,
    pub moved: u32,
}

impl Part {
    /// A command of which nothing was moved yet.
    pub fn first(command: Command) -> Part {
        Part { command, moved: 0 }
    }

    /// How many bytes are moved next.
    pub fn next_bytes(&self, most: u32) -> u32 {
        (self.command.bytes - self.moved).min(most)
    }

    /// What comes of it once a piece of so many bytes is over: more to do, or a result.
    pub fn after(self, piece: u32, result: i32) -> Result<Part, Done> {
        let tag = self.command.tag;
        let moved = match u32::try_from(result) {
            Ok(now) if now == piece && self.moved + now < self.command.bytes => {
                return Ok(Part { moved: self.moved + now, ..self });
            }
            Ok(now) => (self.moved + now) as i32,
            // What was moved was moved. But a command that is to be asked for again is moved again,
            // to the same place.
            Err(_) if self.moved > 0 && result > Done::MISSING => self.moved as i32,
            Err(_) => result,
        };
        Err(Done { tag, result: moved })
    }
}
