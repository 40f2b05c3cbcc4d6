// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that clients connect to: it makes their channels and gives them to the first serving
//! thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::channel::Channel;
use crate::channel::serving::Serving;
use crate::counts::Commands;
use crate::layout::Layout;
use crate::shared::Shared;
use crate::socket::{self, Came};
use crate::state::{State, random};
use crate::table::Table;
use crate::wire::{Hello, Welcome};

/// Connections of one user that have not said yet what they want. One more takes the place of the
/// oldest.
const MOST_UNDECIDED: usize = 16;
/// Connections that are taken up before those that are there are heard.
const MOST_AT_ONCE: usize = 64;

/// A connection that has not said yet what it wants.
struct Undecided {
    socket: OwnedFd,
    /// The user whose share it is part of.
    account: u32,
    until: Instant,
}

pub(crate) struct Acceptor {
    state: Arc<State>,
    listener: OwnedFd,
    undecided: Vec<Undecided>,
}

impl Acceptor {
    pub fn new(state: Arc<State>, listener: OwnedFd) -> Self {
        Acceptor { state, listener, undecided: Vec::new() }
    }

    pub fn run(mut self) {
        while !self.state.stop.load(Ordering::Acquire) {
            let patient = self.undecided.iter().map(|one| one.until).min();
            self.wait(patient);
            let mut undecided = std::mem::take(&mut self.undecided);
            undecided.retain(|one| self.listen_to(&one.socket, one.until));
            self.undecided = undecided;
            for _ in 0..MOST_AT_ONCE {
                match socket::accept(&self.listener) {
                    Ok(Some(socket)) => self.take_up(socket),
                    Ok(None) => break,
                    // Nothing can be taken up before something is given back.
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(10));
                        break;
                    }
                }
            }
        }
    }

    fn account(&self, socket: &OwnedFd) -> io::Result<u32> {
        Ok(self.state.options.owners.of(socket::peer_uid(socket)?))
    }

    /// A user who connects and says nothing keeps nobody else waiting: their own older connections
    /// go.
    fn take_up(&mut self, socket: OwnedFd) {
        let Ok(account) = self.account(&socket) else { return };
        let own = self.undecided.iter().filter(|one| one.account == account).count();
        if own >= MOST_UNDECIDED
            && let Some(oldest) = self.undecided.iter().position(|one| one.account == account)
        {
            self.undecided.remove(oldest);
        }
        let until = Instant::now() + self.state.options.patience;
        self.undecided.push(Undecided { socket, account, until });
    }

    /// Sleeps until somebody connects or says something, or time is up for somebody.
    fn wait(&self, until: Option<Instant>) {
        let wanted = PollFlags::IN;
        let mut watched = vec![PollFd::new(&self.state.wake_acceptor, wanted)];
        watched.push(PollFd::new(&self.listener, wanted));
        watched.extend(self.undecided.iter().map(|one| PollFd::new(&one.socket, wanted)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let _ = rustix::event::poll(&mut watched, left.as_ref());
    }

    /// Whether a connection is to be heard further here.
    fn listen_to(&self, socket: &OwnedFd, until: Instant) -> bool {
        let mut message = [0; Hello::BYTES + 1];
        match socket::receive(socket, &mut message, false) {
            Came::Nothing => Instant::now() < until,
            Came::End => false,
            Came::Message(bytes, _) => {
                let hello = Hello::parse(&message[..bytes]);
                if let Err(error) = self.welcome(socket, hello) {
                    let error = error.raw_os_error().unwrap_or(libc::EPROTO);
                    let _ = socket::send(socket, &Welcome::refused(error).message(), None);
                }
                false
            }
        }
    }

    fn welcome(&self, socket: &OwnedFd, hello: Option<Hello>) -> io::Result<()> {
        let refused = |error| Err(io::Error::from_raw_os_error(error));
        let Some(hello) = hello else { return refused(libc::EPROTO) };
        let Some(layout) = Layout::new(hello.entries, hello.data_bytes) else {
            return refused(libc::EINVAL);
        };
        let account = self.account(socket)?;
        let options = &self.state.options;
        let channels = {
            let channels = self.state.channels();
            channels.values().filter(|channel| channel.account == account).count()
        };
        if channels >= options.most_channels as usize {
            return refused(libc::EMFILE);
        }
        let Some(share) = self.state.memory.take(account, layout.bytes()) else {
            return refused(libc::EMFILE);
        };
        let (shared, memory) = Shared::create(layout)?;
        let shared = shared.counted(share);
        let mut token = [0; 16];
        random(&mut token)?;
        let channel = Arc::new(Channel {
            token,
            account,
            commands: Commands::default(),
            socket: socket.try_clone()?,
            shared: Arc::new(shared),
            table: Mutex::new(Table::new(options.table_capacity)),
            ended: false.into(),
        });
        let welcome = Welcome {
            error: 0,
            token,
            entries: layout.entries(),
            capacity: options.table_capacity,
            data_bytes: layout.data_bytes(),
        };
        // Entered first: the client may ask for a grant as soon as it has the token.
        self.state.channels().insert(token, channel.clone());
        if let Err(error) = socket::send(socket, &welcome.message(), Some(memory.as_fd())) {
            self.state.channels().remove(&token);
            return Err(error);
        }
        let number = self.state.counters.made.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.posts[0].give(vec![Serving::new(number, channel)]);
        Ok(())
    }
}
