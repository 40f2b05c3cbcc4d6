// SPDX-License-Identifier: MIT OR Apache-2.0
//! One channel, as its client has it: the memory, the rings, the socket.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dwell::fork::ForkMark;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::grants::Token;
use crate::layout::{COMMAND_WORDS, Layout, Mark, PAGE_BYTES};
use crate::ring::{Broken, Consumer, Producer};
use crate::shared::Shared;
use crate::socket::{self, Came};
use crate::wire::{Command, Done, Hello, Welcome};

/// Least entries of a ring.
const LEAST_ENTRIES: u32 = 16;
/// How long a daemon may take to welcome a client.
const PATIENCE_S: i64 = 1;

/// What a library does that is a guest in somebody else's program.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Takes a descriptor that a channel needs out of the program's way: it may give it another
    /// number, or refuse. A forked child of the program closes it by itself.
    pub keep: fn(OwnedFd) -> io::Result<OwnedFd>,
    /// A number that changes whenever a descriptor may have become another file: before and after
    /// each close, after each open. What was granted before is not used any more.
    pub epoch: fn(RawFd) -> u32,
}

/// How large a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Commands in flight.
    pub depth: u32,
    /// Bytes that a command copies at most, a multiple of a page; longer requests are several
    /// commands.
    pub slot_bytes: u32,
    /// Bytes for buffers that live in the channel.
    pub arena_bytes: u32,
}

impl Shape {
    /// Most commands in flight.
    pub const MOST_DEPTH: u32 = 2048;

    /// For that many requests in flight, none of which has its buffer in the channel.
    pub fn of_depth(depth: u32) -> Shape {
        let depth = depth.clamp(1, Self::MOST_DEPTH);
        let slot_bytes = ((4u32 << 20) / depth).clamp(4 << 10, 128 << 10) & !4095;
        Shape { depth, slot_bytes, arena_bytes: 0 }
    }

    fn layout(&self) -> Option<Layout> {
        // Twice the depth: the places of answered commands come back a little later than the
        // answers. And so many at least that the other side's cursors are looked at seldom.
        let entries = self.depth.checked_mul(2)?.checked_next_power_of_two()?.max(LEAST_ENTRIES);
        let slots = u64::from(self.depth) * u64::from(self.slot_bytes);
        let bytes = slots + u64::from(self.arena_bytes);
        Layout::new(entries, bytes.next_multiple_of(PAGE_BYTES))
    }
}

/// A channel.
#[derive(Debug)]
pub struct Link {
    socket: ManuallyDrop<OwnedFd>,
    /// The guest that says whether the socket's number is still the socket's, and the epoch that it
    /// gave at first.
    guest: Option<(Guest, u32)>,
    /// Not unmapped in a forked child, which never had it: something else may lie there.
    shared: ManuallyDrop<Arc<Shared>>,
    token: Token,
    commands: Producer,
    /// The command that was put in last.
    last: [u64; COMMAND_WORDS],
    completions: Consumer,
    mark: ForkMark,
    process: u32,
}

impl Link {
    /// Connects to the daemon under that name; `guest` is given the descriptor that stays.
    ///
    /// # Errors
    /// What the system or the daemon refuses; a daemon of another user than root or the caller.
    pub fn connect(place: &[u8], shape: Shape, guest: Option<Guest>) -> io::Result<Link> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let layout = shape.layout().ok_or_else(|| invalid("no channel has such a shape"))?;
        let socket = socket::connect(place)?;
        let socket = match guest {
            Some(guest) => (guest.keep)(socket)?,
            None => socket,
        };
        let uid = socket::peer_uid(&socket)?;
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let hello = Hello { entries: layout.entries(), data_bytes: layout.data_bytes() };
        socket::send(&socket, &hello.message(), None)?;
        let limit = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit))?;
        let mut message = [0; Welcome::BYTES + 1];
        let (bytes, memory) = match socket::receive(&socket, &mut message, true) {
            Came::Message(bytes, memory) => (bytes, memory),
            Came::Nothing => return Err(io::ErrorKind::TimedOut.into()),
            Came::End => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        let welcome = Welcome::parse(&message[..bytes])
            .ok_or_else(|| invalid("whoever listens there is no daemon"))?;
        if welcome.error != 0 {
            return Err(io::Error::from_raw_os_error(welcome.error as i32));
        }
        let memory = memory.ok_or_else(|| invalid("the daemon sent no memory"))?;
        // The numbers are those that were asked for, not what the other side says.
        let shared = Shared::adopt(memory, layout)?;
        shared.keep_from_children()?;
        Ok(Link {
            guest: guest.map(|guest| (guest, (guest.epoch)(socket.as_raw_fd()))),
            socket: ManuallyDrop::new(socket),
            shared: ManuallyDrop::new(Arc::new(shared)),
            token: welcome.token,
            commands: Producer::new(layout.entries()),
            last: [0; COMMAND_WORDS],
            completions: Consumer::new(layout.entries()),
            mark: ForkMark::new()?,
            process: std::process::id(),
        })
    }

    /// What names it when a grant is asked for.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Its memory.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether the calling process may use it: it made it, is no forked child, and has put nothing
    /// else in the place of its socket.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.mark.same_process()
            && self.guest.is_none_or(|(guest, epoch)| (guest.epoch)(self.descriptor()) == epoch)
    }

    /// The process that made it.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Puts a command in the ring; nobody sees it before [`Link::submit`]. `false` where there is
    /// no room.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    #[inline]
    pub fn put(&mut self, command: &Command) -> Result<bool, Broken> {
        if self.commands.room(1, self.shared.mark(Mark::CommandHead))? == 0 {
            return Ok(false);
        }
        self.last = command.words();
        self.commands.put(self.shared.commands(), self.last);
        Ok(true)
    }

    /// Where the command that was put in last stands in the ring.
    #[inline]
    pub fn place(&self) -> u32 {
        self.commands.tail()
    }

    /// As far as the daemon has taken commands, which it says before it begins what they ask for.
    pub fn taken(&self) -> u32 {
        self.shared.mark(Mark::CommandHead).load(Ordering::Acquire)
    }

    /// Submits all commands that were put in, in one store, and wakes the daemon if it sleeps;
    /// `alone` where it is one, and every command before it has been answered.
    #[inline]
    pub fn submit(&mut self, alone: bool) {
        let tail = self.shared.mark(Mark::CommandTail);
        let beside = self.shared.beside_commands();
        match alone {
            true => self.commands.publish_beside(tail, beside, self.last),
            false => self.commands.publish(tail, beside.belongs_to),
        }
        let asleep = self.shared.mark(Mark::DaemonAsleep);
        if asleep.load(Ordering::SeqCst) != 0 {
            asleep.store(0, Ordering::Relaxed);
            socket::ring(&self.socket);
        }
    }

    /// Whether the daemon looks for commands by itself.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.shared.mark(Mark::DaemonAsleep).load(Ordering::Relaxed) == 0
    }

    /// How many completions are there.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    #[inline]
    pub fn ready(&mut self) -> Result<u32, Broken> {
        self.completions.ready(self.shared.mark(Mark::CompletionTail))
    }

    /// The next of them.
    #[inline]
    pub fn take(&mut self) -> Done {
        let beside = self.completions.take_beside(self.shared.beside_completions());
        Done::parse(beside.unwrap_or_else(|| self.completions.take(self.shared.completions())))
    }

    /// Gives the places of all that were taken back to the daemon.
    #[inline]
    pub fn release(&self) {
        self.completions.release(self.shared.mark(Mark::CompletionHead));
    }

    /// Asks to be woken, by [`Link::descriptor`] becoming readable.
    pub fn arm(&self) {
        self.shared.mark(Mark::ClientAsleep).swap(1, Ordering::SeqCst);
    }

    /// Asks for that no longer; whether the daemon is still there.
    pub fn disarm(&self) -> bool {
        self.shared.mark(Mark::ClientAsleep).store(0, Ordering::Relaxed);
        self.is_alive()
    }

    /// Whether the daemon is still there.
    pub fn is_alive(&self) -> bool {
        socket::drain(&self.socket)
    }

    /// Becomes readable when the daemon wakes this client, and when it is gone.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Link {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let is_ours = self.is_ours();
        if is_ours {
            // A forked child may still have the socket.
            socket::end(&self.socket);
            // SAFETY: nobody looks there any more. Buffers in the channel may still keep the
            // memory.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
        // A guest's number may be the program's by now.
        if is_ours || self.guest.is_none() {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}
