// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell ctl`: tells running processes how to wait.

use anyhow::{Result, bail};
use dwell_host::stats_page::{self, Control};
use serde::Serialize;

use crate::given::{as_text, process};
use crate::runtime_dir::runtime_dir;
use crate::show;

/// Change the policy of a running process, or switch Dwell off in it, at once
#[derive(clap::Args)]
pub struct Args {
    /// The process, as dwell top shows it
    #[arg(value_parser = process)]
    pid: u32,
    /// policy=NAME (which also switches it on), off or on
    #[arg(value_parser = order)]
    order: String,
    /// Steer all running processes of the same run
    #[arg(long)]
    run: bool,
    /// Print JSON: a list of {pid, control}
    #[arg(long)]
    json: bool,
}

fn order(text: &str) -> Result<String, String> {
    stats_page::check_order(text).map(|()| text.to_owned()).map_err(as_text)
}

#[derive(Serialize)]
struct Told {
    pid: u32,
    control: Control,
}

/// Gives the order.
pub fn run(args: &Args) -> Result<()> {
    let dir = runtime_dir()?;
    let mut told =
        vec![Told { pid: args.pid, control: stats_page::order(&dir, args.pid, &args.order)? }];
    let mut failed = Vec::new();
    if args.run {
        for pid in stats_page::peers(&dir, args.pid)? {
            match stats_page::order(&dir, pid, &args.order) {
                Ok(control) => told.push(Told { pid, control }),
                Err(error) => failed.push(error.to_string()),
            }
        }
    }
    show::out(&match args.json {
        true => show::json(&told)?,
        false => told.iter().map(line).collect(),
    })?;
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("not all were told: {}", failed.join("; ")),
    }
}

fn line(told: &Told) -> String {
    let policy = match &told.control.policy {
        _ if told.control.off => "off: left to the kernel".to_owned(),
        Some(policy) => format!("policy {}", show::one_line(policy)),
        None => "on, with the policy that it was started with".to_owned(),
    };
    format!("process {}  {policy}\n", told.pid)
}
