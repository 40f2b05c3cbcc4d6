// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the paper leaves open, varied one parameter at a time: how much depends on the choice.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use dwell_sim::PolicyKind;
use dwell_sim::summary::Measure;
use serde::{Deserialize, Serialize};

use super::{Ask, Study, Tell};

/// Another choice of one parameter; the first one changes nothing.
pub const CHOICES: [&str; 36] = [
    "",
    "instruction_ps=200",
    "instruction_ps=1000",
    "l1_bytes=0",
    "l2_bytes=512K",
    "llc_hit_ns=5",
    "llc_hit_ns=20",
    "preexecute_cache_split=sets",
    "preexecute_cache_split=own",
    "preexecute_cache_percent=7",
    "tlb_entries=0",
    "tlb_walk_ns=30",
    "tlb_shootdown_ns=1000",
    "replacement=lru",
    "replacement=fifo",
    "first_touch=storage",
    "first_touch=zero",
    "prefetched=mapped",
    "kernel_entry_ns=1500",
    "switch_lines=512",
    "device_channels=4",
    "device_jitter_percent=30",
    "dram_percent=60",
    "dram_percent=80",
    "dram_percent=120",
    "slice_scale=0.01",
    "priorities=random",
    "wake_to=head",
    "prefetch_pages=4",
    "prefetch_pages=16",
    "prefetch_group_pages=16",
    "sync_prefetch_by=virtual",
    "runahead_at=both",
    "preexecute_miss=wait",
    "preexecute_miss=invalid",
    "invalid_branch=stop",
];

/// What one choice gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// The choice, as `name=value`; empty for the defaults.
    pub set: String,
    /// Idle time of each other policy ÷ that of ITS: the least and the most over the batches.
    pub idle: Vec<(PolicyKind, f64, f64)>,
}

/// Simulates every choice on the batches that `ask` names, those of series left out.
pub fn vary(ask: &Ask, tell: &Tell<'_>, cancel: &AtomicBool) -> Result<Vec<Variation>> {
    let mut variations = Vec::new();
    for (at, choice) in CHOICES.iter().enumerate() {
        let mut ask = ask.clone();
        if !choice.is_empty() {
            ask.sets.push((*choice).into());
        }
        let what = if choice.is_empty() { "as it is" } else { choice };
        let hear = |batch: &str, _: &str, share: f64| {
            tell(batch, what, (at as f64 + share) / CHOICES.len() as f64);
        };
        let study = Study::simulate(&ask, &hear, cancel)?;
        if study.ended.is_some() {
            break;
        }
        variations.push(variation(choice, &study));
    }
    Ok(variations)
}

fn variation(choice: &str, study: &Study) -> Variation {
    let others = PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Its);
    let idle = others.filter_map(|policy| {
        let ratios = study.compared().filter_map(|b| b.against_its(policy, Measure::IdleNs));
        let means: Vec<f64> = ratios.map(|ratio| ratio.mean).collect();
        let least = means.iter().copied().reduce(f64::min)?;
        Some((policy, least, means.iter().copied().fold(least, f64::max)))
    });
    Variation { set: choice.into(), idle: idle.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_sim::Params;

    #[test]
    fn every_choice_is_a_machine_and_differs_from_the_defaults() {
        for choice in &CHOICES[1..] {
            let mut params = Params::default();
            params.set(choice).unwrap();
            params.check().unwrap();
            assert_ne!(params, Params::default(), "{choice}");
        }
    }

    #[test]
    fn a_variation_has_the_range_over_the_batches() {
        let study = super::super::tests::study();
        let variation = variation("a=b", &study);
        assert_eq!(variation.idle.len(), 4);
        for (policy, least, most) in variation.idle {
            assert!(0.0 < least && least <= most, "{policy}: {least} {most}");
        }
    }
}
