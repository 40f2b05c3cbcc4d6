// SPDX-License-Identifier: MIT OR Apache-2.0
//! D8: one daemon with one, two, four and eight clients.

use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Result, anyhow};
use dwell::clock;

use super::contender::{Contender, Job, Sample};
use super::stage::Stage;
use super::{DEPTH, STILL, WAYS, file_bytes, ratio};
use crate::experiments::lab::{put, skip_all};
use crate::experiments::{Lab, Progress};
use crate::figure::FigureResult;

const CLIENTS: [usize; 4] = [1, 2, 4, 8];

/// D8.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let mut step = 0.0;
    for (way, action) in WAYS {
        let job = Job { action, request_bytes: 4096, file_bytes: file_bytes(lab) };
        let mut alone = Vec::new();
        for clients in CLIENTS {
            let name = format!("{way}, {clients} client{}", if clients > 1 { "s" } else { "" });
            progress(&name, step / 8.0);
            step += 1.0;
            let mut ours = (0..clients)
                .map(|_| Contender::queue(&stage, DEPTH, 4096, true))
                .collect::<Result<Vec<_>>>()?;
            let mut bare = (0..clients)
                .map(|_| Contender::kernel(&stage, false, false))
                .collect::<Result<Vec<_>>>()?;
            let (mut by_channel, mut by_call) = (Vec::new(), Vec::new());
            for _ in 0..lab.times(15) {
                std::thread::sleep(STILL);
                by_channel.push(together(&mut ours, job, lab.span(100))?);
                by_call.push(together(&mut bare, job, lab.span(100))?);
            }
            enter(result, &name, &by_channel, &by_call)?;
            if clients == 1 {
                alone.clone_from(&by_channel);
            }
            let growth = ratio(&by_channel, &alone, |sample| 1e9 / sample.ns);
            if clients > 1 {
                put(result, &format!("{name}: channel ÷ one client"), growth, None)?;
            }
        }
    }
    Ok(None)
}

fn enter(result: &mut FigureResult, name: &str, ours: &[Sample], bare: &[Sample]) -> Result<()> {
    let rate = ratio(ours, bare, |sample| 1e9 / sample.ns);
    let remark = super::times(ours, bare);
    put(result, &format!("{name}: channel ÷ bare tmpfs"), rate, remark)?;
    let cpu = ratio(ours, bare, |sample| sample.cpu_ns);
    put(result, &format!("{name}: CPU a request, channel ÷ bare tmpfs"), cpu, None)
}

/// All of them at the same time: nanoseconds of the clock and of all CPUs for each request of any.
fn together(contenders: &mut [Contender], job: Job, span: Duration) -> Result<Sample> {
    let start = Barrier::new(contenders.len() + 1);
    let (rates, cpu_ns, wall_ns) = std::thread::scope(|scope| {
        let threads: Vec<_> = contenders
            .iter_mut()
            .map(|contender| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    contender.round(job, span).map(|sample| 1e9 / sample.ns)
                })
            })
            .collect();
        start.wait();
        let (cpu, wall) = (clock::process_cpu(), clock::now());
        let rates: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        (rates, (clock::process_cpu() - cpu) as f64, (clock::now() - wall) as f64)
    });
    let mut rate = 0.0;
    for one in rates {
        rate += one.map_err(|_| anyhow!("a client panicked"))??;
    }
    Ok(Sample { ns: 1e9 / rate, cpu_ns: cpu_ns / (rate * wall_ns / 1e9) })
}
