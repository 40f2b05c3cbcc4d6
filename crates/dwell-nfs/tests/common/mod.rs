// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server for a test, trees to copy, and what hears of copies.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use dwell::executor::Executor;
use dwell_bench::fixture::{Export, Ganesha, in_own_network};
use dwell_nfs::copy::{self, Options, Progress, Watcher};

/// Runs `test` beside a server in a network of its own; where there can be none, says why.
pub fn on_server(exports: &[Export], rpcbind: bool, test: impl FnOnce(&mut Ganesha) + Send) {
    let ran = in_own_network(|| {
        let mut server = Ganesha::start(exports, rpcbind)?;
        test(&mut server);
        Ok::<(), dwell_bench::fixture::Unavailable>(())
    });
    if let Err(why) = ran.and_then(|ran| ran) {
        println!("SKIP: {why}");
    }
}

/// Bytes without a pattern.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// Files of all lengths, directories, links, odd names.
pub fn tree(at: &Path) {
    fs::create_dir_all(at.join("inner/empty")).unwrap();
    for (number, bytes) in
        [0, 1, 3, 4, 5, 4095, 4096, 32768, 300_000, 3_000_001].into_iter().enumerate()
    {
        fs::write(at.join(format!("file{number}")), noise(bytes)).unwrap();
        fs::write(at.join(format!("inner/f{number}")), noise(bytes / 2)).unwrap();
    }
    for name in ["a name with blanks", "ümläut", "-dash", "new\nline"] {
        fs::write(at.join("inner").join(name), name).unwrap();
    }
    let raw = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe raw");
    fs::write(at.join::<&std::ffi::OsStr>(raw), b"raw").unwrap();
    fs::set_permissions(at.join("file1"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::set_permissions(at.join("file2"), fs::Permissions::from_mode(0o400)).unwrap();
    symlink("inner/f1", at.join("link")).unwrap();
    symlink("/nowhere/at all", at.join("inner/dangling")).unwrap();
}

/// Asserts that two files or trees are the same: names, kinds, permissions, times, bytes.
pub fn same(a: &Path, b: &Path) {
    let (facts, other) = (fs::symlink_metadata(a).unwrap(), fs::symlink_metadata(b).unwrap());
    assert_eq!(facts.file_type(), other.file_type(), "{a:?}");
    if facts.is_symlink() {
        return assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    }
    assert_eq!(facts.mode() & 0o777, other.mode() & 0o777, "{a:?}");
    if facts.is_dir() {
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names.retain(|name| name != "tree");
            names
        };
        assert_eq!(names(a), names(b));
        names(a).iter().for_each(|name| same(&a.join(name), &b.join(name)));
    } else {
        assert_eq!(facts.mtime(), other.mtime(), "{a:?}");
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{a:?} and {b:?} differ");
    }
}

/// Hears of a copy and says nothing.
#[derive(Default)]
pub struct Quiet {
    errors: RefCell<Vec<String>>,
    notes: RefCell<Vec<String>>,
}

impl Quiet {
    pub fn errors(&self) -> Vec<String> {
        self.errors.borrow().clone()
    }

    pub fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }
}

impl Watcher for Quiet {
    fn progress(&self, _: &Progress) {}
    fn failed(&self, error: &dwell_nfs::Error) {
        self.errors.borrow_mut().push(error.to_string());
    }

    fn noted(&self, line: &str) {
        self.notes.borrow_mut().push(line.to_string());
    }
}

/// Does something once, when a copy has come so far.
pub struct AtByte<F> {
    byte: u64,
    what: RefCell<Option<F>>,
    quiet: Quiet,
}

impl<F: FnOnce()> AtByte<F> {
    pub fn new(byte: u64, what: F) -> Self {
        AtByte { byte, what: RefCell::new(Some(what)), quiet: Quiet::default() }
    }

    pub fn errors(&self) -> Vec<String> {
        self.quiet.errors()
    }
}

impl<F: FnOnce()> Watcher for AtByte<F> {
    fn progress(&self, progress: &Progress) {
        if progress.bytes_done >= self.byte
            && let Some(what) = self.what.borrow_mut().take()
        {
            what();
        }
    }

    fn failed(&self, error: &dwell_nfs::Error) {
        self.quiet.failed(error);
    }
}

/// Copies until so many bytes are copied, and then stops without a word, as a process does that is
/// killed. Whether it was stopped.
pub fn copy_up_to(byte: u64, from: &str, to: &str, options: Options) -> bool {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let (came, stop) = (Cell::new(false), Cell::new(false));
    let watcher = AtByte::new(byte, || came.set(true));
    let copied = copy::between(&tasks, from, to, options, &watcher);
    executor.block_on(async {
        let mut copied = Box::pin(copied);
        std::future::poll_fn(|context| {
            if !came.get() && copied.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            stop.set(came.get());
            if stop.get() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
    stop.get()
}

/// Has a file system of 1 MiB on a directory meanwhile.
pub fn with_small_disk(on: &Path, work: impl FnOnce() + Send) {
    struct Mounted<'p>(&'p Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0).status();
        }
    }
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "dwell-test"]).arg(on).output();
    match mount {
        Ok(output) if output.status.success() => {
            let _mounted = Mounted(on);
            work();
        }
        _ => println!("SKIP: no file system can be mounted: run as root"),
    }
}
