// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports as a browser reads them: all there, and nothing to complain of.

use std::path::Path;
use std::process::{Command, Output};

use dwell_bench::{compare, report, sample};

/// A page as Chromium reads it; `None` after saying why there is none.
fn opened(directory: &Path, page: &str, html: &str) -> Option<Output> {
    opened_in(directory, page, html, 1280)
}

/// The same in a window of that width.
fn opened_in(directory: &Path, page: &str, html: &str, width: u32) -> Option<Output> {
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
        .arg(format!("--window-size={width},1600"))
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
        let opening = dom.matches("<figure class=\"opening\">").count();
        assert_eq!(dom.matches("<svg").count(), opening + 6 * settings.len());
        assert_eq!(dom.matches("</svg>").count(), opening + 6 * settings.len());
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
fn messages_of_a_page_on_the_console_are_heard() {
    let directory = tempfile::tempdir().unwrap();
    let page = "<!DOCTYPE html><script>console.error('a complaint')</script>";
    let Some(output) = opened(directory.path(), "page.html", page) else { return };
    assert!(console(&output).iter().any(|line| line.contains("a complaint")), "{output:?}");
}

/// Complains of texts in a picture that overlap or are cut, and of a page that is wider than its
/// window.
const LAYOUT: &str = r#"<script>
const complain = what => console.error("layout: " + what);
document.querySelectorAll("details").forEach(part => part.open = true);
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect());
  boxes.forEach((box, i) => {
    const name = texts[i].textContent.trim();
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      complain("cut: " + name);
    // Upright and level texts only: the box of a slanted one is mostly empty.
    const slanted = text => /rotate\((?!-?(0|90|270)\b)/.test(text.getAttribute("transform") || "");
    for (let j = 0; j < i; j++) {
      const other = boxes[j];
      const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (across > 2 && down > 3 && !slanted(texts[i]) && !slanted(texts[j]))
        complain("overlap: " + name + " and " + texts[j].textContent.trim());
    }
  });
}
if (document.documentElement.scrollWidth > innerWidth + 1)
  complain("wider than its window: " + document.documentElement.scrollWidth + " of " + innerWidth);
</script></body>"#;

#[test]
fn no_text_overlaps_or_is_cut_in_a_wide_and_in_a_narrow_window() {
    let directory = tempfile::tempdir().unwrap();
    let mut comparison = sample::comparison();
    comparison.variants[1].words[0] = format!("/{}/dwell", "long".repeat(20));
    let pages = [
        ("report", report::html(&sample::run())),
        ("crowded", report::html(&sample::crowded())),
        ("comparison", compare::html(&comparison)),
    ];
    for (name, page) in pages {
        assert!(page.contains("</body>"));
        let checked = page.replace("</body>", LAYOUT);
        for width in [1280, 420] {
            let Some(output) = opened_in(directory.path(), "layout.html", &checked, width) else {
                return;
            };
            assert_eq!(console(&output), Vec::<String>::new(), "{name} at {width}");
        }
    }
}

#[test]
fn a_layout_that_is_wrong_is_complained_of() {
    let directory = tempfile::tempdir().unwrap();
    let page = r#"<!DOCTYPE html><body><div style="width:3000px">wide</div><svg width="100" height="50">
        <text x="10" y="20">one</text><text x="12" y="21">two</text><text x="90" y="40">much too long</text></svg></body>"#;
    let page = page.replace("</body>", LAYOUT);
    let Some(output) = opened(directory.path(), "wrong.html", &page) else { return };
    let said = console(&output).join("\n");
    for fault in ["overlap: two and one", "cut: much too long", "wider than its window"] {
        assert!(said.contains(fault), "{fault}: {said}");
    }
}
