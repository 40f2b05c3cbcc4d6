// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a hostile client does, written outside the library in C, hurts nobody else.

mod common;

use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::program::{Client, compiled};
use common::{House, Opened, byte_at, filled};
use dwell::queue::{Action, Io};
use dwell::{File, policy};
use dwell_channel::client::Mount;
use dwell_channel::daemon::Options;
use dwell_channel::grants::Grants;

/// A daemon with a good client, whose file must stay as it is.
struct Scene {
    house: House,
    good: File<Mount>,
    kept: Opened,
    _backing: tempfile::NamedTempFile,
}

impl Scene {
    fn new(options: Options) -> Scene {
        let house = House::new(options);
        let backing = filled(true, 1 << 16);
        let kept = house.open(backing.path(), libc::O_RDWR);
        let parameters = dwell::parameters::DeviceParameters::default();
        let policy = Arc::new(policy::Spin);
        let good = File::over(house.mount(), "good", "good", parameters, policy, None);
        let scene = Scene { house, good, kept, _backing: backing };
        scene.good_client_lives();
        scene
    }

    fn good_client_lives(&self) {
        let mut buffer = vec![0u8; 1 << 16];
        let (memory, fd) = (buffer.as_mut_ptr(), self.kept.program.as_raw_fd());
        // SAFETY: the buffer is borrowed until the call returns.
        let io = unsafe { Io::plain(Action::Read, fd, memory, 1 << 16, 0) };
        assert_eq!(self.good.request(&io), 1 << 16);
        assert!(buffer.iter().enumerate().all(|(at, byte)| *byte == byte_at(at)), "canary");
    }

    fn start(&self, attack: &str) -> Option<Client> {
        let place = std::str::from_utf8(self.house.daemon.place()).unwrap().to_owned();
        Some(Client::start(Command::new(compiled("hostile")?).args([&place, attack])))
    }

    /// Runs an attack that asks for `files` one after the other, and needs no more than that.
    fn holds_against(&self, attack: &str, files: &[&Opened]) {
        let Some(mut attacker) = self.start(attack) else { return };
        for open in files {
            attacker.grant(&self.house, open);
        }
        self.over(attacker);
    }

    fn over(&self, mut attacker: Client) {
        let until = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = attacker.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the attacker never ends");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "see above");
        self.good_client_lives();
        let gone = Instant::now() + Duration::from_secs(30);
        while self.house.daemon.tally().channels > 1 {
            assert!(Instant::now() < gone, "channels of clients that are gone stay");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file of its own for the attacker, 8 KiB.
fn victim(scene: &Scene) -> (tempfile::NamedTempFile, Opened) {
    let backing = filled(true, 8192);
    let opened = scene.house.open(backing.path(), libc::O_RDWR);
    (backing, opened)
}

#[test]
fn cursors_that_jump_end_the_channel() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    scene.holds_against("tail_jumps", &[&file]);
    scene.holds_against("head_jumps", &[]);
    assert!(compiled("hostile").is_none() || scene.house.daemon.tally().broken == 9);
}

#[test]
fn commands_that_make_no_sense_are_answered_as_such() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    scene.holds_against("bad_commands", &[&file]);
    scene.holds_against("same_tags", &[&file]);
}

#[test]
fn completions_that_are_never_taken_stop_only_their_own_channel() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    scene.holds_against("never_consumes", &[&file]);
}

#[test]
fn fields_that_change_under_the_reader_are_checked_as_copied() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    scene.holds_against("flips", &[&file]);
}

#[test]
fn memory_cannot_be_taken_from_under_the_daemon() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    scene.holds_against("shrinks", &[&file]);
}

#[test]
fn a_read_grant_does_not_write() {
    let scene = Scene::new(Options::default());
    let (backing, _) = victim(&scene);
    let file = scene.house.open(backing.path(), libc::O_RDONLY);
    scene.holds_against("reads_only", &[&file]);
}

#[test]
fn no_command_makes_a_file_longer() {
    let scene = Scene::new(Options::default());
    let (backing, file) = victim(&scene);
    scene.holds_against("grows", &[&file]);
    assert_eq!(backing.as_file().metadata().unwrap().len(), 8192);
}

#[test]
fn a_closed_file_is_out_of_reach() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    let Some(mut attacker) = scene.start("after_close") else { return };
    attacker.grant(&scene.house, &file);
    assert_eq!(attacker.line(), "close");
    scene.house.close(file);
    attacker.say("closed");
    scene.over(attacker);
}

#[test]
fn floods_of_grants_evict_and_floods_of_connections_are_refused() {
    let scene = Scene::new(Options { table_capacity: 16, most_channels: 20, ..Options::default() });
    let (backing, _) = victim(&scene);
    let files: Vec<_> = (0..40).map(|_| scene.house.open(backing.path(), libc::O_RDWR)).collect();
    scene.holds_against("grant_flood", &files.iter().collect::<Vec<_>>());
    scene.holds_against("connection_flood", &[]);
    scene.holds_against("silent_flood", &[]);
}

#[test]
fn messages_that_are_none_reach_nobody() {
    let scene = Scene::new(Options::default());
    let (_backing, file) = victim(&scene);
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    scene.holds_against("bad_messages", &[&file]);
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests of this process open files at the same time.
    assert!(after < before + 500, "descriptors that were sent unasked stay: {before} {after}");
}

#[test]
fn nothing_of_an_earlier_client_or_past_the_end_is_seen() {
    let scene = Scene::new(Options::default());
    let backing = filled(true, 5000);
    let file = scene.house.open(backing.path(), libc::O_RDWR);
    scene.holds_against("leftovers", &[&file]);
}

#[test]
fn a_greedy_client_starves_nobody_and_dies_without_a_trace() {
    let scene = Scene::new(Options::default());
    let backing = filled(true, 1 << 16);
    let file = scene.house.open(backing.path(), libc::O_RDWR);
    let Some(mut attacker) = scene.start("greedy") else { return };
    attacker.grant(&scene.house, &file);
    let start = scene.house.daemon.tally().commands;
    while scene.house.daemon.tally().commands < start + 1000 {
        std::thread::yield_now();
    }
    // What the good client asks for waits for a few turns of the greedy one's at most.
    (0..50).for_each(|_| scene.good_client_lives());
    drop(attacker);
    let gone = Instant::now() + Duration::from_secs(30);
    while scene.house.daemon.tally().channels > 1 {
        assert!(Instant::now() < gone, "the channel of a killed client stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    scene.good_client_lives();
}
