// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab trace info`: what a trace is like, as tables, charts and JSON.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use dwell_bench::chart::{Axis, Lines, Look, Point, Scale, Series, stacked};
use dwell_bench::units;
use dwell_trace::info::{self, LINE_BYTES, PAGE_BYTES};
use dwell_trace::reuse::ReuseDistances;
use dwell_trace::{AccessKind, Reader};
use serde_json::json;

use crate::progress::Progress;
use crate::{given, show};

/// Show footprint, working set over time, mix of instructions and reuse distances
#[derive(Args)]
pub struct Info {
    /// The trace
    trace: PathBuf,
    /// Exact reuse distances, also of long traces
    #[arg(long)]
    exact: bool,
    /// Only what needs no reading of events
    #[arg(long, conflicts_with_all = ["exact", "svg"])]
    brief: bool,
    /// Write the charts to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Info {
    pub(super) fn run(&self) -> Result<()> {
        let mut trace = super::open(&self.trace)?;
        if self.brief {
            return self.brief(&trace);
        }
        given::output(self.svg.as_deref())?;
        let mut progress = Progress::of("info");
        let info = info::info(&mut trace, self.exact, &mut |share| {
            progress.show("reading the trace", share);
        });
        progress.finish();
        let info = info?;
        if let Some(path) = &self.svg {
            let name = self.trace.file_name().unwrap_or_default().to_string_lossy();
            std::fs::write(path, charts(&name, &info))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = match self.json {
            true => show::json(&as_json(&trace, &info))?,
            false => tables(&trace, &info),
        };
        Ok(show::out(&text)?)
    }

    fn brief(&self, trace: &Reader) -> Result<()> {
        let text = match self.json {
            true => show::json(&json!({
                "about": trace.about(),
                "instructions": trace.instructions(),
                "accesses": trace.accesses(),
                "cut_short_at": trace.cut_short_at(),
            }))?,
            false => head(trace),
        };
        Ok(show::out(&text)?)
    }
}

fn head(trace: &Reader) -> String {
    let screen = show::Screen::stdout();
    let about = trace.about();
    let mut text = screen.labelled("command   ", &show::one_line(&about.command.join(" ")));
    text += &screen.labelled("recorded  ", &format!("{}, process {}", about.producer, about.pid));
    text += &format!(
        "{} instructions, {} accesses, {} packed, {} skipped before\n",
        units::count(trace.instructions()),
        units::count(trace.accesses()),
        units::bytes(trace.packed_bytes()),
        units::count(about.skipped_instructions),
    );
    text
}

fn tables(trace: &Reader, info: &info::Info) -> String {
    let screen = show::Screen::stdout();
    let mut text = head(trace) + "\n";
    let mut table = screen.table(&["footprint", "", ""], &[1]);
    let pages = |count: u64| [units::count(count), units::bytes(count * PAGE_BYTES)];
    let mut row = |name: &str, [count, size]: [String; 2]| {
        table.add_row([name, &count, &size]);
    };
    row("data pages", pages(info.data_pages));
    row("of them never written", pages(info.read_only_pages));
    row("code pages", pages(info.code_pages));
    row("static instructions", [units::count(info.static_instructions), String::new()]);
    row("bytes accessed", [String::new(), units::bytes(info.accessed_bytes)]);
    row("threads", [info.threads.to_string(), String::new()]);
    row("calls of the kernel", [info.syscalls.values().sum::<u64>().to_string(), String::new()]);
    text += &(show::finished(&table) + "\n");

    let mut table = screen.table(&["mix", "executed", "share"], &[1, 2]);
    let mix = &info.mix;
    for (name, count) in [
        ("touch memory", mix.memory),
        ("loads", info.accesses_of(AccessKind::Load)),
        ("stores", info.accesses_of(AccessKind::Store)),
        ("load and store at once", info.accesses_of(AccessKind::Modify)),
        ("conditional jumps", mix.branches),
        ("other jumps", mix.jumps),
        ("calls", mix.calls),
        ("returns", mix.returns),
        ("vector", mix.vector),
        ("not decoded", info.instructions - mix.decoded),
    ] {
        let share = count as f64 / info.instructions.max(1) as f64;
        table.add_row([name.into(), units::count(count), format!("{:.1} %", 100.0 * share)]);
    }
    text += &(show::finished(&table) + "\n");

    let sampling = match info.lines.one_in {
        1 => "exact".to_owned(),
        some => format!("of one in {some} places, chosen by hash"),
    };
    text += &format!("reuse distances, {sampling}: share of accesses that would miss\n");
    let mut table = screen.table(&["memory, LRU", "lines of 64 B", "pages of 4 KiB"], &[0, 1, 2]);
    for shift in (14..=34).step_by(2) {
        let bytes = 1u64 << shift;
        let miss = |reuse: &ReuseDistances, unit: u64| match bytes / unit {
            places if places < reuse.one_in * 4 => "-".to_owned(),
            places => format!("{:.3} %", 100.0 * reuse.miss_ratio(places)),
        };
        let row = [miss(&info.lines, LINE_BYTES), miss(&info.pages, PAGE_BYTES)];
        table.add_row([units::bytes(bytes), row[0].clone(), row[1].clone()]);
        if bytes > info.data_pages * PAGE_BYTES {
            break;
        }
    }
    text + &show::finished(&table)
}

fn point(x: f64, y: f64) -> Point {
    Point { x, y, low: y, high: y, stroke: None }
}

fn charts(name: &str, info: &info::Info) -> String {
    let mib = |pages: u64| (pages * PAGE_BYTES) as f64 / f64::from(1 << 20);
    let mut sum = 0;
    let (mut touched, mut so_far) = (Vec::new(), Vec::new());
    for window in &info.windows {
        let x = window.from_instruction as f64 / 1e6;
        sum += window.new_pages;
        touched.push(point(x, mib(window.data_pages)));
        so_far.push(point(x, mib(sum)));
    }
    let x = Axis::covering("instructions, millions", Scale::Linear, touched.iter().map(|p| p.x));
    let series = |name: &str, look: usize, points: Vec<Point>| Series {
        name: name.into(),
        look: Look(look),
        points,
    };
    let y = Axis::covering("data, MiB", Scale::Linear, so_far.iter().map(|p| p.y));
    let working_set = Lines {
        title: format!("{name}: working set"),
        subtitle: format!("pages of 4 KiB touched in each of {} parts", info.windows.len()),
        x,
        y,
        series: vec![series("in this part", 0, touched), series("since the start", 3, so_far)],
        marks: Vec::new(),
    };
    let curve = |reuse: &ReuseDistances, unit: u64| -> Vec<Point> {
        let sizes = (12..40).map(|shift| 1u64 << shift);
        let usable = sizes.filter(|bytes| bytes / unit >= reuse.one_in * 4);
        let until = usable.take_while(|bytes| bytes / 4 <= info.data_pages * PAGE_BYTES);
        until.map(|bytes| point(bytes as f64, 100.0 * reuse.miss_ratio(bytes / unit))).collect()
    };
    let (lines, pages) = (curve(&info.lines, LINE_BYTES), curve(&info.pages, PAGE_BYTES));
    let sizes = lines.iter().chain(&pages).map(|p| p.x as u64);
    let misses = lines.iter().chain(&pages).map(|p| p.y.max(1e-3));
    let sampled = match info.lines.one_in {
        1 => "exact".to_owned(),
        some => format!("from one in {some} places"),
    };
    let reuse = Lines {
        title: format!("{name}: accesses that an LRU memory would miss"),
        subtitle: format!("from reuse distances, {sampled}"),
        x: Axis::sizes("memory", sizes),
        y: Axis::covering("misses, %", Scale::Log, misses),
        series: vec![series("lines of 64 B", 0, lines), series("pages of 4 KiB", 3, pages)],
        marks: Vec::new(),
    };
    stacked(&[working_set.svg(), reuse.svg()])
}

fn as_json(trace: &Reader, info: &info::Info) -> serde_json::Value {
    let mix = &info.mix;
    let reuse = |reuse: &ReuseDistances, unit: u64| {
        json!({
            "unit_bytes": unit,
            "followed_one_in": reuse.one_in,
            "first_touches": reuse.first,
            "touches_by_log2_of_distance": reuse.histogram,
        })
    };
    let windows = info.windows.iter().map(|window| {
        json!({
            "from_instruction": window.from_instruction,
            "data_pages": window.data_pages,
            "new_pages": window.new_pages,
        })
    });
    json!({
        "about": trace.about(),
        "cut_short_at": trace.cut_short_at(),
        "packed_bytes": trace.packed_bytes(),
        "instructions": info.instructions,
        "blocks": info.blocks,
        "loads": info.accesses_of(AccessKind::Load),
        "stores": info.accesses_of(AccessKind::Store),
        "modifies": info.accesses_of(AccessKind::Modify),
        "not_performed": info.not_performed,
        "accessed_bytes": info.accessed_bytes,
        "threads": info.threads,
        "syscalls": info.syscalls,
        "static_instructions": info.static_instructions,
        "page_bytes": PAGE_BYTES,
        "data_pages": info.data_pages,
        "read_only_pages": info.read_only_pages,
        "code_pages": info.code_pages,
        "mix": {
            "decoded": mix.decoded,
            "memory": mix.memory,
            "conditional_jumps": mix.branches,
            "other_jumps": mix.jumps,
            "calls": mix.calls,
            "returns": mix.returns,
            "vector": mix.vector,
            "system": mix.system,
        },
        "windows": windows.collect::<Vec<_>>(),
        "reuse": [reuse(&info.lines, LINE_BYTES), reuse(&info.pages, PAGE_BYTES)],
    })
}
