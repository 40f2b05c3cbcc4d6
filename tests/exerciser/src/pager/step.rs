// SPDX-License-Identifier: MIT OR Apache-2.0
//! The steps of a region's sequence, and those of a seed.

use dwell_pager::PAGE_BYTES;
use serde::{Deserialize, Serialize};

use crate::pattern::Dice;

pub(super) const FILE_BYTES: usize = 150 * PAGE_BYTES + 777;

/// How a region is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Writes reach the file.
    Shared,
    /// Writes stay here; the pages that do not fit go to a file without a name.
    Private,
    /// Nothing is written.
    ReadOnly,
}

/// A step of a region's sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are the arguments of the functions that the variants are named after.
pub enum Step {
    /// Drops the region, if there is one, and opens the file again.
    Open {
        kind: Kind,
        pages: usize,
        thread: bool,
        registered: bool,
        direct: bool,
        /// Pages that one fault reads; 0 lets the accesses decide.
        #[serde(default)]
        granule: usize,
        /// Whether the budget is one that other regions may share.
        #[serde(default)]
        within: bool,
    },
    /// Opens a second region of higher priority within the budget, or ends it: the first has to
    /// give memory up, or gets it back.
    Squeeze,
    /// A child is forked, lives on for a moment, and shares all other memory.
    Fork,
    Read {
        at: usize,
        bytes: usize,
    },
    Write {
        at: usize,
        bytes: usize,
        seed: u64,
    },
    /// Writes by several threads at once, in disjoint ranges.
    Together {
        parts: Vec<(usize, usize, u64)>,
    },
    Sync,
    SyncRange {
        at: usize,
        bytes: usize,
    },
    DontNeed {
        at: usize,
        bytes: usize,
    },
    Advise {
        at: usize,
        bytes: usize,
        random: bool,
    },
    WillNeed {
        at: usize,
        bytes: usize,
    },
    Hint {
        at: usize,
    },
    Prefault {
        at: usize,
        bytes: usize,
    },
    /// Pins, gives the memory to a system call, and lets it go.
    Pin {
        at: usize,
        bytes: usize,
    },
    /// The process is killed.
    Die,
}

impl Step {
    pub(super) fn kind(&self) -> String {
        let text = match self {
            Step::Open { kind, thread, within, .. } => {
                format!("open {kind:?} thread={thread} within={within}")
            }
            other => format!("{other:?}"),
        };
        let end = text.find(" {").unwrap_or(text.len());
        format!("pager {}", &text[..end])
    }
}

/// The steps of a seed.
pub fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let mut steps = Vec::new();
    let mut kind = Kind::Shared;
    let (mut budget, mut within) = (0, false);
    let span = |dice: &mut Dice, most: u64| {
        let bytes =
            if dice.chance(50) { 1 + dice.below(64) } else { 1 + dice.below(most) } as usize;
        let at = dice.below((FILE_BYTES - bytes) as u64 + 1) as usize;
        (if dice.chance(30) { at & !(PAGE_BYTES - 1) } else { at }, bytes)
    };
    while steps.len() < count {
        let roll = if steps.is_empty() { 0 } else { dice.below(1000) };
        let (at, bytes) = span(&mut dice, 12_000);
        steps.push(match roll {
            0..25 => {
                kind = dice.one_of(&[Kind::Shared, Kind::Shared, Kind::Private, Kind::ReadOnly]);
                budget = dice.one_of(&[16, 32, 64, 200]);
                within = dice.chance(25);
                Step::Open {
                    kind,
                    pages: budget,
                    thread: dice.chance(30),
                    registered: dice.chance(70),
                    direct: dice.chance(20),
                    granule: dice.one_of(&[0, 0, 1, 2, 8, 512]),
                    within,
                }
            }
            25..400 if kind != Kind::ReadOnly => {
                Step::Write { at, bytes, seed: seed << 20 | steps.len() as u64 }
            }
            400..440 if kind != Kind::ReadOnly => {
                let share = FILE_BYTES / 4;
                let part = |place: usize| {
                    let bytes = 1 + dice.below(9000) as usize;
                    let at = place * share + dice.below((share - bytes) as u64) as usize;
                    (at, bytes, seed << 20 | (steps.len() * 8 + place) as u64)
                };
                Step::Together { parts: (0..4).map(part).collect() }
            }
            440..480 => Step::Sync,
            480..500 => Step::SyncRange { at, bytes },
            500..530 => Step::DontNeed { at, bytes },
            530..545 => Step::Advise { at, bytes, random: dice.chance(50) },
            545..570 => Step::WillNeed { at, bytes },
            570..620 => Step::Hint { at },
            620..650 => Step::Prefault { at, bytes },
            // Squeezed, a region has eight pages, of which four come and go.
            650..680 => {
                let most = if within { 2 } else { budget / 4 };
                Step::Pin { at, bytes: bytes.min(most * PAGE_BYTES) }
            }
            680..690 if within => Step::Squeeze,
            690..695 => Step::Fork,
            _ => Step::Read { at, bytes },
        });
    }
    if dice.chance(40) {
        steps.push(Step::Die);
    }
    steps
}

/// Whether steps begin with a region, and write to none that is only read.
pub(super) fn can_be(steps: &[Step]) -> bool {
    let mut writable = None;
    steps.iter().all(|step| match step {
        Step::Open { kind, .. } => {
            writable = Some(*kind != Kind::ReadOnly);
            true
        }
        Step::Write { .. } | Step::Together { .. } => writable == Some(true),
        _ => writable.is_some(),
    })
}
