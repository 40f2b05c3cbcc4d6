// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the storage time of every process goes, look by look.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use dwell_advise::{Follow, Parts, ProcessTotal, Tracer, totals_by_process};
use dwell_bench::units;

use crate::cmd::advise;
use crate::openmetrics::WaitSum;
use crate::show::{self, Screen, Tone, finished};

/// Rows of the table.
const ROWS: usize = 20;

/// A trace of the whole machine.
pub struct Waits {
    tracer: Tracer,
    seconds: f64,
    latest: Vec<ProcessTotal>,
    sums: BTreeMap<[String; 4], (u64, Parts)>,
}

impl Waits {
    /// Begins the trace.
    pub fn start() -> Result<Waits> {
        let tracer = Tracer::start(Follow::Everything);
        let tracer = tracer.map_err(|error| anyhow!(advise::in_words(&error)))?;
        Ok(Waits { tracer, seconds: 0.0, latest: vec![], sums: BTreeMap::new() })
    }

    /// What happened since the last look.
    pub fn look(&mut self) -> Result<()> {
        let seen = self.tracer.take()?;
        self.seconds = seen.seconds;
        self.latest = totals_by_process(&seen);
        Ok(())
    }

    /// What the last look found, the longest first.
    pub fn totals(&self) -> &[ProcessTotal] {
        &self.latest
    }

    /// Looks, and adds up what was found since the trace began.
    pub fn sums(&mut self) -> Result<Vec<WaitSum>> {
        self.look()?;
        for ProcessTotal { program, total, .. } in &self.latest {
            let names = [program, &total.device, total.operation.name(), total.issued.name()];
            let sum = self.sums.entry(names.map(str::to_owned)).or_default();
            sum.0 += total.count;
            sum.1 += total.parts;
        }
        const LABELS: [&str; 4] = ["command", "device", "operation", "issued"];
        let sum = |(names, (count, parts)): (&[String; 4], &(u64, Parts))| WaitSum {
            labels: std::array::from_fn(|at| (LABELS[at], names[at].clone())),
            count: *count,
            parts: *parts,
        };
        Ok(self.sums.iter().map(sum).collect())
    }

    /// The last look as a table.
    pub fn table(&self, screen: &Screen) -> String {
        if self.latest.is_empty() {
            return "no thread waited for storage\n".to_owned();
        }
        let heads = [
            "pid",
            "command",
            "device",
            "operation",
            "issued by",
            "waits",
            "mean",
            "of time",
            "device",
            "kernel",
            "waking",
            "busy CPU",
        ];
        let mut table = screen.table(&heads, &[0, 5, 6, 7, 8, 9, 10, 11]);
        for ProcessTotal { process, program, total } in self.latest.iter().take(ROWS) {
            let all = total.parts.total_ns().max(1) as f64;
            let part = |ns: u64| units::percent(ns as f64 / all).into();
            let parts = total.parts;
            table.add_row([
                (*process).into(),
                screen.cell(Tone::Strong, show::one_line(program)),
                (&total.device).into(),
                total.operation.name().into(),
                total.issued.name().into(),
                units::per_second(total.count as f64 / self.seconds.max(1e-9)).into(),
                units::time_ns(total.mean_ns() as f64).into(),
                units::percent(total.share).into(),
                part(parts.device_ns),
                part(parts.kernel_ns),
                part(parts.wake_ns),
                part(parts.busy_ns),
            ]);
        }
        finished(&table)
    }
}
