// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `dwell` command: parses, calls the hall, shows what it answers.
//!
//! It is a library so that a program can bring wait policies of its own into the very same
//! command: it registers them ([`dwell::policies::register`]) and calls [`main`].

mod chart;
mod cmd;
mod exec;
mod exporter;
mod front;
mod openmetrics;
mod places;
mod program;
mod progress;
mod report;
mod runtime_dir;
mod settings;
mod show;
mod signals;
mod size;
mod terminal;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use front::front;

/// Storage I/O that decides per request whether to busy-wait or to context-switch.
#[derive(Parser)]
#[command(name = "dwell", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Environment:
  DWELL_PROFILES       directory that keeps profiles
  DWELL_HOST_PAGE      page that the Dwell processes of this host share
  DWELL_OFF            file by which root switches Dwell off, in place of /run/dwell-off
  DWELL_SYSTEM_CONFIG  settings of the machine, in place of /etc/dwell/dwell.toml
  DWELL_PRELOAD        library that dwell run loads into a command
  DWELL_VALGRIND       directory with the Valgrind tool of dwell trace
  NO_COLOR             no colours, also on a terminal

Exit status: 0, 1 after an error, 2 after a wrong command line, 130 after Ctrl-C, 143 after SIGTERM; of dwell run: see\nthere.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What can be asked of it.
#[derive(Subcommand)]
enum Command {
    Run(cmd::run::Args),
    Ctl(cmd::ctl::Args),
    Off(cmd::off::OffArgs),
    On(cmd::off::OnArgs),
    Top(cmd::top::Args),
    Probe(cmd::probe::Args),
    Profile(cmd::profile::Args),
    Doctor(cmd::doctor::Args),
    Explain(cmd::explain::Args),
    Advise(cmd::advise::Args),
    #[command(subcommand)]
    Bench(cmd::bench::Bench),
    #[command(subcommand)]
    Nfs(cmd::nfs::Nfs),
    Figure(cmd::figure::Args),
    Compare(cmd::compare::Args),
    #[command(subcommand)]
    Trace(cmd::trace::Trace),
    #[command(subcommand)]
    Sim(cmd::sim::Sim),
    Serve(cmd::serve::Args),
    /// One process of the load beside a measurement.
    #[command(hide = true)]
    Crunch(cmd::bench::Crunch),
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Run(args) => cmd::run::run(&args),
            Command::Ctl(args) => cmd::ctl::run(&args),
            Command::Off(args) => cmd::off::off(&args),
            Command::On(args) => cmd::off::on(&args),
            Command::Top(args) => cmd::top::run(&args),
            Command::Probe(args) => cmd::probe::run(&args),
            Command::Profile(args) => cmd::profile::run(&args),
            Command::Doctor(args) => cmd::doctor::run(&args),
            Command::Explain(args) => cmd::explain::run(&args),
            Command::Advise(args) => cmd::advise::run(&args),
            Command::Bench(bench) => cmd::bench::run(&bench),
            Command::Nfs(command) => cmd::nfs::run(&command),
            Command::Figure(args) => cmd::figure::run(&args),
            Command::Compare(args) => cmd::compare::run(&args),
            Command::Trace(trace) => cmd::trace::run(&trace),
            Command::Sim(sim) => cmd::sim::run(&sim),
            Command::Serve(args) => cmd::serve::run(&args),
            Command::Crunch(args) => args.run(),
        }
    }
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    dwell_channel::client::register();
    dwell_nfs::queue::register();
    answer(Cli::parse().command.run())
}

/// What this process ends with, after what is to be said about it.
fn answer(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                usage.exit();
            }
            // Where even this cannot be said, the exit status still can.
            let _ = writeln!(std::io::stderr(), "dwell: {}", show::one_line(&format!("{error:#}")));
            let ended = error.downcast_ref::<signals::Ended>().map(signals::Ended::status);
            let cannot = error.downcast_ref::<program::CannotRun>().map(|cannot| cannot.status);
            ended.or(cannot).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
