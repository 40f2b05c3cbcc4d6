// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel, both sides of it in one thread.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dwell::parameters::DeviceParameters;

use super::*;
use crate::access::Access;
use crate::calls::Calls;
use crate::counts::{Commands, Counted};
use crate::daemon::Options;
use crate::grants::{Inodes, OpenFile};
use crate::layout::Layout;
use crate::shared::Shared;
use crate::shares::Shares;
use crate::slow::Slow;
use crate::table::Table;
use crate::wire::Opcode;

pub const DATA_BYTES: u64 = 4 << 20;

/// A channel with a file of its own, both sides of it.
pub struct Both {
    pub serving: Serving,
    pub shared: Shared,
    commands: Producer,
    granted: (u32, u32),
    client: OwnedFd,
}

impl Both {
    pub fn new(uid: u32, data: &[u8]) -> Both {
        let layout = Layout::new(64, DATA_BYTES).unwrap();
        let (shared, memory) = Shared::create(layout).unwrap();
        let other = Shared::adopt(memory, layout).unwrap();
        Self::over(uid, opened("/dev/shm", data, libc::O_RDWR), shared, other)
    }

    fn over(uid: u32, open: Arc<OpenFile>, ours: Shared, theirs: Shared) -> Both {
        let access = Access::to(&open, 0, uid, &Shares::new(u64::MAX)).unwrap();
        let mut table = Table::new(8);
        let granted = table.insert(open, access);
        let (flags, kind) = (rustix::net::SocketFlags::CLOEXEC, rustix::net::SocketType::SEQPACKET);
        let family = rustix::net::AddressFamily::UNIX;
        let (socket, client) = rustix::net::socketpair(family, kind, flags, None).unwrap();
        let commands = Producer::new(ours.layout().entries());
        let channel = Arc::new(Channel {
            token: [0; 16],
            account: uid,
            commands: Commands::default(),
            socket,
            shared: Arc::new(ours),
            table: Mutex::new(table),
            ended: false.into(),
        });
        Both { serving: Serving::new(1, channel), shared: theirs, commands, granted, client }
    }

    pub fn submit(&mut self, opcode: Opcode, offset: u64, bytes: u32) {
        self.submit_at(opcode, offset, bytes, 0);
    }

    fn submit_at(&mut self, opcode: Opcode, offset: u64, bytes: u32, place: u32) {
        let (entry, generation) = self.granted;
        let command = Command { opcode, tag: 7, entry, generation, offset, bytes, place };
        self.commands.put(self.shared.commands(), command.words());
        let beside = self.shared.beside_commands();
        self.commands.publish(self.shared.mark(Mark::CommandTail), beside.belongs_to);
    }

    /// What lies in so many bytes of the data area.
    pub fn seen(&self, bytes: usize) -> Vec<u8> {
        let memory = self.shared.data(0, bytes as u32).unwrap();
        let mut seen = vec![0; bytes];
        // SAFETY: bytes of the data area, and as much room.
        unsafe { dwell::mapping::copy(memory, seen.as_mut_ptr(), bytes) };
        seen
    }

    pub fn ring(&self) {
        socket::ring(&self.client);
    }

    pub fn answered(&self) -> u32 {
        self.shared.mark(Mark::CompletionTail).load(Ordering::Relaxed)
    }

    /// Takes all answers, as a client does.
    pub fn take_answers(&self) {
        self.shared.mark(Mark::CompletionHead).store(self.answered(), Ordering::Release);
    }

    pub fn result(&self, at: usize) -> i32 {
        Done::parse([self.shared.completions()[at].load(Ordering::Relaxed)]).result
    }
}

/// A file of those bytes in that directory, as a program opened it.
fn opened(dir: &str, data: &[u8], flags: i32) -> Arc<OpenFile> {
    let backing = tempfile::NamedTempFile::new_in(dir).unwrap();
    std::fs::write(backing.path(), data).unwrap();
    let file = File::options().read(true).write(true).open(backing.path()).unwrap();
    let inode = Inodes::default().of(&file).unwrap();
    Arc::new(OpenFile::new(file, flags, inode))
}

pub fn device() -> Device {
    Device::new(&Options::default(), Calls::new(Slow::default(), Arc::new(|| {})))
}

#[test]
fn a_long_command_is_cut_into_pieces_between_which_others_have_their_turn() {
    let data: Vec<u8> = (0..DATA_BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    let mut both = Both::new(1, &data);
    let (mut device, counters) = (device(), Counters::default());
    both.submit(Opcode::Read, 0, DATA_BYTES as u32);
    let turns = DATA_BYTES / Allowance::ALONE.bytes;
    for turn in 1..=turns {
        let mut allowance = Allowance::ALONE;
        assert_eq!(both.serving.serve(&mut allowance, &mut device, &counters), Turn::Worked);
        assert_eq!(both.answered(), u32::from(turn == turns), "turn {turn} of {turns}");
    }
    assert_eq!(both.result(0), DATA_BYTES as i32);
    assert!(both.seen(data.len()) == data);
    // And one that reaches past the end.
    both.submit(Opcode::Read, DATA_BYTES - (300 << 10), DATA_BYTES as u32);
    while both.answered() < 2 {
        both.serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
    }
    assert_eq!(both.result(1), 300 << 10);
    let mut counted = Counted::default();
    counted.add(&both.serving.channel.commands);
    assert_eq!(counted.by_kind()["read"], 2);
}

#[test]
fn a_grant_that_is_taken_back_between_two_pieces_ends_the_command() {
    let mut both = Both::new(1, &vec![1; DATA_BYTES as usize]);
    let (mut device, counters) = (device(), Counters::default());
    both.submit(Opcode::Read, 0, DATA_BYTES as u32);
    both.serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
    both.serving.channel.table().clear();
    both.serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
    assert_eq!((both.answered(), both.result(0)), (1, Done::MISSING));
}

#[test]
fn a_client_whose_memory_is_gone_loses_its_channel() {
    crate::survive_lost_memory().unwrap();
    let layout = Layout::new(64, DATA_BYTES).unwrap();
    let memory = tempfile::tempfile_in("/dev/shm").unwrap();
    let (ours, theirs) = (Shared::unsealed(&memory, layout), Shared::unsealed(&memory, layout));
    let mut both = Both::over(1, opened("/dev/shm", &[1; 8192], libc::O_RDWR), ours, theirs);
    let (mut device, counters) = (device(), Counters::default());
    for round in 0..3 {
        both.submit(Opcode::Read, 0, 4096);
        let came_of_it = both.serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
        assert_eq!(came_of_it, if round < 2 { Turn::Worked } else { Turn::Over });
        if round == 1 {
            // As where a hole was made and the system has no page to put there. The rings stay.
            memory.set_len(layout.data()).unwrap();
        }
    }
    assert!(both.serving.is_over() && both.serving.is_broken());
}

#[test]
fn a_command_that_is_not_aligned_stops_polling_for_nobody() {
    let layout = Layout::new(64, DATA_BYTES).unwrap();
    let (ours, memory) = Shared::create(layout).unwrap();
    let theirs = Shared::adopt(memory, layout).unwrap();
    let open = opened("/var/tmp", &[5; 16 << 10], libc::O_RDWR | libc::O_DIRECT);
    let mut both = Both::over(1, open.clone(), ours, theirs);
    if !matches!(open.direct.get(), Some(Some(_))) {
        return println!("SKIP: the file system has no direct I/O");
    }
    let parameters = DeviceParameters { polled: true, ..DeviceParameters::default() };
    let options = Options { parameters, ..Options::default() };
    let mut device = Device::new(&options, Calls::new(Slow::default(), Arc::new(|| {})));
    if !device.polls() {
        return println!("SKIP: no ring polls here");
    }
    let counters = Counters::default();
    for (at, (offset, bytes, place)) in
        [(512, 4096, 0), (0, 100, 0), (0, 4096, 8)].into_iter().enumerate()
    {
        both.submit_at(Opcode::Read, offset, bytes, place);
        both.serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
        let until = Instant::now() + Duration::from_secs(20);
        while both.answered() as usize == at {
            assert!(Instant::now() < until, "no answer to {bytes} bytes at {offset}");
            let serving = &mut both.serving;
            device.reap(&mut |errand, result| serving.complete(errand.part, errand.piece, result));
            serving.serve(&mut { Allowance::ALONE }, &mut device, &counters);
        }
        assert_eq!(both.result(at), bytes as i32, "{offset}, {bytes}, {place}");
        assert!(device.polls(), "{bytes} bytes at {offset} to {place}");
    }
}
