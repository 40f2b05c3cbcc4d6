// SPDX-License-Identifier: MIT OR Apache-2.0
//! A comparison as one HTML file that needs nothing else.

use std::path::Path;

use anyhow::Result;
use maud::{Markup, PreEscaped, html};

use super::outcome::{Comparison, Measured, Metric, Results, UNTOUCHED, Variant};
use super::plots;
use super::table::short;
use super::words::line;
use crate::report::{facts, page};
use crate::units;

/// The report as HTML.
pub fn html(comparison: &Comparison) -> String {
    let body = html! {
        header {
            h1 { "Comparison of one command" }
            h2 { "Verdicts" }
            @for variant in comparison.others() {
                @if let Some(finding) = &variant.finding {
                    p { strong { (variant.name) ":" } " " (finding.text) "." }
                }
            }
            (facts(&comparison.machine))
            p.command { "$ " (line(&comparison.command)) }
        }
        @if let Some(why) = &comparison.ended {
            p.note.ended { strong { "Ended early: " } (why) ". Complete rounds are shown." }
        }
        @for note in &comparison.notes { p.note { (note) } }
        section #figures {
            div.charts {
                @for svg in plots::all(comparison) { figure { (PreEscaped(svg)) } }
            }
            (figures(comparison))
        }
        (commands(comparison))
        (how_to_read(comparison))
    };
    page("Dwell: one command under wait policies", &body)
}

/// Writes the report.
pub fn save_report(comparison: &Comparison, path: &Path) -> Result<()> {
    crate::result::write(path, &html(comparison))
}

fn figures(comparison: &Comparison) -> Markup {
    let time = |variant: &Variant, get: fn(&Measured) -> u64| {
        units::time_ns(variant.median(|run| get(run) as f64))
    };
    let count = |variant: &Variant, get: fn(&Measured) -> u64| match variant
        .median(|run| get(run) as f64)
    {
        count if count.is_nan() => "–".into(),
        count => short(count),
    };
    let bytes = |variant: &Variant, get: fn(&Measured) -> Option<u64>| match variant
        .median(|run| get(run).map_or(f64::NAN, |bytes| bytes as f64))
    {
        median if median.is_nan() => "–".into(),
        median => units::bytes(median as u64),
    };
    let share = |share: Option<f64>| share.map_or("–".into(), units::percent);
    let quartiles = |variant: &Variant| {
        variant.summary(|run| run.wall_ns as f64).map_or("–".into(), |s| {
            format!("{}–{}", units::time_ns(s.lower_quartile), units::time_ns(s.upper_quartile))
        })
    };
    let ratio = |variant: &Variant, metric| {
        comparison.ratio(&variant.name, metric).map_or(String::new(), |ratio| {
            format!("{} [{:.2}, {:.2}]", units::ratio(ratio.median), ratio.low, ratio.high)
        })
    };
    let told = comparison.ratios.iter().any(|ratio| ratio.metric == Metric::Told);
    html! {
        h3 { "Medians of the rounds" }
        div.scroll { table.figures {
            thead { tr {
                @for name in ["Variant", "Wall time", "Quartiles", "User", "System",
                    "Speed ÷ untouched", "CPU ÷ untouched", "Switches ÷ untouched"] {
                    th { (name) }
                }
                @if told { th { "Rate told" } th { "Rate ÷ untouched" } }
                th { "Results" }
            } }
            tbody {
                @for variant in &comparison.variants {
                    tr.first {
                        th scope="row" { (variant.name) }
                        td { (time(variant, |run| run.wall_ns)) }
                        td { (quartiles(variant)) }
                        td { (time(variant, |run| run.user_ns)) }
                        td { (time(variant, |run| run.system_ns)) }
                        td { (ratio(variant, Metric::Speed)) }
                        td { (ratio(variant, Metric::Cpu)) }
                        td { (ratio(variant, Metric::Switches)) }
                        @if told {
                            td { (units::figure(variant.median(|r| r.told.unwrap_or(f64::NAN)))) }
                            td { (ratio(variant, Metric::Told)) }
                        }
                        td {
                            @match (variant.name == UNTOUCHED, variant.results) {
                                (true, Results::Same) => "–",
                                (_, results) => (results.as_str()),
                            }
                        }
                    }
                }
            }
        } }
        h3 { "Switches, faults and bytes per run" }
        div.scroll { table.figures {
            thead { tr {
                @for name in ["Variant", "Voluntary", "Involuntary", "Major faults", "Read",
                    "Written", "From storage", "To storage", "Seen", "Decided"] {
                    th { (name) }
                }
            } }
            tbody {
                @for variant in &comparison.variants {
                    tr.first {
                        th scope="row" { (variant.name) }
                        td { (count(variant, |run| run.voluntary_switches)) }
                        td { (count(variant, |run| run.involuntary_switches)) }
                        td { (count(variant, |run| run.major_faults)) }
                        td { (bytes(variant, |run| run.read_bytes)) }
                        td { (bytes(variant, |run| run.written_bytes)) }
                        td { (bytes(variant, |run| run.read_storage_bytes)) }
                        td { (bytes(variant, |run| run.written_storage_bytes)) }
                        td { (share(variant.coverage().map(|(seen, _)| seen))) }
                        td { (share(variant.coverage().map(|(_, decided)| decided))) }
                    }
                }
            }
        } }
    }
}

fn commands(comparison: &Comparison) -> Markup {
    let parts = [("Before each run", &comparison.setup), ("After each run", &comparison.check)];
    html! {
        section {
            h2 { "What was run" }
            table.devices {
                thead { tr { th { "Variant" } th { "Command" } } }
                tbody {
                    @for variant in &comparison.variants {
                        tr { th scope="row" { (variant.name) } td { code { (line(&variant.words)) } } }
                    }
                    @for (what, words) in parts {
                        @if !words.is_empty() {
                            tr { th scope="row" { (what) } td { code { (line(words)) } } }
                        }
                    }
                }
            }
        }
    }
}

fn how_to_read(comparison: &Comparison) -> Markup {
    let plural = if comparison.warmup == 1 { "" } else { "s" };
    html! {
        section.reading {
            h2 { "How to read this" }
            p {
                "In every round each variant ran once, in random order, after " (comparison.warmup)
                " round" (plural) " that " @if comparison.warmup == 1 { "is" } @else { "are" }
                " not kept. Ratios are taken within each round; their bars are the 95 % bootstrap \
                 interval of the median ratio. A variant is called faster or slower where that \
                 whole interval lies on one side of 1 and so many rounds agree that chance would \
                 bring it about in less than one case of 20 (sign test); otherwise it is \
                 inconclusive. With fewer than six rounds it always is."
            }
            p {
                "CPU time, switches, faults and bytes are those of the command and of all \
                 processes that it started and that ended with it. Read and written is what \
                 passed through system calls, whoever answered them. What the kernel does in \
                 threads of its own is not in it; starting the wrapper is. Seen is the share of \
                 the bytes moved that Dwell knows of, decided the share that its policies decided \
                 about; the rest went by mapped files, by I/O of the program's own or inside the C \
                 library."
            }
            p.fine { "Schema " (comparison.schema) "." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_report_is_one_file_that_asks_for_nothing() {
        let html = html(&sample::comparison());
        for outside in ["<script", "<link", "src=", "url(", "@import", "href="] {
            assert!(!html.contains(outside), "{outside} found");
        }
        let namespace = "http://www.w3.org/2000/svg";
        assert_eq!(html.matches("http").count(), html.matches(namespace).count());
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(!html.contains("NaN"));
    }

    #[test]
    fn words_from_outside_are_escaped() {
        let mut comparison = sample::comparison();
        comparison.command = vec!["<b>".into()];
        comparison.program = vec!["<b>".into()];
        comparison.notes = vec!["<i>".into()];
        comparison.variants[1].words = vec!["<b>".into()];
        comparison.variants[1].name = "<i>".into();
        comparison.conclude();
        let html = html(&comparison);
        assert!(!html.contains("<b>") && !html.contains("<i>"));
    }

    #[test]
    fn nothing_measured_is_a_short_report() {
        let mut comparison = sample::comparison();
        comparison.variants.iter_mut().for_each(|variant| variant.rounds.clear());
        comparison.ended = Some("interrupted".into());
        comparison.conclude();
        let html = html(&comparison);
        assert!(html.contains("Ended early") && !html.contains("NaN"));
    }
}
