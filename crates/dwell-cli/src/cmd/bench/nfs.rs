// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench nfs`: one thread with many requests outstanding against blocking threads.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use dwell_bench::fixture::{Export, Ganesha, Halves, in_own_network};
use dwell_bench::nfs::{self, ASYNC, DYNAMIC, Job, Plan, SHARED, SPREAD, SYNC, THREADS};
use dwell_bench::program::{PREFIX, Peers};
use dwell_bench::result::Direction;
use dwell_nfs::url::{Connections, MOST_OUTSTANDING, Url};

use super::conclude;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::{given, size};

/// What to measure, and how.
#[derive(Args)]
pub struct Nfs {
    /// A file on a server, to be written or read: nfs://server/export/file. Without it, as root, a
    /// server of its own (nfs-ganesha) that keeps no data
    #[arg(value_parser = address)]
    address: Option<String>,
    /// Requests outstanding; threads of the baseline
    #[arg(long, value_delimiter = ',', default_value = "2,3,4,5,6,7,8,16,32", value_parser = clap::value_parser!(u32).range(1..=1024))]
    windows: Vec<u32>,
    /// Contenders: threads (blocking ones, a connection each), threads-shared (on one together),
    /// async (one thread), async-spread (with as many connections), sync (its calls alone),
    /// peer:NAME (another client)
    #[arg(long, value_delimiter = ',', default_value = "threads,async", value_parser = contender)]
    contenders: Vec<String>,
    /// The program that has other clients, as `make peers` builds it
    #[arg(long)]
    peers_program: Option<PathBuf>,
    /// Leave out the window that is found by itself
    #[arg(long)]
    no_auto: bool,
    /// Length of one request
    #[arg(long, default_value = "8k", value_parser = size::request_bytes)]
    size: u64,
    /// Length of the file
    #[arg(long, default_value = "32M", value_parser = size::data_bytes)]
    bytes: u64,
    /// Transport
    #[arg(long, value_enum, default_value = "tcp")]
    proto: Proto,
    /// Connections that the one thread's requests are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// Read instead of writing; the file is written first, unless it is long enough
    #[arg(long)]
    read: bool,
    /// Overwrite what the file holds
    #[arg(long)]
    force: bool,
    /// Interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Directory for report.html, result.json and result.csv
    #[arg(short, long, value_name = "DIR", default_value = "dwell-report")]
    out: PathBuf,
    /// Print the result as JSON in place of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Proto {
    Tcp,
    Udp,
}

fn address(text: &str) -> Result<String, String> {
    text.parse::<Url>().map(|_| text.to_owned()).map_err(given::as_text)
}

fn contender(text: &str) -> Result<String, String> {
    match [THREADS, SHARED, ASYNC, SPREAD, SYNC].contains(&text)
        || text.strip_prefix(PREFIX).is_some_and(|peer| !peer.is_empty())
    {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "known are {THREADS}, {SHARED}, {ASYNC}, {SPREAD}, {SYNC} and {PREFIX}NAME"
        )),
    }
}

impl Nfs {
    /// Does it.
    pub fn run(&self) -> Result<()> {
        given::program(self.peers_program.as_deref())?;
        given::once("--windows", self.windows.iter().map(u32::to_string))?;
        given::once("--contenders", self.contenders.iter().cloned())?;
        std::fs::create_dir_all(&self.out).with_context(|| {
            format!("cannot make the report's directory {}", self.out.display())
        })?;
        if let Some(address) = &self.address {
            return self.measure(address, "a server that was named");
        }
        in_own_network(|| {
            let exports = [Export::memory("/mem")];
            let (server, place) = match Halves::of_this_thread()? {
                Some(_) => (Ganesha::start_apart(&exports)?, "on CPUs of its own"),
                None => (Ganesha::start(&exports, false)?, "on the client's CPU"),
            };
            let address = server.address("/mem/file", "");
            self.measure(&address, &format!("nfs-ganesha {place}, in memory, data thrown away"))
        })?
    }

    fn measure(&self, address: &str, server: &str) -> Result<()> {
        let mut url: Url = address.parse()?;
        let proto = match self.proto {
            Proto::Tcp => "tcp",
            Proto::Udp => "udp",
        };
        // Words of ours, which it takes.
        let _ = url.set("proto", proto);
        url.connections = Connections::Fixed(self.connections);
        let direction = if self.read { Direction::Read } else { Direction::Write };
        let size_bytes = u32::try_from(self.size).unwrap_or(u32::MAX);
        let job = Job { url, size_bytes, bytes: self.bytes, direction };
        let lost = if self.force { 0 } else { job.overwrites()? };
        if lost > 0 {
            bail!("{}: holds {lost} bytes; --force overwrites them", job.url);
        }
        let mut entries: Vec<(String, u32)> = (self.windows.iter())
            .flat_map(|window| self.contenders.iter().map(|name| (name.clone(), *window)))
            .collect();
        if !self.no_auto {
            entries.push((DYNAMIC.to_owned(), MOST_OUTSTANDING));
        }
        let peers = match self.contenders.iter().any(|name| name.starts_with(PREFIX)) {
            true => Some(Peers::find(self.peers_program.as_deref())?),
            false => None,
        };
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let plan = Plan {
            job,
            entries,
            rounds: self.rounds.into(),
            server: server.to_owned(),
            peers,
            stop: signals.stop.clone(),
        };
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut progress = Progress::of("bench");
        let outcome = nfs::measure(&plan, command, &mut |what, share| progress.show(what, share));
        progress.finish();
        conclude(outcome, &signals, &self.out, self.json)
    }
}
