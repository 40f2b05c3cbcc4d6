// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes as a trace: each is read to its end or refused, and nothing panics.
//!
//! Checksums are made right first, as far as headers can be followed, or hardly an input would come
//! behind them.
#![no_main]

use std::io::Cursor;

use dwell_trace::{Event, Reader};
use libfuzzer_sys::fuzz_target;

const FILE_HEADER_BYTES: usize = 16;
const CHUNK_HEADER_BYTES: usize = 48;
/// No input runs for longer: a small file may stand for very many events.
const EVENTS: usize = 1 << 20;

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if bytes.len() < FILE_HEADER_BYTES {
        return bytes;
    }
    bytes[..8].copy_from_slice(b"DWELLTRC");
    bytes[8..12].copy_from_slice(&[1, 0, 0, 0]);
    let crc = crc32fast::hash(&bytes[..12]);
    put(&mut bytes, 12, crc);
    let mut at = FILE_HEADER_BYTES;
    while at + CHUNK_HEADER_BYTES <= bytes.len() {
        let payload = at + CHUNK_HEADER_BYTES;
        let left = bytes.len() - payload;
        let mut length = [0; 8];
        length.copy_from_slice(&bytes[at + 8..at + 16]);
        // What claims more than there is gets what there is.
        let length = (u64::from_le_bytes(length) as usize).min(left);
        bytes[at..at + 4].copy_from_slice(b"DWCH");
        bytes[at + 8..at + 16].copy_from_slice(&(length as u64).to_le_bytes());
        let crc = crc32fast::hash(&bytes[payload..payload + length]);
        put(&mut bytes, at + 32, crc);
        let crc = crc32fast::hash(&bytes[at..at + 44]);
        put(&mut bytes, at + 44, crc);
        at = payload + length;
    }
    bytes
}

fn read(bytes: Vec<u8>) {
    let Ok(mut trace) = Reader::from(Box::new(Cursor::new(bytes)), "input") else { return };
    let _ = dwell_trace::registers::operands(trace.dictionary());
    let _ = trace.seek(1000);
    trace.rewind();
    for _ in 0..EVENTS {
        match trace.next_event() {
            Ok(Some(Event::Block(run))) => {
                run.instructions().for_each(drop);
                run.accesses().for_each(drop);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    read(with_checksums(data));
    read(data.to_vec());
});
