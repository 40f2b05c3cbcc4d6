// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell compare`: a command untouched and under wait policies.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use dwell_bench::compare::{self, Comparison, Plan, Verdict, Wrapper};
use dwell_bench::keep::Interrupted;

use super::explain::policy_name;
use crate::progress::{self, Progress};
use crate::show::Screen;
use crate::signals::{Ended, Signals};
use crate::{given, places, show};

/// Compare a command with and without Dwell
#[derive(clap::Args)]
#[command(after_help = "\
Each round runs every variant once, in random order. What the command prints goes to files; those of \
runs that failed or printed something else are kept in DIR/runs. The command gets no input and no \
terminal.")]
pub struct Args {
    /// Policies to compare with the untouched command
    #[arg(long, alias = "policy", value_delimiter = ',', default_value = "block,adaptive,spin", value_parser = policy_name)]
    policies: Vec<String>,
    /// Interleaved rounds; fewer than six cannot tell anything apart
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Rounds before them that are not kept
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    warmup: u16,
    /// Also run the untouched command twice per round, to show the noise
    #[arg(long)]
    control: bool,
    /// Shell command before each run, untimed
    #[arg(long, value_name = "CMD")]
    setup: Option<String>,
    /// Shell command after each run, untimed; its output is compared in place of the command's
    #[arg(long, value_name = "CMD")]
    check: Option<String>,
    /// Continue when a run fails
    #[arg(long)]
    ignore_failure: bool,
    /// Directory for report.html, result.json and result.csv
    #[arg(short, long, value_name = "DIR", default_value = "dwell-compare")]
    out: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Words that put a command under {policy} and write {stats}, in place of `dwell run`
    #[arg(long, hide = true, num_args = 1, allow_hyphen_values = true)]
    wrapper_word: Vec<OsString>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Compares, keeps, shows.
pub fn run(args: &Args) -> Result<()> {
    super::off::refuse("a comparison")?;
    let mut plan = args.plan()?;
    // Where the report cannot go, nothing needs to be measured.
    given::directory(&args.out)?;
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the directory {}", args.out.display()))?;
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    plan.stop = signals.stop.clone();
    let mut progress = Progress::of("compare");
    let (mut done, total) = (0.0, plan.runs() as f64);
    let outcome = compare::run(&plan, command, &mut |what| {
        progress.show(what, done / total);
        done += 1.0;
    });
    progress.finish();
    let result = match outcome {
        Err(error) if error.is::<Interrupted>() => {
            let kept = "no round was complete, nothing was kept".to_owned();
            return Err(Ended { signal: signals.received().unwrap_or_default(), kept }.into());
        }
        outcome => outcome?,
    };
    args.conclude(&result, &signals)
}

impl Args {
    fn plan(&self) -> Result<Plan> {
        given::once("--policies", self.policies.iter().cloned())?;
        let program = &self.command[0];
        if !places::is_program(program) {
            bail!("{}: there is no such program", show::one_line(&program.to_string_lossy()));
        }
        let wrapper = match &self.wrapper_word[..] {
            [] => Wrapper::dwell_run(&places::own_program()?),
            words => Wrapper::new(words),
        };
        let policies: Vec<&str> = self.policies.iter().map(String::as_str).collect();
        let shell = |text: &Option<String>| {
            text.as_ref().map(|text| ["sh", "-c", text].map(OsString::from).into())
        };
        Ok(Plan {
            rounds: self.rounds.into(),
            warmup: self.warmup.into(),
            control: self.control,
            setup: shell(&self.setup),
            check: shell(&self.check),
            ignore_failure: self.ignore_failure,
            directory: self.out.clone(),
            ..Plan::new(self.command.clone(), &policies, wrapper)
        })
    }

    fn conclude(&self, result: &Comparison, signals: &Signals) -> Result<()> {
        let saved = self.save(result);
        // Measured once, it is shown even where it cannot be kept.
        let shown = match self.json {
            true => show::out(&result.json()?),
            false => show::out(&coloured(&compare::table(result))),
        };
        for note in &result.notes {
            progress::note(&format!("note: {}", show::one_line(note)));
        }
        let place = match &saved {
            Ok(page) => {
                eprintln!("report: {}", page.display());
                format!("kept in {}", self.out.display())
            }
            Err(error) => format!("not kept: {error:#}"),
        };
        if let Some(why) = &result.ended {
            let rounds = result.untouched().map_or(0, |base| base.rounds.len());
            let plural = if rounds == 1 { "" } else { "s" };
            let kept = format!("{rounds} complete round{plural}, {place}");
            match signals.received() {
                Some(signal) => return Err(Ended { signal, kept }.into()),
                None => bail!("ended early: {why}; {kept}"),
            }
        }
        saved?;
        Ok(shown?)
    }

    /// Writes all forms; where the report is then.
    fn save(&self, result: &Comparison) -> Result<PathBuf> {
        let page = self.out.join("report.html");
        result.save(&self.out.join("result.json"))?;
        result.save_csv(&self.out.join("result.csv"))?;
        compare::save_report(result, &page)?;
        Ok(page.canonicalize().unwrap_or(page))
    }
}

/// The table with its verdicts in colour, where colours are wanted.
fn coloured(table: &str) -> String {
    let screen = Screen::stdout();
    let paint = |line: &str| {
        let tones = [(Verdict::Faster, show::Tone::Good), (Verdict::Slower, show::Tone::Bad)];
        match tones.iter().find(|(verdict, _)| line.trim_end().ends_with(verdict.as_str())) {
            Some((verdict, tone)) => {
                let word = verdict.as_str();
                line.replacen(word, &screen.paint(*tone, word), 1)
            }
            None => line.to_owned(),
        }
    };
    table.lines().map(|line| paint(line) + "\n").collect()
}
