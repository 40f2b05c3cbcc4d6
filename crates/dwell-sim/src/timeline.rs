// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happened when, for people and tests: one line of text per event.

use std::fmt;

use dwell_policy::Ns;

/// Something that happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It got the CPU.
    Runs,
    /// It asked the device for a page and spins.
    Spins {
        /// The page.
        page: u64,
    },
    /// It asked the device for a page and blocks.
    Blocks {
        /// The page.
        page: u64,
    },
    /// It needs a page that is on its way already.
    Late {
        /// The page.
        page: u64,
    },
    /// It found a page that a prefetch had brought.
    Finds {
        /// The page.
        page: u64,
    },
    /// It got a page of zeroes.
    Zero {
        /// The page.
        page: u64,
    },
    /// A page is fetched for it.
    Prefetches {
        /// The page.
        page: u64,
    },
    /// It pre-executed.
    PreExecuted {
        /// Instructions.
        instructions: u64,
    },
    /// The page it waited for is there.
    Gets {
        /// The page.
        page: u64,
    },
    /// One of its pages left DRAM.
    Loses {
        /// The page.
        page: u64,
    },
    /// Its time slice is over and another process is ready.
    Yields,
    /// It has no more instructions.
    Ends,
}

/// Events in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    names: Vec<String>,
    events: Vec<(Ns, usize, Event)>,
}

impl Timeline {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Timeline { names, events: Vec::new() }
    }

    pub(crate) fn note(&mut self, at: Ns, process: usize, event: Event) {
        self.events.push((at, process, event));
    }

    /// The events: when, which process by its index, what.
    pub fn events(&self) -> &[(Ns, usize, Event)] {
        &self.events
    }

    /// The processes that got the CPU, in order: one name per turn, between spaces.
    pub fn turns(&self) -> String {
        let turns = self.events.iter().filter(|(_, _, event)| *event == Event::Runs);
        turns.map(|&(_, process, _)| self.names[process].as_str()).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &(at, process, event) in &self.events {
            write!(f, "{at} {} ", self.names[process])?;
            match event {
                Event::Runs => writeln!(f, "runs"),
                Event::Spins { page } => writeln!(f, "spins for {page:#x}"),
                Event::Blocks { page } => writeln!(f, "blocks on {page:#x}"),
                Event::Late { page } => writeln!(f, "is early for {page:#x}"),
                Event::Finds { page } => writeln!(f, "finds {page:#x}"),
                Event::Zero { page } => writeln!(f, "gets zeroes at {page:#x}"),
                Event::Prefetches { page } => writeln!(f, "prefetches {page:#x}"),
                Event::PreExecuted { instructions } => writeln!(f, "pre-executed {instructions}"),
                Event::Gets { page } => writeln!(f, "gets {page:#x}"),
                Event::Loses { page } => writeln!(f, "loses {page:#x}"),
                Event::Yields => writeln!(f, "yields"),
                Event::Ends => writeln!(f, "ends"),
            }?;
        }
        Ok(())
    }
}
