// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of channels, counted by user and kind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::Opcode;

/// What commands are, in the order of [`Commands`]; the last is what is none.
const KINDS: [&str; 5] = ["read", "write", "sync", "data-sync", "malformed"];

/// The commands of one channel so far.
#[derive(Debug, Default)]
pub(crate) struct Commands([AtomicU64; KINDS.len()]);

/// How many commands of each kind some channels had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted([u64; KINDS.len()]);

impl Commands {
    /// One more of this kind was taken; `None` for what is no command. Only the thread that serves
    /// the channel counts.
    #[inline]
    pub fn one(&self, opcode: Option<Opcode>) {
        let kind = match opcode {
            Some(Opcode::Read) => 0,
            Some(Opcode::Write) => 1,
            Some(Opcode::Sync) => 2,
            Some(Opcode::DataSync) => 3,
            None => 4,
        };
        let count = &self.0[kind];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Counted {
    pub fn add(&mut self, more: &Commands) {
        for (count, more) in self.0.iter_mut().zip(&more.0) {
            *count += more.load(Ordering::Relaxed);
        }
    }

    /// Of all kinds.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those kinds of which there were any.
    pub fn by_kind(&self) -> BTreeMap<String, u64> {
        let named = KINDS.map(str::to_owned).into_iter().zip(self.0);
        named.filter(|(_, count)| *count > 0).collect()
    }
}

/// What the daemon did, beside commands.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub made: AtomicU64,
    pub broken: AtomicU64,
    pub missing: AtomicU64,
    pub grants: AtomicU64,
    pub sleeps: AtomicU64,
}
