// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a system is left alone that refuses rings.

/// How often the system has refused a ring in a row (a limit on descriptors or locked memory), and
/// for how many requests it is not asked again. To ask costs more than a read.
#[derive(Clone, Copy, Default)]
pub(super) struct Refusals {
    in_a_row: u32,
    skip: u32,
}

impl Refusals {
    /// Requests for which a system that goes on refusing is left alone.
    const MOST: u32 = 4096;

    /// Whether the system is left alone for this request.
    pub fn is_too_soon(&mut self) -> bool {
        let too_soon = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        too_soon
    }

    pub fn note(&mut self, was_made: bool) {
        self.in_a_row = if was_made { 0 } else { self.in_a_row.saturating_add(1) };
        self.skip = match self.in_a_row {
            0 => 0,
            refusals => 1u32.checked_shl(refusals).unwrap_or(Self::MOST).min(Self::MOST),
        };
    }
}
