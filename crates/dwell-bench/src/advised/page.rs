// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as one HTML file: the sentences, a bar for each kind of wait, the figures.

use dwell_advise::{Parts, Total};
use maud::{Markup, html};

use super::Report;
use crate::report::{facts, page};
use crate::units;

/// Colours that stay apart for every kind of sight, on light and on dark, in the parts' order.
const COLOURS: [&str; 6] = ["#b5651d", "#3b78b5", "#8a6fb0", "#d9a400", "#c0392b", "#8a8f98"];
/// Bars that are drawn.
const BARS: usize = 16;
const WIDTH: f64 = 1000.0;

/// The whole page.
pub fn html(report: &Report) -> String {
    let body = html! {
        header {
            h1 { "Where the storage time goes" }
            @for advice in &report.advice { p.verdict { (advice.text.replace(" %", "\u{a0}%")) } }
            @if let Some(confirmed) = &report.confirmed { p.verdict { (confirmed.sentence()) } }
            p { (report.aside()) "." }
            (facts(&report.machine))
        }
        @for note in &report.seen.notes { p.note { (note) } }
        @if !report.totals.is_empty() {
            section {
                h2 { "Where it went" }
                (legend())
                div.scroll { table.figures.waits { tbody {
                    @for total in drawn(report) { (bar(total, longest(report))) }
                } } }
            }
            (figures(&report.totals))
            (devices(report))
        }
        section.reading {
            h2 { "How to read this" }
            p { "A wait begins when a thread sleeps and ends when it runs again. Its time is that of the \
                request, or of the kernel thread, that woke it." }
            p { "Waking is from the wake-up until the thread runs on a CPU that was idle: that is what \
                spinning saves. On a busy CPU another program ran meanwhile, and spinning saves nothing." }
            p { "Requests of others on the same device are not waits of this program. The device's \
                figures count them." }
        }
    };
    page("Dwell: where the storage time goes", &body)
}

/// The kinds of waits that took a hundredth of the longest's time or more.
fn drawn(report: &Report) -> impl Iterator<Item = &Total> {
    let least = longest(report) / 100;
    report.totals.iter().take(BARS).filter(move |total| total.parts.total_ns() >= least)
}

fn longest(report: &Report) -> u64 {
    report.totals.iter().map(|total| total.parts.total_ns()).max().unwrap_or(1).max(1)
}

fn legend() -> Markup {
    html! {
        p {
            @for ((name, _), colour) in Parts::default().named().iter().zip(COLOURS) {
                span style="white-space:nowrap;margin-right:1.2em" {
                    span style=(format!("display:inline-block;width:.8em;height:.8em;background:{colour};margin-right:.4em")) {}
                    (name)
                }
            }
        }
    }
}

/// One kind of wait: its name, and all its time in parts.
fn bar(total: &Total, longest_ns: u64) -> Markup {
    let scale = WIDTH / longest_ns as f64;
    let mut left = 0.0;
    let parts: Vec<(&str, u64, f64, f64, &str)> = total
        .parts
        .named()
        .into_iter()
        .zip(COLOURS)
        .map(|((name, ns), colour)| {
            let (x, width) = (left, ns as f64 * scale);
            left += width;
            (name, ns, x, width, colour)
        })
        .collect();
    let name = format!("{} {}, {}", total.device, total.operation.name(), total.issued.name());
    html! {
        tr {
            th scope="row" { (name) }
            td style="width:100%;min-width:8em" {
                svg viewBox=(format!("0 0 {WIDTH} 24")) preserveAspectRatio="none" role="img"
                    aria-label=(name) style="display:block;width:100%;height:1.4em" {
                    @for (name, ns, x, width, colour) in &parts {
                        rect x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}")) height="24" fill=(colour) {
                            title { (name) " " (units::time_ns(*ns as f64)) ", " (units::time_ns(*ns as f64 / total.count.max(1) as f64)) " a wait" }
                        }
                    }
                }
            }
            td { (units::time_ns(total.parts.total_ns() as f64)) }
        }
    }
}

fn figures(totals: &[Total]) -> Markup {
    let head = Parts::default().named();
    html! {
        section {
            h2 { "All kinds of waits" }
            div.scroll { table.figures {
                thead { tr {
                    th { "Device" } th { "Operation, issued by" } th { "Waits" } th { "Mean" } th { "p99 below" } th { "Of the threads' time" }
                    @for (name, _) in &head { th { (name) } }
                } }
                tbody {
                    @for total in totals {
                        @let each = |ns: u64| units::time_ns(ns as f64 / total.count.max(1) as f64);
                        tr {
                            th scope="row" { (total.device) }
                            td.name { (total.operation.name()) ", " (total.issued.name()) }
                            td { (units::count(total.count)) }
                            td { (units::time_ns(total.mean_ns() as f64)) }
                            td { (units::time_ns(total.quantile_ns(0.99) as f64)) }
                            td { (units::percent(total.share)) }
                            @for (_, ns) in total.parts.named() { td { (each(ns)) } }
                        }
                    }
                }
            } }
        }
    }
}

fn devices(report: &Report) -> Markup {
    let waited = |device: &str| report.totals.iter().any(|total| total.device == device);
    html! {
        section {
            h2 { "What the devices did, for everybody" }
            div.scroll { table.figures {
                thead { tr {
                    th { "Device" } th { "Operation" } th { "Size" } th { "Requests" } th { "Queued" } th { "Device time" } th { "In flight" }
                } }
                tbody {
                    @for load in report.seen.devices.iter().filter(|load| waited(&load.device)) {
                        tr {
                            th scope="row" { (load.device) }
                            td.name { (load.operation.name()) }
                            td { (units::bytes(load.size_bytes)) }
                            td { (units::count(load.count)) }
                            td { (units::time_ns(load.queue_ns as f64)) }
                            td { (units::time_ns(load.device_ns as f64)) }
                            td { (units::figure(load.in_flight)) }
                        }
                    }
                }
            } }
        }
    }
}
