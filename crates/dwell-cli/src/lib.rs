// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `dwell` command: parses, calls the engine, shows what it answers.
//!
//! It is a library so that a program can bring wait policies of its own into the very same
//! command: it registers them ([`dwell::policies::register`]) and calls [`main`].

mod answer;
mod chart;
mod cmd;
mod exec;
mod exporter;
mod given;
mod help;
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

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Args as _, FromArgMatches as _, Parser, Subcommand};

use answer::answer;
pub use help::command;

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
  DWELL_VALGRIND       directory with the Valgrind tool of dwell lab trace
  NO_COLOR             no colours, also on a terminal

Exit status: 0, 1 after an error, 2 after a wrong command line, 130 after Ctrl-C, 143 after SIGTERM; dwell run has more.")]
struct Cli {
    /// Colours: on a terminal unless NO_COLOR is set, always, or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    color: show::Color,
    /// Print no progress and no warnings
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Say first which settings, profiles and pages are used
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    #[command(subcommand)]
    command: Command,
}

/// What can be asked of it: what people do first, experiments last.
#[derive(Subcommand)]
enum Command {
    Run(cmd::run::Args),
    Advise(cmd::advise::Args),
    Compare(cmd::compare::Args),
    Top(cmd::top::Args),
    Explain(cmd::explain::Args),
    Doctor(cmd::doctor::Args),
    Probe(cmd::probe::Args),
    #[command(subcommand)]
    Bench(cmd::bench::Bench),
    Serve(cmd::serve::Args),
    #[command(subcommand)]
    Nfs(cmd::nfs::Nfs),
    Ctl(cmd::ctl::Args),
    Off(cmd::off::OffArgs),
    On(cmd::off::OnArgs),
    Profile(cmd::profile::Args),
    #[command(subcommand)]
    Lab(cmd::lab::Lab),
    /// Writes manual pages and completions.
    #[command(hide = true)]
    Pages(help::Pages),
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
            Command::Compare(args) => cmd::compare::run(&args),
            Command::Lab(lab) => cmd::lab::run(&lab),
            Command::Serve(args) => cmd::serve::run(&args),
            Command::Pages(args) => args.write(),
            Command::Crunch(args) => args.run(),
        }
    }
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    if let Some(args) = run_alone() {
        return answer(cmd::run::run(&args));
    }
    dwell_channel::client::register();
    dwell_nfs::queue::register();
    answer(asked().and_then(|cli| {
        show::color(cli.color);
        progress::quiet(cli.quiet);
        for (what, place) in cli.verbose.then(places::used).into_iter().flatten() {
            progress::note(&format!("dwell: {what}: {}", show::one_line(&place)));
        }
        cli.command.run()
    }))
}

/// The arguments of a plain `dwell run`. A script may start it before each of its programs, so the
/// other commands are not described first. Help and wrong arguments take the long way.
fn run_alone() -> Option<cmd::run::Args> {
    let mut words = std::env::args_os().skip(1);
    words.next().filter(|word| word == "run")?;
    let command = cmd::run::Args::augment_args(clap::Command::new("run").no_binary_name(true));
    cmd::run::Args::from_arg_matches(&command.try_get_matches_from(words).ok()?).ok()
}

/// What the command line asks for.
fn asked() -> anyhow::Result<Cli> {
    if let Some(said) = std::env::args_os().nth(1).and_then(|word| cmd::lab::moved(word.to_str()?))
    {
        return Err(answer::wrong(said));
    }
    let mut command = help::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let matches = matches.map_err(|error| without_hidden(error, &command))?;
    Ok(Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?)
}

/// The same error without proposals of commands that help does not list.
fn without_hidden(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let kind = ContextKind::SuggestedSubcommand;
    if let Some(ContextValue::Strings(mut names)) = error.remove(kind) {
        let is_hidden = |name: &str| command.find_subcommand(name).is_some_and(|c| c.is_hide_set());
        names.retain(|name| !is_hidden(name));
        match names.is_empty() {
            // An empty list of hints is an empty line.
            true => error.remove(ContextKind::Suggested),
            false => error.insert(kind, ContextValue::Strings(names)),
        };
    }
    error
}
