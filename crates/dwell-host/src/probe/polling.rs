// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a polled ring is really polled: the device's interrupts tell.
#![allow(unsafe_code)]

use std::path::Path;

use dwell_policy::{Decision, DeviceClass, Mode, Ns, Profile, Reason, Route, WaitMachine};

use crate::profile::Polling;
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::device::{Device, DeviceKind};
use dwell::open::Options;
use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Io, Queue};
use dwell::ring;
use dwell::source::Source;
use dwell::wait::wait;

/// Requests to count interrupts over.
const REQUESTS: u32 = 64;
/// Others may use the device at the same time: the quietest of this many runs counts.
const RUNS: usize = 3;
/// Interrupts that others' requests may raise in the quietest run: one in this many requests.
const STRAY_ONE_IN: u64 = 16;
/// A run on a slow device ends after this time with fewer requests.
const LONGEST_RUN_NS: Ns = 1_500_000_000;

/// Reads through a polled ring and counts the device's interrupts meanwhile. The kernel's word
/// alone is not enough: before Linux 6.14 it accepts polled requests for devices without poll
/// queues and completes them by interrupt.
pub fn check(address: &Path, device: Option<&Device>, direct: bool) -> Polling {
    let unsupported = |why: &str| Polling::Unsupported { why: why.to_owned() };
    let Some(device) = device else { return unsupported("not a kernel device") };
    if !direct {
        return unsupported("polling needs direct I/O");
    }
    if let Some(why) = ring::unavailable() {
        return unsupported(why);
    }
    let mut quietest: Option<f64> = None;
    for _ in 0..RUNS {
        let before = device.interrupts();
        let requests = match polled_reads(address, device) {
            Ok(requests) => requests,
            Err(why) => return Polling::Unsupported { why },
        };
        let raised =
            before.zip(device.interrupts()).map(|(before, after)| after.saturating_sub(before));
        let per_request = raised.map(|raised| raised as f64 / f64::from(requests));
        quietest = match (quietest, per_request) {
            (Some(least), Some(this)) => Some(least.min(this)),
            (least, this) => least.or(this),
        };
    }
    let interrupts_per_request = quietest.unwrap_or(0.0);
    // A driver without interrupts (a memory device) has only sysfs to speak for it.
    if device.io_poll && interrupts_per_request * STRAY_ONE_IN as f64 <= 1.0 {
        return Polling::Real;
    }
    Polling::Fake { interrupts_per_request }
}

/// Reads, and returns how many requests there were.
fn polled_reads(address: &Path, device: &Device) -> Result<u32, String> {
    let profile = Profile { class: DeviceClass::Fast, ..Profile::default() };
    let parameters =
        DeviceParameters { profile: Some(profile), polled: true, ..DeviceParameters::default() };
    let file = Options::new()
        .direct(true)
        .parameters(parameters)
        .open(address)
        .map_err(|error| error.to_string())?;
    let mut queue = file.source().queue(1).map_err(|error| error.to_string())?;
    let bytes = 4096.max(device.logical_block_bytes);
    let mut buffer = Aligned::new(bytes as usize);
    let blocks = (file.bytes().map_err(|error| error.to_string())? / u64::from(bytes)).max(1);
    let started = clock::now();
    for request in 0..REQUESTS {
        if clock::now() - started > LONGEST_RUN_NS && request > 0 {
            return Ok(request);
        }
        let offset = u64::from(request) % blocks * u64::from(bytes);
        // SAFETY: the buffer outlives the wait below, which ends with the completion.
        let io = unsafe {
            Io::plain(Action::Read, file.source().target(), buffer.as_mut_ptr(), bytes, offset)
        };
        let submitted = clock::now();
        let ticket =
            queue.submit(io, Route::Polled).map_err(|_| "no room in a new ring".to_owned())?;
        let decision = Decision::new(Route::Polled, Mode::Spin, 0, Reason::Fixed);
        let mut result = 0;
        wait(&mut queue, WaitMachine::new(&decision, submitted, submitted), &mut |completion| {
            result = completion.result;
            completion.ticket == ticket
        });
        match -result {
            libc::EOPNOTSUPP | libc::EINVAL => return Err(without_poll_queues(device)),
            errno if errno > 0 => return Err(std::io::Error::from_raw_os_error(errno).to_string()),
            _ => {}
        }
    }
    Ok(REQUESTS)
}

fn without_poll_queues(device: &Device) -> String {
    match device.whole().kind {
        DeviceKind::Nvme => {
            "no poll queues; boot with nvme.poll_queues=N (or set the module's parameter) to get them"
        }
        _ => "its driver has no poll queues",
    }
    .to_owned()
}
