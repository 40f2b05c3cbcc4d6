// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of traces, lackey's text, ChampSim's records.

use std::path::Path;

use dwell_trace::{
    About, AccessKind, Error, Event, NewBlock, NewInstruction, Reader, Site, Writer, cut, export,
    import,
};

const TEXT: &str = "\
==12== Lackey, an example Valgrind tool
I  04016b00,3
I  04016b03,5
 S 1ffeffe7e8,8
I  04017a30,4
 L 1ffeffe7e8,8
 M 1ffeffe7f0,4
I  04016b00,3
I  04016b03,5
 S 1ffeffe7e0,8
==12==
";

fn from_lackey(text: &str, out: &Path, limit: u64) -> dwell_trace::Result<dwell_trace::Written> {
    let name = Path::new("lackey.txt");
    import::lackey(&mut text.as_bytes(), name, out, limit, &mut |_| {})
}

fn addresses(trace: &mut Reader) -> Vec<(AccessKind, u64)> {
    let mut all = Vec::new();
    while let Some(event) = trace.next_event().unwrap() {
        if let Event::Block(run) = event {
            all.extend(run.accesses().map(|(site, address)| (site.kind, address)));
        }
    }
    all
}

#[test]
fn lackeys_text_becomes_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.dwt");
    let written = from_lackey(TEXT, &out, u64::MAX).unwrap();
    assert_eq!((written.instructions, written.accesses), (5, 4));
    let mut trace = Reader::open(&out).unwrap();
    assert_eq!(trace.dictionary().instructions().len(), 3, "a block that comes again is the same");
    assert_eq!(
        addresses(&mut trace),
        [
            (AccessKind::Store, 0x1f_feff_e7e8),
            (AccessKind::Load, 0x1f_feff_e7e8),
            (AccessKind::Modify, 0x1f_feff_e7f0),
            (AccessKind::Store, 0x1f_feff_e7e0),
        ]
    );
    assert_eq!(from_lackey(TEXT, &out, 3).unwrap().instructions, 3);
}

#[test]
fn a_line_that_is_not_lackeys_is_named_by_its_byte() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.dwt");
    for line in
        ["I  xyz,3\n", "I  1000\n", " L 1000,99999\n", "Hello\n", " X 1,1\n", "I  1000,77\n"]
    {
        let text = format!("I  04016b00,3\n{line}");
        match from_lackey(&text, &out, u64::MAX) {
            Err(Error::Damaged { offset: 14, .. }) => {}
            other => panic!("{line:?}: {other:?}"),
        }
    }
    assert!(from_lackey(" L 1000,4\n", &out, u64::MAX).is_err());
}

/// `add (%rdi), %rax; jnz` back to itself or `ret`.
fn looping(path: &Path, turns: u64) {
    let instruction = |address, bytes: &[u8]| NewInstruction {
        address,
        length: bytes.len() as u8,
        bytes: bytes.to_vec(),
    };
    let turn = NewBlock {
        instructions: vec![
            instruction(0x1000, &[0x48, 0x03, 0x07]),
            instruction(0x1003, &[0x75, 0xfb]),
        ],
        sites: vec![Site { instruction: 0, size: 8, kind: AccessKind::Load }],
        ways: vec![(2, 1)],
    };
    let end = NewBlock {
        instructions: vec![instruction(0x1005, &[0xc3])],
        sites: vec![Site { instruction: 0, size: 8, kind: AccessKind::Load }],
        ways: vec![(1, 1)],
    };
    let about = About { skipped_instructions: 5, ..About::default() };
    let mut writer = Writer::create(path, &about).unwrap().chunk_items(100);
    let (turn, end) = (writer.define(&turn).unwrap(), writer.define(&end).unwrap());
    for number in 0..turns {
        writer.block(turn, &[0x8000 + 8 * number]).unwrap();
    }
    writer.block(end, &[0x7ff0]).unwrap();
    writer.finish().unwrap();
}

#[test]
fn a_part_has_the_blocks_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, part) = (dir.path().join("whole.dwt"), dir.path().join("part.dwt"));
    looping(&whole, 500);
    let mut trace = Reader::open(&whole).unwrap();
    let all = addresses(&mut trace);
    let written = cut::cut(&mut trace, &part, 301, 400, &mut |_| {}).unwrap();
    assert_eq!(written.instructions, 400);
    let mut cut_out = Reader::open(&part).unwrap();
    assert_eq!(cut_out.about().skipped_instructions, 305);
    assert_eq!(addresses(&mut cut_out), all[150..350]);
    let rest = cut::cut(&mut trace, &part, 999, u64::MAX, &mut |_| {}).unwrap();
    assert_eq!(rest.instructions, 3, "the block that holds it stays whole");
    std::fs::remove_file(&part).unwrap();
    for skip in [1001, 5000] {
        let error = cut::cut(&mut trace, &part, skip, 1, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("whole.dwt: holds 1001 instructions"), "{error}");
        assert!(!part.exists());
    }
}

#[test]
fn records_of_a_thread_that_never_ran_are_an_error_that_names_those_that_did() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.dwt");
    looping(&path, 3);
    let mut trace = Reader::open(&path).unwrap();
    let mut bytes = Vec::new();
    let error = export::champsim(&mut trace, &mut bytes, Some(99), u64::MAX, &mut |_| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("t.dwt: has no instruction of thread 99; its threads are 0"), "{error}");
    assert!(bytes.is_empty());
}

#[test]
fn records_tell_registers_memory_and_branches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.dwt");
    looping(&path, 3);
    let mut trace = Reader::open(&path).unwrap();
    let mut bytes = Vec::new();
    let records = export::champsim(&mut trace, &mut bytes, None, u64::MAX, &mut |_| {}).unwrap();
    assert_eq!((records, bytes.len()), (7, 7 * export::RECORD_BYTES));
    let record = |number: usize| &bytes[number * 64..][..64];
    let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    // add (%rdi), %rax: rax is 10, rdi 3, flags 25.
    let add = record(2);
    assert_eq!((long(&add[..8]), &add[8..10]), (0x1000, &[0, 0][..]));
    assert_eq!((&add[10..12], &add[12..16]), (&[10, 25][..], &[10, 3, 0, 0][..]));
    assert_eq!((long(&add[16..24]), long(&add[32..40])), (0, 0x8008));
    // jnz: writes the instruction pointer (26), reads it and the flags; the last one falls through.
    assert_eq!((&record(1)[8..10], &record(1)[10..16]), (&[1, 1][..], &[26, 0, 26, 25, 0, 0][..]));
    assert_eq!(record(5)[8..10], [1, 0]);
    // ret: reads and writes the stack pointer (6).
    assert_eq!((&record(6)[8..10], &record(6)[10..16]), (&[1, 0][..], &[26, 6, 6, 0, 0, 0][..]));
}
