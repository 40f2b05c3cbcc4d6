// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seed after seed over a surface.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::compare::{Counts, Difference, count, difference};
use crate::generate::{Abilities, sanitized, script};
use crate::model::said;
use crate::operation::{Op, Script};
use crate::record::Seen;
use crate::run::{Requests, run};
use crate::shrink::minimal;
use crate::surface::{Programs, Site};

/// What came of one seed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations carried out with Dwell in between.
    pub operations: u64,
    /// Kills of actors and of servers, by the status that whoever waited for them found.
    pub kills: (u64, u64),
    /// Servers of others that died by themselves.
    pub deaths: u64,
    /// What a policy was asked for.
    pub requests: Requests,
    /// What differed, with the smallest sequence that still does.
    pub difference: Option<String>,
}

/// Something that seeds are run over.
pub trait Surface {
    /// Runs one seed.
    ///
    /// # Errors
    /// A failure that is not the surface's fault.
    fn exercise(&mut self, seed: u64, lines: usize, counts: &mut Counts) -> Result<Outcome>;
    /// Makes the sequence of a seed as a person reads it.
    fn listed(&self, seed: u64, lines: usize) -> String;
}

/// So long is a difference shrunk.
const SHRINKING: Duration = Duration::from_secs(150);

/// A script as a person reads it.
pub fn listed(script: &Script) -> String {
    let mut text = format!("{:?} order\n", script.order);
    for (number, line) in script.lines.iter().enumerate() {
        text += &format!("  {number:4} {}.{} {:?}\n", line.process, line.thread, line.op);
    }
    text
}

/// A long text without its middle; the file has all of it.
fn shortened(text: String) -> String {
    const MOST: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() <= MOST {
        return text;
    }
    let left_out = lines.len() - MOST;
    let (first, last) = (lines[..MOST / 2].join("\n"), lines[lines.len() - MOST / 2..].join("\n"));
    format!("{first}\n  … {left_out} more, which the file has …\n{last}\n")
}

impl Site {
    /// Runs a script without and with Dwell.
    ///
    /// # Errors
    /// A failure that is not the surface's fault.
    pub fn compared(&self, script: &Script) -> Result<(Option<Difference>, crate::run::Ran)> {
        let plain = run(self, script, false, None)?;
        let beneath = run(self, script, true, None)?;
        let served = self.backing.is_some();
        Ok((difference(script, &plain, &beneath, served), beneath))
    }

    /// The smallest script that still differs.
    pub fn shrunk(&self, script: &Script, first: &Difference) -> (Script, Difference) {
        let until = Instant::now() + SHRINKING;
        let mut last = first.clone();
        // What comes after the line that differs is not needed for it.
        let mut lines = script.lines.clone();
        if let Some(line) = first.line
            && script.order == crate::operation::Order::Serial
        {
            lines.truncate(line + 1);
        }
        let order = script.order;
        // Free actors do not always meet.
        let again = if order == crate::operation::Order::Free { 3 } else { 1 };
        let mut fails = |lines: &[crate::operation::Line]| {
            if Instant::now() > until {
                return false;
            }
            let candidate = sanitized(&Script { order, lines: lines.to_vec() });
            (0..again).any(|_| match self.compared(&candidate) {
                Ok((Some(found), _)) if found.is_models == first.is_models => {
                    last = found;
                    true
                }
                _ => false,
            })
        };
        if !fails(&lines) {
            lines = script.lines.clone();
        }
        if order == crate::operation::Order::Free {
            // Free actors stay within what is theirs only if slots stand for the same files.
            let numbered: Vec<(usize, crate::operation::Line)> =
                lines.into_iter().enumerate().collect();
            let (kept, rest): (Vec<_>, Vec<_>) =
                numbered.into_iter().partition(|(_, line)| line.op.is_structural());
            let whole = |some: &[(usize, crate::operation::Line)]| {
                let mut all = [some, kept.as_slice()].concat();
                all.sort_by_key(|(number, _)| *number);
                all.into_iter().map(|(_, line)| line).collect::<Vec<_>>()
            };
            let some = minimal(&rest, 2000, |some| fails(&whole(some)));
            let lines = whole(&some);
            return (sanitized(&Script { order, lines }), last);
        }
        let lines = minimal(&lines, 2000, &mut fails);
        (sanitized(&Script { order, lines }), last)
    }

    /// A difference with its smallest sequence.
    pub fn report(&self, script: &Script, first: &Difference) -> String {
        let (small, last) = self.shrunk(script, first);
        let whose = if first.is_models {
            "the plain file system does not do what the model says"
        } else {
            "a difference"
        };
        let at = |one: &Difference| one.line.map_or(String::new(), |line| format!("line {line}: "));
        static REPORTS: AtomicU64 = AtomicU64::new(0);
        let number = REPORTS.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let file = format!("exerciser-{}-{process}-{number}.json", self.name);
        let file = std::env::temp_dir().join(file);
        let kept = serde_json::to_vec(&small).is_ok_and(|text| std::fs::write(&file, text).is_ok());
        let mut text = format!(
            "{whose}\n first seen: {}{}\n smallest: {}{}\n{}",
            at(first),
            first.what,
            at(&last),
            last.what,
            shortened(listed(&small))
        );
        if kept {
            text += &format!(
                " again: dwell-exerciser --surface {} --script {}\n",
                self.name,
                file.display()
            );
        }
        text
    }
}

impl Surface for Site {
    fn exercise(&mut self, seed: u64, lines: usize, counts: &mut Counts) -> Result<Outcome> {
        let script = script(seed, lines, self.abilities());
        let (found, ran) = self.compared(&script)?;
        count(&script, &ran, counts);
        let operations = ran.seen.iter().flatten().count() as u64;
        let (kills, requests) = (ran.kills, ran.requests);
        let mut outcome = Outcome { operations, kills, requests, ..Outcome::default() };
        outcome.difference = found.map(|found| self.report(&script, &found));
        Ok(outcome)
    }

    fn listed(&self, seed: u64, lines: usize) -> String {
        listed(&script(seed, lines, self.abilities()))
    }
}

/// The surface of a name.
///
/// # Errors
/// There is none, or not here.
pub fn surface(name: &str, programs: &Programs) -> Result<Box<dyn Surface>> {
    Ok(match name {
        "pager" => Box::new(crate::pager::Pager::new(programs)?),
        "nfs" => Box::new(crate::nfs::Nfs::new()?),
        name => Box::new(Site::new(name, programs)?),
    })
}

/// The names of all surfaces.
pub fn names() -> Vec<String> {
    let others = ["pager", "nfs"].map(str::to_owned);
    crate::surface::names().into_iter().chain(others).collect()
}

/// Runs a script of a file on a surface; what differs.
///
/// # Errors
/// It cannot be read, or the surface is not to be had.
pub fn again(name: &str, file: &Path, programs: &Programs) -> Result<Option<String>> {
    let script: Script = serde_json::from_slice(&std::fs::read(file)?)?;
    let script = sanitized(&script);
    let site = Site::new(name, programs)?;
    let (found, ran) = site.compared(&script)?;
    let told = |(number, seen): (usize, &Option<Seen>)| {
        let what = seen.as_ref().map_or("not carried out".to_owned(), said);
        format!("  {number:4} {what}\n")
    };
    let results: String = ran.seen.iter().enumerate().map(told).collect();
    Ok(found.map(|found| {
        format!("{:?}: {}\n{}results\n{results}", found.line, found.what, listed(&script))
    }))
}

/// The kinds that were tried and never succeeded.
pub fn dead(counts: &Counts) -> Vec<&str> {
    let dead =
        |(kind, (_, done)): &(&String, &(u64, u64))| *done == 0 && !Op::may_always_fail(kind);
    counts.iter().filter(dead).map(|(kind, _)| kind.as_str()).collect()
}

/// What scripts can do at all, for the tests of generating.
pub fn everything() -> Abilities {
    Abilities { unnamed: true, disturb: true, ring_position: true, no_append: true }
}
