// SPDX-License-Identifier: MIT OR Apache-2.0
//! A script that runs a real program: what a trace of it promises, and what `dwell run` changes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use dwell_advise::{Follow, Seen, Tracer};

use super::Lab;
use super::lab::both;
use super::sampled::enter;
use super::wrapped::{POLICY, Wrapping};
use crate::figure::{FigureResult, Measured};
use dwell_bench::advised;
use dwell_bench::compare::{Metric, Plan, Runs, UNTOUCHED, Wrapper};
use dwell_bench::keep::Interrupted;
use dwell_bench::pairs::{self, Parts, Restless, Sampled, Until};

/// Half the width of a gain's interval: what is promised of programs that gain nothing.
const WIDTH: f64 = 0.02;

/// Whether a script's programs are here, or why not.
pub fn available(script: &Path) -> Result<(), String> {
    let mut command = Command::new(script);
    let output = command.arg("available").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", script.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).lines().next().unwrap_or_default().to_owned();
    Err(if said.is_empty() { "not installed".into() } else { said })
}

/// One of `tests/programs`, and where it works.
pub struct Script<'a> {
    /// Its path.
    pub script: &'a Path,
    /// A directory that each run makes anew.
    pub directory: PathBuf,
    /// `$LENGTH`.
    pub length: &'static str,
}

impl Script<'_> {
    /// `SCRIPT verb DIRECTORY`.
    fn verb(&self, verb: &str) -> Vec<OsString> {
        vec![self.script.into(), verb.into(), self.directory.clone().into()]
    }

    /// Each run finds a directory as new as the first.
    fn setup(&self) -> Vec<OsString> {
        let anew = "\"$1\" cleanup \"$2\" && rm -rf -- \"$2\" && mkdir -- \"$2\" && \
                    exec \"$1\" setup \"$2\"";
        let mut setup = ["sh", "-c", anew, "sh"].map(OsString::from).to_vec();
        setup.extend([self.script.into(), self.directory.clone().into()]);
        setup
    }

    /// Enters what `dwell advise` promises of one run, and its first sentence.
    pub fn estimate(&self, lab: &Lab, result: &mut FigureResult, case: &str) -> Result<()> {
        let seen = lab.sample(result, &[case], || of_program(self.seen()))?;
        let Some(seen) = seen else { return Ok(()) };
        let seen = match seen {
            Ok(seen) => seen,
            Err(why) => {
                result.note(case, &why)?;
                return lab.keep(result);
            }
        };
        let advice = dwell_advise::advise(&seen);
        let gain = advised::gain_of_command(&advice, &seen);
        result.measured(case, Measured::exact(gain))?;
        if let Some(first) = advice.first() {
            result.note(case, &first.text)?;
        }
        lab.keep(result)
    }

    /// What a trace of one untouched run shows; the inner error is why there is none.
    fn seen(&self) -> Result<Result<Seen, String>> {
        self.ran(&self.setup())?;
        let mut tracer = match Tracer::start(Follow::Children) {
            Ok(tracer) => tracer,
            Err(why) => return Ok(Err(why.to_string())),
        };
        let child = self.command(&self.verb("run")).spawn();
        let child = child.with_context(|| self.script.display().to_string())?;
        tracer.started()?;
        ended(child)?;
        Ok(Ok(tracer.finish()?))
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("LENGTH", self.length).env_remove("WRAP");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn ran(&self, words: &[OsString]) -> Result<()> {
        let child = self.command(words).spawn();
        ended(child.with_context(|| words[0].display().to_string())?)
    }

    /// Enters the speed under `dwell run` against the untouched command's.
    pub fn measure(
        &self,
        lab: &Lab,
        wrapping: &Wrapping,
        result: &mut FigureResult,
        case: &str,
        class: Option<String>,
    ) -> Result<()> {
        // The script wraps each program that it starts, and not itself.
        let words = format!("WRAP={} run --policy {POLICY} --quiet --", wrapping.dwell().display());
        let wrapper = Wrapper::new(["env".to_owned(), words]);
        let mut plan = wrapping.plan(self.verb("run"), wrapper, 1);
        plan.environment.push(("LENGTH".into(), self.length.into()));
        plan.setup = Some(self.setup());
        plan.check = Some(self.verb("check"));
        let until = lab.until(WIDTH);
        let sampled =
            lab.sample(result, &[case], || of_program(sampled(&plan, until, lab.is_hasty())))?;
        let Some((sampled, differing)) = sampled else { return Ok(()) };
        enter(result, case, &sampled, (2, 0, 0), both(class, differing.map(str::to_owned)))?;
        lab.keep(result)
    }
}

/// The wrapped command against the untouched one, and what to know of its results.
fn sampled(plan: &Plan, until: Until, hasty: bool) -> Result<(Sampled, Option<&'static str>)> {
    let mut runs = Runs::new(plan)?;
    if !hasty {
        // The first brings programs and libraries into memory.
        runs.one(UNTOUCHED)?;
    }
    let mut parts = Parts::new(1, until, |contender| {
        let run = runs.one(if contender < 2 { UNTOUCHED } else { POLICY })?;
        Ok((vec![Metric::Speed.of(&run)], ()))
    });
    let sampled = pairs::sample(1, until, &mut parts, &mut |_| {})?;
    drop(parts);
    Ok((sampled, runs.differing(POLICY)))
}

/// One program's failure is that program's result.
fn of_program<T>(tried: Result<T>) -> Result<Result<T, String>> {
    match tried {
        Ok(tried) => Ok(Ok(tried)),
        Err(why) if why.is::<Interrupted>() || why.is::<Restless>() => Err(why),
        Err(why) => Ok(Err(format!("FAILED: {why:#}").replace('\n', " "))),
    }
}

fn ended(child: Child) -> Result<()> {
    let output = child.wait_with_output().context("waiting for a script")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}", output.status, said.trim_end());
    Ok(())
}
