// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one user takes of a daemon is that user's part, and others have theirs.

mod common;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::scene::serve;
use common::{House, Opened, USER, as_user, byte_at, filled};
use dwell::Route;
use dwell::queue::{Action, Io, Queue};
use dwell::{File, policy};
use dwell_channel::client::{ChannelQueue, Mount, Shape};
use dwell_channel::credentials::Opener;
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::grants::Grants;
use dwell_channel::owners::Owners;
use dwell_channel::socket::{self, Came};

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIP: only root can act as several users");
    }
    root
}

const SHAPE: Shape = Shape { depth: 64, slot_bytes: 4096, arena_bytes: 1 << 18 };

/// Reads a page by a channel: whether an answer came, and not for ever.
fn reads(queue: &mut ChannelQueue, fd: RawFd) -> bool {
    let mut buffer = queue.buffer(4096).unwrap();
    // SAFETY: the buffer outlives the completion, or stays where it is until the process ends.
    let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), 4096, 4096) };
    queue.submit(io, Route::Interrupt).unwrap();
    queue.flush();
    let (mut done, until) = (None, Instant::now() + Duration::from_secs(20));
    while done.is_none() && Instant::now() < until {
        queue.poll(&mut |completion| done = Some(completion.result));
        std::thread::yield_now();
    }
    if done != Some(4096) {
        std::mem::forget(buffer);
        return false;
    }
    buffer.iter().enumerate().all(|(at, byte)| *byte == byte_at(4096 + at))
}

#[test]
fn a_user_with_commands_on_a_stuck_file_leaves_places_on_the_device_to_others() {
    if !is_root() {
        return;
    }
    let house = House::new(Options { device_depth: 16, ..Options::default() });
    let Some(gate) = Gate::with(vec![0xaa; 1 << 20]) else { return };
    let stuck = house.open(&gate.path(), libc::O_RDWR);
    let backing = filled(false, 1 << 16);
    let other = house.open(backing.path(), libc::O_RDWR);
    let (fd, others) = (stuck.program.as_raw_fd(), other.program.as_raw_fd());
    // A channel is whose socket it is; the gate's file is root's alone.
    let mut waiting = as_user(USER, || house.mount().asynchronous(SHAPE, fd).unwrap());
    let mut queue = house.mount().asynchronous(SHAPE, others).unwrap();
    let mut memory: Vec<_> = (0..64).map(|_| waiting.buffer(4096).unwrap()).collect();
    gate.close();
    for (at, buffer) in memory.iter_mut().enumerate() {
        let (start, at) = (buffer.as_mut_ptr(), at as u64 * 4096);
        // SAFETY: the buffers outlive the completions, which are waited for.
        let io = unsafe { Io::plain(Action::Read, fd, start, 4096, at) };
        waiting.submit(io, Route::Interrupt).unwrap();
    }
    waiting.flush();
    // As many as that user may have are with the kernel.
    gate.holds(8);
    let answered = reads(&mut queue, others);
    gate.open();
    let (mut done, until) = (0, Instant::now() + Duration::from_secs(20));
    while done < 64 {
        waiting.poll(&mut |completion| {
            assert_eq!(completion.result, 4096);
            done += 1;
        });
        assert!(Instant::now() < until, "{done} of 64 requests are over");
        std::thread::yield_now();
    }
    assert!(answered, "a read of another file by another user waits for a stuck file");
    house.close(stuck);
}

#[test]
fn memory_of_a_channel_that_is_gone_counts_until_a_stuck_file_lets_go_of_it() {
    // Room for one channel.
    let house = House::new(Options { most_bytes: 1 << 20, ..Options::default() });
    let Some(gate) = Gate::with(vec![0xaa; 1 << 16]) else { return };
    let stuck = house.open(&gate.path(), libc::O_RDWR);
    let fd = stuck.program.as_raw_fd();
    let connects = || house.mount().asynchronous(SHAPE, fd);
    let mut queue = connects().unwrap();
    assert!(connects().is_err(), "there is room for two");
    let mut buffer = queue.buffer(4096).unwrap();
    gate.close();
    // SAFETY: the buffer keeps its memory, which is the channel's, for as long as the test runs.
    let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), 4096, 0) };
    queue.submit(io, Route::Interrupt).unwrap();
    queue.flush();
    gate.holds(1);
    drop(queue);
    let patience = Duration::from_secs(20);
    let until = Instant::now() + patience;
    while house.daemon.tally().channels > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    let (left, again) = (house.daemon.tally().channels, connects().is_ok());
    gate.open();
    assert_eq!((left, again), (0, false), "a user who comes again holds memory twice");
    let until = Instant::now() + patience;
    while connects().is_err() {
        assert!(Instant::now() < until, "memory that is free again still counts");
        std::thread::yield_now();
    }
    house.close(stuck);
}

#[test]
fn silent_connections_of_one_user_keep_nobody_from_connecting() {
    if !is_root() {
        return;
    }
    // Nobody is sent away for saying nothing.
    let patience = Duration::from_secs(3600);
    let house = House::new(Options { patience, ..Options::default() });
    let backing = filled(true, 1 << 16);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let fd = opened.program.as_raw_fd();
    let place = house.daemon.place().to_vec();
    let dial = || -> OwnedFd {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < until, "nobody takes up who is at the door");
            // The listener's own queue may be full for a moment.
            match socket::connect(&place) {
                Ok(socket) => return socket,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
            }
            std::thread::yield_now();
        }
    };
    let connects = || {
        let mut tries = 0..20;
        tries.any(|_| {
            house.mount().asynchronous(SHAPE, fd).is_ok_and(|mut queue| reads(&mut queue, fd))
        })
    };
    let mut silent = as_user(USER, || (0..400).map(|_| dial()).collect::<Vec<_>>());
    assert!(connects(), "another user finds nobody at the door");
    // However many descriptors a process may have.
    let until = Instant::now() + Duration::from_secs(30);
    while silent.len() > 64 && Instant::now() < until {
        silent.retain(|one| matches!(socket::receive(one, &mut [0; 1], false), Came::Nothing));
        std::thread::yield_now();
    }
    assert!(silent.len() <= 64, "{} silent connections are kept", silent.len());
    assert!(as_user(USER, connects), "nor does the same user, who says something now");
}

#[test]
fn a_user_maps_so_much_and_reaches_the_rest_in_another_way() {
    if !is_root() {
        return;
    }
    // Two files' worth.
    let house = House::new(Options { most_mapped_bytes: 32 << 20, ..Options::default() });
    let files: Vec<_> = (0..4).map(|_| filled(true, 1 << 16)).collect();
    let opens = |opener: Opener| -> Vec<Opened> {
        files.iter().map(|file| house.open_as(opener, file.path(), libc::O_RDWR)).collect()
    };
    let all = opens(Opener::new(USER, USER));
    let mut queues = Vec::new();
    for (at, opened) in all.iter().enumerate() {
        let fd = opened.program.as_raw_fd();
        let mut queue = house.mount().asynchronous(SHAPE, fd).unwrap();
        assert!(reads(&mut queue, fd), "file {at}");
        // SAFETY: the file is open for as long as the test runs.
        let io = unsafe { Io::sync(fd, false) };
        assert_eq!(queue.hint(&io).syncs_at_once, at < 2, "file {at} is mapped or not");
        queues.push(queue);
    }
    // Another user has as much, of other files.
    let mine = house.open(files[3].path(), libc::O_RDWR);
    let fd = mine.program.as_raw_fd();
    let mut queue = house.mount().asynchronous(SHAPE, fd).unwrap();
    // SAFETY: as above.
    let io = unsafe { Io::sync(fd, false) };
    assert!(reads(&mut queue, fd) && queue.hint(&io).syncs_at_once);
}

#[test]
fn subordinate_users_share_with_their_owner_and_are_counted_with_it() {
    if !is_root() {
        return;
    }
    const SUBORDINATE: u32 = 100_000;
    let owners = Arc::new(Owners::parse(&format!("{USER}:{SUBORDINATE}:10"), ""));
    let house = House::new(Options { most_channels: 2, owners, ..Options::default() });
    let backing = filled(true, 1 << 16);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let fd = opened.program.as_raw_fd();
    let connects = |user| as_user(user, || house.mount().asynchronous(SHAPE, fd));
    let mut channels: Vec<_> =
        [USER, SUBORDINATE, 77].map(|user| connects(user).unwrap()).into_iter().collect();
    assert!(connects(SUBORDINATE + 1).is_err() && connects(USER).is_err(), "a share for each");
    assert!(channels.iter_mut().all(|channel| reads(channel, fd)));
    let commands = house.daemon.commands();
    assert_eq!((commands[&USER]["read"], commands[&77]["read"]), (2, 1), "{commands:?}");
}

#[test]
fn a_daemon_that_does_not_answer_is_not_asked_at_every_request() {
    let name = format!("dwell-test-silent-{}", std::process::id());
    let listener = socket::listen(name.as_bytes()).unwrap();
    let backing = filled(true, 8192);
    let program = std::fs::File::open(backing.path()).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let asker = asked.clone();
    let mount = Mount::direct(
        name.as_bytes(),
        Arc::new(move |_, _| {
            asker.fetch_add(1, Ordering::Relaxed);
            Err(std::io::ErrorKind::NotFound.into())
        }),
    );
    let parameters = dwell::parameters::DeviceParameters::default();
    let file = File::over(mount, "silent", "silent", parameters, Arc::new(policy::Spin), None);
    for _ in 0..50 {
        let mut buffer = [0; 512];
        let (fd, memory) = (program.as_raw_fd(), buffer.as_mut_ptr());
        // SAFETY: the buffer is borrowed until the call returns.
        assert_eq!(file.request(&unsafe { Io::plain(Action::Read, fd, memory, 512, 0) }), 512);
    }
    let mut dialled = 0;
    while socket::accept(&listener).unwrap().is_some() {
        dialled += 1;
    }
    // Each took a second; one more may have been due since.
    assert!((1..25).contains(&dialled), "{dialled} of 50 requests connected anew");
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn syncs_that_a_device_does_not_end_leave_threads_for_other_requests() {
    if !is_root() {
        return;
    }
    const SYNCS: usize = 12;
    let Some(gate) = Gate::with(vec![0xaa; 8192]) else { return };
    let below = gate.path();
    let mount = tempfile::tempdir().unwrap();
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let server = match serve(below.parent().unwrap(), mount.path(), daemon, true) {
        Ok(server) => server,
        Err(why) => return println!("SKIP: {why}"),
    };
    let open = |at| {
        let path = mount.path().join(format!("more-{at}"));
        std::fs::File::options().write(true).open(path).unwrap()
    };
    let files: Vec<_> = (0..SYNCS).map(open).collect();
    let path = mount.path().join("data");
    gate.close();
    let (say, said) = channel();
    let looked = std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        // More than there are threads for the kernel's requests are with the device.
        gate.holds(SYNCS);
        let look = std::thread::spawn(move || {
            let _ = std::fs::metadata(path);
            let _ = say.send(());
        });
        let looked = said.recv_timeout(Duration::from_secs(20));
        gate.open();
        look.join().unwrap();
        looked
    });
    drop((files, server));
    assert!(looked.is_ok(), "a look-up waits for a sync of another file");
}
