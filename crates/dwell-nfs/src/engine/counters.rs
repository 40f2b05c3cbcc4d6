// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened on a connection.

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests answered.
    pub answered: u64,
    /// Requests sent again because an answer was late.
    pub resends: u64,
    /// Requests sent again over a new connection.
    pub replays: u64,
    /// Connections that were lost.
    pub reconnects: u64,
    /// Answers to nothing that is outstanding: late ones to requests sent twice, mostly.
    pub strays: u64,
    /// Messages that were no replies.
    pub garbage: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.resends += other.resends;
        self.replays += other.replays;
        self.reconnects += other.reconnects;
        self.strays += other.strays;
        self.garbage += other.garbage;
    }
}
