// SPDX-License-Identifier: MIT OR Apache-2.0
//! From events to sums, by the same rules as `bpf/waits.bpf.c`; it does no I/O but to ask what a
//! task is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use super::event::{Event, Interrupt, Request, What};
use crate::names;
use crate::raw::{BUCKETS, DeviceKey, DeviceSum, ThreadSum, WaitKey, WaitSum};
use crate::sums::Sums;

/// Steps of a wait that are kept.
const MARKS: usize = 32;
/// Without a call of storage's; the same number as of a page fault.
const NO_CALL: i16 = -1;

/// A completion outside any interrupt explains wake-ups on its CPU for so long, in nanoseconds, by
/// threads that carry out others' requests and by programs.
const HELPER_NS: u64 = 1_000_000;
const PROGRAM_NS: u64 = 20_000;

/// With this, a key of the threads is a process: all of its threads that have ended.
const ENDED: u32 = 1 << 31;

const SLEEPS: u64 = 0x7f;
const UNINTERRUPTIBLE: u64 = 2;
const CLONE_THREAD: u64 = 0x1_0000;
const PF_IO_WORKER: u64 = 0x10;
const PF_KTHREAD: u64 = 0x20_0000;

/// What the time before a mark was, in the order of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Other,
    Queue,
    Device,
    Kernel,
    Wake,
    Busy,
}

#[derive(Clone, Default)]
struct Task {
    slept: u64,
    call: i16,
    iowait: bool,
    woken: bool,
    storage: bool,
    hops: u8,
    request: Request,
    /// The request of a wake-up that came while its CPU still ran it: it ends the next sleep if
    /// nothing else does.
    early: Option<Request>,
    marks: Vec<(u64, Part)>,
}

impl Task {
    fn mark(&mut self, at: u64, part: Part) {
        if self.marks.len() == MARKS {
            // The first steps of a long wait are forgotten.
            self.marks.remove(0);
            self.marks[0].1 = Part::Other;
        }
        self.marks.push((at, part));
    }

    /// A request that it slept for completed.
    fn complete(&mut self, done: Completed) {
        if done.inserted > self.slept {
            self.mark(done.inserted, Part::Kernel);
        }
        self.mark(done.issued, Part::Queue);
        self.mark(done.at, Part::Device);
        (self.request, self.storage) = (done.request, true);
    }
}

struct InFlight {
    inserted: u64,
    issued: u64,
    request: Request,
}

#[derive(Clone, Copy)]
struct Completed {
    at: u64,
    within: Option<Interrupt>,
    inserted: u64,
    issued: u64,
    request: Request,
}

/// Process, device, call, operation, size, whether it waited for storage, and whether a kernel
/// thread woke it.
type WaitOf = (u32, u32, i16, u8, u8, bool, bool);

/// The state of the trace: the tasks seen, the requests in flight, and sums of waits by kind,
/// device and thread.
#[derive(Default)]
pub struct Story {
    everything: bool,
    left_out: u32,
    targets: HashSet<u32>,
    leaving: Option<(u32, u64)>,
    tasks: HashMap<u32, Task>,
    calls: HashMap<u32, i16>,
    helpers: HashMap<u32, bool>,
    in_flight: HashMap<(u32, u64), InFlight>,
    depths: HashMap<u32, u64>,
    completed: HashMap<u32, Completed>,
    takes_bios: HashMap<u32, bool>,
    waits: BTreeMap<WaitOf, WaitSum>,
    devices: BTreeMap<(u32, u8, u8), DeviceSum>,
    threads: BTreeMap<u32, ThreadSum>,
    lost: u64,
    /// Switches to threads that were not told.
    untold: u64,
    events: u64,
    took_ns: u64,
}

fn power(bytes: u64) -> u8 {
    bytes.checked_ilog2().unwrap_or(0) as u8
}

/// Whether a task carries out others' requests: a thread of the kernel's, or a worker of io_uring.
fn is_helper(thread: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{thread}/stat")).unwrap_or_default();
    let flags =
        text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse().ok());
    flags.is_some_and(|flags: u64| flags & (PF_KTHREAD | PF_IO_WORKER) != 0)
}

/// Whether a device's driver takes bios and makes no requests of them.
fn takes_bios(device: u32) -> bool {
    let path = format!("/sys/dev/block/{}:{}", device >> 20, device & 0xf_ffff);
    let Ok(path) = fs::canonicalize(path) else { return false };
    let makes_requests = |path: &Path| path.join("mq").exists();
    !makes_requests(&path) && !path.parent().is_some_and(makes_requests)
}

impl Story {
    /// Of these processes, or of every one but `left_out`.
    pub fn new(everything: bool, left_out: u32, followed: &[u32]) -> Story {
        let targets = followed.iter().copied().collect();
        Story { everything, left_out, targets, ..Story::default() }
    }

    /// Follows a process no more from that time on: what happened before may not have been told
    /// yet.
    pub fn leave(&mut self, process: u32, at: u64) {
        self.leaving = Some((process, at));
    }

    /// Follows more processes.
    pub fn follow(&mut self, processes: &[u32]) {
        self.targets.extend(processes);
    }

    /// The processes that are followed.
    pub fn followed(&self) -> Vec<u32> {
        self.targets.iter().copied().collect()
    }

    /// Events that nobody could read in time.
    pub fn lose(&mut self, events: u64) {
        self.lost += events;
    }

    /// CPU time that the reader has taken until now.
    pub fn took(&mut self, ns: u64) {
        self.took_ns = ns;
    }

    fn is_target(&self, process: u32) -> bool {
        process != self.left_out && (self.everything || self.targets.contains(&process))
    }

    fn is_helper(&mut self, thread: u32) -> bool {
        thread != 0 && *self.helpers.entry(thread).or_insert_with(|| is_helper(thread))
    }

    /// What happened next.
    pub fn tell(&mut self, event: Event) {
        self.events += 1;
        let Event { at, cpu, within, process, thread, what } = event;
        if let Some((left, _)) = self.leaving.take_if(|(_, when)| at > *when) {
            self.targets.remove(&left);
        }
        // Linux 6.18 may tell of no switch from an idle CPU: what it ran next shows that it runs.
        if thread != 0 && self.resume(thread, at, Part::Wake) {
            self.untold += 1;
        }
        match what {
            What::Switch { state, next } => self.switch(event, state, next),
            What::Waking(woken) => self.waking(event, woken),
            What::NewTask { thread: new, flags } => {
                if flags & CLONE_THREAD == 0 && self.targets.contains(&process) {
                    self.targets.insert(new);
                }
                // Numbers are used again.
                self.helpers.remove(&new);
                self.tasks.remove(&new);
                self.calls.remove(&new);
            }
            What::Free(ended) => self.forget(ended),
            What::Enter(call) => _ = self.calls.insert(thread, call),
            What::Exit => _ = self.calls.remove(&thread),
            What::Merge(request) => drop(self.leave_flight(request)),
            What::Insert(request) => self.begin(at, request, false),
            What::Issue(request) => self.begin(at, request, true),
            What::Complete(request) => self.end(at, cpu, within, request),
            What::Bio(request) => {
                let of = |device: u32| takes_bios(device);
                if *self.takes_bios.entry(request.device).or_insert_with(|| of(request.device)) {
                    self.begin(at, request, true);
                }
            }
            What::BioComplete(request) => {
                if self.takes_bios.get(&request.device) == Some(&true) {
                    self.end(at, cpu, within, request);
                }
            }
            What::Ends(ended) => {
                if self.completed.get(&cpu).is_some_and(|done| done.within == Some(ended)) {
                    self.completed.remove(&cpu);
                }
            }
        }
    }

    fn switch(&mut self, Event { at, cpu, process, thread, .. }: Event, state: u64, next: u32) {
        self.completed.remove(&cpu);
        let helper = self.is_helper(thread);
        if state & SLEEPS != 0 && thread != 0 && (helper || self.is_target(process)) {
            let call = self.calls.get(&thread).copied().unwrap_or(NO_CALL);
            let task = self.tasks.entry(thread).or_default();
            (task.slept, task.woken) = (at, false);
            if helper {
                task.mark(at, Part::Kernel);
            } else {
                let iowait = state & UNINTERRUPTIBLE != 0;
                let marks = Vec::with_capacity(8);
                let early = task.early;
                *task = Task { slept: at, call, iowait, early, marks, ..Task::default() };
                // Its process, until it is accounted.
                self.threads.entry(thread).or_insert_with(|| none_of(thread, process, at));
            }
        }
        if next != 0 {
            let part = match (thread, helper) {
                (0, _) => Part::Wake,
                (_, true) => Part::Kernel,
                _ => Part::Busy,
            };
            self.resume(next, at, part);
        }
    }

    /// A thread runs; whether it slept until now.
    fn resume(&mut self, thread: u32, at: u64, part: Part) -> bool {
        let is_helper = self.helpers.get(&thread) == Some(&true);
        let Some(task) = self.tasks.get_mut(&thread).filter(|task| task.slept != 0) else {
            return false;
        };
        task.mark(at, part);
        let slept = std::mem::take(&mut task.slept);
        if let Some(request) = task.early.take().filter(|_| !task.woken) {
            (task.request, task.storage) = (request, true);
        }
        if !is_helper {
            self.account(thread, slept, at);
        }
        true
    }

    fn waking(&mut self, Event { at, cpu, within, thread, .. }: Event, woken: u32) {
        let Some(known) = self.tasks.get(&woken) else { return };
        let asleep = known.slept != 0;
        if asleep && known.woken {
            return;
        }
        let (helper, wakes_helper) = (self.is_helper(thread), self.is_helper(woken));
        let limit = if helper { HELPER_NS } else { PROGRAM_NS };
        let explains = |done: &Completed| match done.within {
            Some(interrupt) => within == Some(interrupt),
            None => done.at + limit > at,
        };
        let done = self.completed.get(&cpu).copied().filter(explains);
        let explained = |waker: &&Task| asleep && helper && woken != thread && waker.storage;
        let waker = self.tasks.get(&thread).filter(explained).cloned();
        let Some(task) = self.tasks.get_mut(&woken) else { return };
        if !asleep {
            match done {
                Some(done) if wakes_helper => task.complete(done),
                done => task.early = done.map(|done| done.request),
            }
            return;
        }
        task.woken = true;
        let mut part = Part::Other;
        // Another CPU may have completed the request just before the thread, which waits for one,
        // slept.
        if let Some(done) = done.filter(|done| done.at > task.slept || task.iowait) {
            task.complete(done);
            part = Part::Kernel;
        } else if let Some(waker) = waker {
            let (request, hops) = (waker.request, waker.hops);
            let slept = task.slept;
            for (when, what) in waker.marks.into_iter().filter(|(when, _)| *when > slept) {
                task.storage |= what == Part::Device;
                task.mark(when, what);
            }
            if task.storage {
                (task.request, task.hops) = (request, hops.saturating_add(1));
                part = Part::Kernel;
            }
        }
        task.mark(at, part);
    }

    /// Splits a wait that is over.
    fn account(&mut self, thread: u32, slept: u64, now: u64) {
        let (Some(task), Some(known)) = (self.tasks.get(&thread), self.threads.get_mut(&thread))
        else {
            return;
        };
        let request = if task.storage { task.request } else { Request::default() };
        let key = (
            known.tgid,
            request.device,
            task.call,
            request.operation,
            if task.storage { power(request.bytes.into()) } else { 0 },
            // Nothing else tells a lock from a wait for a page.
            task.iowait && task.storage,
            task.storage && task.hops > 0,
        );
        let sum = self.waits.entry(key).or_insert(WaitSum {
            count: 0,
            nanos: 0,
            parts: [0; 8],
            hops: 0,
            bytes: 0,
            latency: [0; BUCKETS],
        });
        let mut from = slept;
        for (at, part) in &task.marks {
            let at = (*at).min(now);
            if at > from {
                sum.parts[*part as usize] += at - from;
                from = at;
            }
        }
        let nanos = now - slept;
        let bucket = ((nanos | 1).ilog2() as usize).saturating_sub(7).min(BUCKETS - 1);
        (sum.count, sum.nanos) = (sum.count + 1, sum.nanos + nanos);
        sum.latency[bucket] += 1;
        if task.storage {
            sum.hops += u64::from(task.hops);
            sum.bytes += u64::from(request.bytes);
            if known.waits == 0 {
                known.first = slept;
            }
            (known.last, known.waits) = (now, known.waits + 1);
            known.nanos += nanos;
        }
    }

    fn begin(&mut self, at: u64, request: Request, issue: bool) {
        let key = (request.device, request.sector);
        match self.in_flight.get_mut(&key) {
            Some(known) if issue && known.issued == 0 => {
                (known.issued, known.request.bytes) = (at, request.bytes);
            }
            _ => {
                let issued = if issue { at } else { 0 };
                if self.in_flight.insert(key, InFlight { inserted: at, issued, request }).is_none()
                {
                    *self.depths.entry(request.device).or_default() += 1;
                }
            }
        }
    }

    /// A request that no longer is in flight, and how many were with it.
    fn leave_flight(&mut self, request: Request) -> Option<(InFlight, u64)> {
        let known = self.in_flight.remove(&(request.device, request.sector))?;
        let depth = self.depths.entry(request.device).or_default();
        let in_flight = *depth;
        *depth = depth.saturating_sub(1);
        Some((known, in_flight))
    }

    /// A task is gone. What it waited stays as a part of its process.
    fn forget(&mut self, ended: u32) {
        self.targets.remove(&ended);
        self.tasks.remove(&ended);
        self.calls.remove(&ended);
        self.helpers.remove(&ended);
        let Some(sum) = self.threads.remove(&ended).filter(|sum| sum.waits > 0) else { return };
        let length_ns = sum.last.saturating_sub(sum.first).max(sum.nanos);
        let none = ThreadSum { first: 0, last: 0, waits: 0, nanos: 0, ..sum };
        let all = self.threads.entry(sum.tgid | ENDED).or_insert(none);
        (all.last, all.waits) = (all.last + length_ns, all.waits + sum.waits);
    }

    fn end(&mut self, at: u64, cpu: u32, within: Option<Interrupt>, request: Request) {
        let Some((known, in_flight)) = self.leave_flight(request) else { return };
        let issued = if known.issued > 0 { known.issued } else { known.inserted };
        let (inserted, request) = (known.inserted, known.request);
        self.completed.insert(cpu, Completed { at, within, inserted, issued, request });
        let key = (request.device, request.operation, power(request.bytes.into()));
        let sum = self.devices.entry(key).or_insert(DeviceSum {
            count: 0,
            bytes: 0,
            queue_nanos: 0,
            device_nanos: 0,
            in_flight: 0,
        });
        sum.count += 1;
        sum.bytes += u64::from(request.bytes);
        sum.queue_nanos += issued.saturating_sub(inserted);
        sum.device_nanos += at.saturating_sub(issued);
        sum.in_flight += in_flight;
    }

    /// What was summed up; from zero again if `again`.
    pub fn sums(&mut self, again: bool) -> Sums {
        let waits = self.waits.iter().map(|(key, sum)| {
            let (tgid, device, call, operation, size_bits, iowait, through) = *key;
            let (iowait, through_thread) = (iowait.into(), through.into());
            let key = WaitKey {
                tgid,
                device,
                call,
                operation,
                size_bits,
                iowait,
                through_thread,
                pad: 0,
            };
            (key, *sum)
        });
        let devices = self.devices.iter().map(|((device, operation, size_bits), sum)| {
            let (device, operation, size_bits) = (*device, *operation, *size_bits);
            (DeviceKey { device, operation, size_bits, pad: 0 }, *sum)
        });
        let lost = (self.lost > 0)
            .then(|| format!("{} events were lost, because they came too quickly", self.lost));
        let untold = (self.untold > 0).then(|| {
            format!(
                "switches that perf did not tell of: {}; a wait before one ends with the next \
                 event of its thread",
                self.untold
            )
        });
        let sums = Sums {
            waits: waits.collect(),
            devices: devices.collect(),
            threads: self.threads.values().filter(|sum| sum.waits > 0).copied().collect(),
            cost: crate::Cost { nanos: self.took_ns, events: self.events },
            notes: lost.into_iter().chain(untold).collect(),
        };
        if again {
            (self.waits, self.devices) = Default::default();
            self.threads.retain(|key, _| key & ENDED == 0);
            self.threads.values_mut().for_each(|sum| (sum.waits, sum.nanos) = (0, 0));
        }
        sums
    }
}

fn none_of(thread: u32, process: u32, at: u64) -> ThreadSum {
    let mut name = [0; 16];
    let known = names::program(thread).unwrap_or_default();
    let bytes = known.trim_end().as_bytes();
    let count = bytes.len().min(15);
    name[..count].copy_from_slice(&bytes[..count]);
    ThreadSum { first: at, last: at, waits: 0, nanos: 0, tgid: process, pad: 0, name }
}

#[cfg(test)]
mod tests;
