// SPDX-License-Identifier: MIT OR Apache-2.0
//! From two samples to a [`Load`]: the system monitor's arithmetic, without I/O.

use super::Config;
use super::procstat::CpuTimes;
use dwell_policy::{Load, Ns};

/// What was read at the end of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: Ns,
    /// Times of the CPUs that this process may run on and that are online, in ascending order.
    pub cpus: Vec<CpuTimes>,
    /// CPUs of the whole machine that are online.
    pub online: u32,
    /// Runnable threads of the whole machine.
    pub procs_running: u32,
    /// CPU time of this process.
    pub process_cpu_ns: Ns,
    /// Threads of this process, the monitor's among them; 0 when unknown.
    pub process_threads: u32,
    /// Those threads in ascending order of their ids, and the CPU time of each; empty when unknown.
    pub threads: Vec<(i32, Ns)>,
    /// CPUs that the tightest control group allows; `None` for no limit.
    pub quota_cpus: Option<f64>,
    /// CPU time used by that group.
    pub group_cpu_ns: Option<Ns>,
    /// Which group that is; a change makes `group_cpu_ns` of two samples incomparable.
    pub group: u64,
}

impl Sample {
    /// CPUs that this process can fill: those it may run on, or its quota if that is less.
    pub fn effective_cpus(&self) -> f64 {
        let allowed = self.cpus.len() as f64;
        self.quota_cpus.map_or(allowed, |quota| quota.min(allowed))
    }
}

/// What Dwell itself used in the window. Values are claims: [`assess`] bounds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnUse {
    /// Busy-waiting by this process.
    pub spin_ns: Ns,
    /// Kernel workers that served requests of this process.
    pub worker_ns: Ns,
    /// Busy-waiting and kernel workers of other Dwell processes, on our CPUs.
    pub peers_ns: Ns,
    /// The part of `peers_ns` that was spun inside our own control group.
    pub peers_in_group_ns: Ns,
    /// Runnable threads that count as Dwell's own: those of the monitor, of spinning, and of one
    /// thread that blocks.
    pub runnable: u32,
}

impl OwnUse {
    /// Own spinning that can be true: a spinner that was preempted did not burn CPU time.
    pub fn burnt_ns(&self, prev: &Sample, now: &Sample) -> Ns {
        self.spin_ns.min(now.process_cpu_ns.saturating_sub(prev.process_cpu_ns))
    }
}

/// CPU time that one thread of this process used beside spinning, on average over those that ran.
/// To itself a thread is no competitor: while it spins it does nothing else. Without this a thread
/// whose blocked requests cost much CPU time would find the machine too busy to spin, and go on
/// blocking.
fn own_thread_ns(prev: &Sample, now: &Sample, burnt_ns: Ns) -> Ns {
    let threads = match ran(prev, now) {
        Some(threads) => threads.max(1),
        None => u64::from(now.process_threads.saturating_sub(1)),
    };
    let used_ns = now.process_cpu_ns.saturating_sub(prev.process_cpu_ns).saturating_sub(burnt_ns);
    used_ns.checked_div(threads).unwrap_or(0).min(now.at_ns.saturating_sub(prev.at_ns))
}

/// A thread that ran for less than this part of a window slept through it, as the monitor's does.
const SLEPT: Ns = 64;

/// Threads of this process that ran in the window.
fn ran(prev: &Sample, now: &Sample) -> Option<u64> {
    if now.threads.is_empty() {
        return None;
    }
    let least_ns = now.at_ns.saturating_sub(prev.at_ns) / SLEPT;
    let before = |id| {
        let at = prev.threads.binary_search_by_key(&id, |(id, _)| *id);
        at.map_or(0, |at| prev.threads[at].1)
    };
    let ran = now.threads.iter().filter(|(id, ns)| ns.saturating_sub(before(*id)) > least_ns);
    Some(ran.count() as u64)
}

/// What one window hands to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hysteresis {
    above: bool,
    fits_none: bool,
    /// Whether others' runnable threads could use all CPUs at the end of the window.
    crowded: bool,
    /// Whether as many threads of others were runnable at the end of the window as CPUs are online.
    outnumbered: bool,
    /// The same at the ends of the last two windows. A threshold that was set holds instead.
    pub full: bool,
    last: Option<Load>,
}

/// Utilisation above which one more spinner would take CPU time from somebody: 1 less the share
/// of one CPU, and 0 where there is no second CPU.
pub fn natural_threshold(effective_cpus: f64) -> f64 {
    if effective_cpus > 1.0 { 1.0 - 1.0 / effective_cpus } else { 0.0 }
}

/// By how much of a CPU others may exceed the threshold so that one more spinner still fits, where
/// no kernel thread works for it: they seldom use whole CPUs to the tick. A threshold that was set
/// knows no such tolerance.
pub const TOLERANCE_CPUS: f64 = 0.25;

/// Utilisation by others below which few that are runnable keep each other from no CPU: of two that
/// share one with a spinner, each has a third of it. Threads that run for microseconds are runnable
/// at the end of a window as often as those that compute, and the worker of a spinner is too. Of
/// many, a low priority may be why they use so little.
const SEEN_AT_ALL: f64 = 0.15;
const MANY_A_CPU: u32 = 2;

/// The load of the window between two samples; `may_spin` is left `true`.
///
/// The larger of two fractions counts: the CPUs' utilisation by others, and, under a CPU quota,
/// how much of the quota others in our control group use. A window in which no tick passed repeats
/// the last load. Where nothing can be seen, the load says that the CPUs are full, so that no spin
/// takes them from anybody.
pub fn assess(
    prev: &Sample,
    now: &Sample,
    own: &OwnUse,
    config: &Config,
    state: &mut Hysteresis,
) -> Load {
    let (mut busy, mut idle, mut cpus) = (0u64, 0u64, 0u32);
    for times in &now.cpus {
        // A CPU that came or went within the window says nothing about it.
        if let Ok(i) = prev.cpus.binary_search_by_key(&times.cpu, |c| c.cpu) {
            let (more_busy, more_idle) = times.since(&prev.cpus[i]);
            busy = busy.saturating_add(more_busy);
            idle = idle.saturating_add(more_idle);
            cpus += 1;
        }
    }
    let effective = now.effective_cpus();
    let natural = config.threshold.map_or(natural_threshold(effective), f64::from);
    let elapsed_ns = now.at_ns.saturating_sub(prev.at_ns);
    if cpus == 0 {
        state.last = None;
        return blind(natural);
    }
    let ticks = busy.saturating_add(idle);
    if ticks == 0 || elapsed_ns == 0 {
        return state.last.unwrap_or(blind(natural));
    }

    let capacity_ns = elapsed_ns as f64 * f64::from(cpus);
    let burnt_ns = own.burnt_ns(prev, now);
    let thread_ns = own_thread_ns(prev, now, burnt_ns);
    let dwell_ns = burnt_ns
        .saturating_add(thread_ns)
        .saturating_add(own.worker_ns)
        .saturating_add(own.peers_ns);
    let mut total = busy as f64 / ticks as f64;
    let mut others = (total - dwell_ns as f64 / capacity_ns).clamp(0.0, 1.0);

    if let (Some(quota), Some(before), Some(after)) =
        (now.quota_cpus, prev.group_cpu_ns, now.group_cpu_ns)
        && prev.group == now.group
        && quota < f64::from(cpus)
    {
        let quota_ns = quota * elapsed_ns as f64;
        let used_ns = after.saturating_sub(before);
        let spun_ns = burnt_ns.saturating_add(thread_ns).saturating_add(own.peers_in_group_ns);
        total = total.max((used_ns as f64 / quota_ns).min(1.0));
        others = others.max((used_ns.saturating_sub(spun_ns) as f64 / quota_ns).min(1.0));
    }

    let lowered = (natural - f64::from(config.hysteresis)).max(0.0);
    let threshold = if state.above { lowered } else { natural };
    let mut load = Load::new(others as f32, total as f32, threshold as f32);
    if load.others_above() != state.above {
        state.above = !state.above;
        load = load.with_threshold(if state.above { lowered } else { natural } as f32);
    }
    let runnable = now.procs_running.saturating_sub(own.runnable);
    load.competitors = runnable.min(255) as u8;
    let tolerance = (TOLERANCE_CPUS / effective).min(natural);
    let more = if state.fits_none { tolerance / 2.0 } else { tolerance };
    // Beside a spinner of another control group, several threads may have to share one CPU, and use
    // no more than that.
    let was_crowded = state.crowded;
    state.crowded = f64::from(load.competitors) >= effective;
    state.fits_none = load.others_above()
        && (config.threshold.is_some() || others > natural + more || state.crowded && was_crowded);
    let was_outnumbered = state.outnumbered;
    let is_many = runnable >= now.online.saturating_mul(MANY_A_CPU);
    state.outnumbered =
        now.online > 0 && runnable >= now.online && (is_many || others >= SEEN_AT_ALL);
    state.full = state.outnumbered && was_outnumbered && config.threshold.is_none();
    load.fits_one = !state.fits_none;
    state.last = Some(load);
    load
}

/// Where nothing can be seen: the CPUs count as full.
pub fn blind(threshold: f64) -> Load {
    let mut load = Load::new(1.0, 1.0, threshold.min(0.99) as f32);
    (load.may_spin, load.fits_one) = (false, false);
    load
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A sample at `at_ms` with (busy, idle) ticks per CPU.
    fn sample(at_ms: u64, cpus: &[(u64, u64)]) -> Sample {
        let cpus = cpus.iter().enumerate().map(|(i, &(busy, idle))| CpuTimes {
            cpu: i as u32,
            ticks: [busy, 0, 0, idle, 0, 0, 0, 0],
        });
        Sample {
            at_ns: at_ms * MS,
            cpus: cpus.collect(),
            process_cpu_ns: at_ms * MS * 4,
            ..Sample::default()
        }
    }

    fn others_and_total(now: &Sample, own: OwnUse) -> (f32, f32) {
        let prev = sample(0, &[(0, 0); 4][..now.cpus.len().max(1)]);
        let load = assess(&prev, now, &own, &Config::default(), &mut Hysteresis::default());
        ((load.others() * 100.0).round(), (load.total() * 100.0).round())
    }

    #[test]
    fn own_spinning_and_its_workers_are_not_others() {
        let own = |spin_ms, worker_ms, peers_ms| OwnUse {
            spin_ns: spin_ms * MS,
            worker_ns: worker_ms * MS,
            peers_ns: peers_ms * MS,
            ..OwnUse::default()
        };
        let two_busy = sample(100, &[(10, 0), (10, 0), (0, 10), (0, 10)]);
        for (use_of_dwell, others) in [
            (own(0, 0, 0), 50.0),
            (own(100, 0, 0), 25.0),
            (own(100, 50, 0), 13.0),
            (own(100, 0, 100), 0.0),
            (own(0, 0, u64::MAX / MS), 0.0),
        ] {
            assert_eq!(
                others_and_total(&two_busy, use_of_dwell),
                (others, 50.0),
                "{use_of_dwell:?}"
            );
        }
    }

    #[test]
    fn threads_that_sleep_do_not_make_one_that_runs_its_own_competitor() {
        let of = |ran_ms: &[u64]| {
            let mut now = sample(100, &[(10, 0), (10, 0), (0, 10), (0, 10)]);
            (now.process_threads, now.process_cpu_ns) = (18, 100 * MS);
            now.threads = (1..).zip(ran_ms).map(|(id, ms)| (id, ms * MS)).collect();
            others_and_total(&now, OwnUse::default()).0
        };
        // Not told, the work is everybody's in equal parts.
        assert_eq!(of(&[]), 49.0);
        assert_eq!(of(&[0, 100, 0, 0, 1]), 25.0);
        assert_eq!(of(&[0, 50, 50]), 38.0);
    }

    #[test]
    fn a_thread_is_no_competitor_to_itself_but_its_siblings_are() {
        for (threads, used_ms, others) in [
            // Unknown, or only the monitor: nothing is taken off.
            (0, 100, 50.0),
            (1, 100, 50.0),
            (2, 100, 25.0),
            (2, 60, 35.0),
            // Never more than one CPU, and of four threads' work only one's.
            (2, 400, 25.0),
            (5, 200, 38.0),
        ] {
            let mut now = sample(100, &[(10, 0), (10, 0), (0, 10), (0, 10)]);
            (now.process_threads, now.process_cpu_ns) = (threads, used_ms * MS);
            let seen = others_and_total(&now, OwnUse::default());
            assert_eq!(seen, (others, 50.0), "{threads} threads, {used_ms} ms");
        }
    }

    #[test]
    fn a_preempted_spinner_counts_only_what_it_burnt() {
        let mut now = sample(100, &[(10, 0), (10, 0)]);
        now.process_cpu_ns = 40 * MS;
        let own = OwnUse { spin_ns: 100 * MS, ..OwnUse::default() };
        assert_eq!(others_and_total(&now, own), (80.0, 100.0));
    }

    #[test]
    fn a_cpu_that_appears_or_vanishes_is_left_out_of_its_window() {
        let prev = sample(0, &[(0, 0), (0, 0), (0, 0)]);
        let mut now = sample(100, &[(5, 5), (0, 0), (10, 0)]);
        now.cpus.remove(1);
        now.cpus.push(CpuTimes { cpu: 9, ticks: [1_000_000, 0, 0, 0, 0, 0, 0, 0] });
        let load =
            assess(&prev, &now, &OwnUse::default(), &Config::default(), &mut Hysteresis::default());
        assert_eq!((load.others() * 100.0).round(), 75.0);
    }

    #[test]
    fn where_nothing_can_be_seen_nobody_spins() {
        let (config, own) = (Config::default(), OwnUse::default());
        for threshold in [None, Some(1.0)] {
            let config = Config { threshold, ..config.clone() };
            let load = assess(
                &sample(0, &[]),
                &sample(100, &[]),
                &own,
                &config,
                &mut Hysteresis::default(),
            );
            assert!(load.others_above() && load.total_above() && !load.may_spin);
        }
        // No tick passed: the last load stays, and without one nothing is known.
        let mut state = Hysteresis::default();
        let (a, b) = (sample(0, &[(0, 0)]), sample(100, &[(0, 10)]));
        assert!(!assess(&b, &b, &own, &config, &mut state).may_spin);
        let seen = assess(&a, &b, &own, &config, &mut state);
        assert!(seen.may_spin);
        assert_eq!(assess(&b, &b, &own, &config, &mut state), seen);
        // The clock or every counter went backwards.
        assert_eq!(assess(&b, &a, &own, &config, &mut state), seen);
    }

    #[test]
    fn the_threshold_leaves_one_spinner_its_share() {
        for (effective, threshold) in
            [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (1.5, 1.0 / 3.0), (2.0, 0.5), (4.0, 0.75)]
        {
            assert!((natural_threshold(effective) - threshold).abs() < 1e-9);
        }
    }

    /// Whether others are above, and whether one more fits, as the machine goes through `states`:
    /// how busy each of its two CPUs is, in percent, and how many threads of others are runnable.
    fn of_two_cpus(config: &Config, states: &[(u64, u32)]) -> Vec<(bool, bool)> {
        let prev = sample(0, &[(0, 0); 2]);
        let mut hysteresis = Hysteresis::default();
        let seen = states.iter().map(|&(percent, procs_running)| {
            let mut now = sample(1000, &[(percent, 100 - percent); 2]);
            now.procs_running = procs_running;
            let load = assess(&prev, &now, &OwnUse::default(), config, &mut hysteresis);
            (load.others_above(), load.fits_one)
        });
        seen.collect()
    }

    #[test]
    fn one_busy_cpu_of_two_leaves_room_for_a_spinner_that_needs_no_worker() {
        let config = Config::default();
        let states = [40, 51, 62, 63, 57, 56, 30].map(|percent| (percent, 1));
        let (above, fits) = (true, true);
        assert_eq!(
            of_two_cpus(&config, &states),
            [
                (!above, fits),
                (above, fits),
                (above, fits),
                (above, !fits),
                (above, !fits),
                (above, fits),
                (!above, fits),
            ]
        );
        // Two threads that share what a spinner leaves them; one look may be chance.
        let states = [(51, 2), (51, 1), (51, 2), (51, 2), (51, 1)];
        assert_eq!(
            of_two_cpus(&config, &states).iter().map(|(_, fits)| *fits).collect::<Vec<_>>(),
            [true, true, true, false, true]
        );
    }

    #[test]
    fn cpus_are_full_once_two_windows_ended_with_a_thread_for_each() {
        let prev = sample(0, &[(0, 0); 2]);
        let (never, once) = ([false; 3], [false, true, false]);
        // Few threads that hardly run fill none; many may be starved.
        let cases = [(None, 30, 0, once), (None, 10, 0, never), (None, 10, 4, once)];
        for (threshold, busy, more, seen) in cases.into_iter().chain([(Some(1.0), 30, 4, never)]) {
            let config = Config { threshold, ..Config::default() };
            let mut state = Hysteresis::default();
            let full = [4, 5, 3].map(|running| running + more).map(|running| {
                // Two of the machine's CPUs are not ours.
                let mut now = sample(1000, &[(busy, 100 - busy); 2]);
                (now.online, now.procs_running) = (4, running);
                assess(&prev, &now, &OwnUse::default(), &config, &mut state);
                state.full
            });
            assert_eq!(full, seen);
        }
    }

    #[test]
    fn a_threshold_that_was_set_knows_no_tolerance_and_keeps_its_hysteresis() {
        let config = Config { threshold: Some(0.5), ..Config::default() };
        let states = [51, 45, 39].map(|percent| (percent, 1));
        assert_eq!(of_two_cpus(&config, &states), [(true, false), (true, false), (false, true)]);
    }

    #[test]
    fn a_small_quota_leaves_no_room_beside_others() {
        let (mut prev, mut now) = (sample(0, &[(0, 0); 4]), sample(1000, &[(25, 75); 4]));
        (prev.quota_cpus, prev.group_cpu_ns) = (Some(0.25), Some(0));
        (now.quota_cpus, now.group_cpu_ns) = (Some(0.25), Some(200 * MS));
        let (own, config) = (OwnUse::default(), Config::default());
        let load = assess(&prev, &now, &own, &config, &mut Hysteresis::default());
        assert!(load.others_above() && !load.fits_one);
    }

    #[test]
    fn once_above_the_threshold_drops_until_the_load_is_below_it() {
        let mut state = Hysteresis::default();
        // 4 CPUs: threshold 0.75, margin 0.1.
        let steps = [
            (70, false, 75.0),
            (75, false, 75.0),
            (80, true, 65.0),
            (70, true, 65.0),
            (66, true, 65.0),
            (60, false, 75.0),
            (70, false, 75.0),
        ];
        let mut prev = sample(0, &[(0, 0); 4]);
        for (i, (busy, above, threshold)) in steps.into_iter().enumerate() {
            let mut now = sample(100 * (i as u64 + 1), &[(0, 0); 4]);
            for (now, prev) in now.cpus.iter_mut().zip(&prev.cpus) {
                now.ticks[0] = prev.ticks[0] + busy;
                now.ticks[3] = prev.ticks[3] + 100 - busy;
            }
            let load = assess(&prev, &now, &OwnUse::default(), &Config::default(), &mut state);
            assert_eq!(load.others_above(), above, "step {i}");
            assert_eq!((load.threshold() * 100.0).round(), threshold, "step {i}");
            prev = now;
        }
    }

    #[test]
    fn use_of_the_quota_counts_where_it_is_higher() {
        let mut prev = sample(0, &[(0, 0); 4]);
        let mut now = sample(100, &[(2, 8); 4]);
        (prev.group, now.group) = (7, 7);
        (prev.group_cpu_ns, now.group_cpu_ns) = (Some(1000 * MS), Some(1080 * MS));
        now.quota_cpus = Some(2.0);
        let spin = |spin_ms| OwnUse { spin_ns: spin_ms * MS, ..OwnUse::default() };
        let see = |now: &Sample, own| {
            let load = assess(&prev, now, &own, &Config::default(), &mut Hysteresis::default());
            let percent = |f: f32| (f * 100.0).round();
            (percent(load.others()), percent(load.total()), percent(load.threshold()))
        };
        // 80 of 200 ms of quota, against 20 % of the machine; then less 60 ms of spinning.
        assert_eq!(see(&now, spin(0)), (40.0, 40.0, 50.0));
        assert_eq!(see(&now, spin(60)), (10.0, 40.0, 50.0));
        let in_group = OwnUse { peers_in_group_ns: 60 * MS, ..OwnUse::default() };
        assert_eq!(see(&now, in_group), (20.0, 40.0, 50.0));
        // Another group, no usage, usage that went backwards, no quota: the machine alone counts.
        assert_eq!(see(&Sample { group: 8, ..now.clone() }, spin(0)), (20.0, 20.0, 50.0));
        assert_eq!(see(&Sample { group_cpu_ns: None, ..now.clone() }, spin(0)), (20.0, 20.0, 50.0));
        assert_eq!(
            see(&Sample { group_cpu_ns: Some(1), ..now.clone() }, spin(0)),
            (20.0, 20.0, 50.0)
        );
        assert_eq!(see(&Sample { quota_cpus: None, ..now.clone() }, spin(0)), (20.0, 20.0, 75.0));
        // Half a CPU: nothing may spin beside other work.
        assert_eq!(see(&Sample { quota_cpus: Some(0.5), ..now.clone() }, spin(80)).2, 0.0);
    }

    #[test]
    fn competitors_leave_ourselves_out_and_saturate() {
        for (running, own, competitors) in [(5, 2, 3), (1, 3, 0), (1000, 1, 255)] {
            let mut now = sample(100, &[(5, 5)]);
            now.procs_running = running;
            let own = OwnUse { runnable: own, ..OwnUse::default() };
            let mut state = Hysteresis::default();
            let load = assess(&sample(0, &[(0, 0)]), &now, &own, &Config::default(), &mut state);
            assert_eq!(load.competitors, competitors);
        }
    }
}
