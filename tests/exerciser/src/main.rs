// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs seeds over surfaces, and shrinks what differs.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use dwell_exerciser::campaign::{self, Outcome, Surface, dead};
use dwell_exerciser::compare::Counts;
use dwell_exerciser::log::{self, Row};
use dwell_exerciser::surface::{Programs, is_missing};

/// Runs random file operations over Dwell and compares them with a model and the plain file system
#[derive(Parser)]
struct Arguments {
    /// The surface, a beginning of its name, or `all`
    #[arg(long, default_value = "all")]
    surface: String,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds; without it and without --minutes, one
    #[arg(long)]
    seeds: Option<u64>,
    /// Operations of a seed
    #[arg(long, default_value_t = 1000)]
    ops: usize,
    /// Go on with further seeds for so many minutes on each surface
    #[arg(long)]
    minutes: Option<f64>,
    /// Go on with further seeds until they have so many operations on each surface
    #[arg(long)]
    operations: Option<u64>,
    /// How many seeds run at once, each on a surface of its own
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Run this script instead, as a difference left it
    #[arg(long)]
    script: Option<PathBuf>,
    /// Append what was run to this file
    #[arg(long)]
    log: Option<PathBuf>,
    /// Go on after so many differences on a surface
    #[arg(long, default_value_t = 3)]
    most: usize,
    /// Carry out the steps of a pager's sequence, in this process
    #[arg(long, hide = true, num_args = 3)]
    pager_steps: Vec<PathBuf>,
    /// Print the operations of the seed and run nothing
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("dwell-exerciser: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool> {
    if let [steps, records, file] = arguments.pager_steps.as_slice() {
        return dwell_exerciser::pager::carry_out(steps, records, file).map(|()| true);
    }
    let programs = Programs::find()?;
    let all = campaign::names();
    let chosen: Vec<String> = match arguments.surface.as_str() {
        "all" => all,
        name => all.into_iter().filter(|one| one.starts_with(name)).collect(),
    };
    if chosen.is_empty() {
        anyhow::bail!(
            "no surface {}; there are: {}",
            arguments.surface,
            campaign::names().join(" ")
        );
    }
    if let Some(script) = &arguments.script {
        let found = campaign::again(&chosen[0], script, &programs)?;
        println!("{}", found.as_deref().unwrap_or("no difference"));
        return Ok(found.is_none());
    }
    let mut fine = true;
    let mut rows = Vec::new();
    let mut broken = Ok(());
    for name in &chosen {
        match campaign::surface(name, &programs) {
            Ok(surface) => {
                let (row, is_fine, done) = one(arguments, name, &programs, surface);
                fine &= is_fine;
                rows.push(row);
                broken = done;
            }
            Err(error) if is_missing(&error) => println!("SKIP: {name}: {error:#}"),
            Err(error) => broken = Err(error),
        }
        if broken.is_err() {
            break;
        }
    }
    // What was run before it broke was run.
    if let Some(file) = &arguments.log {
        log::append(file, &rows)?;
    }
    broken.map(|()| fine)
}

/// All seeds over one surface, by as many workers as were asked for, each with a surface of its
/// own.
fn one(
    arguments: &Arguments,
    name: &str,
    programs: &Programs,
    mut surface: Box<dyn Surface>,
) -> (Row, bool, Result<()>) {
    let new = || campaign::surface(name, programs);
    if arguments.list {
        print!("{}", surface.listed(arguments.seed, arguments.ops));
    }
    let first = arguments.seed;
    let work = Work {
        arguments,
        name,
        started: Instant::now(),
        next: AtomicU64::new(first),
        all: Mutex::new(All::default()),
    };
    let done = std::thread::scope(|scope| -> Result<()> {
        let more = if arguments.list { 0 } else { arguments.jobs.saturating_sub(1) };
        let others: Vec<_> =
            (0..more).map(|_| scope.spawn(|| work.seeds(new()?.as_mut()))).collect();
        let mut done = work.seeds(surface.as_mut());
        for other in others {
            done = done.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    let seconds = work.started.elapsed().as_secs_f64();
    let All { counts, outcome, last, mut differences, .. } =
        work.all.into_inner().unwrap_or_else(PoisonError::into_inner);
    differences.sort_unstable();
    let row = Row {
        surface: name.to_owned(),
        seeds: (first, last.unwrap_or(first)),
        operations: outcome.operations,
        kills: outcome.kills,
        deaths: outcome.deaths,
        differences,
    };
    for (kind, (tried, done)) in &counts {
        println!("  {kind:32} {tried:>9} tried {done:>9} succeeded");
    }
    let dead = dead(&counts);
    // A few operations cannot contain everything.
    let enough = row.operations >= 100_000;
    if enough && !dead.is_empty() {
        println!("{name}: never succeeded: {}", dead.join(", "));
    }
    println!(
        "{name}: seeds {}–{}, {} operations, {} kills of actors, {} of servers, {} servers that ended by themselves, {} requests decided, {} not left to the kernel, {} differences, {seconds:.0} s",
        row.seeds.0,
        row.seeds.1,
        row.operations,
        row.kills.0,
        row.kills.1,
        row.deaths,
        outcome.requests.decided,
        outcome.requests.taken,
        row.differences.len(),
    );
    let fine = row.differences.is_empty() && (!enough || dead.is_empty());
    (row, fine, done)
}

/// What came of all seeds so far.
#[derive(Default)]
struct All {
    counts: Counts,
    outcome: Outcome,
    last: Option<u64>,
    differences: Vec<u64>,
    broken: bool,
}

/// The seeds over one surface, of which workers take one after the other.
struct Work<'a> {
    arguments: &'a Arguments,
    name: &'a str,
    started: Instant,
    next: AtomicU64,
    all: Mutex<All>,
}

impl Work<'_> {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the seed that comes after so many is not to be run.
    fn is_over(&self, done: u64) -> bool {
        let Arguments { list, seeds, minutes, most, ops, operations, .. } = self.arguments;
        let all = self.all();
        if *list || all.broken || all.differences.len() >= *most {
            return true;
        }
        if operations.is_some_and(|enough| done * *ops as u64 >= enough) {
            return true;
        }
        let limit = minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
        match (limit, seeds) {
            (_, Some(seeds)) if done >= *seeds => true,
            (Some(limit), _) => self.started.elapsed() >= limit && done > 0,
            (None, None) => done > 0 && operations.is_none(),
            (None, Some(_)) => false,
        }
    }

    /// Runs seeds on a surface until it is enough.
    fn seeds(&self, surface: &mut dyn Surface) -> Result<()> {
        let done = self.until_over(surface);
        self.all().broken |= done.is_err();
        done
    }

    fn until_over(&self, surface: &mut dyn Surface) -> Result<()> {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if self.is_over(seed - self.arguments.seed) {
                return Ok(());
            }
            let mut counts = Counts::new();
            let outcome = surface.exercise(seed, self.arguments.ops, &mut counts)?;
            let mut all = self.all();
            for (kind, (tried, done)) in counts {
                let sum = all.counts.entry(kind).or_default();
                *sum = (sum.0 + tried, sum.1 + done);
            }
            all.last = all.last.max(Some(seed));
            all.outcome.operations += outcome.operations;
            all.outcome.kills.0 += outcome.kills.0;
            all.outcome.kills.1 += outcome.kills.1;
            all.outcome.deaths += outcome.deaths;
            all.outcome.requests += outcome.requests;
            if let Some(difference) = outcome.difference {
                let (name, ops) = (self.name, self.arguments.ops);
                println!("{name}: seed {seed}: {difference}");
                println!(
                    " all of it: dwell-exerciser --surface {name} --seed {seed} --ops {ops}\n"
                );
                all.differences.push(seed);
            }
        }
    }
}
