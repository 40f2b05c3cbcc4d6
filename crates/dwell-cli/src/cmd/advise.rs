// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell advise`: where a program's storage time goes, and what would help.

mod confirm;
mod show;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dwell_advise::{Follow, Seen, Tracer};

use crate::program::{self, CannotRun, Program};
use crate::progress::Progress;
use crate::show::out;
use crate::signals::Signals;

/// Say where a program's storage time goes, and what would help
///
/// The kernel sums up every sleep that a storage request ended, also of static programs, io_uring,
/// libaio and page faults. Nothing is loaded into the program. Needs root, or CAP_BPF and CAP_PERFMON.
#[derive(clap::Args)]
#[command(
    group(clap::ArgGroup::new("whom").required(true).args(["pid", "all", "command"])),
    override_usage = "dwell advise [OPTIONS] -- CMD...\n       dwell advise [OPTIONS] --pid PID\n       dwell advise [OPTIONS] --all",
    after_help = "\
Examples:
  dwell advise -- sqlite3 test.db '.read queries.sql'
  dwell advise --pid $(pgrep -o postgres) --seconds 30
  dwell advise --all --out report
See docs/advise.md."
)]
pub struct Args {
    /// Follow a running process and those that it starts
    #[arg(long)]
    pid: Option<u32>,
    /// Follow the whole machine
    #[arg(long)]
    all: bool,
    /// How long to look; a command is followed to its end
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Also measure the gain: run the command untouched and under dwell run in turn
    #[arg(long, requires = "command")]
    confirm: bool,
    /// Rounds of --confirm
    #[arg(long, default_value_t = 10, requires = "confirm", value_parser = clap::value_parser!(u16).range(6..=10_000))]
    rounds: u16,
    /// Directory for report.html and result.json
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the result as JSON to FILE; - prints it in place of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    let (seen, ended) = match &program {
        Some(program) => follow_command(&args.command, program)?,
        None => (follow(args, &signals)?, None),
    };
    let closed = program.as_ref().and_then(|program| program.closed.clone());
    let mut report = dwell_bench::advised::Report::new(whom(args), seen, closed);
    if args.confirm {
        confirm::confirm(&mut report, args, &signals)?;
    }
    args.conclude(&report)?;
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

/// The status that a shell gives a command's end.
fn of_shell(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.unwrap_or(1) as u8
}

fn whom(args: &Args) -> String {
    match (args.pid, args.all) {
        (Some(pid), _) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim())
        }
        (_, true) => "the whole machine".to_owned(),
        _ => args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
    }
}

/// Starts the command, and follows it and all that it starts to their end.
fn follow_command(command: &[OsString], program: &Program) -> Result<(Seen, Option<ExitStatus>)> {
    let mut tracer = Tracer::start(Follow::Children)?;
    let child = Command::new(&program.path).arg0(&command[0]).args(&command[1..]).spawn();
    let mut child: Child = child.map_err(|error| CannotRun::refused(&program.path, &error))?;
    tracer.started()?;
    let status = child.wait().context("waiting for the command")?;
    Ok((tracer.finish()?, Some(status)))
}

/// Looks for as long as was asked, or until Ctrl-C, or until nobody is left.
fn follow(args: &Args, signals: &Signals) -> Result<Seen> {
    let tracer = Tracer::start(args.pid.map_or(Follow::Everything, Follow::Process))?;
    let (begin, length) = (Instant::now(), Duration::from_secs(args.seconds.into()));
    let mut progress = Progress::of("advise");
    while begin.elapsed() < length && signals.received().is_none() {
        progress.show("looking", begin.elapsed().as_secs_f64() / length.as_secs_f64());
        thread::sleep(Duration::from_millis(100).min(length.saturating_sub(begin.elapsed())));
        if args.pid.is_some() && !tracer.is_anybody_left() {
            break;
        }
    }
    progress.finish();
    Ok(tracer.finish()?)
}

impl Args {
    fn conclude(&self, report: &dwell_bench::advised::Report) -> Result<()> {
        if let Some(dir) = &self.out {
            report.save_json(&dir.join("result.json"))?;
            report.save_html(&dir.join("report.html"))?;
        }
        match self.json.as_deref() {
            Some(path) if path == Path::new("-") => out(&report.json()?)?,
            Some(path) => {
                report.save_json(path)?;
                self.say(&show::text(report))?;
            }
            None => self.say(&show::text(report))?,
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
