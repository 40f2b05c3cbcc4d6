// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell top`: every process of this user under Dwell, and what it does.

mod waits;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use comfy_table::Cell;
use dwell::off::Off;
use dwell_advise::ProcessTotal;
use dwell_bench::units;
use dwell_host::stats_page::{Device, Look, Rates, Seen, Watch};
use serde::Serialize;

use self::waits::Waits;
use super::off;
use crate::exporter::{Listener, write_file};
use crate::runtime_dir::runtime_dir;
use crate::show::{self, Screen, Tone, finished};
use crate::signals::Signals;
use crate::terminal::Pages;
use crate::{given, openmetrics, places};

/// Watch your processes under Dwell: device, policy, requests, latency, spinning
///
/// q or Ctrl-C ends it. If stdout is not a terminal, it prints the table once.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON once: {interval_s, processes, unreadable, off}
    #[arg(long)]
    json: bool,
    /// Show the table, or write the metrics, once
    #[arg(long)]
    once: bool,
    /// Also show where the storage time of every process goes; needs root
    #[arg(long)]
    waits: bool,
    /// Seconds between two readings
    #[arg(long, default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Write OpenMetrics text to FILE at each interval, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    openmetrics: Option<PathBuf>,
    /// Serve OpenMetrics text at GET /metrics: ADDRESS:PORT or unix:PATH. Everybody who reaches the
    /// address can read command lines and counts
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["json", "once"], value_parser = place)]
    listen: Option<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "no number of seconds".to_owned())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("must be 0.1 to 3600 seconds".to_owned()),
    }
}

fn place(text: &str) -> Result<String, String> {
    let port =
        |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match text.starts_with("unix:") || port(text) {
        true => Ok(text.to_owned()),
        false => Err("name ADDRESS:PORT or unix:PATH".to_owned()),
    }
}

#[derive(Serialize)]
struct Told<'a> {
    interval_s: f64,
    processes: &'a [Seen],
    unreadable: Vec<Unreadable>,
    /// Waits of every process for storage, with --waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<&'a [ProcessTotal]>,
    /// The switch that turned Dwell off, if one did.
    off: Option<Off>,
}

#[derive(Serialize)]
struct Unreadable {
    path: String,
    error: String,
}

/// Looks.
pub fn run(args: &Args) -> Result<()> {
    let mut watch = Watch::new(runtime_dir()?);
    given::output(args.openmetrics.as_deref())?;
    let mut waits = args.waits.then(Waits::start).transpose()?;
    if args.openmetrics.is_some() || args.listen.is_some() {
        return export(args, &mut watch, waits);
    }
    let mut look = watch.look()?;
    let screen = Screen::stdout();
    if !args.json && !args.once && std::io::stdout().is_terminal() {
        return refresh(args, &mut watch, waits, look);
    }
    // Two looks, so that there is something between them.
    if !look.processes.is_empty() || waits.is_some() {
        thread::sleep(args.interval);
        look = watch.look()?;
    }
    if let Some(waits) = &mut waits {
        waits.look()?;
    }
    let text = match args.json {
        true => {
            let told = Told {
                interval_s: args.interval.as_secs_f64(),
                processes: &look.processes,
                unreadable: look.unreadable.iter().map(unreadable).collect(),
                waits: waits.as_ref().map(Waits::totals),
                off: places::off_switch().off(),
            };
            show::json(&told)?
        }
        false => picture(&screen, &look, waits.as_ref()),
    };
    Ok(show::out(&text)?)
}

fn unreadable((path, error): &(PathBuf, dwell::Error)) -> Unreadable {
    Unreadable { path: path.display().to_string(), error: error.to_string() }
}

fn refresh(args: &Args, watch: &mut Watch, mut waits: Option<Waits>, first: Look) -> Result<()> {
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    let pages = Pages::turn()?;
    let mut look = first;
    loop {
        // The window may have another width than before.
        pages.show(&picture(&Screen::stdout(), &look, waits.as_ref()))?;
        if !pages.wait(args.interval, || signals.stop.load(Ordering::Relaxed))? {
            return Ok(());
        }
        look = watch.look()?;
        if let Some(waits) = &mut waits {
            waits.look()?;
        }
    }
}

/// Writes the file, serves the place, until a signal comes.
fn export(args: &Args, watch: &mut Watch, mut waits: Option<Waits>) -> Result<()> {
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    let listener = args.listen.as_deref().map(Listener::bind).transpose()?;
    if let Some(listener) = &listener {
        show::out(&format!("{}\n", listener.place()))?;
    }
    let mut text = move || -> Result<String> {
        let sums = waits.as_mut().map(Waits::sums).transpose()?.unwrap_or_default();
        Ok(openmetrics::text(watch.look()?.processes, sums)?)
    };
    let step = args.interval.min(Duration::from_millis(200));
    if args.waits {
        // Nothing was waited for before the trace began.
        thread::sleep(args.interval);
    }
    loop {
        if let Some(path) = &args.openmetrics {
            write_file(path, &text()?)?;
            if args.once {
                return Ok(());
            }
        }
        let mut waited = Duration::ZERO;
        while waited < args.interval {
            match &listener {
                Some(listener) => listener.serve(step, &mut text)?,
                None => thread::sleep(step),
            }
            if signals.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            waited += step;
        }
    }
}

const HEADS: [&str; 11] = [
    "pid",
    "command",
    "device",
    "class",
    "policy",
    "requests",
    "p99",
    "spins",
    "avoided",
    "others/limit",
    "state",
];

fn picture(screen: &Screen, look: &Look, waits: Option<&Waits>) -> String {
    let mut text = match look.processes.is_empty() {
        true => {
            "no process of this user is under Dwell, or none has made a request that Dwell decided; \
             dwell run -- COMMAND starts one\n"
                .to_owned()
        }
        false => table(screen, &look.processes),
    };
    if let Some(waits) = waits {
        text += &format!("\n{}", waits.table(screen));
    }
    if let Some(off) = places::off_switch().off() {
        text += &screen.labelled_in(Tone::Warning, "! ", &format!("Dwell is {}", off::words(&off)));
    }
    for (_, error) in &look.unreadable {
        text += &screen.labelled_in(Tone::Bad, "✗ ", &show::one_line(&error.to_string()));
    }
    text
}

fn table(screen: &Screen, processes: &[Seen]) -> String {
    let mut table = screen.table(&HEADS, &[0, 5, 6, 7, 8, 9]);
    for seen in processes {
        let none = [Device { name: "–".into(), ..Device::default() }];
        let devices = if seen.told.devices.is_empty() { &none[..] } else { &seen.told.devices };
        for (at, device) in devices.iter().enumerate() {
            let rates = seen.rates.as_ref().and_then(|rates| rates.get(at));
            table.add_row(row(screen, seen, device, rates));
        }
    }
    finished(&table)
}

fn row(screen: &Screen, seen: &Seen, device: &Device, rates: Option<&Rates>) -> Vec<Cell> {
    let header = &seen.told.header;
    let dash = || "–".to_owned();
    let per_second =
        |rate: fn(&Rates) -> f64| rates.map_or_else(dash, |r| units::per_second(rate(r)));
    let load = seen.told.load.map_or_else(dash, |load| {
        let (others, threshold) = (f64::from(load.others), f64::from(load.threshold));
        format!("{} / {}", units::percent(others), units::percent(threshold))
    });
    let class = if device.class.is_empty() { dash() } else { device.class.clone() };
    let p99 = rates.filter(|rates| rates.p99_ns > 0);
    let (tone, state) = state(seen, device);
    vec![
        Cell::new(header.pid),
        screen.cell(Tone::Strong, clipped(&show::one_line(&header.command), 32)),
        Cell::new(show::one_line(&device.name)),
        Cell::new(show::one_line(&class)),
        Cell::new(show::one_line(&device.policy)),
        Cell::new(per_second(|rates| rates.requests_per_second)),
        Cell::new(p99.map_or_else(dash, |rates| units::time_ns(rates.p99_ns as f64))),
        Cell::new(rates.map_or_else(dash, |rates| units::percent(rates.spin_cpus))),
        // What a shadow would have avoided it has not.
        Cell::new(match header.shadow {
            true => dash(),
            false => per_second(|rates| rates.switches_avoided_per_second),
        }),
        Cell::new(load),
        screen.cell(tone, state),
    ]
}

/// The state of a process on a device: in words where it is out of the ordinary.
fn state(seen: &Seen, device: &Device) -> (Tone, String) {
    if seen.told.is_off() {
        return (Tone::Warning, "off".to_owned());
    }
    if device.regressed_percent > 0 {
        return (Tone::Warning, format!("off: took {} % longer", device.regressed_percent));
    }
    let learner = device.learner;
    let state = match seen.told.header.shadow {
        true => "shadow".to_owned(),
        false if learner.kinds == 0 => String::new(),
        false => format!("spins for {} of {} sizes", learner.spins, learner.kinds),
    };
    (Tone::Quiet, state)
}

fn clipped(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}
