// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every decoder on the same bytes: what fuzzing calls. Each must come back, whatever the bytes
//! are.

use bytes::Bytes;

use crate::engine::{Engine, Settings, Transport};
use crate::mount::{Exports, GetPort, Mount};
use crate::nfs3::*;
use crate::procedure::Procedure;
use crate::rpc;
use crate::rpc::record::Records;
use crate::xdr::Reader;

fn results<C: Procedure>(call: &C, bytes: &[u8]) -> bool {
    call.read(&mut Reader::new(bytes)).is_ok()
}

/// Reads `bytes` as a reply and as the results of every procedure: how many took them.
pub fn all(bytes: &[u8]) -> usize {
    let file = Handle::new(b"file").unwrap_or_else(|| unreachable!("four bytes fit"));
    let (directory, name, attributes) = (file, &b"name"[..], SetAttributes::default());
    let list = List { directory, cookie: 0, verifier: [0; 8], bytes: 4096 };
    let taken = [
        rpc::read_reply(bytes).is_ok(),
        results(&Null, bytes),
        results(&GetAttributes(file), bytes),
        results(&ChangeAttributes { file, to: attributes }, bytes),
        results(&Lookup { directory, name }, bytes),
        results(&Access { file, wanted: 1 }, bytes),
        results(&ReadLink(file), bytes),
        results(&Read { file, offset: 0, bytes: 64 }, bytes),
        results(&Write { file, offset: 0, bytes: 64, stable: Stable::Unstable }, bytes),
        results(&Create { directory, name, how: CreateHow::Guarded(attributes) }, bytes),
        results(&MakeDirectory { directory, name, attributes }, bytes),
        results(&MakeLink { directory, name, attributes, target: name }, bytes),
        results(&MakeNode { directory, name, kind: Kind::Pipe, attributes, device: (0, 0) }, bytes),
        results(&Link { file, directory, name }, bytes),
        results(&Remove { directory, name }, bytes),
        results(&RemoveDirectory { directory, name }, bytes),
        results(&Rename { from: (directory, name), to: (directory, name) }, bytes),
        results(&list, bytes),
        results(&ListNames(list), bytes),
        results(&Space(file), bytes),
        results(&Limits(file), bytes),
        results(&NameLimits(file), bytes),
        results(&Commit { file, offset: 0, bytes: 0 }, bytes),
        results(&Mount(name), bytes),
        results(&Exports, bytes),
        results(&GetPort { program: 1, version: 1, udp: true }, bytes),
    ];
    taken.iter().filter(|taken| **taken).count()
}

/// Reads `bytes` as a stream of records, in pieces whose lengths the first byte sets: how many
/// records there were.
pub fn stream(bytes: &[u8]) -> usize {
    let Some((first, rest)) = bytes.split_first() else { return 0 };
    let mut records = Records::new(1 << 16);
    let mut found = 0;
    for piece in rest.chunks(usize::from(*first) + 1) {
        let room = records.room();
        room[..piece.len()].copy_from_slice(piece);
        records.filled(piece.len());
        loop {
            match records.take_next() {
                Ok(Some(_)) => found += 1,
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}

/// Gives `bytes` to an engine with requests outstanding, as a stream or as a datagram: how many of
/// them ended.
pub fn engine(bytes: &[u8]) -> usize {
    let Some((first, rest)) = bytes.split_first() else { return 0 };
    let transport = if first & 1 == 0 { Transport::Stream } else { Transport::Datagram };
    let mut engine: Engine<Vec<u8>> = Engine::new(Settings::new(transport));
    let Some(file) = Handle::new(b"file") else { return 0 };
    engine.connected(0);
    for tag in 0..4 {
        engine.submit(0, &Read { file, offset: 0, bytes: 4096 }, None, tag);
    }
    while engine.wants_to_send() {
        let mut slices = Vec::new();
        engine.outgoing(&mut slices);
        let length = slices.iter().map(|slice| slice.len()).sum();
        drop(slices);
        engine.sent(0, length);
    }
    let mut ended = 0;
    let done = &mut |_: crate::engine::Done<Vec<u8>>| ended += 1;
    match transport {
        Transport::Datagram => engine.datagram(1, &Bytes::copy_from_slice(rest), done),
        Transport::Stream => {
            let room = engine.room();
            let length = rest.len().min(room.len());
            room[..length].copy_from_slice(&rest[..length]);
            let _ = engine.received(1, length, done);
        }
    }
    engine.timers(u64::MAX - 1, done);
    ended
}
