// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all experiments need: devices, monitor, loads, and how thorough to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dwell::DeviceClass;
use dwell::monitor::SystemMonitor;
use dwell_host::profile::SwitchCosts;

use super::Progress;
use crate::figure::{FigureResult, Measured};
use dwell_bench::keep::Keep;
use dwell_bench::result::{Direction, Load, Metric, Pattern, Row, Run, pair};
use dwell_bench::run::{self, Plan};
use dwell_bench::stand::{FILE_BYTES, Kind, Stand};
use dwell_bench::subject::{Probing, Subject};
use dwell_bench::units;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_bench::workload::{self, Place, PlaceKind};

/// A place for the files of workloads is so many times as long as a test device: a file server's
/// files are more than the papers' one test file.
const PLACE_FACTOR: u64 = 8;

/// Hears of a figure whenever a row of it is complete.
pub type KeepRows = Box<dyn Fn(&FigureResult) -> Result<()>>;

/// Where experiments are done. Test devices are made when the first experiment asks for them and
/// live as long as the lab.
pub struct Lab {
    /// What a context switch costs on this machine.
    pub switches: SwitchCosts,
    /// The system monitor of this process.
    pub monitor: Arc<SystemMonitor>,
    /// Arguments that lead this very program to [`dwell_bench::loads::serve`].
    pub hidden: Vec<String>,
    /// Directory on the machine's own disk.
    pub directory: PathBuf,
    /// Share of the full measuring time: 1 for figures that are kept, 0.01 to see that all works.
    pub effort: f64,
    /// Length of each test device, in bytes.
    pub device_bytes: u64,
    /// The program that has `dwell run`.
    pub dwell: Option<PathBuf>,
    /// Directory of the scripts that run real programs, `tests/programs`.
    pub programs: Option<PathBuf>,
    /// Directory of recorded workloads and their batches; `target/traces` where it is not given.
    pub traces: Option<PathBuf>,
    /// Directory of earlier results; a figure that was stopped goes on with the rows that it lacks.
    pub results: Option<PathBuf>,
    /// Directory of results that were kept, one for each kind of machine.
    pub kept: Option<PathBuf>,
    /// Keeps a figure of which some rows are measured.
    pub keep: KeepRows,
    /// Measure only cases whose names contain this from the beginning of a word, in figures that
    /// are sampled row by row.
    pub only: Option<String>,
    /// What was simulated for one figure and serves others.
    pub(super) study: Option<std::rc::Rc<dwell_bench::simulator::Study>>,
    /// What was counted for one figure and serves another.
    pub(super) beside: Option<std::rc::Rc<super::counted::Beside>>,
    subjects: Vec<(Kind, Result<Subject, String>)>,
    stands: Vec<Stand>,
}

impl Lab {
    /// A lab whose devices are as long as the papers' test file.
    pub fn new(
        switches: SwitchCosts,
        monitor: Arc<SystemMonitor>,
        hidden: Vec<String>,
        directory: PathBuf,
        effort: f64,
    ) -> Self {
        Lab {
            switches,
            monitor,
            hidden,
            directory,
            effort,
            device_bytes: FILE_BYTES,
            dwell: None,
            programs: None,
            traces: None,
            results: None,
            kept: None,
            keep: Box::new(|_| Ok(())),
            only: None,
            study: None,
            beside: None,
            subjects: Vec::new(),
            stands: Vec::new(),
        }
    }

    /// Does without a device, for a reason that the figures will give.
    pub fn leave_out(&mut self, kind: Kind, why: &str) {
        self.subjects.retain(|(known, _)| *known != kind);
        self.subjects.push((kind, Err(why.into())));
    }

    /// How devices are probed: with hardly any time, only so that there is a profile.
    pub fn probing(&self) -> Probing {
        match self.is_hasty() {
            true => Probing::hasty(self.switches.clone()),
            false => Probing::quick(self.switches.clone()),
        }
    }

    /// A probed loop device, and what to say of cases about fast devices; where there is none, the
    /// whole figure is skipped.
    ///
    /// # Errors
    /// As [`Lab::subject`].
    pub fn fast_loop(
        &mut self,
        result: &mut FigureResult,
        progress: &mut Progress<'_>,
    ) -> Result<Option<(Subject, Option<String>)>> {
        progress("making and probing loop", 0.0);
        match self.subject(Kind::Loop)? {
            Ok(subject) => {
                let odd = unless_class(&subject, DeviceClass::Fast);
                Ok(Some((subject, odd)))
            }
            Err(why) => skip_all(result, &why).map(|()| None),
        }
    }

    /// A probed test device, or why there is none here.
    ///
    /// # Errors
    /// A device that was made and could not be probed.
    pub fn subject(&mut self, kind: Kind) -> Result<Result<Subject, String>> {
        if let Some((_, known)) = self.subjects.iter().find(|(known, _)| *known == kind) {
            return Ok(known.clone());
        }
        let bytes = self.device_bytes;
        let stand = Stand::make_sized(bytes, &[kind], &self.directory, false, &self.probing())?;
        let found = match stand.get(kind) {
            Ok(subject) => Ok(subject.clone()),
            Err(_) => Err(stand.left_out.join("; ")),
        };
        self.stands.push(stand);
        self.subjects.push((kind, found.clone()));
        Ok(found)
    }

    /// A place for the files of workloads, there as long as what is returned; or why there is none
    /// here.
    ///
    /// # Errors
    /// A place that was made and could not be probed.
    pub fn place(&self, kind: Kind, file_system: FileSystemKind) -> Result<Result<Place, String>> {
        self.place_of(kind, file_system, self.device_bytes * PLACE_FACTOR)
    }

    /// The same for `bytes` of files.
    ///
    /// # Errors
    /// As [`Lab::place`].
    pub fn place_of(
        &self,
        kind: Kind,
        file_system: FileSystemKind,
        bytes: u64,
    ) -> Result<Result<Place, String>> {
        let left_out = self.subjects.iter().find_map(|(known, found)| match found {
            Err(why) if *known == kind => Some(why.clone()),
            _ => None,
        });
        if let Some(why) = left_out {
            return Ok(Err(why));
        }
        let place = Place::make(
            &PlaceKind::Made(kind),
            file_system,
            bytes,
            &self.directory,
            &self.probing(),
        )?;
        Ok(place.map_err(|why| why.to_string()))
    }

    /// Workloads on files by some contenders, against the first; `full` is rounds and milliseconds
    /// of a batch at full effort.
    pub fn workload_plan(&self, contenders: &[&str], full: (usize, u64)) -> workload::Plan {
        workload::Plan {
            contenders: contenders.iter().map(|name| name.to_string()).collect(),
            baseline: contenders[0].into(),
            schedulers: Vec::new(),
            rounds: self.times(full.0),
            batch: self.span(full.1),
            lead_in: self.span(workload::Plan::LEAD_IN.as_millis() as u64),
            stop: Default::default(),
        }
    }

    /// How often to do what is done `full` times at full effort: once at least.
    pub fn times(&self, full: usize) -> usize {
        ((full as f64 * self.effort.sqrt()).round() as usize).max(1)
    }

    /// How long to do what is done for `full_ms` at full effort.
    pub fn span(&self, full_ms: u64) -> Duration {
        Duration::from_secs_f64((full_ms as f64 / 1e3 * self.effort.sqrt()).max(0.002))
    }

    /// CPUs that this process may use.
    pub fn cpus(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// Whether there is hardly time for anything: long steps are left out.
    pub fn is_hasty(&self) -> bool {
        self.effort < 0.005
    }

    /// Whether there is time for the thorough form of a measurement that has two.
    pub fn is_thorough(&self) -> bool {
        self.effort >= 0.3
    }

    /// Random reads on an idle machine, one at a time, against the first contender; `full` is
    /// rounds and milliseconds of a batch at full effort.
    pub fn plan(&self, contenders: &[&str], sizes: &[u64], full: (usize, u64)) -> Plan {
        Plan {
            contenders: contenders.iter().map(|name| name.to_string()).collect(),
            baseline: contenders[0].into(),
            sizes: sizes.to_vec(),
            patterns: vec![Pattern::Rand],
            directions: vec![Direction::Read],
            loads: vec![Load::Idle],
            schedulers: vec![None],
            depths: vec![1],
            rounds: self.times(full.0),
            batch: self.span(full.1),
            means: self.means(),
            keep: Keep::default(),
            peers_program: None,
            day: None,
        }
    }

    /// Runs a plan as the part `from..to` of an experiment.
    ///
    /// # Errors
    /// Those of [`run::run`].
    pub fn run(
        &self,
        plan: &Plan,
        subjects: &[Subject],
        (from, to): (f64, f64),
        progress: &mut Progress<'_>,
    ) -> Result<Run> {
        let all = plan.batches(subjects.len()).max(1) as f64;
        let mut done = 0.0;
        let run = run::run(plan, subjects, &self.monitor, Vec::new(), &mut |what| {
            progress(what, from + (to - from) * done / all);
            done += 1.0;
        })?;
        match run.ended {
            None => Ok(run),
            // Half of it is no figure.
            Some(why) => bail!(why),
        }
    }
}

/// The row of one contender at one size; the first one, where settings differ in more than that.
pub fn row<'r>(run: &'r Run, device: Kind, size_bytes: u64, policy: &str) -> Result<&'r Row> {
    let is_it = |row: &&Row| {
        row.setting.device == device.as_str()
            && row.size_bytes == size_bytes
            && row.policy == policy
    };
    run.rows.iter().find(is_it).with_context(|| {
        format!("{policy} was not measured on {} at {size_bytes} bytes", device.as_str())
    })
}

/// Enters what was measured, with what to know about it; without a value, says so.
pub fn put<M: Into<Measured>>(
    result: &mut FigureResult,
    case: &str,
    value: Option<M>,
    remark: Option<String>,
) -> Result<()> {
    let remark = match value {
        Some(value) => result.measured(case, value).map(|()| remark)?,
        None => both(Some("no round gave a value".into()), remark),
    };
    match remark {
        Some(remark) => result.note(case, &remark),
        None => Ok(()),
    }
}

/// Notes why cases were not measured.
pub fn skip<S: AsRef<str>>(result: &mut FigureResult, cases: &[S], why: &str) -> Result<()> {
    cases.iter().try_for_each(|case| result.note(case.as_ref(), why))
}

/// Notes why nothing of a figure was measured.
pub fn skip_all(result: &mut FigureResult, why: &str) -> Result<()> {
    let cases: Vec<String> = result.rows.iter().map(|row| row.case.clone()).collect();
    skip(result, &cases, why)
}

/// A load in the words of the cases.
pub fn load_name(load: Load) -> &'static str {
    match load {
        Load::Idle => "idle",
        Load::Cpu => "ten CPU stressors",
        Load::Io => "four I/O programs",
        Load::Arithmetic => "nine arithmetic processes",
        Load::Readers => "four disk readers",
        Load::Bystander => "bystanders",
    }
}

/// What to say where the probe found another class than the one that a case is about.
pub fn unless_class(subject: &Subject, wanted: DeviceClass) -> Option<String> {
    let class = subject.parameters.profile?.class;
    (class != wanted).then(|| format!("the probe called it {class} in this run"))
}

/// Two remarks as one.
pub fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    let parts: Vec<String> = [one, other].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What one contender's requests took of CPU time ÷ the other's, for the remark on a ratio of
/// speeds: equal speed at a whole core is not a draw.
pub fn cpu_text(ours: &Row, base: &Row) -> Option<String> {
    let ratio = pair(ours, base, Metric::CpuPerRequest)?;
    Some(format!("CPU per request {}", units::ratio(ratio.median)))
}

/// A ratio with its interval, for a remark.
pub fn ratio_text(ratio: &dwell_bench::stats::Paired) -> String {
    let (low, high) = (ratio.low, ratio.high);
    format!("{} [{low:.2}–{high:.2}]", units::ratio(ratio.median))
}

/// Under a chart's title: what its bars are, and where it was measured.
pub fn subtitle(result: &FigureResult, bars: &str) -> String {
    format!("{bars}; {}, {} CPUs", result.machine.cpu_model, result.machine.cpus)
}
