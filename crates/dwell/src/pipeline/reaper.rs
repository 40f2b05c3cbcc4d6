// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completions on their way to finished requests.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use dwell_policy::{Decision, Estimator, Ns};

use super::{Finished, Flight};
use crate::admission::Standing;
use crate::async_submission::as_waited;
use crate::buffer::Filled;
use crate::file::File;
use crate::in_flight::InFlightTable;
use crate::queue::{Completion, Io};
use crate::source::Source;

/// Tells the buffer of a read that is over.
pub(super) fn tell<B>(buffer: &mut Option<B>, filled: Option<Filled<B>>, io: &Io, result: i32) {
    if let (Some(buffer), Some(filled), Ok(bytes)) = (buffer, filled, usize::try_from(result)) {
        // SAFETY: the source promised to have written so many, or the room was zeroed before.
        unsafe { filled(buffer, bytes.min(io.bytes() as usize)) };
    }
}

/// Turns completions into finished requests.
pub(super) struct Reaper<'p, B: Send + 'static, S: Source>
where
    S::Queue: Send,
{
    pub file: &'p File<S>,
    pub in_flight: &'p mut InFlightTable<Flight<B>>,
    pub finished: &'p mut VecDeque<Finished<B>>,
    pub decided: &'p mut Vec<Decision>,
    pub standing: &'p mut Standing,
    /// The decision by which is waited, and where latencies are learned.
    pub waited: Option<(&'p Decision, &'p mut Estimator)>,
}

impl<B: Send + 'static, S: Source> Reaper<'_, B, S>
where
    S::Queue: Send,
{
    /// `false` for a completion of nothing that is in flight here.
    pub fn take(&mut self, completion: Completion, now: Ns) -> bool {
        let Some(flight) = self.in_flight.take(completion.ticket) else { return false };
        let Flight { io, mut buffer, submitted, decision, entered, cancelled, filled, .. } = flight;
        let latency_ns = now.saturating_sub(submitted);
        let (decision, learned) = match &mut self.waited {
            Some((wait, estimator)) => {
                (as_waited(decision, wait), Some((&mut **estimator, latency_ns)))
            }
            None => (decision, None),
        };
        let (file, result) = (self.file, completion.result);
        let wanted = !cancelled;
        let landed = file.landed(&io, &decision, entered, result, learned, wanted, self.standing);
        match landed.called {
            true => file.count_called(),
            false => self.decided.push(decision),
        }
        tell(&mut buffer, filled, &io, landed.result);
        let (ticket, result) = (completion.ticket, file.outcome(&io, landed.result));
        self.finished.push_back(Finished { ticket, result, buffer, given_up: None });
        true
    }
}
