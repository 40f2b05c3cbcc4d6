// SPDX-License-Identifier: MIT OR Apache-2.0
//! The papers' figures: what was found, what Dwell is held to, and what an experiment measured.
//!
//! `figures.toml` says what there is to measure. An experiment adds what it found to a
//! [`FigureResult`] and saves it; [`keep_results`] keeps it for its kind of machine, and
//! [`regenerate_docs`] copies what is kept into the documents.

mod docs;
mod inputs;

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, sync::LazyLock};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use dwell_bench::{
    chart::{DotRow, Dots, Panel},
    machine::Machine,
    pairs::Sampling,
    result::{in_order, write},
    stats::{Paired, Summary},
    units,
};

pub use docs::{keep_results, regenerate_docs};
pub use dwell_bench::verdict::{
    AGREES_WITHIN, Agreement, Better, EQUAL_WITHIN, RULES, Target, Verdict,
};

/// Version of the JSON of a [`FigureResult`].
pub const SCHEMA: u32 = 2;

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
    pub theirs: String,
    /// The same as lowest and highest value.
    pub theirs_range: Option<(f64, f64)>,
    /// What Dwell is held to; a case without one is shown and not judged.
    pub target: Option<Target>,
    /// Which way a value is better; where it is not given, as the target says, or higher.
    pub better: Option<Better>,
    /// Why the value is not the paper's, in one sentence; shown where it is not.
    pub differs: Option<String>,
    /// Unit of `theirs_range`, `target` and of what is measured.
    pub unit: String,
}

impl Case {
    /// What an interval says about the paper's numbers, where the paper has some.
    fn agreement(&self, low: f64, high: f64) -> Option<Agreement> {
        let better = self.better.or(self.target.map(Target::better)).unwrap_or(Better::Higher);
        let theirs = self.theirs_range?;
        Some(Agreement::of(low, high, theirs, better, self.unit == "×"))
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
    pub theirs: String,
    /// The same as lowest and highest value.
    pub theirs_range: Option<(f64, f64)>,
    /// What Dwell is held to.
    pub target: Option<Target>,
    /// What was measured; `None` when it could not be.
    pub ours: Option<f64>,
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
    fn from(paired: Paired) -> Self {
        Measured { value: paired.median, low: paired.low, high: paired.high }
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
            theirs: case.theirs.clone(),
            theirs_range: case.theirs_range,
            target: case.target,
            ours: None,
            low: None,
            high: None,
            verdict: None,
            agreement: None,
            differs: None,
            unit: case.unit.clone(),
            note: Some(NOT_MEASURED.into()),
            sampling: None,
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
    pub fn measured(&mut self, case: &str, ours: impl Into<Measured>) -> Result<()> {
        let Measured { value, low, high } = ours.into();
        ensure!(value.is_finite(), "figure {}: the value of {case:?} is not a number", self.id);
        let row = self.row_mut(case)?;
        (row.ours, row.low, row.high, row.note) = (Some(value), Some(low), Some(high), None);
        row.verdict = row.target.map(|target| target.judge(low, high));
        let known = catalogue().figure(&self.id)?.cases.iter().find(|known| known.case == case);
        let row = self.row_mut(case)?;
        row.agreement = known.and_then(|known| known.agreement(low, high));
        row.differs = known.and_then(|known| known.differs.clone());
        Ok(())
    }

    /// Sets what was sampled in one case, in the case's unit, and judges it: without a doubt by its
    /// interval, otherwise as inconclusive, for the reason that its note gives.
    pub fn sampled(
        &mut self,
        case: &str,
        ours: impl Into<Measured>,
        sampling: Sampling,
    ) -> Result<()> {
        self.measured(case, ours)?;
        let row = self.row_mut(case)?;
        if let Some(doubt) = sampling.doubt() {
            row.verdict = row.verdict.map(|_| Verdict::Inconclusive);
            row.agreement = row.agreement.map(|_| Agreement::Inconclusive);
            row.note = Some(doubt);
        }
        row.sampling = Some(sampling);
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
        // Why a row differs from a paper may be found out after it was measured.
        if let Ok(known) = catalogue().figure(id) {
            for row in result.rows.iter_mut().filter(|row| row.ours.is_some()) {
                let case = known.cases.iter().find(|known| known.case == row.case);
                row.differs = case.and_then(|case| case.differs.clone());
            }
        }
        Ok(Some(result))
    }

    /// Why its numbers say nothing about the present code; `None` where they do.
    pub fn stale(&self) -> Option<&'static str> {
        match catalogue().figure(&self.id) {
            _ if self.rules != RULES => Some("it was sampled by other rules"),
            Ok(figure) if figure.inputs() == self.inputs => None,
            _ => Some("the code that it measures has changed"),
        }
    }

    /// Saves `ID.json` and `ID.svg` in a directory. The chart is `svg`, for figures that are
    /// curves, or else [`FigureResult::svg`].
    pub fn save(&self, directory: &Path, svg: Option<&str>) -> Result<()> {
        let file = |end: &str| directory.join(format!("{}.{end}", self.id));
        write(&file("json"), &(serde_json::to_string_pretty(self)? + "\n"))?;
        write(&file("svg"), svg.unwrap_or(&self.svg()))
    }

    /// The result as a chart: one line per case that is not still to be measured, one
    /// axis per unit.
    pub fn svg(&self) -> String {
        let dot = |row: &FigureRow| DotRow {
            label: row.case.clone(),
            ours: row.ours.map(|v| (v, row.low.unwrap_or(v), row.high.unwrap_or(v))),
            target: row.target,
            theirs: row.theirs_range,
            text: in_chart(row),
        };
        let none = self.rows.iter().all(FigureRow::is_blank);
        let is_shown = |row: &&FigureRow| none || !row.is_blank();
        let panel = |unit: &String| Panel {
            axis_label: match unit.as_str() {
                "×" => "Ratio (×)".into(),
                unit => format!("Value ({unit})"),
            },
            rows: (self.rows.iter().filter(is_shown))
                .filter(|row| row.unit == *unit)
                .map(dot)
                .collect(),
            mark: None,
        };
        let machine = &self.machine;
        Dots {
            title: format!("{}: {}", self.id, self.what),
            subtitle: format!("{}, {} CPUs, {}", machine.cpu_model, machine.cpus, machine.date),
            dots: "ours, with interval".into(),
            panels: in_order(self.rows.iter().filter(is_shown).map(|row| &row.unit))
                .into_iter()
                .map(panel)
                .collect(),
        }
        .svg()
    }

    /// The result as a Markdown table, without the rows that are still to be measured.
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let mut text = String::from(
            "| case | theirs | target | ours | interval | control | verdict | beside theirs |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for row in self.rows.iter().filter(|row| !row.is_blank()) {
            let target = row
                .target
                .map_or("–".into(), |target| with_unit_text(&target.to_string(), &row.unit));
            let interval = match (row.low, row.high) {
                (Some(low), Some(high)) if low != high => {
                    let (low, high) = (value(low, &row.unit), value(high, &row.unit));
                    with_unit_text(&format!("{low}–{high}"), &row.unit)
                }
                _ => "–".into(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {target} | {} | {interval} | {} | {} | {} |",
                cell(&row.case),
                cell(&row.theirs),
                with_unit(row.ours, &row.unit),
                control(row),
                cell(&outcome(row)),
                cell(&beside_theirs(row)),
            );
        }
        let effort = match self.effort {
            1.0 => String::new(),
            effort => format!(", with `--effort {effort}`"),
        };
        let Self { id, inputs, rules, .. } = self;
        let machine = self.machine.line();
        let later = match self.rows.iter().filter(|row| row.is_blank()).count() {
            0 => String::new(),
            rows => format!("\n{rows} of {} rows are not measured yet.\n", self.rows.len()),
        };
        text + &later
            + &format!(
                "\n{machine}. `make figure ID={id}`{effort}. Code {inputs}, rules {rules}.\n"
            )
    }
}

fn outcome(row: &FigureRow) -> String {
    let verdict = row.verdict.map(|verdict| verdict.to_string());
    let parts = [verdict, row.note.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

impl FigureRow {
    /// Whether nobody has tried to measure it.
    fn is_blank(&self) -> bool {
        self.note.as_deref() == Some(NOT_MEASURED)
    }

    /// Whether it is still to be measured.
    fn is_lacking(&self) -> bool {
        let later = |why: &str| why.is_empty() || why.starts_with(": ");
        let why = self.note.as_deref().and_then(|why| why.strip_prefix(NOT_MEASURED));
        self.ours.is_none() && why.is_some_and(later)
    }
}

/// What the baseline beside itself gave, and the blocks that were measured.
fn control(row: &FigureRow) -> String {
    let Some(Sampling { control, blocks, noisy, left_state, .. }) = &row.sampling else {
        return "–".into();
    };
    let Paired { median, low, high, .. } = control;
    let mut text = format!("{median:.3} [{low:.3}–{high:.3}], {blocks} blocks");
    for (count, why) in [(noisy, "not quiet"), (left_state, "out of state")] {
        if *count > 0 {
            let _ = write!(text, ", {count} more {why}");
        }
    }
    text
}

fn beside_theirs(row: &FigureRow) -> String {
    match (row.agreement, &row.differs) {
        (None, _) => "–".into(),
        (Some(agreement @ (Agreement::Agrees | Agreement::Inconclusive)), _) => {
            agreement.to_string()
        }
        (Some(agreement), Some(why)) => format!("{agreement}: {why}"),
        (Some(agreement), None) => format!("{agreement}; not explained"),
    }
}

/// What stands beside a case in a chart, where there is room for few words: the remark only where
/// there is no value, and no more than its beginning.
fn in_chart(row: &FigureRow) -> String {
    const ROOM: usize = 32;
    if row.ours.is_some() {
        let verdict = row.verdict.map_or("", |verdict| verdict.as_str());
        return format!("{}  {verdict}", with_interval(row)).trim().into();
    }
    let note = row.note.as_deref().unwrap_or("not measured");
    match note.char_indices().nth(ROOM) {
        Some((end, _)) => format!("{}…", &note[..end]),
        None => note.into(),
    }
}

fn with_interval(row: &FigureRow) -> String {
    let ours = with_unit(row.ours, &row.unit);
    match (row.low, row.high) {
        (Some(low), Some(high)) if low != high => {
            format!("{ours} [{}–{}]", value(low, &row.unit), value(high, &row.unit))
        }
        _ => ours,
    }
}

/// Ratios are compared with targets given to two digits: show as many.
fn value(value: f64, unit: &str) -> String {
    if unit == "×" { format!("{value:.2}") } else { units::figure(value) }
}

fn with_unit(ours: Option<f64>, unit: &str) -> String {
    ours.map_or("–".into(), |ours| with_unit_text(&value(ours, unit), unit))
}

fn with_unit_text(text: &str, unit: &str) -> String {
    if unit == "×" { format!("{text}×") } else { format!("{text} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S4_CASE: &str = "size threshold of loop on tmpfs";

    pub(super) fn measured() -> FigureResult {
        let mut result = FigureResult::new("S4", Machine::default()).unwrap();
        result.measured(S4_CASE, Measured::exact(64.0)).unwrap();
        let took = Measured { value: 61.0, low: 59.0, high: 63.0 };
        result.measured("time that the probe takes", took).unwrap();
        result
    }

    #[test]
    fn the_catalogue_is_sound() {
        let catalogue = catalogue();
        for (id, figure) in &catalogue.figures {
            assert!(catalogue.papers.contains_key(&figure.paper), "{id}");
            let cases: Vec<&str> = figure.cases.iter().map(|case| case.case.as_str()).collect();
            assert!(!cases.is_empty(), "{id}");
            assert_eq!(in_order(cases.clone()), cases, "{id} names a case twice");
            for case in &figure.cases {
                assert!(!case.unit.is_empty() && !case.theirs.is_empty(), "{id}: {}", case.case);
                assert!(
                    case.case.chars().count() <= 55,
                    "{id}: too long for a chart: {}",
                    case.case
                );
                assert!(case.theirs_range.is_none_or(|(low, high)| low <= high), "{id}");
            }
        }
        assert!(catalogue.figure("M1").unwrap().cases.iter().all(|case| case.target.is_some()));
        let error = catalogue.figure("S99").unwrap_err().to_string();
        assert!(error.contains("S99") && error.contains("S13"), "{error}");
    }

    #[test]
    fn measuring_judges_and_unknown_cases_are_errors() {
        let mut result = measured();
        assert_eq!(result.rows[0].verdict, None);
        assert_eq!(result.rows[1].verdict, Some(Verdict::Inconclusive));
        assert!(result.measured("nonsense", Measured::exact(1.0)).is_err());
        assert!(result.measured(S4_CASE, Measured::exact(f64::NAN)).is_err());
        assert!(FigureResult::new("S99", Machine::default()).is_err());
    }

    fn sampling() -> Sampling {
        Sampling {
            control: Paired { median: 1.0, low: 0.99, high: 1.01, rounds: 80 },
            width: 0.03,
            limit_s: 600.0,
            narrow: true,
            blocks: 20,
            noisy: 2,
            left_state: 0,
        }
    }

    #[test]
    fn a_sampled_row_has_its_control_and_one_at_its_limit_is_inconclusive_and_says_why() {
        let case = "loop on tmpfs, idle, 4 KiB, apart";
        let ours = Paired { median: 2.0, low: 1.98, high: 2.02, rounds: 80 };
        let mut result = FigureResult::new("M1", Machine::default()).unwrap();
        result.sampled(case, ours, sampling()).unwrap();
        let row = |result: &FigureResult| {
            result.rows.iter().find(|row| row.case == case).cloned().unwrap()
        };
        assert_eq!(row(&result).verdict, Some(Verdict::Met));
        let table = result.markdown();
        let control = "1.000 [0.990–1.010], 20 blocks, 2 more not quiet";
        assert!(table.contains(control), "{table}");
        assert!(serde_json::to_string(&result).unwrap().contains("\"control\""));
        result.sampled(case, ours, Sampling { narrow: false, ..sampling() }).unwrap();
        assert_eq!(row(&result).verdict, Some(Verdict::Inconclusive));
        assert!(row(&result).note.unwrap().contains("limit of 600 s"));
    }

    #[test]
    fn a_figure_knows_which_rows_it_lacks_and_goes_on_only_on_such_a_machine() {
        let machine = Machine { cpu_model: "one".into(), cpus: 2, ..Machine::default() };
        let mut result = FigureResult::new("S4", machine.clone()).unwrap();
        assert!(result.lacks(S4_CASE) && !result.is_complete());
        result.measured(S4_CASE, Measured::exact(1.0)).unwrap();
        assert!(!result.lacks(S4_CASE) && !result.is_complete());
        let cases: Vec<String> = result.rows.iter().map(|row| row.case.clone()).collect();
        cases.iter().skip(1).for_each(|case| result.note(case, "no root").unwrap());
        result.measured(S4_CASE, Measured::exact(1.0)).unwrap();
        assert!(result.is_complete());
        result.postpone(&cases[1], "never quiet").unwrap();
        assert!(result.lacks(&cases[1]) && !result.is_complete());
        result.forget(|case| case == S4_CASE).unwrap();
        assert!(result.lacks(S4_CASE));
        assert!(result.goes_on(&machine, 1.0) && !result.goes_on(&machine, 0.1));
        let other = Machine { cpus: 3, ..machine.clone() };
        assert!(!result.goes_on(&other, 1.0));
        assert!(!FigureResult { rules: 1, ..result }.goes_on(&machine, 1.0));
    }

    #[test]
    fn saved_results_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let mut result = measured();
        result.note(S4_CASE, "a | remark").unwrap();
        assert_eq!(FigureResult::load(directory.path(), "S4").unwrap(), None);
        result.save(directory.path(), None).unwrap();
        assert_eq!(FigureResult::load(directory.path(), "S4").unwrap(), Some(result.clone()));
        let svg = fs::read_to_string(directory.path().join("S4.svg")).unwrap();
        assert!(svg.contains("S4: Size threshold") && svg.contains("64.0 KiB"));
        assert!(!svg.contains("remark") && svg.contains("inconclusive"));
        result.note("one block more: requests spun for", &"long ".repeat(20)).unwrap();
        assert!(result.svg().contains("long lo…"));
        assert!(result.markdown().contains("a \\| remark"));
        fs::rename(directory.path().join("S4.json"), directory.path().join("S1.json")).unwrap();
        assert!(FigureResult::load(directory.path(), "S1").is_err());
    }

    #[test]
    fn every_figure_can_be_drawn_and_written_unmeasured() {
        for id in catalogue().figures.keys() {
            let result = FigureResult::new(id, Machine::default()).unwrap();
            assert!(!result.svg().contains("NaN"), "{id}");
            assert!(result.markdown().contains("rows are not measured yet"), "{id}");
        }
    }
}
