// SPDX-License-Identifier: MIT OR Apache-2.0
//! Remote procedure calls, version 2 (RFC 5531): heads of calls and of replies.

pub mod record;

use crate::xdr::{Malformed, Reader, Result, Writer};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Longest verifier and credential, in bytes (RFC 5531 §8.2).
const MAX_AUTH_BYTES: u32 = 400;

/// The shortest reply of a call that was carried out, without its results, in bytes: XID,
/// direction, state, empty verifier, accept state.
pub const SMALLEST_REPLY_BYTES: u32 = 24;

/// One procedure of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Program number.
    pub program: u32,
    /// Version.
    pub version: u32,
    /// Procedure.
    pub procedure: u32,
}

/// The caller's identity: `AUTH_SYS`, or `AUTH_NONE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credential {
    encoded: Vec<u8>,
}

impl Credential {
    /// Most groups beside the first (RFC 5531 appendix A).
    pub const MAX_GROUPS: usize = 16;

    /// Nobody.
    pub const fn none() -> Self {
        Credential { encoded: Vec::new() }
    }

    /// A user of this machine. Groups beyond the sixteenth cannot be told.
    pub fn sys(machine: &str, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let mut encoded = Vec::new();
        let mut body = Writer::new(&mut encoded);
        body.u32(0);
        body.opaque(&machine.as_bytes()[..machine.len().min(255)]);
        body.u32(uid);
        body.u32(gid);
        let groups = &groups[..groups.len().min(Self::MAX_GROUPS)];
        body.u32(groups.len() as u32);
        groups.iter().for_each(|group| body.u32(*group));
        Credential { encoded }
    }

    /// The user and the groups of this process.
    pub fn own() -> Self {
        let groups: Vec<u32> = rustix::process::getgroups()
            .map(|groups| groups.iter().map(|group| group.as_raw()).collect())
            .unwrap_or_default();
        let node = rustix::system::uname();
        let node = node.nodename().to_string_lossy();
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Credential::sys(&node, uid.as_raw(), gid.as_raw(), &groups)
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.u32(u32::from(!self.encoded.is_empty()));
        out.opaque(&self.encoded);
    }
}

/// Appends the head of a call. The arguments follow.
pub fn write_call(out: &mut Vec<u8>, xid: u32, target: Target, credential: &Credential) {
    let mut out = Writer::new(out);
    for word in [xid, CALL, RPC_VERSION, target.program, target.version, target.procedure] {
        out.u32(word);
    }
    credential.write(&mut out);
    Credential::none().write(&mut out);
}

/// Why a server did not carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not have the program.
    #[error("the server does not offer this program")]
    NoProgram,
    /// It has other versions of the program.
    #[error("the server offers versions {low} to {high} of this program only")]
    OtherVersions {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// It does not have the procedure.
    #[error("the server does not have this procedure")]
    NoProcedure,
    /// It could not read the arguments.
    #[error("the server could not read the arguments")]
    Arguments,
    /// It failed: memory, mostly.
    #[error("the server failed (SYSTEM_ERR)")]
    System,
    /// It speaks other versions of RPC.
    #[error("the server speaks versions {low} to {high} of RPC only")]
    OtherRpc {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// It does not accept who asks.
    #[error("the server does not accept the credential ({})", auth_word(*.0))]
    Credential(u32),
}

fn auth_word(state: u32) -> &'static str {
    match state {
        1 => "AUTH_BADCRED",
        2 => "AUTH_REJECTEDCRED",
        3 => "AUTH_BADVERF",
        4 => "AUTH_REJECTEDVERF",
        5 => "AUTH_TOOWEAK: another flavour is wanted",
        6 => "AUTH_INVALIDRESP",
        7 => "AUTH_FAILED",
        _ => "of an unknown kind",
    }
}

/// A reply: to which call, and its results or why there are none.
#[derive(Clone, Debug)]
pub struct Reply<'a> {
    /// Which call.
    pub xid: u32,
    /// The results, not read yet.
    pub outcome: std::result::Result<Reader<'a>, Refusal>,
}

/// Which call a message belongs to, when it is long enough to say so.
pub fn xid(message: &[u8]) -> Option<u32> {
    message.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Reads the head of a reply.
///
/// # Errors
/// A message that is no reply.
pub fn read_reply(message: &[u8]) -> Result<Reply<'_>> {
    let mut reader = Reader::new(message);
    let xid = reader.u32("XID")?;
    match reader.u32("message direction")? {
        REPLY => {}
        value => return Err(Malformed::Value { field: "message direction", value }),
    }
    let outcome = match reader.u32("reply state")? {
        0 => accepted(&mut reader)?,
        1 => Err(rejected(&mut reader)?),
        value => return Err(Malformed::Value { field: "reply state", value }),
    };
    Ok(Reply { xid, outcome: outcome.map(|()| reader) })
}

fn accepted(reader: &mut Reader<'_>) -> Result<std::result::Result<(), Refusal>> {
    reader.u32("verifier flavour")?;
    reader.opaque("verifier", MAX_AUTH_BYTES)?;
    Ok(Err(match reader.u32("accept state")? {
        0 => return Ok(Ok(())),
        1 => Refusal::NoProgram,
        2 => {
            let (low, high) = (reader.u32("lowest version")?, reader.u32("highest version")?);
            Refusal::OtherVersions { low, high }
        }
        3 => Refusal::NoProcedure,
        4 => Refusal::Arguments,
        5 => Refusal::System,
        value => return Err(Malformed::Value { field: "accept state", value }),
    }))
}

fn rejected(reader: &mut Reader<'_>) -> Result<Refusal> {
    match reader.u32("reject state")? {
        0 => {
            let (low, high) = (reader.u32("lowest version")?, reader.u32("highest version")?);
            Ok(Refusal::OtherRpc { low, high })
        }
        1 => Ok(Refusal::Credential(reader.u32("authentication state")?)),
        value => Err(Malformed::Value { field: "reject state", value }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn a_call_is_laid_out_as_the_protocol_says() {
        let mut out = Vec::new();
        let target = Target { program: 100_003, version: 3, procedure: 1 };
        write_call(&mut out, 5, target, &Credential::sys("ab", 1, 2, &[3]));
        let sys = [1, 28, 0, 2, 0x6162_0000, 1, 2, 1, 3];
        let expected = [&[5, 0, 2, 100_003, 3, 1][..], &sys, &[0, 0]].concat();
        assert_eq!(out, words(&expected));
    }

    #[test]
    fn every_state_of_a_reply_is_told_apart() {
        let cases: [(&[u32], Refusal); 8] = [
            (&[0, 0, 0, 1], Refusal::NoProgram),
            (&[0, 0, 0, 2, 2, 4], Refusal::OtherVersions { low: 2, high: 4 }),
            (&[0, 0, 0, 3], Refusal::NoProcedure),
            (&[0, 0, 0, 4], Refusal::Arguments),
            (&[0, 0, 0, 5], Refusal::System),
            (&[1, 0, 2, 2], Refusal::OtherRpc { low: 2, high: 2 }),
            (&[1, 1, 5], Refusal::Credential(5)),
            (&[1, 1, 99], Refusal::Credential(99)),
        ];
        for (tail, refusal) in cases {
            let message = words(&[&[9, 1], tail].concat());
            let reply = read_reply(&message).unwrap();
            assert_eq!((reply.xid, reply.outcome.unwrap_err()), (9, refusal));
            for end in 0..message.len() {
                assert!(read_reply(&message[..end]).is_err(), "{end} bytes of {tail:?}");
            }
        }
        let message = words(&[9, 1, 0, 6, 4, 0xffff_ffff, 0, 42]);
        let mut results = read_reply(&message).unwrap().outcome.unwrap();
        assert_eq!(results.u32("result"), Ok(42));
        for wrong in
            [&[9, 0][..], &[9, 1, 2], &[9, 1, 0, 0, 401], &[9, 1, 0, 0, 0, 6], &[9, 1, 1, 2]]
        {
            assert!(read_reply(&words(wrong)).is_err(), "{wrong:?}");
        }
    }
}
