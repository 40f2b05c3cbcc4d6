// SPDX-License-Identifier: MIT OR Apache-2.0
//! The papers' figures: what was found, what Dwell is held to, and what an experiment measured.
//!
//! `figures.toml` says what there is to measure. An experiment adds what it found to a
//! [`FigureResult`] and saves it; [`keep_results`] keeps it for its kind of machine, and
//! [`regenerate_docs`] copies what is kept into the documents.

mod docs;
mod inputs;
mod pages;
mod shown;

use std::{collections::BTreeMap, fs, path::Path, sync::LazyLock};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use dwell_bench::{
    machine::Machine,
    pairs::Sampling,
    result::{RoundResult, write},
    stats::{Paired, Summary},
};

pub use docs::{keep_results, regenerate_docs};
pub use dwell_bench::verdict::{
    AGREES_WITHIN, Agreement, Better, EQUAL_WITHIN, RULES, Target, Verdict,
};
pub use shown::ESTIMATED;

/// Longest time to sample a row at full effort, in seconds.
pub const FULL_ROW_S: f64 = 600.0;

/// Version of the JSON of a [`FigureResult`].
pub const SCHEMA: u32 = 3;

/// The committed list of figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Papers by short name.
    pub papers: BTreeMap<String, Paper>,
    /// Figures by id.
    pub figures: BTreeMap<String, Figure>,
}

/// A paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Title.
    pub title: String,
    /// Family names.
    pub authors: String,
    /// Where and when it appeared.
    pub venue: String,
    /// Digital object identifier.
    pub doi: Option<String>,
}

/// One figure, table or statement of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Short name of the paper.
    pub paper: String,
    /// Where in the paper.
    pub section: String,
    /// The quantity measured, in words.
    pub what: String,
    /// Privileges and hardware without which some or all cases are left out.
    pub needs: String,
    /// The code that it is measured with: crates, and parts of this one, as `experiment/job`.
    pub uses: Vec<String>,
    /// The cases, in the order in which they are shown.
    pub cases: Vec<Case>,
}

/// One case of a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The case; unique in its figure.
    pub case: String,
    /// What the paper found, in words.
    pub paper: String,
    /// The same as lowest and highest value.
    pub paper_range: Option<(f64, f64)>,
    /// What Dwell is held to; a case without one is shown and not judged.
    pub target: Option<Target>,
    /// Which way a value is better; where it is not given, as the target says, or higher.
    pub better: Option<Better>,
    /// Why the value is not the paper's, in one sentence; shown where it is not.
    pub differs: Option<String>,
    /// Unit of `paper_range`, `target` and of what is measured.
    pub unit: String,
}

impl Case {
    /// What an interval says about the paper's numbers, where the paper has some.
    fn agreement(&self, low: f64, high: f64) -> Option<Agreement> {
        let better = self.better.or(self.target.map(Target::better)).unwrap_or(Better::Higher);
        let paper = self.paper_range?;
        Some(Agreement::of(low, high, paper, better, self.unit == "×"))
    }
}

/// The committed figures.
pub fn catalogue() -> &'static Catalogue {
    static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
        toml::from_str(include_str!("../figures.toml")).expect("figures.toml is tested")
    });
    &CATALOGUE
}

impl Catalogue {
    /// The figure with this id, or an error that names those that exist.
    pub fn figure(&self, id: &str) -> Result<&Figure> {
        self.figures.get(id).with_context(|| {
            let known: Vec<&str> = self.figures.keys().map(String::as_str).collect();
            format!("there is no figure {id}: known are {}", known.join(", "))
        })
    }
}

/// What an experiment found about one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureResult {
    /// [`SCHEMA`] of the code that wrote it.
    pub schema: u32,
    /// Id in the catalogue.
    pub id: String,
    /// What was measured.
    pub what: String,
    /// Where and when.
    pub machine: Machine,
    /// [`Figure::inputs`] of the code that measured it.
    pub inputs: String,
    /// [`RULES`] that its intervals were sampled by.
    pub rules: u32,
    /// How long measuring took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Share of the full measuring time that it was given.
    #[serde(default = "full")]
    pub effort: f64,
    /// One row per case.
    pub rows: Vec<FigureRow>,
}

fn full() -> f64 {
    1.0
}

/// What an experiment found about one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FigureRow {
    /// The case.
    pub case: String,
    /// What the paper found, in words.
    pub paper: String,
    /// The same as lowest and highest value.
    pub paper_range: Option<(f64, f64)>,
    /// What Dwell is held to.
    pub target: Option<Target>,
    /// What was measured; `None` when it could not be.
    pub measured: Option<f64>,
    /// Lower end of its interval.
    pub low: Option<f64>,
    /// Upper end of its interval.
    pub high: Option<f64>,
    /// The outcome, where there is a target.
    pub verdict: Option<Verdict>,
    /// What the value says about the paper's, where the paper has one.
    pub agreement: Option<Agreement>,
    /// Why the value is not the paper's.
    pub differs: Option<String>,
    /// Unit of all values.
    pub unit: String,
    /// Why nothing was measured, or what to know about the value.
    pub note: Option<String>,
    /// How it was sampled, where its interval was sampled until it was narrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// What both sides of a ratio did: first the one that ours is held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<[Side; 2]>,
}

/// What one side of a ratio did, in absolute numbers: medians of its parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Its name in the table.
    pub name: String,
    /// Median latency of a request, in nanoseconds; `None` where requests are not timed.
    pub p50_ns: Option<f64>,
    /// 99th percentile of it.
    pub p99_ns: Option<f64>,
    /// Requests per second.
    pub per_second: f64,
    /// CPU time of the program that asks, and of the daemon that serves a directory, divided by the
    /// time that passed: 1 is a whole CPU.
    pub cores: f64,
}

impl Side {
    /// The medians of some rounds.
    pub fn of(name: &str, rounds: &[RoundResult]) -> Self {
        let median = |of: &dyn Fn(&RoundResult) -> f64| {
            Summary::of(rounds.iter().map(of)).map_or(f64::NAN, |summary| summary.median)
        };
        let timed = |ns: f64| (ns > 0.0).then_some(ns);
        Side {
            name: name.into(),
            p50_ns: timed(median(&|round| round.p50_ns as f64)),
            p99_ns: timed(median(&|round| round.p99_ns as f64)),
            per_second: median(&RoundResult::requests_per_second),
            cores: median(&|round| (round.user_ns + round.system_ns) as f64 / round.wall_ns as f64),
        }
    }
}

/// What a row says that has not been measured yet, and how the reasons begin for which measuring it
/// later may work.
const NOT_MEASURED: &str = "not measured";

/// A measured value with the interval that is believed to hold it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The value.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Measured {
    /// A value without spread: a count, a threshold.
    pub fn exact(value: f64) -> Self {
        Measured { value, low: value, high: value }
    }
}

impl From<Paired> for Measured {
    /// One round has no interval.
    fn from(paired: Paired) -> Self {
        let (low, high) = match paired.rounds {
            0 | 1 => (f64::NAN, f64::NAN),
            _ => (paired.low, paired.high),
        };
        Measured { value: paired.median, low, high }
    }
}

impl From<Summary> for Measured {
    /// Median and quartiles.
    fn from(summary: Summary) -> Self {
        Measured {
            value: summary.median,
            low: summary.lower_quartile,
            high: summary.upper_quartile,
        }
    }
}

impl FigureResult {
    /// Starts the result of one figure with every case still unmeasured.
    pub fn new(id: &str, machine: Machine) -> Result<Self> {
        let figure = catalogue().figure(id)?;
        let unmeasured = |case: &Case| FigureRow {
            case: case.case.clone(),
            paper: case.paper.clone(),
            paper_range: case.paper_range,
            target: case.target,
            measured: None,
            low: None,
            high: None,
            verdict: None,
            agreement: None,
            differs: None,
            unit: case.unit.clone(),
            note: Some(NOT_MEASURED.into()),
            sampling: None,
            sides: None,
        };
        Ok(FigureResult {
            schema: SCHEMA,
            id: id.into(),
            what: figure.what.clone(),
            machine,
            inputs: figure.inputs(),
            rules: RULES,
            seconds: 0.0,
            effort: 1.0,
            rows: figure.cases.iter().map(unmeasured).collect(),
        })
    }

    fn row_mut(&mut self, case: &str) -> Result<&mut FigureRow> {
        let id = &self.id;
        let row = self.rows.iter_mut().find(|row| row.case == case);
        row.with_context(|| format!("figure {id} has no case {case:?} in figures.toml"))
    }

    /// Sets what was measured in one case, in the case's unit, and judges it.
    pub fn measured(&mut self, case: &str, value: impl Into<Measured>) -> Result<()> {
        let Measured { value, low, high } = value.into();
        ensure!(value.is_finite(), "figure {}: the value of {case:?} is not a number", self.id);
        let row = self.row_mut(case)?;
        let known = |end: f64| Some(end).filter(|end| !end.is_nan());
        (row.measured, row.low, row.high) = (Some(value), known(low), known(high));
        (row.note, row.sampling, row.sides) = (None, None, None);
        self.judge()
    }

    /// Adds to a case that was measured what both sides did.
    pub fn beside(&mut self, case: &str, sides: [Side; 2]) -> Result<()> {
        self.row_mut(case)?.sides = Some(sides);
        Ok(())
    }

    /// Sets what was sampled in one case, in the case's unit, and judges it.
    pub fn sampled(
        &mut self,
        case: &str,
        value: impl Into<Measured>,
        sampling: Sampling,
    ) -> Result<()> {
        self.measured(case, value)?;
        let row = self.row_mut(case)?;
        row.note = baseline_differs(&sampling);
        row.sampling = Some(sampling);
        self.judge()
    }

    /// Judges every row that was measured, by its whole interval.
    fn judge(&mut self) -> Result<()> {
        let cases = &catalogue().figure(&self.id)?.cases;
        for row in self.rows.iter_mut().filter(|row| row.measured.is_some()) {
            row.judge(cases.iter().find(|known| known.case == row.case));
        }
        Ok(())
    }

    /// Says that one case may be measured later, and why it was not now.
    pub fn postpone(&mut self, case: &str, why: &str) -> Result<()> {
        self.note(case, &format!("{NOT_MEASURED}: {why}"))
    }

    /// Whether a case is still to be measured.
    pub fn lacks(&self, case: &str) -> bool {
        self.rows.iter().any(|row| row.case == case && row.is_lacking())
    }

    /// Whether every case has a value, or a reason why it cannot have one on this machine.
    pub fn is_complete(&self) -> bool {
        !self.rows.iter().any(FigureRow::is_lacking)
    }

    /// Forgets what is known of some cases.
    pub fn forget(&mut self, which: impl Fn(&str) -> bool) -> Result<()> {
        let blank = FigureResult::new(&self.id, self.machine.clone())?;
        let matching = |(row, _): &(&mut FigureRow, FigureRow)| which(&row.case);
        let rows = self.rows.iter_mut().zip(blank.rows);
        rows.filter(matching).for_each(|(row, blank)| *row = blank);
        Ok(())
    }

    /// Whether measuring may go on here where this result ends: the same code, rules, effort, and a
    /// machine of the same kind.
    pub fn goes_on(&self, machine: &Machine, effort: f64) -> bool {
        self.stale().is_none() && self.effort == effort && self.machine.is_like(machine)
    }

    /// Says why one case was not measured, or adds a remark to what was.
    pub fn note(&mut self, case: &str, note: &str) -> Result<()> {
        self.row_mut(case)?.note = Some(note.into());
        Ok(())
    }

    /// Reads `ID.json` from a directory; `None` when that figure was never measured there.
    pub fn load(directory: &Path, id: &str) -> Result<Option<Self>> {
        let path = directory.join(format!("{id}.json"));
        let name = path.display();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {name}"))?,
        };
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
            id: String,
        }
        let not_one = || format!("{name} is not a figure's result: measure it again");
        let Head { schema, id: of } = serde_json::from_str(&text).with_context(not_one)?;
        ensure!(of == id, "{name} holds figure {of}: measure {id} again");
        if schema != SCHEMA {
            return Ok(None);
        }
        let mut result: FigureResult = serde_json::from_str(&text).with_context(not_one)?;
        // Verdicts are by the rules of today, and reasons may be found after measuring.
        result.rows.iter_mut().for_each(FigureRow::forget_its_limit);
        if catalogue().figure(id).is_ok() {
            result.judge()?;
        }
        Ok(Some(result))
    }

    /// Why its numbers may not be those of the present code; `None` where they are.
    pub fn stale(&self) -> Option<&'static str> {
        match catalogue().figure(&self.id) {
            _ if self.rules != RULES => Some("rules have changed since"),
            Ok(figure) if figure.inputs() == self.inputs => None,
            _ => Some("code has changed since"),
        }
    }

    /// Saves `ID.json` and `ID.svg` in a directory. The chart is `svg`, for figures that are
    /// curves, or else [`FigureResult::svg`].
    pub fn save(&self, directory: &Path, svg: Option<&str>) -> Result<()> {
        let file = |end: &str| directory.join(format!("{}.{end}", self.id));
        write(&file("json"), &(serde_json::to_string_pretty(self)? + "\n"))?;
        write(&file("svg"), svg.unwrap_or(&self.svg()))
    }
}

/// Why a row decides nothing, however its interval lies.
fn baseline_differs(sampling: &Sampling) -> Option<String> {
    // A wide interval is judged like a narrow one.
    Sampling { narrow: true, ..sampling.clone() }.doubt()
}

impl FigureRow {
    /// Judges it by what the catalogue holds it to, which may be more than when it was measured.
    fn judge(&mut self, known: Option<&Case>) {
        self.target = known.map_or(self.target, |known| known.target);
        let interval = self.low.zip(self.high);
        let odd = self.sampling.as_ref().is_some_and(|of| baseline_differs(of).is_some());
        let odd = odd || interval.is_none();
        let (low, high) = interval.unwrap_or_default();
        let verdict = |verdict| if odd { Verdict::Inconclusive } else { verdict };
        let agreement = |agreement| if odd { Agreement::Inconclusive } else { agreement };
        self.verdict = self.target.map(|target| verdict(target.judge(low, high)));
        self.agreement = known.and_then(|known| known.agreement(low, high)).map(agreement);
        self.differs = known.and_then(|known| known.differs.clone());
    }

    /// Notes of older results say that sampling ended at its limit, which decides nothing.
    fn forget_its_limit(&mut self) {
        let Some(sampling) = self.sampling.as_ref().filter(|sampling| !sampling.narrow) else {
            return;
        };
        let (Some(limit), Some(note)) = (sampling.doubt(), &self.note) else { return };
        let Some(remark) = note.strip_prefix(&limit) else { return };
        let remark = remark.strip_prefix("; ").unwrap_or(remark).to_owned();
        let parts = [baseline_differs(sampling), Some(remark).filter(|text| !text.is_empty())];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        self.note = (!parts.is_empty()).then(|| parts.join("; "));
    }

    /// Whether nobody has tried to measure it.
    fn is_blank(&self) -> bool {
        self.note.as_deref() == Some(NOT_MEASURED)
    }

    /// Whether it is still to be measured.
    fn is_lacking(&self) -> bool {
        let later = |why: &str| why.is_empty() || why.starts_with(": ");
        let why = self.note.as_deref().and_then(|why| why.strip_prefix(NOT_MEASURED));
        self.measured.is_none() && why.is_some_and(later)
    }
}

#[cfg(test)]
mod tests;
