// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading processes of Dwell on host pages.

use std::path::PathBuf;
use std::sync::Arc;

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

/// One process on a host page, which it may share with others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sharer {
    /// The page.
    pub(super) page: PathBuf,
    /// The policy.
    pub(super) policy: String,
    /// File or block device, which it reads at random.
    pub(super) path: PathBuf,
    /// Its length.
    pub(super) bytes: u64,
    /// Whether the page cache is bypassed.
    pub(super) direct: bool,
    /// What the probe learned of it.
    pub(super) profile: Option<DeviceProfile>,
    /// [`Counts::path`] of whoever wants to know of its requests.
    pub(super) counts: PathBuf,
    /// Place among the counts.
    pub(super) slot: usize,
}

impl Sharer {
    pub(super) fn go_on(&self) -> Result<()> {
        let counts = Counts::open(&self.counts, self.slot + 1)?;
        let config = Config { host_page: Some(self.page.clone()), ..Config::default() };
        let monitor = Arc::new(SystemMonitor::start(config).context("starting a monitor")?);
        let parameters = self.profile.as_ref().map(DeviceProfile::parameters).unwrap_or_default();
        let options = Options::new().direct(self.direct).parameters(parameters).monitor(monitor);
        let file = options.policy(policy_of(&self.policy)?).open(&self.path)?;
        let mut buffer = Aligned::new(REQUEST_BYTES as usize);
        let places = (self.bytes / REQUEST_BYTES).max(1) as usize;
        let mut random = SplitMix(self.slot as u64);
        for request in 1.. {
            file.read_at(&mut buffer, random.below(places) as u64 * REQUEST_BYTES)?;
            counts.set(self.slot, request);
        }
        unreachable!("requests are counted in 64 bits")
    }
}
