// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds in the end: for a process, and for one device.

use std::sync::Arc;

use dwell_policy::policy::{Adaptive, CpuSignal, SmartCon};
use dwell_policy::{DeviceClass, Goal, Profile, WaitPolicy};
use serde::Serialize;

use super::{DeviceNames, DeviceRule, Origin, Set, Settings, Waiting};
use dwell::error::{Error, Result};
use dwell::parameters::DeviceParameters;
use dwell::policies;
use dwell::share::Share;

/// The policy of which nothing is said.
const POLICY: &str = "adaptive";

/// What holds for a process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct General {
    /// The policy of devices of which nothing else is said.
    pub policy: Set<String>,
    /// What CPU time is worth to `adaptive`.
    pub goal: Set<Goal>,
    /// `smartcon`'s CPU threshold, 0–1; `None` for the system monitor's.
    pub cpu_threshold: Option<Set<f32>>,
    /// Largest number of requests ahead at which `smartcon` still spins; `None` without limit.
    pub queue_limit: Option<Set<u32>>,
    /// Which utilisation `smartcon` holds against the CPU threshold.
    pub cpu_signal: Set<CpuSignal>,
    /// Which part of the requests is steered; `None` for all.
    pub steer: Option<Set<Share>>,
    /// How long a process is left alone when it begins, in milliseconds.
    pub leave_alone_ms: Set<u32>,
    /// Whether decisions are recorded only.
    pub shadow: Set<bool>,
    /// CPU time that busy-waiting may use at most, 0–1 of the CPUs that a process may run on;
    /// `None` for no cap.
    pub spin_cap: Option<Set<f32>>,
    /// Whether a device that is added is probed.
    pub probe_on_add: Set<bool>,
}

/// What holds for one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effective {
    /// Whether its requests go straight to the kernel.
    pub exclude: Set<bool>,
    /// Name of its policy.
    pub policy: Set<String>,
    /// What CPU time is worth to `adaptive`.
    pub goal: Set<Goal>,
    /// `smartcon`'s CPU threshold, 0–1; `None` for the system monitor's.
    pub cpu_threshold: Option<Set<f32>>,
    /// Largest number of requests ahead at which `smartcon` still spins; `None` without limit.
    pub queue_limit: Option<Set<u32>>,
    /// Which utilisation `smartcon` holds against the CPU threshold.
    pub cpu_signal: Set<CpuSignal>,
    /// Which part of the requests is steered; `None` for all.
    pub steer: Option<Set<Share>>,
    /// The class it is taken for; `None` for the probe's.
    pub class: Option<Set<DeviceClass>>,
    /// Size threshold in bytes; `None` for the probe's.
    pub size_threshold_bytes: Option<Set<u64>>,
    /// What the size threshold may be at most, in bytes; `None` without limit.
    pub largest_threshold_bytes: Option<Set<u64>>,
}

/// How long a process is left alone where nothing is said of it, in milliseconds: one that ends
/// before has nothing to gain, and what its engine needs would take longer than all its waits.
const LEAVE_ALONE_MS: u32 = 20;

impl Settings {
    /// What holds for a process.
    pub fn general(&self) -> General {
        let Waiting { policy, goal, cpu_threshold, queue_limit, cpu_signal, steer } =
            self.waiting.clone();
        let or = |said: &Option<Set<bool>>, default| said.clone().unwrap_or(Set::default(default));
        General {
            policy: policy.unwrap_or_else(|| Set::default(POLICY.to_owned())),
            goal: goal.unwrap_or_else(|| Set::default(Goal::default())),
            cpu_threshold,
            queue_limit,
            cpu_signal: cpu_signal.unwrap_or_else(|| Set::default(CpuSignal::default())),
            steer,
            leave_alone_ms: self.leave_alone_ms.clone().unwrap_or(Set::default(LEAVE_ALONE_MS)),
            shadow: or(&self.shadow, false),
            spin_cap: self.spin_cap.clone(),
            probe_on_add: or(&self.probe_on_add, false),
        }
    }

    /// The settings in force for a device. A rule for the device wins over a general setting,
    /// whichever file it is in. A later rule wins over an earlier one; an option of the command
    /// line wins over everything.
    pub fn for_device(&self, names: &DeviceNames) -> Effective {
        let matching =
            |rule: &&DeviceRule| names.iter().any(|name| rule.pattern.value.matches_name(name));
        let mut waiting = self.waiting.clone();
        let (mut exclude, mut class, mut size, mut largest) = (None, None, None, None);
        for rule in self.devices.iter().filter(matching) {
            waiting = waiting.under(rule.waiting.clone());
            exclude = rule.exclude.clone().or(exclude);
            class = rule.class.clone().or(class);
            size = rule.size_threshold_bytes.clone().or(size);
            largest = rule.largest_threshold_bytes.clone().or(largest);
        }
        let Waiting { policy, goal, cpu_threshold, queue_limit, cpu_signal, steer } =
            waiting.under(self.waiting.options());
        Effective {
            exclude: exclude.unwrap_or_else(|| Set::default(false)),
            policy: policy.unwrap_or_else(|| Set::default(POLICY.to_owned())),
            goal: goal.unwrap_or_else(|| Set::default(Goal::default())),
            cpu_threshold,
            queue_limit,
            cpu_signal: cpu_signal.unwrap_or_else(|| Set::default(CpuSignal::default())),
            steer,
            class,
            size_threshold_bytes: size,
            largest_threshold_bytes: largest,
        }
    }
}

impl Waiting {
    /// Only what an option of the command line says.
    fn options(&self) -> Waiting {
        fn option<T: Clone>(said: &Option<Set<T>>) -> Option<Set<T>> {
            said.clone().filter(|set| matches!(set.origin, Origin::Option(_)))
        }
        Waiting {
            policy: option(&self.policy),
            goal: option(&self.goal),
            cpu_threshold: option(&self.cpu_threshold),
            queue_limit: option(&self.queue_limit),
            cpu_signal: option(&self.cpu_signal),
            steer: option(&self.steer),
        }
    }
}

impl Effective {
    /// The policy with its parameters.
    ///
    /// # Errors
    /// A policy that this process does not know: another program's own.
    pub fn wait_policy(&self) -> Result<Arc<dyn WaitPolicy>> {
        let smartcon = SmartCon {
            cpu_threshold: self.cpu_threshold.as_ref().map(|set| set.value),
            queue_limit: self.queue_limit.as_ref().map(|set| set.value),
            signal: self.cpu_signal.value,
        };
        let name = &self.policy.value;
        let ours: Option<Arc<dyn WaitPolicy>> = match name.as_str() {
            "smartcon" => Some(Arc::new(smartcon)),
            "adaptive" => Some(Arc::new(Adaptive { prior: smartcon, goal: self.goal.value })),
            _ => policies::by_name(name),
        };
        ours.ok_or_else(|| {
            let known = policies::names().join(", ");
            Error::invalid(
                name,
                format!("no such policy ({}); there are {known}", self.policy.origin),
            )
        })
    }

    /// What a probe learned, with what was said in its place. A device that was never probed
    /// becomes known where its class is said.
    #[must_use]
    pub fn parameters(&self, probed: DeviceParameters) -> DeviceParameters {
        let mut profile = probed.profile;
        if let Some(class) = &self.class {
            let mut said = Profile { class: class.value, ..profile.unwrap_or_default() };
            said.async_threshold_bytes = match class.value {
                DeviceClass::Mainstream => 0,
                _ => said.async_threshold_bytes.max(said.size_threshold_bytes),
            };
            profile = Some(said);
        }
        if let Some(profile) = &mut profile {
            if let Some(size) = &self.size_threshold_bytes {
                profile.size_threshold_bytes = size.value;
                if profile.async_threshold_bytes > 0 {
                    profile.async_threshold_bytes = size.value;
                }
            }
            if let Some(largest) = &self.largest_threshold_bytes {
                for threshold in
                    [&mut profile.size_threshold_bytes, &mut profile.async_threshold_bytes]
                {
                    *threshold = (*threshold).min(largest.value);
                }
            }
        }
        DeviceParameters { profile, ..probed }
    }
}
