// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other storage runtimes, measured as `dwell-bench` measures Dwell: it starts this program once
//! for each and asks for batches by lines of JSON (see `dwell_bench::program`).

mod buffer;
mod runtimes;
mod work;

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use dwell_bench::program::{Answer, Hello, Order, Reply};

use crate::runtimes::{PEERS, Peer};
use crate::work::{Subject, Work};

/// Other storage runtimes, measured beside Dwell: asked for batches by lines of JSON.
#[derive(Parser)]
struct Args {
    /// Which one
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Names, one a line
    #[arg(long)]
    list: bool,
    /// File or block device
    #[arg(long, required_unless_present = "list")]
    path: Option<PathBuf>,
    /// How many bytes of it are used, from its beginning
    #[arg(long, required_unless_present = "list", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: Option<u64>,
    /// Bypass the page cache
    #[arg(long)]
    direct: bool,
    /// Allow writes
    #[arg(long)]
    write: bool,
    /// Check what is read: each eight bytes must hold their offset
    #[arg(long)]
    verify: bool,
}

fn main() {
    if let Err(error) = run(&Args::parse()) {
        eprintln!("dwell-peers: {error:#}");
        std::process::exit(1);
    }
}

fn run(args: &Args) -> Result<()> {
    let (Some(name), Some(path), Some(bytes)) = (&args.name, &args.path, args.bytes) else {
        return say(&PEERS.map(|(name, _)| name).join("\n"));
    };
    let Some((_, make)) = PEERS.iter().find(|(known, _)| known == name) else {
        bail!("{name}: no such peer; there are {}", PEERS.map(|(name, _)| name).join(", "));
    };
    let Args { direct, write, verify, .. } = *args;
    let subject = Subject { path: path.clone(), bytes, direct, write, verify };
    subject.open()?;
    let mut peer = make(&subject).with_context(|| name.clone())?;
    let hello = Hello { peer: name.clone(), version: peer.version()?, settings: peer.settings() };
    say(&serde_json::to_string(&hello)?)?;
    for line in std::io::stdin().lock().lines() {
        let reply = match answer(peer.as_mut(), &subject, &line.context("reading an order")?) {
            Ok(answer) => Reply::Answer(Box::new(answer)),
            Err(error) => Reply::Failed { error: format!("{error:#}") },
        };
        say(&serde_json::to_string(&reply)?)?;
    }
    Ok(())
}

fn answer(peer: &mut dyn Peer, subject: &Subject, line: &str) -> Result<Answer> {
    let order: Order = serde_json::from_str(line).context("not an order")?;
    peer.serve(Work::new(&order, subject)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("nobody listens")
}
