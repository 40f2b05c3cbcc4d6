// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether somebody takes up what the kernel asks: a request of the daemon's own through its mount
//! comes back. No device takes part in the answer.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A thread that makes the requests.
pub(super) struct Watch {
    /// Its number, which its requests have.
    tid: u32,
    ask: Sender<()>,
    out: Mutex<Out>,
}

struct Out {
    /// A request was made and is not back.
    is_out: bool,
    back: Receiver<u32>,
}

impl Watch {
    /// One of a mount that is still to be made.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn new(mount: &Path) -> io::Result<Watch> {
        let (mount, (ask, asked), (say, back)) = (mount.to_owned(), channel(), channel());
        let watch = move || {
            leave_descriptors();
            let tid = rustix::thread::gettid().as_raw_pid().unsigned_abs();
            let mut told = say.send(tid);
            while told.is_ok() && asked.recv().is_ok() {
                let _ = rustix::fs::statfs(&mount);
                told = say.send(tid);
            }
        };
        thread::Builder::new().name("dwell-watch".to_owned()).spawn(watch)?;
        let tid = back.recv().map_err(io::Error::other)?;
        Ok(Watch { tid, ask, out: Mutex::new(Out { is_out: false, back }) })
    }

    /// Whether a request comes from here.
    pub fn asks(&self, tid: u32) -> bool {
        tid == self.tid
    }

    /// Whether a request comes back within that time. While it does not, no other is made.
    pub fn comes_back(&self, within: Duration) -> bool {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if !out.is_out {
            out.is_out = self.ask.send(()).is_ok();
        }
        let came = out.is_out && out.back.recv_timeout(within).is_ok();
        out.is_out &= !came;
        came
    }
}

/// Leaves this thread without descriptors. If the daemon is killed while the thread waits for it,
/// the kernel would otherwise keep the connection open for that thread, and the thread waiting.
fn leave_descriptors() {
    // SAFETY: the thread gets a table of its own with nothing in it. It holds no descriptor and
    // makes no use of one.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    }
}
