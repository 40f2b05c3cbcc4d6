// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmartCon: device class, size, backlog, CPU.

use super::{Check, CpuSignal, Looked, WaitPolicy, block, leave, left, spin, wake};
use crate::{Decision, DeviceClass, Kind, Load, Mode, Profile, Reason, Route, Wait};

/// Decides per request, cheapest check first (SmartCon §5.1): device class, request size, size
/// with the backlog ahead of it, optionally the number of requests ahead, whether who serves it is
/// awake, and the CPU last.
///
/// A request of exactly the threshold still spins. One of several of its thread has a class and a
/// threshold of its own ([`Profile::class_of`]). Very fast devices are served inline,
/// mainstream ones always block, and a device that was never probed passes through.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmartCon {
    /// CPU threshold, 0–1, in place of the system monitor's.
    pub cpu_threshold: Option<f32>,
    /// Largest number of requests ahead at which it still spins (Q in SmartCon Fig. 7).
    pub queue_limit: Option<u32>,
    /// Which utilisation counts.
    pub signal: CpuSignal,
}

impl WaitPolicy for SmartCon {
    fn name(&self) -> &str {
        "smartcon"
    }

    #[inline]
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        for rule in Rule::BEFORE_SPINNING {
            if let Some(decision) = self.apply(rule, wait) {
                return decision;
            }
        }
        spin(wait, Reason::Pays)
    }

    fn always_inline(&self, profile: Option<&Profile>) -> Option<(Mode, Reason)> {
        let Some(profile) = profile else { return Some((Mode::Block, Reason::Unprobed)) };
        match profile.class {
            DeviceClass::Mainstream if profile.ring_threshold_bytes > 0 => None,
            DeviceClass::Mainstream => Some((Mode::Block, Reason::Mainstream)),
            DeviceClass::VeryFast => Some((Mode::Spin, Reason::VeryFast)),
            DeviceClass::Fast => None,
        }
    }

    /// Estimates say when a wait is due, and nothing of whether it spins.
    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        left(self.choose(wait))
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        self.checks(wait).for_each(hear);
    }
}

/// The checks, cheapest first.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Probed,
    Class,
    Sync,
    Size,
    Backlog,
    QueueLength,
    Awake,
    Cpu,
    SpinnerLimit,
}

impl Rule {
    const BEFORE_SPINNING: [Rule; 9] = [
        Rule::Probed,
        Rule::Class,
        Rule::Sync,
        Rule::Size,
        Rule::Backlog,
        Rule::QueueLength,
        Rule::Awake,
        Rule::Cpu,
        Rule::SpinnerLimit,
    ];
}

impl SmartCon {
    /// Every check of a request, in order, each made for itself; the first with a decision is the
    /// one that [`SmartCon::choose`](WaitPolicy::choose) stops at. The last one always decides.
    pub fn checks(&self, wait: &Wait<'_>) -> impl Iterator<Item = Check> {
        let made = |rule| Check { looked: self.look(rule, wait), decision: self.apply(rule, wait) };
        let last = Check {
            looked: Looked::Queue(wait.routes.to_spin()),
            decision: Some(spin(wait, Reason::Pays)),
        };
        Rule::BEFORE_SPINNING.into_iter().map(made).chain([last])
    }

    /// What a rule decides, if it does.
    #[inline(always)]
    fn apply(&self, rule: Rule, wait: &Wait<'_>) -> Option<Decision> {
        let Some(profile) = wait.profile else {
            return matches!(rule, Rule::Probed).then(|| block(wait, Reason::Unprobed));
        };
        let threshold_bytes = profile.threshold_of(wait.call);
        let blocks = |when: bool, reason| when.then(|| leave(wait, reason));
        match rule {
            Rule::Probed => None,
            Rule::Class => match profile.class_of(wait.call) {
                DeviceClass::Mainstream => Some(leave(wait, Reason::Mainstream)),
                DeviceClass::VeryFast if wait.routes.has(Route::Inline) => {
                    let expected_ns = wait.predicted_ns();
                    Some(Decision::new(Route::Inline, Mode::Spin, expected_ns, Reason::VeryFast))
                }
                DeviceClass::VeryFast => Some(spin(wait, Reason::VeryFast)),
                DeviceClass::Fast => None,
            },
            Rule::Sync => blocks(wait.kind == Kind::Sync, Reason::Sync),
            Rule::Size => blocks(wait.size_bytes > threshold_bytes, Reason::Size),
            Rule::Backlog => blocks(with_backlog(wait) > threshold_bytes, Reason::Backlog),
            Rule::QueueLength => {
                let over = self.queue_limit.is_some_and(|limit| wait.backlog.requests > limit);
                blocks(over, Reason::QueueLength)
            }
            Rule::Awake => (!wait.awake).then(|| wake(wait, Reason::Asleep)),
            Rule::Cpu => {
                let load = self.load(wait);
                let busy = match self.signal {
                    CpuSignal::Others => load.others_above(),
                    CpuSignal::Total => load.total_above(),
                };
                busy.then(|| block(wait, Reason::CpuBusy))
            }
            Rule::SpinnerLimit => (!wait.load.may_spin).then(|| block(wait, Reason::SpinnerLimit)),
        }
    }

    /// What a rule looks at.
    fn look(&self, rule: Rule, wait: &Wait<'_>) -> Looked {
        let threshold_bytes = wait.profile.map(|profile| profile.threshold_of(wait.call));
        match rule {
            Rule::Probed => Looked::Probed(wait.profile.is_some()),
            Rule::Class => Looked::Class(wait.profile.map(|profile| profile.class_of(wait.call))),
            Rule::Sync => Looked::Kind(wait.kind),
            Rule::Size => Looked::Size { bytes: wait.size_bytes, threshold_bytes },
            Rule::Backlog => Looked::Backlog { bytes: with_backlog(wait), threshold_bytes },
            Rule::QueueLength => {
                Looked::QueueLength { requests: wait.backlog.requests, limit: self.queue_limit }
            }
            Rule::Awake => Looked::Awake(wait.awake),
            Rule::Cpu => {
                let load = self.load(wait);
                let used = match self.signal {
                    CpuSignal::Others => load.others(),
                    CpuSignal::Total => load.total(),
                };
                Looked::Cpu { signal: self.signal, used, threshold: load.threshold() }
            }
            Rule::SpinnerLimit => Looked::SpinnerLimit(wait.load.may_spin),
        }
    }

    /// The load, held against this policy's own CPU threshold where it has one.
    #[inline(always)]
    fn load(&self, wait: &Wait<'_>) -> Load {
        self.cpu_threshold.map_or(wait.load, |threshold| wait.load.with_threshold(threshold))
    }
}

/// Size of the request and of all that is ahead of it, in bytes.
#[inline(always)]
fn with_backlog(wait: &Wait<'_>) -> u64 {
    wait.size_bytes.saturating_add(wait.backlog.bytes)
}
