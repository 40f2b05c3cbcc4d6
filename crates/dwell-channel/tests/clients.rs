// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that are killed with requests in flight, that fork, that become another program, and of
//! several users.

mod common;

use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::program::{Client, compiled};
use common::scene::{Scene, scene, scene_in};
use common::{House, byte_at, filled};
use dwell::Route;
use dwell::queue::{Action, Io, Queue};
use dwell_channel::client::{ChannelBuffer, ChannelQueue, Shape};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::grants::{Grants, Why};

/// Waits, and not for ever, until this is so.
fn soon(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn requests_of_a_killed_client_land_in_no_other_memory() {
    let Some(program) = compiled("clients") else { return };
    // The gate goes first, and lets go of what the daemon waits for when it ends.
    let house = House::new(Options { device_depth: 32, ..Options::default() });
    let Some(gate) = Gate::with(vec![0xaa; 1 << 18]) else { return };
    let place = String::from_utf8(house.daemon.place().to_vec()).unwrap();
    for round in 1..=5u8 {
        let opened = house.open(&gate.path(), libc::O_RDWR);
        gate.close();
        let mut client = Client::start(Command::new(program).args(["in_flight", &place, "1", "0"]));
        client.grant(&house, &opened);
        assert_eq!(client.line(), "in flight");
        gate.holds_some();
        drop(client);
        soon("the channel of a killed client stays", || house.daemon.tally().channels == 0);

        // The next client has memory of its own, whatever comes back to the dead one's.
        let fd = opened.program.as_raw_fd();
        let shape = Shape { depth: 16, slot_bytes: 4096, arena_bytes: 64 << 10 };
        let mut queue = house.mount().asynchronous(shape, fd).unwrap();
        let mut buffers: Vec<_> = (0..16).map(|_| queue.buffer(4096).unwrap()).collect();
        buffers.iter_mut().for_each(|buffer| {
            assert!(buffer.iter().all(|byte| *byte == 0), "memory of an earlier client");
            buffer.fill(round);
        });
        std::thread::scope(|scope| {
            // A drain waits for what is in flight, and for as long.
            let drained = scope.spawn(|| {
                drop(house.daemon.drain(&opened.open.inode, Why::Shorten));
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!drained.is_finished(), "drained with requests in flight");
            gate.open();
            drained.join().unwrap();
        });
        assert!(buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == round)));
        // All places on the device are free again.
        for buffer in &mut buffers {
            // SAFETY: the buffers outlive the completions that are waited for below.
            let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), 4096, 32 * 4096) };
            queue.submit(io, Route::Interrupt).unwrap();
        }
        let (mut done, until) = (0, Instant::now() + Duration::from_secs(30));
        while done < 16 {
            queue.poll(&mut |completion| {
                assert_eq!(completion.result, 4096);
                done += 1;
            });
            assert!(Instant::now() < until, "{done} of 16 requests are over");
        }
        assert!(buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0xaa)));
        drop(queue);
        house.close(opened);
    }
}

#[test]
fn a_write_of_a_killed_client_is_there_or_not_and_nothing_else_is() {
    let Some(program) = compiled("clients") else { return };
    let house = House::new(Options { device_depth: 32, ..Options::default() });
    let Some(gate) = Gate::with(vec![0xaa; 16 * 4096]) else { return };
    let place = String::from_utf8(house.daemon.place().to_vec()).unwrap();
    let other = filled(true, 1 << 16);
    let other = house.open(other.path(), libc::O_RDWR);
    let mut old = 0xaa;
    for round in 1..=5u8 {
        let opened = house.open(&gate.path(), libc::O_RDWR);
        gate.close();
        let words = ["in_flight", &place, "2", &round.to_string()];
        let mut client = Client::start(Command::new(program).args(words));
        client.grant(&house, &opened);
        assert_eq!(client.line(), "in flight");
        gate.holds_some();
        drop(client);
        soon("the channel of a killed client stays", || house.daemon.tally().channels == 0);

        // Others go on, in memory that the dead client's writes do not read.
        let fd = other.program.as_raw_fd();
        let shape = Shape { depth: 16, slot_bytes: 4096, arena_bytes: 64 << 10 };
        let mut queue = house.mount().asynchronous(shape, fd).unwrap();
        let mut buffers: Vec<_> = (0..16).map(|_| queue.buffer(4096).unwrap()).collect();
        for (at, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|byte| *byte == 0), "memory of an earlier client");
            read(&mut queue, fd, buffer, at as u64 * 4096);
            assert!(buffer.iter().enumerate().all(|(n, byte)| *byte == byte_at(at * 4096 + n)));
            buffer.fill(0xee);
        }
        std::thread::scope(|scope| {
            let drained = scope.spawn(|| {
                drop(house.daemon.drain(&opened.open.inode, Why::Shorten));
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!drained.is_finished(), "drained with writes in flight");
            gate.open();
            drained.join().unwrap();
        });
        // Nothing comes later.
        let seen = gate.content();
        assert_eq!(seen.len(), 16 * 4096);
        for block in seen.chunks(4096) {
            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
            assert!([old, round].contains(&block[0]), "{:#x} was never written", block[0]);
        }
        assert!(seen.contains(&round), "what was under way comes to its end");
        assert!(buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0xee)));
        house.close(opened);
        // From where the next round begins, whatever was written of this one.
        let plain = fs::File::options().write(true).open(gate.path()).unwrap();
        plain.write_all_at(&[round | 0x80; 16 * 4096], 0).unwrap();
        old = round | 0x80;
        // All places on the device are free again.
        let opened = house.open(&gate.path(), libc::O_RDWR);
        let fd = opened.program.as_raw_fd();
        for buffer in &mut buffers {
            read(&mut queue, fd, buffer, 0);
            assert!(buffer.iter().all(|byte| *byte == old));
        }
        drop(queue);
        house.close(opened);
    }
}

/// Reads all of a buffer, by channel.
fn read(queue: &mut ChannelQueue, fd: i32, buffer: &mut ChannelBuffer, at: u64) {
    // SAFETY: the buffer outlives the completion, which is waited for.
    let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), 4096, at) };
    queue.submit(io, Route::Interrupt).unwrap();
    let (mut result, until) = (None, Instant::now() + Duration::from_secs(30));
    while result.is_none() {
        queue.poll(&mut |completion| result = Some(completion.result));
        assert!(Instant::now() < until, "no answer");
    }
    assert_eq!(result, Some(4096));
}

#[test]
fn a_file_that_does_not_answer_keeps_nobody_else_waiting() {
    let house = House::new(Options { device_depth: 64, ..Options::default() });
    let Some(gate) = Gate::with(vec![0xaa; 1 << 18]) else { return };
    let slow = house.open(&gate.path(), libc::O_RDWR);
    let shape = Shape { depth: 16, slot_bytes: 4096, arena_bytes: 64 << 10 };
    let asks = |fd| house.mount().asynchronous(shape, fd).unwrap();
    let mut waiting = asks(slow.program.as_raw_fd());
    let mut memory: Vec<_> = (0..16).map(|_| waiting.buffer(4096).unwrap()).collect();
    for action in [Action::Read, Action::Write] {
        gate.close();
        for (at, buffer) in memory.iter_mut().enumerate() {
            let (fd, at) = (slow.program.as_raw_fd(), (32 + at as u64) * 4096);
            // SAFETY: the buffers outlive the completions that are waited for below.
            let io = unsafe { Io::plain(action, fd, buffer.as_mut_ptr(), 4096, at) };
            waiting.submit(io, Route::Interrupt).unwrap();
        }
        waiting.flush();
        gate.holds_some();
        for memory in [true, false] {
            let backing = filled(memory, 1 << 16);
            let opened = house.open(backing.path(), libc::O_RDWR);
            let fd = opened.program.as_raw_fd();
            let mut queue = asks(fd);
            let mut buffer = queue.buffer(4096).unwrap();
            for at in 0..16 {
                read(&mut queue, fd, &mut buffer, at * 4096);
                assert_eq!(buffer[1], byte_at(at as usize * 4096 + 1));
            }
            drop((buffer, queue));
            house.close(opened);
        }
        assert_eq!(waiting.poll(&mut |_| {}), 0);
        gate.open();
        let (mut done, until) = (0, Instant::now() + Duration::from_secs(30));
        while done < 16 {
            waiting.poll(&mut |completion| {
                assert_eq!(completion.result, 4096);
                done += 1;
            });
            assert!(Instant::now() < until, "{done} of 16 requests are over");
        }
    }
    drop((memory, waiting));
    // Or the gate stays mounted.
    house.close(slow);
}

/// A client on a file of a served mount, on memory and not.
fn on_mounts(client: &str) {
    let Some(program) = compiled("clients") else { return };
    for memory in [true, false] {
        let Some(scene) = scene(memory) else { return };
        fs::write(scene.path("data"), vec![5; 8192]).unwrap();
        Client::done(Command::new(program).arg(client).arg(scene.path("data")));
        assert_eq!(fs::read(scene.path("data")).unwrap().len(), 8192);
        soon("its channel stays", || scene.daemon.tally().channels == 0);
    }
}

#[test]
fn a_forked_childs_close_takes_the_grant_of_both() {
    on_mounts("after_fork");
}

#[test]
fn a_program_that_was_become_has_no_grant_of_a_file_that_it_does_not_have() {
    on_mounts("after_exec");
}

const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// A mount of root's that all users may reach, with few channels for each.
fn for_everybody() -> Option<Scene> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can act as several users");
        return None;
    }
    let options = Options { most_channels: 5, ..Options::default() };
    let scene = scene_in(Path::new("/dev/shm"), Arc::new(Daemon::start(options).unwrap()), true)?;
    fs::set_permissions(scene.backing.path(), Permissions::from_mode(0o755)).unwrap();
    for (name, owner, mode) in
        [("mine", ONE, 0o600), ("shown", OTHER, 0o644), ("roots", 0, 0o600), ("given", ONE, 0o666)]
    {
        let path = scene.path(name);
        fs::write(&path, [7; 4096]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
    }
    Some(scene)
}

/// The client where any user can run it, as one of them.
fn as_user(user: u32, scene: &Scene) -> Option<Command> {
    let copy = scene.path("clients");
    if !copy.exists() {
        // By another program: a descriptor to write it that a test beside this inherits would keep
        // it from being run.
        let copied = Command::new("cp").arg(compiled("clients")?).arg(&copy).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(copy);
    command.uid(user).gid(user).current_dir("/");
    Some(command)
}

#[test]
fn users_reach_what_they_may_open_and_no_more() {
    let Some(scene) = for_everybody() else { return };
    let said = |user, name: &str, access: &str| {
        let mut command = as_user(user, &scene)?;
        Some(Client::done(command.arg("reads").arg(scene.path(name)).arg(access)))
    };
    let Some(first) = said(ONE, "mine", "write") else { return };
    assert_eq!(first, "read 512, byte 7, write 512");
    for (user, name, access, expected) in [
        (OTHER, "mine", "read", "open: Permission denied"),
        (ONE, "roots", "read", "open: Permission denied"),
        (ONE, "shown", "write", "open: Permission denied"),
        (ONE, "shown", "read", "read 512, byte 7, write -9"),
        (OTHER, "shown", "write", "read 512, byte 7, write 512"),
        (OTHER, "given", "write", "read 512, byte 7, write 512"),
        (ONE, "given", "read", "read 512, byte 7, write -9"),
    ] {
        assert_eq!(said(user, name, access).unwrap(), expected, "{user} {name} {access}");
    }
}

#[test]
fn a_user_who_takes_all_channels_takes_their_own() {
    let Some(scene) = for_everybody() else { return };
    let Some(mut greedy) = as_user(ONE, &scene) else { return };
    let mut greedy = Client::start(greedy.arg("hoard").arg(scene.path("shown")));
    let refused = greedy.line();
    assert!(refused.starts_with("5 channels, then: "), "{refused}");
    let reads = |user| {
        let mut command = as_user(user, &scene).unwrap();
        Client::done(command.arg("reads").arg(scene.path("given")).arg("write"))
    };
    assert_eq!(reads(OTHER), "read 512, byte 7, write 512");
    drop(greedy);
    soon("channels of a killed client stay", || scene.daemon.tally().channels == 0);
    assert_eq!(reads(ONE), "read 512, byte 7, write 512");
}
