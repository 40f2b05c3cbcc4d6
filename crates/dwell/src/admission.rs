// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where requests meet the system monitor: load in, spinning out.

use std::sync::Arc;

use dwell_policy::{Decision, Kind, Load, Mode, Ns, Reason, Route, Wait, policy};

use crate::learner::Asked;
use crate::monitor::{LoadReader, SpinGuard, SpinPermit, SystemMonitor};
use crate::parameters::DeviceParameters;

/// What one thread keeps between its requests, so that it seldom writes where others do.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The lease on which it spun last.
    lease: u32,
    /// What kernel workers did for it, and for how many of its requests, since it last told.
    worker_ns: Ns,
    worked: u32,
}

impl Standing {
    const TELL_AFTER: u32 = 16;
}

/// A request of a thread that went by the call because that costs least or no spinner was left.
/// Others like it go the same way without being asked for.
#[derive(Clone, Copy)]
pub(crate) struct Again {
    pub kind: Kind,
    pub bytes: u64,
    /// The load as the monitor published it.
    pub load: u64,
    pub asked: Asked,
    pub mode: Mode,
    pub reason: Reason,
}

/// One file's handles on the system monitor.
pub(crate) struct Admission {
    reader: LoadReader,
    permit: SpinPermit,
    /// Whether a kernel thread may have to work for its requests.
    worker: bool,
    /// The monitor's thread ends soon after its last user.
    _monitor: Arc<SystemMonitor>,
}

impl Admission {
    /// For a file of a device for which a kernel thread may have to work, or not.
    pub fn new(monitor: Arc<SystemMonitor>, worker: bool) -> Self {
        Admission { reader: monitor.reader(), permit: monitor.permit(), worker, _monitor: monitor }
    }

    /// The machine in the last window: one atomic read.
    #[inline]
    pub fn load(&self) -> Load {
        self.reader.note_request_to(self.worker);
        self.reader.load().beside_worker(self.worker)
    }

    /// The load as it was published. No request is noted.
    #[inline]
    pub fn load_word(&self) -> u64 {
        self.reader.word()
    }

    /// Notes a request, and says whether the load still is what was published then.
    #[inline]
    pub fn note_under(&self, load: u64) -> bool {
        self.reader.note_request_to(self.worker);
        self.reader.word() == load
    }

    /// Whether Dwell was off at the end of the last window: one atomic read.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.reader.load().off
    }

    /// Takes one of the process's spinners for a wait that is to spin because that pays. `Err` when
    /// none is left. Waits that spin for other reasons (a fixed policy) need none. Nor do those
    /// that spare others: where those want the CPUs, spinning takes no more of them than blocking.
    /// No wait spins beyond the cap on the CPU time of waiting.
    #[inline]
    pub fn admit(
        &self,
        decision: &mut Decision,
        now: Ns,
        standing: &mut Standing,
        spares_others: bool,
    ) -> Result<Option<SpinGuard<'_>>, Reason> {
        let guard = match (decision.mode, decision.reason) {
            (Mode::Block, Reason::SpinnerLimit) => {
                self.permit.want();
                None
            }
            (Mode::Block, _) => None,
            _ if spares_others => None,
            (_, Reason::Pays | Reason::Explored | Reason::Measured) => {
                let guard = self.permit.try_spin_at(now, standing.lease);
                let guard = guard.ok_or(Reason::SpinnerLimit)?;
                standing.lease = guard.lease().unwrap_or_default();
                Some(guard)
            }
            _ => None,
        };
        // On the inline route the driver does the work: nothing is waited for.
        if decision.mode == Mode::Block || decision.route == Route::Inline {
            return Ok(guard);
        }
        self.permit.within_cap(guard, decision, now).ok_or(Reason::SpinCap)
    }

    /// Whether the cap on the CPU time of waiting leaves nothing for a decision to spin. One of
    /// many in flight is told when it is decided; all are held to the cap when they are waited for.
    #[inline]
    pub fn is_spent(&self, decision: &Decision) -> bool {
        let spins = decision.mode != Mode::Block && decision.route != Route::Inline;
        spins && self.permit.is_spent(decision.expected_ns)
    }

    /// Publishes what a wait burnt.
    #[inline]
    pub fn spun(&self, guard: Option<SpinGuard<'_>>, spun_ns: Ns) {
        match guard {
            Some(guard) => guard.finish(spun_ns),
            None if spun_ns > 0 => self.permit.add_spin(spun_ns),
            None => {}
        }
    }

    /// Publishes that a request goes by the call for this reason.
    #[inline]
    pub fn called(&self, reason: Reason) {
        if reason == Reason::SpinnerLimit {
            self.permit.want();
        }
    }

    /// Whether a thread that wants to spin finds a lease.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.permit.has_room()
    }

    /// Publishes what a kernel worker did for so many requests of so many bytes each.
    #[inline]
    pub fn worked(&self, parameters: &DeviceParameters, bytes: u64, requests: u64) {
        if parameters.worker_ns > 0 {
            self.permit.add_worker(parameters.worker_ns_of(bytes) * requests);
        }
    }

    /// As [`Admission::worked`], for a thread that makes many requests: it tells of several at
    /// once.
    #[inline]
    pub fn worked_for(
        &self,
        standing: &mut Standing,
        parameters: &DeviceParameters,
        bytes: u32,
        requests: u64,
    ) {
        if parameters.worker_ns > 0 {
            standing.worker_ns += parameters.worker_ns_of(u64::from(bytes)) * requests;
            standing.worked += 1;
            if standing.worked >= Standing::TELL_AFTER {
                standing.worked = 0;
                self.permit.add_worker(std::mem::take(&mut standing.worker_ns));
            }
        }
    }
}

/// Admission of one decision: where the budget is used up, it becomes one to block.
#[inline]
pub(crate) fn admit<'g>(
    admission: Option<&'g Admission>,
    wait: &Wait<'_>,
    decision: &mut Decision,
    now: Ns,
    standing: &mut Standing,
) -> Option<SpinGuard<'g>> {
    let spares_others = wait.learned.is_some() && wait.load.others_above();
    match admission?.admit(decision, now, standing, spares_others) {
        Ok(guard) => guard,
        Err(why) => {
            *decision = policy::block(wait, why);
            None
        }
    }
}
