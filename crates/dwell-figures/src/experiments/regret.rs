// SPDX-License-Identifier: MIT OR Apache-2.0
//! R1: what the default policy costs beyond the best fixed one, without a probe.

use std::path::Path;

use anyhow::Result;
use dwell::parameters::DeviceParameters;

use super::lab::skip;
use super::sampled::{CPU, THROUGHPUT, enter, once_learned, step};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::State;
use dwell_bench::loads::Means;
use dwell_bench::result::{Direction, Load, Pattern, Requests, RoundResult, Row};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;
use dwell_bench::subject::Subject;
use dwell_bench::trial::{Asked, Question, part};

const DEFAULT: &str = "adaptive";
const MEAN: &str = "all cells: geometric mean of speed";
const MEAN_CPU: &str = "all cells: geometric mean of CPU per request";
/// Beside others, stressors and I/O programs alike, spinning is none to be held against where it
/// takes a larger share of the CPU time that they have while the thread blocks.
const MOST_TAKEN: f64 = 0.01;
const BELOW: &str = "all cells: those wholly below 0.95 in speed";

/// What runs beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    One,
    Ten,
    Io,
}

impl Beside {
    const fn as_str(self) -> &'static str {
        match self {
            Beside::Nothing => "idle",
            Beside::One => "one stressor",
            Beside::Ten => "ten stressors",
            Beside::Io => "four I/O programs",
        }
    }

    const fn load(self) -> Load {
        match self {
            Beside::Nothing => Load::Idle,
            Beside::One | Beside::Ten => Load::Cpu,
            Beside::Io => Load::Io,
        }
    }
}

/// A device in a state of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Apart,
    Together,
    Zram,
    Disk,
    Emulated(&'static str),
}

impl On {
    fn name(self) -> String {
        match self {
            On::Apart => "loop apart".into(),
            On::Together => "loop together".into(),
            On::Zram => "zram".into(),
            On::Disk => "disk".into(),
            On::Emulated(latency) => format!("emulated {latency}"),
        }
    }

    const fn kind(self) -> Kind {
        match self {
            On::Apart | On::Together => Kind::Loop,
            On::Zram => Kind::Zram,
            On::Disk => Kind::Disk,
            On::Emulated(_) => Kind::Emulated,
        }
    }

    const fn state(self) -> State {
        match self {
            On::Apart => State::Apart,
            On::Together => State::Together,
            _ => State::Free,
        }
    }
}

/// One cell: where, how large in KiB, whether a write, beside what.
type Cell = (On, u64, bool, Beside);

/// Cells that cover devices, sizes, loads and directions: each value of one meets each of another
/// at least once where that can be.
const CELLS: [Cell; 28] = {
    use Beside::{Io, Nothing, One, Ten};
    use On::{Apart, Disk, Emulated, Together, Zram};
    const FAST: On = Emulated("3 µs");
    const FLASH: On = Emulated("10 µs");
    const SLOW: On = Emulated("80 µs");
    [
        (Apart, 4, false, Nothing),
        (Apart, 16, false, Nothing),
        (Apart, 64, false, Nothing),
        (Apart, 256, false, Nothing),
        (Apart, 4, true, Nothing),
        (Apart, 4, false, One),
        (Apart, 4, false, Ten),
        (Apart, 64, true, Io),
        (Together, 4, false, Nothing),
        (Together, 64, false, Nothing),
        (Together, 16, true, Nothing),
        (Together, 256, false, One),
        (Together, 4, true, Io),
        (Zram, 4, false, Nothing),
        (Zram, 64, true, Nothing),
        (Zram, 16, false, Ten),
        (Zram, 256, false, Io),
        (FAST, 4, false, Nothing),
        (FAST, 64, true, One),
        (FAST, 16, false, Ten),
        (FLASH, 4, false, One),
        (FLASH, 16, true, Nothing),
        (FLASH, 64, false, Nothing),
        (SLOW, 4, false, Nothing),
        (SLOW, 256, true, Nothing),
        (SLOW, 64, false, Ten),
        (Disk, 4, false, Nothing),
        (Disk, 64, false, One),
    ]
};

/// The rows of a cell: speed, CPU time, and the slowest request in a hundred.
fn cases((on, kib, write, beside): Cell) -> [String; 3] {
    let direction = if write { "write" } else { "read" };
    let cell = format!("{}, {kib} KiB {direction}, {}", on.name(), beside.as_str());
    [cell.clone(), format!("{cell}: CPU"), format!("{cell}: p99")]
}

/// R1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    for (at, cell) in CELLS.into_iter().enumerate() {
        let cases = cases(cell);
        if !lab.wants(result, &cases) {
            continue;
        }
        progress(&format!("making {}", cell.0.name()), at as f64 / CELLS.len() as f64);
        let subject = match unprobed(lab, cell.0)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let mut step = step(progress, &cases[0], at, CELLS.len());
        let question = question(lab, &subject, cell);
        let stressors = if cell.3 == Beside::One { 1 } else { 10 };
        let means = Means { stressors, ..lab.means() };
        let asked = lab.sample(result, &cases, || {
            // On rounds of their own, so that luck does not choose.
            let scouted = match lab.scout(&question, &means, &mut step)? {
                Ok((_, scouted)) => scouted,
                Err(why) => return Ok(Err(why)),
            };
            let is_faster = scouted.sampled.ratios[0][0].median > 1.0;
            let taken = if cell.3 == Beside::Nothing { 0.0 } else { taken_from_others(&scouted) };
            let (best, why) = held_against(is_faster, taken);
            let until = lab.after_scouting(question.until);
            let question = once_learned(Question {
                baseline: best,
                contenders: &[DEFAULT],
                numbers: &[THROUGHPUT, CPU],
                until,
                ..question
            });
            Ok(lab.ask(&question, &means, &mut step)?.map(|asked| (asked, best, why)))
        })?;
        let Some((asked, best, why)) = asked else { continue };
        let [speed, cpu, p99] = &cases;
        enter(result, speed, &asked.sampled, (2, 0, 0), Some(format!("÷ {best}{why}")))?;
        enter(result, cpu, &asked.sampled, (2, 0, 1), None)?;
        match tail(&asked) {
            Some(tail) => result.measured(p99, Measured::exact(tail))?,
            None => result.note(p99, "no round has one")?,
        }
        lab.keep(result)?;
    }
    summary(result)?;
    lab.keep(result)?;
    Ok(None)
}

/// A device of which no probe said anything.
fn unprobed(lab: &mut Lab, on: On) -> Result<Result<Subject, String>> {
    let found = match on {
        On::Emulated(latency) => {
            if let Err(why) = lab.subject(Kind::Emulated)? {
                return Ok(Err(why));
            }
            let address = format!("emu:latency={},size=64MiB", latency.replace(" µs", "us"));
            Ok(Subject::new(on.name(), Path::new(&address), true, None, &lab.probing())?)
        }
        _ => lab.subject(on.kind())?,
    };
    let none = DeviceParameters::default();
    Ok(found.map(|subject| Subject { write: true, parameters: none, profile: None, ..subject }))
}

fn question<'a>(lab: &Lab, subject: &'a Subject, (on, kib, write, beside): Cell) -> Question<'a> {
    let load = beside.load();
    let direction = if write { Direction::Write } else { Direction::Read };
    let width = if load == Load::Idle { 0.03 } else { 0.05 };
    Question {
        requests: Requests { pattern: Pattern::Rand, direction, depth: 1 },
        size_bytes: kib << 10,
        load,
        state: on.state(),
        part: if lab.is_hasty() { lab.part(on.kind(), load) } else { part(on.kind(), load) },
        until: lab.until(width),
        ..lab.question((on.kind(), subject), &["spin"], width)
    }
}

/// The fixed policy that the default is held against, and why it is not the faster one.
fn held_against(spin_is_faster: bool, taken: f64) -> (&'static str, String) {
    match (spin_is_faster, taken > MOST_TAKEN) {
        (false, _) => ("block", String::new()),
        (true, false) => ("spin", String::new()),
        (true, true) => {
            let percent = 100.0 * taken;
            ("block", format!(", as spinning takes {percent:.0} % of the CPU time of others"))
        }
    }
}

/// The share of the load's CPU time that spinning takes, of what it has beside a thread that
/// blocks.
fn taken_from_others(scouted: &Asked) -> f64 {
    let share = |row: &Row| {
        let of = |round: &RoundResult| round.stressor_ns as f64 / round.wall_ns.max(1) as f64;
        Summary::of(row.rounds.iter().map(of)).map_or(0.0, |share| share.median)
    };
    let [block, _, spin] = &scouted.rows[..] else { return 0.0 };
    match share(block) {
        0.0 => 0.0,
        before => 1.0 - share(spin) / before,
    }
}

/// The default's p99 over the baseline's, of their median rounds.
fn tail(asked: &Asked) -> Option<f64> {
    let p99 = |row: &Row| Summary::of(row.rounds.iter().map(|round| round.p99_ns as f64));
    let [base, _, ours] = &asked.rows[..] else { return None };
    Some(p99(ours)?.median / p99(base)?.median).filter(|ratio| ratio.is_finite())
}

/// What all cells come to, once all of them are measured.
fn summary(result: &mut FigureResult) -> Result<()> {
    let row = |case: &str| result.rows.iter().find(|row| row.case == case);
    let all = CELLS.map(cases);
    let found = |which: usize| all.iter().filter_map(move |cases| row(&cases[which]));
    let means = [0, 1].map(|which| {
        let logs: Vec<f64> = found(which).filter_map(|row| Some(row.measured?.ln())).collect();
        (logs.len() == CELLS.len()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    });
    let below = found(0).filter(|row| row.high.is_some_and(|high| high < 0.95)).count();
    let [Some(speed), Some(cpu)] = means else {
        let why = "some cells are not measured";
        return [MEAN, MEAN_CPU, BELOW].iter().try_for_each(|case| result.note(case, why));
    };
    result.measured(MEAN, Measured::exact(speed))?;
    result.measured(MEAN_CPU, Measured::exact(cpu))?;
    result.measured(BELOW, Measured::exact(below as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_spin_that_takes_cpu_time_from_others_is_not_held_against_the_default() {
        assert_eq!(held_against(true, 0.0).0, "spin");
        assert_eq!(held_against(true, -0.2).0, "spin");
        assert_eq!(held_against(false, 0.3), ("block", String::new()));
        let (policy, why) = held_against(true, 0.137);
        assert_eq!(policy, "block");
        assert!(why.contains("14 % of the CPU time of others"), "{why}");
    }
}
