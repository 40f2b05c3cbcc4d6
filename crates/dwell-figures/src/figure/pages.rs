// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two pages about all figures: a picture of each, and what did not come out.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Agreement, FigureResult, FigureRow, Verdict, catalogue};
use dwell_bench::table::wrapped;

/// Where the page with pictures has them from: the results that are kept, beside its chapter.
const KEPT: &str = "../results";

/// Longest line of a page.
const COLUMNS: u16 = 100;

/// The file with the picture of a figure, in the directory of its result.
pub(super) fn picture(id: &str) -> String {
    format!("{id}.svg")
}

/// A page with what `make` finds between `<!-- NAME -->` and `<!-- /NAME -->`, if it has the marks.
pub(super) fn between(
    text: &str,
    name: &str,
    make: impl FnOnce() -> Result<String>,
) -> Result<String> {
    let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let Some((before, rest)) = text.split_once(&begin) else { return Ok(text.into()) };
    let without = || format!("`{begin}` without its `{end}`");
    let (_, after) = rest.split_once(&end).with_context(without)?;
    Ok(format!("{before}{begin}\n{}{end}{after}", make()?))
}

/// The latest result of each figure.
fn latest(load: impl Fn(&str) -> Result<Vec<FigureResult>>) -> Result<Vec<FigureResult>> {
    let mut all = Vec::new();
    for id in catalogue().figures.keys() {
        all.extend(load(id)?.into_iter().next());
    }
    Ok(all)
}

/// A document with the pictures that are in `kept`, where it has a place for them.
pub(super) fn fill_in_pictures(
    text: &str,
    kept: &Path,
    load: impl Fn(&str) -> Result<Vec<FigureResult>>,
) -> Result<String> {
    between(text, "pictures", || {
        let mut page = String::from("\n");
        for result in latest(load)? {
            let (id, kind, file) = (&result.id, result.machine.kind(), picture(&result.id));
            if kept.join(&kind).join(&file).is_file() {
                let what = what(&result);
                let _ = writeln!(page, "### {id}\n\n{what}\n{}\n", outcomes(&result));
                let _ = writeln!(page, "![{id}]({KEPT}/{kind}/{file})\n");
            }
        }
        Ok(page)
    })
}

/// What a figure shows, and whether that is what the present code does, as a paragraph.
fn what(result: &FigureResult) -> String {
    let day = result.machine.date.split('T').next().unwrap_or_default();
    let when =
        result.stale().map_or(String::new(), |why| format!(" Measured on {day}: the {why}."));
    wrapped(&format!("{}.{when}", result.what), COLUMNS)
}

/// How many rows came out how, a line for each kind of outcome.
fn outcomes(result: &FigureResult) -> String {
    let measured = || result.rows.iter().filter(|row| row.measured.is_some());
    let mut says = format!("{} of {} rows are measured.", measured().count(), result.rows.len());
    let mut add = |of: &str, outcomes: Vec<String>| {
        let mut counts = BTreeMap::new();
        for outcome in outcomes {
            *counts.entry(outcome).or_insert(0) += 1;
        }
        let counts: Vec<_> =
            counts.iter().map(|(word, count)| format!("{word} ({count})")).collect();
        if !counts.is_empty() {
            let _ = write!(says, "\nBeside the {of}: {}.", counts.join(", "));
        }
    };
    add("target", measured().filter_map(|row| Some(row.verdict?.to_string())).collect());
    add("paper", measured().filter_map(|row| Some(row.agreement?.to_string())).collect());
    says
}

/// A document with the rows that did not come out, where it has a place for them.
pub(super) fn fill_in_misses(
    text: &str,
    load: impl Fn(&str) -> Result<Vec<FigureResult>>,
) -> Result<String> {
    between(text, "misses", || {
        let mut page = String::from("\n");
        for result in latest(load)? {
            let rows: Vec<_> = result.rows.iter().filter(|row| has_missed(row)).collect();
            if rows.is_empty() {
                continue;
            }
            let _ = writeln!(page, "### {}\n\n{}", result.id, what(&result));
            page += "| case | paper | target | measured | why |\n|---|---|---|---|---|\n";
            for row in rows {
                let [case, paper, target, measured] = row.expected_and_found();
                let why = row.differs.as_deref().unwrap_or("not explained");
                let cells = [&case, &paper, &target, &measured, why];
                let cells = cells.map(|cell| cell.replace('|', "\\|"));
                let _ = writeln!(page, "| {} |", cells.join(" | "));
            }
            page += "\n";
        }
        Ok(page)
    })
}

/// Whether a row is behind its target or the paper's finding.
fn has_missed(row: &FigureRow) -> bool {
    row.verdict == Some(Verdict::Missed)
        || matches!(row.agreement, Some(Agreement::FallsShort | Agreement::Contradicts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::measured;

    fn load(id: &str) -> Result<Vec<FigureResult>> {
        Ok(if id == "S4" { vec![measured()] } else { vec![] })
    }

    #[test]
    fn each_picture_that_is_kept_is_shown_under_its_figure() {
        let kept = tempfile::tempdir().unwrap();
        let page = "a\n<!-- pictures -->old<!-- /pictures -->\nz";
        let none = fill_in_pictures(page, kept.path(), load).unwrap();
        assert_eq!(none, "a\n<!-- pictures -->\n\n<!-- /pictures -->\nz");
        let kind = measured().machine.kind();
        let place = kept.path().join(&kind);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("S4.svg"), "<svg/>").unwrap();
        let shown = fill_in_pictures(page, kept.path(), load).unwrap();
        assert!(shown.contains(&format!("](../results/{kind}/S4.svg)")), "{shown}");
        assert!(shown.contains("### S4\n\nSize threshold found by the probe.\n"), "{shown}");
        assert!(
            shown.contains("rows are measured.\nBeside the target: inconclusive (1)."),
            "{shown}"
        );
        assert_eq!(fill_in_pictures(&shown, kept.path(), load).unwrap(), shown);
        assert_eq!(fill_in_pictures("no marks", kept.path(), load).unwrap(), "no marks");
        assert!(fill_in_pictures("<!-- pictures -->", kept.path(), load).is_err());
    }

    #[test]
    fn a_row_that_missed_is_listed_with_its_reason() {
        let mut result = measured();
        let row = &mut result.rows[0];
        (row.measured, row.low, row.high) = (Some(9.0), Some(8.0), Some(10.0));
        (row.verdict, row.differs) = (Some(Verdict::Missed), Some("It | rains.".into()));
        let case = row.case.clone();
        let load = |id: &str| Ok(if id == "S4" { vec![result.clone()] } else { vec![] });
        let page = "<!-- misses --><!-- /misses -->";
        let listed = fill_in_misses(page, load).unwrap();
        assert!(listed.contains("### S4\n\nSize threshold"), "{listed}");
        assert!(listed.contains(&format!("| {case} |")), "{listed}");
        assert!(listed.contains("| It \\| rains. |"), "{listed}");
        assert_eq!(listed.matches("\n| ").count(), 2, "its head and one row: {listed}");
        let old = |_: &str| Ok(vec![FigureResult { rules: 1, ..result.clone() }]);
        let listed = fill_in_misses(page, old).unwrap();
        assert!(listed.contains("the rules have changed since."), "{listed}");
    }
}
