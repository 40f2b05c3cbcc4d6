// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread of a workload: makes its files, does what its stream says, puts the files in order.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use dwell::buffer::Aligned;
use dwell::{Stats, clock};

use super::player::{Hand, Opened};
use super::spec::{MOST_IO_BYTES, Spec, Threads};
use super::stream::{Act, Stream};
use crate::fixture::half_noise;
use crate::latency::Latencies;
use crate::usage::{Cost, Meter, Scope};

/// What every file holds repeats after so many bytes.
const PERIOD_BYTES: u64 = 1 << 20;

/// What files hold: byte `n` of any file is byte `n` of this, over and over.
pub(super) struct Content(Aligned);

impl Content {
    pub fn new() -> Self {
        let mut content = half_noise((PERIOD_BYTES + MOST_IO_BYTES) as usize);
        let (period, rest) = content.split_at_mut(PERIOD_BYTES as usize);
        rest.chunks_mut(period.len()).for_each(|piece| piece.copy_from_slice(period));
        Content(content)
    }

    /// What `bytes` of a file at `offset` hold; at most [`MOST_IO_BYTES`].
    pub fn at(&self, offset: u64, bytes: u64) -> &[u8] {
        let from = (offset % PERIOD_BYTES) as usize;
        &self.0[from..from + bytes as usize]
    }
}

/// What a thread did in one play.
#[derive(Default)]
pub(super) struct Tally {
    pub started: u64,
    pub ended: u64,
    pub bytes: u64,
    pub requests: u64,
    pub operations: BTreeMap<&'static str, u64>,
    pub cost: Cost,
    pub stats: Stats,
    pub latencies: Latencies,
}

/// One thread's part.
pub(super) struct Worker<'s> {
    stream: Stream<'s>,
    loops: Option<u64>,
    /// Of each file of its share.
    paths: Vec<PathBuf>,
    content: &'s Content,
    buffer: Aligned,
    open: Option<Opened>,
    plain: Hand,
}

impl<'s> Worker<'s> {
    pub fn new(
        spec: &'s Spec,
        threads: &'s Threads,
        stream: Stream<'s>,
        root: &Path,
        content: &'s Content,
    ) -> Self {
        let paths = stream.share.entries().iter().map(|entry| root.join(&entry.path)).collect();
        Worker {
            stream,
            loops: threads.loops,
            paths,
            content,
            buffer: Aligned::new(threads.io_bytes as usize),
            open: None,
            plain: Hand::plain(spec),
        }
    }

    /// Makes the directories and the files that are there at the start.
    pub fn make(&mut self) -> Result<()> {
        let mut made = HashSet::new();
        for parent in self.paths.iter().filter_map(|path| path.parent()) {
            if made.insert(parent) {
                std::fs::create_dir_all(parent)
                    .with_context(|| format!("cannot make the directory {}", parent.display()))?;
            }
        }
        for (path, entry) in self.paths.iter().zip(self.stream.share.entries()) {
            self.fill(path, 0, entry.start_bytes)?;
        }
        Ok(())
    }

    /// Brings a file that is known to hold `from` bytes to the length that it should have.
    fn fill(&self, path: &Path, from: u64, wanted: Option<u64>) -> Result<()> {
        let Some(wanted) = wanted else { return Ok(()) };
        let file = self.plain.open(path, true)?;
        let mut offset = from;
        while offset < wanted {
            let bytes = PERIOD_BYTES.min(wanted - offset);
            file.write(self.content.at(offset, bytes), offset)
                .with_context(|| format!("cannot fill {}", path.display()))?;
            offset += bytes;
        }
        match &file {
            Opened::Plain(file) if offset > wanted => file.set_len(wanted)?,
            _ => {}
        }
        Ok(())
    }

    /// Brings every file back to what it was at the start.
    pub fn restore(&mut self) -> Result<()> {
        self.open = None;
        for (path, entry) in self.paths.iter().zip(self.stream.share.entries()) {
            match (entry.bytes, entry.start_bytes) {
                (now, start) if now == start => {}
                (Some(_), None) => std::fs::remove_file(path)
                    .with_context(|| format!("cannot remove {}", path.display()))?,
                (now, start) => self.fill(path, now.unwrap_or(0), start)?,
            }
        }
        self.stream.share.reset();
        Ok(())
    }

    /// Does what the stream says, from the beginning of its loop, for a span of time. The span
    /// grows until there is at least one request and one operation, unless a whole loop has none.
    /// With `count_loops`, the worker instead runs as many loops as the workload says.
    pub fn play(
        &mut self,
        hand: &Hand,
        seed: u64,
        span: Duration,
        count_loops: bool,
    ) -> Result<Tally> {
        self.stream.restart(seed);
        self.open = None;
        let mut tally = Tally::default();
        let span_ns = span.as_nanos() as u64;
        let loops = self.loops.filter(|_| count_loops);
        let meter = Meter::start(Scope::Thread);
        tally.started = meter.started_ns();
        let mut now = tally.started;
        loop {
            let did_some = tally.requests > 0 && !tally.operations.is_empty();
            let over = match loops {
                Some(loops) => self.stream.loops() >= loops,
                None if span_ns == 0 || did_some || self.stream.loops() > 0 => {
                    now - tally.started >= span_ns
                }
                None => false,
            };
            if over {
                break;
            }
            let step = self.stream.next().context("the workload finds nothing to do")?;
            let moved = self.act(hand, step.act, &mut tally.stats)?;
            let then = std::mem::replace(&mut now, clock::now());
            if let Some(bytes) = moved {
                tally.latencies.record(now - then);
                tally.requests += 1;
                tally.bytes += bytes;
            }
            if let Some(name) = step.done {
                *tally.operations.entry(name).or_default() += 1;
            }
        }
        self.close(&mut tally.stats);
        tally.ended = clock::now();
        tally.cost = meter.stop();
        Ok(tally)
    }

    /// Does one thing; bytes moved, where it was a request.
    fn act(&mut self, hand: &Hand, act: Act, stats: &mut Stats) -> Result<Option<u64>> {
        match act {
            Act::Open(file) => self.open = Some(hand.open(&self.paths[file], false)?),
            Act::Create(file) => self.open = Some(hand.open(&self.paths[file], true)?),
            Act::Close => self.close(stats),
            Act::Delete(file) => {
                let path = &self.paths[file];
                std::fs::remove_file(path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
            Act::Stat(file) => {
                let path = &self.paths[file];
                std::fs::metadata(path).with_context(|| format!("stat {}", path.display()))?;
            }
            Act::Read { offset, bytes } => {
                let file = self.open.as_ref().context("no file is open")?;
                file.read(&mut self.buffer[..bytes as usize], offset)?;
                return Ok(Some(bytes));
            }
            Act::Write { offset, bytes } => {
                let file = self.open.as_ref().context("no file is open")?;
                file.write(self.content.at(offset, bytes), offset)?;
                return Ok(Some(bytes));
            }
            Act::Sync { data } => {
                self.open.as_ref().context("no file is open")?.sync(data)?;
                return Ok(Some(0));
            }
        }
        Ok(None)
    }

    fn close(&mut self, stats: &mut Stats) {
        let Some(counted) = self.open.take().and_then(|file| file.stats()) else { return };
        stats.spun_ns += counted.spun_ns;
        for row in counted.rows {
            let same = |known: &&mut dwell::stats::Row| {
                (known.route, known.mode, known.reason) == (row.route, row.mode, row.reason)
            };
            match stats.rows.iter_mut().find(same) {
                Some(known) => known.requests += row.requests,
                None => stats.rows.push(row),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dwell::{Options, policy};

    use super::*;
    use crate::workload::set::Share;
    use crate::workload::{WorkloadFile, shipped};

    /// Every file holds what it should, as far as it should, and there is no other.
    fn check(worker: &Worker<'_>) {
        for (path, entry) in worker.paths.iter().zip(worker.stream.share.entries()) {
            let held = std::fs::read(path).ok();
            let length = held.as_ref().map(|held| held.len() as u64);
            assert_eq!(length, entry.bytes, "{}", path.display());
            let held = held.unwrap_or_default();
            for (piece, at) in held.chunks(1 << 16).zip((0..).step_by(1 << 16)) {
                assert!(piece == worker.content.at(at, piece.len() as u64), "{}", path.display());
            }
        }
    }

    #[test]
    fn bytes_on_disk_are_right_after_a_play_and_after_putting_things_in_order() {
        let content = Content::new();
        for name in ["fileserver", "varmail", "postmark", "bonnie-rewrite", "rand-write"] {
            for direct in [true, false] {
                let mut file = shipped(name).unwrap();
                if name == "postmark" {
                    file.set("read_bias=5").unwrap();
                    file.set("file_bytes=10000").unwrap();
                }
                let mut spec = file.variants().unwrap().remove(0).spec.scaled(0.01);
                spec.direct = direct;
                let root = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
                let threads = &spec.threads[0];
                let share = Share::of(&spec, &spec.files[0], 0);
                let stream = Stream::new(&spec, threads, share, 0);
                let mut worker = Worker::new(&spec, threads, stream, root.path(), &content);
                worker.make().unwrap();
                check(&worker);
                let options = Options::new().write(true).direct(direct);
                let dwell = Hand::Dwell(Box::new(options.policy(Arc::new(policy::Block))));
                for (hand, seed) in [(&dwell, 1), (&Hand::plain(&spec), 2), (&dwell, 3)] {
                    let span = Duration::from_millis(40);
                    let tally = worker.play(hand, seed, span, true).unwrap();
                    check(&worker);
                    assert!(tally.requests > 0 && tally.bytes > 0, "{name}");
                    let decided: u64 = tally.stats.rows.iter().map(|row| row.requests).sum();
                    let by_dwell = matches!(hand, Hand::Dwell(_));
                    assert_eq!(decided, if by_dwell { tally.requests } else { 0 }, "{name}");
                    worker.restore().unwrap();
                    check(&worker);
                }
            }
        }
    }

    #[test]
    fn a_workload_that_counts_its_loops_does_just_so_many() {
        let content = Content::new();
        let spec = shipped("whole-random").unwrap().variants().unwrap().remove(0).spec.scaled(0.02);
        let root = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let threads = &spec.threads[0];
        let stream = Stream::new(&spec, threads, Share::of(&spec, &spec.files[0], 0), 0);
        let mut worker = Worker::new(&spec, threads, stream, root.path(), &content);
        worker.make().unwrap();
        let hand = Hand::plain(&spec);
        let tally = worker.play(&hand, 1, Duration::ZERO, true).unwrap();
        assert_eq!(tally.bytes, spec.files[0].size_bytes.mean() as u64);
        assert_eq!(tally.operations, BTreeMap::from([("read-whole", 1)]));
        assert_eq!(worker.play(&hand, 1, Duration::ZERO, false).unwrap().requests, 0);
    }

    #[test]
    fn an_impossible_operation_names_the_path() {
        let content = Content::new();
        let text = crate::workload::text_of("rand-read").unwrap();
        let file = WorkloadFile::parse("rand-read", text).unwrap();
        let spec = file.variants().unwrap().remove(0).spec.scaled(0.01);
        let root = tempfile::tempdir().unwrap();
        let threads = &spec.threads[0];
        let stream = Stream::new(&spec, threads, Share::of(&spec, &spec.files[0], 0), 0);
        let mut worker = Worker::new(&spec, threads, stream, root.path(), &content);
        let error = worker.play(&Hand::plain(&spec), 1, Duration::from_millis(1), true);
        let text = format!("{:#}", error.err().unwrap());
        assert!(text.contains("data/f0"), "{text}");
    }
}
