// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the children of the tests do.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{REQUESTS, WORK};

const BLOCK: usize = 4096;

#[repr(align(4096))]
struct Page([u8; BLOCK]);

/// Does what it is told to on a device.
pub fn work(what: &str, path: &Path) {
    match what {
        "read" => read(&open(path, libc::O_DIRECT)),
        "write" => write(&open(path, libc::O_DIRECT)),
        "sync" => sync(&open(path, 0)),
        "fault" => fault(&open(path, 0)),
        "ring" => ring(&open(path, libc::O_DIRECT)),
        "libaio" => libaio(&open(path, libc::O_DIRECT)),
        "threads" => threads(path),
        "without a leader" => without_a_leader(path),
        "pipes" => pipes(),
        "ring of sockets" => ring_of_sockets(),
        "first CPU" => on_cpu(0),
        "second CPU" => on_cpu(1),
        program if program.starts_with('/') => {
            panic!("{program}: {}", Command::new(program).arg(path).exec())
        }
        other => panic!("{other}"),
    }
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Every block once, in an order that reading ahead does not guess.
fn blocks() -> impl Iterator<Item = u64> {
    (0..REQUESTS).map(|i| i * 4099 % 8000 * BLOCK as u64)
}

fn read(file: &File) {
    let mut page = Page([0; BLOCK]);
    blocks().for_each(|offset| file.read_exact_at(&mut page.0, offset).unwrap());
}

fn write(file: &File) {
    let page = Page([7; BLOCK]);
    blocks().for_each(|offset| file.write_all_at(&page.0, offset).unwrap());
}

fn sync(file: &File) {
    for offset in blocks().take(50) {
        file.write_all_at(&[9; BLOCK], offset).unwrap();
        file.sync_data().unwrap();
    }
}

fn fault(file: &File) {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
    // What the child before left in the page cache would not be waited for.
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let length = 32 << 20;
    // SAFETY: a new mapping of the device, which nothing else in this process maps or reads.
    unsafe {
        let start =
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        madvise(start, length, Advice::Random).unwrap();
        for offset in blocks() {
            std::hint::black_box(start.cast::<u8>().add(offset as usize).read_volatile());
        }
    }
}

fn ring(file: &File) {
    let mut ring = io_uring::IoUring::new(8).unwrap();
    let mut page = Page([0; BLOCK]);
    for offset in blocks() {
        let read = io_uring::opcode::Read::new(
            io_uring::types::Fd(file.as_raw_fd()),
            page.0.as_mut_ptr(),
            BLOCK as u32,
        );
        // SAFETY: the page and the file live until the completion, which is awaited.
        unsafe { ring.submission().push(&read.offset(offset).build()).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), BLOCK as i32);
    }
}

/// One request at a time by the kernel's asynchronous calls, as the library libaio makes them.
fn libaio(file: &File) {
    /// `struct iocb` of linux/aio_abi.h on a little-endian machine.
    #[repr(C)]
    #[derive(Default)]
    struct Iocb {
        data: u64,
        key: u32,
        flags: u32,
        opcode: u16,
        priority: i16,
        fd: u32,
        buffer: u64,
        bytes: u64,
        offset: i64,
        reserved: [u64; 2],
    }
    let mut context = 0u64;
    let mut page = Page([0; BLOCK]);
    let nowhere = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the context is made here, every request ends before the next begins, and what the
    // kernel writes to lives until then.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 8, &raw mut context), 0);
        for offset in blocks() {
            let mut request = Iocb {
                fd: file.as_raw_fd() as u32,
                buffer: page.0.as_mut_ptr() as u64,
                bytes: BLOCK as u64,
                offset: offset as i64,
                ..Iocb::default()
            };
            let mut list = [&raw mut request];
            assert_eq!(libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()), 1);
            let mut event = [0u64; 4];
            let events = event.as_mut_ptr();
            let got = libc::syscall(libc::SYS_io_getevents, context, 1, 1, events, nowhere);
            assert_eq!((got, event[2]), (1, BLOCK as u64));
        }
        libc::syscall(libc::SYS_io_destroy, context);
    }
}

/// Another thread answers each byte, and io_uring waits for the answers.
fn ring_of_sockets() {
    if io_uring::IoUring::new(8).is_err() {
        return println!("SKIP: no io_uring");
    }
    use std::os::unix::net::UnixStream;
    let (mut own, mut other) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while other.read(&mut byte).unwrap() == 1 {
            std::thread::sleep(std::time::Duration::from_micros(200));
            other.write_all(&byte).unwrap();
        }
    });
    let mut ring = io_uring::IoUring::new(8).unwrap();
    let mut byte = [0];
    for _ in 0..REQUESTS {
        own.write_all(b"x").unwrap();
        let socket = io_uring::types::Fd(own.as_raw_fd());
        let receive = io_uring::opcode::Recv::new(socket, byte.as_mut_ptr(), 1).build();
        // SAFETY: the byte lives until the completion, which is awaited.
        unsafe { ring.submission().push(&receive).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 1);
    }
    own.shutdown(std::net::Shutdown::Both).unwrap();
    echo.join().unwrap();
}

/// Two threads, each in a process of its own, read.
fn threads(path: &Path) {
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child_of_the_test", "--ignored", "--nocapture"])
                .env(WORK, "read")
                .env("DWELL_ADVISE_DEVICE", path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
}

/// A thread reads when the first thread of its process has ended.
fn without_a_leader(path: &Path) {
    // SAFETY: the child makes a thread, and its first one ends without a return into this test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let path = path.to_owned();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            read(&open(&path, libc::O_DIRECT));
            // SAFETY: it ends the child.
            unsafe { libc::_exit(0) }
        });
        // SAFETY: it ends this thread alone.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let mut status = -1;
    // SAFETY: the child is this process's own.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}

/// Reads a file on the machine's own disk, on one CPU. Another may have the disk's interrupts.
fn on_cpu(cpu: usize) {
    // SAFETY: a set of zeros is one, and this thread's own.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus);
    }
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let direct = open(file.path(), libc::O_DIRECT);
    let pages: Vec<Page> = (0..256).map(|_| Page([5; BLOCK])).collect();
    // SAFETY: the pages' own bytes.
    let bytes = unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), 256 * BLOCK) };
    (0..32).for_each(|at| direct.write_all_at(bytes, at * bytes.len() as u64).unwrap());
    for _ in 0..4 {
        read(&direct);
        fault(file.as_file());
    }
}

fn pipes() {
    let (mut read, mut write) = io::pipe().unwrap();
    let (mut back, mut answer) = io::pipe().unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while read.read(&mut byte).unwrap() == 1 {
            answer.write_all(&byte).unwrap();
        }
    });
    for _ in 0..REQUESTS {
        write.write_all(b"x").unwrap();
        back.read_exact(&mut [0]).unwrap();
    }
    drop(write);
    echo.join().unwrap();
}
