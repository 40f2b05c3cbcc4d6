// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel on the serving side: takes commands out, checks each once it is copied, and answers.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::{SystemTime, UNIX_EPOCH};

use dwell::queue::{Action, Io};

use crate::controller::{Channel, Counters};
use crate::device::{Device, Errand};
use crate::layout::{COMPLETION_WORDS, Mark};
use crate::ring::{Broken, Consumer, Producer};
use crate::socket;
use crate::table::Table;
use crate::way::{self, Way};
use crate::wire::{Command, Done, Opcode};

/// Bytes of one command that are copied, or asked of a device, at a time: between two pieces others have their turn.
const PIECE_BYTES: u32 = 256 << 10;
const DEVICE_PIECE_BYTES: u32 = 1 << 20;
/// Bytes copied after which finished commands are shown to the client, who can use them meanwhile.
const SHOWN_AFTER_BYTES: u64 = 16 << 10;

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing was asked for, or nothing can be answered now.
    Idle,
    /// Commands were served.
    Worked,
    /// The channel has ended.
    Over,
}

/// What one user may still ask for before the next has a turn: all channels of a user share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    commands: u32,
    bytes: u64,
}

impl Allowance {
    /// One turn's.
    pub const TURN: Allowance = Allowance { commands: 32, bytes: 256 << 10 };

    /// Whether the next user's turn has come.
    pub fn is_spent(&self) -> bool {
        self.commands == 0 || self.bytes == 0
    }

    fn spend(&mut self, bytes: u32) {
        self.commands = self.commands.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(bytes));
    }
}

/// A command, and how much of it was moved so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub command: Command,
    moved: u32,
}

impl Part {
    /// How many bytes are moved next.
    fn next_bytes(&self, most: u32) -> u32 {
        (self.command.bytes - self.moved).min(most)
    }

    /// What comes of it once a piece of so many bytes is over: more to do, or a result.
    fn after(self, piece: u32, result: i32) -> Result<Part, Done> {
        let tag = self.command.tag;
        let moved = match u32::try_from(result) {
            Ok(now) if now == piece && self.moved + now < self.command.bytes => {
                return Ok(Part { moved: self.moved + now, ..self });
            }
            Ok(now) => (self.moved + now) as i32,
            // What was moved was moved. But a command that is to be asked for again is moved again, to the same place.
            Err(_) if self.moved > 0 && result > Done::MISSING => self.moved as i32,
            Err(_) => result,
        };
        Err(Done { tag, result: moved })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Left,
    Broken,
}

pub(crate) struct Lane {
    pub number: u64,
    pub channel: Arc<Channel>,
    commands: Consumer,
    completions: Producer,
    /// Commands that were taken and are not answered.
    in_flight: u32,
    /// Taken, and its next piece still to be begun: the device had no room.
    held_back: Option<Part>,
    /// Those of which a piece is over, and more is to be moved.
    begun: VecDeque<Part>,
    end: End,
}

impl Lane {
    pub fn new(number: u64, channel: Arc<Channel>) -> Self {
        let entries = channel.shared.layout().entries();
        let (commands, completions) = (Consumer::new(entries), Producer::new(entries));
        Lane {
            number,
            channel,
            commands,
            completions,
            in_flight: 0,
            held_back: None,
            begun: VecDeque::new(),
            end: End::Open,
        }
    }

    pub fn is_over(&self) -> bool {
        self.end != End::Open || self.channel.ended.load(Ordering::Acquire)
    }

    pub fn is_broken(&self) -> bool {
        self.end == End::Broken
    }

    /// Its client is gone.
    pub fn leave(&mut self) {
        self.end = End::Left;
    }

    /// Whether the client is to ring when it submits.
    pub fn arm(&self, on: bool) {
        let asleep = self.channel.shared.mark(Mark::ControllerAsleep);
        match on {
            // In one order with the look at the ring that follows.
            true => _ = asleep.swap(1, Ordering::SeqCst),
            false => asleep.store(0, Ordering::Relaxed),
        }
    }

    /// Serves what was submitted, as far as its user's turn goes.
    #[inline]
    pub fn serve(
        &mut self,
        allowance: &mut Allowance,
        device: &mut Device,
        counters: &Counters,
    ) -> Turn {
        match self.served(allowance, device, counters) {
            // What was taken for commands and data may have been zeroes in their place.
            Ok(true) if self.channel.shared.is_lost() => {
                self.end = End::Broken;
                Turn::Over
            }
            Ok(true) => Turn::Worked,
            Ok(_) if self.channel.ended.load(Ordering::Relaxed) => Turn::Over,
            Ok(_) => Turn::Idle,
            Err(Broken { .. }) => {
                self.end = End::Broken;
                Turn::Over
            }
        }
    }

    fn served(
        &mut self,
        allowance: &mut Allowance,
        device: &mut Device,
        counters: &Counters,
    ) -> Result<bool, Broken> {
        let Lane { number, channel, commands, completions, in_flight, held_back, begun, .. } = self;
        let shared = &*channel.shared;
        let ready = commands.ready(shared.mark(Mark::CommandTail))?;
        if ready == 0 && held_back.is_none() && begun.is_empty() {
            return Ok(false);
        }
        // Every command that is taken has room for its answer.
        let most = ready.min(allowance.commands);
        let room = completions.room(most + *in_flight, shared.mark(Mark::CompletionHead))?;
        let take = most.min(room.saturating_sub(*in_flight));
        let (mut taken, mut served, mut missing, mut unshown) = (0, 0, 0, 0);
        let mut now_ns = 0;
        // A client whose command lies beside the cursor waits for it alone, and has taken all completions before.
        let (mut alone, mut answer) = (false, None);
        let mut table = channel.table();
        while !allowance.is_spent() {
            let part = match held_back.take().or_else(|| begun.pop_front()) {
                Some(part) => Ok(part),
                None if taken == take => break,
                None => {
                    taken += 1;
                    *in_flight += 1;
                    let beside = commands.take_beside(shared.beside_commands());
                    alone = beside.is_some();
                    let words = beside.unwrap_or_else(|| commands.take(shared.commands()));
                    // Before anything comes of it: what a dead daemon did not take was not begun.
                    commands.release(shared.mark(Mark::CommandHead));
                    compiler_fence(Ordering::SeqCst);
                    Command::parse(words).map(|command| Part { command, moved: 0 })
                }
            };
            let done = match part {
                Err(malformed) => {
                    allowance.spend(0);
                    Done { tag: malformed.tag, result: -libc::EINVAL }
                }
                Ok(part) => match begin(*number, channel, part, &mut table, device, &mut now_ns) {
                    Begun::Over(piece, result) => {
                        allowance.spend(piece);
                        unshown += u64::from(piece);
                        missing += u64::from(result == Done::MISSING);
                        match part.after(piece, result) {
                            Ok(more) => {
                                served += 1;
                                begun.push_back(more);
                                continue;
                            }
                            Err(done) => done,
                        }
                    }
                    Begun::InFlight(piece) => {
                        served += 1;
                        allowance.spend(piece);
                        continue;
                    }
                    Begun::NoRoom => {
                        *held_back = Some(part);
                        break;
                    }
                },
            };
            served += 1;
            *in_flight -= 1;
            completions.put(shared.completions(), done.words());
            answer = Some(done.words());
            if unshown >= SHOWN_AFTER_BYTES && !alone {
                unshown = 0;
                show(completions, channel, None);
            }
        }
        drop(table);
        add(&counters.commands, u64::from(taken));
        if served > 0 {
            add(&counters.missing, missing);
            show(completions, channel, answer.filter(|_| alone));
        }
        Ok(served > 0)
    }

    /// A piece of a command that was in flight is over.
    pub fn complete(&mut self, part: Part, piece: u32, result: i32) {
        match part.after(piece, result) {
            Ok(more) => self.begun.push_back(more),
            Err(done) => {
                self.in_flight -= 1;
                self.completions.put(self.channel.shared.completions(), done.words());
                show(&mut self.completions, &self.channel, None);
            }
        }
    }
}

/// Shows the client what is over, and wakes it if it sleeps; `alone` is the one completion that it waits for.
#[inline]
fn show(completions: &mut Producer, channel: &Channel, alone: Option<[u64; COMPLETION_WORDS]>) {
    let shared = &*channel.shared;
    let (tail, beside) = (shared.mark(Mark::CompletionTail), shared.beside_completions());
    match alone {
        Some(words) => completions.publish_beside(tail, beside, words),
        None => completions.publish(tail, beside.belongs_to),
    }
    let asleep = shared.mark(Mark::ClientAsleep);
    if asleep.load(Ordering::SeqCst) != 0 {
        asleep.store(0, Ordering::Relaxed);
        socket::ring(&channel.socket);
    }
}

/// Checks a command against the table and serves its next piece, or sends it on its way.
#[inline]
fn begin(
    number: u64,
    channel: &Arc<Channel>,
    part: Part,
    table: &mut Table<Way>,
    device: &mut Device,
    now_ns: &mut u64,
) -> Begun {
    let command = &part.command;
    let over = |result| Begun::Over(0, result);
    let Some((open, way)) = table.get(command.entry, command.generation) else {
        return over(Done::MISSING);
    };
    let rights = open.rights;
    let writes = command.opcode == Opcode::Write;
    let may_write = match way {
        Way::Memory { write, .. } | Way::Device { write, .. } => *write,
    };
    match command.opcode {
        Opcode::Read if !rights.read => return over(-libc::EBADF),
        _ if writes && !rights.write => return over(-libc::EBADF),
        _ if writes && !may_write => return over(Done::KERNEL),
        _ => {}
    }
    let end = command.offset.checked_add(u64::from(command.bytes));
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return over(-libc::EINVAL);
    }
    let Some(memory) = channel.shared.data(command.place, command.bytes) else {
        return over(-libc::EFAULT);
    };
    if command.bytes == 0 && !matches!(command.opcode, Opcode::Sync | Opcode::DataSync) {
        return over(0);
    }
    // SAFETY: no more was moved than the command has bytes, which all lie in the data area.
    let there = unsafe { memory.add(part.moved as usize) };
    let offset = command.offset + u64::from(part.moved);
    match way {
        Way::Memory { view, .. } => {
            let bytes = part.next_bytes(PIECE_BYTES);
            Begun::Over(
                bytes,
                match command.opcode {
                    // A file in memory is as durable as it will ever be.
                    Opcode::Sync | Opcode::DataSync => 0,
                    // SAFETY: the memory lies in the data area, which belongs to no file that is served.
                    Opcode::Read => unsafe { view.read(there, bytes, offset) },
                    Opcode::Write => {
                        // SAFETY: as above.
                        let done = unsafe { view.write(there, bytes, offset, &open.file) };
                        if done.is_some_and(|done| done > 0) {
                            if *now_ns == 0 {
                                *now_ns = since_1970_ns();
                            }
                            open.inode.written(*now_ns);
                            open.inode.changed();
                        }
                        done.unwrap_or(Done::KERNEL)
                    }
                },
            )
        }
        Way::Device { direct, may_block, .. } => {
            let bytes = part.next_bytes(DEVICE_PIECE_BYTES);
            if writes && offset + u64::from(bytes) > way::length(&open.file) {
                return over(Done::KERNEL);
            }
            let aligned = |alignment: u32| {
                let all = command.offset | u64::from(command.bytes) | memory as u64;
                all.is_multiple_of(u64::from(alignment))
            };
            let file = match direct {
                Some((file, alignment)) if aligned(*alignment) => &*file,
                _ => &open.file,
            };
            use std::os::fd::AsRawFd;
            let target = file.as_raw_fd();
            let io = match command.opcode {
                // SAFETY: the errand below keeps the file open.
                Opcode::Sync => unsafe { Io::sync(target, false) },
                // SAFETY: as above.
                Opcode::DataSync => unsafe { Io::sync(target, true) },
                // SAFETY: the memory lies in a mapping that the errand below keeps until the completion
                // is out; others may change it, and the kernel copies it like any shared memory.
                Opcode::Read => unsafe { Io::plain(Action::Read, target, there, bytes, offset) },
                // SAFETY: as above.
                Opcode::Write => unsafe { Io::plain(Action::Write, target, there, bytes, offset) },
            };
            let errand = Errand {
                lane: number,
                user: channel.uid,
                part,
                piece: bytes,
                open: open.clone(),
                direct: direct.as_ref().map(|(file, _)| file.clone()),
                writes,
                may_block: *may_block,
                polled: false,
                _shared: channel.shared.clone(),
            };
            device.begin(io, errand)
        }
    }
}

/// What became of a command when it was taken up.
pub(crate) enum Begun {
    /// A piece of so many bytes is over, with this result.
    Over(u32, i32),
    /// The completion of a piece of so many bytes comes later.
    InFlight(u32),
    /// Too many are in flight; try again.
    NoRoom,
}

/// Only the serving thread counts.
fn add(counter: &AtomicU64, more: u64) {
    if more > 0 {
        counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

fn since_1970_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;

    use super::*;
    use crate::controller::Options;
    use crate::grants::{Inodes, OpenFile};
    use crate::layout::Layout;
    use crate::shared::Shared;
    use crate::shares::Shares;

    pub const DATA_BYTES: u64 = 4 << 20;

    /// A channel with a file of its own, both sides of it.
    pub struct Both {
        pub lane: Lane,
        pub shared: Shared,
        commands: Producer,
        granted: (u32, u32),
        _client: OwnedFd,
    }

    impl Both {
        pub fn new(uid: u32, data: &[u8]) -> Both {
            let layout = Layout::new(64, DATA_BYTES).unwrap();
            let (shared, memory) = Shared::create(layout).unwrap();
            let other = Shared::adopt(memory, layout).unwrap();
            Self::over(uid, data, shared, other)
        }

        fn over(uid: u32, data: &[u8], ours: Shared, theirs: Shared) -> Both {
            let backing = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
            std::fs::write(backing.path(), data).unwrap();
            let file = File::options().read(true).write(true).open(backing.path()).unwrap();
            let inode = Inodes::default().of(&file).unwrap();
            let open = Arc::new(OpenFile::new(file, libc::O_RDWR, inode));
            let way = Way::to(&open, 0, &Shares::new(u64::MAX)).unwrap();
            let mut table = Table::new(8);
            let granted = table.insert(open, way);
            let (flags, kind) =
                (rustix::net::SocketFlags::CLOEXEC, rustix::net::SocketType::SEQPACKET);
            let family = rustix::net::AddressFamily::UNIX;
            let (socket, client) = rustix::net::socketpair(family, kind, flags, None).unwrap();
            let commands = Producer::new(ours.layout().entries());
            let channel = Arc::new(Channel {
                token: [0; 16],
                uid,
                socket,
                shared: Arc::new(ours),
                table: Mutex::new(table),
                ended: false.into(),
            });
            Both { lane: Lane::new(1, channel), shared: theirs, commands, granted, _client: client }
        }

        pub fn submit(&mut self, opcode: Opcode, offset: u64, bytes: u32) {
            let (entry, generation) = self.granted;
            let command = Command { opcode, tag: 7, entry, generation, offset, bytes, place: 0 };
            self.commands.put(self.shared.commands(), command.words());
            let beside = self.shared.beside_commands();
            self.commands.publish(self.shared.mark(Mark::CommandTail), beside.belongs_to);
        }

        pub fn answered(&self) -> u32 {
            self.shared.mark(Mark::CompletionTail).load(Ordering::Relaxed)
        }

        pub fn result(&self, at: usize) -> i32 {
            Done::parse([self.shared.completions()[at].load(Ordering::Relaxed)]).result
        }
    }

    pub fn device() -> Device {
        Device::new(&Options::default())
    }

    #[test]
    fn a_long_command_is_cut_into_pieces_between_which_others_have_their_turn() {
        let data: Vec<u8> = (0..DATA_BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        let mut both = Both::new(1, &data);
        let (mut device, counters) = (device(), Counters::default());
        both.submit(Opcode::Read, 0, DATA_BYTES as u32);
        let turns = DATA_BYTES / u64::from(PIECE_BYTES);
        for turn in 1..=turns {
            let mut allowance = Allowance::TURN;
            assert_eq!(both.lane.serve(&mut allowance, &mut device, &counters), Turn::Worked);
            assert_eq!(both.answered(), u32::from(turn == turns), "turn {turn} of {turns}");
        }
        assert_eq!(both.result(0), DATA_BYTES as i32);
        let memory = both.shared.data(0, DATA_BYTES as u32).unwrap();
        let mut seen = vec![0; data.len()];
        // SAFETY: the whole data area, and as much room.
        unsafe { dwell::mapping::copy(memory, seen.as_mut_ptr(), seen.len()) };
        assert!(seen == data);
        // And one that reaches past the end.
        both.submit(Opcode::Read, DATA_BYTES - (300 << 10), DATA_BYTES as u32);
        while both.answered() < 2 {
            both.lane.serve(&mut { Allowance::TURN }, &mut device, &counters);
        }
        assert_eq!(both.result(1), 300 << 10);
        assert_eq!(counters.commands.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_grant_that_is_taken_back_between_two_pieces_ends_the_command() {
        let mut both = Both::new(1, &vec![1; DATA_BYTES as usize]);
        let (mut device, counters) = (device(), Counters::default());
        both.submit(Opcode::Read, 0, DATA_BYTES as u32);
        both.lane.serve(&mut { Allowance::TURN }, &mut device, &counters);
        both.lane.channel.table().clear();
        both.lane.serve(&mut { Allowance::TURN }, &mut device, &counters);
        assert_eq!((both.answered(), both.result(0)), (1, Done::MISSING));
    }

    #[test]
    fn a_client_whose_memory_is_gone_loses_its_channel() {
        crate::survive_lost_memory().unwrap();
        let layout = Layout::new(64, DATA_BYTES).unwrap();
        let memory = tempfile::tempfile_in("/dev/shm").unwrap();
        let (ours, theirs) = (Shared::unsealed(&memory, layout), Shared::unsealed(&memory, layout));
        let mut both = Both::over(1, &[1; 8192], ours, theirs);
        let (mut device, counters) = (device(), Counters::default());
        for round in 0..3 {
            both.submit(Opcode::Read, 0, 4096);
            let came_of_it = both.lane.serve(&mut { Allowance::TURN }, &mut device, &counters);
            assert_eq!(came_of_it, if round < 2 { Turn::Worked } else { Turn::Over });
            if round == 1 {
                // As where a hole was made and the system has no page to put there. The rings stay.
                memory.set_len(layout.data()).unwrap();
            }
        }
        assert!(both.lane.is_over() && both.lane.is_broken());
    }
}
