// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs seeds over surfaces, and shrinks what differs.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use dwell_exerciser::campaign::{self, dead};
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
    /// Run this script instead, as a difference left it
    #[arg(long)]
    script: Option<PathBuf>,
    /// Append what was run to this file
    #[arg(long)]
    log: Option<PathBuf>,
    /// Go on after so many differences on a surface
    #[arg(long, default_value_t = 3)]
    most: usize,
    /// Include what is known to differ at this commit
    #[arg(long)]
    known: bool,
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
    for name in &chosen {
        match one(arguments, name, &programs) {
            Ok(row) => {
                fine &= row.1;
                rows.push(row.0);
            }
            Err(error) if is_missing(&error) => println!("SKIP: {name}: {error:#}"),
            Err(error) => return Err(error),
        }
    }
    if let Some(file) = &arguments.log {
        log::append(file, &rows)?;
    }
    Ok(fine)
}

/// All seeds over one surface.
fn one(arguments: &Arguments, name: &str, programs: &Programs) -> Result<(Row, bool)> {
    let mut surface = campaign::surface(name, programs, arguments.known)?;
    if arguments.list {
        print!("{}", surface.listed(arguments.seed, arguments.ops));
    }
    let started = Instant::now();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let mut counts = Counts::new();
    let first = arguments.seed;
    let mut row = Row {
        surface: name.to_owned(),
        seeds: (first, first),
        operations: 0,
        kills: (0, 0),
        differences: Vec::new(),
    };
    let mut decided = 0;
    for seed in first.. {
        let done = seed - first;
        let over = match (limit, arguments.seeds) {
            _ if arguments.list => true,
            (_, Some(seeds)) if done >= seeds => true,
            (Some(limit), _) => started.elapsed() >= limit && done > 0,
            (None, None) => done > 0,
            (None, Some(_)) => false,
        };
        if over {
            break;
        }
        let outcome = surface.exercise(seed, arguments.ops, &mut counts)?;
        row.seeds.1 = seed;
        row.operations += outcome.operations;
        row.kills.0 += outcome.kills.0;
        row.kills.1 += outcome.kills.1;
        decided += outcome.decided;
        if let Some(difference) = outcome.difference {
            println!("{name}: seed {seed}: {difference}");
            println!(
                " all of it: dwell-exerciser --surface {name} --seed {seed} --ops {}\n",
                arguments.ops
            );
            row.differences.push(seed);
            if row.differences.len() >= arguments.most {
                break;
            }
        }
    }
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
        "{name}: seeds {}–{}, {} operations, {} kills of actors, {} of servers, {decided} requests not left to the kernel, {} differences, {:.0} s",
        row.seeds.0,
        row.seeds.1,
        row.operations,
        row.kills.0,
        row.kills.1,
        row.differences.len(),
        started.elapsed().as_secs_f64()
    );
    let fine = row.differences.is_empty() && (!enough || dead.is_empty());
    Ok((row, fine))
}
