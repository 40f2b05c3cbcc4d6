// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that serves all channels, in turn, and waits as the wait machine says.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use dwell::clock;
use dwell::monitor::{LoadReader, SpinPermit};
use dwell::queue::Wake;
use dwell_policy::{
    Backlog, Call, DeviceClass, Driver, Estimate, Kind, Load, Ns, Profile, Reason, Routes, Wait,
    WaitMachine, Woken, drive, policy,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::controller::{Channel, Counters, State};
use crate::device::Device;
use crate::lane::{Allowance, Lane, Turn};
use crate::socket;

/// Looks between two readings of the clock, while nothing is asked for.
const LOOKS_PER_STEP: usize = 16;
/// Turns after which those who left without a word are looked for, however busy the thread is.
const TURNS_PER_ROLL_CALL: u32 = 4096;
/// What wakes the thread but is no channel.
const OWN_WAKE: u64 = 0;

/// The serving thread's own things.
pub(crate) struct Service {
    state: Arc<State>,
    users: Vec<User>,
    /// Channels have numbers, which begin at 1 and are never used again.
    next_number: u64,
    /// Who is served first next time.
    first: usize,
    epoll: OwnedFd,
    device: Device,
    load: Option<(LoadReader, SpinPermit)>,
    profile: Profile,
    turns: u32,
}

/// One user's channels, which share that user's turns.
struct User {
    uid: u32,
    lanes: Vec<Lane>,
    /// Which is served first next time.
    first: usize,
}

impl User {
    /// Serves this user's channels for one turn.
    fn turn(&mut self, device: &mut Device, counters: &Counters) -> Turn {
        let (count, mut allowance) = (self.lanes.len(), Allowance::TURN);
        let (mut came_of_it, start) = (Turn::Idle, self.first);
        for step in 0..count {
            let at = (start + step) % count;
            // Where the turn ends here, the next one begins behind it.
            self.first = (at + 1) % count;
            match self.lanes[at].serve(&mut allowance, device, counters) {
                Turn::Idle => {}
                Turn::Worked if came_of_it == Turn::Over => {}
                turn => came_of_it = turn,
            }
            if allowance.is_spent() {
                return came_of_it;
            }
        }
        self.first = (start + 1) % count.max(1);
        came_of_it
    }
}

impl Service {
    pub fn new(state: Arc<State>) -> io::Result<Service> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(OWN_WAKE);
        epoll::add(&epoll, &state.wake, data, epoll::EventFlags::IN)?;
        let monitor = state.options.monitor.as_ref();
        let load = monitor.map(|monitor| (monitor.reader(), monitor.permit()));
        let profile = state.options.known.profile.unwrap_or_default();
        // It is worth spinning for the next command, unless others need the CPU more.
        let (class, size_threshold_bytes) = (DeviceClass::Fast, u64::MAX);
        let profile = Profile { class, size_threshold_bytes, latency_ns: 0, ..profile };
        let device = Device::new(&state.options);
        let (users, next_number, first, turns) = (Vec::new(), 1, 0, 0);
        Ok(Service { state, users, next_number, first, epoll, device, load, profile, turns })
    }

    pub fn run(mut self) {
        while !self.state.stop.load(Ordering::Acquire) {
            if !self.turn() {
                self.wait();
            }
        }
        // What is in flight may still be written by the kernel: its memory stays until then.
        self.users.clear();
        self.device.settle();
    }

    /// Serves every user once; whether there was anything to do.
    fn turn(&mut self) -> bool {
        let mut worked = false;
        if self.state.news.load(Ordering::Acquire) {
            self.take_up();
            worked = true;
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_ROLL_CALL) {
            self.roll_call(Some(0));
        }
        let (count, mut over) = (self.users.len(), false);
        for step in 0..count {
            let user = &mut self.users[(self.first + step) % count];
            match user.turn(&mut self.device, &self.state.counters) {
                Turn::Idle => {}
                Turn::Worked => worked = true,
                Turn::Over => over = true,
            }
        }
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
        if over {
            self.bury();
        }
        let users = &mut self.users;
        worked
            | self.device.reap(&mut |number, part, piece, result| {
                if let Some(lane) = lane_of(users, number) {
                    lane.complete(part, piece, result);
                }
            })
    }

    /// Takes up new channels, and lets those go that were ended by another thread.
    #[cold]
    fn take_up(&mut self) {
        self.state.news.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.state.wake, &mut [0; 8]);
        *self.state.heard.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.state.hears.notify_all();
        let fresh = std::mem::take(&mut *self.state.fresh());
        for channel in fresh {
            let number = self.next_number;
            self.next_number += 1;
            let data = epoll::EventData::new_u64(number);
            match epoll::add(&self.epoll, &channel.socket, data, epoll::EventFlags::IN) {
                Ok(()) => self.seat(Lane::new(number, channel)),
                Err(_) => self.forget(&channel),
            }
        }
        self.bury();
    }

    /// Gives a channel its place among its user's.
    fn seat(&mut self, lane: Lane) {
        let uid = lane.channel.uid;
        match self.users.iter_mut().find(|user| user.uid == uid) {
            Some(user) => user.lanes.push(lane),
            None => self.users.push(User { uid, lanes: vec![lane], first: 0 }),
        }
    }

    /// Lets go of channels that are over.
    #[cold]
    fn bury(&mut self) {
        let mut over = Vec::new();
        for user in &mut self.users {
            over.extend(user.lanes.extract_if(.., |lane| lane.is_over()));
            user.first = 0;
        }
        self.users.retain(|user| !user.lanes.is_empty());
        for lane in over {
            if lane.is_broken() {
                self.state.counters.broken.fetch_add(1, Ordering::Relaxed);
            }
            let _ = epoll::delete(&self.epoll, &lane.channel.socket);
            self.forget(&lane.channel);
        }
        self.first = 0;
    }

    fn forget(&self, channel: &Channel) {
        channel.end();
        self.state.channels().remove(&channel.token);
    }

    /// Hears doorbells, and who is gone, waiting up to so many nanoseconds; `None` without limit.
    #[cold]
    fn roll_call(&mut self, limit_ns: Option<Ns>) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let limit = limit_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, buffer, limit.as_ref()).is_err() {
            return;
        }
        let mut gone = false;
        for event in &events {
            let number = event.data.u64();
            if let Some(lane) = lane_of(&mut self.users, number)
                && !socket::drain(&lane.channel.socket)
            {
                lane.leave();
                gone = true;
            }
        }
        if gone {
            self.bury();
        }
    }

    /// Waits for something to do, as the policy and the machine say.
    fn wait(&mut self) {
        // To a client that spins this thread is what a kernel's worker is to others: with the only seat at the client's, both
        // would wait badly, one spinning for a thread that sleeps. The end of every spin bounds what it burns.
        let mut load = self.load.as_ref().map_or_else(Load::default, |(reader, _)| reader.load());
        load.may_spin = true;
        let wait = Wait {
            kind: Kind::Read,
            size_bytes: 4096,
            backlog: Backlog::default(),
            call: Call::Queued,
            routes: Routes::INTERRUPT,
            profile: Some(&self.profile),
            estimate: Estimate::default(),
            awake: true,
            load,
            nice: 0,
            next_nice: None,
            sequence: 0,
            learned: None,
        };
        let decision = match load.off {
            true => policy::block(&wait, Reason::Off),
            false => self.state.options.policy.choose(&wait),
        };
        let now = clock::now();
        let outcome = drive(WaitMachine::new(&decision, now, now), self);
        if let Some((_, permit)) = self.load.as_ref().filter(|_| outcome.spun_ns > 0) {
            permit.add_spin(outcome.spun_ns);
        }
    }

    fn arm(&self, on: bool) {
        self.users.iter().flat_map(|user| &user.lanes).for_each(|lane| lane.arm(on));
    }

    fn is_over(&self) -> bool {
        self.state.stop.load(Ordering::Acquire)
    }
}

fn lane_of(users: &mut [User], number: u64) -> Option<&mut Lane> {
    users.iter_mut().flat_map(|user| &mut user.lanes).find(|lane| lane.number == number)
}

impl Driver for Service {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        for look in 0..LOOKS_PER_STEP {
            if look > 0 {
                dwell::arch::relax();
            }
            if self.turn() {
                return true;
            }
        }
        self.is_over()
    }

    fn sleep(&mut self, until: Ns) {
        self.roll_call(Some(until.saturating_sub(clock::now())));
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        self.arm(true);
        // Once more, now that whoever comes will ring.
        let worked = self.turn();
        let woken = if worked || self.is_over() { Woken::Look } else { self.leave_cpu(until) };
        self.arm(false);
        woken
    }
}

impl Service {
    fn leave_cpu(&mut self, until: Option<Ns>) -> Woken {
        let limit_ns = until.map(|until| until.saturating_sub(clock::now()));
        let ring = match self.device.wake() {
            // A polled ring wakes nobody: timed polling takes the place of sleep.
            Some(Wake::Never) => return Woken::Unwakeable,
            Some(Wake::Ring { fd, .. }) => Some(fd),
            _ => None,
        };
        self.state.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        match ring {
            None => self.roll_call(limit_ns),
            Some(ring) => {
                // SAFETY: the ring is this thread's own, and open while its requests are in flight.
                let ring = unsafe { BorrowedFd::borrow_raw(ring) };
                let mut watched = [
                    PollFd::from_borrowed_fd(ring, PollFlags::IN),
                    PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN),
                ];
                let limit = limit_ns.map(|ns| Timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as _,
                });
                let _ = rustix::event::poll(&mut watched, limit.as_ref());
                self.roll_call(Some(0));
            }
        }
        Woken::Look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::tests::{Both, device};
    use crate::wire::Opcode;

    #[test]
    fn all_channels_of_a_user_share_that_users_turn() {
        let mut sides: Vec<_> = (0..3).map(|_| Both::new(1, &[1; 1 << 16])).collect();
        for both in &mut sides {
            (0..8).for_each(|_| both.submit(Opcode::Read, 0, 1 << 16));
        }
        let (lanes, clients): (Vec<_>, Vec<_>) =
            sides.into_iter().map(|both| (both.lane, both.shared)).unzip();
        let answered = || -> Vec<u32> {
            let tail = |client: &crate::shared::Shared| {
                client.mark(crate::layout::Mark::CompletionTail).load(Ordering::Relaxed)
            };
            clients.iter().map(tail).collect()
        };
        let mut user = User { uid: 1, lanes, first: 0 };
        let (mut device, counters) = (device(), Counters::default());
        for turn in 1..=6 {
            assert_eq!(user.turn(&mut device, &counters), Turn::Worked);
            // 256 KiB, whichever channel they are of.
            assert_eq!(answered().iter().sum::<u32>(), turn * 4, "{:?}", answered());
            if turn == 3 {
                assert_eq!(answered(), [4, 4, 4], "each channel has its turn");
            }
        }
        assert_eq!(user.turn(&mut device, &counters), Turn::Idle);
    }
}
