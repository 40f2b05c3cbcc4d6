// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements before a bench begins: what a switch costs, and devices of which nothing is
//! known.

use anyhow::{Context, Result};
use clap::Args;
use dwell_bench::subject::Probing;
use dwell_host::profile::SwitchCosts;

use crate::progress::Progress;

/// How thoroughly.
#[derive(Args)]
pub struct ProbeArgs {
    /// Hardly at all, so that tests of a bench need not wait for it: profiles say little then
    #[arg(long, hide = true)]
    hasty_probe: bool,
}

impl ProbeArgs {
    /// How devices are probed; what a switch costs is measured now.
    pub fn probing(&self, progress: &mut Progress) -> Result<Probing> {
        match self.hasty_probe {
            true => Ok(Probing::hasty(SwitchCosts::default())),
            false => Ok(Probing::quick(switch_costs(progress)?)),
        }
    }
}

/// What a context switch costs on this machine.
pub fn switch_costs(progress: &mut Progress) -> Result<SwitchCosts> {
    let mut show = |share| progress.show("cost of a context switch", share);
    dwell_host::probe::switch_costs(&mut show).context("measuring the cost of a context switch")
}
