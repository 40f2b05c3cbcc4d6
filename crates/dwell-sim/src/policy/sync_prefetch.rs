// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sync_Prefetch: busy-waiting, and further pages are fetched meanwhile.

use super::{Fault, Plan, Policy, Prefetch};
use crate::Params;
use crate::params::PrefetchBy;

/// Busy-waiting with page prefetching (§4.1): a static group (footnote 5), or by virtual address
/// (§4.2.1).
pub struct SyncPrefetch {
    prefetch: Prefetch,
}

impl SyncPrefetch {
    /// With the chosen reading of which pages.
    pub fn new(params: &Params) -> Self {
        let prefetch = match params.sync_prefetch_by {
            PrefetchBy::Group => Prefetch::Group { pages: params.prefetch_group_pages },
            PrefetchBy::Virtual => Prefetch::Behind { pages: params.prefetch_pages },
        };
        SyncPrefetch { prefetch }
    }
}

impl Policy for SyncPrefetch {
    fn plan(&self, fault: &Fault) -> Plan {
        let plan = Plan::wait(fault.decide(&dwell_policy::policy::Spin));
        Plan { prefetch: self.prefetch, ..plan }
    }
}
