// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that takes long: other Python threads run meanwhile, and Ctrl-C ends it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

/// How often signals are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How far some work is: the words for what is done, and the share that is done.
pub type Far = Mutex<(String, f64)>;

/// Does `work` on a thread of its own. `progress(what, share)` is called from the caller's thread.
/// Once `cancel` is set, the work ends soon.
///
/// # Errors
/// What a signal's handler or `progress` raised.
pub fn done<T: Send>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Far, &AtomicBool) -> T + Send,
) -> PyResult<T> {
    let (far, cancel) = (Far::default(), AtomicBool::new(false));
    let (tell, told) = channel();
    let told = Mutex::new(told);
    std::thread::scope(|scope| {
        let (far, cancel) = (&far, &cancel);
        scope.spawn(move || {
            // The receiver lives as long as the scope.
            let _ = tell.send(work(far, cancel));
        });
        let wait = |long: Duration| match told.lock() {
            Ok(told) => told.recv_timeout(long),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        };
        let mut shown = (String::new(), -1.0);
        loop {
            match py.detach(|| wait(LOOK)) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(super::error::refused("the simulation ended early; this is a bug"));
                }
            }
            let now = far.lock().map(|far| far.clone()).unwrap_or_default();
            let heard = py.check_signals().and_then(|()| match progress {
                Some(progress) if now != shown => progress.call1(py, now.clone()).map(drop),
                _ => Ok(()),
            });
            shown = now;
            if let Err(raised) = heard {
                cancel.store(true, Ordering::Relaxed);
                return Err(raised);
            }
        }
    })
}
