// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other storage runtimes and other NFS clients, measured as `dwell-bench` measures Dwell: it
//! starts this program once for each and asks for batches by lines of JSON (see
//! `dwell_bench::program`).

mod buffer;
mod nfs;
mod runtimes;
mod work;

use std::io::{BufRead, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use dwell_bench::program::{Answer, Hello, Order, Reply};

use crate::nfs::{CLIENTS, Remote};
use crate::runtimes::PEERS;
use crate::work::{Subject, Work};

/// Other storage runtimes and NFS clients, measured beside Dwell: asked for batches by lines of
/// JSON.
#[derive(Parser)]
struct Args {
    /// Which one
    #[arg(required_unless_present_any = ["list", "list_nfs"])]
    name: Option<String>,
    /// Names of storage runtimes, one a line
    #[arg(long)]
    list: bool,
    /// Names of NFS clients, one a line
    #[arg(long, conflicts_with = "list")]
    list_nfs: bool,
    /// File or block device; for an NFS client, nfs://SERVER:PORT/EXPORT/FILE?mountport=PORT
    #[arg(long, required_unless_present_any = ["list", "list_nfs"])]
    path: Option<PathBuf>,
    /// How many bytes of it are used, from its beginning
    #[arg(long, required_unless_present_any = ["list", "list_nfs"], value_parser = clap::value_parser!(u64).range(1..))]
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
        let names = match args.list_nfs {
            true => CLIENTS.map(|(name, _)| name).join("\n"),
            false => PEERS.map(|(name, _)| name).join("\n"),
        };
        return say(&names);
    };
    let Args { direct, write, verify, .. } = *args;
    if let Some((_, make)) = CLIENTS.iter().find(|(known, _)| known == name) {
        let url = path.to_string_lossy().parse()?;
        let remote = Remote { url, bytes, write, verify };
        remote.place()?;
        let mut client = make().with_context(|| name.clone())?;
        let (version, settings) = (client.version()?, client.settings());
        return converse(name, version, settings, |order| {
            nfs::serve(client.as_mut(), order, &remote)
        });
    }
    let Some((_, make)) = PEERS.iter().find(|(known, _)| known == name) else {
        let names = PEERS.iter().map(|(name, _)| *name);
        let all: Vec<_> = names.chain(CLIENTS.iter().map(|(name, _)| *name)).collect();
        bail!("{name}: no such peer; there are {}", all.join(", "));
    };
    let subject = Subject { path: path.clone(), bytes, direct, write, verify };
    subject.open()?;
    let mut peer = make(&subject).with_context(|| name.clone())?;
    let (version, settings) = (peer.version()?, peer.settings());
    converse(name, version, settings, |order| peer.serve(Work::new(order, &subject)?))
}

/// Says who it is, and answers orders until there are none.
fn converse(
    name: &str,
    version: String,
    settings: Vec<String>,
    mut serve: impl FnMut(&Order) -> Result<Answer>,
) -> Result<()> {
    let hello = Hello { peer: name.to_owned(), version, settings };
    say(&serde_json::to_string(&hello)?)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("reading an order")?;
        let order = serde_json::from_str(&line).context("not an order");
        let reply = match order.and_then(|order| serve(&order)) {
            Ok(answer) => Reply::Answer(Box::new(answer)),
            Err(error) => Reply::Failed { error: format!("{error:#}") },
        };
        say(&serde_json::to_string(&reply)?)?;
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("nobody listens")
}
