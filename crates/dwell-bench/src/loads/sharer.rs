// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of Dwell that share a host page: readers, and a process that holds a seat in vain.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dwell::Options;
use dwell::buffer::Aligned;
use dwell::monitor::{Config, SystemMonitor};
use dwell_host::profile::DeviceProfile;
use serde::{Deserialize, Serialize};

use super::counts::Counts;
use crate::contender::policy_of;
use crate::stats::SplitMix;

const REQUEST_BYTES: u64 = 4096;

/// One process on a host page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sharer {
    /// The page; without one the process is alone.
    pub(super) page: Option<PathBuf>,
    /// What it reads; without a file it takes a seat and holds on to it.
    pub(super) reads: Option<Reads>,
    /// [`Counts::path`] of whoever wants to know of its requests, or of its seat.
    pub(super) counts: PathBuf,
    /// Place among the counts.
    pub(super) slot: usize,
}

/// What a process reads at random, under `smartcon`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reads {
    /// File or block device.
    pub(super) path: PathBuf,
    /// Its length.
    pub(super) bytes: u64,
    /// Whether the page cache is bypassed.
    pub(super) direct: bool,
    /// What the probe learned of it.
    pub(super) profile: Option<DeviceProfile>,
}

impl Sharer {
    pub(super) fn go_on(&self) -> Result<()> {
        let counts = Counts::open(&self.counts, self.slot + 1)?;
        let usual = Config { host_page: self.page.clone(), ..Config::default() };
        let Some(reads) = &self.reads else {
            // Its limit is at least one, however busy the others are.
            return self.hold(Config { threshold: Some(1.0), ..usual }, &counts);
        };
        let monitor = Arc::new(SystemMonitor::start(usual).context("starting a monitor")?);
        let known = reads.profile.as_ref().map(DeviceProfile::known).unwrap_or_default();
        let options = Options::new().direct(reads.direct).known(known).monitor(monitor);
        let file = options.policy(policy_of("smartcon")?).open(&reads.path)?;
        let mut buffer = Aligned::new(REQUEST_BYTES as usize);
        let places = (reads.bytes / REQUEST_BYTES).max(1) as usize;
        let mut random = SplitMix(self.slot as u64);
        for request in 1.. {
            file.read_at(&mut buffer, random.below(places) as u64 * REQUEST_BYTES)?;
            counts.set(self.slot, request);
        }
        unreachable!("requests are counted in 64 bits")
    }

    /// A thread that spins for ever keeps its seat. This one sleeps meanwhile, as the dead do.
    fn hold(&self, config: Config, counts: &Counts) -> Result<()> {
        const LOOK: Duration = Duration::from_millis(5);
        let monitor = SystemMonitor::start(config).context("starting a monitor")?;
        let permit = monitor.permit();
        let _seat = loop {
            match permit.try_spin() {
                Some(seat) => break seat,
                None => std::thread::sleep(LOOK),
            }
        };
        counts.set(self.slot, 1);
        loop {
            std::thread::sleep(LOOK);
        }
    }
}
