// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as one HTML file that needs nothing else: charts inline, no script, no network.

mod plots;

pub use plots::{Curve, probe_curves};

use std::path::Path;

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{
    chart, events, machine,
    result::{Metric, Row, Run, Setting},
    units,
};

/// Charts of a setting that answer something by themselves; the others are folded away.
const ANSWERS: usize = 2;

const STYLE: &str = include_str!("style.css");

/// The report as HTML.
pub fn html(run: &Run) -> String {
    let body = html! {
        header {
            h1 { "Bench report" }
            @if let Some(verdict) = &run.verdict { p.verdict { (verdict) } }
            @if let Some(met) = &run.conditions { p { (met.line(&run.machine)) } }
            @if let Some(svg) = plots::opening(run) { figure.opening { (PreEscaped(svg)) } }
            (facts(&run.machine))
            p.command { "$ " (run.command.join(" ")) }
        }
        @if let Some(why) = &run.ended {
            p.note.ended { strong { "Ended early: " } (why) ". Complete rounds are shown." }
        }
        @for note in &run.notes { p.note { (note) } }
        (devices(run))
        @for why in &run.left_out { p.note { strong { "Left out. " } (why) } }
        @let overviews = plots::overviews(run);
        @if !overviews.is_empty() {
            section {
                h2 { "All workloads" }
                div.charts { @for svg in overviews { figure { (PreEscaped(svg)) } } }
            }
        }
        @for (i, setting) in run.settings().into_iter().enumerate() {
            (section(run, i, setting))
        }
        (contenders(run))
        (how_to_read(run))
    };
    page("Dwell: how long to wait for storage", &body)
}

/// A page that needs nothing else.
pub(crate) fn page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(style())) }
            }
            body { (body) }
        }
    }
    .into_string()
}

/// Writes the report.
pub fn save(run: &Run, path: &Path) -> Result<()> {
    crate::result::write(path, &html(run))
}

fn style() -> String {
    STYLE.replace("FONTS", chart::FONTS)
}

/// The machine and the moment.
pub(crate) fn facts(machine: &machine::Machine) -> Markup {
    let memory = units::bytes(machine.memory_bytes);
    let facts = [
        ("CPU", machine.cpu_model.clone()),
        ("CPUs", machine.cpus.to_string()),
        ("Memory", memory),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("Clock", machine.clocksource.clone()),
        ("Admission", machine.governor.clone().unwrap_or_default()),
        ("Machine", machine.virtualised.clone().unwrap_or_else(|| "bare metal".into())),
        ("Date", machine.date.replace('T', " ").replace('Z', " UTC")),
    ];
    html! {
        dl.facts {
            @for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn devices(run: &Run) -> Markup {
    html! {
        table.devices {
            thead { tr { th { "Device" } th { "What it is" } th { "Class" } th { "Size threshold" } } }
            tbody {
                @for device in &run.devices {
                    tr {
                        th scope="row" { (device.name) }
                        td { (device.description) }
                        td { (device.class.as_deref().unwrap_or("not probed")) }
                        td { (device.size_threshold_bytes.map_or("–".into(), units::bytes)) }
                    }
                }
            }
        }
    }
}

fn contenders(run: &Run) -> Markup {
    html! {
        @if !run.contenders.is_empty() {
            section {
                h2 { "How the others were set up" }
                table.devices {
                    thead { tr { th { "Contender" } th { "Version" } th { "Settings" } } }
                    tbody {
                        @for contender in &run.contenders {
                            tr {
                                th scope="row" { (contender.name) }
                                td { (contender.version) }
                                td { (contender.settings.join("; ")) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn section(run: &Run, number: usize, setting: &Setting) -> Markup {
    let rows: Vec<&Row> = run.rows.iter().filter(|row| row.setting == *setting).collect();
    let note = rows.iter().find_map(|row| row.emulated.as_deref());
    let charts = plots::all(run, setting, &rows);
    let (answers, more) = charts.split_at(charts.len().min(ANSWERS));
    html! {
        section id={ "setting-" (number + 1) } {
            h2 { (setting) }
            @if let Some(note) = note { p.note { strong { "Emulated device. " } (note) } }
            (drawn(answers))
            details {
                summary { "In absolute numbers" }
                (drawn(more))
                (figures(run, &rows))
                (events_of(&rows))
            }
        }
    }
}

fn drawn(charts: &[(String, bool)]) -> Markup {
    html! {
        div.charts {
            @for (svg, bars) in charts { figure.bars[*bars] { (PreEscaped(svg)) } }
        }
    }
}

fn figures(run: &Run, rows: &[&Row]) -> Markup {
    let time = |row: &Row, get: fn(&crate::result::RoundResult) -> u64| match row
        .median(|r| get(r) as f64)
    {
        0.0 => "–".to_owned(),
        ns => units::time_ns(ns),
    };
    let ratio = |row: &Row, metric| {
        run.ratio(row, metric).map_or(String::new(), |ratio| {
            let paired = ratio.paired;
            format!("{} [{:.2}, {:.2}]", units::ratio(paired.median), paired.low, paired.high)
        })
    };
    let named = rows.iter().any(|row| row.setting.requests().is_none());
    let bystanders = rows.iter().any(|row| run.ratio(row, Metric::BystanderSpeed).is_some());
    let last = bystanders.then_some("Bystanders ÷ base");
    html! {
        div.scroll { table.figures {
            thead { tr {
                @for name in ["Size", "Policy", "Throughput", "IOPS", "p50", "p99", "p99.9",
                    "CPU per request", "Throughput ÷ base", "CPU ÷ base"].into_iter().chain(last) {
                    th { (name) }
                }
                @if named { th { "Operations" } th { "Operations ÷ base" } }
            } }
            tbody {
                @for (i, row) in rows.iter().enumerate() {
                    @let first = i == 0 || rows[i - 1].size_bytes != row.size_bytes;
                    tr.first[first] {
                        th scope="row" { @if first { (plots::size_label(row.size_bytes)) } }
                        td.name { (row.policy) }
                        td { (units::throughput(row.median(|r| r.throughput()))) }
                        td { (units::per_second(row.median(|r| r.requests_per_second()))) }
                        td { (time(row, |r| r.p50_ns)) }
                        td { (time(row, |r| r.p99_ns)) }
                        td { (time(row, |r| r.p999_ns)) }
                        td { (units::time_ns(row.median(|r| r.cpu_ns_per_request()))) }
                        td { (ratio(row, Metric::Throughput)) }
                        td { (ratio(row, Metric::CpuPerRequest)) }
                        @if bystanders { td { (ratio(row, Metric::BystanderSpeed)) } }
                        @if named {
                            td { (units::per_second(row.median(|r| r.operations_per_second()))) }
                            td { (ratio(row, Metric::Operations)) }
                        }
                    }
                }
            }
        } }
    }
}

/// What the CPU counted, where it did.
fn events_of(rows: &[&Row]) -> Markup {
    let names = events::names(rows);
    html! {
        @if !names.is_empty() {
            h3 { "Events per 1000 requests" }
            div.scroll { table.figures {
                thead { tr {
                    th { "Size" } th { "Policy" }
                    @for name in &names { th { (name.replace('_', " ")) } }
                } }
                tbody {
                    @for (i, row) in rows.iter().enumerate() {
                        @let first = i == 0 || rows[i - 1].size_bytes != row.size_bytes;
                        tr.first[first] {
                            th scope="row" { @if first { (units::bytes(row.size_bytes)) } }
                            td.name { (row.policy) }
                            @for name in &names { td { (events::per_thousand(row, name)) } }
                        }
                    }
                }
            } }
        }
    }
}

fn how_to_read(run: &Run) -> Markup {
    html! {
        section.reading {
            h2 { "How to read this" }
            p {
                "Every policy ran once per round, one after the other, so that what disturbs the \
                 machine disturbs all of them. Points are medians over the rounds, thin bars reach \
                 from the slowest to the fastest round. Ratios are taken within each round; their \
                 bars are the 95 % bootstrap interval of the median ratio."
            }
            p {
                "CPU time is that of the measuring threads alone, in percent of one CPU. Spinning \
                 is time in which a thread polled with nothing else to do. Work that the kernel \
                 does in threads of its own is not in it."
            }
            p.fine { "Schema " (run.schema) "." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn the_report_is_one_file_that_asks_for_nothing() {
        let html = html(&sample::run());
        for outside in ["<script", "<link", "src=", "url(", "@import", "href="] {
            assert!(!html.contains(outside), "{outside} found");
        }
        let namespace = "http://www.w3.org/2000/svg";
        assert_eq!(html.matches("http").count(), html.matches(namespace).count());
    }

    #[test]
    fn every_setting_has_its_charts_and_figures() {
        let run = sample::run();
        let html = html(&run);
        for setting in run.settings() {
            assert!(html.contains(&format!("<h2>{setting}</h2>")));
        }
        let opening = html.matches("<figure class=\"opening\">").count();
        assert_eq!(html.matches("<svg").count(), opening + 6 * run.settings().len());
        assert!(html.contains("io-uring spin") && html.contains("1.2.3"));
        assert!(html.contains("Emulated device.") && html.contains("@media print"));
    }

    #[test]
    fn cases_left_out_and_bystanders_are_shown_where_there_are_any() {
        let mut run = sample::run();
        let without = html(&run);
        assert!(!without.contains("Left out.") && !without.contains("Bystanders"));
        run.left_out.push("zram under bfq".into());
        run.rows.iter_mut().flat_map(|row| &mut row.rounds).for_each(|round| {
            round.bystander_iterations = round.requests;
        });
        run.compare_with("block");
        let with = html(&run);
        assert!(with.contains("zram under bfq"));
        assert_eq!(with.matches("Bystanders ÷ base").count(), run.settings().len());
    }

    #[test]
    fn names_from_outside_are_escaped() {
        let mut run = sample::run();
        run.command = vec!["<b>".into()];
        run.contenders[0].settings = vec!["<i>".into()];
        run.rows.iter_mut().for_each(|row| row.setting.device = "<i>".into());
        let html = html(&run);
        assert!(!html.contains("<b>") && !html.contains("<i>"));
    }

    #[test]
    fn the_verdict_stands_at_the_top() {
        let mut run = sample::run();
        let html = html(&run);
        let at = |part: &str| html.find(part).unwrap();
        assert!(
            at("<p class=\"verdict\">On loop, for random reads") < at("The machine as it was met")
        );
        assert!(at("The machine as it was met") < at("<dl class=\"facts\">"));
        run.verdict = None;
        assert!(!super::html(&run).contains("class=\"verdict\""));
    }

    #[test]
    fn an_empty_run_is_a_short_report() {
        let mut run = sample::run();
        run.rows.clear();
        run.ratios.clear();
        assert!(html(&run).contains("Bench report"));
    }
}
