// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures in the documents: tables between two marks, and the list of all figures.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{FigureResult, catalogue};
use crate::result::write;

/// Rewrites the tables in all `*.md` files of `docs` from the results saved in `results`, and
/// returns the files that changed. Doing it again changes nothing. A table of a figure that was
/// never measured stays as it is; an unknown id and a marker without its end are errors, and then
/// nothing is written.
pub fn regenerate_docs(docs: &Path, results: &Path) -> Result<Vec<PathBuf>> {
    let list = || -> std::io::Result<Vec<PathBuf>> {
        let paths: Vec<PathBuf> =
            fs::read_dir(docs)?.map(|e| Ok(e?.path())).collect::<std::io::Result<_>>()?;
        Ok(paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == "md")).collect())
    };
    let mut files = list().with_context(|| format!("cannot list {}", docs.display()))?;
    files.sort();
    let mut changed = Vec::new();
    for path in files {
        let name = path.display();
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        let load = |id: &str| FigureResult::load(results, id);
        let new = fill_in(&old, load)
            .and_then(|text| fill_in_list(&text, load))
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
fn fill_in(text: &str, load: impl Fn(&str) -> Result<Option<FigureResult>>) -> Result<String> {
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
        let table = load(id)?.map(|result| format!("\n{}", result.markdown()));
        let table = table.as_deref().unwrap_or(old);
        let _ = write!(filled, "{before}{BEGIN}{id} -->{table}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

const LIST_BEGIN: &str = "<!-- figures -->";
const LIST_END: &str = "<!-- /figures -->";

/// A document with its list of all figures brought up to date, where it has one.
fn fill_in_list(text: &str, load: impl Fn(&str) -> Result<Option<FigureResult>>) -> Result<String> {
    let Some((before, rest)) = text.split_once(LIST_BEGIN) else { return Ok(text.into()) };
    let (old, after) = rest
        .split_once(LIST_END)
        .with_context(|| format!("`{LIST_BEGIN}` without its `{LIST_END}`"))?;
    // What no result says anew stays as it was, as the tables do.
    let before_that = |id: &str| {
        let cells = old.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        let row = cells.into_iter().find(|cells| cells.get(1) == Some(&id))?;
        Some((*row.get(3)?).to_owned())
    };
    let mut list = String::from("| figure | what | time | needs |\n|---|---|---|---|\n");
    for (id, figure) in &catalogue().figures {
        let time = match load(id)? {
            Some(result) if result.seconds > 0.0 => {
                let seconds = result.seconds.ceil();
                match result.effort {
                    1.0 => format!("{seconds:.0} s"),
                    effort => format!("{seconds:.0} s with `--effort {effort}`"),
                }
            }
            _ => before_that(id).unwrap_or_else(|| "not measured".into()),
        };
        let _ = writeln!(list, "| {id} | {} | {time} | {} |", figure.what, figure.needs);
    }
    Ok(format!("{before}{LIST_BEGIN}\n{list}{LIST_END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::tests::measured;

    #[test]
    fn the_list_of_figures_names_each_with_time_and_needs() {
        let load =
            |id: &str| Ok((id == "S4").then(|| FigureResult { seconds: 12.3, ..measured() }));
        let text = fill_in_list("a <!-- figures -->stale<!-- /figures --> z", load).unwrap();
        assert!(text.starts_with("a ") && text.ends_with(" z") && !text.contains("stale"));
        assert!(text.contains("| S4 | Size threshold found by the probe | 13 s | root: loop"));
        assert_eq!(text.matches("not measured").count(), catalogue().figures.len() - 1);
        assert_eq!(fill_in_list(&text, load).unwrap(), text);
        assert_eq!(fill_in_list(&text, |_| Ok(None)).unwrap(), text, "what is not at hand stays");
        assert!(fill_in_list("<!-- figures -->", load).is_err());
    }

    #[test]
    fn documents_are_filled_in_once_and_stay() {
        let (docs, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let page = docs.path().join("probe.md");
        let text = "# Probe\n\n<!-- figure:S4 -->stale<!-- /figure -->\n\nand\n\
                    <!-- figure:M1 -->\nkept\n<!-- /figure -->\n";
        fs::write(&page, text).unwrap();
        fs::write(docs.path().join("other.txt"), "<!-- figure:S99 -->").unwrap();
        measured().save(results.path(), None).unwrap();
        let changed = regenerate_docs(docs.path(), results.path()).unwrap();
        assert!(changed.iter().eq([&page]));
        let filled = fs::read_to_string(&page).unwrap();
        assert!(filled.starts_with("# Probe\n\n<!-- figure:S4 -->\n| case |"), "{filled}");
        assert!(filled.contains("| 61.0 s | 59.0–63.0 s | indistinguishable |"), "{filled}");
        assert!(filled.contains("\nkept\n") && !filled.contains(">old<"));
        assert!(regenerate_docs(docs.path(), results.path()).unwrap().is_empty());
        assert_eq!(fs::read_to_string(&page).unwrap(), filled);
    }

    #[test]
    fn broken_markers_are_errors_that_name_the_file_and_write_nothing() {
        let (docs, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        measured().save(results.path(), None).unwrap();
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
