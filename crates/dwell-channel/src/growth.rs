// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether channels may make a file longer.
//!
//! The kernel has a length of its own for each file, and goes by that one without asking where it serves a mapping, appends, or copies
//! from file to file. Of what grew past it, it learns when it asks for attributes next, and no notification of the protocol tells it
//! more than that it should ask. So channels make a file longer only while everybody who has it open takes
//! channels, and with that has promised to ask for the length first. With anybody else it is the kernel that makes it longer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Of one file.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    state: Mutex<State>,
    quiet: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Open files that nobody vouches for.
    strangers: u32,
    /// Commands under way that make the file longer.
    growing: u32,
}

impl Growth {
    /// Somebody goes by the kernel's length: nothing begins to grow from now on.
    pub fn stranger_comes(&self) {
        self.state().strangers += 1;
    }

    /// Waits until what had begun before a stranger came is over. Nobody waits here who has what a command needs.
    pub fn settle(&self) {
        let mut state = self.state();
        while state.growing > 0 && state.strangers > 0 {
            state = self.quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One less.
    pub fn stranger_leaves(&self) {
        self.state().strangers -= 1;
    }

    /// A command is about to make the file longer; `false` where that is the kernel's. [`Growth::end`] has to
    /// follow.
    pub fn begin(&self) -> bool {
        let mut state = self.state();
        if state.strangers > 0 {
            return false;
        }
        state.growing += 1;
        true
    }

    /// It is over.
    pub fn end(&self) {
        let mut state = self.state();
        state.growing -= 1;
        if state.growing == 0 {
            self.quiet.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of who has a file open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was granted to no channel since it was opened, or since a descriptor of it was closed.
    Stranger,
    /// It is granted to a channel.
    Vouched,
    /// It is used in a way that goes by the kernel's length, for ever.
    Apart,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_ends_growth_and_waits_for_what_grows() {
        let growth = Growth::default();
        assert!(growth.begin() && growth.begin());
        growth.end();
        std::thread::scope(|scope| {
            growth.stranger_comes();
            let stranger = scope.spawn(|| growth.settle());
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(!stranger.is_finished() && !growth.begin());
            growth.end();
            stranger.join().unwrap();
        });
        assert!(!growth.begin());
        growth.stranger_leaves();
        assert!(growth.begin());
    }
}
