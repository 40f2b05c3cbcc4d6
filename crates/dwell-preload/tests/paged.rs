// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program maps is the same, whoever brings it in.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ended, Fast, Under, built, program, skip, untouched};

const BUDGET: u64 = 1 << 20;

/// A file of that many bytes that nobody may write, on a file system of its own.
fn immutable(fast: &Fast, bytes: usize) -> Result<PathBuf, String> {
    let file = fast.path().join("data.pack");
    let data: Vec<u8> = (0..bytes).map(|at| ((at / 7) ^ (at >> 11)) as u8).collect();
    fs::write(&file, data).unwrap();
    let done = Command::new("chattr").arg("+i").arg(&file).output();
    match done.map_err(|error| format!("no chattr: {error}"))? {
        output if output.status.success() => Ok(file),
        output => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A pager that a thread serves must be allowed, and the kernel new enough.
fn can_page() -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let file = dwell::File::open(file.path()).map_err(|error| error.to_string())?;
    let options = dwell_pager::Options::new(1 << 20).faults(dwell_pager::Faults::Thread);
    dwell_pager::Region::open(file, &options).map(drop).map_err(|error| error.to_string())
}

fn scene() -> Result<(Fast, PathBuf), String> {
    can_page()?;
    Ok((Fast::new()?, built("maps.c", &["-Wl,--no-as-needed"])?))
}

fn run(under: &Under, maps: &Path, file: &Path) -> (Ended, Ended) {
    let mut command = Command::new(maps);
    command.arg(file);
    let without = untouched(&mut command);
    assert!(without.status.success(), "{}", without.stderr);
    (under.run(&mut command), without)
}

/// What the program said of its mappings.
fn made_of(ended: &Ended) -> Vec<&str> {
    let said = ended.stderr.lines().filter(|line| !line.starts_with("dwell: "));
    said.collect()
}

#[test]
fn a_program_finds_in_paged_mappings_what_the_kernel_maps() {
    let (fast, maps) = match scene() {
        Ok(scene) => scene,
        Err(why) => return skip(why),
    };
    // The last page is a part of one; four times the pager's memory.
    let file = match immutable(&fast, (4 << 20) + 777) {
        Ok(file) => file,
        Err(why) => return skip(why),
    };
    let (with, without) = run(&Under::policy("adaptive").paging("*.pack", BUDGET), &maps, &file);
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status);
    assert_eq!(
        made_of(&without),
        ["whole: kernel", "still: kernel", "part: kernel", "locked: kernel"]
    );
    assert_eq!(made_of(&with), ["whole: pager", "still: pager", "part: pager", "locked: kernel"]);
}

#[test]
fn a_file_that_its_owner_changes_between_two_mappings_is_mapped_as_it_is_then() {
    let (fast, maps) = match (scene(), program("maps_changed.c")) {
        (Ok((fast, _)), Ok(maps)) => (fast, maps),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = match immutable(&fast, 1 << 20) {
        Ok(file) => file,
        Err(why) => return skip(why),
    };
    let (with, without) = run(&Under::policy("adaptive").paging("*.pack", BUDGET), &maps, &file);
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status);
    let made = ["first: pager", "longer: pager", "shorter: pager", "while mapped: kernel"];
    assert_eq!(made_of(&with), made);
}

#[test]
fn a_file_that_somebody_may_write_or_that_is_not_meant_is_the_kernels() {
    let (fast, maps) = match scene() {
        Ok(scene) => scene,
        Err(why) => return skip(why),
    };
    let file = match immutable(&fast, 1 << 20) {
        Ok(file) => file,
        Err(why) => return skip(why),
    };
    let writable = fast.path().join("writable.pack");
    fs::copy(&file, &writable).unwrap();
    let paging = |files: &str| Under::policy("adaptive").paging(files, BUDGET);
    for (file, under) in [
        (&writable, paging("*.pack")),
        (&file, paging("*.idx")),
        (&file, paging("*.pack").in_shadow()),
        (&file, Under::policy("adaptive")),
    ] {
        let (with, without) = run(&under, &maps, file);
        assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
        assert_eq!(made_of(&with), made_of(&without), "{}", file.display());
    }
}

#[test]
fn a_program_that_forbids_itself_calls_keeps_its_mappings() {
    let (fast, filters) = match (scene(), program("maps_filtered.c")) {
        (Ok((fast, _)), Ok(filters)) => (fast, filters),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = match immutable(&fast, 2 << 20) {
        Ok(file) => file,
        Err(why) => return skip(why),
    };
    let (with, without) = run(&Under::policy("adaptive").paging("*.pack", BUDGET), &filters, &file);
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status);
}
