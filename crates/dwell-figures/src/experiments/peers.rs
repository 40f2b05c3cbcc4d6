// SPDX-License-Identifier: MIT OR Apache-2.0
//! P1: Dwell against hand-written loops and other runtimes by queue depth.
//!
//! Left to the scheduler, the device's worker moves to and from the contender's CPU, by chance and
//! most often while a program starts. So each row says where the worker runs.

use std::time::Duration;

use anyhow::{Context, Result};
use dwell::DeviceClass;

use super::lab::{both, put, skip_all, subtitle, unless_class};
use super::sampled::{CPU, Step, THROUGHPUT, enter, step, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::contender::{HAND_WRITTEN, is_peer};
use dwell_bench::fixture::State;
use dwell_bench::program::{PREFIX, Peers};
use dwell_bench::result::{Load, Requests, Row};
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Paired, Summary};
use dwell_bench::subject::Subject;
use dwell_bench::trial::{Asked, Question};

const CELLS: [Cell; 6] = [
    Cell { depth: 1, state: State::Apart },
    Cell { depth: 1, state: State::Together },
    Cell { depth: 4, state: State::Apart },
    Cell { depth: 16, state: State::Apart },
    Cell { depth: 32, state: State::Apart },
    Cell { depth: 64, state: State::Apart },
];
const OURS: &str = "adaptive";
/// Shown beside it, not held to anything.
const OUR_OTHERS: [&str; 3] = ["smartcon", "block", "spin"];

#[derive(Clone, Copy)]
struct Cell {
    depth: u32,
    state: State,
}

impl Cell {
    fn name(self) -> String {
        format!("queue depth {}, {}", self.depth, self.state.as_str())
    }

    fn iops(self) -> String {
        format!("{}: IOPS ÷ best peer's", self.name())
    }

    fn cpu(self) -> String {
        format!("{}: CPU per request ÷ that peer's", self.name())
    }

    fn ahead(self) -> String {
        format!("{}: peers ahead in both", self.name())
    }
}

const REGISTERED_DEPTH: u32 = 32;
/// Each part makes and registers its pipeline anew, which a program does once.
const REGISTERED_PART: Duration = Duration::from_millis(400);
const REGISTERED: [&str; 2] = [
    "registered buffers and file: IOPS ÷ without",
    "registered buffers and file: CPU per request ÷ without",
];

/// P1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let others = Peers::find(None).and_then(|peers| peers.list());
    let missing = others.as_ref().err().map(|_| "hand-written loops only: make peers".to_owned());
    let odd = both(unless_class(&subject, DeviceClass::Fast), missing);
    let mut names: Vec<String> = OUR_OTHERS.map(String::from).into();
    // The device has no poll queues.
    names.extend(HAND_WRITTEN.into_iter().filter(|name| *name != "raw-iopoll").map(String::from));
    names.extend(others.unwrap_or_default().iter().map(|name| format!("{PREFIX}{name}")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut panels = Vec::new();
    for (at, cell) in CELLS.into_iter().enumerate() {
        let cases = [cell.iops(), cell.cpu(), cell.ahead()];
        let width = width(result, &cases[0], Load::Idle);
        let requests = Requests { depth: cell.depth, ..Requests::random_reads() };
        let numbers = &[THROUGHPUT, CPU];
        let question = lab.question((Kind::Loop, &subject), &names, width);
        let state = cell.state;
        let question = Question { baseline: OURS, requests, state, numbers, ..question };
        let mut step = step(progress, &cell.name(), at, CELLS.len() + 1);
        let asked = lab.sample(result, &cases, || seen_and_asked(lab, &question, &mut step))?;
        let Some((all, best, asked)) = asked else { continue };
        judge(result, cell, (&all, &best, &asked), odd.clone())?;
        panels.push(panel(cell, &all.rows));
        lab.keep(result)?;
    }
    registered(lab, result, &subject, progress)?;
    // A figure that goes on after a stop has its rows, but not what all peers did.
    Ok((panels.len() == CELLS.len()).then(|| chart(result, panels)))
}

/// What a pipeline gains by memory and a file that the kernel looks up once.
fn registered(
    lab: &mut Lab,
    result: &mut FigureResult,
    subject: &Subject,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let width = width(result, REGISTERED[0], Load::Idle);
    let requests = Requests { depth: REGISTERED_DEPTH, ..Requests::random_reads() };
    let numbers = &[THROUGHPUT, CPU];
    let contenders = &["block:registered=on"];
    let question = lab.question((Kind::Loop, subject), contenders, width);
    let part = if lab.is_hasty() { question.part } else { REGISTERED_PART };
    let question = Question { baseline: "block", requests, numbers, part, ..question };
    let mut step = step(progress, "registered buffers", CELLS.len(), CELLS.len() + 1);
    let asked = lab.sample(result, &REGISTERED, || lab.ask(&question, &lab.means(), &mut step))?;
    let Some(asked) = asked else { return Ok(()) };
    for (number, case) in REGISTERED.into_iter().enumerate() {
        enter(result, case, &asked.sampled, (0, 2, number), None)?;
    }
    lab.keep(result)
}

/// All contenders for a while; the best peer among them, and the default beside it to the end:
/// taking the best of each round anew would hold the default against many draws of noise.
fn seen_and_asked(
    lab: &Lab,
    question: &Question<'_>,
    step: &mut Step<'_, '_>,
) -> Result<Result<(Asked, String, Asked), String>> {
    let all = match lab.scout(question, &lab.means(), step)? {
        Ok((_, all)) => all,
        Err(why) => return Ok(Err(why)),
    };
    let speed = |at: &usize| all.sampled.ratios[*at][0].median;
    let rivals = question.contenders.iter().enumerate().filter(|(_, name)| is_rival(name));
    let best = rivals.map(|(at, _)| at).max_by(|a, b| speed(a).total_cmp(&speed(b)));
    let best = question.contenders[best.context("there is no peer")?];
    let until = lab.after_scouting(question.until);
    let question = Question { contenders: &[best], until, ..*question };
    let asked = lab.ask(&question, &lab.means(), step)?;
    Ok(asked.map(|asked| (all, best.to_owned(), asked)))
}

fn judge(
    result: &mut FigureResult,
    cell: Cell,
    (all, best, asked): (&Asked, &str, &Asked),
    odd: Option<String>,
) -> Result<()> {
    let remark = both(odd.clone(), Some(name(best)));
    enter(result, &cell.iops(), &asked.sampled, (0, 2, 0), remark)?;
    enter(result, &cell.cpu(), &asked.sampled, (0, 2, 1), odd.clone())?;
    let beyond = |(_, ratios): &(&Row, &Vec<Paired>)| ratios[0].low > 1.0 && ratios[1].high < 1.0;
    let others = all.rows[2..].iter().zip(&all.sampled.ratios);
    let ahead_in_both: Vec<String> = others
        .filter(|(row, _)| is_rival(&row.policy))
        .filter(beyond)
        .map(|(row, _)| name(&row.policy))
        .collect();
    let count = Measured::exact(ahead_in_both.len() as f64);
    let who = (!ahead_in_both.is_empty()).then(|| ahead_in_both.join(", "));
    put(result, &cell.ahead(), Some(count), both(odd, who))
}

fn is_rival(policy: &str) -> bool {
    HAND_WRITTEN.contains(&policy) || is_peer(policy)
}

fn name(policy: &str) -> String {
    policy.trim_start_matches(PREFIX).to_owned()
}

/// Fastest first. The second row is our second self.
fn panel(cell: Cell, rows: &[Row]) -> Panel {
    let speed = |row: &Row| row.summary(|round| round.requests_per_second() / 1e3);
    let shown = rows.iter().enumerate().filter(|(at, _)| *at != 1);
    let mut rows: Vec<_> = shown.filter_map(|(_, row)| Some((row, speed(row)?))).collect();
    rows.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
    let dot = |(row, speed): (&Row, Summary)| DotRow {
        label: if row.policy == OURS { format!("{OURS} (ours)") } else { name(&row.policy) },
        measured: Some((speed.median, speed.min, speed.max)),
        target: None,
        paper: None,
        text: format!(
            "{:.1} k/s, {:.1} µs of CPU each",
            speed.median,
            row.median(|round| round.cpu_ns_per_request() / 1e3)
        ),
    };
    Panel {
        axis_label: format!("Requests at {} (1000 per second, log)", cell.name()),
        rows: rows.into_iter().map(dot).collect(),
        mark: None,
    }
}

/// A panel for each: seventeen lines in one picture cannot be told apart.
fn chart(result: &FigureResult, panels: Vec<Panel>) -> String {
    Dots {
        title: "Requests per second and CPU time of each, by queue depth".into(),
        subtitle: subtitle(result, "4 KiB random reads"),
        dots: "median; bar: slowest to fastest part".into(),
        panels,
    }
    .svg()
}
