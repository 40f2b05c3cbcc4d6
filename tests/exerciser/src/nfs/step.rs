// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of a session with a server's files, and those of a seed.

use crate::pattern::Dice;

pub(super) const NAMES: u64 = 5;
const REACH: u64 = 300_000;

/// A step of a session with files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Fields are the arguments of the functions that the variants are named after.
pub enum Step {
    Create {
        name: u8,
    },
    Write {
        name: u8,
        at: u64,
        bytes: usize,
        seed: u64,
    },
    /// Writes in disjoint ranges, all on their way together; the server is killed meanwhile if
    /// `killed`.
    Together {
        name: u8,
        parts: Vec<(u64, usize, u64)>,
        killed: bool,
    },
    Commit {
        name: u8,
    },
    Read {
        name: u8,
        at: u64,
        bytes: u32,
    },
    Resize {
        name: u8,
        to: u64,
    },
    Rename {
        from: u8,
        to: u8,
    },
    Remove {
        name: u8,
    },
    Stat {
        name: u8,
    },
    List,
    /// The server is killed and started again.
    Restart,
}

impl Step {
    pub(super) fn kind(&self) -> String {
        let text = match self {
            Step::Together { killed: true, .. } => "Together, server killed".into(),
            other => format!("{other:?}"),
        };
        let end = text.find(" {").unwrap_or(text.len());
        format!("nfs {}", &text[..end])
    }
}

/// The steps of a seed; restarts are rare, because a server takes a second to come up.
pub fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let mut steps = Vec::new();
    for number in 0..count as u64 {
        let name = dice.below(NAMES) as u8;
        let at = dice.below(REACH);
        let bytes = if dice.chance(70) { dice.below(9000) } else { dice.below(100_000) };
        let seed = seed << 20 | number << 3;
        steps.push(match dice.below(1000) {
            0..80 => Step::Create { name },
            80..380 => Step::Write { name, at, bytes: bytes as usize, seed },
            380..480 => {
                let part = |place: u64| {
                    let bytes = 1 + dice.below(60_000);
                    (place * 60_000, bytes as usize, seed | place)
                };
                let parts = (0..5).map(part).collect();
                Step::Together { name, parts, killed: dice.chance(2) }
            }
            480..560 => Step::Commit { name },
            560..800 => Step::Read { name, at, bytes: bytes as u32 },
            800..850 => Step::Resize { name, to: at },
            850..890 => Step::Rename { from: name, to: dice.below(NAMES) as u8 },
            890..920 => Step::Remove { name },
            920..970 => Step::Stat { name },
            970..998 => Step::List,
            _ => Step::Restart,
        });
    }
    steps
}
