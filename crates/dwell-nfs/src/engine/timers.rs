// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a request is sent again or given up, and how much to sleep for.

use dwell_policy::Ns;

use super::window::WAITING_MOST;
use super::{Done, Engine, Failure, Request, Transport};
use crate::procedure::Class;
use crate::rpc::record::MARK_BYTES;

/// Sends after which a request may get another XID, if it changes nothing: with an answer due in
/// milliseconds, some tenths of a second.
const RENEW_AFTER_SENDS: u32 = 6;

/// A change of names or attributes is sent again so long after its second, third and later sends
/// at the earliest. One copy may be for a lost datagram; more mean that the server is slow, and
/// make it slower: nfs-ganesha 4 keeps three copies of a change that it is still at, and crashes at
/// the fourth.
const COPIES_NS: [Ns; 3] = [100_000_000, 1_000_000_000, 10_000_000_000];
/// Of that time where the server has answered a change that was sent later.
const OVERTAKEN: Ns = 10;

impl<P: AsRef<[u8]>> Engine<P> {
    /// Looks which timers are over: requests are sent again, or fail. `false` when the stream is to
    /// be given up, because nothing came for too long.
    pub fn timers(&mut self, now: Ns, done: &mut dyn FnMut(Done<P>)) -> bool {
        if now < self.give_up_at() {
            return self.resend(now);
        }
        let over: Vec<u32> = (self.outstanding.iter())
            .filter(|request| now >= request.give_up_at)
            .map(|request| request.xid)
            .collect();
        let after_ns = self.settings.give_up_ns;
        for xid in over {
            if let Some(request) = self.take(xid) {
                let results = Err(match request.is_too_long {
                    true => Failure::TooLong { bytes: request.length() - MARK_BYTES },
                    false => Failure::NoAnswer { after_ns },
                });
                let resent = request.sends > 1;
                done(Done { tag: request.tag, payload: request.payload, resent, results });
            }
        }
        while self.queued.front().is_some_and(|request| now >= request.give_up_at) {
            if let Some(request) = self.queued.pop_front() {
                self.backlog_bytes -= request.moves_bytes();
                let results = Err(Failure::NoAnswer { after_ns });
                let (tag, payload) = (request.tag, request.payload);
                done(Done { tag, payload, resent: false, results });
            }
        }
        self.admit();
        self.resend(now)
    }

    /// Nobody waits for the answer to a request any more. One of which nothing was sent is over:
    /// `true`. Any other goes on until it is answered.
    pub fn abandon(&mut self, tag: u64) -> bool {
        if let Some(place) = self.queued.iter().position(|request| request.tag == tag) {
            let request = self.queued.remove(place);
            self.backlog_bytes -= request.map_or(0, |request| request.moves_bytes());
            self.admit();
            return true;
        }
        let half_sent = self.to_send.front().copied().filter(|_| self.sent_bytes > 0);
        let Some(request) = self.outstanding.iter_mut().find(|request| request.tag == tag) else {
            return false;
        };
        request.is_abandoned = true;
        let xid = request.xid;
        if request.sends > 0 || half_sent == Some(xid) {
            return false;
        }
        self.take(xid);
        self.admit();
        true
    }

    /// What nobody waits for, and of which the server has no more than a part, fails at the next
    /// look at the timers.
    pub(super) fn forget_half_sent(&mut self) {
        let is_lost = |request: &&mut Request<P>| request.is_abandoned && request.sends == 0;
        self.outstanding.iter_mut().filter(is_lost).for_each(|request| request.give_up_at = 0);
    }

    /// The datagram of [`Engine::outgoing`] is longer than any can be: its request fails at the
    /// next look at the timers.
    pub fn too_long(&mut self) {
        let Some(xid) = self.to_send.pop_front() else { return };
        if let Some(request) = self.outstanding.get_mut(xid) {
            request.give_up_at = 0;
            request.is_too_long = true;
        }
    }

    fn resend(&mut self, now: Ns) -> bool {
        if !self.up {
            return true;
        }
        if self.settings.transport == Transport::Stream && now >= self.silent_at() {
            return false;
        }
        let late: Vec<u32> = (self.outstanding.iter())
            .filter(|request| request.sends > 0 && now >= self.resend_due(request))
            .map(|request| request.xid)
            .collect();
        let late: Vec<u32> = late.into_iter().filter(|xid| !self.to_send.contains(xid)).collect();
        if self.settings.transport == Transport::Datagram
            && let Some(request) = late.first().and_then(|xid| self.outstanding.get(*xid))
        {
            let round_trip_ns = self.rtt[request.class as usize].smoothed_ns();
            self.window.congested(now, round_trip_ns);
        }
        self.counters.resends += late.len() as u64;
        let late: Vec<u32> = late.into_iter().map(|xid| self.renewed(xid)).collect();
        self.to_send.extend(late);
        true
    }

    /// When a request is sent again, if nothing comes before. One copy goes out well before it is
    /// given up.
    fn resend_due(&self, request: &Request<P>) -> Ns {
        let is_datagram = self.settings.transport == Transport::Datagram;
        if !is_datagram || request.class != Class::Change || request.sends < 2 {
            return request.resend_at;
        }
        let copies = (request.sends as usize - 2).min(COPIES_NS.len() - 1);
        let is_overtaken = self.change_answered > request.sent_at;
        let wait_ns = COPIES_NS[copies] / if is_overtaken { OVERTAKEN } else { 1 };
        let rest_ns = request.give_up_at.saturating_sub(request.sent_at);
        request.resend_at.max(request.sent_at.saturating_add(wait_ns.min(rest_ns / 2)))
    }

    /// The request's XID from now on. A server may keep dropping what it takes for a copy of a
    /// request that it is still at; what changes nothing is at last sent as a new one. What changes
    /// something keeps its XID: by that the server tells a late copy of it, which must not undo
    /// what was changed later.
    fn renewed(&mut self, xid: u32) -> u32 {
        let may = |request: &Request<P>| {
            !request.class.changes()
                && request.sends >= RENEW_AFTER_SENDS
                && request.sends.is_multiple_of(2)
        };
        if !self.outstanding.get(xid).is_some_and(may) {
            return xid;
        }
        let Some(mut request) = self.outstanding.remove(xid) else { return xid };
        let fresh = self.next_xid;
        self.next_xid = fresh.wrapping_add(1);
        request.renumber(fresh);
        self.outstanding.insert(request);
        fresh
    }

    fn give_up_at(&self) -> Ns {
        let queued = self.queued.front().map(|request| request.give_up_at);
        let first = self.outstanding.iter().map(|request| request.give_up_at).min();
        first.unwrap_or(Ns::MAX).min(queued.unwrap_or(Ns::MAX))
    }

    fn silent_at(&self) -> Ns {
        // The silence counts from the last byte, or from the oldest request that was sent since. A
        // server that takes no more of one is silent, too.
        let oldest = self.outstanding.iter().filter(|request| request.sends > 0);
        let half_sent = (self.sent_bytes > 0).then_some(self.pushed_at);
        match oldest.map(|request| request.sent_at).chain(half_sent).min() {
            Some(sent_at) => self.heard_at.max(sent_at).saturating_add(self.settings.silence_ns),
            None => Ns::MAX,
        }
    }

    fn first_resend_at(&self) -> Ns {
        let sent = self.outstanding.iter().filter(|request| request.sends > 0);
        sent.filter(|request| request.resend_at != Ns::MAX && !self.to_send.contains(&request.xid))
            .map(|request| self.resend_due(request))
            .min()
            .unwrap_or(Ns::MAX)
    }

    /// When [`Engine::timers`] has something to do; `None` when it never will.
    pub fn next_timer(&self) -> Option<Ns> {
        let resend_at = match (self.settings.transport, self.up) {
            (_, false) => Ns::MAX,
            (Transport::Stream, true) => self.silent_at().min(self.first_resend_at()),
            (Transport::Datagram, true) => self.first_resend_at(),
        };
        Some(self.give_up_at().min(resend_at)).filter(|at| *at != Ns::MAX)
    }

    /// How many answers are worth waking up for. Half of those under way are, so that the server
    /// has the other half while this thread works. With a large window more are, as long as enough
    /// of it still waits at the server then.
    pub fn worth_waking_for(&self) -> u32 {
        let Some(first) = self.outstanding.iter().next() else { return 1 };
        let outstanding = self.outstanding.len() as u32;
        let rtt = &self.rtt[first.class as usize];
        // By Little's law: an idle server's time over that of now is the share that does not wait
        // there.
        let busy = u64::from(outstanding) * rtt.least_ns() / rtt.smoothed_ns().max(1);
        let kept = u32::try_from(busy).unwrap_or(u32::MAX).saturating_add(WAITING_MOST as u32);
        let more = if rtt.smoothed_ns() == 0 { 0 } else { outstanding.saturating_sub(kept) };
        more.max(outstanding.div_ceil(2))
    }

    /// So many bytes must come before `answers` of the requests under way can be answered, as short
    /// as such answers have been (or may be, where none came yet), without what is already here.
    pub fn low_water(&self, answers: u32) -> usize {
        if answers <= 1 || self.settings.transport == Transport::Datagram {
            return 1;
        }
        let mut least: Vec<usize> = (self.outstanding.iter())
            .filter(|request| request.sends > 0)
            .map(|request| request.least.max(self.smallest[request.class as usize]) as usize)
            .collect();
        least.sort_unstable();
        let bytes: usize = least.iter().take(answers as usize).sum();
        bytes.saturating_sub(self.records.buffered()).max(1)
    }
}
