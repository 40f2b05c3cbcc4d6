// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where everything lies in a channel's memory. Both sides compute it from two numbers that they
//! agreed on before, and keep it to themselves.

/// Bytes of a page; rings and data begin on one.
pub const PAGE_BYTES: u64 = 4096;
/// Most entries of a ring.
pub const MOST_ENTRIES: u32 = 4096;
/// Most bytes of a data area.
pub const MOST_DATA_BYTES: u64 = 64 << 20;
/// Words of a command in the submission ring.
pub const COMMAND_WORDS: usize = 4;
/// Words of a completion in the completion ring.
pub const COMPLETION_WORDS: usize = 1;

/// Where the words that both sides look at lie: each on two cache lines of its own, because
/// processors fetch neighbours in pairs. A tail has the value that its copy of one entry belongs to
/// after it, and then the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    /// Commands submitted so far; the client writes it.
    CommandTail = 0,
    /// Commands taken so far; the daemon writes it.
    CommandHead = 128,
    /// Completions so far; the daemon writes it.
    CompletionTail = 256,
    /// Completions taken so far; the client writes it.
    CompletionHead = 384,
    /// Not 0 while the daemon has to be woken.
    DaemonAsleep = 512,
    /// Not 0 while the client has to be woken.
    ClientAsleep = 640,
}

/// Where the copy of an entry lies after a tail, in bytes; before it, the value that it belongs to.
pub const BESIDE: u64 = 8;

/// The parts of a channel's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: u32,
    data_bytes: u64,
}

impl Layout {
    /// Of rings with `entries` entries and a data area of `data_bytes`; `None` where that is no
    /// channel: a power of two from 2 to [`MOST_ENTRIES`], and whole pages up to
    /// [`MOST_DATA_BYTES`].
    pub fn new(entries: u32, data_bytes: u64) -> Option<Layout> {
        let fits = entries.is_power_of_two()
            && (2..=MOST_ENTRIES).contains(&entries)
            && (PAGE_BYTES..=MOST_DATA_BYTES).contains(&data_bytes)
            && data_bytes.is_multiple_of(PAGE_BYTES);
        fits.then_some(Layout { entries, data_bytes })
    }

    /// Entries of each ring.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of the data area.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Where the submission ring begins, in bytes.
    pub fn commands(&self) -> u64 {
        PAGE_BYTES
    }

    /// Where the completion ring begins, in bytes.
    pub fn completions(&self) -> u64 {
        self.commands() + self.ring_bytes(COMMAND_WORDS)
    }

    /// Where the data area begins, in bytes.
    pub fn data(&self) -> u64 {
        self.completions() + self.ring_bytes(COMPLETION_WORDS)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.data() + self.data_bytes
    }

    fn ring_bytes(&self, words: usize) -> u64 {
        (u64::from(self.entries) * words as u64 * 8).next_multiple_of(PAGE_BYTES)
    }

    /// Whether `bytes` bytes from `place` lie within the data area.
    #[inline]
    pub fn holds(&self, place: u32, bytes: u32) -> bool {
        u64::from(place).checked_add(u64::from(bytes)).is_some_and(|end| end <= self.data_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_on_pages_of_their_own() {
        let layout = Layout::new(64, 8192).unwrap();
        assert_eq!(
            (layout.commands(), layout.completions(), layout.data(), layout.bytes()),
            (4096, 8192, 12288, 20480)
        );
        let large = Layout::new(4096, MOST_DATA_BYTES).unwrap();
        assert_eq!(large.data(), 4096 + 4096 * 32 + 4096 * 8);
    }

    #[test]
    fn numbers_that_make_no_channel_are_refused() {
        for (entries, data) in [(0, 4096), (1, 4096), (3, 4096), (8192, 4096), (2, 0), (2, 4095)] {
            assert_eq!(Layout::new(entries, data), None);
        }
        assert_eq!(Layout::new(2, MOST_DATA_BYTES + 4096), None);
        assert_eq!(Layout::new(2, u64::MAX), None);
    }

    #[test]
    fn nothing_outside_the_data_area_is_within_it() {
        let layout = Layout::new(2, 8192).unwrap();
        assert!(layout.holds(0, 8192) && layout.holds(8192, 0) && layout.holds(8191, 1));
        assert!(!layout.holds(1, 8192) && !layout.holds(8192, 1));
        assert!(!layout.holds(u32::MAX, u32::MAX));
    }
}
