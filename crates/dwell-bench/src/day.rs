// SPDX-License-Identifier: MIT OR Apache-2.0
//! A day: phases of load and request size that follow each other, of which no contender is told.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell_sim::assign::in_line;
use serde::Deserialize;

use crate::contender;
use crate::entrant::Entrant;
use crate::keep::Keeper;
use crate::lane::{Ask, Lane};
use crate::loads::{self, Loads, Means};
use crate::measure::Measure;
use crate::result::{Direction, Load, Pattern, Requests, Row, Setting, Work};
use crate::subject::Subject;

/// Phases in the order in which they come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Day {
    /// At least one.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name; unique in its day.
    pub name: String,
    /// What else runs.
    pub load: Load,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Order of the offsets.
    #[serde(default = "random")]
    pub pattern: Pattern,
    /// Direction of the transfer.
    #[serde(default = "read")]
    pub direction: Direction,
    /// Queue depth, in requests.
    #[serde(default = "one")]
    pub depth: u32,
    /// For how long, in milliseconds.
    pub milliseconds: u64,
}

fn random() -> Pattern {
    Pattern::Rand
}
fn read() -> Direction {
    Direction::Read
}
fn one() -> u32 {
    1
}

/// Text of the day that comes with the program: idle, loaded, large requests, idle again.
pub const MIXED: &str = include_str!("../days/mixed.toml");

impl Day {
    /// The day that comes with the program, or one from a file.
    ///
    /// # Errors
    /// A file that cannot be read or is no day, named with what is wrong.
    pub fn find(name: &str) -> Result<Self> {
        if name == "mixed" {
            return Self::parse(name, MIXED);
        }
        let path = Path::new(name);
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the day {name} (mixed comes with dwell)"))?;
        Self::parse(name, &text)
    }

    /// A day from its text.
    ///
    /// # Errors
    /// The file or a field of it that makes no scenario.
    pub fn parse(origin: &str, text: &str) -> Result<Self> {
        let day: Day = toml::from_str(text).map_err(|error| {
            anyhow::anyhow!("{origin}, {}", in_line(text, error.span(), error.message()))
        })?;
        ensure!(!day.phases.is_empty(), "{origin}: a day needs a phase ([[phase]])");
        for (at, phase) in day.phases.iter().enumerate() {
            let name = &phase.name;
            let fail = |what: &str| format!("{origin}, phase {name:?}: {what}");
            ensure!(phase.milliseconds > 0, fail("milliseconds must be 1 or more"));
            ensure!((1..=4096).contains(&phase.depth), fail("depth must be 1 to 4096"));
            let twice = day.phases[..at].iter().any(|other| other.name == *name);
            ensure!(!twice, fail("another phase has this name"));
        }
        Ok(day)
    }

    /// The same with each phase so many times as long.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        for phase in &mut self.phases {
            phase.milliseconds = ((phase.milliseconds as f64 * factor).round() as u64).max(2);
        }
        self
    }
}

impl Phase {
    fn requests(&self) -> Requests {
        Requests { pattern: self.pattern, direction: self.direction, depth: self.depth }
    }

    /// What its rows have in common.
    pub fn setting(&self, subject: &Subject) -> Setting {
        Setting {
            work: Work::Named { workload: format!("{}: {}", self.name, self.requests()) },
            ..Setting::new(subject, self.load, self.requests())
        }
    }

    /// Why it cannot take place on a subject.
    pub fn unfit(&self, subject: &Subject) -> Option<String> {
        loads::unfit(self.load, subject)
    }
}

/// Every entrant goes through the whole day once per round; one row per phase and entrant. Rows of
/// the rounds that all completed, none without such a round, and what ended the days early.
pub(crate) fn live(
    day: &Day,
    entrants: &mut [Entrant],
    (subject, means): (&Subject, &Means),
    rounds: usize,
    keeper: &mut Keeper,
    progress: &mut dyn FnMut(&str),
) -> (Vec<Row>, Result<()>) {
    let row = |phase: &Phase, entrant: &Entrant| Row {
        setting: phase.setting(subject),
        size_bytes: phase.size_bytes,
        policy: entrant.name.clone(),
        rounds: Vec::with_capacity(rounds),
        emulated: subject.emulated.clone(),
    };
    let phases = day.phases.iter();
    let mut rows: Vec<Row> =
        phases.flat_map(|phase| entrants.iter().map(|entrant| row(phase, entrant))).collect();
    let (stop, counters) = (keeper.stop(), keeper.wants_counters());
    let on = (subject, means);
    let (complete, outcome) = std::thread::scope(|scope| {
        let start = |entrant| Lane::start(scope, entrant, stop.clone(), counters);
        let lanes: Vec<Lane> = entrants.iter_mut().map(start).collect();
        let (mut complete, mut outcome) = (0, Ok(()));
        while outcome.is_ok() && complete < rounds {
            outcome = one_round(day, &lanes, on, complete, keeper, progress, &mut rows);
            complete += usize::from(outcome.is_ok());
        }
        (complete, outcome)
    });
    rows.iter_mut().for_each(|row| row.rounds.truncate(complete));
    rows.retain(|row| !row.rounds.is_empty());
    let outcome = outcome.with_context(|| subject.name.clone());
    (rows, keeper.check().map_err(Into::into).and(outcome))
}

/// The day of each entrant.
fn one_round(
    day: &Day,
    lanes: &[Lane],
    (subject, means): (&Subject, &Means),
    round: usize,
    keeper: &mut Keeper,
    progress: &mut dyn FnMut(&str),
    rows: &mut [Row],
) -> Result<()> {
    let count = lanes.len();
    for turn in 0..count {
        let at = (turn + round) % count;
        let (lane, name) = (&lanes[at], rows[at].policy.clone());
        let _pause = contender::PauseChoice::of(&name);
        for (number, phase) in day.phases.iter().enumerate() {
            let row = &mut rows[number * count + at];
            progress(&format!("{}, {name}", row.setting));
            let mut loads = Loads::start(phase.load, subject, means)?;
            let span = Duration::from_millis(phase.milliseconds);
            let mut measure =
                Measure::new(phase.requests(), phase.size_bytes, subject.bytes, span, keeper);
            // The morning: what the entrant before left behind is not part of this day.
            if number == 0 {
                measure.ask(lane, Ask::WarmUp)?;
                measure.ask(lane, Ask::LeadIn)?;
            }
            let measured = measure.measure(&name, lane, Some(&loads));
            row.rounds.push(measured.with_context(|| format!("{name}, round {}", round + 1))?);
            keeper.write(row, round);
            loads.check()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixed_day_is_idle_loaded_and_large() {
        let day = Day::find("mixed").unwrap();
        let phases: Vec<_> = day.phases.iter().map(|p| (p.load, p.size_bytes, p.depth)).collect();
        assert_eq!(
            phases,
            [
                (Load::Idle, 4096, 1),
                (Load::Cpu, 4096, 1),
                (Load::Idle, 256 << 10, 1),
                (Load::Idle, 4096, 8)
            ]
        );
        let short = day.clone().scaled(0.5);
        assert_eq!(short.phases[1].milliseconds * 2, day.phases[1].milliseconds);
    }

    #[test]
    fn a_text_that_is_no_day_is_refused_with_file_and_place() {
        let phase = |text: &str| {
            let all = "name = \"a\"\nload = \"idle\"\nsize_bytes = 4096\nmilliseconds = 5\n";
            format!("[[phase]]\n{all}{text}")
        };
        for (text, part) in [
            ("phase = []".to_owned(), "a day needs a phase"),
            (phase("depth = 0\n"), "depth"),
            (phase("colour = 1\n"), "line 6"),
            (phase(&phase("")), "another phase"),
            ("[[phase]]\nname = 1".to_owned(), "line 2"),
        ] {
            let error = format!("{:#}", Day::parse("my.toml", &text).unwrap_err());
            assert!(error.contains("my.toml") && error.contains(part), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let error = format!("{:#}", Day::find("no/such/day").unwrap_err());
        assert!(error.contains("no/such/day"), "{error}");
    }
}
