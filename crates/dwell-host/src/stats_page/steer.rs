// SPDX-License-Identifier: MIT OR Apache-2.0
//! A policy that can be exchanged from outside while it is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dwell_policy::policy::Check;
use dwell_policy::{Decision, Goal, Mode, Profile, Reason, Wait, WaitPolicy, policy};

use super::ControlReader;
use super::layout::{POLICY_WORDS, put_text};
use dwell::policies;

/// Decides as its process is told to: by the policy that it was started with, by another that was
/// ordered, or, switched off, the kernel's own way. An order costs one relaxed load per decision
/// and takes effect with the next. Nothing is allocated or locked, for a signal handler may ask.
pub struct Steered {
    control: ControlReader,
    start: Arc<dyn WaitPolicy>,
    /// All policies that there were when it was made.
    known: Vec<([u64; POLICY_WORDS], Arc<dyn WaitPolicy>)>,
    /// The generation that was heeded last (high half), and which policy it named, counted from 1;
    /// 0 for the one at the start.
    heeded: AtomicU64,
}

impl Steered {
    /// `start`, until something else is ordered.
    pub fn new(start: Arc<dyn WaitPolicy>, control: ControlReader) -> Steered {
        let known = policies::names().into_iter().filter_map(|name| {
            let mut words = [0; POLICY_WORDS];
            put_text(&name, &mut words);
            Some((words, policies::by_name(&name)?))
        });
        let known = known.collect();
        let steered = Steered { control, start, known, heeded: AtomicU64::new(0) };
        steered.heed();
        steered
    }

    #[inline]
    fn now(&self) -> &dyn WaitPolicy {
        let mut heeded = self.heeded.load(Relaxed);
        if (heeded >> 32) as u32 != self.control.generation() {
            heeded = self.heed();
        }
        match (heeded as u32 as usize).checked_sub(1).and_then(|at| self.known.get(at)) {
            Some((_, ordered)) => &**ordered,
            None => &*self.start,
        }
    }

    #[cold]
    fn heed(&self) -> u64 {
        let (generation, words) = self.control.policy_words();
        let at = self.known.iter().position(|(name, _)| *name == words);
        let heeded = u64::from(generation) << 32 | at.map_or(0, |at| at as u64 + 1);
        self.heeded.store(heeded, Relaxed);
        heeded
    }
}

impl WaitPolicy for Steered {
    fn name(&self) -> &str {
        self.now().name()
    }

    #[inline]
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if self.control.is_off() {
            return policy::block(wait, Reason::Off);
        }
        self.now().choose(wait)
    }

    /// None: what holds now may be changed.
    fn always_inline(&self, _: Option<&Profile>) -> Option<(Mode, Reason)> {
        None
    }

    #[inline]
    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        self.now().leaves(wait).filter(|_| !self.control.is_off())
    }

    /// Some: a policy that wants to know may be ordered.
    fn goal(&self) -> Option<Goal> {
        Some(self.start.goal().unwrap_or_default())
    }

    fn looks_at_backlog(&self) -> bool {
        self.now().looks_at_backlog()
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        self.now().explain(wait, hear);
    }
}

#[cfg(test)]
mod tests {
    use dwell_policy::Kind;

    use super::*;
    use crate::stats_page::{Header, StatsPage, order};

    #[test]
    fn an_order_takes_effect_with_the_next_decision() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("dwell");
        let stats_page = StatsPage::create(&dir, &Header::default()).unwrap();
        let steered = Steered::new(Arc::new(policy::Spin), stats_page.reader());
        let wait = Wait::new(Kind::Read, 4096, None);
        let pid = std::process::id();
        assert_eq!((steered.name(), steered.choose(&wait).mode), ("spin", Mode::Spin));
        order(&dir, pid, "policy=block").unwrap();
        assert_eq!((steered.name(), steered.choose(&wait).mode), ("block", Mode::Block));
        order(&dir, pid, "policy=spin").unwrap();
        assert_eq!(steered.choose(&wait).mode, Mode::Spin);
        order(&dir, pid, "off").unwrap();
        let off = steered.choose(&wait);
        assert_eq!((off.mode, off.reason), (Mode::Block, Reason::Off));
        order(&dir, pid, "on").unwrap();
        assert_eq!((steered.name(), steered.choose(&wait).mode), ("spin", Mode::Spin));
        let late = Steered::new(Arc::new(policy::Block), stats_page.reader());
        assert_eq!(late.name(), "spin");
    }
}
