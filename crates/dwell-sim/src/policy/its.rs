// SPDX-License-Identifier: MIT OR Apache-2.0
//! ITS: the lower of two priorities gives way, the higher one uses its wait.

use dwell_policy::Ns;
use dwell_policy::policy::{Block, Spin};

use super::{Fault, Plan, Policy, Prefetch};
use crate::Params;

/// Idle-time stealing (§3).
pub struct Its {
    prefetch_pages: u64,
    preexecutes: bool,
    sacrifices: bool,
    entry_ns: Ns,
}

impl Its {
    /// With the parts that are switched on.
    pub fn new(params: &Params) -> Self {
        Its {
            prefetch_pages: if params.its_prefetch { params.prefetch_pages } else { 0 },
            preexecutes: params.its_preexecute,
            sacrifices: params.its_sacrifice,
            entry_ns: params.its_entry_ns,
        }
    }

    /// The self-improving thread (§3.4): spin, prefetch, pre-execute.
    fn improve(&self, fault: &Fault) -> Plan {
        let prefetch = match self.prefetch_pages {
            0 => Prefetch::Nothing,
            pages => Prefetch::Behind { pages },
        };
        Plan {
            decision: fault.decide(&Spin),
            entry_ns: self.entry_ns,
            prefetch,
            preexecutes: self.preexecutes,
        }
    }
}

impl Policy for Its {
    /// Priority-aware thread selection (§3.2): a process is of low priority when the next one to
    /// run has a higher one; then its self-sacrificing thread lets it block (§3.3).
    fn plan(&self, fault: &Fault) -> Plan {
        match fault.next_nice {
            Some(next) if self.sacrifices && next < fault.nice => {
                Plan { entry_ns: self.entry_ns, ..Plan::wait(fault.decide(&Block)) }
            }
            _ => self.improve(fault),
        }
    }

    fn has_preexecute_cache(&self) -> bool {
        self.preexecutes
    }
}
