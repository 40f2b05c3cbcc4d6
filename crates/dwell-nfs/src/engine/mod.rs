// SPDX-License-Identifier: MIT OR Apache-2.0
//! The RPC engine: everything about outstanding requests that is not a socket. It is told the time
//! and the bytes that came; it says which bytes to send and when it wants to be asked again.

mod counters;
mod outstanding;
mod request;
mod rtt;
mod timers;
mod window;

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use dwell_policy::Ns;

use crate::procedure::{Class, Procedure, is_whole};
use crate::rpc::record::{self, Records, Unreadable};
use crate::rpc::{self, Credential, Refusal};
use crate::xdr::{Malformed, Writer};

pub use counters::Counters;
use outstanding::Outstanding;
use request::Request;
pub use rtt::Rtt;
pub use window::{Window, WindowKind};

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In a stream, as records: TCP.
    Stream,
    /// One each: UDP.
    Datagram,
}

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How messages travel.
    pub transport: Transport,
    /// The caller's identity.
    pub credential: Credential,
    /// How many requests are outstanding.
    pub window: WindowKind,
    /// A request that has no answer after so long fails, in nanoseconds.
    pub give_up_ns: Ns,
    /// A stream that brings nothing for so long while answers are due is given up for a new one.
    pub silence_ns: Ns,
    /// Before anything is known of the server, a datagram is sent again after so long, in
    /// nanoseconds.
    pub first_resend_ns: Ns,
    /// A datagram is sent again after so long at the earliest, in nanoseconds.
    pub least_resend_ns: Ns,
    /// Requests that are sent and not answered may fill so many bytes of socket buffers, and their
    /// answers so many; one request always may.
    pub send_bytes: u64,
    /// See [`Settings::send_bytes`].
    pub receive_bytes: u64,
    /// The server has answered before: if it does not now, it is tried again until a request gives
    /// up. Otherwise an error of the connection before the first answer is final.
    pub has_answered: bool,
    /// First XID: to be chosen at random, so that a server does not take requests for old ones.
    pub first_xid: u32,
}

impl Settings {
    /// Usual settings of a transport.
    pub fn new(transport: Transport) -> Self {
        Settings {
            transport,
            credential: Credential::none(),
            window: WindowKind::Dynamic { most: 32 },
            give_up_ns: 60_000_000_000,
            silence_ns: 10_000_000_000,
            first_resend_ns: 100_000_000,
            least_resend_ns: 1_000_000,
            send_bytes: u64::MAX,
            receive_bytes: u64::MAX,
            has_answered: false,
            first_xid: 1,
        }
    }
}

/// Longest message in a datagram of IPv4, in bytes: 64 KiB less one byte and the heads.
const MOST_DATAGRAM_BYTES: usize = 65_507;

/// Why a request has no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No answer came in time.
    #[error("the server did not answer for {} s", .after_ns / 1_000_000_000)]
    NoAnswer {
        /// How long it was waited for.
        after_ns: Ns,
    },
    /// No datagram can carry it.
    #[error(
        "no datagram to the server can carry the request's {bytes} bytes ({MOST_DATAGRAM_BYTES} at most): \
         use proto=tcp"
    )]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
    },
    /// The server did not carry it out.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The answer makes no sense.
    #[error("the server's answer makes no sense: {0}")]
    Malformed(#[from] Malformed),
}

/// A request that is over.
#[derive(Debug)]
pub struct Done<P> {
    /// As it was submitted.
    pub tag: u64,
    /// Its payload, given back.
    pub payload: Option<P>,
    /// Whether it was sent more than once, so that the server may have carried it out more than
    /// once.
    pub resent: bool,
    /// The encoded results, or why there are none.
    pub results: Result<Bytes, Failure>,
}

/// A connection's requests, from submission to their end.
#[derive(Debug)]
pub struct Engine<P> {
    settings: Settings,
    next_xid: u32,
    /// Submitted, in order, and not sent: no room in the window.
    queued: VecDeque<Request<P>>,
    /// Sent at least once, or about to be, by XID.
    outstanding: Outstanding<P>,
    /// Of those, the ones to send now, and how much of the first was sent, in bytes.
    to_send: VecDeque<u32>,
    sent_bytes: usize,
    /// When some of them went out last.
    pushed_at: Ns,
    up: bool,
    heard_at: Ns,
    /// When the change was sent that was sent last of those that one copy got answered.
    change_answered: Ns,
    records: Records,
    window: Window,
    rtt: [Rtt; Class::COUNT],
    /// Shortest reply to each class that was seen, in bytes with its mark.
    smallest: [u32; Class::COUNT],
    in_flight: Load,
    backlog_bytes: u64,
    counters: Counters,
    /// Memory of heads of requests that are over.
    heads: Vec<Vec<u8>>,
}

/// Before a copy of a request is sent again that the server refused, in nanoseconds; doubled each
/// time.
const REFUSED_NS: Ns = 5_000_000;
/// Room for the head and the arguments of most requests, in bytes.
const HEAD_BYTES: usize = 256;
const MOST_HEADS: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    send_bytes: u64,
    receive_bytes: u64,
}

impl<P: AsRef<[u8]>> Engine<P> {
    /// An engine that is not connected.
    pub fn new(settings: Settings) -> Self {
        Engine {
            next_xid: settings.first_xid,
            window: Window::new(settings.window),
            settings,
            queued: VecDeque::new(),
            outstanding: Outstanding::default(),
            to_send: VecDeque::new(),
            sent_bytes: 0,
            pushed_at: 0,
            up: false,
            heard_at: 0,
            change_answered: 0,
            records: Records::new(1 << 12),
            rtt: Default::default(),
            smallest: [0; Class::COUNT],
            in_flight: Load::default(),
            backlog_bytes: 0,
            counters: Counters::default(),
            heads: Vec::new(),
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Round-trip times of a class.
    pub fn rtt(&self, class: Class) -> &Rtt {
        &self.rtt[class as usize]
    }

    /// The window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Requests that are not over.
    pub fn pending(&self) -> usize {
        self.outstanding.len() + self.queued.len()
    }

    /// Payload and answers of requests that are not over, in bytes.
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Takes a call in; it is sent when the window has room. `payload` is as long as the procedure
    /// says.
    pub fn submit<C: Procedure>(&mut self, now: Ns, call: &C, payload: Option<P>, tag: u64) {
        let xid = self.next_xid;
        self.next_xid = xid.wrapping_add(1);
        let mut head = self.heads.pop().unwrap_or_else(|| Vec::with_capacity(HEAD_BYTES));
        head.clear();
        head.extend_from_slice(&[0; record::MARK_BYTES]);
        rpc::write_call(&mut head, xid, C::TARGET, &self.settings.credential);
        call.write(&mut Writer::new(&mut head));
        let least = record::MARK_BYTES as u32 + rpc::SMALLEST_REPLY_BYTES + call.smallest_results();
        let largest = call.largest_results() + 512;
        self.records.allow(largest);
        let give_up_at = now.saturating_add(self.settings.give_up_ns);
        let whole = (call.moves_bytes(), is_whole::<C> as fn(u32, &[u8]) -> bool);
        let request =
            Request::new(xid, tag, C::CLASS, head, payload, least, largest, give_up_at, whole);
        self.backlog_bytes += request.moves_bytes();
        self.queued.push_back(request);
        self.admit();
    }

    /// Moves what the window and the socket buffers have room for from the queue to the wire.
    fn admit(&mut self) {
        while let Some(next) = self.queued.front() {
            let load = self.in_flight;
            let fits = load.send_bytes + next.length() as u64 <= self.settings.send_bytes
                && load.receive_bytes + u64::from(next.largest) <= self.settings.receive_bytes;
            let room = self.outstanding.len() < self.window.size() as usize && fits;
            if !room && !self.outstanding.is_empty() {
                return;
            }
            let Some(next) = self.queued.pop_front() else { return };
            self.in_flight.send_bytes += next.length() as u64;
            self.in_flight.receive_bytes += u64::from(next.largest);
            self.to_send.push_back(next.xid);
            self.outstanding.insert(next);
        }
    }

    /// Whether there is something to send.
    pub fn wants_to_send(&self) -> bool {
        self.up && !self.to_send.is_empty()
    }

    /// What to send now. In a stream, as many requests as fit in the slices that a call takes; else
    /// one datagram. [`Engine::sent`] is told how much of it went out.
    pub fn outgoing<'e>(&'e self, slices: &mut Vec<IoSlice<'e>>) {
        const MOST_SLICES: usize = 192;
        if !self.up {
            return;
        }
        let mut skip = self.sent_bytes;
        for xid in &self.to_send {
            if let Some(request) = self.outstanding.get(*xid) {
                let head = match self.settings.transport {
                    Transport::Stream => 0,
                    Transport::Datagram => record::MARK_BYTES,
                };
                request.slices(head, &mut skip, slices);
            }
            if self.settings.transport == Transport::Datagram || slices.len() + 3 > MOST_SLICES {
                return;
            }
        }
    }

    /// So many bytes of what [`Engine::outgoing`] gave went out; of a datagram, all of it.
    pub fn sent(&mut self, now: Ns, bytes: usize) {
        self.pushed_at = now;
        let mut bytes = bytes + self.sent_bytes;
        self.sent_bytes = 0;
        while let Some(xid) = self.to_send.front() {
            let Some(request) = self.outstanding.get_mut(*xid) else {
                self.to_send.pop_front();
                continue;
            };
            if self.settings.transport == Transport::Stream {
                let length = request.length();
                if bytes < length {
                    self.sent_bytes = bytes;
                    return;
                }
                bytes -= length;
            }
            request.sends += 1;
            request.sent_at = now;
            request.resend_at = match self.settings.transport {
                // Only what the server refuses is sent twice on one connection.
                Transport::Stream => Ns::MAX,
                Transport::Datagram => {
                    let rtt = &self.rtt[request.class as usize];
                    let Settings { first_resend_ns, least_resend_ns, .. } = self.settings;
                    let after =
                        rtt.resend_after_ns(request.sends, first_resend_ns, least_resend_ns);
                    now.saturating_add(after)
                }
            };
            self.to_send.pop_front();
            if self.settings.transport == Transport::Datagram || bytes == 0 {
                return;
            }
        }
    }

    /// A connection is there, from which nothing was read: all that is outstanding is sent, in the
    /// order of submission and with its old XIDs.
    pub fn connected(&mut self, now: Ns) {
        self.up = true;
        self.heard_at = now;
        self.sent_bytes = 0;
        self.records.clear();
        let again = self.outstanding.iter().filter(|request| request.sends > 0);
        self.counters.replays += again.count() as u64;
        self.to_send = self.outstanding.iter().map(|request| request.xid).collect();
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        if std::mem::take(&mut self.up) {
            self.counters.reconnects += 1;
        }
        self.to_send.clear();
        self.sent_bytes = 0;
        self.records.clear();
        self.forget_half_sent();
    }

    /// Whether it is connected.
    pub const fn is_up(&self) -> bool {
        self.up
    }

    /// Where to read a stream's next bytes to.
    pub fn room(&mut self) -> &mut [u8] {
        self.records.room()
    }

    /// So many bytes of the stream were read to [`Engine::room`].
    ///
    /// # Errors
    /// A stream that cannot be read on: the connection is to be closed.
    pub fn received(
        &mut self,
        now: Ns,
        bytes: usize,
        done: &mut dyn FnMut(Done<P>),
    ) -> Result<(), Unreadable> {
        self.records.filled(bytes);
        if bytes > 0 {
            self.heard_at = now;
        }
        while let Some(record) = self.records.take_next()? {
            self.message(now, &record, done);
        }
        self.admit();
        Ok(())
    }

    /// A datagram came.
    pub fn datagram(&mut self, now: Ns, message: &Bytes, done: &mut dyn FnMut(Done<P>)) {
        self.message(now, message, done);
        self.admit();
    }

    fn message(&mut self, now: Ns, message: &Bytes, done: &mut dyn FnMut(Done<P>)) {
        let Some(xid) = rpc::xid(message) else {
            self.counters.garbage += 1;
            return;
        };
        // A reply to what was not sent yet is none.
        let known = self.outstanding.get(xid).is_some_and(|request| request.sends > 0);
        if !known {
            self.counters.strays += 1;
            return;
        }
        let results = match rpc::read_reply(message) {
            Ok(reply) => (reply.outcome)
                .map(|results| message.slice_ref(results.rest()))
                .map_err(Failure::Refused),
            // A damaged datagram is as good as lost: the request is sent again. A stream does not
            // damage bytes, so there the server meant it.
            Err(_) if self.settings.transport == Transport::Datagram => {
                self.counters.garbage += 1;
                return;
            }
            Err(malformed) => Err(malformed.into()),
        };
        if self.transport_loses(&results, xid) {
            self.counters.garbage += 1;
            return;
        }
        if matches!(results, Err(Failure::Refused(Refusal::System))) && self.is_at_it(now, xid) {
            return;
        }
        let full = self.outstanding.len() >= self.window.size() as usize;
        let Some(request) = self.take(xid) else { return };
        self.counters.answered += 1;
        let class = request.class as usize;
        if results.is_ok() {
            let bytes = (message.len() + record::MARK_BYTES) as u32;
            let smallest = &mut self.smallest[class];
            *smallest = if *smallest == 0 { bytes } else { bytes.min(*smallest) };
        }
        // An answer to a request that was sent twice may belong to either.
        if request.sends == 1 {
            let took_ns = now.saturating_sub(request.sent_at);
            self.rtt[class].sample(now, took_ns);
            if request.class == Class::Change {
                self.change_answered = self.change_answered.max(request.sent_at);
            }
            if request.class.is_data() {
                self.window.answered(took_ns, self.rtt[class].least_ns(), full);
            }
        }
        let resent = request.sends > 1;
        let (tag, payload, head) = request.into_parts();
        if self.heads.len() < MOST_HEADS {
            self.heads.push(head);
        }
        done(Done { tag, payload, resent, results });
    }

    /// Whether the server refused a copy of a request because it may still be at another. As a new
    /// request, it could be carried out twice, the older copy last; so it is sent again as it is.
    fn is_at_it(&mut self, now: Ns, xid: u32) -> bool {
        let Some(request) = self.outstanding.get_mut(xid) else { return false };
        if request.sends == 1 || !request.class.changes() {
            return false;
        }
        request.resend_at = now.saturating_add(REFUSED_NS << request.sends.min(8));
        true
    }

    /// Whether an answer came as a datagram that is not whole.
    fn transport_loses(&self, results: &Result<Bytes, Failure>, xid: u32) -> bool {
        let (Ok(bytes), Transport::Datagram) = (results, self.settings.transport) else {
            return false;
        };
        let whole = self.outstanding.get(xid).map(|request| request.whole);
        whole.is_some_and(|(moves_bytes, is_whole)| !is_whole(moves_bytes, bytes))
    }

    fn take(&mut self, xid: u32) -> Option<Request<P>> {
        let request = self.outstanding.remove(xid)?;
        self.in_flight.send_bytes -= request.length() as u64;
        self.in_flight.receive_bytes -= u64::from(request.largest);
        self.backlog_bytes -= request.moves_bytes();
        if let Some(at) = self.to_send.iter().position(|waiting| *waiting == xid) {
            // What was begun in a stream must be ended: the server would take the next request for
            // its rest. Only a connection's loss ends a request that is half sent.
            if at == 0 && self.sent_bytes > 0 {
                self.up = false;
                self.counters.reconnects += 1;
                self.sent_bytes = 0;
            }
            self.to_send.remove(at);
        }
        Some(request)
    }

    /// The server asked for time: as a loss, for the window.
    pub fn congested(&mut self, now: Ns) {
        let round_trip_ns = self.rtt.iter().map(Rtt::smoothed_ns).max().unwrap_or_default();
        self.window.congested(now, round_trip_ns);
    }
}

#[cfg(test)]
mod tests;
