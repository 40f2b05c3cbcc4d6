// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges of a file that calls may still write to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Ranges of a file that calls may write to. Of two that overlap, the later one waits for the
/// earlier one, also where that waits itself, so that the later data cannot arrive first.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// By number, in the order in which they were asked for.
    asked: RefCell<BTreeMap<u64, Range<u64>>>,
    last: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

/// A range that no later call writes to meanwhile. All copies of a call's data share it.
#[derive(Debug)]
pub(crate) struct Held {
    ranges: Rc<Ranges>,
    number: u64,
}

impl Ranges {
    /// Whether there is a range that a call may write to.
    pub fn any(&self) -> bool {
        !self.asked.borrow().is_empty()
    }

    /// Waits until no earlier call may write to this range.
    pub async fn hold(self: &Rc<Self>, range: Range<u64>) -> Rc<Held> {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.asked.borrow_mut().insert(number, range.clone());
        let held = Rc::new(Held { ranges: self.clone(), number });
        poll_fn(|context| {
            let asked = self.asked.borrow();
            let mut earlier = asked.range(..number).map(|(_, earlier)| earlier);
            if earlier.any(|earlier| earlier.start < range.end && range.start < earlier.end) {
                self.waiting.borrow_mut().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ranges.asked.borrow_mut().remove(&self.number);
        let waiting = self.ranges.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}
