// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client remembers of a request until it is answered.

use dwell::queue::{Io, Ticket};

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub io: Io,
    pub ticket: Ticket,
    /// Bytes that earlier commands moved.
    pub moved: u32,
    /// Bytes of the command that is in flight.
    pub piece: u32,
    /// The request's memory lies in the channel, here.
    pub in_channel: Option<u32>,
    /// Which use of the entry its command named.
    pub generation: u32,
    /// Its descriptor's epoch when it was submitted.
    pub epoch: u32,
    /// Where in the ring its command stands.
    pub place: u32,
    pub tries: u8,
}
