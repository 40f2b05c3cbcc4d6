// SPDX-License-Identifier: MIT OR Apache-2.0
//! The users whose channels are served by turns, and which of their channels are looked at.
//!
//! A channel is awake while its commands are looked for. One that had none for a while rests: its
//! client rings when it submits, and until then the channel costs nothing.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use dwell_policy::Ns;
use rustix::event::{Timespec, epoll};

use crate::channel::serving::Serving;
use crate::channel::turn::{Allowance, Turn};
use crate::counts::Counters;
use crate::device::{Device, Errand};

/// Channels of one user that are looked at in a turn.
const LOOKS_PER_TURN: usize = 16;
/// Doorbells of one user that are heard at a time.
const HEARD_AT_ONCE: usize = 4;
/// Users whose doorbells are heard at a time.
const USERS_AT_ONCE: usize = 32;

/// One user's channels, which share that user's turns.
struct User {
    account: u32,
    awake: Vec<Serving>,
    resting: HashMap<u64, Serving>,
    /// Tells of channels that ring, and of those whose client is gone.
    doorbells: OwnedFd,
    /// Which is served first next time.
    first: usize,
}

impl User {
    fn new(account: u32) -> io::Result<User> {
        let doorbells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (awake, resting, first) = (Vec::new(), HashMap::new(), 0);
        Ok(User { account, awake, resting, doorbells, first })
    }

    /// Serves this user's channels for one turn.
    fn turn(&mut self, mut allowance: Allowance, device: &mut Device, counters: &Counters) -> Turn {
        let (count, mut came_of_it, start) = (self.awake.len(), Turn::Idle, self.first);
        for step in 0..count.min(LOOKS_PER_TURN) {
            let at = (start + step) % count;
            // Where the turn ends, the next one begins behind it.
            self.first = (at + 1) % count;
            match self.awake[at].serve(&mut allowance, device, counters) {
                Turn::Idle => {}
                Turn::Worked if came_of_it == Turn::Over => {}
                turn => came_of_it = turn,
            }
            if allowance.is_spent() {
                return came_of_it;
            }
        }
        if count <= LOOKS_PER_TURN {
            self.first = (start + 1) % count.max(1);
        }
        came_of_it
    }

    fn add(&mut self, channel: Serving) -> Result<(), Box<Serving>> {
        // An edge each: what is awake is not heard again and again, however often it rings.
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(channel.number);
        match epoll::add(&self.doorbells, &channel.channel.socket, data, wanted) {
            Ok(()) => self.awake.push(channel),
            Err(_) => return Err(Box::new(channel)),
        }
        Ok(())
    }

    /// Hears some doorbells; whether a client is gone.
    fn hear(&mut self) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(HEARD_AT_ONCE);
        heard(&self.doorbells, &mut events, Some(0));
        let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let mut any = false;
        for event in &events {
            let (number, is_gone) = (event.data.u64(), { event.flags }.intersects(gone));
            if let Some(channel) = self.channel(number).filter(|_| is_gone) {
                channel.leave();
                any = true;
            } else if let Some(channel) = self.resting.remove(&number) {
                self.awake.push(channel.awoken());
            }
        }
        any
    }

    fn channel(&mut self, number: u64) -> Option<&mut Serving> {
        match self.resting.get_mut(&number) {
            Some(channel) => Some(channel),
            None => self.awake.iter_mut().find(|channel| channel.number == number),
        }
    }

    /// Lets channels rest that had nothing to do since the last time, or all that have nothing to
    /// do now.
    fn rest(&mut self, all: bool) {
        let tired = |channel: &mut Serving| (all | !channel.has_worked()) && channel.rest();
        for channel in self.awake.extract_if(.., tired) {
            self.resting.insert(channel.number, channel);
        }
    }

    /// Takes out awake channels that another thread can serve, until there are `most` of them.
    fn part_with(&mut self, most: usize, leaving: &mut Vec<Serving>) {
        let before = leaving.len();
        let mut left = most.saturating_sub(before);
        leaving.extend(self.awake.extract_if(.., |channel| {
            let leaves = left > 0 && channel.can_move();
            left -= usize::from(leaves);
            leaves
        }));
        self.unhear(&leaving[before..]);
    }

    /// Takes out all channels that another thread can serve, which are awake then.
    fn part_with_all(&mut self, leaving: &mut Vec<Serving>) {
        self.part_with(usize::MAX, leaving);
        let before = leaving.len();
        let resting = self.resting.extract_if(|_, channel| channel.can_move());
        leaving.extend(resting.map(|(_, channel)| channel.awoken()));
        self.unhear(&leaving[before..]);
    }

    /// Hears no more of channels that it has no more.
    fn unhear(&mut self, gone: &[Serving]) {
        for channel in gone {
            let _ = epoll::delete(&self.doorbells, &channel.channel.socket);
        }
        self.first = 0;
    }

    /// A piece of a command that was in flight is over.
    fn complete(&mut self, errand: &Errand, result: i32) {
        let Some(channel) = self.channel(errand.channel) else { return };
        channel.complete(errand.part, errand.piece, result);
        if channel.is_busy()
            && let Some(channel) = self.resting.remove(&errand.channel)
        {
            self.awake.push(channel.awoken());
        }
    }

    /// Takes out the channels that are over.
    fn take_over(&mut self, over: &mut Vec<Serving>) {
        let before = over.len();
        over.extend(self.awake.extract_if(.., |channel| channel.is_over()));
        over.extend(
            self.resting.extract_if(|_, channel| channel.is_over()).map(|(_, channel)| channel),
        );
        self.unhear(&over[before..]);
    }
}

/// Fills `events` with what an epoll has, waiting up to so many nanoseconds; `None` without limit.
fn heard(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, limit_ns: Option<Ns>) {
    let limit = limit_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(events), limit.as_ref());
}

/// All of them.
pub(crate) struct Users {
    /// Those of whom a channel is awake.
    awake: Vec<User>,
    resting: HashMap<u32, User>,
    /// Index in `awake` of the user served first next time.
    first: usize,
    /// Tells of users whose channels ring, and of what else wakes the thread.
    doorbells: OwnedFd,
}

/// The epoll datum of the thread's own wake-up, which is no user's number.
const OWN_WAKE: u64 = u64::MAX;

impl Users {
    /// Nobody yet; `wake` ends a wait for them.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(wake: impl AsFd) -> io::Result<Users> {
        let doorbells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(OWN_WAKE);
        // An edge: the thread may hear the news before it is woken for them.
        epoll::add(&doorbells, wake, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Users { awake: Vec::new(), resting: HashMap::new(), first: 0, doorbells })
    }

    /// Readable when there is something to hear.
    pub fn doorbells(&self) -> &OwnedFd {
        &self.doorbells
    }

    /// Gives a channel its place among its user's.
    ///
    /// # Errors
    /// The channel, where the system has no room for it.
    pub fn add(&mut self, channel: Serving) -> Result<(), Box<Serving>> {
        let account = channel.channel.account;
        let mut user = match self.take(account).map_or_else(|| self.welcome(account), Ok) {
            Ok(user) => user,
            Err(_) => return Err(Box::new(channel)),
        };
        let added = user.add(channel);
        self.put(user);
        added
    }

    fn welcome(&self, account: u32) -> io::Result<User> {
        let user = User::new(account)?;
        let data = epoll::EventData::new_u64(account.into());
        epoll::add(&self.doorbells, &user.doorbells, data, epoll::EventFlags::IN)?;
        Ok(user)
    }

    fn take(&mut self, account: u32) -> Option<User> {
        match self.awake.iter().position(|user| user.account == account) {
            Some(at) => Some(self.awake.swap_remove(at)),
            None => self.resting.remove(&account),
        }
    }

    fn put(&mut self, user: User) {
        match (user.awake.is_empty(), user.resting.is_empty()) {
            // Its descriptor leaves the other's watch by itself.
            (true, true) => {}
            (true, false) => _ = self.resting.insert(user.account, user),
            (false, _) => self.awake.push(user),
        }
    }

    /// Serves every user of whom a channel is awake once.
    #[inline]
    pub fn turn(&mut self, device: &mut Device, counters: &Counters) -> Turn {
        let count = self.awake.len();
        let allowance = if count > 1 { Allowance::AMONG_OTHERS } else { Allowance::ALONE };
        let mut came_of_it = Turn::Idle;
        for step in 0..count {
            let user = &mut self.awake[(self.first + step) % count];
            match user.turn(allowance, device, counters) {
                Turn::Idle => {}
                Turn::Worked if came_of_it == Turn::Over => {}
                turn => came_of_it = turn,
            }
        }
        if count > 0 {
            self.first = (self.first + 1) % count;
        }
        came_of_it
    }

    /// Hears doorbells and departures, waiting up to so many nanoseconds; `None` without limit.
    /// Whether a client is gone.
    #[cold]
    pub fn hear(&mut self, limit_ns: Option<Ns>) -> bool {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(USERS_AT_ONCE);
        heard(&self.doorbells, &mut events, limit_ns);
        let mut gone = false;
        for event in &events {
            let account = event.data.u64();
            if let Some(mut user) = u32::try_from(account).ok().and_then(|user| self.take(user)) {
                gone |= user.hear();
                self.put(user);
            }
        }
        gone
    }

    /// Lets channels rest that had nothing to do since the last time, or `all` that have nothing to
    /// do now. Whether a channel turned out to be over.
    #[cold]
    pub fn rest(&mut self, all: bool) -> bool {
        self.awake.iter_mut().for_each(|user| user.rest(all));
        for user in self.awake.extract_if(.., |user| user.awake.is_empty()) {
            self.resting.insert(user.account, user);
        }
        self.first = 0;
        self.awake.iter().flat_map(|user| &user.awake).any(Serving::is_over)
    }

    /// Whether a client may submit without ringing, and nothing but a look would show it.
    pub fn is_attentive(&self) -> bool {
        self.awake.iter().flat_map(|user| &user.awake).any(|channel| !channel.is_busy())
    }

    /// Whether every channel rests.
    #[cfg(test)]
    pub fn is_resting(&self) -> bool {
        self.awake.is_empty()
    }

    /// A piece of a command that was in flight is over.
    pub fn complete(&mut self, errand: &Errand, result: i32) {
        let account = errand.account;
        if let Some(user) = self.awake.iter_mut().find(|user| user.account == account) {
            user.complete(errand, result);
        } else if let Some(mut user) = self.resting.remove(&account) {
            user.complete(errand, result);
            self.put(user);
        }
    }

    /// Channels that are awake.
    pub fn awake(&self) -> usize {
        self.awake.iter().map(|user| user.awake.len()).sum()
    }

    /// Takes out awake channels that another thread can serve, at most so many.
    #[cold]
    pub fn part_with(&mut self, most: usize) -> Vec<Serving> {
        let mut leaving = Vec::new();
        self.awake.iter_mut().for_each(|user| user.part_with(most, &mut leaving));
        self.sort();
        leaving
    }

    /// Takes out all channels that another thread can serve.
    #[cold]
    pub fn part_with_all(&mut self) -> Vec<Serving> {
        let mut leaving = Vec::new();
        self.awake.iter_mut().for_each(|user| user.part_with_all(&mut leaving));
        self.resting.values_mut().for_each(|user| user.part_with_all(&mut leaving));
        self.sort();
        leaving
    }

    /// Gives each user the right place after channels were taken out.
    fn sort(&mut self) {
        for user in std::mem::take(&mut self.awake) {
            self.put(user);
        }
        self.resting.retain(|_, user| !user.resting.is_empty());
        self.first = 0;
    }

    /// Takes out the channels that are over.
    #[cold]
    pub fn take_over(&mut self) -> Vec<Serving> {
        let mut over = Vec::new();
        self.awake.iter_mut().for_each(|user| user.take_over(&mut over));
        self.resting.values_mut().for_each(|user| user.take_over(&mut over));
        self.sort();
        over
    }

    /// Lets all of them go.
    pub fn clear(&mut self) {
        self.awake.clear();
        self.resting.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::channel::serving::tests::{Both, device};
    use crate::layout::Mark;
    use crate::shared::Shared;
    use crate::wire::Opcode;

    fn answered(client: &Shared) -> u32 {
        client.mark(Mark::CompletionTail).load(Ordering::Relaxed)
    }

    fn users(sides: Vec<Both>) -> (Users, Vec<Both>) {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut users = Users::new(wake).unwrap();
        let mut clients = Vec::new();
        for (number, mut both) in (1..).zip(sides) {
            let channel = Serving::new(number, both.serving.channel.clone());
            // What was granted to the channel is granted; only who serves it is new.
            let mut channel = std::mem::replace(&mut both.serving, channel);
            channel.number = number;
            assert!(users.add(channel).is_ok());
            clients.push(both);
        }
        (users, clients)
    }

    #[test]
    fn all_channels_of_a_user_share_that_users_turn() {
        let mut sides: Vec<_> = (0..3).map(|_| Both::new(1, &[1; 1 << 16])).collect();
        for both in &mut sides {
            (0..8).for_each(|_| both.submit(Opcode::Read, 0, 1 << 16));
        }
        let (mut users, clients) = users(sides);
        let answers = || clients.iter().map(|both| answered(&both.shared)).collect::<Vec<_>>();
        let (mut device, counters) = (device(), Counters::default());
        for turn in 1..=6 {
            assert_eq!(users.turn(&mut device, &counters), Turn::Worked);
            // 256 KiB, whichever channel they are of.
            assert_eq!(answers().iter().sum::<u32>(), turn * 4, "{:?}", answers());
            if turn == 3 {
                assert_eq!(answers(), [4, 4, 4], "each channel has its turn");
            }
        }
        assert_eq!(users.turn(&mut device, &counters), Turn::Idle);
    }

    #[test]
    fn a_user_with_long_commands_moves_no_more_than_a_small_piece_between_those_of_another() {
        let (mut greedy, mut modest) = (Both::new(1, &[1; 1 << 20]), Both::new(2, &[1; 8192]));
        greedy.submit(Opcode::Read, 0, 1 << 20);
        (0..8).for_each(|_| modest.submit(Opcode::Read, 0, 4096));
        let (mut users, clients) = users(vec![greedy, modest]);
        let (mut device, counters) = (device(), Counters::default());
        let moved = |both: &Both| {
            both.seen(1 << 20).iter().step_by(4096).filter(|byte| **byte == 1).count()
        };
        while answered(&clients[1].shared) < 8 {
            let before = (moved(&clients[0]), answered(&clients[1].shared));
            users.turn(&mut device, &counters);
            assert!(
                answered(&clients[1].shared) > before.1,
                "the other waits for more than a piece"
            );
            assert!(moved(&clients[0]) <= before.0 + Allowance::AMONG_OTHERS.pages());
        }
    }

    #[test]
    fn a_channel_without_commands_is_not_looked_at_until_its_client_rings() {
        let sides = vec![Both::new(1, &[1; 8192]), Both::new(1, &[1; 8192])];
        let (mut users, mut clients) = users(sides);
        let (mut device, counters) = (device(), Counters::default());
        let asleep = |both: &Both| both.shared.mark(Mark::DaemonAsleep).load(Ordering::SeqCst);
        clients[0].submit(Opcode::Read, 0, 4096);
        users.turn(&mut device, &counters);
        users.rest(false);
        assert_eq!((asleep(&clients[0]), asleep(&clients[1])), (0, 1), "one has worked");
        // A client that does not ring is not served.
        clients[1].submit(Opcode::Read, 0, 4096);
        users.hear(Some(0));
        users.turn(&mut device, &counters);
        assert_eq!(answered(&clients[1].shared), 0);
        clients[1].ring();
        users.hear(Some(0));
        assert_eq!(asleep(&clients[1]), 0);
        assert_eq!(users.turn(&mut device, &counters), Turn::Worked);
        assert_eq!(answered(&clients[1].shared), 1);
        // What was submitted and not taken keeps a channel awake.
        clients[0].submit(Opcode::Read, 0, 4096);
        users.rest(true);
        assert_eq!((asleep(&clients[0]), asleep(&clients[1])), (0, 1));
        assert!(!users.is_resting());
        users.turn(&mut device, &counters);
        users.rest(true);
        assert!(users.is_resting());
    }

    #[test]
    fn a_flood_of_doorbells_is_heard_a_few_at_a_time_and_none_of_those_awake() {
        let sides = (0..12).map(|_| Both::new(1, &[1; 8192])).collect();
        let (mut users, clients) = users(sides);
        users.rest(true);
        for both in &clients {
            (0..100).for_each(|_| both.ring());
        }
        let awake = |users: &Users| users.awake.iter().map(|user| user.awake.len()).sum::<usize>();
        for heard in 1..=3 {
            users.hear(Some(0));
            assert_eq!(awake(&users), heard * HEARD_AT_ONCE);
        }
        users.hear(Some(0));
        assert_eq!(awake(&users), 12);
    }

    #[test]
    fn a_client_that_is_gone_is_let_go_whether_its_channel_rests_or_not() {
        for rests in [true, false] {
            let (mut users, clients) = users(vec![Both::new(1, &[1; 8192])]);
            if rests {
                users.rest(true);
            }
            drop(clients);
            assert!(users.hear(Some(0)));
            assert_eq!(users.take_over().len(), 1);
            assert!(users.is_resting() && users.resting.is_empty());
        }
    }
}
