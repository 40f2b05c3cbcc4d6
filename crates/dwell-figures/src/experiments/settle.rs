// SPDX-License-Identifier: MIT OR Apache-2.0
//! R0: how long each policy needs to settle after another one. The lengths of measured
//! parts ([`dwell_bench::trial::part`]) are estimates to hold against it.

use anyhow::Result;

use super::lab::skip;
use super::sampled::step;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::State;
use dwell_bench::settling::{self, Switches};
use dwell_bench::stand::Kind;

const SCENES: [(Kind, State); 5] = [
    (Kind::Loop, State::Free),
    (Kind::Loop, State::Apart),
    (Kind::Loop, State::Together),
    (Kind::Zram, State::Free),
    (Kind::Emulated, State::Free),
];
/// Each with the policy before it.
const POLICIES: [(&str, &str); 3] = [("block", "spin"), ("spin", "block"), ("smartcon", "block")];

fn case(kind: Kind, state: State, policy: &str) -> String {
    format!("{}, {}: {policy}", kind.as_str(), state.as_str())
}

/// R0.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    for (i, (kind, state)) in SCENES.into_iter().enumerate() {
        let cases = POLICIES.map(|(policy, _)| case(kind, state, policy));
        if !lab.wants(result, &cases) {
            continue;
        }
        progress(&format!("making and probing {}", kind.as_str()), i as f64 / SCENES.len() as f64);
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        for (j, (policy, before)) in POLICIES.into_iter().enumerate() {
            let case = case(kind, state, policy);
            let mut step =
                step(progress, &case, i * POLICIES.len() + j, SCENES.len() * POLICIES.len());
            let switches = Switches {
                subject: &subject,
                before: (before, lab.span(300)),
                policy: (policy, lab.span(1000)),
                size_bytes: 4096,
                state,
                times: lab.times(20),
            };
            let sampled = lab.sample(result, &[&case], || {
                settling::measure(&switches, &lab.monitor, &mut |share| step.show(share))
            })?;
            let Some(settling) = sampled else { continue };
            result.measured(&case, Measured::exact(settling.ms))?;
            let (first, times) = (dwell_bench::units::ratio(settling.first), switches.times);
            let (low, high) = settling.stays;
            let note = format!(
                "after {before}, {times} switches; at first {first} as fast; later {low:.2} to \
                 {high:.2} times the median"
            );
            result.note(&case, &note)?;
            lab.keep(result)?;
        }
    }
    Ok(None)
}
