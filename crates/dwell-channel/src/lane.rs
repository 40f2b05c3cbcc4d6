// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel on the serving side: takes commands out, checks each once it is copied, and answers.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Most commands served before the next channel has its turn.
const MOST_COMMANDS: u32 = 32;
/// Bytes after which the next channel has its turn.
const MOST_BYTES: u64 = 256 << 10;
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
    /// Taken, and still to be begun: the device had no room.
    held_back: Option<Command>,
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

    /// Serves what was submitted, up to a channel's share of a turn.
    #[inline]
    pub fn serve(&mut self, device: &mut Device, counters: &Counters) -> Turn {
        match self.served(device, counters) {
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

    fn served(&mut self, device: &mut Device, counters: &Counters) -> Result<bool, Broken> {
        let Lane { number, channel, commands, completions, in_flight, held_back, .. } = self;
        let shared = &*channel.shared;
        let ready = commands.ready(shared.mark(Mark::CommandTail))?;
        if ready == 0 && held_back.is_none() {
            return Ok(false);
        }
        // Every command that is taken has room for its answer.
        let wanted = ready.min(MOST_COMMANDS) + *in_flight;
        let room = completions.room(wanted, shared.mark(Mark::CompletionHead))?;
        let take = ready.min(MOST_COMMANDS).min(room.saturating_sub(*in_flight));
        let (mut served, mut missing, mut bytes, mut unshown) = (0, 0, 0, 0);
        let mut now_ns = 0;
        // A client whose command lies beside the cursor waits for it alone, and has taken all completions before.
        let (mut alone, mut answer) = (false, None);
        let mut table = channel.table();
        for _ in 0..=take {
            let command = match held_back.take() {
                Some(command) => Ok(command),
                None if served == u64::from(take) || bytes >= MOST_BYTES => break,
                None => {
                    *in_flight += 1;
                    let beside = commands.take_beside(shared.beside_commands());
                    alone = beside.is_some();
                    Command::parse(beside.unwrap_or_else(|| commands.take(shared.commands())))
                }
            };
            served += 1;
            let done = match command {
                Err(malformed) => Done { tag: malformed.tag, result: -libc::EINVAL },
                Ok(command) => {
                    match begin(*number, channel, &command, &mut table, device, &mut now_ns) {
                        Begun::Over(result) => {
                            bytes += u64::from(command.bytes);
                            unshown += u64::from(command.bytes);
                            missing += u64::from(result == Done::MISSING);
                            Done { tag: command.tag, result }
                        }
                        Begun::InFlight => continue,
                        Begun::NoRoom => {
                            *held_back = Some(command);
                            served -= 1;
                            break;
                        }
                    }
                }
            };
            *in_flight -= 1;
            completions.put(shared.completions(), done.words());
            answer = Some(done.words());
            if unshown >= SHOWN_AFTER_BYTES && !alone {
                unshown = 0;
                show(completions, channel, None);
            }
        }
        drop(table);
        if served > 0 {
            add(&counters.commands, served);
            add(&counters.missing, missing);
            show(completions, channel, answer.filter(|_| alone));
            commands.release(shared.mark(Mark::CommandHead));
        }
        Ok(served > 0)
    }

    /// A command that was in flight is over.
    pub fn complete(&mut self, done: Done) {
        self.in_flight -= 1;
        self.completions.put(self.channel.shared.completions(), done.words());
        show(&mut self.completions, &self.channel, None);
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

/// Checks a command against the table and serves it, or sends it on its way.
#[inline]
fn begin(
    number: u64,
    channel: &Arc<Channel>,
    command: &Command,
    table: &mut Table<Way>,
    device: &mut Device,
    now_ns: &mut u64,
) -> Begun {
    let Some((open, way)) = table.get(command.entry, command.generation) else {
        return Begun::Over(Done::MISSING);
    };
    let rights = open.rights;
    let writes = matches!(command.opcode, Opcode::Write | Opcode::Extend);
    let may_write = match way {
        Way::Memory { write, .. } | Way::Device { write, .. } => *write,
    };
    match command.opcode {
        Opcode::Read if !rights.read => return Begun::Over(-libc::EBADF),
        _ if writes && !rights.write => return Begun::Over(-libc::EBADF),
        _ if writes && !may_write => return Begun::Over(Done::KERNEL),
        _ => {}
    }
    let end = command.offset.checked_add(u64::from(command.bytes));
    if end.is_none_or(|end| i64::try_from(end).is_err()) {
        return Begun::Over(-libc::EINVAL);
    }
    let Some(memory) = channel.shared.data(command.place, command.bytes) else {
        return Begun::Over(-libc::EFAULT);
    };
    if command.bytes == 0 && !matches!(command.opcode, Opcode::Sync | Opcode::DataSync) {
        return Begun::Over(0);
    }
    match way {
        Way::Memory { view, .. } => Begun::Over(match command.opcode {
            // A file in memory is as durable as it will ever be.
            Opcode::Sync | Opcode::DataSync => 0,
            // SAFETY: the memory lies in the data area, which belongs to no file that is served.
            Opcode::Read => unsafe { view.read(memory, command.bytes, command.offset) },
            Opcode::Write | Opcode::Extend => {
                let (bytes, offset) = (command.bytes, command.offset);
                // SAFETY: as above.
                let mut done = unsafe { view.write(memory, bytes, offset, &open.file) };
                if done.is_none() && command.opcode == Opcode::Extend && open.inode.begins_to_grow()
                {
                    // SAFETY: as above.
                    done = Some(unsafe { view.extend(memory, bytes, offset, &open.file) });
                    open.inode.growth.end();
                }
                if done.is_some_and(|done| done > 0) {
                    if *now_ns == 0 {
                        *now_ns = since_1970_ns();
                    }
                    open.inode.written(*now_ns);
                    open.inode.changed();
                }
                done.unwrap_or(Done::KERNEL)
            }
        }),
        Way::Device { direct, may_block, .. } => {
            let grows = writes && end > Some(way::length(&open.file));
            if grows && command.opcode == Opcode::Write {
                return Begun::Over(Done::KERNEL);
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
            let (bytes, offset) = (command.bytes, command.offset);
            let io = match command.opcode {
                Opcode::Sync => Io::sync(target, false),
                Opcode::DataSync => Io::sync(target, true),
                // SAFETY: the memory lies in a mapping that the errand below keeps until the completion
                // is out; others may change it, and the kernel copies it like any shared memory.
                Opcode::Read => unsafe { Io::plain(Action::Read, target, memory, bytes, offset) },
                // SAFETY: as above.
                Opcode::Write | Opcode::Extend => unsafe {
                    Io::plain(Action::Write, target, memory, bytes, offset)
                },
            };
            let errand = Errand {
                lane: number,
                tag: command.tag,
                open: open.clone(),
                direct: direct.as_ref().map(|(file, _)| file.clone()),
                grows,
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
    /// It is over.
    Over(i32),
    /// Its completion comes later.
    InFlight,
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
