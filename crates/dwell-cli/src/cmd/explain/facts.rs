// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device, the request and the load that an explanation is about.

use dwell::Kind;
use dwell_bench::units;
use dwell_host::profile::Beneath;
use dwell_policy::{Backlog, Call, Load, Wait};

use super::Args;
use crate::report;
use crate::show::{self, Screen};

pub(super) fn facts(
    screen: &Screen,
    args: &Args,
    beneath: &Beneath,
    wait: &Wait<'_>,
    seen: Load,
) -> String {
    let name = show::one_line(&args.path.display().to_string());
    let device = beneath.device.as_ref().map_or_else(
        || "an address of a scheme".to_owned(),
        |device| show::one_line(&device.to_string()),
    );
    let mut text = screen.labelled(&format!("{name}  "), &device);
    let profile = match &beneath.profile {
        Some(profile) => format!(
            "{}, size threshold {}; measured {}",
            profile.class(),
            show::threshold(profile.decision.size_threshold_bytes),
            profile.measured_utc()
        ),
        None => "none under this kernel and scheduler: the device is not probed".to_owned(),
    };
    text += &screen.labelled("profile   ", &profile);
    if beneath.profile.as_ref().is_some_and(|profile| profile.contested) {
        text += &screen.labelled("contested ", report::CONTESTED);
    }
    let what = match wait.kind {
        Kind::Read => format!("read of {}", units::bytes(wait.size_bytes)),
        Kind::Write => format!("write of {}", units::bytes(wait.size_bytes)),
        Kind::Sync => "sync".to_owned(),
    };
    let manner = match (&beneath.device, args.is_direct(beneath)) {
        (None, _) => "",
        (_, true) => ", direct",
        (_, false) => ", buffered",
    };
    let alone = match wait.call {
        Call::Blocking => "the thread waits for it alone",
        Call::Async => "one of several of its thread",
    };
    let ahead = match wait.backlog {
        Backlog { bytes: 0, requests: 0 } => "nothing ahead of it".to_owned(),
        Backlog { bytes, requests } => {
            let requests =
                if requests == 1 { "1 request".into() } else { format!("{requests} requests") };
            format!("{} in {requests} ahead of it", units::bytes(bytes))
        }
    };
    text += &screen.labelled("request   ", &format!("{what}{manner}; {alone}; {ahead}"));
    let load = wait.load;
    let (threshold, source) = match args.imagines_load() {
        true => (load.threshold(), "as given"),
        false if seen.others_above() && !load.others_above() => {
            (seen.threshold(), "now; one more thread fits beside them")
        }
        false => (seen.threshold(), "now"),
    };
    let cpus = format!(
        "others {}, everybody {}, threshold {} ({source})",
        units::percent(load.others().into()),
        units::percent(load.total().into()),
        units::percent(threshold.into())
    );
    text + &screen.labelled("CPUs      ", &cpus)
}
