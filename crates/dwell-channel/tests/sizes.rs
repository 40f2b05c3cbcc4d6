// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everybody who goes by the length of a file finds the right one, however the file was made
//! longer. It grows past the mount's own descriptors, by a client of a channel and by the kernel,
//! passed through and by direct I/O.

mod common;

use std::fs::{self, File as Plain};
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use common::disk::Disk;
use common::scene::{Scene, scene_by, scene_in};
use dwell::File;
use dwell::buffer::Aligned;
use dwell_channel::daemon::{Daemon, Options};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom as Place, StatxFlags};
use rustix::io::ReadWriteFlags;
use rustix::pipe::SpliceFlags;

/// Bytes of the file before it is made longer, and after.
const BEFORE: usize = 100;
const AFTER: usize = 10_000;

/// A file that has just been made longer, and that somebody has had open since before.
struct Stage {
    scene: Scene,
    story: String,
    channel: File,
    /// Somebody else, by the kernel.
    writer: Plain,
    model: Vec<u8>,
}

impl Stage {
    fn path(&self) -> PathBuf {
        self.scene.path("data")
    }

    /// Checks that the length and the bytes are the model's, for everybody.
    fn holds(&self) {
        let story = &self.story;
        assert_eq!(fs::metadata(self.path()).unwrap().len(), self.model.len() as u64, "{story}");
        assert!(fs::read(self.path()).unwrap() == self.model, "{story}");
        assert!(fs::read(self.scene.backing.path().join("data")).unwrap() == self.model, "{story}");
        let mut seen = vec![0; self.model.len() + 10];
        assert_eq!(self.channel.read_at(&mut seen, 0).unwrap(), self.model.len(), "{story}");
        assert!(seen[..self.model.len()] == self.model, "{story}: by channel");
    }
}

/// Makes a file, lets `open` open it while it is short, makes it longer, and hands it to `look`: in
/// memory and on a disk, passed through and not, longer by a client of a channel and by the kernel.
fn every<T>(open: impl Fn(&Stage) -> T, look: impl Fn(&mut Stage, T)) {
    let disk = Disk::make();
    for (on_disk, passthrough, by_client) in
        (0..8).map(|bits| (bits & 1 == 1, bits & 2 == 2, bits & 4 == 4))
    {
        let scene = match (&disk, on_disk) {
            (Some(disk), true) => {
                let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
                scene_in(&disk.at(), daemon, passthrough)
            }
            _ => scene_by((!on_disk, passthrough)),
        };
        let Some(scene) = scene else { return };
        let story = format!("disk {on_disk}, {:?}, {by_client}", scene.facts().data_path);
        let path = scene.path("data");
        fs::write(&path, [1; BEFORE]).unwrap();
        let channel = scene.open("data");
        let writer = read_write(0, &path);
        let mut stage = Stage { scene, story, channel, writer, model: vec![1; BEFORE] };
        stage.channel.write_all_at(&[2; 10], 5).unwrap();
        stage.model[5..15].fill(2);
        assert_eq!(stage.writer.metadata().unwrap().len(), BEFORE as u64);
        let opened = open(&stage);
        let more: Vec<u8> = (BEFORE..AFTER).map(common::byte_at).collect();
        match by_client {
            true => stage.channel.write_all_at(&more, BEFORE as u64).unwrap(),
            false => stage.writer.write_all_at(&more, BEFORE as u64).unwrap(),
        }
        stage.model.extend(&more);
        // And the channel has it as well.
        stage.channel.write_all_at(&[3; 50], 9000).unwrap();
        stage.model[9000..9050].fill(3);
        look(&mut stage, opened);
        stage.holds();
    }
}

fn read_write(flags: i32, path: &std::path::Path) -> Plain {
    Plain::options().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

fn plain(stage: &Stage) -> Plain {
    read_write(0, &stage.path())
}

fn direct(stage: &Stage) -> Plain {
    read_write(libc::O_DIRECT, &stage.path())
}

#[test]
fn reads_of_all_kinds_end_where_the_file_does() {
    every(plain, |stage, mut file| {
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert!(read == stage.model, "{}: read", stage.story);
        let mut seen = vec![0; AFTER + 10];
        assert_eq!(file.read_at(&mut seen, 0).unwrap(), AFTER, "{}: pread", stage.story);
        let pieces = &mut [IoSliceMut::new(&mut seen)];
        let done = rustix::io::preadv2(&file, pieces, 50, ReadWriteFlags::empty());
        assert_eq!(done.unwrap(), AFTER - 50, "{}: preadv2", stage.story);
        assert!(seen[..AFTER - 50] == stage.model[50..], "{}: preadv2", stage.story);
    });
}

#[test]
fn a_write_that_appends_by_itself_never_overwrites() {
    every(plain, |stage, file| {
        for round in 0..3 {
            let data = [7 + round; 30];
            let pieces = &[IoSlice::new(&data)];
            let done = rustix::io::pwritev2(&file, pieces, 0, ReadWriteFlags::APPEND);
            assert_eq!(done.unwrap(), 30, "{}", stage.story);
            stage.model.extend([7 + round; 30]);
            stage.holds();
            // Longer again by somebody else, in between.
            let end = stage.model.len() as u64;
            match round {
                0 => stage.channel.write_all_at(&[5; 20], end).unwrap(),
                _ => stage.writer.write_all_at(&[5; 20], end).unwrap(),
            }
            stage.model.extend([5; 20]);
        }
    });
}

#[test]
fn a_descriptor_that_appends_stands_where_the_file_ends() {
    let open = |stage: &Stage| Plain::options().append(true).open(stage.path()).unwrap();
    every(open, |stage, mut file| {
        for round in 0..3 {
            file.write_all(&[7 + round; 30]).unwrap();
            stage.model.extend([7 + round; 30]);
            assert_eq!(file.stream_position().unwrap(), stage.model.len() as u64);
            let end = stage.model.len() as u64;
            stage.channel.write_all_at(&[5; 20], end).unwrap();
            stage.model.extend([5; 20]);
            stage.writer.write_all_at(&[6; 20], end + 20).unwrap();
            stage.model.extend([6; 20]);
        }
    });
}

#[test]
fn many_who_append_at_once_lose_nothing() {
    const EACH: usize = 200;
    every(plain, |stage, file| {
        let start = stage.model.len();
        std::thread::scope(|scope| {
            let (file, path, channel) = (&file, stage.path(), &stage.channel);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let pieces = &[IoSlice::new(&[101; 10])];
                    rustix::io::pwritev2(file, pieces, 0, ReadWriteFlags::APPEND).unwrap();
                }
            });
            scope.spawn(move || {
                let mut appends = Plain::options().append(true).open(path).unwrap();
                (0..EACH).for_each(|_| appends.write_all(&[102; 10]).unwrap());
            });
            // Nothing of this goes past the end.
            (0..EACH).for_each(|_| channel.write_all_at(&[4; 100], 200).unwrap());
        });
        stage.model[200..300].fill(4);
        let read = fs::read(stage.path()).unwrap();
        assert_eq!(read.len(), start + 2 * EACH * 10, "{}", stage.story);
        let count = |byte| {
            let pieces = read[start..].chunks(10);
            pieces.filter(|piece| piece.iter().all(|one| *one == byte)).count()
        };
        assert_eq!((count(101), count(102)), (EACH, EACH), "{}", stage.story);
        stage.model = read;
    });
}

/// The kernel's own asynchronous I/O.
mod aio {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    #[repr(C)]
    #[derive(Default)]
    struct Request {
        data: u64,
        key: u32,
        flags: u32,
        opcode: u16,
        priority: i16,
        descriptor: u32,
        buffer: u64,
        bytes: u64,
        offset: i64,
        reserved: [u64; 2],
    }

    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;

    /// One request, to its end: bytes, or a negative error number.
    pub fn one(file: &File, opcode: u16, buffer: *mut u8, bytes: usize, offset: u64) -> i64 {
        let mut context = 0u64;
        let (descriptor, offset) = (file.as_raw_fd() as u32, offset as i64);
        let (buffer, bytes) = (buffer as u64, bytes as u64);
        let request = Request { opcode, descriptor, buffer, bytes, offset, ..Request::default() };
        let mut event = [0i64; 4];
        // SAFETY: live structures of the kernel's form; the buffer is the caller's until the
        // request is over, which is waited for.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut context), 0);
            let list = [&raw const request];
            let sent = libc::syscall(libc::SYS_io_submit, context, 1, list.as_ptr());
            let error = io::Error::last_os_error();
            if sent == 1 {
                let none = std::ptr::null::<u8>();
                let got =
                    libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), none);
                assert_eq!(got, 1);
            } else {
                event[2] = -i64::from(error.raw_os_error().unwrap());
            }
            libc::syscall(libc::SYS_io_destroy, context);
        }
        event[2]
    }
}

/// One request on a ring, to its end.
fn on_ring(entry: io_uring::squeue::Entry) -> i64 {
    let mut ring = io_uring::IoUring::new(2).unwrap();
    // SAFETY: the caller's buffer stays until the request is over, which is waited for.
    unsafe { ring.submission().push(&entry).unwrap() };
    ring.submit_and_wait(1).unwrap();
    i64::from(ring.completion().next().unwrap().result())
}

/// How a request is made that does not block.
type Make = fn(&Plain, bool, *mut u8, usize, u64) -> i64;

fn by_aio(file: &Plain, write: bool, buffer: *mut u8, bytes: usize, offset: u64) -> i64 {
    aio::one(file, if write { aio::WRITE } else { aio::READ }, buffer, bytes, offset)
}

fn by_ring(file: &Plain, write: bool, buffer: *mut u8, bytes: usize, offset: u64) -> i64 {
    use io_uring::opcode::{Read, Write};
    let fd = io_uring::types::Fd(file.as_raw_fd());
    on_ring(match write {
        true => Write::new(fd, buffer, bytes as u32).offset(offset).build(),
        false => Read::new(fd, buffer, bytes as u32).offset(offset).build(),
    })
}

/// Whether this system has such requests at all.
fn there_are_rings() -> bool {
    let there = io_uring::IoUring::new(2).is_ok();
    if !there {
        println!("SKIP: no io_uring here");
    }
    there
}

fn asynchronous_direct_requests(make: Make) {
    every(direct, |stage, file| {
        let mut buffer = Aligned::new(16_384);
        let got = make(&file, false, buffer.as_mut_ptr(), 16_384, 0);
        assert_eq!(got, AFTER as i64, "{}: to the end", stage.story);
        assert!(buffer[..AFTER] == stage.model, "{}", stage.story);
        let got = make(&file, false, buffer.as_mut_ptr(), 4096, 8192);
        assert_eq!(got, AFTER as i64 - 8192, "{}: the last block", stage.story);
        buffer.fill(8);
        let done = make(&file, true, buffer.as_mut_ptr(), 4096, 12_288);
        assert_eq!(done, 4096, "{}: past the end", stage.story);
        stage.model.resize(12_288, 0);
        stage.model.extend([8; 4096]);
        stage.holds();
        let done = make(&file, true, buffer.as_mut_ptr(), 4096, 4096);
        assert_eq!(done, 4096, "{}: in the middle", stage.story);
        stage.model[4096..8192].fill(8);
    });
}

/// The kernel cuts a file back to its own length of it when such a write fails.
fn a_failed_asynchronous_write(make: Make) {
    every(direct, |stage, file| {
        // Memory that nobody may read.
        // SAFETY: a fresh mapping of this test's own, unmapped below.
        let nowhere = unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, kind, -1, 0)
        };
        for at in [0, 4096, 8192, 12_288, 1 << 20] {
            let failed = make(&file, true, nowhere.cast(), 4096, at);
            assert_eq!(failed, -i64::from(libc::EFAULT), "{}: at {at}", stage.story);
            // tmpfs makes a file longer for a write that then finds nothing.
            let beneath = fs::metadata(stage.scene.backing.path().join("data")).unwrap().len();
            let quirk = stage.story.starts_with("disk false, Passthrough") && beneath == at;
            if quirk && at > stage.model.len() as u64 {
                stage.model.resize(at as usize, 0);
            }
            stage.holds();
            // The channel and the kernel's own length agree on what comes after, too.
            let end = stage.model.len() as u64;
            stage.channel.write_all_at(&[9; 10], end).unwrap();
            stage.model.extend([9; 10]);
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(nowhere, 4096) };
    });
}

#[test]
fn direct_requests_by_libaio_see_all_of_a_file() {
    asynchronous_direct_requests(by_aio);
}

#[test]
fn direct_requests_by_io_uring_see_all_of_a_file() {
    if there_are_rings() {
        asynchronous_direct_requests(by_ring);
    }
}

#[test]
fn a_failed_direct_write_by_libaio_truncates_nothing() {
    a_failed_asynchronous_write(by_aio);
}

#[test]
fn a_failed_direct_write_by_io_uring_truncates_nothing() {
    if there_are_rings() {
        a_failed_asynchronous_write(by_ring);
    }
}

#[test]
fn sendfile_and_splice_do_not_stop_early() {
    every(plain, |stage, file| {
        let out = tempfile::tempfile().unwrap();
        let mut offset = 0;
        while rustix::fs::sendfile(&out, &file, Some(&mut offset), 1 << 20).unwrap() > 0 {}
        let mut seen = vec![0; AFTER + 1];
        assert_eq!(out.read_at(&mut seen, 0).unwrap(), AFTER, "{}: sendfile", stage.story);
        assert!(seen[..AFTER] == stage.model, "{}: sendfile", stage.story);
        let (mut from, to) = std::io::pipe().unwrap();
        let (mut offset, mut spliced) = (0, 0);
        loop {
            let flags = SpliceFlags::empty();
            let more = rustix::pipe::splice(&file, Some(&mut offset), &to, None, 1 << 16, flags);
            match more.unwrap() {
                0 => break,
                more => spliced += more,
            }
        }
        assert_eq!(spliced, AFTER, "{}: splice", stage.story);
        drop(to);
        let mut seen = Vec::new();
        from.read_to_end(&mut seen).unwrap();
        assert!(seen == stage.model, "{}: splice", stage.story);
    });
}

#[test]
fn splice_into_a_file_makes_it_as_long_as_it_should() {
    every(plain, |stage, file| {
        let (from, mut to) = std::io::pipe().unwrap();
        to.write_all(&[6; 500]).unwrap();
        let mut offset = AFTER as u64 - 100;
        let flags = SpliceFlags::empty();
        let done = rustix::pipe::splice(&from, None, &file, Some(&mut offset), 500, flags);
        assert_eq!(done.unwrap(), 500, "{}", stage.story);
        stage.model.truncate(AFTER - 100);
        stage.model.extend([6; 500]);
    });
}

#[test]
fn copy_file_range_copies_all() {
    every(plain, |stage, file| {
        let copy = stage.scene.path("copy");
        let to = Plain::create(&copy).unwrap();
        let done = rustix::fs::copy_file_range(&file, Some(&mut 0), &to, None, 1 << 30);
        assert_eq!(done.unwrap(), AFTER, "{}", stage.story);
        assert!(fs::read(&copy).unwrap() == stage.model, "{}", stage.story);
        // And into the file, past its end.
        let mut at = AFTER as u64;
        let done = rustix::fs::copy_file_range(&to, Some(&mut 0), &file, Some(&mut at), 1000);
        // It was opened for writing alone.
        assert_eq!(done.unwrap_err(), rustix::io::Errno::BADF);
        let from = Plain::open(&copy).unwrap();
        let done = rustix::fs::copy_file_range(&from, Some(&mut 0), &file, Some(&mut at), 1000);
        assert_eq!(done.unwrap(), 1000, "{}", stage.story);
        let more = stage.model[..1000].to_vec();
        stage.model.extend(more);
    });
}

#[test]
fn lseek_finds_ends_data_and_holes() {
    every(plain, |stage, mut file| {
        let (end, story) = (AFTER as u64, &stage.story);
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), end, "{story}");
        assert_eq!(rustix::fs::seek(&file, Place::Data(end - 1)), Ok(end - 1), "{story}");
        assert_eq!(rustix::fs::seek(&file, Place::Hole(end - 1)), Ok(end), "{story}");
        assert_eq!(rustix::fs::seek(&file, Place::Data(end)), Err(rustix::io::Errno::NXIO));
        assert_eq!(rustix::fs::seek(&file, Place::Hole(end)), Err(rustix::io::Errno::NXIO));
    });
}

#[test]
fn fstat_and_statx_tell_the_length() {
    every(plain, |stage, file| {
        let end = AFTER as u64;
        assert_eq!(file.metadata().unwrap().len(), end, "{}", stage.story);
        for flags in [AtFlags::empty(), AtFlags::STATX_FORCE_SYNC, AtFlags::STATX_DONT_SYNC] {
            let flags = flags | AtFlags::EMPTY_PATH;
            let told = rustix::fs::statx(&file, "", flags, StatxFlags::SIZE).unwrap();
            assert_eq!(told.stx_size, end, "{}: {flags:?}", stage.story);
        }
        assert_eq!(rustix::fs::stat(stage.path()).unwrap().st_size as u64, end);
    });
}

#[test]
fn a_mapping_reaches_to_the_end_and_agrees_with_channels() {
    every(plain, |stage, file| {
        let Stage { channel, model, story, .. } = stage;
        let mapped = common::mapped(&file, AFTER, |memory| {
            assert!(*memory == model[..], "{story}");
            memory[9999] = 77;
            model[9999] = 77;
            let mut seen = [0; 1];
            channel.read_exact_at(&mut seen, 9999).unwrap();
            assert_eq!(seen, [77], "{story}: by channel");
            channel.write_all_at(&[78; 3], 50).unwrap();
            model[50..53].fill(78);
            assert_eq!(memory[50..53], [78; 3], "{story}: in memory");
        });
        if let Err(error) = mapped {
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "Linux below 6.6");
        }
    });
}

#[test]
fn truncate_cuts_off_what_there_was_and_adds_zeroes() {
    every(plain, |stage, file| {
        file.set_len(9020).unwrap();
        stage.model.truncate(9020);
        stage.holds();
        stage.channel.write_all_at(&[9; 100], 8900).unwrap();
        stage.model[8900..9000].fill(9);
        file.set_len(20_000).unwrap();
        stage.model.resize(20_000, 0);
        stage.holds();
        stage.channel.write_all_at(&[10; 100], 19_950).unwrap();
        stage.model.resize(20_050, 0);
        stage.model[19_950..].fill(10);
    });
}

#[test]
fn fallocate_makes_files_longer_and_holes_in_them() {
    every(plain, |stage, file| {
        let allocate =
            |mode, at, bytes| rustix::fs::fallocate(&file, mode, at, bytes).map(|()| true);
        assert!(allocate(FallocateFlags::KEEP_SIZE, 0, 50_000).unwrap());
        stage.holds();
        assert!(allocate(FallocateFlags::empty(), 0, 20_000).unwrap());
        stage.model.resize(20_000, 0);
        stage.holds();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(allocate(hole, 4096, 4096).unwrap());
        stage.model[4096..8192].fill(0);
        stage.channel.write_all_at(&[6; 10], 5000).unwrap();
        stage.model[5000..5010].fill(6);
    });
}
