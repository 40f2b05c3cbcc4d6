// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell doctor`: what this machine lets Dwell do, and what it will do on each disk.

mod settings;

use std::path::PathBuf;

use anyhow::{Result, bail};
use dwell::dwell_policy::{DeviceClass, Routes};
use dwell::off::Off;
use dwell::{Decision, Reason, Route};
use dwell_bench::counters::Counters;
use dwell_host::capability::{Capability, State, survey};
use dwell_host::plan::{Plan, plan};
use serde::Serialize;

use super::off;
use crate::places;
use crate::show::{self, Screen, Tone, finished};

/// Check what works on this machine, and how to make the rest work
#[derive(clap::Args)]
#[command(after_help = "\
Exit status: 1 if something is missing without which Dwell decides nothing: rings of io_uring, the library of dwell run, \
settings or profiles that can be read.")]
pub struct Args {
    /// Read settings that override those of the machine and the user
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON: {capabilities, devices, settings, summary, profiles, host_page, off, counters,
    /// lacking}
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told<'a> {
    capabilities: &'a [Capability],
    devices: Vec<ToldDevice<'a>>,
    settings: settings::Told,
    summary: String,
    profiles: String,
    host_page: String,
    /// The switch that turned Dwell off, if one did.
    off: Option<Off>,
    counters: String,
    /// Requirements that are missing.
    lacking: &'a [String],
}

#[derive(Serialize)]
struct ToldDevice<'a> {
    name: &'a str,
    id: &'a str,
    kind: &'a str,
    class: Option<&'a str>,
    contested: Option<bool>,
    size_threshold_bytes: Option<u64>,
    routes: Vec<&'a str>,
    small_read: String,
    reason: &'a str,
    error: Option<String>,
}

/// Looks at the machine.
pub fn run(args: &Args) -> Result<()> {
    let store = places::profiles()?;
    let host_page = places::host_page().display().to_string();
    let counters = match Counters::open() {
        Ok(counters) => counters.names().join(", "),
        Err(why) => why.to_string(),
    };
    let off = places::off_switch().off();
    let (capabilities, devices) = (survey(), plan(&store));
    let found = devices.iter().map(|plan| &plan.device);
    let settings = settings::Found::look(args.config.as_deref(), found);
    let lacking = lacking(&capabilities, &devices, &settings);
    if args.json {
        let told = Told {
            capabilities: &capabilities,
            devices: devices.iter().map(told).collect(),
            settings: settings.told(),
            summary: summary(&devices),
            profiles: store.dir.display().to_string(),
            host_page,
            off,
            counters,
            lacking: &lacking,
        };
        show::out(&show::json(&told)?)?;
        return verdict(&lacking);
    }
    let screen = Screen::stdout();
    let mut text = format!("{}\n\n", in_short(&screen, &capabilities, &lacking, off.as_ref()));
    text += &checks(&screen, &capabilities);
    text += &format!("\n{}", disks(&screen, &devices));
    for error in devices.iter().filter_map(|device| device.profile.as_ref().err()) {
        text += &screen.labelled_in(Tone::Bad, "✗ ", &show::one_line(&error.to_string()));
    }
    text += &format!("\n{}\n", settings.text(&screen));
    let mut profiles = store.dir.display().to_string();
    if let Some(machine) = &store.machine {
        profiles += &format!(", then {}", machine.display());
    }
    text += &screen.labelled("profiles   ", &profiles);
    text += &screen.labelled("host page  ", &host_page);
    text += &screen.labelled("counters   ", &counters);
    text += &screen.labelled("active     ", &summary(&devices));
    text += &screen.labelled("pager      ", &paging(&devices));
    show::out(&text)?;
    verdict(&lacking)
}

/// Without which Dwell decides nothing, or not as it was told.
fn lacking(
    capabilities: &[Capability],
    devices: &[Plan],
    settings: &settings::Found,
) -> Vec<String> {
    let rings = capabilities.iter().filter(|one| one.name == "io-uring");
    let rings = rings.filter(|one| matches!(one.state, State::Missing | State::Forbidden));
    let rings = rings.map(|one| format!("{}: {}", one.name, one.detail));
    let library = super::run::library().err().map(|error| format!("{error:#}"));
    let damaged =
        devices.iter().filter_map(|device| Some(device.profile.as_ref().err()?.to_string()));
    rings.chain(library).chain(settings.errors()).chain(damaged).collect()
}

fn verdict(lacking: &[String]) -> Result<()> {
    match lacking.is_empty() {
        true => Ok(()),
        false => bail!("what Dwell needs is missing or unusable: {}", lacking.join("; ")),
    }
}

/// Whether Dwell works here, in a line.
fn in_short(
    screen: &Screen,
    capabilities: &[Capability],
    lacking: &[String],
    off: Option<&Off>,
) -> String {
    if !lacking.is_empty() {
        let why = show::one_line(&lacking.join("; "));
        return screen.paint(Tone::Bad, &format!("✗ Dwell does not work here as it is: {why}"));
    }
    let fewer = capabilities.iter().filter(|one| one.state != State::Works);
    let fewer: Vec<&str> = fewer.map(|one| one.name).collect();
    let works = match off {
        None => screen.paint(Tone::Good, "✓ Dwell works here"),
        Some(off) => {
            let off = format!("! Dwell works here, but is {}", off::words(off));
            screen.paint(Tone::Warning, &off)
        }
    };
    match fewer.is_empty() {
        true => works,
        false => format!("{works}; missing or limited: {}", fewer.join(", ")),
    }
}

fn checks(screen: &Screen, capabilities: &[Capability]) -> String {
    let mut table = screen.table(&["", "state", "what", "found"], &[]);
    for Capability { name, state, detail, remedy } in capabilities {
        let (mark, tone) = match state {
            State::Works => ("✓", Tone::Good),
            State::Limited => ("!", Tone::Warning),
            State::Missing | State::Forbidden => ("✗", Tone::Bad),
        };
        let mut found = show::one_line(detail);
        if let Some(remedy) = remedy {
            found += &format!("\n→ {}", show::one_line(remedy));
        }
        table.add_row([
            screen.cell(tone, mark),
            screen.cell(tone, state),
            screen.cell(Tone::Strong, name),
            found.into(),
        ]);
    }
    finished(&table)
}

fn disks(screen: &Screen, devices: &[Plan]) -> String {
    if devices.is_empty() {
        return "no block device holds anything here\n".to_owned();
    }
    let mut table = screen.table(&["device", "kind", "class", "threshold", "requests go"], &[3]);
    for device in devices {
        let class = match &device.profile {
            Err(_) => screen.cell(Tone::Bad, "✗ damaged"),
            Ok(Some(profile)) => screen.cell(Tone::Good, profile.class()),
            Ok(None) => screen.cell(Tone::Warning, "! not probed"),
        };
        let decision = device.profile.as_ref().ok().and_then(Option::as_ref).map(|p| p.decision);
        table.add_row([
            screen.cell(Tone::Strong, &device.device.kernel_name),
            device.device.kind.as_str().into(),
            class,
            decision.map_or("–".into(), |d| show::threshold(d.size_threshold_bytes)).into(),
            way(device).into(),
        ]);
    }
    finished(&table)
}

/// How a device's requests go, in words.
fn way(plan: &Plan) -> String {
    let Decision { route, reason, .. } = plan.small_read;
    let begins = match (plan.always(), reason) {
        (Some(Reason::VeryFast), _) => return "inline, on this CPU".to_owned(),
        (Some(reason), _) => return format!("inline ({reason})"),
        _ if plan.routes == Routes::INLINE => {
            return "inline, block: no ring to spin on".to_owned();
        }
        (None, Reason::Unprobed) => "inline, not probed".to_owned(),
        (None, _) if route == Route::Inline => format!("inline, {reason}"),
        (None, _) => format!("spin ({}) or block (inline)", route.as_str()),
    };
    format!("adaptive begins with: {begins}")
}

/// One line: which routes and policies are active for which devices.
fn summary(devices: &[Plan]) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for device in devices {
        let (way, name) = (way(device), device.device.kernel_name.as_str());
        match groups.iter_mut().find(|(known, _)| *known == way) {
            Some((_, names)) => names.push(name),
            None => groups.push((way, vec![name])),
        }
    }
    let mut parts: Vec<String> =
        groups.iter().map(|(way, names)| format!("{}: {way}", names.join(", "))).collect();
    let unprobed = devices.iter().find(|device| device.always() == Some(Reason::Unprobed));
    if let Some(device) = unprobed {
        parts.push(format!("to change that: dwell probe /dev/{}", device.device.kernel_name));
    }
    match parts.is_empty() {
        true => "no block device holds anything here".to_owned(),
        false => parts.join("; "),
    }
}

/// One line: where plain mmap is better than a region of the pager for files larger than memory.
fn paging(devices: &[Plan]) -> String {
    let named = |wanted: Option<bool>| {
        let names = devices.iter().filter(|device| is_very_fast(device) == wanted);
        let names: Vec<&str> = names.map(|device| device.device.kernel_name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let parts = [
        named(Some(true)).map(|names| format!("{names}: plain mmap, a read completes at once")),
        named(Some(false)).map(|names| {
            format!("{names}: plain mmap with madvise, or a region if access is strided")
        }),
        named(None).map(|names| format!("{names}: Backing::Auto measures when a file is opened")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no block device holds anything here".into() } else { parts.join("; ") }
}

/// Whether a device completes reads at once; `None` of one that was not probed.
fn is_very_fast(plan: &Plan) -> Option<bool> {
    let profile = plan.profile.as_ref().ok()?.as_ref()?;
    Some(profile.decision.class == DeviceClass::VeryFast)
}

fn told(plan: &Plan) -> ToldDevice<'_> {
    let probed = plan.profile.as_ref().ok().and_then(Option::as_ref);
    let profile = probed.map(|probed| &probed.decision);
    let routes = [Route::Inline, Route::Polled, Route::Interrupt];
    ToldDevice {
        name: &plan.device.kernel_name,
        id: &plan.device.id,
        kind: plan.device.kind.as_str(),
        class: profile.map(|profile| profile.class.as_str()),
        contested: probed.map(|probed| probed.contested),
        size_threshold_bytes: profile.map(|profile| profile.size_threshold_bytes),
        routes: routes
            .iter()
            .filter(|route| plan.routes.has(**route))
            .map(|r| r.as_str())
            .collect(),
        small_read: plan.small_read.to_string(),
        reason: plan.small_read.reason.as_str(),
        error: plan.profile.as_ref().err().map(ToString::to_string),
    }
}
