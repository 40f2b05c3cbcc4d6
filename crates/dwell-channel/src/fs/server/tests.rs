// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server whose threads are held up, and users who have their part already.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use super::*;
use crate::daemon::{self, Daemon};

const PATIENCE: Duration = Duration::from_secs(20);

/// One server at a time: the thread with which a server watches itself begins by closing its copies
/// of all files of this process, which other servers hear of.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server of two files, whose requests two threads take.
fn served(with: impl FnOnce(&Server, [File; 2])) {
    let _alone = alone();
    let (backing, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = Options {
        backing: backing.path().to_owned(),
        mount: mount.path().to_owned(),
        private: false,
        threads: 2,
        passthrough: false,
    };
    let daemon = Arc::new(Daemon::start(daemon::Options::default()).unwrap());
    let server = match Server::start(&options, daemon, Channels::default) {
        Ok(server) => server,
        Err(error) => return println!("SKIP: {error}"),
    };
    assert!((0..3).all(|_| server.stopper().answers(PATIENCE)));
    let files = ["a", "b"].map(|name| File::create(mount.path().join(name)).unwrap());
    with(&server, files);
    assert!(server.stopper().answers(PATIENCE));
}

#[test]
fn a_server_answers_as_long_as_a_thread_takes_requests() {
    served(|server, [one, two]| {
        let stopper = server.stopper();
        thread::scope(|scope| {
            let held = server.shared.tree.files.hold();
            // Each takes a thread, which finds no file before it is let.
            scope.spawn(|| drop(one));
            until_asked(server, "flush", 1);
            let with_one_stuck = stopper.answers(PATIENCE);
            scope.spawn(|| drop(two));
            until_asked(server, "flush", 2);
            let with_all_stuck = stopper.answers(Duration::from_millis(200));
            drop(held);
            assert!(with_one_stuck && !with_all_stuck);
        });
    });
}

#[test]
fn writes_that_wait_take_no_more_memory_than_a_user_may_have() {
    served(|server, [one, two]| {
        let tree = &server.shared.tree;
        let own = tree.grants.account(rustix::process::geteuid().as_raw());
        let all = tree.waiting.take(own, MOST_WAITING_BYTES);
        assert!(all.is_some());
        let refused = thread::scope(|scope| {
            let held = tree.files.hold();
            // It takes the thread that may wait.
            let stuck = scope.spawn(|| one.write_at(b"text", 0));
            until_asked(server, "write", 1);
            let refuses = scope.spawn(|| two.write_at(b"text", 0));
            let until = Instant::now() + PATIENCE;
            while !refuses.is_finished() && Instant::now() < until {
                thread::yield_now();
            }
            let in_time = refuses.is_finished();
            drop(held);
            assert_eq!(stuck.join().unwrap().unwrap(), 4);
            assert!(in_time, "the last thread waits, or the write takes memory");
            refuses.join().unwrap()
        });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        drop(all);
        assert_eq!(two.write_at(b"text", 0).unwrap(), 4);
    });
}

fn until_asked(server: &Server, what: &str, times: u64) {
    let until = Instant::now() + PATIENCE;
    while server.shared.tree.counts.made().get(what) != Some(&times) {
        assert!(Instant::now() < until, "it never comes to that");
        thread::yield_now();
    }
}

#[test]
fn a_file_that_a_user_may_not_open_is_not_made() {
    served(|server, _two| {
        let Shared { tree, options, .. } = &*server.shared;
        let own = tree.grants.account(rustix::process::geteuid().as_raw());
        let most = files_per_user(raise_open_files(), true);
        let rest = tree.open_files.take(own, most - 2).unwrap();
        let lock = options.mount.join("lock");
        let made = || File::options().write(true).create_new(true).open(&lock);
        assert_eq!(made().unwrap_err().raw_os_error(), Some(libc::ENFILE));
        assert!(!options.backing.join("lock").exists(), "it stays for the next to stumble over");
        drop(rest);
        assert!(made().is_ok());
    });
}
