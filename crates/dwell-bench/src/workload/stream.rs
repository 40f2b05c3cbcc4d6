// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations of one thread, in order: what it does depends on the workload and a seed, and on
//! nothing that happens. No I/O.

use super::set::{Share, rounded};
use super::spec::{Op, Order, Spec, Threads, WholeOrder};
use crate::stats::SplitMix;

/// Something to do. Files are places in [`Share::entries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Open a file that is there; it is the open file until closed.
    Open(usize),
    /// Make a file and open it.
    Create(usize),
    /// Close the open file.
    Close,
    /// Delete a file that is not open.
    Delete(usize),
    /// Ask for a file's size and times.
    Stat(usize),
    /// Read so many bytes of the open file.
    Read {
        /// From where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Write so many bytes of the open file.
    Write {
        /// To where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Make the open file durable; with `data`, only what reading its data needs.
    Sync {
        /// Whether metadata that nobody needs may wait.
        data: bool,
    },
}

/// An act, and the operation that is complete with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub act: Act,
    /// The operation that ends here; `None` for a part of one, and for what an operation needs done
    /// before it can begin.
    pub done: Option<&'static str>,
}

/// The requests of an operation that makes several.
#[derive(Clone, Debug)]
struct Transfer {
    name: &'static str,
    write: bool,
    order: WholeOrder,
    from: u64,
    bytes: u64,
    made: u64,
}

/// Endless operations of one thread on its share of a set.
#[derive(Clone, Debug)]
pub struct Stream<'s> {
    spec: &'s Spec,
    threads: &'s Threads,
    /// Its files as they are once all acts so far are done.
    pub share: Share,
    random: SplitMix,
    /// Where it is in the loop, and in the alternatives within.
    within: Vec<(&'s [Op], usize)>,
    loops: u64,
    open: Option<usize>,
    transfer: Option<Transfer>,
    /// On the open file: the next request in order, and the one before it.
    next: u64,
    last: u64,
}

impl<'s> Stream<'s> {
    /// The stream of the thread that `share` belongs to.
    pub fn new(spec: &'s Spec, threads: &'s Threads, share: Share, seed: u64) -> Self {
        let random = SplitMix(seed);
        let mut stream = Stream {
            spec,
            threads,
            share,
            random,
            within: Vec::new(),
            loops: 0,
            open: None,
            transfer: None,
            next: 0,
            last: 0,
        };
        stream.restart(seed);
        stream
    }

    /// Begins the loop anew with no file open; the files stay as they are.
    pub fn restart(&mut self, seed: u64) {
        self.random = SplitMix(seed);
        self.within = vec![(&self.threads.r#loop, 0)];
        (self.loops, self.open, self.transfer) = (0, None, None);
    }

    /// Passes through the loop that are complete once all acts so far are done.
    pub fn loops(&self) -> u64 {
        let at_end =
            self.transfer.is_none() && self.within.iter().all(|(ops, at)| *at == ops.len());
        self.loops + u64::from(at_end)
    }

    /// What to do next; `None` when nothing in the loop can be done.
    #[expect(clippy::should_implement_trait, reason = "the stream is also asked between steps")]
    pub fn next(&mut self) -> Option<Step> {
        if self.transfer.is_some() {
            return self.request();
        }
        // One pass may have begun in the middle: a whole second one must do something.
        let mut passes = 0;
        loop {
            let Some((ops, at)) = self.within.last_mut() else {
                passes += 1;
                if passes > 2 {
                    return None;
                }
                self.loops += 1;
                self.within.push((&self.threads.r#loop, 0));
                continue;
            };
            let Some(op) = ops.get(*at) else {
                self.within.pop();
                continue;
            };
            *at += 1;
            if let Some(step) = self.begin(op) {
                return Some(step);
            }
        }
    }

    /// Does a step first that the operation at hand needs, and comes back to it.
    fn before(&mut self, act: Act) -> Option<Step> {
        if let Some((_, at)) = self.within.last_mut() {
            *at -= 1;
        }
        Some(Step { act, done: None })
    }

    fn begin(&mut self, op: &'s Op) -> Option<Step> {
        let done = Some(op.as_str());
        match op {
            Op::Either { bias, first, second } => {
                let chosen = (self.random.below(10) as u32) < *bias;
                let (one, other) = if chosen { (first, second) } else { (second, first) };
                let ops = if self.can(one) { one } else { other };
                self.within.push((ops, 0));
                return None;
            }
            Op::Stat => {
                return Some(Step { act: Act::Stat(self.share.any(&mut self.random)?), done });
            }
            Op::Delete => {
                if self.share.there() < 2 {
                    return None;
                }
                let file = self.share.any(&mut self.random)?;
                if self.open == Some(file) {
                    self.open = None;
                    return self.before(Act::Close);
                }
                self.share.delete(file);
                return Some(Step { act: Act::Delete(file), done });
            }
            Op::Close => {
                self.open.take()?;
                return Some(Step { act: Act::Close, done });
            }
            Op::Open | Op::Create if self.open.is_some() => {
                self.open = None;
                return self.before(Act::Close);
            }
            Op::Create => {
                let file = self.share.create(&mut self.random)?;
                self.opened(file);
                return Some(Step { act: Act::Create(file), done });
            }
            Op::Open => {
                let file = self.share.any(&mut self.random)?;
                self.opened(file);
                return Some(Step { act: Act::Open(file), done });
            }
            _ => {}
        }
        let Some(file) = self.open else {
            let file = self.share.any(&mut self.random)?;
            self.opened(file);
            return self.before(Act::Open(file));
        };
        let bytes = self.share.bytes(file);
        match op {
            Op::Fsync => Some(Step { act: Act::Sync { data: false }, done }),
            Op::Fdatasync => Some(Step { act: Act::Sync { data: true }, done }),
            Op::Read { order } => self.one(file, *order, false, op.as_str()),
            Op::Write { order } => self.one(file, *order, true, op.as_str()),
            Op::ReadWhole { order } => self.several(op.as_str(), false, *order, 0, bytes),
            Op::WriteWhole => {
                let whole = self.share.entries()[file].whole_bytes;
                self.several(op.as_str(), true, WholeOrder::Sequential, 0, whole)
            }
            Op::Append { bytes: size } => {
                let more = rounded(self.spec, size.draw(&mut self.random));
                self.several(op.as_str(), true, WholeOrder::Sequential, bytes, more)
            }
            _ => None,
        }
    }

    /// Whether the first operation of an alternative finds a file to make or to delete.
    fn can(&self, ops: &[Op]) -> bool {
        match ops.first() {
            Some(Op::Create) => self.share.missing() > 0,
            Some(Op::Delete) => self.share.there() > 1,
            _ => true,
        }
    }

    fn opened(&mut self, file: usize) {
        self.open = Some(file);
        (self.next, self.last) = (0, 0);
    }

    /// One request within the file; none in an empty one.
    fn one(&mut self, file: usize, order: Order, write: bool, name: &'static str) -> Option<Step> {
        let (bytes, io_bytes) = (self.share.bytes(file), self.threads.io_bytes);
        if bytes == 0 {
            return None;
        }
        let places = (bytes / io_bytes).max(1);
        let place = match order {
            Order::Sequential => self.next % places,
            Order::Random => self.random.below(places as usize) as u64,
            Order::Again => self.last,
        };
        self.last = place;
        if order == Order::Sequential {
            self.next = place + 1;
        }
        let (offset, bytes) = (place * io_bytes, io_bytes.min(bytes));
        let act = if write { Act::Write { offset, bytes } } else { Act::Read { offset, bytes } };
        Some(Step { act, done: Some(name) })
    }

    fn several(
        &mut self,
        name: &'static str,
        write: bool,
        order: WholeOrder,
        from: u64,
        bytes: u64,
    ) -> Option<Step> {
        self.transfer = Some(Transfer { name, write, order, from, bytes, made: 0 });
        self.request()
    }

    /// The next request of the operation at hand.
    fn request(&mut self) -> Option<Step> {
        let transfer = self.transfer.as_mut()?;
        let io_bytes = self.threads.io_bytes;
        let requests = transfer.bytes.div_ceil(io_bytes);
        if requests == 0 {
            self.transfer = None;
            return None;
        }
        let made = transfer.made;
        let place = match transfer.order {
            WholeOrder::Sequential => made,
            WholeOrder::Inward if made.is_multiple_of(2) => made / 2,
            WholeOrder::Inward => requests - 1 - made / 2,
        };
        transfer.made += 1;
        let within = place * io_bytes;
        let (offset, bytes) = (transfer.from + within, io_bytes.min(transfer.bytes - within));
        let act = match transfer.write {
            true => Act::Write { offset, bytes },
            false => Act::Read { offset, bytes },
        };
        let done = (transfer.made == requests).then_some(transfer.name);
        if transfer.write
            && let Some(file) = self.open
        {
            self.share.reach(file, offset + bytes);
        }
        if done.is_some() {
            self.transfer = None;
        }
        Some(Step { act, done })
    }
}

#[cfg(test)]
mod tests;
