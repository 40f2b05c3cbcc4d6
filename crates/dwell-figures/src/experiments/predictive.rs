// SPDX-License-Identifier: MIT OR Apache-2.0
//! A1: deciding by predicted latency, and how a wrong profile corrects itself.

use std::sync::Arc;

use anyhow::Result;
use dwell::buffer::Aligned;
use dwell::parameters::DeviceParameters;
use dwell::policy::Predictive;
use dwell::{DeviceClass, Reason};

use super::lab::{both, cpu_text, put, skip_all, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::contender::Contender;
use dwell_bench::entrant::Entrant;
use dwell_bench::result::{Direction, Load, Metric, Pattern, Requests, Row, Setting, pair};
use dwell_bench::run::{Course, race};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;
use dwell_bench::subject::Subject;

const SIZE_BYTES: u64 = 4096;
/// How far off the deliberately wrong profile is.
const OFF: u64 = 100;
/// A profile counts as corrected once so many of [`STRETCH`] requests in a row were spun for.
const MOSTLY: u64 = 48;
const STRETCH: u64 = 64;
/// A profile that is not corrected by then never will be.
const MOST: u64 = 20_000;

/// A1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let odd = unless_class(&subject, DeviceClass::Fast);
    let mut plan = lab.plan(&["block", "predictive"], &[SIZE_BYTES], (41, 150));
    plan.patterns = vec![Pattern::Rand, Pattern::Seq];
    let run = lab.run(&plan, std::slice::from_ref(&subject), (0.0, 0.7), progress)?;
    for (name, pattern) in [("random", Pattern::Rand), ("sequential", Pattern::Seq)] {
        let row = |policy: &str| {
            run.rows.iter().find(|r| {
                r.policy == policy && r.setting.requests().is_some_and(|r| r.pattern == pattern)
            })
        };
        let (Some(ours), Some(block)) = (row("predictive"), row("block")) else {
            anyhow::bail!("a contender is missing")
        };
        let case = format!("predictive ÷ block, loop on tmpfs, 4 KiB {name}");
        let remark = both(odd.clone(), cpu_text(ours, block));
        put(result, &case, pair(ours, block, Metric::Throughput), remark)?;
        if pattern == Pattern::Rand {
            switches(result, ours, block)?;
        }
    }
    corrected(lab, result, &subject, &mut |what, share| progress(what, 0.7 + 0.3 * share))?;
    Ok(None)
}

fn switches(result: &mut FigureResult, ours: &Row, block: &Row) -> Result<()> {
    let rounds = ours.rounds.iter().zip(&block.rounds);
    let saved = rounds.map(|(ours, block)| {
        block.voluntary_switches as f64 / block.requests as f64
            - ours.voluntary_switches as f64 / ours.requests as f64
    });
    let counted = "the waiting thread's own, as the kernel counts them: one each time it leaves";
    let case = "voluntary switches per request saved by spinning";
    put(result, case, Summary::of(saved), Some(counted.into()))?;
    let explored = ours.summary(|round| {
        let explored = round.decisions.iter().filter(|(how, _)| how.ends_with(": explored"));
        explored.map(|(_, count)| count).sum::<u64>() as f64 * 100.0 / round.requests as f64
    });
    put(result, "requests that explored the other mode", explored, None)
}

/// A profile that claims a hundred times the latency: once corrected, against the true one, and
/// how soon it is corrected.
fn corrected(
    lab: &Lab,
    result: &mut FigureResult,
    subject: &Subject,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let cases = [
        "latency claimed 100× too long: ÷ true profile",
        "latency claimed 100× too long: corrected after",
    ];
    let Some(profile) = subject.parameters.profile else {
        return super::lab::skip(result, &cases, "the device was not probed");
    };
    let wrong = dwell_policy::Profile {
        latency_ns: profile.latency_ns * OFF,
        latency_ps_per_byte: profile.latency_ps_per_byte * OFF,
        ..profile
    };
    let parameters =
        [subject.parameters, DeviceParameters { profile: Some(wrong), ..subject.parameters }];
    let mut entrants = Vec::new();
    for (name, parameters) in ["true", "100× too long"].into_iter().zip(parameters) {
        let policy = Arc::new(Predictive);
        let contender = Contender::under(policy, subject, parameters, Some(&lab.monitor))?;
        entrants.push(Entrant { name: name.into(), contender, monitor: Some(lab.monitor.clone()) });
    }
    let setting = Setting::new(subject, Load::Idle, Requests::random_reads());
    let (rounds, batch) = (lab.times(21), lab.span(150));
    let course = Course { subject, setting: &setting, size_bytes: SIZE_BYTES, rounds, batch };
    let rows = race(&mut entrants, &course, None, &mut |what| progress(what, 0.2))?;
    put(result, cases[0], pair(&rows[1], &rows[0], Metric::Throughput), None)?;

    let mut requests = Vec::new();
    let times = lab.times(15);
    for time in 0..times {
        progress("a wrong profile corrects itself", 0.5 + 0.5 * time as f64 / times as f64);
        requests.extend(until_corrected(subject, parameters[1])?);
    }
    let never = times - requests.len();
    let remark = (never > 0).then(|| format!("{never} of {times} never within {MOST} requests"));
    put(result, cases[1], Summary::of(requests), remark)
}

/// Requests until a stretch of them was mostly spun for; `None` when that never happens. The
/// machine is taken for idle: no monitor is asked.
fn until_corrected(subject: &Subject, parameters: DeviceParameters) -> Result<Option<f64>> {
    let policy = Arc::new(Predictive);
    let mut contender = Contender::under(policy, subject, parameters, None)?;
    let mut buffer = Aligned::new(SIZE_BYTES as usize);
    let (mut requests, mut spun_before) = (0, 0);
    while requests < MOST {
        for _ in 0..STRETCH {
            contender.request(
                Direction::Read,
                &mut buffer,
                requests * SIZE_BYTES % subject.bytes,
            )?;
            requests += 1;
        }
        let spun = contender.stats().because(Reason::Pays);
        if spun - spun_before >= MOSTLY {
            return Ok(Some((requests - STRETCH) as f64));
        }
        spun_before = spun;
    }
    Ok(None)
}
