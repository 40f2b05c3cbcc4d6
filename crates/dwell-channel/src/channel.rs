// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel on the daemon's side.

pub(crate) mod begin;
pub(crate) mod serving;
pub(crate) mod turn;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::Access;
use crate::counts::Commands;
use crate::grants::Token;
use crate::shared::Shared;
use crate::socket;
use crate::table::Table;

/// One channel, as all threads of the daemon see it.
pub(crate) struct Channel {
    pub token: Token,
    /// The user whose share it is part of.
    pub account: u32,
    pub commands: Commands,
    pub socket: OwnedFd,
    pub shared: Arc<Shared>,
    /// Commands are looked up, and those on memory served, while this is locked: whoever has it has
    /// the channel at rest.
    pub table: Mutex<Table<Access>>,
    pub ended: AtomicBool,
}

impl Channel {
    pub fn table(&self) -> MutexGuard<'_, Table<Access>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it: its client sees that at once, and nothing is granted to it any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.table().clear();
        socket::end(&self.socket);
    }
}
