// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C and SIGTERM: an orderly end the first time, at once the second.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::{flag, iterator};

const WATCHED: [i32; 2] = [SIGINT, SIGTERM];

/// What asks a program to end at once.
pub const TERMINATE: i32 = SIGTERM;

/// Signals received since [`Signals::watch`].
pub struct Signals {
    /// Set by the first.
    pub stop: Arc<AtomicBool>,
    last: Arc<AtomicUsize>,
}

impl Signals {
    /// From now on the first signal only sets [`Signals::stop`].
    pub fn watch() -> io::Result<Self> {
        let signals = Signals { stop: Arc::default(), last: Arc::default() };
        for signal in WATCHED {
            flag::register_conditional_shutdown(signal, status(signal), signals.stop.clone())?;
            flag::register_usize(signal, signals.last.clone(), signal as usize)?;
            flag::register(signal, signals.stop.clone())?;
        }
        Ok(signals)
    }

    /// The signal that was received.
    pub fn received(&self) -> Option<i32> {
        let signal = self.last.load(Ordering::SeqCst) as i32;
        (signal != 0).then_some(signal)
    }
}

/// Lets `farewell` speak at the first signal, and ends the program.
pub fn end_with(farewell: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = iterator::Signals::new(WATCHED)?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            farewell(signal);
            std::process::exit(status(signal));
        }
    });
    Ok(())
}

/// Hands every signal to a function, on a thread of its own.
pub fn each(mut heard: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = iterator::Signals::new(WATCHED)?;
    std::thread::Builder::new().name("dwell-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            heard(signal);
        }
    })?;
    Ok(())
}

/// A write beyond the limit of file sizes (`ulimit -f`) fails from now on, and does not end the
/// program.
pub fn survive_file_size_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(|_| ())
}

/// What a shell says of a program that a signal ended.
const fn status(signal: i32) -> i32 {
    128 + signal
}

/// The signal's name.
pub fn name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

/// A piece of work that a signal ended.
#[derive(Debug)]
pub struct Ended {
    /// The signal.
    pub signal: i32,
    /// What was kept of the work.
    pub kept: String,
}

impl Ended {
    /// The program's exit status.
    pub fn status(&self) -> u8 {
        status(self.signal) as u8
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by {}: {}", name(self.signal), self.kept)
    }
}

impl std::error::Error for Ended {}
