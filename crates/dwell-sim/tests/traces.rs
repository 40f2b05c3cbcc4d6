// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded traces run as programs: their instructions, their accesses, their damage.

use std::path::Path;

use dwell_sim::trace::{Extent, Recorded};
use dwell_sim::{Params, Source, Tape, survey};
use dwell_trace::{About, AccessKind, NewBlock, NewInstruction, Site, Writer};

fn instruction(address: u64, bytes: &[u8]) -> NewInstruction {
    NewInstruction { address, length: bytes.len() as u8, bytes: bytes.to_vec() }
}

/// mov rax, [rbx]; add [rdi], rdx; a byte that is no instruction.
fn block() -> NewBlock {
    NewBlock {
        instructions: vec![
            instruction(0x1000, &[0x48, 0x8b, 0x03]),
            instruction(0x1003, &[0x48, 0x01, 0x17]),
            instruction(0x1006, &[0x06]),
        ],
        sites: vec![
            Site { instruction: 0, size: 8, kind: AccessKind::Load },
            Site { instruction: 1, size: 8, kind: AccessKind::Modify },
        ],
        ways: vec![(3, 2)],
    }
}

fn record(path: &Path, runs: &[[u64; 2]]) {
    let mut writer = Writer::create(path, &About::default()).unwrap();
    let id = writer.define(&block()).unwrap();
    runs.iter().for_each(|run| writer.block(id, run).unwrap());
    writer.finish().unwrap();
}

fn play(source: &dyn Source) -> (Vec<(u32, u32)>, usize) {
    let (mut program, mut tape) = (source.open().unwrap(), Tape::default());
    loop {
        let before = tape.len();
        program.fill(&mut tape).unwrap();
        if tape.len() == before {
            break;
        }
    }
    let steps = tape.steps().iter().map(|step| (step.instr(), step.accesses()));
    (steps.collect(), tape.accesses().len())
}

#[test]
fn a_change_in_place_is_a_load_and_a_store_and_a_failed_condition_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.dwt");
    record(&path, &[[0x5000, 0x6000], [0, 0x6008]]);
    let trace = Recorded::open("a", &path, Extent::WHOLE).unwrap();
    assert_eq!((trace.instructions(), trace.unknown()), (6, 1));
    let (steps, accesses) = play(&trace);
    assert_eq!(steps, [(0, 1), (1, 2), (2, 0), (0, 0), (1, 2), (2, 0)]);
    assert_eq!(accesses, 5);
    let survey = survey(&trace, &Params::default(), &mut |_| true).unwrap().unwrap();
    assert_eq!(survey.pages, [5, 6]);
}

#[test]
fn a_page_that_the_left_out_part_has_touched_is_on_the_device_however_it_is_used_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.dwt");
    let about = About { populated: vec![(2, 2), (9, 1)], ..About::default() };
    let mut writer = Writer::create(&path, &about).unwrap();
    let store = NewBlock {
        instructions: vec![instruction(0x1000, &[0x48, 0x89, 0x03])],
        sites: vec![Site { instruction: 0, size: 8, kind: AccessKind::Store }],
        ways: vec![(1, 1)],
    };
    let id = writer.define(&store).unwrap();
    (1..=4).for_each(|page| writer.block(id, &[page << 12]).unwrap());
    writer.finish().unwrap();
    let trace = Recorded::open("a", &path, Extent::WHOLE).unwrap();
    let survey = survey(&trace, &Params::default(), &mut |_| true).unwrap().unwrap();
    assert_eq!(survey.stored_first, [1, 4]);
    assert_eq!(survey.on_device(&Params::default()), [2, 3]);
}

#[test]
fn a_trace_ends_at_its_limit_with_the_block_that_reaches_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.dwt");
    record(&path, &[[0x5000, 0x6000]; 10]);
    assert_eq!(
        play(&Recorded::open("a", &path, Extent { limit: 4, ..Extent::WHOLE }).unwrap()).0.len(),
        6
    );
    assert_eq!(play(&Recorded::open("a", &path, Extent::WHOLE).unwrap()).0.len(), 30);
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    std::fs::write(&path, "not a trace").unwrap();
    let error = Recorded::open("a", &path, Extent::WHOLE).err().unwrap().to_string();
    assert!(error.contains("text"), "{error}");
    assert!(Recorded::open("a", &dir.path().join("none"), Extent::WHOLE).is_err());
}

#[test]
fn a_trace_that_ends_early_is_refused_unless_that_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.dwt");
    record(&path, &[[0x5000, 0x6000]; 10]);
    let bytes = std::fs::read(&path).unwrap();
    // Without its trailer all of it is there, and nobody knows.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = Recorded::open("a", &path, Extent::WHOLE).err().unwrap().to_string();
    assert!(error.contains("a.dwt: ends early") && error.contains("--partial"), "{error}");
    let partial = Extent { partial: true, ..Extent::WHOLE };
    assert_eq!(Recorded::open("a", &path, partial).unwrap().instructions(), 30);
    // So many are whole.
    let some = Extent { limit: 30, ..Extent::WHOLE };
    assert_eq!(Recorded::open("a", &path, some).unwrap().instructions(), 30);
}
