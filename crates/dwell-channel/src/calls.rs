// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that no ring takes. Each is a system call, on a thread that has nothing else to do.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use dwell::external::External;
use dwell::queue::Io;
use dwell::source::Source;

use crate::credentials::Opener;
use crate::slow::Slow;

/// Wakes the thread that the calls are made for.
pub(crate) type Bell = Arc<dyn Fn() + Send + Sync>;

/// The errand of a call that is over, and its result.
type Over<T> = (T, i32);

/// The calls of one serving thread, each with its errand.
pub(crate) struct Calls<T> {
    threads: Slow,
    bell: Bell,
    in_flight: usize,
    say: Sender<Over<T>>,
    said: Receiver<Over<T>>,
}

impl<T: Send + 'static> Calls<T> {
    pub fn new(threads: Slow, bell: Bell) -> Self {
        let (say, said) = channel();
        Calls { threads, bell, in_flight: 0, say, said }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Makes a call as the opener of its file; `account` is the user whose share of the threads it
    /// takes.
    pub fn make(
        &mut self,
        source: &Arc<External>,
        io: Io,
        (opener, account): (Opener, u32),
        errand: T,
    ) {
        let (source, say, bell) = (source.clone(), self.say.clone(), self.bell.clone());
        self.in_flight += 1;
        self.threads.run(account, move || {
            let result = match opener.act() {
                Ok(_acting) => source.call(&io),
                Err(error) => -error.raw_os_error(),
            };
            // A thread that has ended waited for all of them.
            let _ = say.send((errand, result));
            bell();
        });
    }

    /// One that is over, with its result.
    pub fn over(&mut self) -> Option<Over<T>> {
        self.one(|said| said.try_recv().ok())
    }

    /// Waits until one is over; `None` where none is in flight.
    pub fn wait(&mut self) -> Option<Over<T>> {
        self.one(|said| said.recv().ok())
    }

    fn one(&mut self, hear: impl FnOnce(&Receiver<Over<T>>) -> Option<Over<T>>) -> Option<Over<T>> {
        if self.in_flight == 0 {
            return None;
        }
        let over = hear(&self.said)?;
        self.in_flight -= 1;
        Some(over)
    }
}
