// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell nfs`: files on NFS servers, without a mount and with one.

use std::cell::RefCell;
use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use dwell::executor::Executor;
use dwell_nfs::client::{self, Client};
use dwell_nfs::copy::{self, Options, Threads, Watcher};
use dwell_nfs::directory::Item;
use dwell_nfs::file::{RemoteFile, read_in_order};
use dwell_nfs::nfs3::{Kind, SetAttributes};
use dwell_nfs::url::Url;
use dwell_nfs::{Error, error};

use crate::answer::wrong;
use crate::given::{self, as_text};
use crate::progress::{self, Progress};
use crate::show;

mod listing;
mod mount;
mod plan;

/// Threads that a person can ask for.
const MOST_THREADS: u32 = 64;

/// Files on NFS servers: copy, list, show, remove, mount
#[derive(Subcommand)]
#[command(after_help = "\
Addresses: nfs://SERVER[:PORT]/EXPORT/PATH[?OPTION=VALUE&...]
  nfsport=N, mountport=N   ports (without them, the portmapper is asked)
  export=/PATH             the export, where the server does not list it
  proto=tcp|udp            transport
  window=N|auto[:MOST]     requests outstanding on each connection
  nconnect=N|auto[:MOST]   connections that requests are spread over
  rsize=BYTES, wsize=BYTES of one READ or WRITE
  timeout=S                seconds without an answer after which a request fails
                           (60; a mount waits)
  hard, soft, timeo=N, retrans=N   as in nfs(5), in place of timeout
  uid=N, gid=N             to appear as
  actimeo=S, noac, acregmin=S, ...  as in nfs(5), for mount
  memory=BYTES             that a mount keeps of what was written and of directories")]
pub enum Nfs {
    /// Copy files or trees, from or to a server, or between servers
    Cp(Cp),
    /// List a directory; of an address without a path, the exports
    Ls(Where),
    /// Show what is known of a file, and of the space around it
    Stat(Stat),
    /// Write a file to standard output
    Cat(One),
    /// Remove files
    Rm(Rm),
    /// Make a directory
    Mkdir(Mkdir),
    /// Mount an export at a directory, for any program of yours
    Mount(mount::Mount),
    /// Unmount what `dwell nfs mount` mounted
    Unmount(mount::Unmount),
}

/// What to copy, and how.
#[derive(Args)]
pub struct Cp {
    /// File, directory or address
    #[arg(value_parser = side)]
    from: String,
    /// File, directory or address
    #[arg(value_parser = side)]
    to: String,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Go on where an earlier copy of an unchanged source broke off; leave out files of the same
    /// length and time (keeps times)
    #[arg(long)]
    resume: bool,
    /// Make TO the copy itself, also if it is a directory, so that the same command can go on with
    /// a tree
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Read back what was written and compare checksums
    #[arg(long)]
    verify: bool,
    /// Keep times, owners, hard links, and set-user-id, set-group-id and sticky bits
    #[arg(short = 'p', long)]
    times: bool,
    /// Threads that copy files; auto adds one while all lack CPU time and CPUs are free
    #[arg(long, default_value = "auto", value_name = "N", value_parser = threads)]
    threads: Threads,
    /// Print what would be copied, replaced or left out, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The address of a file.
#[derive(Args)]
pub struct One {
    /// nfs://server/export/path
    #[arg(value_parser = address)]
    address: String,
}

/// The address of a directory, or of a server.
#[derive(Args)]
pub struct Where {
    /// nfs://server/export/path, or nfs://server
    #[arg(value_parser = address_or_server)]
    address: String,
    /// Print JSON: a list of files, or of the names of exports
    #[arg(long)]
    json: bool,
}

/// What to show.
#[derive(Args)]
pub struct Stat {
    /// nfs://server/export/path
    #[arg(value_parser = address)]
    address: String,
    /// Print JSON: {file, may, space}
    #[arg(long)]
    json: bool,
}

/// What to remove.
#[derive(Args)]
pub struct Rm {
    /// nfs://server/export/path
    #[arg(required = true, value_parser = address)]
    addresses: Vec<String>,
    /// Directories too, with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// What to make.
#[derive(Args)]
pub struct Mkdir {
    /// nfs://server/export/path
    #[arg(value_parser = address)]
    address: String,
    /// Parents too, and a directory that is there already will do
    #[arg(short, long)]
    parents: bool,
}

fn address(text: &str) -> Result<String, String> {
    text.parse::<Url>().map(|_| text.to_owned()).map_err(as_text)
}

fn address_or_server(text: &str) -> Result<String, String> {
    match Url::of_server(text).map_err(as_text)? {
        Some(_) => Ok(text.to_owned()),
        None => address(text),
    }
}

/// A number of threads, or `auto`.
fn threads(text: &str) -> Result<Threads, String> {
    match text.parse() {
        Ok(count @ 1..=MOST_THREADS) => Ok(Threads::Fixed(count)),
        _ if text == "auto" => Ok(Threads::Found),
        _ => Err(format!("must be auto or a number from 1 to {MOST_THREADS}")),
    }
}

/// An address, or what is none at all.
fn side(text: &str) -> Result<String, String> {
    if Url::is_one(text) { address(text) } else { Ok(text.to_owned()) }
}

/// Does it.
pub fn run(command: &Nfs) -> Result<()> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    let open = |address: &str| -> error::Result<(Rc<Client>, Url)> {
        let url: Url = address.parse()?;
        Ok((executor.block_on(Client::mount(&tasks, &url))?, url))
    };
    match command {
        Nfs::Mount(args) => mount::mount(args),
        Nfs::Unmount(args) => mount::unmount(args),
        Nfs::Cp(args) => cp(&executor, args),
        Nfs::Ls(args) => {
            if let Some(url) = Url::of_server(&args.address)? {
                let exports = executor.block_on(client::exports(&tasks, &url))?;
                let line = |export: &String| format!("{}\n", show::one_line(export));
                let text = match args.json {
                    true => show::json(&exports)?,
                    false => exports.iter().map(line).collect(),
                };
                return Ok(show::out(&text)?);
            }
            let (client, url) = open(&args.address)?;
            let items = executor.block_on(async {
                match client.find_followed(&url).await? {
                    Some(found) if found.attributes.kind == Kind::Directory => {
                        client.list(found.handle, &url).await
                    }
                    _ => {
                        let found = client.require(&url).await?;
                        Ok(vec![Item { name: last_name(&url), found }])
                    }
                }
            })?;
            Ok(show::out(&listing::of(items, args.json)?)?)
        }
        Nfs::Stat(args) => {
            let (client, url) = open(&args.address)?;
            let (found, granted, space) = executor.block_on(async {
                let found = client.require(&url).await?;
                let granted = client.may(found.handle, 0x3f, &url).await?;
                let space = client.space(found.handle, &url).await?;
                Ok::<_, Error>((found, granted, space))
            })?;
            Ok(show::out(&listing::facts(&url, &found, granted, &space, args.json)?)?)
        }
        Nfs::Cat(args) => {
            let (client, url) = open(&args.address)?;
            let mut out = std::io::stdout().lock();
            executor.block_on(async {
                let found = client.require_followed(&url).await?;
                if found.attributes.kind == Kind::Directory {
                    return Err(Error::invalid(&url, "is a directory; dwell nfs ls lists it"));
                }
                let file = RemoteFile::new(&client, found.handle, &url);
                let take = &mut |data: &[u8]| out.write_all(data);
                read_in_order(&file, found.attributes.bytes, take).await
            })?;
            Ok(out.flush()?)
        }
        Nfs::Rm(args) => {
            for address in &args.addresses {
                let (client, url) = open(address)?;
                let listed = executor.block_on(async {
                    let (parent, name) = client.parent(&url).await?;
                    let found = client.require(&url).await?;
                    let item = Item { name: name.as_bytes().to_vec(), found };
                    if found.attributes.kind == Kind::Directory && !args.recursive {
                        return Err(Error::invalid(&url, "is a directory; --recursive removes it"));
                    }
                    if args.dry_run {
                        return client.all_in(&url, found).await;
                    }
                    client.remove_all(parent, item, args.recursive, &url, &mut |_| ()).await?;
                    Ok(Vec::new())
                })?;
                let line = |url: &Url| format!("{}\n", show::one_line(&url.to_string()));
                show::out(&listed.iter().map(line).collect::<String>())?;
            }
            Ok(())
        }
        Nfs::Mkdir(args) => {
            let (client, url) = open(&args.address)?;
            let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
            Ok(executor.block_on(client.make_directories(&url, attributes, args.parents))?)
        }
    }
}

fn last_name(url: &Url) -> Vec<u8> {
    url.path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec()
}

struct Shown {
    progress: Option<RefCell<Progress>>,
    began: std::time::Instant,
}

impl Watcher for Shown {
    fn progress(&self, at: &copy::Progress) {
        let Some(shown) = &self.progress else { return };
        let share = at.bytes_done as f64 / at.bytes.max(1) as f64;
        let text = format!(
            "{}/{} files, {}{}, window {}, RTT {:.0} µs, {} resends",
            at.files_done,
            at.files,
            speed(at, self.began),
            left(at, self.began.elapsed()),
            at.window,
            at.round_trip_ns as f64 / 1e3,
            at.counters.resends + at.counters.replays,
        );
        shown.borrow_mut().show(&text, share);
    }

    fn failed(&self, error: &Error) {
        let _ = writeln!(std::io::stderr(), "dwell: {}", show::one_line(&error.to_string()));
    }

    fn noted(&self, line: &str) {
        let _ = writeln!(std::io::stderr(), "dwell: {}", show::one_line(line));
    }
}

fn speed(at: &copy::Progress, began: std::time::Instant) -> String {
    let moved = (at.bytes_done - at.bytes_there) as f64;
    format!(
        "{:.1} MB, {:.1} MB/s",
        moved / 1e6,
        moved / 1e6 / began.elapsed().as_secs_f64().max(1e-9)
    )
}

/// How long the rest takes at the speed so far, once that is known.
fn left(at: &copy::Progress, spent: Duration) -> String {
    let (moved, rest) = (at.bytes_done - at.bytes_there, at.bytes.saturating_sub(at.bytes_done));
    if moved == 0 || spent < Duration::from_secs(1) {
        return String::new();
    }
    let seconds = (spent.as_secs_f64() * rest as f64 / moved as f64).ceil() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!(", {minutes}:{seconds:02} left"),
        (hours, minutes, seconds) => format!(", {hours}:{minutes:02}:{seconds:02} left"),
    }
}

fn cp(executor: &Executor, args: &Cp) -> Result<()> {
    if !Url::is_one(&args.from) && !Url::is_one(&args.to) {
        return Err(wrong(format!(
            "{} and {}: neither is an NFS address; write nfs://server/export/path",
            args.from, args.to
        )));
    }
    if !Url::is_one(&args.from) {
        given::source(Path::new(&args.from), args.recursive)?;
    }
    let Cp { recursive, resume, no_target_directory: onto, verify, times, threads, .. } = *args;
    let options = Options { recursive, resume, onto, verify, times, threads, ..Options::default() };
    let progress = (!progress::is_quiet()).then(|| RefCell::new(Progress::of("cp")));
    let shown = Shown { progress, began: std::time::Instant::now() };
    let tasks = executor.handle();
    if args.dry_run {
        let planned = copy::plan(&tasks, &args.from, &args.to, options, &shown);
        let (planned, failures) = executor.block_on(planned)?;
        show::out(&plan::of(&planned))?;
        return all_copied(failures);
    }
    let copied = copy::between(&tasks, &args.from, &args.to, options, &shown);
    let (done, failures) = executor.block_on(copied)?;
    if let Some(progress) = &shown.progress {
        progress.borrow().finish();
        let mut parts = vec![format!("{} files", done.files_done), speed(&done, shown.began)];
        parts.push(format!("window {}", done.window));
        parts.push(format!("RTT {:.0} µs", done.round_trip_ns as f64 / 1e3));
        parts.push(format!("{} resends", done.counters.resends + done.counters.replays));
        let told = |parts: &mut Vec<String>, count: u64, what: &str| {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        };
        told(&mut parts, done.files_there, "files there already");
        told(&mut parts, done.bytes_there, "bytes there already");
        told(&mut parts, done.bytes_again, "bytes sent again after the server was restarted");
        told(&mut parts, done.counters.reconnects, "reconnections");
        told(&mut parts, done.verified, "files verified");
        let _ = writeln!(std::io::stderr(), "{}", parts.join(", "));
    }
    all_copied(failures)
}

fn all_copied(failures: u64) -> Result<()> {
    match failures {
        0 => Ok(()),
        1 => bail!("1 file or directory was not copied"),
        failures => bail!("{failures} files or directories were not copied"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_speed_so_far() {
        let at = |bytes_done, bytes_there| copy::Progress {
            bytes: 10_000,
            bytes_done,
            bytes_there,
            ..copy::Progress::default()
        };
        let ten = Duration::from_secs(10);
        assert_eq!(left(&at(5000, 4000), ten), ", 0:50 left");
        assert_eq!(left(&at(1001, 1000), ten), ", 24:59:50 left");
        assert_eq!(
            (left(&at(10_000, 0), ten), left(&at(1, 1), ten)),
            (", 0:00 left".into(), "".into())
        );
        assert_eq!(left(&at(5000, 0), Duration::from_millis(9)), "");
    }
}
