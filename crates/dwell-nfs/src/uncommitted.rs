// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a writer keeps of a file: data that is not known to be durable.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use crate::connection::Payload;
use crate::nfs3::Verifier;

/// Memory that keeping a piece takes beside its data, about, in bytes.
const PIECE_BYTES: u64 = 256;

/// Data that the server took and that is not known to be durable.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub offset: u64,
    pub data: Payload,
    /// Tells it from what is written to the same place later.
    pub number: u64,
    verifier: Verifier,
    /// Memory that its data keeps, in bytes: it may be a part of what was written.
    memory: usize,
}

impl Piece {
    /// Where it lies.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// Pieces of a file that do not overlap: each byte is that of the last write to it.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    pieces: BTreeMap<u64, Piece>,
    last: u64,
    /// The verifier that was seen last, and how often it was another than the one before.
    verifier: Option<Verifier>,
    restarts: u64,
    /// How much there is, in bytes.
    bytes: u64,
    /// The same with that of other files, and with what each piece takes beside its data.
    all: Rc<Cell<u64>>,
}

impl Drop for Uncommitted {
    fn drop(&mut self) {
        self.removed(self.bytes, self.pieces.len());
    }
}

impl Uncommitted {
    /// Nothing yet. What comes counts into `all`.
    pub fn within(all: &Rc<Cell<u64>>) -> Self {
        let mut uncommitted = Uncommitted::default();
        uncommitted.all = all.clone();
        uncommitted
    }

    fn keep(&mut self, piece: Piece) {
        let bytes = piece.data.len() as u64;
        self.bytes += bytes;
        self.all.set(self.all.get() + bytes + PIECE_BYTES);
        self.pieces.insert(piece.offset, piece);
    }

    fn removed(&mut self, bytes: u64, pieces: usize) {
        self.bytes -= bytes;
        self.all.set(self.all.get() - bytes - pieces as u64 * PIECE_BYTES);
    }

    /// The server took these bytes. `verifier` is `None` where they are durable already.
    pub fn took(&mut self, offset: u64, data: Payload, verifier: Option<Verifier>) {
        self.cut(offset..offset + data.len() as u64);
        self.last += 1;
        if let Some(verifier) = verifier {
            self.saw(verifier);
            let (number, memory) = (self.last, data.len());
            self.keep(Piece { offset, data, number, verifier, memory });
        }
    }

    fn saw(&mut self, verifier: Verifier) {
        let before = self.verifier.replace(verifier);
        self.restarts += u64::from(before.is_some_and(|before| before != verifier));
    }

    /// Forgets what lies in this range.
    fn cut(&mut self, range: Range<u64>) {
        let over = |piece: &Piece| piece.range().end > range.start;
        while let Some((&start, _)) =
            self.pieces.range(..range.end).next_back().filter(|(_, piece)| over(piece))
        {
            let Some(piece) = self.pieces.remove(&start) else { return };
            let (whole, bytes) = (piece.range(), piece.data.len());
            self.removed(bytes as u64, 1);
            let mut keep = |offset: u64, part: Range<usize>| {
                let mut data = piece.data.part(part);
                let mut memory = piece.memory;
                // A small part does not keep all of what was written.
                if data.len() < memory / 2 {
                    memory = data.len();
                    data = Payload::new(data.as_ref().to_vec());
                }
                self.keep(Piece { offset, data, memory, ..piece.clone() });
            };
            if whole.end > range.end {
                keep(range.end, (range.end - start) as usize..bytes);
            }
            if start < range.start {
                keep(start, 0..(range.start - start) as usize);
                return;
            }
        }
    }

    /// Where the first of them is; `None` where there is nothing.
    pub fn first(&self) -> Option<u64> {
        self.pieces.keys().next().copied()
    }

    /// How much there is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where the last of them ends; 0 where there is nothing.
    pub fn end(&self) -> u64 {
        self.pieces.values().next_back().map_or(0, |piece| piece.range().end)
    }

    /// What was read from a range with what lies here written over it; `None` where nothing does.
    pub fn over(&self, range: Range<u64>, read: &Payload) -> Option<Payload> {
        let first = self.pieces.range(..range.start).next_back();
        let within = first.into_iter().chain(self.pieces.range(range.clone()));
        let mut whole: Option<Vec<u8>> = None;
        for (_, piece) in within {
            let (start, end) = (piece.offset.max(range.start), piece.range().end.min(range.end));
            if start >= end {
                continue;
            }
            let whole = whole.get_or_insert_with(|| read.as_ref().to_vec());
            let (to, from) = ((start - range.start) as usize, (start - piece.offset) as usize);
            let bytes = (end - start) as usize;
            whole.resize(whole.len().max(to + bytes), 0);
            whole[to..to + bytes].copy_from_slice(&piece.data.as_ref()[from..from + bytes]);
        }
        whole.map(Payload::new)
    }

    /// The number of the last piece so far.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// How often the server was seen to have been restarted.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// A COMMIT that was sent when `last` was the last piece came back with this verifier. Forgets
    /// what is durable by that, and tells what the server has lost.
    pub fn committed(&mut self, last: u64, verifier: Verifier) -> Vec<Piece> {
        self.saw(verifier);
        let is_durable = |piece: &Piece| piece.number <= last && piece.verifier == verifier;
        let (mut durable, before) = (0, self.pieces.len());
        self.pieces.retain(|_, piece| {
            let is_durable = is_durable(piece);
            durable += if is_durable { piece.data.len() as u64 } else { 0 };
            !is_durable
        });
        self.removed(durable, before - self.pieces.len());
        self.pieces.values().filter(|piece| piece.number <= last).cloned().collect()
    }

    /// The parts of a piece that are still uncommitted and that no later write covers.
    pub fn left_of(&self, piece: &Piece) -> Vec<Piece> {
        let within = self.pieces.range(piece.range()).map(|(_, within)| within);
        within.filter(|within| within.number == piece.number).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(uncommitted: &Uncommitted) -> Vec<(u64, Vec<u8>)> {
        uncommitted.pieces.iter().map(|(at, p)| (*at, p.data.as_ref().to_vec())).collect()
    }

    #[test]
    fn each_byte_is_that_of_the_last_write() {
        let mut kept = Uncommitted::default();
        let mut model = [0u8; 64];
        let mut state = 1u64;
        for number in 1..=255u8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (start, bytes) = ((state >> 33) % 60, (state >> 40) % 20 + 1);
            let bytes = bytes.min(64 - start);
            let durable = number % 5 == 0;
            let verifier = (!durable).then_some([0; 8]);
            kept.took(start, Payload::new(vec![number; bytes as usize]), verifier);
            model[start as usize..(start + bytes) as usize].fill(if durable { 0 } else { number });
            let mut seen = [0u8; 64];
            let mut end = 0;
            for (at, data) in told(&kept) {
                assert!(at >= end && !data.is_empty());
                end = at + data.len() as u64;
                seen[at as usize..end as usize].copy_from_slice(&data);
            }
            assert_eq!(seen, model, "after write {number}");
            assert_eq!(kept.bytes(), model.iter().filter(|byte| **byte != 0).count() as u64);
        }
    }

    #[test]
    fn memory_of_pieces_counts_into_all() {
        let all = Rc::default();
        let (mut kept, verifier) = (Uncommitted::within(&all), [0; 8]);
        kept.took(0, Payload::new(vec![1; 1000]), Some(verifier));
        assert_eq!((kept.bytes(), all.get()), (1000, 1000 + PIECE_BYTES));
        let first = kept.pieces[&0].data.as_ref().as_ptr();
        kept.took(700, Payload::new(vec![2; 10]), Some(verifier));
        assert_eq!((kept.bytes(), all.get()), (1000, 1000 + 3 * PIECE_BYTES));
        // The larger part shares what was written, and the smaller one is a copy.
        assert_eq!(kept.pieces[&0].data.as_ref().as_ptr(), first);
        assert_eq!((kept.pieces[&0].memory, kept.pieces[&710].memory), (1000, 290));
        kept.took(300, Payload::new(vec![3; 400]), Some(verifier));
        assert_eq!(kept.pieces[&0].memory, 300);
        kept.committed(kept.last() - 1, verifier);
        assert_eq!((kept.bytes(), all.get()), (400, 400 + PIECE_BYTES));
        drop(kept);
        assert_eq!(all.get(), 0);
    }

    #[test]
    fn uncommitted_writes_lie_over_reads() {
        let mut kept = Uncommitted::default();
        assert!(kept.end() == 0 && kept.over(0..9, &Payload::new(vec![7; 9])).is_none());
        kept.took(2, Payload::new(vec![1; 4]), Some([0; 8]));
        kept.took(8, Payload::new(vec![2; 2]), Some([0; 8]));
        let over = |range: Range<u64>, read: &[u8]| {
            kept.over(range, &Payload::new(read.to_vec())).map(|over| over.as_ref().to_vec())
        };
        assert_eq!(over(0..12, &[7; 12]), Some(vec![7, 7, 1, 1, 1, 1, 7, 7, 2, 2, 7, 7]));
        // The server was restarted and has less.
        assert_eq!(over(4..9, &[]), Some(vec![1, 1, 0, 0, 2]));
        assert_eq!((over(6..8, &[7; 2]), kept.end()), (None, 10));
    }

    #[test]
    fn a_commit_covers_what_was_taken_before_it_was_sent() {
        let mut kept = Uncommitted::default();
        let (one, two) = ([1; 8], [2; 8]);
        kept.took(0, Payload::new(vec![1; 4]), Some(one));
        kept.took(4, Payload::new(vec![2; 4]), Some(two));
        let last = kept.last();
        kept.took(8, Payload::new(vec![3; 4]), Some(two));
        let lost = kept.committed(last, two);
        assert_eq!(lost.iter().map(|piece| piece.offset).collect::<Vec<_>>(), [0]);
        kept.took(1, Payload::new(vec![4; 2]), Some(two));
        let left: Vec<_> = kept.left_of(&lost[0]).iter().map(Piece::range).collect();
        assert_eq!(left, [0..1, 3..4]);
        assert_eq!(told(&kept), [(0, vec![1]), (1, vec![4; 2]), (3, vec![1]), (8, vec![3; 4])]);
    }
}
