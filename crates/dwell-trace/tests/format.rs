// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any events come back as written; any damage is an error that names a place, never a panic.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use dwell_trace::{
    About, AccessKind, Error, Event, NewBlock, NewInstruction, Reader, Site, Writer,
};
use proptest::prelude::*;

/// What a writer writes and a test looks at.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Which block, and where its accesses go.
    Block(usize, Vec<u64>),
    Thread(u32),
    Syscall(u64),
}

fn blocks() -> Vec<NewBlock> {
    let instruction = |address, bytes: &[u8]| NewInstruction {
        address,
        length: bytes.len().max(1) as u8,
        bytes: bytes.to_vec(),
    };
    let site = |instruction, size, kind| Site { instruction, size, kind };
    vec![
        NewBlock {
            instructions: vec![instruction(0x40_1000, &[0x90])],
            sites: vec![],
            ways: vec![(1, 0)],
        },
        NewBlock {
            instructions: vec![instruction(0x40_1001, &[0x8b, 0x03]), instruction(0x40_1003, &[])],
            sites: vec![
                site(0, 4, AccessKind::Load),
                site(1, 8, AccessKind::Store),
                site(1, 512, AccessKind::Modify),
            ],
            ways: vec![(2, 3), (1, 1), (2, 1)],
        },
        NewBlock {
            instructions: vec![instruction(u64::MAX - 3, &[0xc3])],
            sites: (0..19).map(|_| site(0, 1, AccessKind::Load)).collect(),
            ways: vec![(1, 19)],
        },
    ]
}

/// Ids of all ways, with the accesses of each.
fn define(writer: &mut Writer) -> Vec<(u32, usize)> {
    let mut ways = Vec::new();
    for block in blocks() {
        let first = writer.define(&block).unwrap();
        assert_eq!(writer.define(&block).unwrap(), first, "defined once");
        ways.extend(block.ways.iter().zip(first..).map(|(way, id)| (id, usize::from(way.1))));
    }
    ways
}

fn write(steps: &[Step], chunk_items: u64) -> Vec<u8> {
    let shared = Shared::default();
    let about = About { architecture: "x86_64".into(), pid: 7, ..About::default() };
    let mut writer =
        Writer::to(Box::new(shared.clone()), "memory", &about).unwrap().chunk_items(chunk_items);
    let ways = define(&mut writer);
    for step in steps {
        match step {
            Step::Block(way, addresses) => writer.block(ways[*way].0, addresses).unwrap(),
            Step::Thread(thread) => writer.thread(*thread),
            Step::Syscall(number) => writer.syscall(*number),
        }
    }
    let written = writer.finish().unwrap();
    let bytes = shared.0.lock().unwrap().clone();
    assert_eq!(written.bytes, bytes.len() as u64);
    bytes
}

fn reader(bytes: &[u8]) -> dwell_trace::Result<Reader> {
    Reader::from(Box::new(Cursor::new(bytes.to_vec())), "memory")
}

fn rest(reader: &mut Reader) -> dwell_trace::Result<Vec<Step>> {
    let mut steps = Vec::new();
    while let Some(event) = reader.next_event()? {
        steps.push(match event {
            Event::Block(run) => Step::Block(run.id as usize - 1, run.addresses.to_vec()),
            Event::Thread(thread) => Step::Thread(thread),
            Event::Syscall(number) => Step::Syscall(number),
        });
    }
    Ok(steps)
}

/// As a single chunk tells them: its header names the thread that runs at the first event, so
/// switches before that leave no trace of their own, and a switch to the running thread never does.
fn normal(steps: &[Step]) -> Vec<Step> {
    let switch = |step: &Step| matches!(step, Step::Thread(_));
    let Some(first_event) = steps.iter().position(|step| !switch(step)) else { return vec![] };
    let mut thread = 0;
    let turns = |step: &&Step| match step {
        Step::Thread(next) => std::mem::replace(&mut thread, *next) != *next,
        _ => true,
    };
    steps[first_event.saturating_sub(1)..].iter().filter(turns).cloned().collect()
}

fn blocks_with_threads(steps: &[Step]) -> Vec<(u32, Step)> {
    let mut thread = 0;
    let mut told = Vec::new();
    for step in steps {
        match step {
            Step::Thread(next) => thread = *next,
            other => told.push((thread, other.clone())),
        }
    }
    told
}

const SITES: [usize; 5] = [0, 3, 1, 1, 19];

fn addresses(count: usize) -> impl Strategy<Value = Vec<u64>> {
    let address = prop_oneof![
        3 => 0x1000u64..0x1100,
        2 => any::<u64>(),
        1 => Just(0),
        1 => Just(u64::MAX),
    ];
    prop::collection::vec(address, count)
}

fn step() -> impl Strategy<Value = Step> {
    let block = (0usize..5).prop_flat_map(|way| (Just(way), addresses(SITES[way])));
    prop_oneof![
        8 => block.prop_map(|(way, addresses)| Step::Block(way, addresses)),
        1 => (0u32..4).prop_map(Step::Thread),
        1 => any::<u64>().prop_map(Step::Syscall),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_events_come_back(steps in prop::collection::vec(step(), 0..200), items in 1u64..300) {
        let bytes = write(&steps, items);
        let mut reader = reader(&bytes).unwrap();
        prop_assert_eq!(reader.cut_short_at(), None);
        let read = rest(&mut reader).unwrap();
        prop_assert_eq!(blocks_with_threads(&read), blocks_with_threads(&steps));
        let in_one_chunk = rest(&mut self::reader(&write(&steps, 1 << 20)).unwrap()).unwrap();
        prop_assert_eq!(in_one_chunk, normal(&steps));
        let instructions: u64 = read.iter().map(|step| match step {
            Step::Block(way, _) => [1, 2, 1, 2, 1][*way],
            _ => 0,
        }).sum();
        prop_assert_eq!(reader.instructions(), instructions);
        prop_assert_eq!(reader.instruction(), instructions);
    }

    #[test]
    fn seeking_finds_the_block_of_an_instruction(
        steps in prop::collection::vec(step(), 0..100),
        items in 1u64..60,
        to in 0u64..150,
    ) {
        let bytes = write(&steps, items);
        let mut reader = reader(&bytes).unwrap();
        let at = reader.seek(to).unwrap();
        prop_assert!(at <= to || at == reader.instructions());
        let mut before = 0;
        let all: Vec<_> = blocks_with_threads(&steps);
        let mut expected = Vec::new();
        for (_, step) in all {
            if let Step::Block(way, _) = &step {
                if before >= at {
                    expected.push(step.clone());
                }
                before += [1, 2, 1, 2, 1][*way];
            }
        }
        prop_assert!(to >= before || at + 2 > to);
        let read: Vec<_> = rest(&mut reader).unwrap();
        let read: Vec<_> = read.into_iter().filter(|s| matches!(s, Step::Block(..))).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn every_flipped_byte_is_an_error_with_its_place(
        steps in prop::collection::vec(step(), 1..60),
        place in any::<prop::sample::Index>(),
        flip in 1u8..=255,
    ) {
        let mut bytes = write(&steps, 40);
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        let read = reader(&bytes).and_then(|mut reader| {
            let cut = reader.cut_short_at();
            rest(&mut reader).map(|steps| (steps, cut))
        });
        match read {
            Err(Error::Damaged { offset, what, .. }) => {
                // Of trailer and index either may be what is wrong.
                let trailer = bytes.len() as u64 - 16;
                let here = offset <= at as u64 || offset == trailer;
                prop_assert!(here, "{what}: {offset}, not {at}");
            }
            Err(Error::Foreign { .. }) => prop_assert!(at < 8),
            Err(other) => prop_assert!(false, "{other}"),
            // What says where the index is can be lost without loss of an event.
            Ok((read, cut)) => {
                prop_assert!(cut.is_some() && at >= bytes.len() - 8);
                prop_assert_eq!(blocks_with_threads(&read), blocks_with_threads(&steps));
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_gives_what_is_whole(
        steps in prop::collection::vec(step(), 1..100),
        place in any::<prop::sample::Index>(),
    ) {
        let bytes = write(&steps, 20);
        let length = place.index(bytes.len());
        match reader(&bytes[..length]) {
            Err(Error::Damaged { .. } | Error::Foreign { .. }) => prop_assert!(length < 16),
            Err(other) => prop_assert!(false, "{other}"),
            Ok(mut reader) => {
                prop_assert!(reader.cut_short_at().is_some_and(|at| at <= length as u64));
                let read = blocks_with_threads(&rest(&mut reader).unwrap());
                prop_assert!(blocks_with_threads(&steps).starts_with(&read));
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(reader(&bytes).is_err());
    }

    /// Damage behind a checksum that fits, as somebody could make who means harm.
    #[test]
    fn damage_with_valid_checksums_is_an_error_or_other_events(
        steps in prop::collection::vec(step(), 1..60),
        chunk in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = write(&steps, 40);
        // Chunks and not the index, so that the reader goes through them.
        let index = u64::from_le_bytes(bytes[bytes.len() - 16..][..8].try_into().unwrap());
        bytes.truncate(index as usize);
        let mut starts = Vec::new();
        let mut at = 16;
        while at < bytes.len() {
            starts.push(at);
            at += 48 + u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
        }
        let at = starts[chunk.index(starts.len())];
        let length = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
        for (place, value) in changes {
            bytes[at + 48 + place.index(length)] = value;
        }
        let crc = crc32fast::hash(&bytes[at + 48..at + 48 + length]);
        bytes[at + 32..at + 36].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[at..at + 44]);
        bytes[at + 44..at + 48].copy_from_slice(&crc.to_le_bytes());
        let _ = reader(&bytes).and_then(|mut reader| rest(&mut reader));
    }
}

#[test]
fn foreign_files_are_refused_by_name() {
    for (bytes, says) in [
        (&b""[..], "empty"),
        (&b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0"[..], "not a Dwell trace"),
        (&b"DWELL"[..], "ends within its header"),
    ] {
        let told = reader(bytes).err().unwrap().to_string();
        assert!(told.starts_with("memory: ") && told.contains(says), "{told}");
    }
    let mut later = write(&[], 1);
    later[8] = 2;
    let crc = crc32fast::hash(&later[..12]);
    later[12..16].copy_from_slice(&crc.to_le_bytes());
    let told = reader(&later).err().unwrap().to_string();
    assert!(told.contains("version 2") && told.contains("reads version 1"), "{told}");
}

#[test]
fn a_record_that_does_not_fit_a_block_is_refused() {
    let shared = Shared::default();
    let mut writer = Writer::to(Box::new(shared), "memory", &About::default()).unwrap();
    let ways = define(&mut writer);
    assert!(writer.block(ways[1].0, &[1, 2]).is_err());
    assert!(writer.block(0, &[]).is_err() && writer.block(99, &[]).is_err());
    let mut block = blocks().remove(1);
    block.ways = vec![(1, 3)];
    assert!(writer.define(&block).unwrap_err().to_string().contains("way"));
    block.sites.reverse();
    assert!(writer.define(&block).is_err());
}

/// The bytes of version 1, so that a later program still reads what an earlier one wrote.
#[test]
fn the_golden_file_stays_as_it_is() {
    let steps: Vec<Step> = (0..40u64)
        .flat_map(|i| {
            let mut steps = vec![
                Step::Block(1, vec![0x7f00 + 4 * i, 0xa000 - 8 * i, i * i * 4096]),
                Step::Block(0, vec![]),
            ];
            if i % 10 == 3 {
                steps.extend([Step::Syscall(i), Step::Thread(i as u32), Step::Block(3, vec![0])]);
            }
            steps
        })
        .collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden-v1.dwt");
    if std::env::var_os("DWELL_WRITE_GOLDEN").is_some() {
        std::fs::write(path, write(&steps, 64)).unwrap();
    }
    let mut golden = Reader::open(path).unwrap();
    assert_eq!(golden.about().pid, 7);
    assert_eq!(golden.dictionary().blocks().len(), 6);
    assert_eq!(rest(&mut golden).unwrap(), steps);
}
