// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one outstanding request.

use std::io::IoSlice;

use dwell_policy::Ns;

use crate::procedure::Class;
use crate::rpc::record;
use crate::xdr::padding;

#[derive(Debug)]
pub(super) struct Request<P> {
    pub xid: u32,
    pub tag: u64,
    pub class: Class,
    /// Mark, head and arguments. The payload follows, and its padding.
    head: Vec<u8>,
    pub payload: Option<P>,
    pub sends: u32,
    pub sent_at: Ns,
    pub resend_at: Ns,
    pub give_up_at: Ns,
    /// No datagram can carry it.
    pub is_too_long: bool,
    /// Nobody waits for its answer.
    pub is_abandoned: bool,
    /// Shortest and longest answer, in bytes.
    pub least: u32,
    pub largest: u32,
    pub whole: Whole,
}

/// Tells whether results of a call that moves so many bytes are whole.
pub(super) type Whole = (u32, fn(u32, &[u8]) -> bool);

impl<P: AsRef<[u8]>> Request<P> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        xid: u32,
        tag: u64,
        class: Class,
        head: Vec<u8>,
        payload: Option<P>,
        least: u32,
        largest: u32,
        give_up_at: Ns,
        whole: Whole,
    ) -> Self {
        let (sends, sent_at, resend_at) = (0, 0, 0);
        let mut request = Request {
            xid,
            tag,
            class,
            head,
            payload,
            sends,
            sent_at,
            resend_at,
            give_up_at,
            is_too_long: false,
            is_abandoned: false,
            least,
            largest,
            whole,
        };
        let length = (request.length() - record::MARK_BYTES) as u32;
        request.head[..record::MARK_BYTES].copy_from_slice(&record::mark(length));
        request
    }

    /// Gives it another XID.
    pub fn renumber(&mut self, xid: u32) {
        self.xid = xid;
        self.head[record::MARK_BYTES..record::MARK_BYTES + 4].copy_from_slice(&xid.to_be_bytes());
    }

    /// Its tag, its payload, and the memory of its head.
    pub fn into_parts(self) -> (u64, Option<P>, Vec<u8>) {
        (self.tag, self.payload, self.head)
    }

    fn payload(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], AsRef::as_ref)
    }

    /// All of it, its mark included, in bytes.
    pub fn length(&self) -> usize {
        let payload = self.payload().len();
        self.head.len() + payload + padding(payload)
    }

    /// Data it moves, in bytes.
    pub fn moves_bytes(&self) -> u64 {
        match self.class {
            Class::Read => u64::from(self.largest),
            _ => self.payload().len() as u64,
        }
    }

    /// Adds its pieces, less the first `skip` bytes after the first `head` bytes.
    pub fn slices<'a>(&'a self, head: usize, skip: &mut usize, out: &mut Vec<IoSlice<'a>>) {
        let payload = self.payload();
        for piece in [&self.head[head..], payload, &[0; 3][..padding(payload.len())]] {
            let skipped = piece.len().min(*skip);
            *skip -= skipped;
            if skipped < piece.len() {
                out.push(IoSlice::new(&piece[skipped..]));
            }
        }
    }
}
