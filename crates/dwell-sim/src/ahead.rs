// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware of pre-execution: the store buffer and the pre-execute cache with an INV bit per
//! byte (§3.4.2).

use std::collections::VecDeque;

use crate::program::Access;

/// The bytes of an access within one line: the line's number and one bit per byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The virtual line.
    pub line: u64,
    /// Its bytes that are touched.
    pub bytes: u128,
}

/// The pieces of an access, line by line.
pub fn pieces(access: Access, line_shift: u32) -> impl Iterator<Item = Piece> {
    let (first, last) = (access.address(), access.last());
    let line_bytes = 1u64 << line_shift;
    (first >> line_shift..=last >> line_shift).map(move |line| {
        let from = first.max(line << line_shift) & (line_bytes - 1);
        let to = last.min((line << line_shift) + line_bytes - 1) & (line_bytes - 1);
        Piece { line, bytes: (u128::MAX >> (127 - (to - from))) << from }
    })
}

/// What earlier pre-executed stores say of the bytes of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The bytes that they wrote.
    pub known: u128,
    /// Of those, the ones without a valid value.
    pub inv: u128,
}

/// Stores that are executed and have not reached the pre-execute cache yet, the oldest first.
#[derive(Clone, Debug)]
pub struct StoreBuffer {
    stores: VecDeque<(Piece, bool)>,
    room: usize,
    /// A bit per line number modulo 64: most loads need not look.
    maybe: u64,
}

impl StoreBuffer {
    /// Room for so many stores.
    pub fn new(room: usize) -> Self {
        StoreBuffer { stores: VecDeque::with_capacity(room + 1), room, maybe: 0 }
    }

    /// Adds a store; the oldest retires where there is no room left.
    pub fn push(&mut self, piece: Piece, inv: bool) -> Option<(Piece, bool)> {
        self.stores.push_back((piece, inv));
        self.maybe |= 1 << (piece.line % 64);
        if self.stores.len() > self.room { self.stores.pop_front() } else { None }
    }

    /// What the buffer says of a load: each byte as the youngest store left it.
    pub fn look(&self, piece: Piece) -> Stored {
        let mut stored = Stored::default();
        if self.maybe & 1 << (piece.line % 64) == 0 {
            return stored;
        }
        for (store, inv) in self.stores.iter().rev().filter(|(store, _)| store.line == piece.line) {
            let bytes = store.bytes & piece.bytes & !stored.known;
            stored.known |= bytes;
            stored.inv |= if *inv { bytes } else { 0 };
        }
        stored
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.stores.clear();
        self.maybe = 0;
    }

    /// Whether it holds nothing.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    line: u64,
    stored: Stored,
    /// The pre-execution that wrote it: what an earlier one left is nothing.
    episode: u32,
}

/// The pre-execute cache: what pre-executed stores wrote, by virtual line, with LRU replacement.
/// Only pre-execution looks at it.
#[derive(Clone, Debug)]
pub struct PreCache {
    held: Vec<Held>,
    ways: usize,
    set_mask: u64,
    episode: u32,
}

impl PreCache {
    /// A cache of `sets` (a power of two) times `ways` lines.
    pub fn new(sets: usize, ways: usize) -> Self {
        let held = vec![Held::default(); sets * ways];
        PreCache { held, ways, set_mask: sets as u64 - 1, episode: 1 }
    }

    fn set(&mut self, line: u64) -> &mut [Held] {
        let at = (line & self.set_mask) as usize * self.ways;
        &mut self.held[at..at + self.ways]
    }

    /// What it says of a load.
    pub fn look(&mut self, piece: Piece) -> Stored {
        let episode = self.episode;
        let set = self.set(piece.line);
        let here = |held: &Held| held.episode == episode && held.line == piece.line;
        let Some(at) = set.iter().position(here) else { return Stored::default() };
        set[..=at].rotate_right(1);
        let stored = set[0].stored;
        Stored { known: stored.known & piece.bytes, inv: stored.inv & piece.bytes }
    }

    /// Writes bytes and sets or resets their INV bits; a line is allocated where there is none.
    pub fn write(&mut self, piece: Piece, inv: bool) {
        let episode = self.episode;
        let set = self.set(piece.line);
        let here = |held: &Held| held.episode == episode && held.line == piece.line;
        // A way of an earlier episode is free.
        let at = set
            .iter()
            .position(here)
            .or_else(|| set.iter().position(|held| held.episode != episode));
        let at = at.unwrap_or(set.len() - 1);
        set[..=at].rotate_right(1);
        if !here(&set[0]) {
            set[0] = Held { line: piece.line, stored: Stored::default(), episode };
        }
        let stored = &mut set[0].stored;
        stored.known |= piece.bytes;
        stored.inv = if inv { stored.inv | piece.bytes } else { stored.inv & !piece.bytes };
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.episode = self.episode.wrapping_add(1);
        if self.episode == 0 {
            self.held.fill(Held::default());
            self.episode = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(line: u64, bytes: u128) -> Piece {
        Piece { line, bytes }
    }

    #[test]
    fn an_access_over_a_line_boundary_is_two_pieces() {
        let got: Vec<_> = pieces(Access::load(0x13e, 8), 6).collect();
        assert_eq!(got, [piece(4, 3 << 62), piece(5, 0x3f)]);
        assert_eq!(
            pieces(Access::load(0, 64), 6).collect::<Vec<_>>(),
            [piece(0, u128::from(u64::MAX))]
        );
        assert_eq!(
            pieces(Access::load(0x80, 200), 7).map(|piece| piece.bytes.count_ones()).sum::<u32>(),
            200
        );
    }

    #[test]
    fn the_youngest_store_decides_each_byte() {
        let mut buffer = StoreBuffer::new(4);
        buffer.push(piece(1, 0b1111), true);
        buffer.push(piece(1, 0b0011), false);
        assert_eq!(buffer.look(piece(1, 0b0110)), Stored { known: 0b0110, inv: 0b0100 });
        assert_eq!(buffer.look(piece(65, 0b0110)), Stored::default());
        assert_eq!(buffer.look(piece(2, 1)), Stored::default());
    }

    #[test]
    fn a_full_store_buffer_retires_its_oldest_store() {
        let mut buffer = StoreBuffer::new(1);
        assert_eq!(buffer.push(piece(1, 1), true), None);
        assert_eq!(buffer.push(piece(2, 1), false), Some((piece(1, 1), true)));
    }

    #[test]
    fn inv_bits_are_set_and_reset_byte_by_byte() {
        let mut cache = PreCache::new(2, 1);
        cache.write(piece(3, 0b1100), true);
        cache.write(piece(3, 0b0100), false);
        assert_eq!(cache.look(piece(3, 0b1110)), Stored { known: 0b1100, inv: 0b1000 });
        cache.write(piece(5, 1), false);
        assert_eq!(
            cache.look(piece(3, 0b1110)),
            Stored::default(),
            "one way per set: the line left"
        );
        cache.clear();
        assert_eq!(cache.look(piece(5, 1)), Stored::default());
    }
}
