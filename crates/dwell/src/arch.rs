// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that depends on the processor.

use std::sync::atomic::{AtomicBool, Ordering};

static PAUSE: AtomicBool = AtomicBool::new(true);

/// Chooses whether spin loops execute the processor's spin hint (PAUSE on x86-64, YIELD on Arm).
/// It gives a sibling hardware thread and the power budget some room; SmartCon §7.8 compares both.
pub fn set_pause(on: bool) {
    PAUSE.store(on, Ordering::Relaxed);
}

/// Whether spin loops execute the hint: yes, unless [`set_pause`] said otherwise.
pub fn pause() -> bool {
    PAUSE.load(Ordering::Relaxed)
}

/// One turn of a spin loop.
#[inline]
pub fn relax() {
    if pause() {
        std::hint::spin_loop();
    }
}
