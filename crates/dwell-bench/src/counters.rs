// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPU's event counters for the calling thread: cycles, instructions, misses.
//!
//! Events are counted in small groups that each fit the few registers of any processor; the kernel
//! gives the groups their turns, and a count is scaled by the share of time that its group had.

use std::collections::BTreeMap;
use std::{fmt, io};

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware, Software};
use perf_event::{Builder, Counter, Group};

/// Why there are no counters, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    WithKernel,
    UserOnly,
}

/// Counters of the thread that opened them, and of no other.
///
/// Names are `cycles`, `instructions`, `l1d_reads`, `l1d_read_misses`, `l1i_misses`,
/// `last_level_misses` (of the cache that the processor counts as its last), `dtlb_misses`,
/// `itlb_misses`, and from the kernel `context_switches`, `page_faults`, `cpu_migrations`. Those
/// that the processor lacks are left out.
pub struct Counters {
    sets: Vec<Set>,
    reach: Reach,
}

/// Counters that run together.
struct Set {
    group: Group,
    counters: Vec<(&'static str, Counter)>,
}

/// Adds an event to a group.
type Add = fn(&mut Group, Reach) -> io::Result<Counter>;

fn add<E: Event>(group: &mut Group, reach: Reach, event: E) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    builder.exclude_kernel(reach == Reach::UserOnly);
    group.add(&builder)
}

const fn cache(which: CacheId, result: CacheResult) -> Cache {
    Cache { which, operation: CacheOp::READ, result }
}

const HARDWARE: [&[(&str, Add)]; 4] = [
    &[
        ("cycles", |g, r| add(g, r, Hardware::CPU_CYCLES)),
        ("instructions", |g, r| add(g, r, Hardware::INSTRUCTIONS)),
    ],
    &[
        ("l1d_reads", |g, r| add(g, r, cache(CacheId::L1D, CacheResult::ACCESS))),
        ("l1d_read_misses", |g, r| add(g, r, cache(CacheId::L1D, CacheResult::MISS))),
    ],
    &[
        ("l1i_misses", |g, r| add(g, r, cache(CacheId::L1I, CacheResult::MISS))),
        ("last_level_misses", |g, r| add(g, r, Hardware::CACHE_MISSES)),
    ],
    &[
        ("dtlb_misses", |g, r| add(g, r, cache(CacheId::DTLB, CacheResult::MISS))),
        ("itlb_misses", |g, r| add(g, r, cache(CacheId::ITLB, CacheResult::MISS))),
    ],
];

const SOFTWARE: &[(&str, Add)] = &[
    ("context_switches", |g, r| add(g, r, Software::CONTEXT_SWITCHES)),
    ("page_faults", |g, r| add(g, r, Software::PAGE_FAULTS)),
    ("cpu_migrations", |g, r| add(g, r, Software::CPU_MIGRATIONS)),
];

impl Counters {
    /// Counters of the calling thread, stopped.
    ///
    /// # Errors
    /// Where the processor counts no events for this machine, or the kernel does not let this
    /// process read them.
    pub fn open() -> Result<Self, Unsupported> {
        let mut counters = Self::software()?;
        for events in HARDWARE {
            counters.sets.extend(Set::open(events, counters.reach).map_err(refused)?);
        }
        match counters.sets.len() {
            0 | 1 => Err(Unsupported(
                "not supported: this machine exposes no hardware performance counters".into(),
            )),
            _ => Ok(counters),
        }
    }

    /// What the kernel itself counts: works on any machine.
    fn software() -> Result<Self, Unsupported> {
        for reach in [Reach::WithKernel, Reach::UserOnly] {
            match Set::open(SOFTWARE, reach) {
                Ok(set) => return Ok(Counters { sets: set.into_iter().collect(), reach }),
                Err(error) if is_refusal(&error) && reach == Reach::WithKernel => {}
                Err(error) => return Err(refused(error)),
            }
        }
        unreachable!("the second attempt returns")
    }

    /// What to know about the counts, if anything.
    pub fn remark(&self) -> Option<&'static str> {
        (self.reach == Reach::UserOnly).then_some(
            "user mode only: kernel.perf_event_paranoid lets this process see no more; run as root",
        )
    }

    /// The names counted.
    pub fn names(&self) -> Vec<&'static str> {
        self.sets.iter().flat_map(|set| set.counters.iter().map(|(name, _)| *name)).collect()
    }

    /// Counts from zero. A counter that cannot be started counts nothing.
    pub fn start(&mut self) {
        for set in &mut self.sets {
            let _ = set.group.reset().and_then(|()| set.group.enable());
        }
    }

    /// Stops and tells what was counted since [`Counters::start`]; what never had its turn is
    /// missing.
    pub fn stop(&mut self) -> BTreeMap<String, f64> {
        for set in &mut self.sets {
            let _ = set.group.disable();
        }
        self.sets.iter_mut().flat_map(Set::counts).collect()
    }
}

impl Set {
    /// The events of a set that this machine has, if there are any.
    fn open(events: &[(&'static str, Add)], reach: Reach) -> io::Result<Option<Self>> {
        let mut builder = Group::builder();
        let mut group = builder.exclude_kernel(reach == Reach::UserOnly).build_group()?;
        let mut counters = Vec::new();
        for (name, add) in events {
            match add(&mut group, reach) {
                Ok(counter) => counters.push((*name, counter)),
                Err(error) if is_refusal(&error) => return Err(error),
                // The processor has no such event.
                Err(_) => {}
            }
        }
        Ok((!counters.is_empty()).then_some(Set { group, counters }))
    }

    fn counts(&mut self) -> Vec<(String, f64)> {
        let Ok(data) = self.group.read() else { return Vec::new() };
        let time = |time: Option<std::time::Duration>| time.unwrap_or_default().as_nanos() as u64;
        let (enabled, running) = (time(data.time_enabled()), time(data.time_running()));
        let counts = self.counters.iter().filter_map(|(name, counter)| {
            let count = data.get(counter)?.value();
            Some(((*name).to_owned(), scaled(count, enabled, running)?))
        });
        counts.collect()
    }
}

/// A count as it would be had its group run all the time that it was enabled.
fn scaled(count: u64, enabled_ns: u64, running_ns: u64) -> Option<f64> {
    match running_ns {
        0 => None,
        running if running >= enabled_ns => Some(count as f64),
        running => Some((count as f64 * enabled_ns as f64 / running as f64).round()),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

fn refused(error: io::Error) -> Unsupported {
    let why = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let path = "/proc/sys/kernel/perf_event_paranoid";
            let level = std::fs::read_to_string(path).unwrap_or_default();
            format!(
                "not permitted: kernel.perf_event_paranoid is {}; run as root, or set it to 1",
                level.trim()
            )
        }
        Some(libc::ENOSYS) => "not supported: this kernel has no perf_event_open".into(),
        _ => format!("not supported: perf_event_open: {error}"),
    };
    Unsupported(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_ran_a_part_of_the_time_is_scaled_and_one_that_never_ran_is_not_known() {
        assert_eq!(scaled(100, 1000, 1000), Some(100.0));
        assert_eq!(scaled(100, 1000, 250), Some(400.0));
        assert_eq!(scaled(0, 1000, 250), Some(0.0));
        assert_eq!(scaled(0, 1000, 0), None);
    }

    #[test]
    fn the_kernels_counts_are_those_of_this_thread_between_start_and_stop() {
        let mut counters = match Counters::software() {
            Ok(counters) => counters,
            Err(why) => return println!("SKIP: {why}"),
        };
        assert_eq!(counters.names(), ["context_switches", "page_faults", "cpu_migrations"]);
        let touch = |pages: usize| {
            let mut memory = Vec::<u8>::with_capacity(pages * 4096);
            memory.resize(pages * 4096, 1);
            std::hint::black_box(memory);
        };
        // Larger than what an allocator may keep for later.
        const PAGES: usize = 10 << 10;
        touch(PAGES);
        counters.start();
        touch(PAGES);
        (0..20).for_each(|_| std::thread::sleep(std::time::Duration::from_micros(200)));
        // Another thread's faults are not ours.
        let counts = counters.stop();
        let more = counters.stop();
        assert_eq!(counts, more, "counted on after the stop");
        assert!(counts["page_faults"] >= 4.0, "{counts:?}");
        if counters.remark().is_none() {
            assert!(counts["context_switches"] >= 20.0, "{counts:?}");
        }
        counters.start();
        let again = counters.stop();
        assert!(again["context_switches"] < 20.0, "did not begin at zero: {again:?}");
    }

    #[test]
    fn the_hardwares_counts_are_there_or_said_to_be_missing_in_one_line() {
        let mut counters = match Counters::open() {
            Ok(counters) => counters,
            Err(why) => {
                let text = why.to_string();
                assert!(text.starts_with("not ") && !text.contains('\n'), "{text}");
                return println!("SKIP: {text}");
            }
        };
        counters.start();
        std::hint::black_box((0..1_000_000u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
        let counts = counters.stop();
        assert!(counts["instructions"] >= 1e6 && counts["cycles"] > 0.0, "{counts:?}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let text = refused(io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert!(text.contains("perf_event_paranoid") && text.contains("root"), "{text}");
    }
}
