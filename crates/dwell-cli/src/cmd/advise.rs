// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell advise`: where a program's storage time goes, and what would help.

mod confirm;
mod observe;
mod show;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use dwell_advise::{Error, Follow, Seen, Tracer};
use dwell_bench::advised::{self, Report};
use dwell_host::capability::State;
use dwell_host::stats_page::ProcessIo;
use dwell_host::{capability, probe};

use crate::program::{self, CannotRun, Program};
use crate::progress::Progress;
use crate::show::out;
use crate::signals::Signals;

/// Say where a program's storage time goes, and what would help
///
/// The kernel sums up every sleep that a storage request ended, also of static programs, io_uring,
/// libaio and page faults. Nothing is loaded into the program. Needs root, or CAP_BPF and
/// CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("whom").required(true).args(["pid", "all", "from", "command"])),
    override_usage = "dwell advise [OPTIONS] -- CMD...\n       dwell advise [OPTIONS] --pid PID\n       dwell advise [OPTIONS] --all\n       dwell advise [OPTIONS] --from FILE"
)]
pub struct Args {
    /// Follow a running process and those that it starts
    #[arg(long, value_parser = crate::given::process)]
    pid: Option<u32>,
    /// Follow the whole machine
    #[arg(long)]
    all: bool,
    /// Judge a recording: fio's JSON, or the text of blkparse
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// How long to look; a command is followed to its end
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Also measure the gain: run the command untouched and under dwell run in turn
    #[arg(long, conflicts_with_all = ["pid", "all", "from"])]
    confirm: bool,
    /// Rounds of --confirm
    #[arg(long, default_value_t = 10, requires = "confirm", value_parser = clap::value_parser!(u16).range(6..=10_000))]
    rounds: u16,
    /// Directory for report.html and result.json
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON to standard output, in place of the table
    #[arg(long)]
    json: bool,
    /// The command
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Follows, sums up, shows.
pub fn run(args: &Args) -> Result<()> {
    // A command that cannot be started needs no trace, and nothing is traced that cannot be kept.
    let program = args.command.first().map(|word| program::find(word)).transpose()?;
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot make the directory {}", dir.display()))?;
    }
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    let Followed { seen, moved, ended } = match &program {
        Some(program) => follow_command(&args.command, program)?,
        None => match &args.from {
            Some(recording) => read(recording)?,
            None => follow(args, &signals)?,
        },
    };
    let closed = program.as_ref().and_then(|program| program.closed.clone());
    let mut report = Report::new(whom(args), seen, closed);
    report.moved = moved;
    // A comparison takes long and may fail: what was traced before is shown and kept all the same.
    let confirmed = match args.confirm {
        true => confirm::confirm(&mut report, args, &signals),
        false => Ok(()),
    };
    args.conclude(&report)?;
    confirmed.context("the gain was not measured; the trace is above")?;
    // As of `time` and `perf stat`: the command's end is this program's.
    match ended.filter(|status| !status.success()) {
        Some(status) => Err(CannotRun {
            status: of_shell(status),
            what: format!("the command ended with {status}"),
        }
        .into()),
        None => Ok(()),
    }
}

/// The trace, the bytes that calls moved meanwhile, and the command's exit status.
struct Followed {
    seen: Seen,
    moved: Option<ProcessIo>,
    ended: Option<ExitStatus>,
}

/// The status that a shell gives a command's end.
fn of_shell(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.unwrap_or(1) as u8
}

fn whom(args: &Args) -> String {
    if let Some(recording) = &args.from {
        return recording.display().to_string();
    }
    match (args.pid, args.all) {
        (Some(pid), _) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim())
        }
        (_, true) => "the whole machine".to_owned(),
        _ => args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
    }
}

/// What the kernel accounts to a process and to the children that it has waited for.
fn moved_by(process: u32) -> Option<ProcessIo> {
    let text = std::fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    Some(ProcessIo::parse(&text))
}

fn moved_since(process: u32, before: Option<ProcessIo>) -> Option<ProcessIo> {
    Some(moved_by(process)?.since(&before?))
}

/// Starts the command, and follows it and all that it starts to their end.
fn follow_command(command: &[OsString], program: &Program) -> Result<Followed> {
    let mut tracer = match Tracer::start(Follow::Children) {
        Ok(tracer) => tracer,
        Err(
            error @ (Error::PidNamespace
            | Error::Forbidden(_)
            | Error::LockedDown
            | Error::NoTypes
            | Error::Refused { .. }),
        ) => {
            let (seen, ended) = observe::follow(command, &in_words(&error))?;
            return Ok(Followed { seen, moved: None, ended: Some(ended) });
        }
        Err(error) => return Err(anyhow!(in_words(&error))),
    };
    let before = moved_by(std::process::id());
    let child = Command::new(&program.path).arg0(&command[0]).args(&command[1..]).spawn();
    let mut child: Child = child.map_err(|error| CannotRun::refused(&program.path, &error))?;
    tracer.started()?;
    let status = child.wait().context("waiting for the command")?;
    let moved = moved_since(std::process::id(), before);
    Ok(Followed { seen: tracer.finish()?, moved, ended: Some(status) })
}

/// Why nothing is traced; where a right is missing, which one.
pub(super) fn in_words(error: &Error) -> String {
    let capability::Capability { state, detail, remedy, .. } = capability::tracing();
    match (error, state) {
        (Error::Forbidden(_), State::Forbidden) => {
            format!("{detail}; {}", remedy.unwrap_or_default())
        }
        _ => error.to_string(),
    }
}

/// What a recording tells. Blocking costs what it costs here.
fn read(recording: &Path) -> Result<Followed> {
    // A file that is no recording is refused before anything is measured.
    advised::seen_in_recording(recording, 0)?;
    let mut progress = Progress::of("advise");
    let switches = probe::switch_costs(&mut |done| progress.show("cost of leaving the CPU", done))
        .context("measuring what leaving the CPU costs")?;
    progress.finish();
    let seen = advised::seen_in_recording(recording, switches.self_ns)?;
    Ok(Followed { seen, moved: None, ended: None })
}

/// Looks for as long as was asked, or until Ctrl-C, or until nobody is left.
fn follow(args: &Args, signals: &Signals) -> Result<Followed> {
    let tracer = Tracer::start(args.pid.map_or(Follow::Everything, Follow::Process));
    let tracer = tracer.map_err(|error| anyhow!(in_words(&error)))?;
    let before = args.pid.and_then(moved_by);
    let mut moved = None;
    let (begin, length) = (Instant::now(), Duration::from_secs(args.seconds.into()));
    let mut progress = Progress::of("advise");
    while begin.elapsed() < length && signals.received().is_none() {
        progress.show("looking", begin.elapsed().as_secs_f64() / length.as_secs_f64());
        thread::sleep(Duration::from_millis(100).min(length.saturating_sub(begin.elapsed())));
        // A process may end at any time, and its counts with it.
        moved = args.pid.and_then(|pid| moved_since(pid, before)).or(moved);
        if args.pid.is_some() && !tracer.is_anybody_left() {
            break;
        }
    }
    progress.finish();
    Ok(Followed { seen: tracer.finish()?, moved, ended: None })
}

impl Args {
    fn conclude(&self, report: &Report) -> Result<()> {
        if let Some(dir) = &self.out {
            report.save_json(&dir.join("result.json"))?;
            report.save_html(&dir.join("report.html"))?;
        }
        match self.json {
            true => out(&report.json()?)?,
            false => self.say(&show::text(report))?,
        }
        if let Some(dir) = &self.out {
            let page = dir.join("report.html");
            eprintln!("report: {}", page.canonicalize().unwrap_or(page).display());
        }
        Ok(())
    }

    /// A command's own output stays its own where it goes to a file or a pipe.
    fn say(&self, text: &str) -> io::Result<()> {
        match self.command.is_empty() || io::stdout().is_terminal() {
            true => out(text),
            false => io::stderr().lock().write_all(text.as_bytes()),
        }
    }
}
