// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that serves all channels, in turn, and waits as the wait machine says.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use dwell::clock;
use dwell::monitor::{LoadReader, SpinPermit};
use dwell::queue::Wake;
use dwell_policy::{
    Backlog, Call, DeviceClass, Driver, Estimate, Kind, Load, Ns, Profile, Reason, Routes, Wait,
    WaitMachine, Woken, drive, policy,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::channel::Channel;
use crate::channel::serving::Serving;
use crate::channel::turn::Turn;
use crate::device::Device;
use crate::state::State;
use crate::users::Users;

/// Looks between two readings of the clock, while nothing is asked for.
const LOOKS_PER_STEP: usize = 16;
/// Turns between two readings of the clock, while there is something to do.
const TURNS_PER_STEP: u32 = 16;
/// How often doorbells are heard, in nanoseconds: a channel that rested waits so long at most.
const HEAR_NS: Ns = 20_000;
/// How long a channel without commands is looked at, at least.
const REST_NS: Ns = 1_000_000;

/// The serving thread's own things.
pub(crate) struct Service {
    state: Arc<State>,
    users: Users,
    /// Channels have numbers, which begin at 1 and are never used again.
    next_number: u64,
    device: Device,
    load: Option<(LoadReader, SpinPermit)>,
    profile: Profile,
    turns: u32,
    heard_at: Ns,
    rested_at: Ns,
}

impl Service {
    pub fn new(state: Arc<State>) -> io::Result<Service> {
        let users = Users::new(&state.wake)?;
        let monitor = state.options.monitor.as_ref();
        let load = monitor.map(|monitor| (monitor.reader(), monitor.permit()));
        let profile = state.options.known.profile.unwrap_or_default();
        // It is worth spinning for the next command, unless others need the CPU more.
        let (class, size_threshold_bytes) = (DeviceClass::Fast, u64::MAX);
        let profile = Profile { class, size_threshold_bytes, latency_ns: 0, ..profile };
        let device = Device::new(&state.options);
        let (next_number, turns, heard_at, rested_at) = (1, 0, 0, 0);
        Ok(Service { state, users, next_number, device, load, profile, turns, heard_at, rested_at })
    }

    pub fn run(mut self) {
        while !self.state.stop.load(Ordering::Acquire) {
            if !self.turn() {
                self.wait();
            }
        }
        // The kernel may still write to requests in flight: their memory stays until they are over.
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
        if self.turns.is_multiple_of(TURNS_PER_STEP) {
            self.look_around();
        }
        match self.users.turn(&mut self.device, &self.state.counters) {
            Turn::Idle => {}
            Turn::Worked => worked = true,
            Turn::Over => self.bury(),
        }
        let users = &mut self.users;
        worked | self.device.reap(&mut |errand, result| users.complete(&errand, result))
    }

    /// Hears doorbells and lets channels rest, if it is time for that.
    fn look_around(&mut self) {
        let now = clock::now();
        if now.saturating_sub(self.heard_at) < HEAR_NS {
            return;
        }
        self.heard_at = now;
        if now.saturating_sub(self.rested_at) >= REST_NS {
            self.rested_at = now;
            self.rest(false);
        }
        self.hear(Some(0));
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
            if self.users.add(Serving::new(number, channel.clone())).is_err() {
                self.forget(&channel);
            }
        }
        self.bury();
    }

    /// Lets go of channels that are over.
    #[cold]
    fn bury(&mut self) {
        for serving in self.users.take_over() {
            if serving.is_broken() {
                self.state.counters.broken.fetch_add(1, Ordering::Relaxed);
            }
            self.forget(&serving.channel);
        }
    }

    fn forget(&self, channel: &Channel) {
        channel.end();
        self.state.channels().remove(&channel.token);
    }

    fn rest(&mut self, all: bool) {
        if self.users.rest(all) {
            self.bury();
        }
    }

    /// Hears doorbells, and who is gone, waiting up to so many nanoseconds; `None` without limit.
    #[cold]
    fn hear(&mut self, limit_ns: Option<Ns>) {
        if self.users.hear(limit_ns) {
            self.bury();
        }
    }

    /// Waits for something to do, as the policy and the machine say.
    fn wait(&mut self) {
        // To a client that spins this thread is what a kernel's worker is to others: with the only
        // seat at the client's, both would wait badly, one spinning for a thread that sleeps. The
        // end of every spin bounds what it burns.
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
        self.hear(Some(until.saturating_sub(clock::now())));
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        // From here on clients ring, and what came before keeps its channel awake. The turn may
        // hear an older doorbell: the client of a channel that is awake does not ring.
        self.rest(true);
        match self.turn() || self.users.is_attentive() || self.is_over() {
            true => Woken::Look,
            false => self.leave_cpu(until),
        }
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
            None => self.hear(limit_ns),
            Some(ring) => {
                // SAFETY: the ring is this thread's own, and open while its requests are in flight.
                let ring = unsafe { BorrowedFd::borrow_raw(ring) };
                let mut watched = [
                    PollFd::from_borrowed_fd(ring, PollFlags::IN),
                    PollFd::from_borrowed_fd(self.users.doorbells().as_fd(), PollFlags::IN),
                ];
                let limit = limit_ns.map(|ns| Timespec {
                    tv_sec: (ns / 1_000_000_000) as i64,
                    tv_nsec: (ns % 1_000_000_000) as _,
                });
                let _ = rustix::event::poll(&mut watched, limit.as_ref());
                self.hear(Some(0));
            }
        }
        Woken::Look
    }
}
