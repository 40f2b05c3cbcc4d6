// SPDX-License-Identifier: MIT OR Apache-2.0
//! U1 and U2: programs as they are, untouched and under `dwell run`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use dwell::DeviceClass;

use super::lab::{skip, skip_all};
use super::sampled::{enter, learning, step, width};
use super::script::{Script, available};
use super::wrapped::{POLICY, Wrapping, open_to_all};
use super::{Lab, Progress, promise};
use crate::figure::{ESTIMATED, FigureResult};
use dwell_bench::compare::{Measured, Plan, Runs, UNTOUCHED, Wrapper};
use dwell_bench::fixture::{Directory, half_noise};
use dwell_bench::loads::Loads;
use dwell_bench::pairs::{self, Parts};
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
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

/// The fixed policy that gains most for fio on a fast device, as the default is to.
const FIXED: &str = "spin";
/// The contenders of U1 by their place, and what their rows say of how `dwell run` knew the device.
const WRAPPED: (usize, &str) = (2, "wrapped");
const WITHOUT_PROBE: (usize, &str) = (3, "without a probe");
const SPINNING: usize = 4;

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
    let words = fio_reads(lab, place.path())?;
    let wrapper = Wrapper::dwell_run(&wrapping.dwell());
    let mut plan = wrapping.plan(words, wrapper, 1);
    plan.policies.push(FIXED.into());
    plan.told = Some(fio_iops);
    // fio tells times and host of each run.
    plan.check = Some(vec!["true".into()]);
    let unprobed = Plan { environment: wrapping.unprobed(), ..plan.clone() };
    let cases = READS.map(|(case, _)| format!("{case}: wrapped ÷ untouched"));
    let beside_fixed =
        [WRAPPED, WITHOUT_PROBE].map(|of| (of, format!("IOPS: {} ÷ always spinning", of.1)));
    let all: Vec<&String> = cases.iter().chain(beside_fixed.iter().map(|(_, case)| case)).collect();
    let (learn, until) = learning(lab.until(width(result, &cases[0], Load::Idle)));
    let mut step = step(progress, "fio, untouched and wrapped", 0, 1);
    let sampled = lab.sample(result, &all, || {
        let (mut runs, mut runs_unprobed) = (Runs::new(&plan)?, Runs::new(&unprobed)?);
        let began = Instant::now();
        while began.elapsed() < learn {
            runs.one(POLICY)?;
            runs_unprobed.one(POLICY)?;
        }
        let mut parts = Parts::new(3, until, |contender| {
            let run = match contender {
                0 | 1 => runs.one(UNTOUCHED)?,
                SPINNING => runs.one(FIXED)?,
                contender if contender == WITHOUT_PROBE.0 => runs_unprobed.one(POLICY)?,
                _ => runs.one(POLICY)?,
            };
            Ok((READS.map(|(_, of)| of(&run)).into(), ()))
        });
        pairs::sample(3, until, &mut parts, &mut |share| step.show(share)).map(Ok)
    })?;
    let Some(sampled) = sampled else { return Ok(None) };
    for (number, case) in cases.iter().enumerate() {
        enter(result, case, &sampled, (WRAPPED.0, 0, number), unless_fast(&place))?;
    }
    for ((contender, _), case) in beside_fixed {
        enter(result, &case, &sampled, (contender, SPINNING, 0), None)?;
    }
    lab.keep(result).map(|()| None)
}

/// fio with all it is told: it reads a file that is made in `directory`, at random, one block after
/// the other, and prints JSON.
pub fn fio_reads(lab: &Lab, directory: &Path) -> Result<Vec<OsString>> {
    let file = directory.join("data");
    write_noise(&file, lab.device_bytes)?;
    // Not less where there is less time: a process that ends within the first 300 ms has learned
    // nothing.
    let run_ms = if lab.is_hasty() { 20 } else { 1500 };
    let words = [
        "fio".to_owned(),
        "--name=reads".into(),
        format!("--filename={}", file.display()),
        format!("--size={}", lab.device_bytes),
        format!("--runtime={run_ms}ms"),
        "--time_based".into(),
        "--rw=randread".into(),
        "--bs=4k".into(),
        "--direct=1".into(),
        "--ioengine=psync".into(),
        "--norandommap".into(),
        "--lat_percentiles=1".into(),
        "--percentile_list=50:99".into(),
        "--output-format=json".into(),
    ];
    Ok(words.map(OsString::from).into())
}

fn unless_fast(place: &Place) -> Option<String> {
    let class = place.parameters.profile?.class;
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
pub fn runs(program: &str, argument: &str) -> Result<(), String> {
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

/// The programs of U2: scripts by name. The first nine work in every scene.
const PROGRAMS: [&str; 18] = [
    "berkeleydb",
    "fio",
    "lmdb",
    "mariadb",
    "postgres",
    "redis",
    "rocksdb",
    "sqlite",
    "sysbench",
    "duckdb-scan",
    "fio-libaio",
    "fio-uring",
    "git-cold",
    "git-pager",
    "innodb-direct",
    "rocksdb-direct",
    "sqlite-scan",
    "sqlite-vfs",
];
const IN_EVERY_SCENE: usize = 9;

/// Where the programs work, with what beside them.
const SCENES: [Scene; 4] = [
    Scene { name: "loop", on: On::Made(Kind::Loop), stressors: 0 },
    Scene { name: "loop, ten CPU stressors", on: On::Made(Kind::Loop), stressors: 10 },
    Scene { name: "virtio disk", on: On::Made(Kind::Disk), stressors: 0 },
    Scene { name: "tmpfs", on: On::Tmpfs, stressors: 0 },
];

/// How well the estimates hold.
const SUMMARY: [&str; 3] = [
    "all estimates: rank agreement",
    "all estimates: median error, of the gain",
    "all estimates: those with the wrong sign",
];
const FOR_NOTHING: &str = "all estimates below 1.03×: largest change measured";
/// An estimate below this says that there is nothing to gain.
const NOTHING: f64 = 1.03;

struct Scene {
    name: &'static str,
    on: On,
    stressors: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum On {
    Made(Kind),
    Tmpfs,
}

/// A directory that is there as long as this.
enum Root {
    Place(Box<Place>),
    Directory(Directory),
}

impl Root {
    fn make(lab: &Lab, on: On, wrapping: &Wrapping) -> Result<Result<Self, String>> {
        let root = match on {
            On::Made(kind) => match lab.place(kind, FileSystemKind::Ext4)? {
                Ok(place) => {
                    wrapping.know(&place)?;
                    Root::Place(Box::new(place))
                }
                Err(why) => return Ok(Err(why)),
            },
            On::Tmpfs => match Directory::new(Path::new("/dev/shm")) {
                Ok(directory) => Root::Directory(directory),
                Err(why) => return Ok(Err(why.to_string())),
            },
        };
        // Servers that refuse root must be able to enter.
        open_to_all(root.path())?;
        Ok(Ok(root))
    }

    fn path(&self) -> &Path {
        match self {
            Root::Place(place) => place.path(),
            Root::Directory(directory) => directory.path(),
        }
    }

    fn class(&self) -> Option<String> {
        match self {
            Root::Place(place) => Some(place.parameters.profile?.class.to_string()),
            Root::Directory(_) => None,
        }
    }
}

/// Stands for the mean of all.
const ALL: &str = "all";

/// The estimate, and what is measured after it.
fn cases(program: &str, scene: &Scene) -> [String; 2] {
    let case = format!("{program}, {}", scene.name);
    [format!("{case}{ESTIMATED}"), case]
}

fn takes_part(program: &str, scene: &Scene) -> bool {
    PROGRAMS[..IN_EVERY_SCENE].contains(&program) || scene.stressors == 0 && scene.on != On::Tmpfs
}

/// Notes why cases that are lacking cannot be had.
fn lack(result: &mut FigureResult, cases: &[String], why: &str) -> Result<()> {
    let lacking: Vec<&String> = cases.iter().filter(|case| result.lacks(case)).collect();
    skip(result, &lacking, why)
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
                let scenes = SCENES.iter().filter(|scene| takes_part(program, scene));
                let cases: Vec<String> = scenes.flat_map(|scene| cases(program, scene)).collect();
                lack(result, &cases, &why)?;
            }
        }
    }
    for (i, scene) in SCENES.iter().enumerate() {
        let share = |part: f64| (i as f64 + part) / SCENES.len() as f64;
        let here: Vec<_> =
            installed.iter().filter(|(program, _)| takes_part(program, scene)).collect();
        let all: Vec<String> = here.iter().flat_map(|(program, _)| cases(program, scene)).collect();
        if !lab.wants(result, &all) {
            continue;
        }
        progress(&format!("making {}", scene.name), share(0.0));
        let root = match Root::make(lab, scene.on, &wrapping)? {
            Ok(root) => root,
            Err(why) => {
                lack(result, &all, &why)?;
                continue;
            }
        };
        let mut loads = Loads::stressors(scene.stressors, &lab.hidden)?;
        // Every estimate is there before any gain is known.
        for measures in [false, true] {
            for (j, (program, script)) in here.iter().enumerate() {
                let half = if measures { 0.5 } else { 0.0 };
                let at = half + 0.5 * j as f64 / here.len() as f64;
                let [estimated, measured] = cases(program, scene);
                let case = if measures { &measured } else { &estimated };
                progress(case, share(at));
                // Where a process lasts long, its start does not decide. Beside others it lasts
                // long anyway.
                let long = !lab.is_hasty() && scene.stressors == 0;
                let length = if long { "medium" } else { "short" };
                let run = Script { script, directory: root.path().join(program), length };
                match measures {
                    true => run.measure(lab, &wrapping, result, case, root.class())?,
                    false => run.estimate(lab, result, case)?,
                }
                loads.check()?;
            }
        }
    }
    summary(result)?;
    lab.keep(result)?;
    Ok(None)
}

/// What all programs come to, and how well the estimates hold.
fn summary(result: &mut FigureResult) -> Result<()> {
    let mut known = Vec::new();
    for scene in &SCENES {
        let programs = PROGRAMS.iter().filter(|program| takes_part(program, scene));
        let cases: Vec<[String; 2]> = programs.map(|program| cases(program, scene)).collect();
        let gains: Vec<f64> = cases
            .iter()
            .filter_map(|[_, case]| result.rows.iter().find(|row| row.case == *case)?.measured)
            .collect();
        let [_, all] = self::cases(ALL, scene);
        if gains.is_empty() {
            result.note(&all, "no program was measured")?;
        } else {
            result.measured(&all, crate::figure::Measured::exact(mean(&gains)))?;
            result.note(&all, &format!("geometric mean of {}", gains.len()))?;
        }
        known.extend(promise::pairs(result, &cases));
    }
    if known.len() < IN_EVERY_SCENE {
        let all = [SUMMARY[0], SUMMARY[1], SUMMARY[2], FOR_NOTHING];
        return skip(result, &all, "too few programs are measured");
    }
    promise::judge(result, &known, SUMMARY)?;
    match promise::most_for_nothing(&known, NOTHING) {
        Some(most) => result.measured(FOR_NOTHING, crate::figure::Measured::exact(100.0 * most)),
        None => result.note(FOR_NOTHING, "every program is estimated to gain"),
    }
}

fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_a_geometric_mean() {
        assert!((mean(&[2.0, 0.5, 1.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn every_case_is_one_of_the_figure() {
        let figure = &crate::figure::catalogue().figures["U2"];
        let named: Vec<&str> = figure.cases.iter().map(|case| case.case.as_str()).collect();
        for scene in &SCENES {
            for program in PROGRAMS.iter().filter(|program| takes_part(program, scene)) {
                cases(program, scene).iter().for_each(|case| {
                    assert!(named.contains(&case.as_str()), "{case}");
                });
            }
        }
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
