// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the pager's tests share: data, regions over it, accesses, and processes of one's own.
#![allow(dead_code)]

pub mod alone;
pub mod gate;

use std::path::Path;
use std::sync::Arc;

use dwell::File;
use dwell_pager::{Access, Faults, Options, PAGE_BYTES, Region};

/// The byte that a file of [`pattern`] has at an offset.
pub fn byte_at(offset: usize) -> u8 {
    let word = (offset / 8) as u64;
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7 - offset % 8 % 4]
}

pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(byte_at).collect()
}

/// A file of so many pattern bytes on the disk.
pub fn file(bytes: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir =
        tempfile::Builder::new().prefix("dwell-pager").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let dir = dir.unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, pattern(bytes)).unwrap();
    (dir, path)
}

/// An emulated device over a file.
pub fn emulated(path: &Path, more: &str) -> File {
    dwell::Options::new().open(format!("emu:{more},file={}", path.display())).unwrap()
}

pub fn open(path: &Path, write: bool) -> Arc<File> {
    Arc::new(dwell::Options::new().write(write).open(path).unwrap())
}

/// A region, or `None` after a line that says why this machine has none.
pub fn region(file: impl Into<Arc<File>>, options: &Options) -> Option<Region> {
    match Region::open(file, options) {
        Ok(region) => Some(region),
        Err(error) if error.to_string().contains("userfaultfd") => {
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn pages(count: usize) -> Options {
    Options::new(count * PAGE_BYTES)
}

pub fn shared(count: usize) -> Options {
    pages(count).access(Access::Shared)
}

pub const BOTH: [Faults; 2] = [Faults::Inline, Faults::Thread];

/// One byte of a region, read as a program does.
pub fn read(region: &Region, offset: usize) -> u8 {
    assert!(offset < region.len());
    // SAFETY: within the region, which lives.
    unsafe { region.as_ptr().add(offset).read_volatile() }
}

pub fn write(region: &Region, offset: usize, byte: u8) {
    assert!(offset < region.len());
    // SAFETY: within the region, which lives and may be written to.
    unsafe { region.as_ptr().add(offset).write_volatile(byte) }
}

/// Numbers without a pattern.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}
