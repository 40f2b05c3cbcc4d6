// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run says about Dwell on these devices, in a sentence.
//!
//! Judged is the throughput under the default policy by the rules of [`crate::verdict::Verdict`]:
//! by the whole interval. An interval that lies on both sides of 1 says nothing, and the sentence
//! says so. Nor do few rounds, or short batches while anything else ran: which contender then got
//! the CPU is luck.

pub mod each;

use crate::result::{Direction, Load, Metric, Pattern, Ratio, Requests, Run, Setting, in_order};
use crate::stats::Paired;
use crate::units;
use crate::verdict::{Better, Target, Verdict};

/// The policy of whoever chooses none.
pub(crate) const DEFAULT_POLICY: &str = "adaptive";
/// With fewer rounds the 95 % interval is no more than their range.
const LEAST_ROUNDS: usize = 6;
/// More settings of a device than these are counted, not told one by one.
const TOLD_SETTINGS: usize = 2;
/// So many ratios are told of each kind.
const TOLD_RATIOS: usize = 2;
/// Where anything else runs the CPU is handed out in slices of milliseconds; batches this long have
/// many.
const LONG_BATCH_NS: f64 = 900e6;

/// What an interval says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    Gains,
    Same,
    Loses,
    Open,
}

impl Finding {
    fn of(ratio: &Paired, steady: bool) -> Self {
        let judged = |target: Target| target.judge(ratio.low, ratio.high);
        // All of it on one side: it misses a bound of 1 on the other side as a whole.
        match () {
            () if ratio.rounds < LEAST_ROUNDS || !steady => Finding::Open,
            () if judged(Target::CostsNothing(Better::Higher)) == Verdict::Equivalent => {
                Finding::Same
            }
            () if judged(Target::AtMost(1.0)) == Verdict::Missed => Finding::Gains,
            () if judged(Target::AtLeast(1.0)) == Verdict::Missed => Finding::Loses,
            () => Finding::Open,
        }
    }
}

/// One size in one setting.
struct Cell<'r> {
    setting: &'r Setting,
    size_bytes: u64,
    ratio: Paired,
    /// Typical length of a batch.
    batch_ns: f64,
    /// Whether anything that is known of ran beside it.
    beside: bool,
    finding: Finding,
}

impl<'r> Cell<'r> {
    fn new(run: &'r Run, ratio: &'r Ratio) -> Self {
        let Ratio { setting, size_bytes, paired, .. } = ratio;
        let row = run.row(setting, *size_bytes, &ratio.policy);
        let batch_ns = row.map_or(0.0, |row| row.median(|round| round.wall_ns as f64));
        let beside = setting.load != Load::Idle || is_quiet(run) == Some(false);
        let finding = Finding::of(paired, !beside || batch_ns >= LONG_BATCH_NS);
        Cell { setting, size_bytes: *size_bytes, ratio: *paired, batch_ns, beside, finding }
    }

    fn is_short(&self) -> bool {
        self.beside && self.batch_ns < LONG_BATCH_NS
    }
}

fn is_quiet(run: &Run) -> Option<bool> {
    run.conditions.and_then(|met| met.quiet)
}

impl Cell<'_> {
    fn size(&self) -> String {
        units::bytes(self.size_bytes)
    }

    fn interval(&self) -> String {
        let Paired { median, low, high, .. } = self.ratio;
        format!("{} [{low:.2}–{high:.2}]", units::ratio(median))
    }

    /// How far the whole interval is from 1.
    fn support(&self) -> f64 {
        match self.finding {
            Finding::Loses => self.ratio.high.recip(),
            _ => self.ratio.low,
        }
    }
}

/// The verdict of a run whose ratios are taken against `baseline`.
pub fn sentence(run: &Run, baseline: &str) -> String {
    let of_interest = run.ratios.iter().filter(|ratio| {
        (ratio.policy.as_str(), ratio.baseline.as_str(), ratio.metric)
            == (DEFAULT_POLICY, baseline, Metric::Throughput)
    });
    let cells: Vec<Cell> = of_interest.map(|ratio| Cell::new(run, ratio)).collect();
    let measured = |policy: &str| run.rows.iter().any(|row| row.policy == policy);
    if !measured(DEFAULT_POLICY) {
        return format!(
            "This run says nothing about dwell: {DEFAULT_POLICY}, the policy that it takes by \
             default, was not measured."
        );
    }
    if cells.is_empty() {
        return format!("This run says nothing about dwell: nothing of {baseline} to judge it by.");
    }
    let devices = in_order(cells.iter().map(|cell| cell.setting.device.as_str()));
    let mut text = Vec::new();
    for device in &devices {
        let cells: Vec<&Cell> =
            cells.iter().filter(|cell| cell.setting.device == *device).collect();
        let place = place(run, device, devices.len() == 1);
        text.push(Place { run, baseline, cells }.sentence(&place));
    }
    let open: Vec<&Cell> = cells.iter().filter(|cell| cell.finding == Finding::Open).collect();
    if !open.is_empty() {
        text.push(remedy(run, &open));
    }
    text.join(" ")
}

fn place(run: &Run, device: &str, only: bool) -> String {
    let emulated =
        run.rows.iter().any(|row| row.setting.device == device && row.emulated.is_some());
    match (only, emulated) {
        (true, false) => "On this device".into(),
        (true, true) => "On this emulated device".into(),
        (false, false) => format!("On {device}"),
        (false, true) => format!("On {device}, which is emulated"),
    }
}

/// What was found on one device.
struct Place<'r> {
    run: &'r Run,
    baseline: &'r str,
    cells: Vec<&'r Cell<'r>>,
}

impl Place<'_> {
    fn sentence(&self, place: &str) -> String {
        let settings = in_order(self.cells.iter().map(|cell| cell.setting));
        let against = match self.baseline {
            "block" => String::new(),
            other => format!(" against {other}"),
        };
        if settings.len() > TOLD_SETTINGS {
            return self.counted(&format!("{place}{against}"));
        }
        let works = in_order(settings.iter().map(|setting| setting.workload()));
        let sizes = in_order(self.cells.iter().map(|cell| cell.size_bytes));
        let size = (sizes.len() == 1).then(|| units::bytes(sizes[0]));
        let what = match (settings[0].requests(), works.len()) {
            (Some(requests), 1) => self::what(&requests, settings[0], size.as_deref()),
            _ => size.as_ref().map_or(String::new(), |size| format!(", for {size}")),
        };
        let when: Vec<String> = (settings.iter())
            .map(|setting| match works.len() {
                1 => self.when(setting),
                _ => format!("{}, {}", self.when(setting), setting.workload()),
            })
            .collect();
        let of = |setting: &Setting| -> Vec<&Cell> {
            self.cells.iter().copied().filter(|cell| cell.setting == setting).collect()
        };
        let mut told = Vec::new();
        let mut open = Vec::new();
        for (setting, when) in settings.iter().zip(&when) {
            let cells = of(setting);
            let claims = claims(&cells, setting.load, size.is_none());
            if let Some(unsure) = unsure(&cells, when, size.is_none()) {
                open.push(unsure);
            }
            if !claims.is_empty() {
                told.push((claims, when));
            }
        }
        let unsure = format!("cannot tell {}", series(open.iter().map(String::as_str), " nor "));
        let head = format!("{place}{what}{against}");
        if told.is_empty() {
            return format!(
                "{head}, this run {}.",
                unsure.replacen("tell", "tell what dwell does", 1)
            );
        }
        let claims = match size {
            Some(_) => {
                let all = told.iter().map(|(claims, when)| format!("{claims} {when}"));
                format!("dwell {}", all.collect::<Vec<_>>().join(" and "))
            }
            None => {
                let each = told.iter().enumerate().map(|(at, (claims, when))| {
                    format!("{when} {} {claims}", if at == 0 { "dwell" } else { "it" })
                });
                each.collect::<Vec<_>>().join("; ")
            }
        };
        match open.is_empty() {
            true => format!("{head}, {claims}."),
            false => format!("{head}, {claims}; this run {unsure}."),
        }
    }

    /// Beside what something was measured. Idle is only what was seen to be so.
    fn when(&self, setting: &Setting) -> String {
        match (setting.load, is_quiet(self.run)) {
            (Load::Idle, Some(true)) => "when idle",
            (Load::Idle, Some(false)) => "beside what else ran here",
            (Load::Idle, None) => "with no load added",
            (Load::Cpu, _) => "beside CPU load",
            (Load::Io, _) => "beside I/O load",
            (Load::Arithmetic, _) => "beside arithmetic processes",
            (Load::Readers, _) => "beside disk readers",
            (Load::Bystander, _) => "beside bystanders",
        }
        .into()
    }

    /// Many settings as counts, with the clearest of each kind.
    fn counted(&self, place: &str) -> String {
        let of = |finding| self.cells.iter().copied().filter(move |cell| cell.finding == finding);
        let clearest = |finding| -> String {
            let best = of(finding).max_by(|a, b| a.support().total_cmp(&b.support()));
            best.map_or(String::new(), |cell| {
                let (size, when) = (cell.size(), self.when(cell.setting));
                format!(" ({}: {size}, {when}, {})", cell.interval(), cell.setting.workload())
            })
        };
        let all = self.cells.len();
        let counts = [
            (Finding::Gains, "gains in"),
            (Finding::Loses, "loses in"),
            (Finding::Same, "makes no difference in"),
        ];
        let told = counts.into_iter().filter(|(finding, _)| of(*finding).next().is_some());
        let mut parts: Vec<String> = told
            .map(|(finding, verb)| {
                let example =
                    if finding == Finding::Same { String::new() } else { clearest(finding) };
                format!("{verb} {}{example}", of(finding).count())
            })
            .collect();
        let open = of(Finding::Open).count();
        if open > 0 {
            parts.push(format!("does what this run cannot tell in {open}"));
        }
        format!(
            "{place}, of {all} cases, dwell {}.",
            series(parts.iter().map(String::as_str), " and ")
        )
    }
}

/// `for random 4 KiB reads at queue depth 16`.
fn what(requests: &Requests, setting: &Setting, size: Option<&str>) -> String {
    let pattern = match requests.pattern {
        Pattern::Seq => "sequential",
        Pattern::Rand => "random",
    };
    let direction = match requests.direction {
        Direction::Read => "reads",
        Direction::Write => "writes",
    };
    let mut text = match size {
        Some(size) => format!(", for {pattern} {size} {direction}"),
        None => format!(", for {pattern} {direction}"),
    };
    if requests.depth != 1 {
        text += &format!(" at queue depth {}", requests.depth);
    }
    if let Some(scheduler) = &setting.scheduler {
        text += &format!(" under {scheduler}");
    }
    text
}

/// The certain findings of one setting, without its load; empty if there are none.
fn claims(cells: &[&Cell<'_>], load: Load, sized: bool) -> String {
    let of = |finding| -> Vec<&Cell> {
        cells.iter().copied().filter(|cell| cell.finding == finding).collect()
    };
    let mut parts = Vec::new();
    for (finding, verb) in [(Finding::Gains, "gains"), (Finding::Loses, "loses:")] {
        let mut cells = of(finding);
        let count = cells.len();
        cells.sort_by(|a, b| b.support().total_cmp(&a.support()));
        cells.truncate(TOLD_RATIOS);
        cells.sort_by_key(|cell| cell.size_bytes);
        let told = cells.iter().map(|cell| match sized {
            true => format!("{} at {}", cell.interval(), cell.size()),
            false => cell.interval(),
        });
        let mut told: Vec<String> = told.collect();
        if count > told.len() {
            let more = count - told.len();
            told.push(format!("at {more} more size{}", if more == 1 { "" } else { "s" }));
        }
        if !told.is_empty() {
            parts.push(format!("{verb} {}", series(told.iter().map(String::as_str), " and ")));
        }
    }
    let same = of(Finding::Same);
    if !same.is_empty() {
        let verb = if load == Load::Idle { "makes no difference" } else { "loses nothing" };
        let sizes = if sized { format!(" at {}", sizes(&same)) } else { String::new() };
        parts.push(format!("{verb}{sizes}"));
    }
    series(parts.iter().map(String::as_str), ", and ")
}

/// The open findings of one setting; `None` if all are certain.
fn unsure(cells: &[&Cell<'_>], when: &str, sized: bool) -> Option<String> {
    let is_open = |cell: &&Cell<'_>| cell.finding == Finding::Open;
    let open: Vec<&Cell> = cells.iter().copied().filter(is_open).collect();
    let ratio = match open[..] {
        [] => return None,
        [only] => format!(" ({})", only.interval()),
        _ => String::new(),
    };
    Some(match sized {
        true if open.len() > 1 && open.len() == cells.len() => format!("at any size {when}"),
        true => format!("at {} {when}{ratio}", sizes(&open)),
        false => format!("{when}{ratio}"),
    })
}

fn sizes(cells: &[&Cell<'_>]) -> String {
    let sizes: Vec<String> = cells.iter().map(|cell| cell.size()).collect();
    series(sizes.iter().map(String::as_str), " and ")
}

/// `a, b and c`.
fn series<'a>(items: impl Iterator<Item = &'a str>, last: &str) -> String {
    let items: Vec<&str> = items.collect();
    match items.split_last() {
        Some((end, rest)) if !rest.is_empty() => rest.join(", ") + last + end,
        Some((only, _)) => (*only).to_owned(),
        None => String::new(),
    }
}

/// What would tell.
fn remedy(run: &Run, open: &[&Cell<'_>]) -> String {
    let rounds = open.iter().map(|cell| cell.ratio.rounds).min().unwrap_or(0);
    if rounds < LEAST_ROUNDS {
        let plural = if rounds == 1 { "" } else { "s" };
        return match run.ended {
            Some(_) => format!("It ended early: {rounds} round{plural} cannot tell, let it end."),
            None => format!("{rounds} round{plural} cannot tell: take {} or more (--rounds).", 7),
        };
    }
    let noisy = is_quiet(run) == Some(false);
    if let Some(cell) = open.iter().find(|cell| cell.is_short()) {
        let quieter = if noisy { "a quieter machine or " } else { "" };
        let batch = units::time_ns(cell.batch_ns);
        return format!(
            "Batches of {batch} tell nothing beside other work: {quieter}longer ones (--batch-ms \
             1000) would."
        );
    }
    let quieter = if noisy { "A quieter machine or more" } else { "More" };
    // Four times as many make an interval half as wide.
    format!("{quieter} rounds (--rounds {}) would tell.", (4 * rounds).min(1000))
}

#[cfg(test)]
mod tests;
