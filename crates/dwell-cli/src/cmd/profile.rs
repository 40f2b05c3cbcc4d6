// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell profile`: what is kept of devices.

use anyhow::{Result, anyhow};
use clap::Subcommand;
use dwell_host::profile::{DeviceProfile, Listed, ProfileStore};
use serde::Serialize;

use crate::show::{self, Screen, Tone};
use crate::{places, report};

/// List, show or remove profiles
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List all profiles; damaged ones with the reason
    List {
        /// Print JSON: a list of {name, profile, error}
        #[arg(long)]
        json: bool,
    },
    /// Show a profile
    Show {
        /// Its name, or the identity of a device
        name: String,
        /// Print JSON: a list of {name, profile, error}
        #[arg(long)]
        json: bool,
    },
    /// Remove a profile
    Rm {
        /// Its name, or the identity of a device to remove all of that device
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: String,
        /// Print JSON: a list of the removed names
        #[arg(long)]
        json: bool,
    },
}

/// One profile as JSON.
#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    profile: Option<&'a DeviceProfile>,
    error: Option<String>,
}

impl<'a> From<&'a Listed> for Told<'a> {
    fn from(listed: &'a Listed) -> Self {
        Told {
            name: &listed.name,
            profile: listed.profile.as_ref().ok(),
            error: listed.profile.as_ref().err().map(ToString::to_string),
        }
    }
}

/// Does what was asked.
pub fn run(args: &Args) -> Result<()> {
    let store = places::profiles()?;
    match &args.action {
        Action::List { json: true } => json(&store.list()?),
        Action::List { json: false } => list(&store),
        Action::Show { name, json: true } => json(&store.find(name)?),
        Action::Show { name, json: false } => show_profiles(store.find(name)?),
        Action::Rm { name, json } => {
            let removed = store.remove(name)?;
            let text = match json {
                true => show::json(&removed)?,
                false => removed.iter().map(|name| format!("removed  {name}\n")).collect(),
            };
            Ok(show::out(&text)?)
        }
    }
}

fn json(listed: &[Listed]) -> Result<()> {
    let told: Vec<Told<'_>> = listed.iter().map(Told::from).collect();
    Ok(show::out(&show::json(&told)?)?)
}

fn list(store: &ProfileStore) -> Result<()> {
    let listed = store.list()?;
    let screen = Screen::stdout();
    if listed.is_empty() {
        let text = format!("no profiles in {}; dwell probe PATH makes one\n", store.dir.display());
        return Ok(show::out(&text)?);
    }
    let mut text = String::new();
    for Listed { name, profile } in &listed {
        // The name on a line of its own, whole, to be copied.
        text += &format!("{}\n", screen.paint(Tone::Strong, name));
        text += &match profile {
            Ok(profile) => format!(
                "  {:<10} {:<15} threshold {:<9} {}\n",
                show::one_line(&profile.kernel_name),
                profile.class(),
                show::threshold(profile.decision.size_threshold_bytes),
                profile.measured_utc()
            ),
            Err(error) => {
                let why = format!("unusable: {}", show::one_line(&error.to_string()));
                screen.labelled_in(Tone::Bad, "  ✗ ", &why)
            }
        };
    }
    text += &format!("\n{}\n", screen.paint(Tone::Quiet, &store.dir.display().to_string()));
    Ok(show::out(&text)?)
}

fn show_profiles(found: Vec<Listed>) -> Result<()> {
    let screen = Screen::stdout();
    let mut text = String::new();
    for Listed { name, profile } in found {
        let profile = profile.map_err(|error| anyhow!("{error}"))?;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &format!("{}\n", screen.paint(Tone::Quiet, &name));
        text += &report::profile(&screen, &profile);
    }
    Ok(show::out(&text)?)
}
