// SPDX-License-Identifier: MIT OR Apache-2.0
//! S16: what ordinary programs beside the reader notice of how it waits.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, put, row, skip_all, unless_class};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use crate::result::{Load, Metric, RoundResult, Row, pair};
use crate::stand::Kind;

const SIZE_BYTES: u64 = 4096;
const ONE: &str = "one bystander";

/// S16.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let odd = unless_class(&subject, DeviceClass::Fast);
    let crowds = [(ONE, 1), ("a bystander per CPU", lab.cpus())];
    for (i, (name, bystanders)) in crowds.into_iter().enumerate() {
        let mut plan = lab.plan(&["block", "smartcon", "spin"], &[SIZE_BYTES], (31, 600));
        plan.loads = vec![Load::Bystander];
        plan.means.bystanders = bystanders;
        let part = (i as f64 / 2.0, (i as f64 + 1.0) / 2.0);
        let run = lab.run(&plan, std::slice::from_ref(&subject), part, progress)?;
        let of = |policy| row(&run, Kind::Loop, SIZE_BYTES, policy);
        let (block, ours) = (of("block")?, of("smartcon")?);
        let how_many = (name != ONE).then(|| format!("{bystanders} of them"));
        for (policy, how) in [("smartcon", "smartcon"), ("spin", "always spinning")] {
            let case = format!("{name}: speed beside {how}");
            let ratio = pair(of(policy)?, block, Metric::BystanderSpeed);
            put(result, &case, ratio, both(odd.clone(), how_many.clone()))?;
        }
        if name == ONE {
            let per_turn = |time: fn(&RoundResult) -> u64| {
                ratio_of_sums(ours, block, time, |round| round.bystander_iterations)
            };
            let note = both(odd.clone(), Some("all rounds together".into()));
            let user = per_turn(|round| round.bystander_user_ns);
            put(result, &format!("{ONE}: its user time per turn"), user, note.clone())?;
            let system = per_turn(|round| round.bystander_system_ns);
            put(result, &format!("{ONE}: its system time per turn"), system, note.clone())?;
            let iowait = ratio_of_sums(ours, block, |round| round.iowait_ns, |round| round.wall_ns);
            put(result, &format!("{ONE}: iowait of the machine"), iowait, note)?;
        }
    }
    Ok(None)
}

/// How a quantity per another compares over all rounds: what is counted in steps of 10 ms says
/// little in one.
fn ratio_of_sums(
    ours: &Row,
    base: &Row,
    quantity: impl Fn(&RoundResult) -> u64,
    per: impl Fn(&RoundResult) -> u64,
) -> Option<Measured> {
    let rate = |row: &Row| {
        let (sum, per) = row
            .rounds
            .iter()
            .fold((0, 0), |sums, round| (sums.0 + quantity(round), sums.1 + per(round)));
        sum as f64 / per as f64
    };
    Some(rate(ours) / rate(base)).filter(|ratio| ratio.is_finite()).map(Measured::exact)
}
