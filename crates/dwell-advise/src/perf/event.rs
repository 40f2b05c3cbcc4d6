// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events, as the tracepoints describe them.

use super::tracefs::{Point, Tracepoint};

const FLAG_HARDIRQ: u64 = 0x08;
const FLAG_SOFTIRQ: u64 = 0x10;

pub const READ: u8 = 0;
pub const WRITE: u8 = 1;
pub const FLUSH: u8 = 2;
pub const DISCARD: u8 = 3;
pub const ELSE: u8 = 15;
pub const JOURNAL: u8 = 16;

/// A request, as its tracepoint describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub device: u32,
    pub sector: u64,
    pub bytes: u32,
    pub operation: u8,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Switch { state: u64, next: u32 },
    Waking(u32),
    NewTask { thread: u32, flags: u64 },
    Free(u32),
    Enter(i16),
    Exit,
    Merge(Request),
    Insert(Request),
    Issue(Request),
    Complete(Request),
    Bio(Request),
    BioComplete(Request),
    Ends(Interrupt),
}

/// A kind of interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    Hard,
    Soft,
}

impl Interrupt {
    /// The innermost one that an event was made in.
    pub fn of(described: &Tracepoint, event: &[u8]) -> Option<Interrupt> {
        match described.number(event, "common_flags")? {
            flags if flags & FLAG_HARDIRQ != 0 => Some(Interrupt::Hard),
            flags if flags & FLAG_SOFTIRQ != 0 => Some(Interrupt::Soft),
            _ => None,
        }
    }
}

/// What happened, when, on which CPU and in which interrupt, while which task ran there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: u64,
    pub cpu: u32,
    pub within: Option<Interrupt>,
    pub process: u32,
    pub thread: u32,
    pub what: What,
}

impl What {
    /// From an event's bytes; `None` where a field is missing.
    pub fn of(described: &Tracepoint, point: Point, event: &[u8]) -> Option<What> {
        let number = |name: &str| described.number(event, name);
        let request = || {
            Some(Request {
                device: number("dev")? as u32,
                sector: number("sector")?,
                bytes: number("nr_sector")? as u32 * 512,
                operation: operation(described.text(event, "rwbs")),
            })
        };
        Some(match point {
            Point::Switch => {
                What::Switch { state: number("prev_state")?, next: number("next_pid")? as u32 }
            }
            Point::Waking => What::Waking(number("pid")? as u32),
            Point::NewTask => {
                What::NewTask { thread: number("pid")? as u32, flags: number("clone_flags")? }
            }
            Point::Enter => What::Enter(i16::try_from(number("id")?).ok()?),
            Point::Exit => What::Exit,
            Point::Free => What::Free(number("pid")? as u32),
            Point::Merge => What::Merge(request()?),
            Point::Insert => What::Insert(request()?),
            Point::Issue => What::Issue(request()?),
            Point::Complete => What::Complete(request()?),
            Point::Bio => What::Bio(request()?),
            Point::BioComplete => What::BioComplete(request()?),
            Point::IrqEnds => What::Ends(Interrupt::Hard),
            Point::SoftirqEnds => What::Ends(Interrupt::Soft),
        })
    }
}

/// The kernel's letters of a request: a flush before it, what it is, and what it wants.
fn operation(letters: &[u8]) -> u8 {
    let (flushes, rest) = match letters {
        [b'F', rest @ ..] => (true, rest),
        _ => (false, letters),
    };
    match rest {
        [b'W', more @ ..] if flushes || more.contains(&b'F') => JOURNAL,
        [b'W', ..] => WRITE,
        [b'R', ..] => READ,
        [b'D', ..] => DISCARD,
        _ if flushes => FLUSH,
        _ => ELSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_of_requests_are_read() {
        for (letters, expected) in [
            ("R", READ),
            ("RA", READ),
            ("WS", WRITE),
            ("WFS", JOURNAL),
            ("FWFS", JOURNAL),
            ("FF", FLUSH),
            ("D", DISCARD),
            ("N", ELSE),
        ] {
            assert_eq!(operation(letters.as_bytes()), expected, "{letters}");
        }
    }
}
