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
    /// Of the open file: the next request in order, and the one before it.
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
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::workload::{WorkloadFile, shipped};

    fn spec_of(name: &str, scale: f64) -> Spec {
        shipped(name).unwrap().variants().unwrap().remove(0).spec.scaled(scale)
    }

    fn stream_of(spec: &Spec) -> Stream<'_> {
        let threads = &spec.threads[0];
        let share = Share::of(spec, spec.set(&threads.files).unwrap(), 0);
        Stream::new(spec, threads, share, 7)
    }

    /// Operations that so many passes through the loop complete, checked as they come: only what is
    /// there is opened, read within its length, deleted.
    fn counted(stream: &mut Stream<'_>, loops: u64) -> BTreeMap<&'static str, u64> {
        let mut operations = BTreeMap::new();
        let mut open = None;
        let mut lengths: Vec<_> = stream.share.entries().iter().map(|e| e.start_bytes).collect();
        while stream.loops() < loops {
            let step = stream.next().expect("something to do");
            match step.act {
                Act::Open(file) => {
                    assert!(open.is_none() && lengths[file].is_some());
                    open = Some(file);
                }
                Act::Create(file) => {
                    assert!(open.is_none() && lengths[file].is_none());
                    lengths[file] = Some(0);
                    open = Some(file);
                }
                Act::Close => assert!(open.take().is_some()),
                Act::Delete(file) => {
                    assert!(open != Some(file) && lengths[file].take().is_some());
                }
                Act::Stat(file) => assert!(lengths[file].is_some()),
                Act::Read { offset, bytes } => {
                    assert!(bytes > 0 && offset + bytes <= lengths[open.unwrap()].unwrap());
                }
                Act::Write { offset, bytes } => {
                    assert!(bytes > 0 && bytes <= stream.threads.io_bytes);
                    assert!(!stream.spec.direct || (offset | bytes) % 4096 == 0);
                    let length = lengths[open.unwrap()].as_mut().unwrap();
                    assert!(offset <= *length, "a hole");
                    *length = (*length).max(offset + bytes);
                }
                Act::Sync { .. } => assert!(open.is_some()),
            }
            if let Some(name) = step.done {
                *operations.entry(name).or_default() += 1;
            }
        }
        let modelled = stream.share.entries().iter().map(|entry| entry.bytes);
        assert!(modelled.eq(lengths));
        operations
    }

    #[test]
    fn a_pass_of_each_filebench_workload_is_what_filebench_defines() {
        let cases: [(&str, &[(&str, u64)]); 2] = [
            (
                "fileserver",
                &[
                    ("append", 1),
                    ("close", 3),
                    ("create", 1),
                    ("delete", 1),
                    ("open", 2),
                    ("read-whole", 1),
                    ("stat", 1),
                    ("write-whole", 1),
                ],
            ),
            (
                "varmail",
                &[
                    ("append", 2),
                    ("close", 3),
                    ("create", 1),
                    ("delete", 1),
                    ("fsync", 2),
                    ("open", 2),
                    ("read-whole", 2),
                ],
            ),
        ];
        for (name, per_loop) in cases {
            for spec in [spec_of(name, 1.0), spec_of(&format!("{name}-light"), 0.2)] {
                let operations = counted(&mut stream_of(&spec), 1000);
                let expected = per_loop.iter().map(|&(name, times)| (name, times * 1000));
                assert!(operations.into_iter().eq(expected), "{name}");
            }
        }
    }

    #[test]
    fn appends_have_their_distribution() {
        let mut spec = spec_of("varmail", 1.0);
        spec.direct = false;
        let mut stream = stream_of(&spec);
        let mut sizes = Vec::new();
        while sizes.len() < 20_000 {
            let step = stream.next().unwrap();
            if let (Act::Write { bytes, .. }, Some("append")) = (step.act, step.done) {
                sizes.push(bytes);
            }
        }
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        assert!((mean - 8192.0).abs() < 150.0, "{mean}");
        assert!(sizes.iter().all(|bytes| (1..=16_384).contains(bytes)));
        let below = sizes.iter().filter(|bytes| **bytes <= 4096).count();
        assert!((below as f64 / 5000.0 - 1.0).abs() < 0.05, "{below}");
    }

    #[test]
    fn biases_of_postmark_are_shares_of_ten() {
        for (read_bias, create_bias) in [(0, 5), (3, 5), (10, 5), (5, 0), (5, 10)] {
            let mut file = shipped("postmark").unwrap();
            file.set("file_bytes=10000").unwrap();
            file.set(&format!("read_bias={read_bias}")).unwrap();
            file.set(&format!("create_bias={create_bias}")).unwrap();
            let variants = file.variants().unwrap();
            let [variant] = &variants[..] else { panic!("{} variants", variants.len()) };
            let mut stream = stream_of(&variant.spec);
            let of = |counts: &BTreeMap<&str, u64>, name| counts.get(name).copied().unwrap_or(0);
            let counts = counted(&mut stream, 10_000);
            let (reads, appends) = (of(&counts, "read-whole"), of(&counts, "append"));
            assert_eq!(reads + appends, 10_000);
            assert!(reads.abs_diff(read_bias * 1000) < 150, "{reads} of bias {read_bias}");
            let (created, deleted) = (of(&counts, "create"), of(&counts, "delete"));
            assert_eq!((created + deleted, created), (10_000, of(&counts, "write-whole")));
            // A set that is full or empty is kept so.
            assert!(created.abs_diff(5000) < 600, "{created} created, bias {create_bias}");
        }
    }

    #[test]
    fn inward_is_first_last_second_last_but_one() {
        let spec = spec_of("whole-random", 0.01);
        let blocks = spec.files[0].size_bytes.mean() as u64 / 4096;
        let mut stream = stream_of(&spec);
        assert_eq!(stream.next().unwrap().act, Act::Open(0));
        let mut seen = Vec::new();
        while stream.loops() < 1 {
            let Act::Read { offset, bytes: 4096 } = stream.next().unwrap().act else { panic!() };
            seen.push(offset / 4096);
        }
        assert_eq!(seen[..4], [0, blocks - 1, 1, blocks - 2]);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..blocks));
    }

    #[test]
    fn plain_reads_go_through_the_file_or_anywhere_in_it() {
        let offsets = |name: &str, count: usize| -> Vec<u64> {
            let spec = spec_of(name, 0.02);
            let mut stream = stream_of(&spec);
            let step = std::iter::from_fn(|| stream.next());
            let places = step.filter_map(|step| match step.act {
                Act::Read { offset, .. } | Act::Write { offset, .. } => Some(offset / 4096),
                _ => None,
            });
            places.take(count).collect()
        };
        let blocks = (5 << 20) / 4096;
        assert!(
            offsets("seq-read", blocks + 2)
                .iter()
                .enumerate()
                .all(|(i, &at)| { at == (i % blocks) as u64 })
        );
        let random = offsets("rand-write", 10_000);
        let low = random.iter().filter(|at| **at < blocks as u64 / 4).count();
        assert!((low as f64 / 2500.0 - 1.0).abs() < 0.1, "{low}");
        let rewritten = offsets("bonnie-rewrite", 6);
        assert_eq!(rewritten, [0, 0, 2, 2, 4, 4]);
    }

    #[test]
    fn the_same_seed_is_the_same_stream_and_others_differ() {
        let spec = spec_of("fileserver", 0.1);
        let acts = |seed| {
            let mut stream = stream_of(&spec);
            stream.restart(seed);
            (0..500).map(|_| stream.next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(acts(1), acts(1));
        assert_ne!(acts(1), acts(2));
    }

    #[test]
    fn every_shipped_workload_can_go_on_for_ever() {
        for (name, text) in crate::workload::SHIPPED {
            let file = WorkloadFile::parse(*name, text).unwrap();
            for variant in file.variants().unwrap_or_else(|error| panic!("{error:#}")) {
                assert_eq!(&variant.spec.name, name);
                let spec = variant.spec.scaled(0.01);
                counted(&mut stream_of(&spec), 200);
            }
        }
    }

    #[test]
    fn a_loop_that_finds_nothing_to_do_ends() {
        let spec = WorkloadFile::parse(
            "w",
            r#"name = "w"
               about = ""
               files = [{ name = "d", count = 1, size_bytes = { fixed = 1 } }]
               [[threads]]
               instances = 1
               files = "d"
               io_bytes = 4096
               loop = [{ op = "close" }]"#,
        );
        let spec = spec.unwrap().variants().unwrap().remove(0).spec;
        assert_eq!(stream_of(&spec).next(), None);
    }
}
