// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings of served files: one file through memory, through reads and writes, from several
//! processes.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Served, done};

/// A shared mapping of a whole file.
pub struct Mapped(*mut u8, usize);

impl Mapped {
    pub fn of(file: &File) -> Option<Mapped> {
        let bytes = file.metadata().unwrap().len() as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping, touched only through the methods below and unmapped once.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let error = std::io::Error::last_os_error();
        if start == libc::MAP_FAILED && error.raw_os_error() == Some(libc::ENODEV) {
            println!("SKIP: this kernel maps no direct-I/O files of FUSE shared (6.6 does)");
            return None;
        }
        assert_ne!(start, libc::MAP_FAILED, "{error}");
        Some(Mapped(start.cast(), bytes))
    }

    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.1);
        // SAFETY: within the mapping; bytes that others change are read one by one.
        (at..at + bytes).map(|at| unsafe { self.0.add(at).read_volatile() }).collect()
    }

    pub fn write(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.1);
        for (offset, byte) in data.iter().enumerate() {
            // SAFETY: within the mapping.
            unsafe { self.0.add(at + offset).write_volatile(*byte) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` and nowhere unmapped else.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn memory_reads_and_writes_agree_at_once() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let (file, other) = (open(&path), open(&path));
    let Some(map) = Mapped::of(&file) else { return };
    for round in 0..200_u32 {
        let at = (round as usize * 97) % 19_000;
        let word = round.to_le_bytes();
        map.write(at, &word);
        let mut read = [0; 4];
        other.read_exact_at(&mut read, at as u64).unwrap();
        assert_eq!(read, word, "written in memory, read by call");
        let back = (round ^ 0xffff_ffff).to_le_bytes();
        other.write_all_at(&back, at as u64).unwrap();
        assert_eq!(map.read(at, 4), back, "written by call, read in memory");
    }
}

#[test]
fn another_process_sees_what_is_written_in_memory() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![b'a'; 5000]).unwrap();
    let file = open(&path);
    let Some(map) = Mapped::of(&file) else { return };
    map.write(4000, b"from memory");
    let seen = done(
        Command::new("dd")
            .args(["bs=1", "skip=4000", "count=11", "status=none"])
            .arg(format!("if={}", path.display())),
    );
    assert_eq!(seen, "from memory");
    let mut write = Command::new("dd");
    write
        .args(["bs=1", "seek=100", "conv=notrunc", "status=none"])
        .arg(format!("of={}", path.display()));
    let mut child = write.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"by a call").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(map.read(100, 9), b"by a call");
}

#[test]
fn pages_of_an_appending_descriptor_land_where_they_belong() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![0; 8192]).unwrap();
    let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let Some(map) = Mapped::of(&file) else { return };
    map.write(10, b"here");
    drop(map);
    drop(file);
    let found = fs::read(&path).unwrap();
    assert_eq!((found.len(), &found[10..14]), (8192, &b"here"[..]));
}

#[test]
fn a_shortened_file_shows_no_old_bytes_when_it_grows_again() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    fs::write(&path, vec![7; 8192]).unwrap();
    let file = open(&path);
    let Some(map) = Mapped::of(&file) else { return };
    assert_eq!(map.read(5000, 1), [7]);
    file.set_len(3000).unwrap();
    file.set_len(8192).unwrap();
    assert_eq!(map.read(2999, 3), [7, 0, 0]);
    assert_eq!(map.read(5000, 1), [0]);
}

#[test]
fn programs_run_from_the_mount() {
    let Some(served) = Served::start() else { return };
    let program = served.mount.join("echo");
    fs::copy("/bin/echo", &program).unwrap();
    assert_eq!(done(Command::new(&program).arg("ran")), "ran\n");
}
