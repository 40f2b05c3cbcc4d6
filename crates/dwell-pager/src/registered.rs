// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's registration with a region.

use std::marker::PhantomData;
use std::sync::Arc;

use dwell::clock;

use crate::mask::Quiet;
use crate::shared::Shared;
use crate::signal;
use crate::stages::Stages;

/// The calling thread faults on the region by a queue of its own, for as long as this lives.
pub struct Registered {
    shared: Option<(Arc<Shared>, u16)>,
    _this_thread: PhantomData<*const ()>,
}

impl Registered {
    /// The calling thread's thread queue in a region, or none where it needs none.
    pub(crate) fn of(shared: Option<(Arc<Shared>, u16)>) -> Registered {
        Registered { shared, _this_thread: PhantomData }
    }

    /// When the calling thread's last fault passed its stages; `None` unless the region was opened
    /// with [`crate::Options::stages`] and this thread has faulted.
    pub fn last_fault(&self) -> Option<Stages> {
        let (shared, number) = self.shared.as_ref().filter(|(shared, _)| shared.stages)?;
        let mut last = None;
        let _quiet = Quiet::new();
        signal::with_thread_queue(shared, *number, |thread_queue| last = Some(thread_queue.stages));
        last.filter(|stages| stages.entered > 0)
    }

    /// Sets the nice value that this thread is known by in the pager; at first it is the thread's
    /// own.
    pub fn set_nice(&self, nice: i8) {
        let Some((shared, number)) = self.shared.as_ref().filter(|(shared, _)| shared.is_here())
        else {
            return;
        };
        let _quiet = Quiet::new();
        signal::with_thread_queue(shared, *number, |thread_queue| {
            thread_queue.nice = nice.clamp(-20, 19);
            if let Some(slot) = thread_queue.slot {
                shared.board.wants_cpu(slot, thread_queue.nice, true);
            }
        });
    }

    /// Says whether this thread wants the CPU, before it waits for something that the pager does
    /// not see and after.
    pub fn set_idle(&self, idle: bool) {
        let Some((shared, number)) = self.shared.as_ref().filter(|(shared, _)| shared.is_here())
        else {
            return;
        };
        let _quiet = Quiet::new();
        signal::with_thread_queue(shared, *number, |thread_queue| {
            if let Some(slot) = thread_queue.slot {
                shared.board.wants_cpu(slot, thread_queue.nice, !idle);
            }
        });
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some((shared, number)) = self.shared.take() else { return };
        let quiet = Quiet::new();
        let Some(mut thread_queue) = shared.thread_queues.leave(number) else { return };
        if !shared.is_here() {
            std::mem::forget((thread_queue, shared));
            return;
        }
        if let Some(slot) = thread_queue.slot.take() {
            shared.board.leave(slot);
        }
        thread_queue.mask = quiet.mask();
        const PATIENCE_NS: u64 = 5_000_000_000;
        if !thread_queue.drain(&shared, clock::now() + PATIENCE_NS) {
            // A device that answers no more may still write to the frames: their memory is given
            // up.
            std::mem::forget((thread_queue, shared));
        }
    }
}
