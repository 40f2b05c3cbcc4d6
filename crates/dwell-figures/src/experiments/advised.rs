// SPDX-License-Identifier: MIT OR Apache-2.0
//! V5: the gain that `dwell advise` estimates from outside, beside the gain of the default policy.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use dwell::buffer::Aligned;
use dwell::parameters::DeviceParameters;
use dwell_advise::{Follow, Remedy, Seen, Tracer, advise};

use super::lab::skip;
use super::sampled::{enter, step};
use super::{Lab, Progress, promise};
use crate::figure::{ESTIMATED, FigureResult, Measured};
use dwell_bench::fixture::State;
use dwell_bench::loads::{Loads, Means};
use dwell_bench::result::{Direction, Load, Pattern, Requests};
use dwell_bench::stand::Kind;
use dwell_bench::stats::SplitMix;
use dwell_bench::subject::Subject;
use dwell_bench::trial::Question;

const DEFAULT: &str = "adaptive";
const SUMMARY: [&str; 3] = [
    "all cells: rank agreement",
    "all cells: median error, of the gain",
    "all cells: those with the wrong sign",
];

/// Where the kernel's workers run, on what, how many KiB, whether writes, and the CPU stressors
/// beside.
type Cell = (State, Kind, u64, bool, usize);

/// The cells of R1 on the kernel's devices, without those beside other programs' requests.
const CELLS: [Cell; 15] = {
    use Kind::{Disk, Loop, Zram};
    use State::{Apart, Free, Together};
    [
        (Apart, Loop, 4, false, 0),
        (Apart, Loop, 16, false, 0),
        (Apart, Loop, 64, false, 0),
        (Apart, Loop, 256, false, 0),
        (Apart, Loop, 4, true, 0),
        (Apart, Loop, 4, false, 1),
        (Together, Loop, 4, false, 0),
        (Together, Loop, 64, false, 0),
        (Together, Loop, 16, true, 0),
        (Together, Loop, 256, false, 1),
        (Free, Zram, 4, false, 0),
        (Free, Zram, 64, true, 0),
        (Free, Disk, 4, false, 0),
        (Free, Disk, 16, false, 0),
        (Free, Disk, 64, false, 1),
    ]
};

fn cases((state, kind, kib, write, stressors): Cell) -> [String; 2] {
    let state = match state {
        State::Apart => " apart",
        State::Together => " together",
        State::Free => "",
    };
    let direction = if write { "write" } else { "read" };
    let beside = if stressors == 0 { "idle" } else { "one stressor" };
    let cell = format!("{}{state}, {kib} KiB {direction}, {beside}", kind.as_str());
    [format!("{cell}{ESTIMATED}"), cell]
}

/// V5.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    for (at, cell) in CELLS.into_iter().enumerate() {
        let cases = cases(cell);
        if !lab.wants(result, &cases) {
            continue;
        }
        let (state, kind, kib, write, stressors) = cell;
        progress(&format!("making {}", kind.as_str()), at as f64 / CELLS.len() as f64);
        let subject = match lab.subject(kind)? {
            Ok(subject) => Subject {
                write: true,
                parameters: DeviceParameters::default(),
                profile: None,
                ..subject
            },
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let load = if stressors == 0 { Load::Idle } else { Load::Cpu };
        let direction = if write { Direction::Write } else { Direction::Read };
        let width = if stressors == 0 { 0.03 } else { 0.05 };
        let question = Question {
            requests: Requests { pattern: Pattern::Rand, direction, depth: 1 },
            size_bytes: kib << 10,
            load,
            state,
            part: lab.part(kind, load),
            until: lab.until(width),
            ..lab.question((kind, &subject), &[DEFAULT], width)
        };
        let means = Means { stressors, ..lab.means() };
        let mut step = step(progress, &cases[1], at, CELLS.len());
        let span = lab.span(1500);
        let both = lab.sample(result, &cases, || {
            // Before the gain is known.
            let estimated = match estimated(&question, &means, span)? {
                Ok(gain) => gain,
                Err(why) => return Ok(Err(why)),
            };
            Ok(lab.ask(&question, &means, &mut step)?.map(|asked| (estimated, asked)))
        })?;
        let Some((estimated, asked)) = both else { continue };
        result.measured(&cases[0], Measured::exact(estimated))?;
        enter(result, &cases[1], &asked.sampled, (2, 0, 0), None)?;
        lab.keep(result)?;
    }
    summary(result)?;
    lab.keep(result)?;
    Ok(None)
}

/// The gain that a trace of a thread promises that makes plain calls; the inner error is why
/// nothing was traced. Tracing takes CPU time of its own, so no quiet is asked for.
fn estimated(
    question: &Question<'_>,
    means: &Means,
    span: Duration,
) -> Result<Result<f64, String>> {
    let Question { subject, load, requests, size_bytes, .. } = *question;
    let _made = match question.state.make() {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let _loads = match load {
        Load::Idle => None,
        load => Some(Loads::start(load, subject, means)?),
    };
    let writes = requests.direction == Direction::Write;
    let mut options = OpenOptions::new();
    options.read(true).write(writes).custom_flags(libc::O_DIRECT);
    let file =
        options.open(&subject.address).with_context(|| subject.address.display().to_string())?;
    let work = |span: Duration| -> std::io::Result<f64> {
        let (mut random, mut buffer) = (SplitMix(1), Aligned::new(size_bytes as usize));
        let blocks = (subject.bytes / size_bytes) as usize;
        let (begin, mut count) = (Instant::now(), 0.0);
        while begin.elapsed() < span {
            let offset = random.below(blocks) as u64 * size_bytes;
            match writes {
                true => file.write_all_at(&buffer, offset)?,
                false => file.read_exact_at(&mut buffer, offset)?,
            }
            count += 1.0;
        }
        Ok(begin.elapsed().as_secs_f64() / count)
    };
    // On a thread of its own, which has the CPU that the state chooses.
    std::thread::scope(|scope| {
        let traced = scope.spawn(|| -> Result<Result<f64, String>> {
            work(span / 4)?;
            let tracer = match Tracer::start(Follow::Process(std::process::id())) {
                Ok(tracer) => tracer,
                Err(why) => return Ok(Err(why.to_string())),
            };
            let each = work(span)?;
            Ok(Ok(gain(tracer.finish()?, each)))
        });
        traced.join().map_err(|_| anyhow!("the thread that was traced panicked"))?
    })
}

/// Other threads of this process wait for each other; the thread's own requests tell what share its
/// waits have.
fn gain(seen: Seen, seconds_each: f64) -> f64 {
    let count: u64 = seen.waits.iter().map(|wait| wait.count).sum();
    let seconds = seconds_each * count as f64;
    let seen = Seen { seconds, thread_seconds: seconds, ..seen };
    let spun = advise(&seen).into_iter().filter(|advice| advice.remedy == Remedy::Spin);
    spun.map(|advice| advice.gain).fold(1.0, f64::max)
}

/// How well the estimates hold, once every cell that can be measured here is.
fn summary(result: &mut FigureResult) -> Result<()> {
    let pairs = promise::pairs(result, &CELLS.map(cases));
    match pairs.len() < CELLS.len() / 2 {
        true => skip(result, &SUMMARY, "too few cells are measured"),
        false => promise::judge(result, &pairs, SUMMARY),
    }
}
