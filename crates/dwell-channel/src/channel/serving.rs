// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel on the serving side: takes commands out, checks each once it is copied, and answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use super::Channel;
use super::begin::{Task, begin};
use super::turn::{Allowance, Part, Turn};
use crate::counts::Counters;
use crate::device::{Begun, Device};
use crate::layout::{COMPLETION_WORDS, Mark};
use crate::ring::{Broken, Consumer, Producer};
use crate::socket;
use crate::wire::{Command, Done};

/// Bytes copied after which finished commands are shown to the client, who can use them meanwhile.
const SHOWN_AFTER_BYTES: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Left,
    Broken,
}

/// A channel, as the thread has it that serves it.
pub(crate) struct Serving {
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
    /// Served something since that was last asked.
    worked: bool,
    end: End,
}

impl Serving {
    pub fn new(number: u64, channel: Arc<Channel>) -> Self {
        let entries = channel.shared.layout().entries();
        let (commands, completions) = (Consumer::new(entries), Producer::new(entries));
        Serving {
            number,
            channel,
            commands,
            completions,
            in_flight: 0,
            held_back: None,
            begun: VecDeque::new(),
            worked: false,
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

    /// Whether anything was served since this was last asked.
    pub fn has_worked(&mut self) -> bool {
        std::mem::take(&mut self.worked)
    }

    /// Whether it has commands that were taken up and of which a piece is still to be begun.
    pub fn is_busy(&self) -> bool {
        self.held_back.is_some() || !self.begun.is_empty()
    }

    /// Whether another thread can serve it: nothing of it is with this one's device.
    pub fn can_move(&self) -> bool {
        let here = self.begun.len() + usize::from(self.held_back.is_some());
        self.in_flight as usize == here && !self.is_over()
    }

    /// Has the client ring when it submits; `false` where it has submitted something already.
    pub fn rest(&mut self) -> bool {
        if self.is_busy() || self.is_over() {
            return false;
        }
        // What rang before says nothing of what comes.
        if !socket::drain(&self.channel.socket) {
            self.leave();
            return false;
        }
        let shared = &self.channel.shared;
        // In one order with the look at the ring that follows.
        shared.mark(Mark::DaemonAsleep).swap(1, Ordering::SeqCst);
        match self.can_serve() {
            Ok(false) => return true,
            Ok(true) => {}
            Err(Broken { .. }) => self.end = End::Broken,
        }
        let shared = &self.channel.shared;
        shared.mark(Mark::DaemonAsleep).store(0, Ordering::Relaxed);
        false
    }

    /// Whether there is a command, and room for its answer. A client that takes no answers rings
    /// when it did.
    fn can_serve(&mut self) -> Result<bool, Broken> {
        let shared = &self.channel.shared;
        if self.commands.ready(shared.mark(Mark::CommandTail))? == 0 {
            return Ok(false);
        }
        let wanted = self.in_flight + 1;
        Ok(self.completions.room(wanted, shared.mark(Mark::CompletionHead))? >= wanted)
    }

    /// The same channel, whose client need not ring.
    pub fn awoken(mut self) -> Self {
        self.channel.shared.mark(Mark::DaemonAsleep).store(0, Ordering::Relaxed);
        self.worked = true;
        self
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
            Ok(true) => {
                self.worked = true;
                Turn::Worked
            }
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
        let Serving { number, channel, commands, completions, in_flight, held_back, begun, .. } =
            self;
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
        // A client whose command lies beside the cursor waits for it alone, and has taken all
        // completions before.
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
                    let command = Command::parse(words);
                    channel.commands.one(command.as_ref().ok().map(|command| command.opcode));
                    command.map(Part::first)
                }
            };
            let done = match part {
                Err(malformed) => {
                    allowance.spend(0);
                    Done { tag: malformed.tag, result: -libc::EINVAL }
                }
                Ok(part) => match begin(Task {
                    number: *number,
                    channel,
                    part,
                    most_bytes: allowance.bytes as u32,
                    table: &mut table,
                    device,
                    now_ns: &mut now_ns,
                }) {
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
        if served > 0 {
            if missing > 0 {
                counters.missing.fetch_add(missing, Ordering::Relaxed);
            }
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

/// Shows the client what is over, and wakes it if it sleeps; `alone` is the one completion that it
/// waits for.
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

#[cfg(test)]
pub(crate) mod tests;
