// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell serve`: a directory served by a daemon of its own.

use std::io::Write as _;
use std::path::{PathBuf, absolute};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use dwell::monitor::SystemMonitor;
use dwell::policy::Block;
use dwell_channel::daemon::{Daemon, Options as DaemonOptions, Tally};
use dwell_channel::fs::control::{self, Record, Seen};
use dwell_channel::fs::{Channels, DataPath, Facts, Options, Server, Stopper, take_over};
use dwell_channel::owners::Owners;
use serde::Serialize;

use super::daemon;
use super::explain::policy_name;
use crate::show::{self, Screen, Tone, finished};
use crate::{places, runtime_dir, settings, signals};

/// Serve a directory, with user-space access to its files
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Start(Start),
    Status(Status),
    Stop(Stop),
}

/// Start a daemon that serves BACKING at MOUNT, also where a killed one did
#[derive(clap::Args)]
struct Start {
    /// Directory that holds the files, on any file system; programs should no longer use it
    backing: PathBuf,
    /// Directory where programs find them; it may be BACKING itself, which hides it
    mount: PathBuf,
    /// Hide BACKING from all other processes while it is served
    #[arg(long)]
    private: bool,
    /// Stay in the foreground; Ctrl-C and SIGTERM stop it
    #[arg(long)]
    foreground: bool,
    /// Threads for requests from the kernel; channels have their own
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Let the daemon serve every read and write, even if the kernel could
    #[arg(long)]
    no_passthrough: bool,
    /// Policy of the threads that serve channels [default: the settings']
    #[arg(long, value_name = "POLICY", value_parser = policy_name)]
    policy: Option<String>,
    /// Started by `serve start`, which waits for a word on standard output.
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
}

/// Show your daemons, their channels, files and requests
#[derive(clap::Args)]
struct Status {
    /// Print JSON: a list of {state, mount, backing, pid, facts}
    #[arg(long)]
    json: bool,
}

/// Stop serving MOUNT if nobody uses it; clear away what a killed daemon left
#[derive(clap::Args)]
struct Stop {
    /// The directory where it is served
    mount: PathBuf,
    /// Stop even if programs use it; they get errors
    #[arg(long)]
    force: bool,
}

/// Does what was asked.
pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Start(start) if start.foreground => serve(start),
        Action::Start(start) => launch(start),
        Action::Status(status) => tell(status),
        Action::Stop(stop) => {
            let done = control::stop(&runtime_dir::serve_dir()?, &stop.mount, stop.force)?;
            Ok(show::out(&format!("{}: {done}\n", stop.mount.display()))?)
        }
    }
}

/// The message for a mount without passthrough.
const DIRECT_IO: &str = "the kernel asks for every read and write (direct I/O)";

/// Serves until somebody stops it.
fn serve(args: &Start) -> Result<()> {
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    let dir = runtime_dir::serve_dir()?;
    if let Some(Record { pid, .. }) = control::serving(&dir, &args.mount) {
        bail!("{}: is served already, by process {pid}", args.mount.display());
    }
    daemon::abort_on_panic();
    signals::survive_file_size_limit().context("cannot watch for signals")?;
    dwell_channel::survive_lost_memory().context("cannot watch for lost memory")?;
    let options = Options {
        backing: args.backing.clone(),
        mount: args.mount.clone(),
        private: args.private,
        threads: args.threads.into(),
        passthrough: !args.no_passthrough,
    };
    let notes = take_over(&options)?;
    let daemon = Arc::new(daemon(args)?);
    let counting = daemon.clone();
    let count = move || {
        let tally = counting.tally();
        let Tally { channels, threads, grants, commands, .. } = tally;
        let commands_by_user = counting.commands();
        Channels { channels, threads, grants, commands, commands_by_user }
    };
    let server = Server::start(&options, daemon.clone(), count)?;
    let stopper = server.stopper();
    let _listening = control::listen(&dir, &stopper)?;
    stop_at_signals(stopper.clone())?;
    let facts = stopper.facts();
    let mut word: String = notes.iter().map(|note| format!("{note}\n")).collect();
    word += &format!("serving {} at {}\n", facts.backing.display(), facts.mount.display());
    if !facts.shared_mappings {
        word += "this kernel is older than 6.6: files cannot be mapped shared there (ENODEV)\n";
    }
    if let DataPath::DirectIo { why } = &facts.data_path {
        word += &format!("{DIRECT_IO}: {why}\n");
    }
    show::out(&word)?;
    if args.detached {
        daemon::leave_output(&dir, "serve.log")?;
    }
    keep_watchdog(&daemon, stopper)?;
    places::tell_service_manager("READY=1");
    server.wait()?;
    Ok(())
}

/// Tells a service manager that wants to know that channels and mount are served, as long as they
/// are.
fn keep_watchdog(daemon: &Arc<Daemon>, stopper: Stopper) -> Result<()> {
    let Some(limit) = places::watchdog() else { return Ok(()) };
    let (pause, daemon) = (limit / 3, Arc::downgrade(daemon));
    let watch = move || {
        while let Some(daemon) = daemon.upgrade() {
            if daemon.answers(pause / 2) && stopper.answers(pause / 2) {
                places::tell_service_manager("WATCHDOG=1");
            }
            drop(daemon);
            thread::sleep(pause);
        }
    };
    thread::Builder::new()
        .name("dwell-watchdog".to_owned())
        .spawn(watch)
        .context("no thread for the watchdog")?;
    Ok(())
}

/// The channels' side, which waits as settings and what is known of the device beneath want it.
fn daemon(args: &Start) -> Result<Daemon> {
    let settings = settings::read(None)?.asked("--policy", args.policy.clone());
    let beneath = places::known_profiles().beneath_files_in(&args.backing)?;
    let opening = settings.opening(&args.backing, &beneath, None)?;
    // A daemon has no kernel's way beside its own but to sleep.
    let policy = if opening.shadow { Arc::new(Block) } else { opening.policy };
    // Without one, nobody else is taken to be busy.
    let monitor = SystemMonitor::shared_with(places::monitor()).ok();
    let owners = Arc::new(Owners::of_this_machine());
    let options = DaemonOptions {
        parameters: opening.parameters,
        policy,
        monitor,
        owners,
        ..Default::default()
    };
    Daemon::start(options).context("cannot start the daemon")
}

/// Ctrl-C stops what is idle, the second time anything; SIGTERM stops at once.
fn stop_at_signals(stopper: Stopper) -> Result<()> {
    let mut before = false;
    signals::each(move |signal| {
        let force = signal == signals::TERMINATE || before;
        before = true;
        if let Err(error) = stopper.stop(force) {
            let _ = writeln!(std::io::stderr(), "dwell: {error} (once more to force it)");
        }
    })
    .context("cannot watch for signals")
}

/// Starts a daemon in the background and passes on what it says.
fn launch(args: &Start) -> Result<()> {
    let mut command = daemon::command()?;
    command.args(["serve", "start", "--foreground", "--detached", "--threads"]);
    command.arg(args.threads.to_string()).args(args.private.then_some("--private"));
    command.args(args.no_passthrough.then_some("--no-passthrough"));
    if let Some(policy) = &args.policy {
        command.args(["--policy", policy]);
    }
    command.arg("--");
    command.args([absolute(&args.backing)?, absolute(&args.mount)?]);
    daemon::launch(command)
}

#[derive(Serialize)]
struct Told {
    state: &'static str,
    mount: PathBuf,
    backing: PathBuf,
    pid: u32,
    facts: Option<Box<Facts>>,
}

fn tell(args: &Status) -> Result<()> {
    let dir = runtime_dir::serve_dir()?;
    let seen = control::all(&dir).with_context(|| dir.display().to_string())?;
    let told: Vec<Told> = seen.into_iter().map(told).collect();
    if args.json {
        return Ok(show::out(&show::json(&told)?)?);
    }
    if told.is_empty() {
        return Ok(show::out("nothing is served by this user\n")?);
    }
    let mut text = finished(&table(&told));
    for facts in told.iter().filter_map(|one| one.facts.as_deref()) {
        if let DataPath::DirectIo { why } = &facts.data_path {
            let mount = show::one_line(&facts.mount.to_string_lossy());
            text += &format!("{mount}: {DIRECT_IO}: {}\n", show::one_line(why));
        }
    }
    Ok(show::out(&text)?)
}

fn told(seen: Seen) -> Told {
    let of = |state, record: Record| Told {
        state,
        mount: record.mount,
        backing: record.backing,
        pid: record.pid,
        facts: None,
    };
    match seen {
        Seen::Silent(record) => of("silent", record),
        Seen::Stale(record) => of("killed", record),
        Seen::Serving(facts) => Told {
            state: "serving",
            mount: facts.mount.clone(),
            backing: facts.backing.clone(),
            pid: facts.pid,
            facts: Some(facts),
        },
    }
}

fn table(told: &[Told]) -> comfy_table::Table {
    let screen = Screen::stdout();
    let heads = [
        "mount",
        "backing",
        "state",
        "process",
        "for",
        "data path",
        "channels",
        "grants",
        "commands",
        "open files",
        "requests",
    ];
    let mut table = screen.table(&heads, &[3, 4, 6, 7, 8, 9, 10]);
    for one in told {
        let tone = if one.state == "serving" { Tone::Good } else { Tone::Bad };
        let figure =
            |of: &dyn Fn(&Facts) -> String| one.facts.as_deref().map(of).unwrap_or_default();
        table.add_row(vec![
            screen.cell(Tone::Strong, show::one_line(&one.mount.to_string_lossy())),
            screen.cell(Tone::Quiet, show::one_line(&one.backing.to_string_lossy())),
            screen.cell(tone, one.state),
            screen.cell(Tone::Quiet, one.pid),
            screen.cell(Tone::Quiet, figure(&|facts| since(facts.since_unix_s))),
            screen.cell(Tone::Quiet, figure(&|facts| path_name(&facts.data_path).to_owned())),
            screen.cell(Tone::Quiet, figure(&|facts| facts.channels.channels.to_string())),
            screen.cell(Tone::Quiet, figure(&|facts| facts.channels.grants.to_string())),
            screen.cell(Tone::Quiet, figure(&|facts| facts.channels.commands.to_string())),
            screen.cell(Tone::Quiet, figure(&|facts| facts.open_files.to_string())),
            screen.cell(
                Tone::Quiet,
                figure(&|facts| facts.requests.values().sum::<u64>().to_string()),
            ),
        ]);
    }
    table
}

fn path_name(path: &DataPath) -> &'static str {
    match path {
        DataPath::Passthrough => "passthrough",
        DataPath::DirectIo { .. } => "direct I/O",
    }
}

fn since(start_unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match now.saturating_sub(start_unix_s) {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
