// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documents show commands that there are.

use std::path::{Path, PathBuf};

/// The pages of the repository and of the book.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut dirs = vec![root.join("docs")];
    let mut pages = Vec::new();
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md");
    let entries = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    pages.extend(entries(&root).into_iter().filter(is_page));
    while let Some(dir) = dirs.pop() {
        for path in entries(&dir) {
            match path.is_dir() {
                true => dirs.push(path),
                false => pages.extend(Some(path).filter(is_page)),
            }
        }
    }
    pages
}

/// A page's lines of code: indented, or between fences.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && (fenced || line.starts_with("    "))
    })
}

/// The words of a line as a shell would part them, up to a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), c) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '|' | '>' | '<' | '&' | ';' | '#' | '\\') => break,
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            (None, c) => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[test]
fn every_command_that_is_shown_is_one() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in code(&text) {
            let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
            // A usage line has brackets; a line may go on; a policy of one's own is called mine.
            let is_part =
                line.contains(['[', '…']) || line.ends_with('\\') || line.contains(",mine");
            if !line.starts_with("dwell ") || line.starts_with("dwell  ") || is_part {
                continue;
            }
            let line = line.replace(" PID", " 4711");
            seen += 1;
            let parsed = dwell_cli::command().try_get_matches_from(words(&line));
            if let Err(error) = parsed
                && error.use_stderr()
            {
                let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                wrong.push(format!("{}: {line}: {first}", page.display()));
            }
        }
    }
    assert!(seen > 50, "{seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
