// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that serves channels, in turn, and waits as the wait machine says.
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

use crate::balance::{self, Move, Window};
use crate::calls::Calls;
use crate::channel::Channel;
use crate::channel::turn::Turn;
use crate::device::Device;
use crate::post::Post;
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

/// A serving thread's own things.
pub(crate) struct Service {
    state: Arc<State>,
    /// Where its post is among those of all threads.
    own: usize,
    users: Users,
    window: Window,
    /// When it began to look, the last time in a wait.
    looked_at: Ns,
    device: Device,
    load: Option<(LoadReader, SpinPermit)>,
    profile: Profile,
    turns: u32,
    heard_at: Ns,
    rested_at: Ns,
}

impl Service {
    /// The one whose post is at `own`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(state: Arc<State>, own: usize) -> io::Result<Service> {
        let users = Users::new(state.posts[own].wake())?;
        let now = clock::now();
        let window = Window::new(now);
        let monitor = state.options.monitor.as_ref();
        let load = monitor.map(|monitor| (monitor.reader(), monitor.permit()));
        let profile = state.options.parameters.profile.unwrap_or_default();
        // It is worth spinning for the next command, unless others need the CPU more.
        let (class, size_threshold_bytes) = (DeviceClass::Fast, u64::MAX);
        let profile = Profile { class, size_threshold_bytes, latency_ns: 0, ..profile };
        let posts = state.clone();
        let bell = Arc::new(move || posts.posts[own].tell());
        let device = Device::new(&state.options, Calls::new(state.slow.clone(), bell));
        let (turns, heard_at, rested_at) = (0, 0, 0);
        Ok(Service {
            state,
            own,
            users,
            window,
            looked_at: now,
            device,
            load,
            profile,
            turns,
            heard_at,
            rested_at,
        })
    }

    fn post(&self) -> &Post {
        &self.state.posts[self.own]
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
        if self.post().has_news() {
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
        if self.has_company()
            && let Some(busy) = self.window.passed(now)
        {
            self.balance(busy, now);
        }
    }

    /// Whether there are other serving threads.
    fn has_company(&self) -> bool {
        self.state.posts.len() > 1
    }

    /// Gives channels to another thread, if this one cannot keep up or need not be.
    fn balance(&mut self, busy: u32, now: Ns) {
        self.post().show_busy(busy);
        if let Some((reader, _)) = &self.load {
            // Or the monitor reads the load once a second only.
            reader.note_request();
        }
        let awake = self.users.awake();
        let (to, leaving) = match balance::decide(self.own, busy, awake, &self.state.posts) {
            Move::HalfTo(to) if self.has_cpu_for(to, now) => (to, self.users.part_with(awake / 2)),
            Move::AllToFirst => (0, self.users.part_with_all()),
            Move::Stay | Move::HalfTo(_) => return,
        };
        if !leaving.is_empty() {
            self.post().lost(leaving.len());
            // As busy as this one, until it has watched itself.
            self.state.posts[to].show_busy(busy);
            self.state.posts[to].give(leaving);
        }
    }

    /// Whether another thread is awake, or there is a CPU for it.
    fn has_cpu_for(&self, at: usize, now: Ns) -> bool {
        let Some((reader, _)) = &self.load else { return true };
        let mut taken = self.state.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.posts[at].busy() > 0 || taken.one(reader.load(), self.state.cpus, now)
    }

    /// Takes up new channels, and lets those go that were ended by another thread.
    #[cold]
    fn take_up(&mut self) {
        let given = self.post().hear();
        if !given.is_empty() {
            self.window = Window::new(clock::now());
        }
        for serving in given {
            match self.users.add(serving) {
                Ok(()) => {}
                Err(serving) if self.own == 0 => self.forget(&serving.channel),
                // Where its user may have others.
                Err(serving) => {
                    self.post().lost(1);
                    self.state.posts[0].give(vec![*serving]);
                }
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
        self.state.forget(channel);
        self.post().lost(1);
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
        // To a client that spins this thread is what a kernel's worker is to others. If the client
        // had the only spinner of the limit, it would spin for a thread that sleeps. The end of
        // every spin bounds what it burns.
        let mut load = self.load.as_ref().map_or_else(Load::default, |(reader, _)| reader.load());
        load.may_spin = true;
        let wait = Wait {
            kind: Kind::Read,
            size_bytes: 4096,
            backlog: Backlog::default(),
            call: Call::Async,
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
        let began = clock::now();
        self.looked_at = began;
        let outcome = drive(WaitMachine::new(&decision, began, began), self);
        let asleep = outcome.slept_ns + outcome.parked_ns;
        self.window.waited((self.looked_at - began).saturating_sub(asleep), asleep);
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
            if self.has_company() {
                self.looked_at = clock::now();
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
        self.looked_at = clock::now();
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
        self.post().show_busy(0);
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::channel::serving::Serving;
    use crate::channel::serving::tests::Both;
    use crate::daemon::Options;
    use crate::wire::Opcode;

    /// Clients of so many channels at the first of two threads, none of which runs by itself.
    fn two_threads(channels: u64) -> (Vec<Service>, Vec<Both>) {
        let options = Options { most_threads: 2, ..Options::default() };
        let state = Arc::new(State::new(options, Vec::new()).unwrap());
        let (mut clients, mut given) = (Vec::new(), Vec::new());
        for number in 1..=channels {
            let mut both = Both::new(1, &[7; 8192]);
            let stays = Serving::new(0, both.serving.channel.clone());
            let mut goes = std::mem::replace(&mut both.serving, stays);
            goes.number = number;
            given.push(goes);
            clients.push(both);
        }
        state.posts[0].give(given);
        let services = (0..2).map(|own| Service::new(state.clone(), own).unwrap());
        (services.collect(), clients)
    }

    /// Turns of all threads, before each of which `ask` may submit, until `enough`. A thread whose
    /// turn was in vain has been idle since the last one.
    fn turns(
        services: &mut [Service],
        clients: &mut [Both],
        ask: impl Fn(&mut Both),
        enough: impl Fn(&[Service]) -> bool,
    ) {
        let until = Instant::now() + Duration::from_secs(20);
        let mut last = clock::now();
        while !enough(services) {
            assert!(Instant::now() < until, "it never comes to that");
            for both in &mut *clients {
                ask(both);
            }
            let now = clock::now();
            for service in &mut *services {
                if !service.turn() {
                    service.window.waited(now - last, 0);
                }
            }
            last = now;
            for both in &*clients {
                both.take_answers();
            }
        }
    }

    fn posts(services: &[Service]) -> [u32; 2] {
        [services[0].post().channels(), services[1].post().channels()]
    }

    #[test]
    fn a_thread_that_always_finds_work_shares_it_and_takes_it_back_when_there_is_little() {
        let (mut services, mut clients) = two_threads(4);
        let read = |both: &mut Both| both.submit(Opcode::Read, 0, 4096);
        turns(&mut services, &mut clients, read, |services| posts(services) == [2, 2]);
        let before: Vec<u32> = clients.iter().map(Both::answered).collect();
        turns(&mut services, &mut clients, read, |services| services[1].users.awake() == 2);
        let mut rounds = 0;
        while rounds < 10 {
            rounds += 1;
            clients.iter_mut().for_each(read);
            services.iter_mut().for_each(|service| _ = service.turn());
            clients.iter().for_each(Both::take_answers);
        }
        for (both, before) in clients.iter().zip(before) {
            assert!(both.answered() >= before + 10, "each is served wherever it is");
            assert_eq!(both.seen(4096), [7; 4096]);
        }
        let asked = Cell::new(0);
        let seldom = |both: &mut Both| {
            asked.set(asked.get() + 1);
            if asked.get() % 65 == 0 {
                both.submit(Opcode::Read, 0, 4096);
                both.ring();
            }
        };
        turns(&mut services, &mut clients, seldom, |services| posts(services) == [4, 0]);
    }

    #[test]
    fn a_thread_with_one_channel_keeps_it() {
        let (mut services, mut clients) = two_threads(1);
        let began = Instant::now();
        let read = |both: &mut Both| both.submit(Opcode::Read, 0, 4096);
        let passed = |_: &[Service]| began.elapsed() > Duration::from_millis(60);
        turns(&mut services, &mut clients, read, passed);
        assert_eq!(posts(&services), [1, 0]);
    }
}
