// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that serves all channels, in turn, and waits as the wait machine says.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dwell::clock;
use dwell::monitor::{LoadReader, SpinPermit};
use dwell::queue::Wake;
use dwell_policy::{
    Backlog, Call, DeviceClass, Driver, Estimate, Kind, Load, Ns, Profile, Routes, Wait,
    WaitMachine, Woken, drive,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::controller::{Channel, State};
use crate::device::Device;
use crate::lane::{Lane, Turn};
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
    /// Channels by number; the numbers begin at 1 and are never used again.
    lanes: Vec<Lane>,
    next_number: u64,
    /// Who is served first next time.
    first: usize,
    epoll: OwnedFd,
    device: Device,
    load: Option<(LoadReader, SpinPermit)>,
    profile: Profile,
    turns: u32,
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
        let (lanes, next_number, first, turns) = (Vec::new(), 1, 0, 0);
        Ok(Service { state, lanes, next_number, first, epoll, device, load, profile, turns })
    }

    pub fn run(mut self) {
        while !self.state.stop.load(Ordering::Acquire) {
            if !self.turn() {
                self.wait();
            }
        }
        // What is in flight may still be written by the kernel: its memory stays until then.
        self.lanes.clear();
        self.device.settle();
    }

    /// Serves every channel once; whether there was anything to do.
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
        let (count, mut over) = (self.lanes.len(), false);
        for step in 0..count {
            let lane = &mut self.lanes[(self.first + step) % count];
            match lane.serve(&mut self.device, &self.state.counters) {
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
        let lanes = &mut self.lanes;
        worked
            | self.device.reap(&mut |number, done| {
                if let Some(lane) = lanes.iter_mut().find(|lane| lane.number == number) {
                    lane.complete(done);
                }
            })
    }

    /// Takes up new channels, and lets those go that were ended by another thread.
    #[cold]
    fn take_up(&mut self) {
        self.state.news.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.state.wake, &mut [0; 8]);
        let fresh = std::mem::take(&mut *self.state.fresh());
        for channel in fresh {
            let number = self.next_number;
            self.next_number += 1;
            let data = epoll::EventData::new_u64(number);
            match epoll::add(&self.epoll, &channel.socket, data, epoll::EventFlags::IN) {
                Ok(()) => self.lanes.push(Lane::new(number, channel)),
                Err(_) => self.forget(&channel),
            }
        }
        self.bury();
    }

    /// Lets go of channels that are over.
    #[cold]
    fn bury(&mut self) {
        let (over, rest): (Vec<_>, Vec<_>) = self.lanes.drain(..).partition(Lane::is_over);
        self.lanes = rest;
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
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.number == number)
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
        let decision = self.state.options.policy.choose(&Wait {
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
        });
        let now = clock::now();
        let outcome = drive(WaitMachine::new(&decision, now, now), self);
        if let Some((_, permit)) = self.load.as_ref().filter(|_| outcome.spun_ns > 0) {
            permit.add_spin(outcome.spun_ns);
        }
    }

    fn arm(&self, on: bool) {
        self.lanes.iter().for_each(|lane| lane.arm(on));
    }

    fn is_over(&self) -> bool {
        self.state.stop.load(Ordering::Acquire)
    }
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
