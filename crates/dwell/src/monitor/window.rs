// SPDX-License-Identifier: MIT OR Apache-2.0
//! One window of the monitor: sample, assess, share the limit, publish.

use super::assess::{Hysteresis, OwnUse, Sample, TOLERANCE_CPUS, assess, blind, natural_threshold};
use super::host::HostPage;
use super::limit::{Demand, HARDLY_ANYBODY, SpinnerLimit, WindowUse, room};
use super::member::{Ask, Report};
use super::permit::{Permits, REFUSED, REQUESTED, Shared, WORKED};
use super::sources::Sources;
use super::{Config, Cost, DOZE_WINDOWS};
use crate::clock;
use dwell_policy::Load;

/// Everything that the next window needs to know of the last ones.
#[derive(Debug)]
pub(super) struct Core {
    config: Config,
    sources: Sources,
    pub(super) host: HostPage,
    prev: Sample,
    prev_permits: Permits,
    prev_totals: (u64, u64),
    hysteresis: Hysteresis,
    limit: SpinnerLimit,
    demand: Demand,
    worker_share: f64,
    pub(super) last_limit: u32,
    last_load: Load,
    /// Whether there was a request in the last window.
    pub(super) requested: bool,
    /// Whether the next window will be a long one.
    pub(super) dozes_next: bool,
    pub(super) cost: Cost,
}

/// Most kernel worker time per spun time that is believed.
const MAX_WORKER_SHARE: f64 = 8.0;

/// Runnable threads that count as Dwell's own: the monitor, and those that spin; where none does,
/// one that blocks for its requests, and the kernel thread that works for it. To itself a thread is
/// no competitor. The kernel may count both as runnable while either waits for the other.
fn own_runnable(signals: u64, spinning: u32) -> u32 {
    let raised = |signal| u32::from(signals & signal != 0);
    1 + if spinning > 0 { spinning } else { raised(REQUESTED) + raised(WORKED) }
}

/// The load before the first window. Where nothing is runnable but the thread that asks, one
/// spinner may be had, as on an idle machine; else nobody may spin.
fn before_first_window(now: &Sample, config: &Config) -> Load {
    let threshold = config.threshold.map_or(natural_threshold(now.effective_cpus()), f64::from);
    let is_alone = now.procs_running == 1 && !now.cpus.is_empty() && config.spin_cap.is_none();
    let mut load = if is_alone { Load::new(0.0, 0.0, threshold as f32) } else { blind(threshold) };
    (load.may_spin, load.limit_permits) = (false, is_alone);
    load
}

impl Core {
    pub(super) fn new(config: Config, shared: &Shared) -> Core {
        let mut sources = Sources::open();
        let mut host = match &config.host_page {
            Some(path) => HostPage::open(path, config.sharing),
            None => HostPage::none(),
        };
        let prev = sources.sample();
        let mut load = before_first_window(&prev, &config);
        load.off = config.off_switch.is_off();
        if load.limit_permits {
            let cpus = prev.cpus.iter().map(|times| times.cpu);
            let report = Report { period_ms: config.window_ms(), ..Report::default() };
            host.report(prev.at_ns, cpus, &report);
        }
        shared.publish(load);
        shared.set_allowance(config.spin_cap.map(|_| 0));
        Core {
            prev,
            prev_permits: shared.permits(),
            prev_totals: shared.totals(),
            config,
            sources,
            host,
            hysteresis: Hysteresis::default(),
            limit: SpinnerLimit::default(),
            demand: Demand::default(),
            worker_share: 0.0,
            last_limit: u32::from(load.limit_permits),
            last_load: load,
            requested: false,
            dozes_next: false,
            cost: Cost::default(),
        }
    }

    /// Ends a window and publishes its load.
    pub(super) fn tick(&mut self, shared: &Shared) -> Load {
        let began_ns = clock::thread_cpu();
        let now = self.sources.sample();
        let signals = shared.take_signals();
        let (permits, totals) = (shared.permits(), shared.totals());
        let elapsed_ns = now.at_ns.saturating_sub(self.prev.at_ns);
        let starts = permits.starts.wrapping_sub(self.prev_permits.starts);

        // Threads that spun from one end of the window to the other report when they stop.
        let stuck = if starts == 0 { permits.active.min(self.prev_permits.active) } else { 0 };
        let mut own = OwnUse {
            spin_ns: totals
                .0
                .wrapping_sub(self.prev_totals.0)
                .saturating_add(u64::from(stuck).saturating_mul(elapsed_ns)),
            worker_ns: totals
                .1
                .wrapping_sub(self.prev_totals.1)
                .min(elapsed_ns.saturating_mul(now.cpus.len() as u64)),
            runnable: own_runnable(signals, permits.active),
            ..OwnUse::default()
        };
        own.spin_ns = own.burnt_ns(&self.prev, &now);
        self.requested = signals & REQUESTED != 0 || starts > 0 || permits.active > 0;

        let windows = if self.dozes_next && !self.requested { DOZE_WINDOWS } else { 1 };
        let report = Report {
            spin_ns: own.spin_ns,
            worker_ns: own.worker_ns,
            elapsed_ns,
            period_ms: self.config.window_ms() * windows,
            group: now.group,
        };
        let peers = self.host.report(now.at_ns, now.cpus.iter().map(|times| times.cpu), &report);
        let in_window = |cpus: f64| (cpus * elapsed_ns as f64) as u64;
        own.peers_ns = in_window(peers.spin_cpus + peers.worker_cpus);
        own.peers_in_group_ns = in_window(peers.group_spin_cpus);
        own.runnable += peers.all_spin_cpus.round() as u32;

        let mut load = assess(&self.prev, &now, &own, &self.config, &mut self.hysteresis);

        let spun_ns = own.spin_ns as f64 + in_window(peers.spin_cpus) as f64;
        if spun_ns > 0.0 {
            let worked_ns = own.worker_ns as f64 + in_window(peers.worker_cpus) as f64;
            self.worker_share = (worked_ns / spun_ns).min(MAX_WORKER_SHARE);
        }
        let others = f64::from(load.others());
        let room = room(now.effective_cpus(), others, self.worker_share);
        // Where threads wait for a CPU, a spinner makes one wait longer.
        let above = !load.fits_one || !load.may_spin || self.hysteresis.full;
        let alone_below = self.config.threshold.map_or(HARDLY_ANYBODY, f64::from);
        let works_alone = signals & WORKED == 0 && self.worker_share < TOLERANCE_CPUS;
        let least = u32::from(others < alone_below || load.fits_one && works_alone);
        self.last_limit = self.limit.update(room, least, above);
        let window = WindowUse {
            starts,
            active: permits.active,
            refused: signals & REFUSED != 0,
            spin_ns: own.spin_ns,
            elapsed_ns,
        };
        let wanted = self.demand.update(&window, permits.leased);
        let leased = self.host.share(now.at_ns, &self.ask(wanted));
        shared.set_allowance(self.allowance(elapsed_ns, now.effective_cpus()));
        shared.set_leased(leased);
        load.may_spin = leased > stuck;
        load.limit_permits = self.last_limit > 0;
        load.off = self.config.off_switch.is_off();
        shared.publish(load);
        self.last_load = load;

        self.prev_permits = permits;
        self.prev_totals = totals;
        self.prev = now;
        self.cost.samples += 1;
        self.cost.cpu_ns += clock::thread_cpu().saturating_sub(began_ns);
        load
    }

    /// What may be spun until the next window ends. No more is given than time has passed, so that
    /// all windows together keep to the cap; after a long one no more than for a short one.
    fn allowance(&self, elapsed_ns: u64, cpus: f64) -> Option<u64> {
        let window_ns = self.config.window.as_nanos() as u64;
        let share = f64::from(self.config.spin_cap?) * cpus;
        Some((share * elapsed_ns.min(window_ns) as f64) as u64)
    }

    fn ask(&self, wanted: u32) -> Ask {
        Ask {
            limit: self.last_limit,
            wanted,
            window_ms: self.config.window_ms(),
            turn_ms: self.config.turn_ms(),
        }
    }

    /// Allows a first spinner within a window, where the last one found room: a short burst of
    /// requests would be over before the next.
    pub(super) fn allow_first(&mut self, shared: &Shared) {
        if self.last_limit > 0 && self.host.take_first(clock::now(), &self.ask(1)) {
            shared.set_leased(1);
            shared.forget_refusals();
            self.last_load.may_spin = true;
            shared.publish(self.last_load);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::procstat::CpuTimes;
    use super::*;

    #[test]
    fn before_the_first_window_an_idle_machine_has_one_spinner_for_who_asks() {
        let with = |procs_running| {
            let cpus = vec![CpuTimes::default(); 2];
            let now = Sample { procs_running, cpus, ..Sample::default() };
            before_first_window(&now, &Config::default())
        };
        let alone = with(1);
        assert!(alone.limit_permits && !alone.may_spin && !alone.others_above() && alone.fits_one);
        // Beside others, and where the kernel does not say.
        for load in [with(2), with(0)] {
            assert!(!load.limit_permits && !load.may_spin && load.others_above());
        }
    }

    #[test]
    fn a_thread_that_blocks_is_as_little_a_competitor_to_itself_as_one_that_spins() {
        assert_eq!(own_runnable(0, 0), 1);
        assert_eq!(own_runnable(REQUESTED, 0), 2);
        assert_eq!(own_runnable(REQUESTED, 1), 2);
        assert_eq!(own_runnable(REQUESTED | WORKED, 0), 3);
        // Its worker takes its CPU time from others.
        assert_eq!(own_runnable(REQUESTED | WORKED, 4), 5);
    }
}
