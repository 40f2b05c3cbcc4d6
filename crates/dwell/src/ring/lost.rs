// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings that the kernel refuses for good while it has requests of theirs.

use std::os::fd::AsRawFd;

use crate::poll::poll;
use crate::queue::Completion;

use super::{Completed, Ring, SpinMethod, release};

impl Ring {
    /// Whether requests are in flight that the kernel will never complete here: it refuses the call
    /// that would bring them out. It may still write to their memory.
    pub fn is_lost(&self) -> bool {
        let itself = self.completed == Completed::ByInterrupt(SpinMethod::CqPeek);
        self.broken.is_some() && !itself && self.backlog.requests > 0 && self.unsent.is_empty()
    }

    /// Forgets what is in flight; the memory of a lost ring's requests stays lent for good.
    pub fn give_up(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.busy) {
            release(slot, at as u32, &mut self.free, &mut self.backlog);
        }
    }

    /// Ends the one request of a lost ring once the kernel is done with its memory: a read so that
    /// another route carries it out, anything else with ENOTRECOVERABLE, as it may have been
    /// carried out.
    pub(super) fn ended_unseen(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let watches = self.watching || !self.words.is_empty();
        if !self.is_lost() || self.backlog.requests != 1 || watches || !self.is_called_for() {
            return 0;
        }
        let Some(at) = self.slots.iter().position(|slot| slot.busy) else { return 0 };
        // Closed, the ring could have the kernel go on with what it holds back.
        self.kept = true;
        let errno = if self.slots[at].reads { libc::EAGAIN } else { libc::ENOTRECOVERABLE };
        self.give_back(at as u32, errno, out)
    }

    /// Whether the kernel waits for a call to go on with a request. Until that call it touches none
    /// of its memory.
    fn is_called_for(&mut self) -> bool {
        if !self.uring.submission().taskrun() {
            return false;
        }
        // The flag may be late, from a request that is out already. The descriptor knows, if it
        // still is the ring's.
        let closed = matches!(self.broken, Some(libc::EBADF | libc::EOPNOTSUPP));
        let fd = self.uring.as_raw_fd();
        let mut ring = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        closed || (poll(&mut ring, Some(no_time)) == 1 && ring.revents & libc::POLLIN != 0)
    }
}
