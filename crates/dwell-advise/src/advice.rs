// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what was seen to what would help.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Issued, Operation, Parts, Seen, Wait};

/// A gain below this is within what a measurement can tell, and is not advised.
const WORTH: f64 = 1.03;
/// A share of the time below which waiting is not worth a word about devices.
const LITTLE: f64 = 0.01;
/// A share of all waiting below which a device gets no sentence.
const MATTERS: f64 = 0.05;
/// A share of the waits' time that is worth a sentence of its own.
const LARGE: f64 = 0.3;
/// A share without which nothing can be said of the rest.
const MOST: f64 = 0.9;

/// The waits for one operation of one device, issued in one way.
#[derive(Clone, Debug, Serialize)]
pub struct Total {
    /// The device's kernel name.
    pub device: String,
    /// What it was asked.
    pub operation: Operation,
    /// How threads came to wait.
    pub issued: Issued,
    /// How many waits.
    pub count: u64,
    /// Where their time went.
    pub parts: Parts,
    /// The share of their threads' time that the waits took, from 0 to 1.
    pub share: f64,
    /// Waits by their length, as in [`Wait::latency`].
    pub latency: Vec<u64>,
}

/// A [`Total`] of one process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessTotal {
    /// Process id.
    pub process: u32,
    /// The program's name, of at most 15 bytes.
    pub program: String,
    /// Its waits.
    pub total: Total,
}

impl Total {
    /// Mean length of a wait, in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.parts.total_ns() / self.count.max(1)
    }

    /// The length below which `share` of the waits remain, in nanoseconds: the upper end of its
    /// power of two.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.latency.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return 1 << (bucket + 8);
            }
        }
        1 << (self.latency.len() + 7)
    }
}

/// What would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Spin while waiting: `dwell run`.
    Spin,
    /// Wait in another way, with a library of Dwell's in the program.
    Library,
    /// Have fewer threads, or more CPUs.
    Cpus,
    /// Keep the file system from discarding, or keep the journal's file.
    KeepFiles,
    /// Commit several changes together.
    GroupCommits,
    /// Ask the device for less at once.
    LessInFlight,
    /// Nothing that Dwell knows.
    Nothing,
}

/// One sentence about one device.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// The device's kernel name; empty where the sentence is about the whole program.
    pub device: String,
    /// What would help.
    pub remedy: Remedy,
    /// Estimated speed of the threads that wait, if the remedy is taken; 1 is as now.
    pub gain: f64,
    /// The sentence.
    pub text: String,
}

/// Sums by device, operation and way of issuing, the longest first.
pub fn totals(seen: &Seen) -> Vec<Total> {
    let mut by_kind = BTreeMap::new();
    for wait in &seen.waits {
        let key = (wait.device.as_str(), wait.operation, wait.issued);
        by_kind.entry(key).or_insert_with(|| none_of(wait)).add(wait);
    }
    shared(by_kind.into_values().collect(), seen.thread_seconds, |total| total)
}

/// The same for each process. The share is of the time that was looked, so that a thread that does
/// nothing but wait has 1.
pub fn totals_by_process(seen: &Seen) -> Vec<ProcessTotal> {
    let mut by_kind: BTreeMap<_, ProcessTotal> = BTreeMap::new();
    for wait in &seen.waits {
        let key = (wait.process, wait.device.as_str(), wait.operation, wait.issued);
        let none = || ProcessTotal {
            process: wait.process,
            program: wait.program.clone(),
            total: none_of(wait),
        };
        by_kind.entry(key).or_insert_with(none).total.add(wait);
    }
    shared(by_kind.into_values().collect(), seen.seconds, |of| &mut of.total)
}

/// Shares of so many seconds, the longest first.
fn shared<T>(all: Vec<T>, seconds: f64, total: impl Fn(&mut T) -> &mut Total) -> Vec<T> {
    let mut by_time: Vec<(u64, T)> = all
        .into_iter()
        .map(|mut one| {
            let total = total(&mut one);
            let ns = total.parts.total_ns();
            total.share = ns as f64 / (seconds * 1e9).max(1.0);
            (ns, one)
        })
        .collect();
    by_time.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
    by_time.into_iter().map(|(_, one)| one).collect()
}

fn none_of(wait: &Wait) -> Total {
    Total {
        device: wait.device.clone(),
        operation: wait.operation,
        issued: wait.issued,
        count: 0,
        parts: Parts::default(),
        share: 0.0,
        latency: vec![0; wait.latency.len()],
    }
}

impl Total {
    fn add(&mut self, wait: &Wait) {
        self.count += wait.count;
        self.parts += wait.parts;
        for (sum, more) in self.latency.iter_mut().zip(&wait.latency) {
            *sum += more;
        }
    }
}

/// What would help, and what would not: a sentence for each device that matters, the longest waited
/// for first.
pub fn advise(seen: &Seen) -> Vec<Advice> {
    let totals = totals(seen);
    let waited_ns: u64 = totals.iter().map(|total| total.parts.total_ns()).sum();
    if waited_ns == 0 {
        return vec![whole("Nothing to gain: no thread waited for storage.".to_owned())];
    }
    let waited = waited_ns as f64 / 1e9;
    if waited < LITTLE * seen.seconds {
        let percent = 100.0 * waited / seen.seconds;
        return vec![whole(format!(
            "Nothing to gain: threads waited for storage for {percent:.1} % of the time."
        ))];
    }
    let mut devices: Vec<(&str, u64)> = vec![];
    for total in &totals {
        let ns = total.parts.total_ns();
        match devices.iter_mut().find(|(device, _)| *device == total.device) {
            Some((_, sum)) => *sum += ns,
            None => devices.push((&total.device, ns)),
        }
    }
    devices.retain(|(_, ns)| *ns as f64 >= MATTERS * waited_ns as f64);
    devices.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    devices.into_iter().map(|(device, _)| of_device(device, &totals, seen)).collect()
}

fn whole(text: String) -> Advice {
    Advice { device: String::new(), remedy: Remedy::Nothing, gain: 1.0, text }
}

/// The waits of one device that decide its sentence.
struct Case<'a> {
    device: &'a str,
    all: Parts,
    count: u64,
    /// Of all threads' time.
    share: f64,
    of: Vec<&'a Total>,
}

fn of_device(device: &str, totals: &[Total], seen: &Seen) -> Advice {
    let of: Vec<&Total> = totals.iter().filter(|total| total.device == device).collect();
    let mut all = Parts::default();
    of.iter().for_each(|total| all += total.parts);
    let case = Case {
        device,
        all,
        count: of.iter().map(|total| total.count).sum(),
        share: of.iter().map(|total| total.share).sum(),
        of,
    };
    case.unsplit()
        .or_else(|| case.discards())
        .or_else(|| case.waking(seen))
        .or_else(|| case.busy())
        .or_else(|| case.flushes())
        .or_else(|| case.queueing(seen))
        .unwrap_or_else(|| case.nothing())
}

impl Case<'_> {
    fn part(&self, ns: u64) -> f64 {
        ns as f64 / self.all.total_ns().max(1) as f64
    }

    fn time_of(&self, operations: &[Operation]) -> u64 {
        let of = self.of.iter().filter(|total| operations.contains(&total.operation));
        of.map(|total| total.parts.total_ns()).sum()
    }

    /// How much faster the threads are, all together, that lose `ns` of their waiting.
    fn without(&self, ns: u64, seen: &Seen) -> f64 {
        let all = seen.thread_seconds * 1e9;
        all / (all - ns as f64).max(all * 0.01)
    }

    fn say(&self, remedy: Remedy, gain: f64, text: String) -> Option<Advice> {
        Some(Advice { device: self.device.to_owned(), remedy, gain, text })
    }

    fn unsplit(&self) -> Option<Advice> {
        if self.part(self.all.other_ns) < MOST {
            return None;
        }
        self.say(
            Remedy::Nothing,
            1.0,
            format!(
                "{} waits of {} µs for {} took {:.0} % of their threads' time, and it is not known where it went.",
                self.count,
                micros(self.all.total_ns() / self.count.max(1)),
                self.device,
                100.0 * self.share
            ),
        )
    }

    fn discards(&self) -> Option<Advice> {
        let part = self.part(self.time_of(&[Operation::Discard]));
        if part < LARGE {
            return None;
        }
        self.say(
            Remedy::KeepFiles,
            1.0 / (1.0 - part * self.share).max(0.01),
            format!(
                "{:.0} % of the waits for {} are DISCARD requests, which the file system sends when a file is deleted. \
                 Keep the file (sqlite: PRAGMA journal_mode=PERSIST) or mount without discard.",
                100.0 * part,
                self.device
            ),
        )
    }

    fn waking(&self, seen: &Seen) -> Option<Advice> {
        // What dwell run can spin for: calls that read and write.
        let (spun, rest): (Vec<&Total>, Vec<&Total>) = self.of.iter().partition(|total| {
            total.issued == Issued::Call
                && matches!(total.operation, Operation::Read | Operation::Write)
        });
        self.spinning(&spun, seen).or_else(|| self.elsewhere(&rest, seen))
    }

    fn spinning(&self, spun: &[&Total], seen: &Seen) -> Option<Advice> {
        let gain = self.without(waking_ns(spun), seen);
        let most = spun.iter().max_by_key(|total| total.parts.wake_ns)?;
        if gain < WORTH {
            return None;
        }
        self.say(
            Remedy::Spin,
            gain,
            format!(
                "About {gain:.2}× on {}s of {} by busy-polling: {} of {} µs are waking. Try: dwell run -- COMMAND",
                most.operation.name(),
                self.device,
                micros(most.parts.wake_ns / most.count.max(1)),
                micros(most.mean_ns()),
            ),
        )
    }

    fn elsewhere(&self, rest: &[&Total], seen: &Seen) -> Option<Advice> {
        let gain = self.without(waking_ns(rest), seen);
        let most = rest.iter().max_by_key(|total| total.parts.wake_ns)?;
        if gain < WORTH {
            return None;
        }
        let (remedy, way) = match most.issued {
            Issued::IoUring | Issued::Libaio => (
                Remedy::Library,
                format!(
                    "The program waits by {}, which dwell run leaves alone. Poll its completion queue for some \
                     microseconds before sleeping, or use Dwell's library.",
                    most.issued.name()
                ),
            ),
            Issued::Fault => (
                Remedy::Library,
                "Page faults cannot be polled for from outside. Read with pread, or map the file with dwell-pager."
                    .to_owned(),
            ),
            Issued::Sync => (
                Remedy::GroupCommits,
                "A sync is a chain of wake-ups inside the kernel that no program can spin for. Commit several \
                 changes together."
                    .to_owned(),
            ),
            _ => (Remedy::Nothing, "dwell run leaves such calls alone.".to_owned()),
        };
        self.say(
            remedy,
            gain,
            format!(
                "{} of {} µs of a wait for {} are waking; without them the threads would run {gain:.2}× as fast. {way}",
                micros(most.parts.wake_ns / most.count.max(1)),
                micros(most.mean_ns()),
                self.device
            ),
        )
    }

    fn busy(&self) -> Option<Advice> {
        let part = self.part(self.all.busy_ns);
        if part < LARGE {
            return None;
        }
        self.say(
            Remedy::Cpus,
            1.0 / (1.0 - part * self.share).max(0.01),
            format!(
                "{:.0} % of the waits for {} are for a CPU that runs something else. Fewer threads or more CPUs help; spinning makes it worse.",
                100.0 * part,
                self.device
            ),
        )
    }

    fn flushes(&self) -> Option<Advice> {
        let part = self.part(self.time_of(&[Operation::Flush, Operation::Journal]));
        if part < LARGE {
            return None;
        }
        self.say(
            Remedy::GroupCommits,
            1.0,
            format!(
                "{:.0} % of the waits for {} are flushes and journal writes. Commit several changes together; spinning gains nothing.",
                100.0 * part,
                self.device
            ),
        )
    }

    fn queueing(&self, seen: &Seen) -> Option<Advice> {
        let part = self.part(self.all.queue_ns);
        if part < LARGE {
            return None;
        }
        self.say(
            Remedy::LessInFlight,
            1.0,
            format!(
                "{:.0} % of the waits for {} are queueing, with {:.1} requests in flight: the device has all it can do.",
                100.0 * part,
                self.device,
                seen.in_flight(self.device, None).unwrap_or(0.0)
            ),
        )
    }

    fn nothing(&self) -> Advice {
        Advice {
            device: self.device.to_owned(),
            remedy: Remedy::Nothing,
            gain: 1.0,
            text: format!(
                "Nothing to gain on {}: {:.0} % of {} waits of {} µs is device time, {:.0} % waking.",
                self.device,
                100.0 * self.part(self.all.device_ns),
                self.count,
                micros(self.all.total_ns() / self.count.max(1)),
                100.0 * self.part(self.all.wake_ns),
            ),
        }
    }
}

fn waking_ns(totals: &[&Total]) -> u64 {
    totals.iter().map(|total| total.parts.wake_ns).sum()
}

fn micros(nanos: u64) -> String {
    let micros = nanos as f64 / 1e3;
    if micros < 100.0 { format!("{micros:.1}") } else { format!("{micros:.0}") }
}

#[cfg(test)]
mod tests;
