// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures in the documents: tables between two marks, and the list of all figures.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{FULL_ROW_S, FigureResult, catalogue, pages};
use dwell_bench::result::write;

/// Keeps what was measured with the present code and its pictures, a directory for each kind of
/// machine, beneath `kept`; returns the results that changed.
///
/// # Errors
/// A result that cannot be read, or not be written.
pub fn keep_results(results: &Path, kept: &Path) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for id in catalogue().figures.keys() {
        let Some(result) = FigureResult::load(results, id)? else { continue };
        let measured = result.rows.iter().any(|row| row.measured.is_some());
        if result.stale().is_some() || !measured {
            continue;
        }
        let place = kept.join(result.machine.kind());
        if FigureResult::load(&place, id)?.as_ref() != Some(&result) {
            fs::create_dir_all(&place)
                .with_context(|| format!("cannot make {}", place.display()))?;
            let path = place.join(format!("{id}.json"));
            write(&path, &(serde_json::to_string_pretty(&result)? + "\n"))?;
            changed.push(path);
        }
        let picture = pages::picture(id);
        if let Ok(drawn) = fs::read_to_string(results.join(&picture)) {
            write(&place.join(picture), &drawn)?;
        }
    }
    Ok(changed)
}

/// What was kept of one figure, a result for each kind of machine, the latest first. Those of other
/// code are left out where there is one of the present code.
fn kept_of(kept: &Path, id: &str) -> Result<Vec<FigureResult>> {
    let directories = match fs::read_dir(kept) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        list => list.with_context(|| format!("cannot list {}", kept.display()))?,
    };
    let mut results = Vec::new();
    for directory in directories {
        let path = directory.with_context(|| format!("cannot list {}", kept.display()))?.path();
        if path.is_dir() {
            results.extend(FigureResult::load(&path, id)?);
        }
    }
    results.sort_by(|a, b| {
        let key = |of: &FigureResult| (of.stale().is_none(), of.machine.date.clone());
        key(b).cmp(&key(a))
    });
    let valid = results.iter().filter(|result| result.stale().is_none()).count();
    results.truncate(valid.max(1));
    Ok(results)
}

/// Rewrites the tables in all `*.md` files of `docs` from the results in `kept`, one for each kind
/// of machine, and returns the files that changed. Doing it again changes nothing. A figure without
/// a result says so in place of numbers, and one of older code or rules beneath them. An unknown id
/// and a marker without its end are errors, and then nothing is written.
pub fn regenerate_docs(docs: &Path, kept: &Path) -> Result<Vec<PathBuf>> {
    let list = |dir: &Path| -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect()
    };
    let failed = || format!("cannot list {}", docs.display());
    let mut files = list(docs).with_context(failed)?;
    // The chapters of the book are one directory deep.
    if docs.join("SUMMARY.md").is_file() {
        for chapter in files.clone().iter().filter(|path| path.is_dir()) {
            files.extend(list(chapter).with_context(failed)?);
        }
    }
    files.retain(|path| path.is_file() && path.extension().is_some_and(|e| e == "md"));
    files.sort();
    let mut changed = Vec::new();
    for path in files {
        let name = path.display();
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        let load = |id: &str| kept_of(kept, id);
        let new = fill_in(&old, load)
            .and_then(|text| fill_in_list(&text, load))
            .and_then(|text| pages::fill_in_pictures(&text, kept, load))
            .and_then(|text| pages::fill_in_misses(&text, load))
            .with_context(|| name.to_string())?;
        if new != old {
            changed.push((path, new));
        }
    }
    changed.iter().try_for_each(|(path, text)| write(path, text))?;
    Ok(changed.into_iter().map(|(path, _)| path).collect())
}

const BEGIN: &str = "<!-- figure:";
const END: &str = "<!-- /figure -->";

/// One document with its tables replaced by what `load` returns.
fn fill_in(text: &str, load: impl Fn(&str) -> Result<Vec<FigureResult>>) -> Result<String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from_id)) = rest.split_once(BEGIN) {
        let (id, body) =
            from_id.split_once("-->").with_context(|| format!("`{BEGIN}` without its `-->`"))?;
        let id = id.trim();
        catalogue().figure(id)?;
        let (old, after) = body
            .split_once(END)
            .with_context(|| format!("the marker of figure {id} has no `{END}`"))?;
        if old.contains(BEGIN) {
            bail!("figure {id}: another marker begins before `{END}`");
        }
        let results = load(id)?;
        let table = match &results[..] {
            [] => format!("Not measured yet: `make figure ID={id}` does."),
            results => results.iter().map(|result| format!("\n{}", result.markdown())).collect(),
        };
        let _ = write!(filled, "{before}{BEGIN}{id} -->{table}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

/// A document with its list of all figures brought up to date, where it has one.
fn fill_in_list(text: &str, load: impl Fn(&str) -> Result<Vec<FigureResult>>) -> Result<String> {
    pages::between(text, "figures", || list(load))
}

fn list(load: impl Fn(&str) -> Result<Vec<FigureResult>>) -> Result<String> {
    let mut list = String::from("| figure | what | time | needs |\n|---|---|---|---|\n");
    for (id, figure) in &catalogue().figures {
        let time = match load(id)?.first() {
            Some(result) if result.seconds > 0.0 => {
                let seconds = result.seconds.ceil();
                match result.effort {
                    1.0 => format!("{seconds:.0} s"),
                    effort => {
                        format!("{seconds:.0} s with `--max-time {:.0}s`", effort * FULL_ROW_S)
                    }
                }
            }
            _ => "not measured".into(),
        };
        let _ = writeln!(list, "| {id} | {} | {time} | {} |", figure.what, figure.needs);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::measured;
    use dwell_bench::machine::Machine;

    fn keep(result: &FigureResult, kept: &Path) -> Vec<PathBuf> {
        let results = tempfile::tempdir().unwrap();
        result.save(results.path(), None).unwrap();
        keep_results(results.path(), kept).unwrap()
    }

    #[test]
    fn each_kind_of_machine_keeps_its_latest_result_and_has_its_table() {
        let kept = tempfile::tempdir().unwrap();
        let on = |cpu_model: &str, date: &str| {
            let (cpu_model, date) = (cpu_model.into(), date.into());
            FigureResult {
                machine: Machine { cpu_model, date, ..Machine::default() },
                ..measured()
            }
        };
        for (result, changes) in [
            (on("A B", "2026-01-01"), 1),
            (on("C", "2026-01-03"), 1),
            (on("A B", "2026-01-02"), 1),
            (on("A B", "2026-01-02"), 0),
            (FigureResult { rules: 1, ..on("D", "2026-01-04") }, 0),
        ] {
            assert_eq!(keep(&result, kept.path()).len(), changes, "{:?}", result.machine);
        }
        let dates = |id: &str| -> Vec<String> {
            let results = kept_of(kept.path(), id).unwrap();
            results.into_iter().map(|result| result.machine.date).collect()
        };
        assert_eq!(dates("S4"), ["2026-01-03", "2026-01-02"]);
        assert!(dates("S5").is_empty());
        let text = "<!-- figure:S4 --><!-- /figure -->";
        let filled = fill_in(text, |id| kept_of(kept.path(), id)).unwrap();
        assert_eq!(filled.matches("| case |").count(), 2, "{filled}");
        // Of other code, only the latest is shown, and only where there is nothing else.
        let old = FigureResult { inputs: "0".into(), ..on("E", "2026-01-05") };
        let place = kept.path().join(old.machine.kind());
        fs::create_dir(&place).unwrap();
        old.save(&place, None).unwrap();
        assert_eq!(dates("S4"), ["2026-01-03", "2026-01-02"]);
        assert!(kept_of(&kept.path().join("nowhere"), "S4").unwrap().is_empty());
    }

    #[test]
    fn the_list_of_figures_names_each_with_time_and_needs() {
        let load = |id: &str| {
            Ok(match id {
                "S4" => vec![FigureResult { seconds: 12.3, ..measured() }],
                _ => vec![],
            })
        };
        let text = fill_in_list("a <!-- figures -->stale<!-- /figures --> z", load).unwrap();
        assert!(text.starts_with("a ") && text.ends_with(" z") && !text.contains("stale"));
        assert!(text.contains("| S4 | Size threshold found by the probe | 13 s | root: loop"));
        assert_eq!(text.matches("not measured").count(), catalogue().figures.len() - 1);
        assert_eq!(fill_in_list(&text, load).unwrap(), text);
        assert!(fill_in_list("<!-- figures -->", load).is_err());
    }

    #[test]
    fn documents_are_filled_in_once_and_stay() {
        let (docs, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let page = docs.path().join("probe.md");
        let text = "# Probe\n\n<!-- figure:S4 -->stale<!-- /figure -->\n\nand\n\
                    <!-- figure:M1 -->\nof other code\n<!-- /figure -->\n";
        fs::write(&page, text).unwrap();
        fs::write(docs.path().join("other.txt"), "<!-- figure:S99 -->").unwrap();
        keep(&measured(), results.path());
        let changed = regenerate_docs(docs.path(), results.path()).unwrap();
        assert!(changed.iter().eq([&page]));
        let filled = fs::read_to_string(&page).unwrap();
        assert!(filled.starts_with("# Probe\n\n<!-- figure:S4 -->\n| case |"), "{filled}");
        assert!(filled.contains("| 61.0 s | 59.0–63.0 s | inconclusive |"), "{filled}");
        assert!(filled.contains("<!-- figure:M1 -->Not measured yet"), "{filled}");
        assert!(regenerate_docs(docs.path(), results.path()).unwrap().is_empty());
        assert_eq!(fs::read_to_string(&page).unwrap(), filled);
        // The chapters of a book, but no directory below other documents.
        let chapter = docs.path().join("reference");
        fs::create_dir(&chapter).unwrap();
        fs::rename(&page, chapter.join("probe.md")).unwrap();
        fs::write(chapter.join("probe.md"), text).unwrap();
        assert!(regenerate_docs(docs.path(), results.path()).unwrap().is_empty());
        fs::write(docs.path().join("SUMMARY.md"), "").unwrap();
        let changed = regenerate_docs(docs.path(), results.path()).unwrap();
        assert!(changed.iter().eq([&chapter.join("probe.md")]));
    }

    #[test]
    fn a_table_of_other_code_or_rules_says_so() {
        let text = "<!-- figure:S4 -->old<!-- /figure -->";
        let filled = |result: FigureResult| fill_in(text, |_| Ok(vec![result.clone()])).unwrap();
        assert!(!filled(measured()).contains("since"));
        let rules = filled(FigureResult { rules: 1, ..measured() });
        assert!(rules.contains("| 61.0 s |") && rules.contains("rules have changed"), "{rules}");
        let code = filled(FigureResult { inputs: "0".into(), ..measured() });
        assert!(code.contains("| 61.0 s |") && code.contains("code has changed since"), "{code}");
    }

    #[test]
    fn broken_markers_are_errors_that_name_the_file_and_write_nothing() {
        let (docs, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        keep(&measured(), results.path());
        let good = docs.path().join("a.md");
        fs::write(&good, "<!-- figure:S4 --><!-- /figure -->").unwrap();
        for broken in [
            "<!-- figure:S99 --><!-- /figure -->",
            "<!-- figure:S4 -->",
            "<!-- figure:S4",
            "<!-- figure:S4 --><!-- figure:S1 --><!-- /figure -->",
        ] {
            fs::write(docs.path().join("b.md"), broken).unwrap();
            let error = format!("{:#}", regenerate_docs(docs.path(), results.path()).unwrap_err());
            assert!(error.contains("b.md"), "{error}");
            assert_eq!(fs::read_to_string(&good).unwrap().len(), 34);
        }
        assert!(regenerate_docs(Path::new("/nonexistent"), results.path()).is_err());
    }
}
