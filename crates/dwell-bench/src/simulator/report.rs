// SPDX-License-Identifier: MIT OR Apache-2.0
//! A study as one HTML file that needs nothing else.

use std::path::Path;

use anyhow::Result;
use dwell_sim::PolicyKind;
use dwell_sim::params::{Params, Said};
use dwell_sim::report::Report;
use dwell_sim::summary::Measure;
use maud::{Markup, PreEscaped, html};

use super::plots::{self, name};
use super::{Simulated, Study, as_ratio, printed};
use crate::report::{facts, page};
use crate::units;

/// The report as HTML.
pub fn html(study: &Study) -> String {
    let body = html! {
        header {
            h1 { "Idle time of paging processes" }
            (facts(&study.machine))
            @if !study.command.is_empty() { p.command { "$ " (study.command.join(" ")) } }
        }
        @if let Some(why) = &study.ended {
            p.note.ended { strong { "Ended early: " } (why) ". Complete batches are shown." }
        }
        section {
            h2 { "The paper's figures" }
            div.charts { @for svg in plots::all(study) { figure { (PreEscaped(svg)) } } }
        }
        @if study.compared().next().is_some() { (bands(study)) }
        @for batch in &study.batches { (section(batch)) }
        @if !study.sensitivity.is_empty() { (sensitivity(study)) }
        @if let Some(batch) = study.batches.first() { (parameters(&batch.params)) }
        (how_to_read(study))
    };
    page("Dwell: idle time of paging processes", &body)
}

/// Writes the report.
pub fn save(study: &Study, path: &Path) -> Result<()> {
    crate::result::write(path, &html(study))
}

fn head(names: &[&str]) -> Markup {
    html! { thead { tr { @for name in names { th { (name) } } } } }
}

/// What the paper says ITS saves, beside what was found over the batches.
fn bands(study: &Study) -> Markup {
    let measures = [
        (Measure::IdleNs, "Idle time"),
        (Measure::WaitsNs, "Idle time without switches"),
        (Measure::MajorFaults, "Page faults"),
        (Measure::LlcMisses, "Cache misses"),
        (Measure::TopFinishNs, "Finish time, higher priorities"),
        (Measure::BottomFinishNs, "Finish time, lower priorities"),
    ];
    let saved = |ratio: f64| format!("{:.0} %", (1.0 - 1.0 / ratio) * 100.0);
    let found = |measure, policy| {
        let ratios = study.compared().filter_map(|batch| batch.against_its(policy, measure));
        let means: Vec<f64> = ratios.map(|ratio| ratio.mean).filter(|mean| *mean > 0.0).collect();
        let least = means.iter().copied().reduce(f64::min)?;
        Some((least, means.iter().copied().fold(least, f64::max)))
    };
    html! {
        section {
            h2 { "What ITS saves, over the batches" }
            div.scroll { table.figures {
                (head(&["Measure", "Against", "Least", "Most", "The paper's least", "The paper's most"]))
                tbody {
                    @for (measure, what) in measures {
                        @for policy in PolicyKind::ALL {
                            @if let Some((least, most)) = found(measure, policy).filter(|_| policy != PolicyKind::Its) {
                                tr {
                                    th scope="row" { (what) }
                                    td.name { (name(policy)) }
                                    td { (saved(least)) }
                                    td { (saved(most)) }
                                    @match printed(measure, policy) {
                                        Some((low, high)) => {
                                            td { (saved(as_ratio(low))) }
                                            td { (high.map_or("–".into(), |high| saved(as_ratio(high)))) }
                                        }
                                        None => { td { "–" } td { "–" } }
                                    }
                                }
                            }
                        }
                    }
                }
            } }
        }
    }
}

/// One batch: what ran, what each policy took, and the counters that explain it.
fn section(batch: &Simulated) -> Markup {
    let ms = |policy, of: fn(&Report) -> f64| {
        let values: Vec<f64> =
            batch.reports.iter().filter(|report| report.policy == policy).map(of).collect();
        let spread = dwell_sim::summary::Spread::of(&values);
        format!("{:.2} ± {:.2}", spread.mean / 1e6, spread.deviation / 1e6)
    };
    let count = |policy, of: fn(&Report) -> f64| format!("{:.0}", batch.mean(policy, of));
    let share = |policy, of: fn(&Report) -> f64| format!("{:.0} %", batch.mean(policy, of) * 100.0);
    html! {
        section {
            h2 { (batch.name) }
            p {
                (units::bytes(batch.dram_bytes)) " of DRAM; "
                (batch.reports.len() / batch.policies().len().max(1)) " seeds; mean ± standard deviation"
            }
            div.scroll { table.figures {
                (head(&["Policy", "Idle (ms)", "of it misses", "page faults", "switches", "Elapsed (ms)",
                    "Higher priorities end (ms)", "Lower priorities end (ms)"]))
                tbody { @for policy in batch.policies() {
                    tr {
                        th scope="row" { (name(policy)) }
                        td { (ms(policy, |r| r.idle.total_ns() as f64)) }
                        td { (ms(policy, |r| r.idle.cache_miss_ns as f64)) }
                        td { (ms(policy, |r| r.idle.fault_wait_ns as f64)) }
                        td { (ms(policy, |r| r.idle.switch_ns as f64)) }
                        td { (ms(policy, |r| r.elapsed_ns as f64)) }
                        td { (ms(policy, Report::top_half_finish_ns)) }
                        td { (ms(policy, Report::bottom_half_finish_ns)) }
                    }
                } }
            } }
            details {
                summary { "The counters" }
                div.scroll { table.figures {
                    (head(&["Policy", "First faults", "Faults again", "Late", "Minor", "Misses", "Switches",
                        "Prefetched", "of it used", "Pre-executed", "of it invalid", "Lines brought",
                        "of it used", "Spun", "Blocked", "Pages written"]))
                    tbody { @for policy in batch.policies() {
                        tr {
                            th scope="row" { (name(policy)) }
                            td { (count(policy, |r| r.faults.first as f64)) }
                            td { (count(policy, |r| r.faults.again as f64)) }
                            td { (count(policy, |r| r.faults.late as f64)) }
                            td { (count(policy, |r| (r.faults.prefetched + r.faults.zero) as f64)) }
                            td { (count(policy, |r| r.accesses.dram as f64)) }
                            td { (count(policy, |r| r.switches as f64)) }
                            td { (count(policy, |r| r.prefetches.issued as f64)) }
                            td { (share(policy, |r| r.prefetches.accuracy())) }
                            td { (count(policy, |r| r.preexecution.instructions as f64)) }
                            td { (count(policy, |r| r.preexecution.invalid as f64)) }
                            td { (count(policy, |r| r.preexecution.lines as f64)) }
                            td { (share(policy, |r| r.preexecution.accuracy())) }
                            td { (count(policy, |r| r.waits.spun as f64)) }
                            td { (count(policy, |r| r.waits.blocked as f64)) }
                            td { (count(policy, |r| r.written_pages as f64)) }
                        }
                    } }
                } }
                div.scroll { table.figures {
                    (head(&["Program", "Instructions", "Footprint", "Working set"]))
                    tbody { @for program in &batch.programs {
                        tr {
                            th scope="row" { (program.name) }
                            td { (units::count(program.instructions)) }
                            td { (units::bytes(program.footprint_bytes)) }
                            td { (units::bytes(program.working_set_bytes)) }
                        }
                    } }
                } }
            }
        }
    }
}

fn sensitivity(study: &Study) -> Markup {
    let policies: Vec<PolicyKind> =
        PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Its).collect();
    html! {
        section {
            h2 { "How much depends on what the paper leaves open" }
            p { "Idle time of each policy ÷ that of ITS, least–most over the batches. One parameter at a time." }
            div.scroll { table.figures {
                thead { tr { th { "Choice" } @for policy in &policies { th { (name(*policy)) } } } }
                tbody { @for variation in &study.sensitivity {
                    tr {
                        th scope="row" { @if variation.set.is_empty() { "as it is" } @else { code { (variation.set) } } }
                        @for policy in &policies {
                            td {
                                @match variation.idle.iter().find(|(known, ..)| known == policy) {
                                    Some((_, least, most)) => (format!("{least:.2}–{most:.2}")),
                                    None => "–",
                                }
                            }
                        }
                    }
                } }
            } }
        }
    }
}

fn parameters(params: &Params) -> Markup {
    html! {
        section {
            h2 { "Parameters" }
            details {
                summary { "All of them; open: the paper does not say" }
                div.scroll { table.devices {
                    (head(&["Parameter", "Value", "Unit", "Paper", "What"]))
                    tbody { @for field in Params::FIELDS {
                        tr {
                            th scope="row" { code { (field.name) } }
                            td { (params.get(field.name).unwrap_or_default()) }
                            td { (field.unit) }
                            td { "§" (field.section) @if field.said == Said::Open { ", open" } }
                            td { (field.doc.trim()) }
                        }
                    } }
                } }
            }
        }
    }
}

fn how_to_read(study: &Study) -> Markup {
    html! {
        section.reading {
            h2 { "How to read this" }
            p {
                "Each batch was simulated under each policy with each seed; a seed draws the \
                 priorities, so policies are compared seed by seed. Idle time is all time in which no \
                 process makes progress because of memory or storage. The paper's bands are those of \
                 “How to Steal CPU Idle Time When Synchronous I/O Mode Becomes Promising” (DAC 2024), \
                 whose programs and inputs were others."
            }
            p.fine { "Schema " (study.schema) "." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_one_file_that_asks_for_nothing() {
        let mut study = super::super::tests::study();
        study.command = vec!["<b>".into()];
        study.batches[0].name = "<i>".into();
        study.sensitivity = vec![super::super::Variation {
            set: "a=1".into(),
            idle: vec![(PolicyKind::Sync, 1.0, 2.0)],
        }];
        let html = html(&study);
        for outside in ["<script", "<link", "src=", "url(", "@import", "href=", "<b>", "<i>"] {
            assert!(!html.contains(outside), "{outside} found");
        }
        let namespace = "http://www.w3.org/2000/svg";
        assert_eq!(html.matches("http").count(), html.matches(namespace).count());
        assert_eq!(html.matches("<svg").count(), 9);
        assert!(html.contains("1.00–2.00") && html.contains("instruction_ps"));
        assert!(!html.contains("NaN") && html.contains("66 %"));
    }

    #[test]
    fn nothing_simulated_is_a_short_report() {
        let mut study = super::super::tests::study();
        study.batches.clear();
        study.ended = Some("interrupted".into());
        let html = html(&study);
        assert!(html.contains("Ended early") && !html.contains("NaN"));
    }
}
