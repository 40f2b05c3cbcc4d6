// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell probe`: measure devices, keep what was learned.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use dwell::device::Device;
use dwell::probe::Probe;
use dwell::profile::{DeviceProfile, ProfileStore, SwitchCosts};
use dwell::settings::{DeviceNames, Effective};
use serde::Serialize;

use super::off;
use crate::answer::wrong;
use crate::progress::Progress;
use crate::show::{self, Screen, Tone};
use crate::{chart, given, places, report, settings, size};

/// Measures how a device is best waited for, and keeps the result for later.
///
/// Reads only, unless --scratch is given, and ends within a minute. Latencies of each way of
/// waiting are measured by request size, and what a context switch costs on this machine; from
/// both follow the device class and the size threshold.
#[derive(clap::Args)]
pub struct Args {
    /// Files or block devices, of 1 MiB or more.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Measures for a few seconds only.
    #[arg(long)]
    quick: bool,
    /// Measures writes too, on a new file of 64 MiB that is gone afterwards.
    #[arg(long, value_name = "FILE")]
    scratch: Option<PathBuf>,
    /// Lets requests of up to this size be spun for, where the measurement agrees; without it, up to
    /// what the settings say of the device, or 64k.
    #[arg(long, value_name = "SIZE", value_parser = size::request_bytes)]
    largest_threshold: Option<u64>,
    /// Draws the curves into an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints JSON: a list of {path, saved, profile}.
    #[arg(long)]
    json: bool,
    /// Probes only if the settings want devices probed that are added, and only those that are not
    /// excluded and have no profile yet.
    #[arg(long)]
    on_add: bool,
    /// Settings that win over those of the machine and of the user.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keeps no profile.
    #[arg(long)]
    no_save: bool,
}

/// What is told of one path in JSON.
#[derive(Serialize)]
struct Probed {
    path: PathBuf,
    saved: Option<PathBuf>,
    profile: DeviceProfile,
}

/// Probes each path in turn; what was learned of one is kept even if a later one fails.
pub fn run(args: &Args) -> Result<()> {
    for (name, given) in [("--scratch", &args.scratch), ("--svg", &args.svg)] {
        if given.is_some() && args.paths.len() > 1 {
            return Err(wrong(format!("{name} is for one PATH; probe them one by one")));
        }
    }
    let said = settings::read(args.config.as_deref())?;
    given::output(args.svg.as_deref())?;
    if args.on_add && !said.general().probe_on_add.value {
        return Ok(());
    }
    off::refuse("a probe")?;
    if !args.on_add {
        given::subjects(&args.paths)?;
    }
    let store = places::profiles()?;
    let screen = Screen::stdout();
    let mut probed: Vec<Probed> = Vec::new();
    for path in &args.paths {
        let beneath = Device::beneath(path).ok();
        let names = beneath.as_ref().map(DeviceNames::of).unwrap_or_default();
        let effective = said.for_device(&names);
        if args.on_add
            && (effective.exclude.value
                || beneath.is_some_and(|device| matches!(store.of(&device), Ok(Some(_)))))
        {
            continue;
        }
        let switches = probed.last().map(|before| before.profile.switches.clone());
        let profile = measure(args, path, switches, &effective)?;
        let saved = if args.no_save { None } else { Some(store.save(&profile)?) };
        if let Some(svg) = &args.svg {
            std::fs::write(svg, chart::svg(&profile))
                .map_err(|error| anyhow!("{}: {error}", svg.display()))?;
        }
        let this = Probed { path: path.clone(), saved, profile };
        if !args.json {
            let gap = if probed.is_empty() { "" } else { "\n" };
            show::out(&format!("{gap}{}", text(&screen, &this, args, &store)))?;
        }
        probed.push(this);
    }
    if args.json {
        show::out(&show::json(&probed)?)?;
    }
    Ok(())
}

fn text(screen: &Screen, probed: &Probed, args: &Args, store: &ProfileStore) -> String {
    let mut text = report::profile(screen, &probed.profile);
    text.push('\n');
    if let Some(svg) = &args.svg {
        text += &format!("chart    {}\n", svg.display());
    }
    text += &match &probed.saved {
        Some(file) => format!("profile  {}\n", file.display()),
        None => {
            let aside = format!("not kept in {} (--no-save)", store.dir.display());
            format!("profile  {}\n", screen.paint(Tone::Quiet, &aside))
        }
    };
    text
}

fn measure(
    args: &Args,
    path: &Path,
    switches: Option<SwitchCosts>,
    said: &Effective,
) -> Result<DeviceProfile> {
    let mut probe = Probe::new(path);
    if args.quick {
        probe = probe.quick();
    }
    if let Some(scratch) = &args.scratch {
        probe = probe.scratch(scratch);
    }
    probe.switches = switches;
    let said = said.largest_threshold_bytes.as_ref().map(|set| set.value);
    if let Some(bytes) = args.largest_threshold.or(said) {
        probe.largest_threshold_bytes = bytes;
    }
    let mut progress = Progress::of(&path.display().to_string());
    let profile = probe.run(&mut |phase, share| progress.show(phase, share));
    progress.finish();
    Ok(profile?)
}
