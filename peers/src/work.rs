// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every peer does: the subject, and the requests of one batch that its tasks share.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell_bench::batch::{Batch, Request};
use dwell_bench::program::{Answer, Order};
use dwell_bench::usage::{Meter, Scope};

/// A file or block device.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Where it is.
    pub path: PathBuf,
    /// How many bytes are used, from its beginning.
    pub bytes: u64,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether it may be written.
    pub write: bool,
    /// Whether each eight bytes read must hold their offset.
    pub verify: bool,
}

impl Subject {
    /// Flags beside the access mode.
    pub fn flags(&self) -> i32 {
        if self.direct { libc::O_DIRECT } else { 0 }
    }

    /// Opens it as the standard library does.
    pub fn open(&self) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(self.write)
            .custom_flags(self.flags())
            .open(&self.path)
            .with_context(|| format!("open {}", self.path.display()))
    }
}

/// A batch whose requests tasks of one thread take in turn.
#[derive(Debug)]
pub struct Work {
    /// What was asked for.
    pub order: Order,
    /// On what.
    pub subject: Subject,
    batch: RefCell<Batch>,
}

impl Work {
    /// What an order asks for.
    ///
    /// # Errors
    /// An order that cannot be carried out on this subject.
    pub fn new(order: &Order, subject: &Subject) -> Result<Self> {
        let size = order.size_bytes;
        ensure!(size > 0 && size <= subject.bytes, "requests of {size} bytes do not fit");
        ensure!(size <= 1 << 30, "requests of {size} bytes; at most {}", 1 << 30);
        let depth = order.requests.depth;
        ensure!((1..=4096).contains(&depth), "queue depth {depth}: 1 to 4096 is wanted");
        let mut batch = Batch::new(order.requests, size, subject.bytes, order.seed);
        ensure!(subject.write || !batch.writes(), "writes were not allowed (--write)");
        if order.samples {
            batch.keep_samples();
        }
        Ok(Work { order: order.clone(), subject: subject.clone(), batch: RefCell::new(batch) })
    }

    /// Request size, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.order.size_bytes as usize
    }

    /// Requests in flight.
    pub fn depth(&self) -> usize {
        self.order.requests.depth as usize
    }

    /// Whether the requests are writes.
    pub fn writes(&self) -> bool {
        self.batch.borrow().writes()
    }

    /// Begins a batch of the fewest requests, which nobody measures.
    pub fn warm_up(&self) {
        self.batch.borrow_mut().begin(Duration::ZERO, Scope::Process);
    }

    /// Begins the batch.
    pub fn begin(&self) -> Meter {
        self.batch.borrow_mut().begin(Duration::from_nanos(self.order.span_ns), Scope::Process)
    }

    /// The next request, while there is time.
    #[inline]
    pub fn take(&self) -> Option<Request> {
        self.batch.borrow_mut().take()
    }

    /// A request is done: it transferred `bytes`, which are in `data`.
    ///
    /// # Errors
    /// Fewer bytes than were asked for, or not those that are there.
    #[inline]
    pub fn done(&self, request: Request, bytes: usize, data: &[u8]) -> Result<()> {
        self.batch.borrow_mut().done(request, bytes)?;
        if self.subject.verify && !self.writes() {
            let offsets = (request.offset..).step_by(8);
            let right = |(word, offset): (&[u8], u64)| word == offset.to_le_bytes();
            let all = data.len() == bytes && data.chunks_exact(8).zip(offsets).all(right);
            ensure!(all, "wrong bytes were read at byte {}", request.offset);
        }
        Ok(())
    }

    /// What was measured since [`Work::begin`].
    pub fn answer(&self, meter: &Meter) -> Answer {
        let cost = meter.stop();
        let batch = self.batch.borrow();
        Answer { round: batch.round(cost), samples_ns: batch.samples().map(<[_]>::to_vec) }
    }
}
