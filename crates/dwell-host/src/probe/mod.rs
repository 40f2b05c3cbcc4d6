// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device monitor: what a device and this machine's switches cost, and how the device should
//! therefore be waited for (SmartCon §3 and §4.1). It only reads, unless a scratch file is asked
//! for.

pub mod async_submission;
mod company;
pub mod judge;
mod lane;
mod polling;
mod scratch;
pub mod sweep;
pub mod switch;
#[cfg(test)]
mod tests;
mod turn;
mod worker;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use dwell_policy::{DeviceClass, Mode, Ns, Profile, Route, Routes};

use crate::capability::profiled_release;
use crate::profile::{
    AsyncPoint, Curve, DeviceProfile, DirectSwitch, IndirectSwitch, Polling, SCHEMA,
    SleepOvershoot, SpinMethod, SwitchCosts,
};
use company::Company;
use dwell::clock;
use dwell::device::{Device, DeviceError, DeviceKind};
use dwell::error::Error;
use dwell::file::File;
use dwell::open::{self, Options};
use dwell::source::Source;
pub use scratch::BYTES as SCRATCH_BYTES;
use sweep::{Arm, Bench, Effort, SIZES, Swept};

/// Sleeps whose overshoot is measured, in nanoseconds.
pub const SLEEPS_NS: [Ns; 4] = [1_000, 3_000, 10_000, 80_000];
/// Working set whose reload counts as the price of a switch among competitors, in bytes.
pub const RELOAD_WORKING_SET_BYTES: usize = 256 << 10;
/// Time for a whole probe, in nanoseconds: on a slow device it measures less often, and what it
/// leaves out is told in the profile's notes.
pub const LIMIT_NS: Ns = 50_000_000_000;
/// Time kept back for what follows the curves, in nanoseconds.
const REST_NS: Ns = 3_000_000_000;
/// Time for unmeasured requests before each arm's turn, in nanoseconds. CPUs that an arm leaves
/// idle take some hundred milliseconds to learn how soon they are wanted again. The probe judges a
/// device by what a thread gets that keeps to one arm.
const SETTLE_NS: Ns = 300_000_000;
/// The race of the spin methods: also a quick probe races them long, because the worker must be
/// driven to another CPU each time. While it shares the spinning thread's, all methods look alike.
const RACE: Effort =
    Effort { rounds: 9, settle_ns: 30_000_000, batch_ns: 12_000_000, limit_ns: 4_000_000_000 };
/// What kernel workers take is measured for so many batches, or for less where that is enough.
const WORKER_BATCHES: Ns = 50;

/// Why a probe gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No device was found.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A read or an opening failed.
    #[error(transparent)]
    Io(#[from] Error),
    /// What was named is too small to measure.
    #[error(
        "{path}: holds {bytes} bytes; a probe reads requests of up to 512 KiB at random places: name a file of 1 MiB or more, or the device"
    )]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The switch costs could not be measured.
    #[error("measuring the cost of a context switch: {0}")]
    Switch(std::io::Error),
}

/// What to probe, and how thoroughly.
#[derive(Clone, Debug)]
pub struct Probe {
    /// A file, a block device, or the address of a scheme.
    pub address: PathBuf,
    /// How long and how often to measure.
    pub effort: Effort,
    /// Request sizes, in bytes.
    pub sizes: Vec<u64>,
    /// Largest size threshold that the profile may get, in bytes.
    pub largest_threshold_bytes: u64,
    /// Switch costs that were already measured on this machine.
    pub switches: Option<SwitchCosts>,
    /// The class that an earlier probe of this device found.
    pub before: Option<DeviceClass>,
    /// A file to measure writes on: made on the probed device, [`SCRATCH_BYTES`] long, and gone
    /// afterwards. Without it a probe only reads.
    pub scratch: Option<PathBuf>,
}

/// How a probe opens what it measures.
struct Manner {
    /// What its policies read.
    profile: Profile,
    /// Once for each of these.
    arms: Vec<Arm>,
    direct: bool,
}

/// Hears which phase runs, and the share of the whole that is done, 0–1.
pub type Progress<'a> = dyn FnMut(&str, f64) + 'a;

impl Probe {
    /// A thorough probe: some ten seconds.
    pub fn new(address: impl Into<PathBuf>) -> Self {
        Probe {
            address: address.into(),
            effort: Effort {
                rounds: 7,
                settle_ns: SETTLE_NS,
                batch_ns: 25_000_000,
                limit_ns: LIMIT_NS,
            },
            sizes: SIZES.to_vec(),
            largest_threshold_bytes: judge::LARGEST_THRESHOLD_BYTES,
            switches: None,
            before: None,
            scratch: None,
        }
    }

    /// A short probe: some seconds.
    #[must_use]
    pub fn quick(mut self) -> Self {
        self.effort = Effort { rounds: 3, batch_ns: 12_000_000, ..self.effort };
        self
    }

    /// A probe of some five seconds: judged like the others, measured less exactly.
    #[must_use]
    pub fn brief(mut self) -> Self {
        self.effort =
            Effort { rounds: 3, settle_ns: 60_000_000, batch_ns: 8_000_000, ..self.effort };
        self
    }

    /// A probe of no more than a second: its profile shows that all works and says little of the
    /// device.
    #[must_use]
    pub fn hasty(mut self) -> Self {
        let short_ns = 1_000_000;
        self.effort = Effort { rounds: 1, settle_ns: short_ns, batch_ns: short_ns, ..self.effort };
        self
    }

    /// Keeps the class that an earlier probe found, unless the device is clearly of another
    /// ([`judge::CLEARLY`]).
    #[must_use]
    pub fn after(mut self, earlier: &DeviceProfile) -> Self {
        self.before = Some(earlier.decision.class);
        self
    }

    /// Measures writes too, on a file that is made for it and gone afterwards.
    #[must_use]
    pub fn scratch(mut self, path: impl Into<PathBuf>) -> Self {
        self.scratch = Some(path.into());
        self
    }

    /// Measures, and judges; within a minute also on a slow device.
    ///
    /// # Errors
    /// [`ProbeError`], naming the path and what to do.
    pub fn run(&self, progress: &mut Progress<'_>) -> Result<DeviceProfile, ProbeError> {
        let until = clock::now() + self.effort.limit_ns;
        let left_ns = || until.saturating_sub(clock::now());
        let device = match open::is_scheme(&self.address) {
            true => None,
            false => Some(Device::beneath(&self.address)?),
        };
        let memory = device.as_ref().is_some_and(|device| device.kind == DeviceKind::Tmpfs);
        let direct = device.is_some() && !memory;
        let opened = Options::new().direct(direct).open(&self.address)?;
        let bytes = opened.bytes()?;
        if bytes < SIZES[SIZES.len() - 1] * 2 {
            return Err(ProbeError::TooSmall { path: self.address.clone(), bytes });
        }
        match (&self.scratch, &device) {
            (Some(path), Some(device)) => scratch::rehearse(path, device)?,
            (Some(path), None) => return Err(scratch_without_device(path).into()),
            (None, _) => {}
        }
        progress("whether the machine is quiet", 0.0);
        let company = Company::look(self.effort.settle_ns);
        let switches = match &self.switches {
            Some(known) => known.clone(),
            None => switch_costs(&mut |share| progress("cost of a context switch", share * 0.25))
                .map_err(ProbeError::Switch)?,
        };
        let sleeps = sleep_overshoots();
        let sleep_overshoot_ns = sleeps.iter().map(|sleep| sleep.overshoot_ns).max().unwrap_or(0);
        let first = Profile { sleep_overshoot_ns, ..Profile::default() };

        progress("whether polling is real", 0.25);
        let routes = if memory { Routes::INLINE } else { opened.source().routes() };
        let polling = polling::check(&self.address, device.as_ref(), direct);
        progress("fastest spin method", 0.3);
        let method = match routes.has(Route::Interrupt) {
            true => self.fastest_method(first, direct)?,
            false => SpinMethod::default(),
        };
        let manner = Manner { profile: first, arms: arms(routes, &polling, method), direct };
        let reads_end = if self.scratch.is_some() { 0.6 } else { 0.9 };
        let for_reads_ns = match self.scratch {
            Some(_) => left_ns().saturating_sub(REST_NS) / 2,
            None => left_ns().saturating_sub(REST_NS),
        };
        let Swept { mut curves, left_out } = self.reads(&manner, for_reads_ns, &mut |share| {
            progress("latency by size and mode", 0.35 + share * (reads_end - 0.35));
        })?;
        let mut remarks: Vec<String> = left_out.into_iter().collect();
        if let Some(path) = &self.scratch {
            progress("latency of writes", reads_end);
            let for_writes_ns = left_ns().saturating_sub(REST_NS);
            let written =
                self.writes(&manner, path, device.as_ref(), for_writes_ns, &mut |share| {
                    progress("latency of writes", reads_end + share * (0.9 - reads_end));
                })?;
            curves.extend(written.curves);
            remarks.extend(written.left_out);
        }

        progress("several requests in flight", 0.9);
        let async_submission = self.async_submission(&manner, left_ns())?;

        progress("CPU time of kernel workers", 0.95);
        let worker = match device.as_ref().is_some_and(|device| device.kernel_worker) {
            true => {
                let span_ns = worker::SPAN_NS.min(WORKER_BATCHES * self.effort.batch_ns);
                worker::cost(&self.address, first, method, span_ns)?
            }
            false => worker::Cost::default(),
        };
        remarks.extend(company.remark());
        let mut profile = self.judged(
            device,
            &opened,
            curves,
            async_submission,
            first,
            switches,
            sleeps,
            polling,
            method,
        );
        profile.notes.extend(remarks);
        progress("done", 1.0);
        Ok(DeviceProfile {
            worker_ns_per_request: worker.ns_per_request,
            worker_ps_per_byte: worker.ps_per_byte,
            ..profile
        })
    }

    /// Races the spin methods at the smallest size.
    fn fastest_method(&self, profile: Profile, direct: bool) -> Result<SpinMethod, ProbeError> {
        let arms =
            SpinMethod::ALL.map(|method| Arm { route: Route::Interrupt, mode: Mode::Spin, method });
        let mut bench = Bench::open(&self.address, &arms, profile, direct)?;
        let effort = Effort {
            rounds: RACE.rounds.min(5 * self.effort.rounds),
            settle_ns: RACE.settle_ns.min(self.effort.settle_ns),
            batch_ns: RACE.batch_ns.min(self.effort.batch_ns),
            ..RACE
        };
        let raced = bench.sweep(&SIZES[..1], effort, &mut |_| {})?.curves;
        Ok(judge::judge_methods(&SpinMethod::ALL.map(|method| {
            let raced = arms.iter().zip(&raced).find(|(arm, _)| arm.method == method);
            (method, raced.map_or(Ns::MAX, |(_, curve)| curve.points[0].states().worst_ns))
        })))
    }

    fn reads(
        &self,
        manner: &Manner,
        limit_ns: Ns,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Swept, ProbeError> {
        let mut bench = Bench::open(&self.address, &manner.arms, manner.profile, manner.direct)?;
        Ok(bench.sweep(&self.sizes, Effort { limit_ns, ..self.effort }, progress)?)
    }

    /// Blocking against the best arm that spins, with several requests in flight.
    fn async_submission(
        &self,
        manner: &Manner,
        limit_ns: Ns,
    ) -> Result<Vec<AsyncPoint>, ProbeError> {
        let spins = |arm: &&Arm| arm.mode == Mode::Spin;
        let Some(&spin) = manner.arms.iter().rev().find(spins) else { return Ok(Vec::new()) };
        let Effort { rounds, settle_ns, batch_ns, .. } = self.effort;
        let target = async_submission::Target {
            address: &self.address,
            profile: manner.profile,
            spin,
            direct: manner.direct,
        };
        Ok(async_submission::measure(
            target,
            async_submission::Effort { rounds, settle_ns, batch_ns, limit_ns },
        )?)
    }

    fn writes(
        &self,
        manner: &Manner,
        path: &Path,
        device: Option<&Device>,
        limit_ns: Ns,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Swept, ProbeError> {
        let Some(device) = device else {
            return Err(scratch_without_device(path).into());
        };
        let started = clock::now();
        let filled_by = started + limit_ns / 2;
        let mut bench =
            scratch::bench(path, device, &manner.arms, manner.profile, manner.direct, filled_by)?;
        let limit_ns = limit_ns.saturating_sub(clock::now() - started);
        Ok(bench.sweep(&self.sizes, Effort { limit_ns, ..self.effort }, progress)?)
    }

    #[allow(clippy::too_many_arguments)]
    fn judged(
        &self,
        device: Option<Device>,
        opened: &File,
        curves: Vec<Curve>,
        async_submission: Vec<AsyncPoint>,
        first: Profile,
        switches: SwitchCosts,
        sleeps: Vec<SleepOvershoot>,
        polling: Polling,
        spin_method: SpinMethod,
    ) -> DeviceProfile {
        let named = |mode: &str| curves.iter().find(|curve| curve.mode == mode);
        let inline = named("inline");
        let spin = named("polled-spin").or(named("interrupt-spin"));
        let none = Curve { mode: String::new(), points: Vec::new() };
        let ring = named("interrupt-block");
        let ring_bytes = match (inline, ring) {
            (Some(inline), Some(ring)) => judge::judge_ring(inline, ring),
            _ => 0,
        };
        let block = if ring_bytes > 0 { ring } else { inline.or(ring) }.unwrap_or(&none);
        let bounds = judge::Bounds {
            switches_ns: switches.direct.first().map_or(0, |cost| cost.ns) * 2,
            largest_threshold_bytes: self.largest_threshold_bytes,
            before: self.before,
        };
        let judgement = judge::judge(inline, block, spin, bounds);
        let best = match judgement.class {
            DeviceClass::Fast => spin.unwrap_or(block),
            DeviceClass::VeryFast | DeviceClass::Mainstream => block,
        };
        let (latency_ns, latency_ps_per_byte) = line(best);
        let saved_ns = |curve: &Curve| match (block.points.first(), curve.points.first()) {
            (Some(block), Some(spin)) => {
                block.states().worst_ns.saturating_sub(spin.states().worst_ns)
            }
            _ => 0,
        };
        let reload = switches
            .indirect
            .iter()
            .find(|cost| cost.working_set_bytes == RELOAD_WORKING_SET_BYTES as u64);
        let direct_ns = switches.direct.first().map_or(0, |cost| cost.ns);
        let decision = Profile {
            class: judgement.class,
            size_threshold_bytes: judgement.size_threshold_bytes,
            async_threshold_bytes: match judgement.class {
                DeviceClass::VeryFast => judgement.size_threshold_bytes,
                DeviceClass::Fast | DeviceClass::Mainstream => {
                    judge::judge_async(&async_submission, bounds)
                }
            },
            ring_threshold_bytes: match judgement.class {
                DeviceClass::VeryFast => 0,
                DeviceClass::Fast | DeviceClass::Mainstream => ring_bytes,
            },
            // What blocking really costs on this device, never less than the bare self switch.
            switch_ns: spin.map_or(0, saved_ns).max(switches.self_ns),
            reload_ns: reload.map_or(0, |cost| cost.ns.saturating_sub(direct_ns)),
            latency_ns,
            latency_ps_per_byte,
            ..first
        };
        let notes = vec![judgement.because];
        let whole = device.as_ref().map(Device::whole);
        let address = self.address.display().to_string();
        DeviceProfile {
            schema: SCHEMA,
            device_id: whole.map_or_else(|| address.clone(), |device| device.id.clone()),
            kernel_name: whole.map_or(address, |device| device.kernel_name.clone()),
            model: whole.and_then(|device| device.model.clone()),
            size_bytes: whole
                .map_or_else(|| opened.bytes().unwrap_or(0), |device| device.size_bytes),
            kernel_release: profiled_release(),
            scheduler: whole.map_or_else(|| "none".to_owned(), |device| device.scheduler.clone()),
            measured_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |at| at.as_secs()),
            dwell_version: env!("CARGO_PKG_VERSION").to_owned(),
            decision,
            contested: judgement.contested,
            curves,
            async_submission,
            switches,
            sleeps,
            polling,
            spin_method,
            worker_ns_per_request: 0,
            worker_ps_per_byte: 0,
            notes,
        }
    }
}

/// Cost of a context switch on this machine: direct, indirect and self switch.
///
/// # Errors
/// No process or pipe could be made.
pub fn switch_costs(progress: &mut dyn FnMut(f64)) -> std::io::Result<SwitchCosts> {
    let steps = (switch::RING_PROCESSES.len() + switch::WORKING_SETS.len()) as f64;
    let mut done = 0.0;
    let mut step = || {
        done += 1.0;
        progress(done / steps);
    };
    let mut direct = Vec::new();
    for processes in switch::RING_PROCESSES {
        direct.push(DirectSwitch { processes: processes as u32, ns: switch::direct(processes)? });
        step();
    }
    let mut indirect = Vec::new();
    for bytes in switch::WORKING_SETS {
        let ns = switch::indirect(bytes)?;
        indirect.push(IndirectSwitch { working_set_bytes: bytes as u64, ns });
        step();
    }
    // With one CPU a blocked thread is always switched for another one.
    let self_ns = switch::self_switch().unwrap_or_else(|| direct[0].ns * 2);
    Ok(SwitchCosts { self_ns, direct, indirect })
}

fn scratch_without_device(path: &Path) -> Error {
    let what = "a scratch file is for the writes of a kernel device; leave it out here";
    Error::invalid(path, what)
}

/// The arms that can be measured here.
fn arms(routes: Routes, polling: &Polling, method: SpinMethod) -> Vec<Arm> {
    let mut arms = Vec::new();
    if routes.has(Route::Inline) {
        arms.push(Arm::INLINE);
    }
    if routes.has(Route::Interrupt) {
        for mode in [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 0 }] {
            arms.push(Arm { route: Route::Interrupt, mode, method });
        }
    }
    if *polling == Polling::Real {
        arms.push(Arm { route: Route::Polled, mode: Mode::Spin, method });
    }
    arms
}

fn sleep_overshoots() -> Vec<SleepOvershoot> {
    let late =
        |asked_ns| SleepOvershoot { asked_ns, overshoot_ns: clock::sleep_overshoot(asked_ns, 200) };
    SLEEPS_NS.map(late).to_vec()
}

/// Latency at 4 KiB, and the slope beyond, from the first and the last point of a curve.
fn line(curve: &Curve) -> (Ns, u64) {
    let (Some(first), Some(last)) = (curve.points.first(), curve.points.last()) else {
        return (0, 0);
    };
    let bytes = last.size_bytes - first.size_bytes;
    let rise_ns = last.median_ns.saturating_sub(first.median_ns);
    (first.median_ns, (rise_ns * 1000).checked_div(bytes).unwrap_or(0))
}
