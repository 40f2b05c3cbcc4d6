// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell explain`: how one request would be issued and waited for, and why.

use std::path::PathBuf;
use std::thread;

use anyhow::{Result, anyhow};
use dwell::clock;
use dwell::learner::LearnerSummary;
use dwell::monitor::SystemMonitor;
use dwell::policies;
use dwell::policy::{Check, CpuSignal, Looked};
use dwell::{Decision, Kind, Mode, Route};
use dwell_bench::units;
use dwell_host::profile::Beneath;
use dwell_host::settings::{Set, Settings, Waiting};
use dwell_host::stats_page::{self, Device, Snapshot};
use dwell_policy::switchback::MARGIN;
use dwell_policy::{Arm, Backlog, Call, Learned, Load, Wait};

mod facts;
mod reasons;
mod told;

use super::off;
use crate::runtime_dir::runtime_dir;
use crate::show::{self, Screen, Tone, finished};
use crate::{given, places, settings, size};
use facts::facts;
use reasons::reason;
use told::{Checked, Decided, Known, Note, Told};

/// Show how a request would be decided: each check in order, with its values
#[derive(clap::Args)]
pub struct Args {
    /// File or block device
    path: PathBuf,
    /// Size of the request
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size::request_bytes)]
    size: u64,
    /// Bytes in flight ahead of it on the device
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::bytes)]
    backlog: u64,
    /// Requests in flight ahead of it [default: 1 if there is a backlog]
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
    /// CPU use by others, 0–1 or percent [default: as measured now]
    #[arg(long, value_name = "SHARE", value_parser = size::fraction)]
    load: Option<f32>,
    /// CPU use by everybody, compared with the threshold instead of that by others
    #[arg(long, value_name = "SHARE", value_parser = size::fraction)]
    total: Option<f32>,
    /// CPU threshold [default: the monitor's]
    #[arg(long, value_name = "SHARE", value_parser = size::fraction)]
    threshold: Option<f32>,
    /// Requests in flight up to which smartcon spins
    #[arg(long, value_name = "N")]
    queue_limit: Option<u32>,
    /// Wait policy [default: the settings']
    #[arg(long, value_name = "POLICY", value_parser = policy_name)]
    policy: Option<String>,
    /// Explain a write
    #[arg(long, conflicts_with = "sync")]
    write: bool,
    /// Explain a sync
    #[arg(long)]
    sync: bool,
    /// Explain a request through the page cache, as most programs make them
    #[arg(long)]
    buffered: bool,
    /// Explain one of a pipeline's requests, with so many in flight
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    depth: u32,
    /// Print JSON: the decision, the checks, what is known of each mode, and notes
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the request goes around the page cache.
    fn is_direct(&self, beneath: &Beneath) -> bool {
        beneath.direct() && !self.buffered
    }

    /// Whether the load is not to be this machine's.
    fn imagines_load(&self) -> bool {
        self.load.is_some() || self.total.is_some() || self.threshold.is_some()
    }
}

/// Asks the policy, and shows what it looked at.
pub fn run(args: &Args) -> Result<()> {
    given::address(&args.path)?;
    let beneath = places::profiles()?.beneath(&args.path)?;
    let monitor = SystemMonitor::shared_with(places::monitor())
        .map_err(|error| anyhow!("starting the system monitor: {error}"))?;
    let settings = settings(args)?;
    let opening = settings.opening(&args.path, &beneath, None)?;
    let policy = &opening.policy;
    let options = beneath.options().direct(args.is_direct(&beneath));
    let options = opening.applied_to(options).monitor(monitor.clone());
    let file = options.open(&args.path)?;
    let kind = match (args.write, args.sync) {
        (true, _) => Kind::Write,
        (_, true) => Kind::Sync,
        _ => Kind::Read,
    };
    let call = if args.depth > 1 { Call::Async } else { Call::Blocking };
    // The monitor says nothing before a window is over.
    thread::sleep(places::monitor().window);
    let seen = monitor.sample_once();
    let size_bytes = if kind == Kind::Sync { 0 } else { args.size };
    let wait = file.wait_of(kind, size_bytes, call);
    let mut load = if args.imagines_load() { load(args, seen) } else { wait.load };
    load.may_spin |= load.limit_permits && monitor.has_room();
    let mut wait = Wait { backlog: backlog(args), load, sequence: 1, ..wait };
    let known = file.learner().and_then(|learner| learner.told(&wait, args.depth));
    wait.learned = known.map(|known| Learned { arm: known.incumbent, trial: false });
    let mut checks = Vec::new();
    policy.explain(&wait, &mut |check| checks.push(check));
    let decision = policy.choose(&wait);

    let learns = policy.goal().is_some();
    let mut notes = Vec::new();
    if let Some(off) = places::off_switch().off() {
        let what = off::words(&off);
        let text = format!("Dwell is {what}; the kernel serves every request as usual");
        notes.push(Note { about: "off", text });
    }
    let is_off = !notes.is_empty();
    if let (Some(_), Some(why)) = (policy.goal(), monitor.forgets_because()) {
        notes.push(Note { about: "forgets", text: why.to_owned() });
    }
    if let Some(why) = monitor.alone_because() {
        let text = format!("the spinner limit with no other process: {why}");
        notes.push(Note { about: "unshared", text });
    }
    notes.extend(opening.left_alone.clone().map(|text| Note { about: "alone", text }));
    if opening.shadow {
        let text = "decisions are recorded, and the kernel serves every request as usual";
        notes.push(Note { about: "shadow", text: text.to_owned() });
    }
    if let Some(share) = opening.steer {
        let text = format!("only {share} are steered; the kernel serves the others as usual");
        notes.push(Note { about: "part", text });
    }
    if let Some(cap) = settings.spin_cap.as_ref().map(|set| set.value) {
        let text = format!(
            "a process spins away at most {} of its CPUs; beyond that it blocks",
            units::percent(f64::from(cap))
        );
        notes.push(Note { about: "cap", text });
    }
    let devices = beneath.device.iter();
    let gave_up = devices.flat_map(|device| turned_off(&device.kernel_name));
    notes.extend(gave_up.map(|text| Note { about: "off", text }));
    if beneath.profile.is_none() {
        let path = args.path.display();
        let text = match learns {
            true => format!("dwell probe {path} gives what is tried a head start"),
            false => format!("dwell probe {path} measures this device"),
        };
        notes.push(Note { about: "next", text });
    }

    let cost_ns = known.as_ref().map(|known| known.arms[known.incumbent as usize].cost_ns);
    if args.json {
        let told = Told {
            path: args.path.display().to_string(),
            policy: policy.name().to_string(),
            goal: policy.goal().map(|goal| goal.to_string()),
            decision: Decided::of(&decision, reason(&decision, learns, cost_ns)),
            checks: checks.iter().map(|check| Checked::of(check, words(check.looked))).collect(),
            modes: known.iter().flat_map(Known::all).collect(),
            notes,
        };
        return Ok(show::out(&show::json(&told)?)?);
    }
    let screen = Screen::stdout();
    let mut text = verdict(&screen, &decision, learns, cost_ns);
    text += &format!("\n{}", facts(&screen, args, &beneath, &wait, seen));
    let goal = policy.goal().map_or_else(String::new, |goal| format!(", goal {goal}"));
    text += &screen.labelled("policy    ", &format!("{}{goal}", policy.name()));
    text += &format!("\n{}\n", table(&screen, &checks));
    if let Some(known) = known {
        text += &format!("{}\n", arms(&screen, &known));
    }
    let line = |note: &Note| {
        screen.labelled_in(Tone::Warning, &format!("! {:<8}", note.about), &note.text)
    };
    let (first, rest) = notes.split_at(usize::from(is_off));
    let [above, below] = [first, rest].map(|notes| notes.iter().map(line).collect::<String>());
    Ok(show::out(&(above + &text + &below))?)
}

/// The processes of this user in which a device has turned itself off.
fn turned_off(device: &str) -> Vec<String> {
    let told = runtime_dir().ok().and_then(|dir| stats_page::list(&dir).ok()).unwrap_or_default();
    let told = told.into_iter().filter_map(|entry| Some((entry.pid, entry.snapshot.ok()?)));
    let of = |(pid, told): (u32, Snapshot)| {
        let is_off = |own: &&Device| own.name == device && own.regressed_percent > 0;
        let percent = told.devices.iter().find(is_off)?.regressed_percent;
        Some(format!(
            "in process {pid} its requests took {percent} % longer when steered than when held \
             back: it turned itself off there"
        ))
    };
    told.filter_map(of).collect()
}

/// The name of a policy that there is.
pub fn policy_name(name: &str) -> Result<String, String> {
    match policies::by_name(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("no such policy; there are {}", policies::names().join(", "))),
    }
}

/// What settings say, and options in their place.
fn settings(args: &Args) -> Result<Settings> {
    let waiting = Waiting {
        policy: args.policy.clone().map(|policy| Set::option("--policy", policy)),
        cpu_threshold: args.threshold.map(|share| Set::option("--threshold", share)),
        queue_limit: args.queue_limit.map(|limit| Set::option("--queue-limit", limit)),
        cpu_signal: args.total.map(|_| Set::option("--total", CpuSignal::Total)),
        ..Waiting::default()
    };
    Ok(settings::read(None)?.under(Settings { waiting, ..Settings::default() }))
}

fn backlog(args: &Args) -> Backlog {
    let requests = args.requests.unwrap_or(u32::from(args.backlog > 0));
    Backlog { bytes: args.backlog, requests }
}

/// The load that was given, else the one that was seen. On a machine that is only thought of, the
/// spinner limit has room.
fn load(args: &Args, seen: Load) -> Load {
    let others = args.load.unwrap_or_else(|| seen.others());
    let total = args.total.unwrap_or_else(|| seen.total().max(others));
    let threshold = args.threshold.unwrap_or_else(|| seen.threshold());
    let mut load = Load::new(others, total, threshold);
    load.competitors = seen.competitors;
    load.may_spin = seen.may_spin || args.load.is_some() || args.total.is_some();
    load
}

/// What was looked at, what it was held against, and what came of it.
fn table(screen: &Screen, checks: &[Check]) -> String {
    let mut table = screen.table(&["", "check", "found", "allowed", "verdict"], &[0]);
    let mut decided = false;
    for (number, check) in checks.iter().enumerate() {
        let [name, found, allowed] = words(check.looked);
        let decides = !decided && check.decision.is_some();
        let (tone, verdict) = match (decided, check.decision) {
            (true, _) => (Tone::Quiet, "· not asked".to_owned()),
            (false, None) => (Tone::Good, "✓ passed".to_owned()),
            (false, Some(decision)) => {
                (Tone::Strong, format!("► decides: {}", decision.mode.as_str()))
            }
        };
        let body = if decides || decided { tone } else { Tone::Kind(0) };
        let cell = |text: String| match body {
            Tone::Kind(_) => text.into(),
            body => screen.cell(body, text),
        };
        table.add_row([
            cell(format!("{}", number + 1)),
            cell(name),
            cell(found),
            cell(allowed),
            screen.cell(tone, verdict),
        ]);
        decided |= decides;
    }
    finished(&table)
}

/// Name of a check, what it found, and what it allows.
fn words(looked: Looked) -> [String; 3] {
    let bytes_at_most = |threshold: Option<u64>| {
        threshold.map_or("–".to_owned(), |bytes| match show::threshold(bytes).as_str() {
            "none" => "0 B".to_owned(),
            "no limit" => "no limit".to_owned(),
            limit => format!("≤ {limit}"),
        })
    };
    let time = |ns: u64| units::time_ns(ns as f64);
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let [name, found, allowed] = match looked {
        Looked::Policy => ["policy", "", ""].map(str::to_owned),
        Looked::Learned(learned) => {
            let found = learned.map_or("nothing yet", |learned| learned.arm.as_str());
            ["modes compared", found, ""].map(str::to_owned)
        }
        Looked::Probed(probed) => ["device probed".into(), yes(probed), "yes".into()],
        Looked::Class(class) => {
            let class = class.map_or("–", |class| class.as_str());
            ["device class", class, "fast"].map(str::to_owned)
        }
        Looked::Kind(kind) => {
            let kind = match kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Sync => "sync",
            };
            ["kind", kind, "read, write"].map(str::to_owned)
        }
        Looked::Size { bytes, threshold_bytes } => {
            ["size".into(), units::bytes(bytes), bytes_at_most(threshold_bytes)]
        }
        Looked::Backlog { bytes, threshold_bytes } => {
            ["size + backlog".into(), units::bytes(bytes), bytes_at_most(threshold_bytes)]
        }
        Looked::QueueLength { requests, limit } => [
            "requests ahead".into(),
            requests.to_string(),
            limit.map_or("no limit".to_owned(), |limit| format!("≤ {limit}")),
        ],
        Looked::Cpu { signal, used, threshold } => [
            match signal {
                CpuSignal::Others => "CPU use by others".into(),
                CpuSignal::Total => "CPU use by all".into(),
            },
            units::percent(used.into()),
            format!("≤ {}", units::percent(threshold.into())),
        ],
        Looked::Awake(awake) => {
            let found = if awake { "awake" } else { "asleep" };
            ["serving thread", found, "awake"].map(str::to_owned)
        }
        Looked::SpinnerLimit(room) => {
            let found = if room { "has room" } else { "used up" };
            ["spinner limit", found, "room"].map(str::to_owned)
        }
        Looked::Queue(route) => {
            let found = route.map_or("none", Route::as_str);
            ["route to spin on", found, ""].map(str::to_owned)
        }
        Looked::Latency(ns) => {
            let found = if ns == 0 { "unknown".to_owned() } else { time(ns) };
            ["predicted latency".into(), found, "known".into()]
        }
        Looked::Priority { nice, next } => [
            "next to run".into(),
            next.map_or("nobody".to_owned(), |next| format!("nice {next}")),
            format!("nice ≥ {nice}"),
        ],
        Looked::Explore(explores) => ["tries other mode".into(), yes(explores), "no".into()],
        Looked::Switch { latency_ns, switch_ns } => [
            "latency or switch".into(),
            time(latency_ns),
            format!("spins if ≤ {}", time(switch_ns)),
        ],
    };
    [name, found, allowed]
}

/// What was found out about each arm for such requests, and what would change the answer.
fn arms(screen: &Screen, known: &LearnerSummary) -> String {
    let now = clock::now();
    let dash = || "–".to_owned();
    let ago = |at: u64| match at {
        0 => dash(),
        at => format!("{} ago", units::time_ns(now.saturating_sub(at) as f64)),
    };
    let mut table = screen
        .table(&["mode", "cost", "CPU time", "trials", "last tried", "due", "trials cost"], &[]);
    let arms = Arm::ALL.into_iter().zip(&known.arms);
    for (arm, told) in arms.filter(|(arm, _)| known.offered.has(*arm)) {
        let is_best = arm == known.incumbent;
        let due = match told.due_in_ns {
            _ if is_best => "serves".to_owned(),
            0 => "now".to_owned(),
            ns => format!("in {} of use", units::time_ns(ns as f64)),
        };
        let tone = if is_best { Tone::Strong } else { Tone::Quiet };
        let time = |ns: f64| if ns > 0.0 { units::time_ns(ns) } else { dash() };
        table.add_row([
            screen.cell(tone, arm.as_str()),
            time(told.cost_ns).into(),
            time(told.cpu_ns).into(),
            told.trials.into(),
            ago(told.tried).into(),
            due.into(),
            units::time_ns(told.regret_ns).into(),
        ]);
    }
    let best = known.arms[known.incumbent as usize].cost_ns;
    let mut text = finished(&table);
    let cost = match known.cpu_price {
        0.0 => "latency of a request".to_owned(),
        price => format!("latency of a request + {price} × its CPU time"),
    };
    text += &screen.labelled("cost      ", &cost);
    if known.others_above {
        let rule = "a mode that spins must take no more CPU time than one that blocks";
        text += &screen.labelled("others    ", rule);
    }
    text + &screen.labelled("changes   ", &changes(best, known.incumbent, known.switches))
}

/// What would make another mode serve in place of this one, whose cost is 0 while it is unknown.
fn changes(cost_ns: f64, incumbent: Arm, switches: u32) -> String {
    let incumbent = incumbent.as_str();
    let what = match cost_ns > 0.0 {
        true => format!(
            "a mode that costs less than {} in two trials, or a lasting change of what {incumbent} \
             costs",
            units::time_ns(cost_ns * (1.0 - MARGIN)),
        ),
        false => format!("nothing until the cost of {incumbent} is known"),
    };
    match switches {
        1 => format!("{what}; it changed once so far"),
        times => format!("{what}; it changed {times} times so far"),
    }
}

/// The decision and its reason. Where modes are compared, `cost_ns` is that of the one that serves,
/// 0 while it is unknown.
fn verdict(screen: &Screen, decision: &Decision, learns: bool, cost_ns: Option<f64>) -> String {
    let arm = match (decision.route, decision.mode) {
        (Route::Inline, Mode::Spin) => "inline: served on this CPU".to_owned(),
        (route, Mode::Hybrid { sleep_ns }) => format!(
            "route {}, mode hybrid: sleep {}, then spin",
            route.as_str(),
            units::time_ns(sleep_ns as f64)
        ),
        (route, mode) => format!("route {}, mode {}", route.as_str(), mode.as_str()),
    };
    let mut text = screen.labelled("decision  ", &screen.paint(Tone::Strong, &arm));
    let because = format!("{}: {}", decision.reason, reason(decision, learns, cost_ns));
    text += &screen.labelled("because   ", &because);
    let predicted = match decision.expected_ns {
        0 => "no latency can be predicted".to_owned(),
        ns => format!("predicted latency {}", units::time_ns(ns as f64)),
    };
    let limit = match (decision.route, decision.mode) {
        (Route::Inline, _) | (_, Mode::Block) => String::new(),
        _ => format!("; parks after {}", units::time_ns(decision.spin_limit_ns as f64)),
    };
    text + &screen.labelled("expected  ", &(predicted + &limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_unknown_cost_is_compared_with_nothing() {
        assert!(changes(50_000.0, Arm::Call, 1).starts_with("a mode that costs less than 49.0 µs"));
        assert!(changes(0.0, Arm::Call, 6).starts_with("nothing until the cost of call is known"));
    }
}
