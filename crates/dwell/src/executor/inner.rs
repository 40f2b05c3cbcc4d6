// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as the reactor sees it: its queue, what it has learned, and what becomes of its requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dwell_policy::{Decision, Estimator, Ns, Outcome};

use super::Core;
use super::reactor::{Flight, Owner};
use crate::admission::{Admission, Standing};
use crate::async_submission::Course;
use crate::file::File;
use crate::learner::Asked;
use crate::parameters::Entered;
use crate::queue::Io;
use crate::source::Source;

/// What all requests of an opened file share, whichever clone of it they are asked of.
pub(super) struct Inner<S: Source>
where
    S::Queue: Send,
{
    pub file: Arc<File<S>>,
    pub core: Rc<Core>,
    pub line: Option<usize>,
    pub estimator: RefCell<Estimator>,
    course: RefCell<Course>,
    standing: RefCell<Standing>,
    pub sequence: Cell<u64>,
    pub in_flight: Cell<u32>,
}

impl<S: Source> Inner<S>
where
    S::Queue: Send,
{
    pub fn new(file: Arc<File<S>>, core: Rc<Core>, line: Option<usize>) -> Self {
        Inner {
            file,
            core,
            line,
            estimator: RefCell::new(Estimator::new()),
            course: RefCell::default(),
            standing: RefCell::default(),
            sequence: Cell::new(0),
            in_flight: Cell::new(0),
        }
    }

    /// A request is out again, or never comes out.
    fn left(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

impl<S: Source> Drop for Inner<S>
where
    S::Queue: Send,
{
    fn drop(&mut self) {
        if let Some(line) = self.line {
            self.core.reactor.borrow_mut().leave_line(line);
        }
    }
}

impl<S: Source> Owner for Inner<S>
where
    S::Queue: Send,
{
    fn admission(&self) -> Option<&Admission> {
        self.file.admission()
    }

    fn switch_ns(&self) -> Ns {
        self.file.switch_ns()
    }

    fn waited(&self, decision: &Decision, asked: Option<Asked>, outcome: &Outcome) {
        if let Some(counters) = self.file.counters() {
            counters.passed(outcome);
        }
        if let (Some(learner), Some(asked)) = (self.file.learner(), asked) {
            self.course.borrow_mut().waited(learner, asked, decision, outcome.ended);
        }
    }

    fn begin(&self, asked: Option<Asked>, now: Ns) {
        if self.in_flight.get() == 0 {
            self.course.borrow_mut().begin(self.file.learner(), asked, now);
        }
    }

    fn enter(&self, io: &Io) -> Entered {
        self.in_flight.set(self.in_flight.get() + 1);
        self.file.in_flight.enter(io.bytes())
    }

    fn landed(
        &self,
        flight: &Flight,
        decision: &Decision,
        result: i32,
        latency_ns: Option<Ns>,
        expired: bool,
    ) -> i32 {
        let mut estimator = self.estimator.borrow_mut();
        let learned = latency_ns.map(|latency_ns| (&mut *estimator, latency_ns));
        let Flight { io, entered, wanted, .. } = flight;
        let standing = &mut self.standing.borrow_mut();
        let landed = self.file.landed(io, decision, *entered, result, learned, *wanted, standing);
        self.course.borrow_mut().landed(1);
        self.left();
        match landed.called {
            true => self.file.count_called(),
            false => self.file.count_queued(decision, expired),
        }
        landed.result
    }

    fn gave_up(&self, flight: &Flight) {
        self.file.in_flight.leave(flight.entered);
        self.left();
    }
}
