// SPDX-License-Identifier: MIT OR Apache-2.0
//! S16: what ordinary programs beside the reader notice of how it waits.

use anyhow::Result;

use super::lab::{both, cpu_text, put};
use super::sampled::{EQUIVALENCE, enter, once_learned, step};
use super::sums::{Rate, spun};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::loads::Means;
use dwell_bench::result::{Load, Metric, RoundResult};
use dwell_bench::stand::Kind;
use dwell_bench::trial::{Number, Question};

const ONE: &str = "one bystander";
const CONTENDERS: [(&str, &str); 3] =
    [("smartcon", "smartcon"), ("spin", "always spinning"), ("adaptive", "adaptive")];

/// S16.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some((subject, odd)) = lab.fast_loop(result, progress)? else { return Ok(None) };
    let crowds = [(ONE, 1), ("a bystander per CPU", lab.cpus())];
    for (i, (name, bystanders)) in crowds.into_iter().enumerate() {
        let speeds = CONTENDERS.map(|(_, how)| format!("{name}: speed beside {how}"));
        let times = [
            "its user time per turn",
            "its system time per turn",
            "iowait of the machine",
            "iowait beside always spinning",
        ]
        .map(|what| format!("{ONE}: {what}"));
        let more = times.iter().filter(|_| name == ONE);
        let cases: Vec<&String> = speeds.iter().chain(more).collect();
        let contenders = CONTENDERS.map(|(policy, _)| policy);
        // What others notice of a reader is some percent: as narrow as for what costs nothing.
        let question = lab.question((Kind::Loop, &subject), &contenders, EQUIVALENCE);
        let question = once_learned(Question {
            load: Load::Bystander,
            numbers: &[Number::Metric(Metric::BystanderSpeed)],
            part: lab.part(Kind::Loop, Load::Bystander),
            ..question
        });
        let means = Means { bystanders, ..lab.means() };
        let mut step = step(progress, name, i, crowds.len());
        let asked = lab.sample(result, &cases, || lab.ask(&question, &means, &mut step))?;
        let Some(asked) = asked else { continue };
        let how_many = (name != ONE).then(|| format!("{bystanders} of them"));
        for (at, case) in speeds.iter().enumerate() {
            let cpu = cpu_text(&asked.rows[2 + at], &asked.rows[0]);
            let remark = both(both(odd.clone(), how_many.clone()), cpu);
            enter(result, case, &asked.sampled, (2 + at, 0, 0), remark)?;
        }
        if name == ONE {
            let [block, _, ours, spin, _] = &asked.rows[..] else {
                anyhow::bail!("a contender is missing")
            };
            let turns = |round: &RoundResult| round.bystander_iterations as f64;
            let user =
                Rate { quantity: |round: &RoundResult| round.bystander_user_ns as f64, per: turns };
            let system = Rate {
                quantity: |round: &RoundResult| round.bystander_system_ns as f64,
                per: turns,
            };
            let iowait = Rate {
                quantity: |round: &RoundResult| round.iowait_ns as f64,
                per: |round: &RoundResult| round.wall_ns as f64,
            };
            let values = [
                user.ratio(ours, block),
                system.ratio(ours, block),
                iowait.ratio(ours, block),
                iowait.ratio(spin, block),
            ];
            let spun = format!("{:.0} % of requests spun for", 100.0 * spun(ours));
            for (case, value) in times.iter().zip(values) {
                let note = both(odd.clone(), Some(spun.clone()));
                put(result, case, value, note)?;
            }
        }
        lab.keep(result)?;
    }
    Ok(None)
}
