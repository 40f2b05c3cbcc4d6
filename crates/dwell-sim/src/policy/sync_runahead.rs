// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sync_Runahead: busy-waiting, and the core runs ahead meanwhile.

use super::{Fault, Plan, Policy};
use crate::Params;
use crate::params::RunaheadAt;

/// Busy-waiting with runahead execution (§4.1, footnote 4). It runs in hardware: no thread is
/// entered.
pub struct SyncRunahead {
    at: RunaheadAt,
}

impl SyncRunahead {
    /// With the chosen reading of when it runs ahead.
    pub fn new(params: &Params) -> Self {
        SyncRunahead { at: params.runahead_at }
    }
}

impl Policy for SyncRunahead {
    fn plan(&self, fault: &Fault) -> Plan {
        let plan = Plan::wait(fault.decide(&dwell_policy::policy::Spin));
        Plan { preexecutes: self.at != RunaheadAt::Miss, ..plan }
    }

    fn has_preexecute_cache(&self) -> bool {
        true
    }

    fn preexecutes_at_misses(&self) -> bool {
        self.at != RunaheadAt::Fault
    }
}
