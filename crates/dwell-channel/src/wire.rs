// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands and completions as they lie in the rings, and the messages by which a channel is made.

use crate::layout::{COMMAND_WORDS, COMPLETION_WORDS};

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// File to data area.
    Read = 1,
    /// Data area to file, which becomes no longer by it.
    Write = 2,
    /// Make data and metadata durable.
    Sync = 3,
    /// Make data durable.
    DataSync = 4,
}

/// One command. Everything that is not named is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: Opcode,
    /// Comes back with the completion; the daemon gives it no meaning.
    pub tag: u32,
    /// Entry of the permission table.
    pub entry: u32,
    /// Which use of the entry.
    pub generation: u32,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
    /// Where in the data area, in bytes.
    pub place: u32,
}

/// A command of which nothing makes sense but perhaps the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Its tag.
    pub tag: u32,
}

impl Command {
    /// As it lies in the submission ring.
    #[inline]
    pub fn words(&self) -> [u64; COMMAND_WORDS] {
        [
            u64::from(self.opcode as u8) | u64::from(self.tag) << 32,
            u64::from(self.entry) | u64::from(self.generation) << 32,
            self.offset,
            u64::from(self.bytes) | u64::from(self.place) << 32,
        ]
    }

    /// From a copy of what lay in the ring.
    ///
    /// # Errors
    /// An unknown opcode, or something where zeroes belong.
    #[inline]
    pub fn parse(words: [u64; COMMAND_WORDS]) -> Result<Command, Malformed> {
        let tag = (words[0] >> 32) as u32;
        let opcode = match words[0] as u32 {
            1 => Opcode::Read,
            2 => Opcode::Write,
            3 => Opcode::Sync,
            4 => Opcode::DataSync,
            _ => return Err(Malformed { tag }),
        };
        Ok(Command {
            opcode,
            tag,
            entry: words[1] as u32,
            generation: (words[1] >> 32) as u32,
            offset: words[2],
            bytes: words[3] as u32,
            place: (words[3] >> 32) as u32,
        })
    }
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The command's tag.
    pub tag: u32,
    /// Bytes transferred, a negative error number, [`Done::MISSING`] or [`Done::KERNEL`].
    pub result: i32,
}

impl Done {
    /// The permission table has no such entry (any more): ask for a grant, and then again.
    pub const MISSING: i32 = -0x1000;
    /// Not for a channel: the file has to be asked through the kernel.
    pub const KERNEL: i32 = -0x1001;

    /// As it lies in the completion ring.
    #[inline]
    pub fn words(&self) -> [u64; COMPLETION_WORDS] {
        [u64::from(self.tag) | u64::from(self.result as u32) << 32]
    }

    /// From a copy of what lay in the ring.
    #[inline]
    pub fn parse([word]: [u64; COMPLETION_WORDS]) -> Done {
        Done { tag: word as u32, result: (word >> 32) as u32 as i32 }
    }
}

/// Begins every message, and tells this protocol from later ones.
pub const MAGIC: [u8; 8] = crate::grants::ioctl::MAGIC;

/// What a client asks for when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Entries of each ring.
    pub entries: u32,
    /// Bytes of the data area.
    pub data_bytes: u64,
}

impl Hello {
    /// Bytes of the message.
    pub const BYTES: usize = 24;

    /// As it is sent.
    pub fn message(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.entries.to_le_bytes());
        out[16..].copy_from_slice(&self.data_bytes.to_le_bytes());
        out
    }

    /// From what came; `None` where that is something else.
    pub fn parse(message: &[u8]) -> Option<Hello> {
        let message: &[u8; Self::BYTES] = message.try_into().ok()?;
        let (number, bytes) = (four(message, 8), eight(message, 16));
        (message[..8] == MAGIC && four(message, 12) == 0)
            .then_some(Hello { entries: number, data_bytes: bytes })
    }
}

/// What the daemon answers, with the memory beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 0, or the number of the error why there is no channel.
    pub error: u32,
    /// Names the channel when a grant is asked for.
    pub token: [u8; 16],
    /// Entries of each ring.
    pub entries: u32,
    /// Entries of the permission table.
    pub capacity: u32,
    /// Bytes of the data area.
    pub data_bytes: u64,
}

impl Welcome {
    /// Bytes of the message.
    pub const BYTES: usize = 48;

    /// A refusal.
    pub fn refused(error: i32) -> Welcome {
        let error = error.unsigned_abs();
        Welcome { error, token: [0; 16], entries: 0, capacity: 0, data_bytes: 0 }
    }

    /// As it is sent.
    pub fn message(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.error.to_le_bytes());
        out[16..32].copy_from_slice(&self.token);
        out[32..36].copy_from_slice(&self.entries.to_le_bytes());
        out[36..40].copy_from_slice(&self.capacity.to_le_bytes());
        out[40..].copy_from_slice(&self.data_bytes.to_le_bytes());
        out
    }

    /// From what came; `None` where that is something else.
    pub fn parse(message: &[u8]) -> Option<Welcome> {
        let message: &[u8; Self::BYTES] = message.try_into().ok()?;
        if message[..8] != MAGIC || four(message, 12) != 0 {
            return None;
        }
        let mut token = [0; 16];
        token.copy_from_slice(&message[16..32]);
        Some(Welcome {
            error: four(message, 8),
            token,
            entries: four(message, 32),
            capacity: four(message, 36),
            data_bytes: eight(message, 40),
        })
    }
}

fn four<const N: usize>(from: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| from[at + byte]))
}

fn eight<const N: usize>(from: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| from[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_out_as_they_went_in() {
        let command = Command {
            opcode: Opcode::Write,
            tag: 0xdead_beef,
            entry: 7,
            generation: u32::MAX,
            offset: u64::MAX - 3,
            bytes: 512,
            place: 1 << 31,
        };
        assert_eq!(Command::parse(command.words()), Ok(command));
        let done = Done { tag: 3, result: Done::MISSING };
        assert_eq!(Done::parse(done.words()), done);
    }

    #[test]
    fn bytes_that_are_no_command_keep_only_their_tag() {
        for first in [0u64, 5, 6, 0x100, 0x1_0001, 0xffff_ffff] {
            let words = [first | 9 << 32, 0, 0, 0];
            assert_eq!(Command::parse(words), Err(Malformed { tag: 9 }));
        }
    }

    #[test]
    fn messages_of_another_kind_are_told_apart() {
        let hello = Hello { entries: 64, data_bytes: 1 << 20 };
        assert_eq!(Hello::parse(&hello.message()), Some(hello));
        for at in [0, 7, 12, 15] {
            let mut bad = hello.message();
            bad[at] ^= 1;
            assert_eq!(Hello::parse(&bad), None);
        }
        assert_eq!(Hello::parse(&hello.message()[1..]), None);
        let welcome = Welcome { token: [3; 16], ..Welcome::refused(-libc::EMFILE) };
        assert_eq!(Welcome::parse(&welcome.message()), Some(welcome));
        assert_eq!(Welcome::parse(&hello.message()), None);
    }
}
