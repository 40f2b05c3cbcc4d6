// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that messages are received into and data is read into. It stays mapped: a chunk is used
//! again once nobody has a part of it any more.
#![allow(unsafe_code)]

use bytes::BytesMut;

/// More chunks than these are given back to the system.
const MOST_CHUNKS: usize = 24;

/// Chunks of memory, all of it initialised. Parts of a chunk are handed out without a copy.
#[derive(Debug)]
pub struct Memory {
    /// The free rest of the chunk that parts are taken from.
    current: BytesMut,
    /// Chunks that somebody may still have parts of, the oldest first.
    used: Vec<BytesMut>,
    chunk_bytes: usize,
}

impl Memory {
    /// Memory in chunks of so many bytes. It has none before it is asked for some.
    pub fn new(chunk_bytes: usize) -> Self {
        Memory { current: BytesMut::new(), used: Vec::new(), chunk_bytes }
    }

    /// Larger chunks from now on, in bytes.
    pub fn allow(&mut self, chunk_bytes: usize) {
        self.chunk_bytes = self.chunk_bytes.max(chunk_bytes);
    }

    /// Memory of so many bytes, with whatever was in it.
    pub fn part(&mut self, bytes: usize) -> BytesMut {
        if self.current.len() < bytes {
            let fresh = self.chunk(bytes);
            let old = std::mem::replace(&mut self.current, fresh);
            self.give_back(old);
        }
        self.current.split_to(bytes)
    }

    /// A whole chunk, of at least so many bytes.
    pub fn chunk(&mut self, bytes: usize) -> BytesMut {
        let bytes = bytes.max(self.chunk_bytes);
        for place in 0..self.used.len() {
            if self.used[place].try_reclaim(bytes) {
                let mut chunk = self.used.remove(place);
                // SAFETY: the chunk has this capacity, and all of it was zeroed when it was made
                // ([`BytesMut::zeroed`]); nothing here ever makes it grow.
                unsafe { chunk.set_len(bytes) };
                return chunk;
            }
        }
        BytesMut::zeroed(bytes)
    }

    /// Takes back what is left of a chunk, to use all of it again once nobody has a part of it.
    pub fn give_back(&mut self, mut rest: BytesMut) {
        rest.clear();
        if self.used.len() >= MOST_CHUNKS {
            self.used.remove(0);
        }
        self.used.push(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_used_again_once_nobody_has_a_part_of_it() {
        let mut memory = Memory::new(100);
        let (first, second) = (memory.part(60).freeze(), memory.part(40).freeze());
        let at = first.as_ptr();
        assert_eq!(second.as_ptr(), at.wrapping_add(60));
        let other = memory.part(30);
        assert!(!(at..at.wrapping_add(100)).contains(&other.as_ptr()));
        drop(first);
        // The second part is still there.
        let third = memory.part(80);
        assert!(!(at..at.wrapping_add(100)).contains(&third.as_ptr()));
        drop(second);
        assert_eq!(memory.part(100).as_ptr(), at);
        assert_eq!(memory.part(200).len(), 200);
    }

    #[test]
    fn memory_is_bounded_however_many_parts_are_kept() {
        let mut memory = Memory::new(8);
        let parts: Vec<_> = (0..1000).map(|_| memory.part(8)).collect();
        assert!(memory.used.len() <= MOST_CHUNKS && parts.iter().all(|part| part.len() == 8));
    }
}
