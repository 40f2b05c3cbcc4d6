// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of channels, counted by user and kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::wire::Opcode;

/// What commands are, in the order of [`Commands`]; the last is what is none.
const KINDS: [&str; 5] = ["read", "write", "sync", "data-sync", "malformed"];

/// The commands of one user's channels so far.
#[derive(Debug, Default)]
pub(crate) struct Commands([AtomicU64; KINDS.len()]);

/// Adds to a counter that one thread alone changes.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

impl Commands {
    /// One more of this kind was taken; `None` for what is no command. Only the serving thread
    /// counts.
    #[inline]
    pub fn one(&self, opcode: Option<Opcode>) {
        let kind = match opcode {
            Some(Opcode::Read) => 0,
            Some(Opcode::Write) => 1,
            Some(Opcode::Sync) => 2,
            Some(Opcode::DataSync) => 3,
            None => 4,
        };
        add(&self.0[kind], 1);
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Those kinds of which there were any.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let named = KINDS.map(str::to_owned).into_iter().zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

/// The commands of all users who ever had a channel.
#[derive(Debug, Default)]
pub(crate) struct UserCommands(Mutex<HashMap<u32, Arc<Commands>>>);

impl UserCommands {
    /// Where a user's commands are counted.
    pub fn of(&self, user: u32) -> Arc<Commands> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(user).or_default().clone()
    }

    /// All of them.
    pub fn sum(&self) -> u64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|commands| commands.sum()).sum()
    }

    /// By user and kind.
    pub fn by_user(&self) -> BTreeMap<u32, BTreeMap<String, u64>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(user, commands)| (*user, commands.by_kind())).collect()
    }
}
