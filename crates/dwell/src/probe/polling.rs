// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a polled ring is really polled: the device's interrupts tell.
#![allow(unsafe_code)]

use std::path::Path;

use dwell_policy::{Decision, DeviceClass, Mode, Profile, Reason, Route, WaitMachine};

use crate::buffer::Aligned;
use crate::clock;
use crate::device::{Device, DeviceKind};
use crate::known::Known;
use crate::open::Options;
use crate::profile::Polling;
use crate::queue::{Action, Io, Queue};
use crate::ring;
use crate::source::Source;
use crate::wait::wait;

/// Requests to count interrupts over.
const REQUESTS: u32 = 64;
/// Others may use the device at the same time: the quietest of this many runs counts.
const RUNS: usize = 3;
/// Interrupts that others' requests may raise in the quietest run.
const STRAY: u64 = REQUESTS as u64 / 16;

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
    let mut quietest = None;
    for _ in 0..RUNS {
        let before = device.interrupts();
        if let Err(why) = polled_reads(address, device) {
            return Polling::Unsupported { why };
        }
        let raised =
            before.zip(device.interrupts()).map(|(before, after)| after.saturating_sub(before));
        quietest = match (quietest, raised) {
            (Some(least), Some(raised)) => Some(u64::min(least, raised)),
            (least, raised) => least.or(raised),
        };
    }
    match quietest {
        // A driver without interrupts (a memory device) has only sysfs to speak for it.
        Some(0..=STRAY) | None if device.io_poll => Polling::Real,
        raised => Polling::Fake {
            interrupts_per_request: raised.unwrap_or(0) as f64 / f64::from(REQUESTS),
        },
    }
}

fn polled_reads(address: &Path, device: &Device) -> Result<(), String> {
    let profile = Profile { class: DeviceClass::Fast, ..Profile::default() };
    let known = Known { profile: Some(profile), polled: true, ..Known::default() };
    let file = Options::new()
        .direct(true)
        .known(known)
        .open(address)
        .map_err(|error| error.to_string())?;
    let mut queue = file.source().queue(1).map_err(|error| error.to_string())?;
    let bytes = 4096.max(device.logical_block_bytes);
    let mut buffer = Aligned::new(bytes as usize);
    let blocks = (file.bytes().map_err(|error| error.to_string())? / u64::from(bytes)).max(1);
    for request in 0..REQUESTS {
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
    Ok(())
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
