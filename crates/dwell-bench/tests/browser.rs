// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports as a browser reads them: all there, and nothing to complain of.

use std::path::Path;
use std::process::{Command, Output};

use dwell_bench::{compare, report, sample};

/// A page as Chromium reads it; `None` after saying why there is none.
fn opened(directory: &Path, page: &str, html: &str) -> Option<Output> {
    let path = directory.join(page);
    std::fs::write(&path, html).unwrap();
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let Some(browser) = browser else {
        println!("SKIP: no chromium");
        return None;
    };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", directory.join("browser").display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", path.display()))
        .output()
        .unwrap();
    if !output.status.success() {
        println!("SKIP: {browser} does not run here: {}", output.status);
        return None;
    }
    Some(output)
}

/// What the page's console said.
fn console(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect()
}

#[test]
fn every_section_of_a_report_is_there_and_the_console_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    for run in [sample::run(), sample::crowded()] {
        let Some(output) = opened(directory.path(), "report.html", &report::html(&run)) else {
            return;
        };
        let dom = String::from_utf8(output.stdout.clone()).unwrap();
        let settings = run.settings();
        for (i, setting) in settings.iter().enumerate() {
            assert!(dom.contains(&format!("<section id=\"setting-{}\">", i + 1)));
            assert!(dom.contains(&format!("<h2>{setting}</h2>")), "{setting}");
        }
        assert_eq!(dom.matches("<svg").count(), 6 * settings.len());
        assert_eq!(dom.matches("</svg>").count(), 6 * settings.len());
        let rows = dom.matches("<td class=\"name\">").count();
        let counted = run.rows.iter().filter(|row| !row.rounds[0].counters.is_empty()).count();
        assert_eq!(rows, run.rows.len() + counted);
        assert!(dom.contains("Bench report") && dom.contains("How to read this"));
        assert_eq!(dom.contains("Ended early"), run.ended.is_some());
        assert_eq!(console(&output), Vec::<String>::new());
    }
}

#[test]
fn a_comparison_is_shown_whole_and_the_console_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let mut comparison = sample::comparison();
    comparison.ended = Some("interrupted".into());
    let page = compare::html(&comparison);
    let Some(output) = opened(directory.path(), "compare.html", &page) else { return };
    let dom = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!((dom.matches("<svg").count(), dom.matches("</svg>").count()), (4, 4));
    for part in ["Comparison of one command", "Ended early", "Verdicts", "What was run"] {
        assert!(dom.contains(part), "{part}");
    }
    for variant in comparison.others() {
        assert!(dom.contains(&variant.finding.as_ref().unwrap().text), "{}", variant.name);
    }
    assert_eq!(console(&output), Vec::<String>::new());
}

#[test]
fn what_a_page_says_on_the_console_is_heard() {
    let directory = tempfile::tempdir().unwrap();
    let page = "<!DOCTYPE html><script>console.error('a complaint')</script>";
    let Some(output) = opened(directory.path(), "page.html", page) else { return };
    assert!(console(&output).iter().any(|line| line.contains("a complaint")), "{output:?}");
}
