// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at all processes again and again: what happened between two looks.

use std::collections::HashMap;
use std::path::PathBuf;

use dwell_policy::Ns;
use serde::Serialize;

use super::{Device, Snapshot, list};
use dwell::error::{Error, Result};

/// What a device did per second between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Requests per second whose thread spun, so that no switch was needed.
    pub switches_avoided_per_second: f64,
    /// Time spent busy-waiting, in CPUs.
    pub spin_cpus: f64,
    /// The latency that 99 in 100 requests did not exceed, in nanoseconds; 0 without requests.
    pub p99_ns: Ns,
}

impl Rates {
    /// From what a device did in so many nanoseconds.
    pub fn of(did: &Device, elapsed_ns: Ns) -> Rates {
        if elapsed_ns == 0 {
            return Rates::default();
        }
        let seconds = elapsed_ns as f64 / 1e9;
        Rates {
            requests_per_second: did.stats.requests() as f64 / seconds,
            switches_avoided_per_second: did.stats.switches_avoided() as f64 / seconds,
            spin_cpus: did.stats.spun_ns as f64 / elapsed_ns as f64,
            p99_ns: did.stats.latencies().percentile(0.99),
        }
    }
}

/// One process at one look.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// Its pid.
    pub pid: u32,
    /// What each of its devices did since the look before, in the order of the snapshot; none at
    /// the first look.
    pub rates: Option<Vec<Rates>>,
    /// What it told.
    #[serde(flatten)]
    pub told: Snapshot,
}

/// What one look found.
#[derive(Debug, Default)]
pub struct Look {
    /// The processes, by pid.
    pub processes: Vec<Seen>,
    /// Stats pages that cannot be read, and why.
    pub unreadable: Vec<(PathBuf, Error)>,
}

/// Looks at the processes of a directory again and again.
#[derive(Debug)]
pub struct Watch {
    dir: PathBuf,
    before: HashMap<(u32, u64), Snapshot>,
}

impl Watch {
    /// Nothing seen so far.
    pub fn new(dir: PathBuf) -> Watch {
        Watch { dir, before: HashMap::new() }
    }

    /// All processes now.
    ///
    /// # Errors
    /// Those of [`list`].
    pub fn look(&mut self) -> Result<Look> {
        let mut found = Look::default();
        let mut now = HashMap::new();
        for entry in list(&self.dir)? {
            let told = match entry.snapshot {
                Ok(told) => told,
                Err(error) => {
                    found.unreadable.push((entry.path, error));
                    continue;
                }
            };
            let who = (told.header.pid, told.header.start_ticks);
            let rates = self.before.get(&who).map(|before| {
                let elapsed_ns = told.published_ns.saturating_sub(before.published_ns);
                let since = told.since(before);
                since.devices.iter().map(|did| Rates::of(did, elapsed_ns)).collect()
            });
            now.insert(who, told.clone());
            found.processes.push(Seen { pid: entry.pid, rates, told });
        }
        self.before = now;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use dwell_policy::{Mode, Reason, Route};

    use super::super::{Header, StatsPage};
    use super::*;
    use dwell::stats::{Row, Stats};

    #[test]
    fn a_second_look_tells_what_happened_between() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("dwell");
        let mut watch = Watch::new(dir.clone());
        assert!(watch.look().unwrap().processes.is_empty());
        let stats_page = StatsPage::create(&dir, &Header::default()).unwrap();
        let told = |published_ns, requests, spun_ns| {
            let (route, mode, why) = (Route::Interrupt, Mode::Spin, Reason::Pays);
            let rows = vec![Row::new(route, mode, why, requests)];
            let mut stats = Stats::default();
            (stats.rows, stats.spun_ns) = (rows, spun_ns);
            let device = Device { name: "loop0".into(), stats, ..Device::default() };
            Snapshot { published_ns, devices: vec![device], ..Snapshot::default() }
        };
        stats_page.publish(&told(1_000_000_000, 100, 7)).unwrap();
        assert!(watch.look().unwrap().processes[0].rates.is_none());
        stats_page.publish(&told(3_000_000_000, 300, 1_000_000_007)).unwrap();
        let rates = watch.look().unwrap().processes.remove(0).rates.unwrap()[0];
        assert_eq!((rates.requests_per_second, rates.spin_cpus), (100.0, 0.5));
        assert_eq!(rates.switches_avoided_per_second, 100.0);
        // Nothing was published since.
        let rates = watch.look().unwrap().processes.remove(0).rates.unwrap();
        assert_eq!(rates, [Rates::default()]);
    }
}
