// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell probe`: measure devices, keep what was learned.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use dwell::device::Device;
use dwell_host::probe::Probe;
use dwell_host::profile::{DeviceProfile, ProfileStore, SwitchCosts};
use dwell_host::settings::{DeviceNames, Effective};
use serde::Serialize;

use super::off;
use crate::answer::wrong;
use crate::progress::Progress;
use crate::show::{self, Screen, Tone};
use crate::{chart, given, places, report, settings, size};

/// Measure a device and store the result as its profile
///
/// It only reads, unless you give --scratch, and takes less than a minute. It measures the latency
/// of each wait mode by request size, and the cost of a context switch. Both give the device class
/// and the size threshold.
#[derive(clap::Args)]
pub struct Args {
    /// Files or block devices of at least 1 MiB
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Measure for a few seconds only
    #[arg(long)]
    quick: bool,
    /// Measure writes too, on a new file of 64 MiB that is removed afterwards
    #[arg(long, value_name = "FILE")]
    scratch: Option<PathBuf>,
    /// Largest size threshold [default: the device's setting, or 64k]
    #[arg(long, value_name = "SIZE", value_parser = size::request_bytes)]
    largest_threshold: Option<u64>,
    /// Draw the curves into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON: a list of {path, saved, profile}
    #[arg(long)]
    json: bool,
    /// Probe only if the settings ask for it (probe.on_add), and skip devices that are excluded or
    /// have a profile
    #[arg(long)]
    on_add: bool,
    /// Read settings that override those of the machine and the user
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Store no profile
    #[arg(long)]
    no_save: bool,
}

/// The probe of one path as JSON.
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
        let earlier = beneath.as_ref().and_then(|device| store.of(device).ok().flatten());
        let names = beneath.as_ref().map(DeviceNames::of).unwrap_or_default();
        let effective = said.for_device(&names);
        if args.on_add && (effective.exclude.value || earlier.is_some()) {
            continue;
        }
        let switches = probed.last().map(|before| before.profile.switches.clone());
        let profile = measure(args, path, (switches, earlier.as_ref()), &effective)?;
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
    (switches, earlier): (Option<SwitchCosts>, Option<&DeviceProfile>),
    said: &Effective,
) -> Result<DeviceProfile> {
    let mut probe = Probe::new(path);
    if args.quick {
        probe = probe.quick();
    }
    if let Some(scratch) = &args.scratch {
        probe = probe.scratch(scratch);
    }
    if let Some(earlier) = earlier {
        probe = probe.after(earlier);
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
