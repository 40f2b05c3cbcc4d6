// SPDX-License-Identifier: MIT OR Apache-2.0
//! U1 and U2: programs as they are, untouched and under `dwell run`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use dwell::DeviceClass;

use super::lab::{both, put, ratio_text, skip, skip_all};
use super::sampled::{enter, step, width};
use super::wrapped::{POLICY, Wrapping, both_variants, compared, open_to_all, variant};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::compare::{self, CONTROL, Measured, Metric, Results, Runs, UNTOUCHED, Wrapper};
use dwell_bench::fixture::{Directory, half_noise};
use dwell_bench::loads::Loads;
use dwell_bench::pairs::{self, Parts};
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::workload::Place;
use dwell_bench::workload::spec::FileSystemKind;

/// A figure of one run.
type Quantity = fn(&Measured) -> f64;

/// What U1 compares.
const READS: [(&str, Quantity); 3] = [
    ("IOPS", |run| told(run)),
    ("CPU time per read", |run| run.cpu_ns() as f64 / told(run)),
    ("context switches per read", |run| run.switches() as f64 / told(run)),
];

fn told(run: &Measured) -> f64 {
    run.told.unwrap_or(f64::NAN)
}

/// U1.
pub fn reads(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("making and probing the device", 0.0);
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => place,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    if let Err(why) = runs("fio", "--version") {
        return skip_all(result, &why).map(|()| None);
    }
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    wrapping.know(&place)?;
    let file = place.path().join("data");
    write_noise(&file, lab.device_bytes)?;
    let words = [
        "fio".to_owned(),
        "--name=reads".into(),
        format!("--filename={}", file.display()),
        format!("--size={}", lab.device_bytes),
        format!("--runtime={}ms", lab.span(1500).as_millis().max(20)),
        "--time_based".into(),
        "--rw=randread".into(),
        "--bs=4k".into(),
        "--direct=1".into(),
        "--ioengine=psync".into(),
        "--norandommap".into(),
        "--output-format=json".into(),
    ];
    let words = words.map(OsString::from).into();
    let wrapper = Wrapper::dwell_run(&wrapping.dwell());
    let mut plan = wrapping.plan(words, wrapper, 1);
    plan.told = Some(fio_iops);
    // fio tells times and host of each run.
    plan.check = Some(vec!["true".into()]);
    let cases = READS.map(|(case, _)| format!("{case}: wrapped ÷ untouched"));
    let until = lab.until(width(result, &cases[0], Load::Idle));
    let mut step = step(progress, "fio, untouched and wrapped", 0, 1);
    let sampled = lab.sample(result, &cases, || {
        let mut runs = Runs::new(&plan)?;
        let mut parts = Parts::new(1, until, |contender| {
            let run = runs.one(if contender < 2 { UNTOUCHED } else { POLICY })?;
            Ok((READS.map(|(_, of)| of(&run)).into(), ()))
        });
        pairs::sample(1, until, &mut parts, &mut |share| step.show(share)).map(Ok)
    })?;
    let Some(sampled) = sampled else { return Ok(None) };
    for (number, case) in cases.iter().enumerate() {
        enter(result, case, &sampled, (2, 0, number), unless_fast(&place))?;
    }
    lab.keep(result).map(|()| None)
}

fn unless_fast(place: &Place) -> Option<String> {
    let class = place.known.profile?.class;
    (class != DeviceClass::Fast).then(|| format!("the probe called it {class} in this run"))
}

/// Fills a file so that no read is answered from a hole.
fn write_noise(path: &Path, bytes: u64) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let chunk = half_noise(1 << 20);
        let mut file = File::create(path)?;
        let mut left = bytes;
        while left > 0 {
            let length = left.min(chunk.len() as u64);
            file.write_all(&chunk[..length as usize])?;
            left -= length;
        }
        file.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// Whether a program runs, or why not.
fn runs(program: &str, argument: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program} {argument}: {status}")),
        Err(error) => Err(format!("{program} cannot be run: {error}")),
    }
}

/// Reads per second from what fio prints as JSON, after what else it has to say.
fn fio_iops(text: &str) -> Option<f64> {
    let told: serde_json::Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    told.pointer("/jobs/0/read/iops")?.as_f64().filter(|iops| *iops > 0.0)
}

/// The programs of U2: scripts by name.
const PROGRAMS: [&str; 9] =
    ["berkeleydb", "fio", "lmdb", "mariadb", "postgres", "redis", "rocksdb", "sqlite", "sysbench"];

/// Where the programs work, with what beside them.
const SCENES: [Scene; 4] = [
    Scene { name: "loop", on: On::Made(Kind::Loop), crunchers: 0 },
    Scene { name: "loop, ten number crunchers", on: On::Made(Kind::Loop), crunchers: 10 },
    Scene { name: "virtio disk", on: On::Made(Kind::Disk), crunchers: 0 },
    Scene { name: "tmpfs", on: On::Tmpfs, crunchers: 0 },
];

struct Scene {
    name: &'static str,
    on: On,
    crunchers: usize,
}

#[derive(Clone, Copy)]
enum On {
    Made(Kind),
    Tmpfs,
}

/// A directory that is there as long as this.
enum Ground {
    Place(Box<Place>),
    Directory(Directory),
}

impl Ground {
    fn make(lab: &Lab, on: On, wrapping: &Wrapping) -> Result<Result<Self, String>> {
        let ground = match on {
            On::Made(kind) => match lab.place(kind, FileSystemKind::Ext4)? {
                Ok(place) => {
                    wrapping.know(&place)?;
                    Ground::Place(Box::new(place))
                }
                Err(why) => return Ok(Err(why)),
            },
            On::Tmpfs => match Directory::new(Path::new("/dev/shm")) {
                Ok(directory) => Ground::Directory(directory),
                Err(why) => return Ok(Err(why.to_string())),
            },
        };
        // Servers that refuse root must be able to enter.
        open_to_all(ground.path())?;
        Ok(Ok(ground))
    }

    fn path(&self) -> &Path {
        match self {
            Ground::Place(place) => place.path(),
            Ground::Directory(directory) => directory.path(),
        }
    }

    fn class(&self) -> Option<String> {
        match self {
            Ground::Place(place) => Some(place.known.profile?.class.to_string()),
            Ground::Directory(_) => None,
        }
    }
}

fn case(program: &str, scene: &Scene) -> String {
    format!("{program}, {}", scene.name)
}

/// Stands for the mean of all.
const ALL: &str = "all";

/// Speeds divided by the untouched command's, round by round.
struct Ratios {
    wrapped: Vec<f64>,
    /// The untouched command once more.
    control: Vec<f64>,
}

impl Ratios {
    /// Geometric means of the programs, round by round.
    fn mean(programs: &[Ratios]) -> Ratios {
        let mean = |of: fn(&Ratios) -> &[f64]| {
            let rounds = programs.iter().map(|program| of(program).len()).min().unwrap_or(0);
            let round = |i: usize| programs.iter().map(|program| of(program)[i].ln()).sum::<f64>();
            (0..rounds).map(|i| (round(i) / programs.len() as f64).exp()).collect()
        };
        Ratios {
            wrapped: mean(|program| &program.wrapped),
            control: mean(|program| &program.control),
        }
    }

    /// Puts the ratio in its place, with how far the same command is from itself.
    fn put(&self, result: &mut FigureResult, case: &str, remark: Option<String>) -> Result<()> {
        let [wrapped, control] = [&self.wrapped, &self.control]
            .map(|ratios| Paired::of(ratios.iter().map(|ratio| (*ratio, 1.0))));
        let control = control.map(|control| format!("{CONTROL} {}", ratio_text(&control)));
        put(result, case, wrapped, both(control, remark))
    }
}

/// U2.
pub fn real(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("looking for programs", 0.0);
    let Some(scripts) = lab.programs.clone() else {
        let why = "the scripts that run them, tests/programs, are not in the working directory";
        return skip_all(result, why).map(|()| None);
    };
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let mut installed = Vec::new();
    for program in PROGRAMS {
        let script = scripts.join(format!("{program}.sh"));
        match available(&script) {
            Ok(()) => installed.push((program, script)),
            Err(why) => {
                let cases: Vec<String> = SCENES.iter().map(|scene| case(program, scene)).collect();
                skip(result, &cases, &why)?;
            }
        }
    }
    // The first scene that there is brings programs and libraries into memory.
    let mut warmup = usize::from(!lab.is_hasty());
    for (i, scene) in SCENES.iter().enumerate() {
        let share = |part: f64| (i as f64 + part) / SCENES.len() as f64;
        progress(&format!("making {}", scene.name), share(0.0));
        let ground = match Ground::make(lab, scene.on, &wrapping)? {
            Ok(ground) => ground,
            Err(why) => {
                let programs = installed.iter().map(|(program, _)| *program).chain([ALL]);
                let cases: Vec<String> = programs.map(|program| case(program, scene)).collect();
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let mut loads = Loads::crunchers(scene.crunchers, &lab.hidden)?;
        let mut all = Vec::new();
        for (j, (program, script)) in installed.iter().enumerate() {
            let mut tell = |what: &str| {
                let what = format!("{program}, {}: {what}", scene.name);
                progress(&what, share(j as f64 / installed.len() as f64));
            };
            // Where a process lasts long, its start does not decide. Beside others it lasts long anyway.
            let long = !lab.is_hasty() && scene.crunchers == 0;
            let length = if long { "medium" } else { "short" };
            let run = Script { script, directory: ground.path().join(program), length, warmup };
            let case = case(program, scene);
            match run.compare(lab, &wrapping, &mut tell) {
                Ok((ratios, remark)) => {
                    ratios.put(result, &case, both(ground.class(), remark))?;
                    all.push(ratios);
                }
                // One program's failure is that program's result.
                Err(why) => result.note(&case, &format!("FAILED: {why:#}").replace('\n', " "))?,
            }
            loads.check()?;
        }
        warmup = 0;
        let of = format!("geometric mean of {}", all.len());
        Ratios::mean(&all).put(result, &case(ALL, scene), Some(of))?;
    }
    Ok(None)
}

fn available(script: &Path) -> Result<(), String> {
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

struct Script<'a> {
    script: &'a PathBuf,
    directory: PathBuf,
    /// `$LENGTH`.
    length: &'static str,
    /// Rounds that are not kept.
    warmup: usize,
}

impl Script<'_> {
    /// `SCRIPT verb DIRECTORY`.
    fn verb(&self, verb: &str) -> Vec<OsString> {
        vec![self.script.into(), verb.into(), self.directory.clone().into()]
    }

    /// Speeds against the untouched command's, and what to know about them.
    fn compare(
        &self,
        lab: &Lab,
        wrapping: &Wrapping,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Ratios, Option<String>)> {
        // The script wraps each program that it starts, and not itself.
        let words = format!("WRAP={} run --policy {POLICY} --quiet --", wrapping.dwell().display());
        let wrapper = Wrapper::new(["env".to_owned(), words]);
        let mut plan = wrapping.plan(self.verb("run"), wrapper, lab.times(7));
        plan.environment.push(("LENGTH".into(), self.length.into()));
        plan.warmup = self.warmup;
        plan.control = true;
        // Each run finds a directory as new as the first.
        let anew = "\"$1\" cleanup \"$2\" && rm -rf -- \"$2\" && mkdir -- \"$2\" && \
                    exec \"$1\" setup \"$2\"";
        let mut setup = ["sh", "-c", anew, "sh"].map(OsString::from).to_vec();
        setup.extend([self.script.into(), self.directory.clone().into()]);
        plan.setup = Some(setup);
        plan.check = Some(self.verb("check"));
        let comparison = compared(&plan, progress)?;
        let (ours, base) = both_variants(&comparison)?;
        let remark = match ours.results {
            Results::Differ => Some("RESULTS DIFFER".to_owned()),
            Results::Unstable => Some("results vary by themselves".to_owned()),
            Results::Same => None,
        };
        let speeds = |variant| {
            compare::pairs(variant, base, Metric::Speed).map(|(ours, base)| ours / base).collect()
        };
        let control = speeds(variant(&comparison, CONTROL)?);
        Ok((Ratios { wrapped: speeds(ours), control }, remark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_programs_is_taken_round_by_round() {
        let program =
            |wrapped: [f64; 2]| Ratios { wrapped: wrapped.into(), control: vec![1.0, 4.0] };
        let mean = Ratios::mean(&[program([2.0, 1.0]), program([0.5, 1.0])]);
        assert_eq!((mean.wrapped, mean.control), (vec![1.0, 1.0], vec![1.0, 4.0]));
        assert!(Ratios::mean(&[]).wrapped.is_empty());
    }

    #[test]
    fn the_rate_is_found_behind_what_fio_says_first() {
        let text = "note: both iodepth >= 1\n{\"jobs\":[{\"read\":{\"iops\":123.5}}]}\n";
        assert_eq!(fio_iops(text), Some(123.5));
        for nothing in ["", "{}", "fio: failed", "{\"jobs\":[{\"read\":{\"iops\":0.0}}]}"] {
            assert_eq!(fio_iops(nothing), None, "{nothing}");
        }
    }
}
