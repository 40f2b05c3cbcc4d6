// SPDX-License-Identifier: MIT OR Apache-2.0
//! M1: the main job held to its own targets.

use anyhow::Result;

use super::lab::{ratio_text, skip};
use super::sampled::{CPU, THROUGHPUT, enter, step, width};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::fixture::State;
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
use dwell_bench::subject::Subject;
use dwell_bench::trial::Question;

/// The policy that Dwell takes by default.
const DEFAULT: &str = "adaptive";
const LARGE: [u64; 3] = [128 << 10, 256 << 10, 512 << 10];
const SPINS: [&str; 3] = ["raw-cq-peek", "raw-get-events", "raw-taskrun-flag"];

const IDLE: [(State, &str); 3] = [
    (State::Apart, "loop on tmpfs, idle, 4 KiB, apart"),
    (State::Together, "loop on tmpfs, idle, 4 KiB, together"),
    (State::Free, "loop on tmpfs, idle, 4 KiB, free"),
];
const AGAINST_BEST: &str = "loop on tmpfs, idle, 4 KiB: ÷ best hand-written spin";
const LOADED: &str = "loop on tmpfs, ten CPU stressors, 4 KiB";
const ZRAM: &str = "zram, idle, 4 KiB: ÷ plain pread";
const DISK: [&str; 2] = ["virtio disk, idle, 4 KiB", "virtio disk, idle, 4 KiB: CPU per request"];

/// Questions of the figure.
const STEPS: usize = 10;

fn large(size_bytes: u64) -> [String; 2] {
    let case = format!("loop on tmpfs, idle, {} KiB", size_bytes >> 10);
    [case.clone(), format!("{case}: CPU per request")]
}

/// M1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let mut on_loop: Vec<String> = IDLE.map(|(_, case)| case.to_owned()).into();
    on_loop.extend([AGAINST_BEST, LOADED].map(String::from));
    on_loop.extend(LARGE.into_iter().flat_map(large));
    if lab.wants(result, &on_loop) {
        progress("making and probing loop", 0.0);
        match lab.subject(Kind::Loop)? {
            Ok(subject) => measure_on_loop(lab, result, &subject, progress)?,
            Err(why) => skip(result, &on_loop, &why)?,
        }
    }
    if lab.wants(result, &[ZRAM]) {
        match lab.subject(Kind::Zram)? {
            Ok(subject) => {
                let question = lab.question(
                    (Kind::Zram, &subject),
                    &[DEFAULT],
                    width(result, ZRAM, Load::Idle),
                );
                let question = Question { baseline: "pread", ..question };
                pairs(lab, result, &[ZRAM], &question, None, (8, progress))?;
            }
            Err(why) => skip(result, &[ZRAM], &why)?,
        }
    }
    if lab.wants(result, &DISK) {
        match lab.subject(Kind::Disk)? {
            Ok(subject) => {
                let remark = Some(subject.description.clone());
                let question = lab.question(
                    (Kind::Disk, &subject),
                    &[DEFAULT],
                    width(result, DISK[1], Load::Idle),
                );
                let question = Question { numbers: &[THROUGHPUT, CPU], ..question };
                pairs(lab, result, &DISK, &question, remark, (9, progress))?;
            }
            Err(why) => skip(result, &DISK, &why)?,
        }
    }
    Ok(None)
}

/// The first contender's numbers beside the baseline's, a case each.
fn pairs<S: AsRef<str>>(
    lab: &Lab,
    result: &mut FigureResult,
    cases: &[S],
    question: &Question<'_>,
    remark: Option<String>,
    (at, progress): (usize, &mut Progress<'_>),
) -> Result<()> {
    let mut step = step(progress, cases[0].as_ref(), at, STEPS);
    let asked = lab.sample(result, cases, || lab.ask(question, &lab.means(), &mut step))?;
    let Some(asked) = asked else { return Ok(()) };
    for (number, case) in cases.iter().enumerate() {
        enter(result, case.as_ref(), &asked.sampled, (2, 0, number), remark.clone())?;
    }
    lab.keep(result)
}

fn measure_on_loop(
    lab: &Lab,
    result: &mut FigureResult,
    subject: &Subject,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let on = (Kind::Loop, subject);
    for (at, (state, case)) in IDLE.into_iter().enumerate() {
        let question = lab.question(on, &[DEFAULT, "spin"], width(result, case, Load::Idle));
        let question = Question { state, ..question };
        let mut step = step(progress, case, at, STEPS);
        let asked = lab.sample(result, &[case], || lab.ask(&question, &lab.means(), &mut step))?;
        let Some(asked) = asked else { continue };
        let spin = asked.sampled.row(3, 0, 0);
        let spin = spin.map(|(spin, _)| format!("always spinning ÷ block: {}", ratio_text(&spin)));
        enter(result, case, &asked.sampled, (2, 0, 0), spin)?;
        lab.keep(result)?;
    }

    let question = lab.question(on, &SPINS, width(result, AGAINST_BEST, Load::Idle));
    let question = Question { baseline: DEFAULT, ..question };
    let mut step_best = step(progress, AGAINST_BEST, 3, STEPS);
    let asked = lab.sample(result, &[AGAINST_BEST], || {
        let best = match lab.scout(&question, &lab.means(), &mut step_best)? {
            Ok((best, _)) => SPINS[best],
            Err(why) => return Ok(Err(why)),
        };
        let until = lab.after_scouting(question.until);
        let question = Question { contenders: &[best], until, ..question };
        let asked = lab.ask(&question, &lab.means(), &mut step_best)?;
        Ok(asked.map(|asked| (asked, best)))
    })?;
    if let Some((asked, best)) = asked {
        enter(result, AGAINST_BEST, &asked.sampled, (0, 2, 0), Some(best.into()))?;
        lab.keep(result)?;
    }

    let load = Load::Cpu;
    let question = lab.question(on, &[DEFAULT, "spin"], width(result, LOADED, load));
    let question = Question { load, part: lab.part(Kind::Loop, load), ..question };
    let mut step_loaded = step(progress, LOADED, 4, STEPS);
    let asked =
        lab.sample(result, &[LOADED], || lab.ask(&question, &lab.means(), &mut step_loaded))?;
    if let Some(asked) = asked {
        let spin = asked.sampled.row(3, 0, 0);
        let spin = spin.map(|(spin, _)| format!("always spinning ÷ block: {}", ratio_text(&spin)));
        enter(result, LOADED, &asked.sampled, (2, 0, 0), spin)?;
        lab.keep(result)?;
    }

    for (at, size_bytes) in LARGE.into_iter().enumerate() {
        let cases = large(size_bytes);
        let question = lab.question(on, &[DEFAULT], width(result, &cases[0], Load::Idle));
        let question = Question { size_bytes, numbers: &[THROUGHPUT, CPU], ..question };
        pairs(lab, result, &cases, &question, None, (5 + at, progress))?;
    }
    Ok(())
}
