// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a policy needs after another one until it is as fast as it stays.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use dwell::monitor::SystemMonitor;

use crate::batch::Batch;
use crate::contender::PauseChoice;
use crate::entrant::Entrant;
use crate::fixture::State;
use crate::lane::{Ask, Lane, Work};
use crate::pairs::Restless;
use crate::quiet::{self, Window};
use crate::result::Requests;
use crate::stats::Summary;
use crate::subject::Subject;

/// Bins that a policy's time after a switch is divided into.
const BINS: usize = 200;
/// A policy has settled when it differs from how it stays by no more than this share.
const SETTLED_WITHIN: f64 = 0.05;
/// So many times as many switches are tried when something else runs.
const PATIENCE: usize = 3;

/// Switches to one policy from another.
#[derive(Clone, Copy, Debug)]
pub struct Switches<'a> {
    /// On what.
    pub subject: &'a Subject,
    /// The policy before, and how long it works each time.
    pub before: (&'a str, Duration),
    /// The policy that is measured, and for how long.
    pub policy: (&'a str, Duration),
    /// Size of each random read, in bytes.
    pub size_bytes: u64,
    /// Where the kernel's workers run.
    pub state: State,
    /// How many switches.
    pub times: usize,
}

/// What switches showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Settling {
    /// From the switch until the policy is as fast as it stays, in milliseconds; at most half of
    /// the time measured.
    pub ms: f64,
    /// Speed in the first hundredth of the time after a switch ÷ speed as it stays.
    pub first: f64,
    /// Speed as it stays after one switch or another: lowest and highest ÷ the median. Far apart,
    /// they tell of states that the policy falls into by chance.
    pub stays: (f64, f64),
}

/// Switches so often; the inner error is why the state cannot be made here.
///
/// # Errors
/// A device that failed; a machine that was never quiet, as [`Restless`].
pub fn measure(
    switches: &Switches<'_>,
    monitor: &Arc<SystemMonitor>,
    progress: &mut dyn FnMut(f64),
) -> Result<Result<Settling, String>> {
    let Switches { subject, before, policy, size_bytes, state, times } = *switches;
    let mut made = match state.make() {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let open = |name: &str| Entrant::open(name, subject, monitor);
    let mut entrants = [open(before.0)?, open(policy.0)?];
    let mut batch = Batch::new(Requests::random_reads(), size_bytes, subject.bytes, size_bytes);
    batch.keep_samples();
    let buffers = batch.buffers();
    let mut work = Work { batch, buffers, span: policy.1 };
    let watches = before.1 + policy.1 >= quiet::SHORTEST;
    let mut curves: Vec<Vec<f64>> = Vec::new();
    let mut noisy = 0;
    std::thread::scope(|scope| {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |entrant| Lane::start(scope, entrant, stop.clone(), false);
        let [from, to] = entrants.each_mut().map(start);
        while curves.len() < times {
            progress(curves.len() as f64 / times as f64);
            let window = Window::begin().filter(|_| watches);
            for (lane, (name, span)) in [(&from, before), (&to, policy)] {
                let _pause = PauseChoice::of(name);
                work.span = span;
                let (back, served) = lane.ask(Ask::Measure, work);
                served.with_context(|| name.to_owned())?;
                work = back.context("a contender kept the work")?;
            }
            let quiet = window.is_none_or(|window| window.noise().is_quiet());
            if quiet && made.holds() {
                let samples = work.batch.samples().unwrap_or_default();
                curves.push(per_bin(samples.iter().map(|(began, ns)| began + ns), policy.1));
                continue;
            }
            noisy += 1;
            if noisy > PATIENCE * times {
                let counted = curves.len();
                let text = format!(
                    "{counted} of {times} switches counted ({noisy} were not quiet): measure when \
                     nothing else runs"
                );
                return Err(Restless::new(text).into());
            }
        }
        Ok(Ok(settled(&curves, policy.1)))
    })
}

/// Requests that ended in each bin.
fn per_bin(ends_ns: impl Iterator<Item = u64>, span: Duration) -> Vec<f64> {
    let bin_ns = (span.as_nanos() as u64 / BINS as u64).max(1);
    let mut bins = vec![0.0; BINS];
    for end in ends_ns {
        // What ends after its time belongs to no bin.
        if let Some(bin) = bins.get_mut((end / bin_ns) as usize) {
            *bin += 1.0;
        }
    }
    bins
}

/// How the second half goes is how it stays. Settled is what differs no more from that for longer
/// than a bin, because in one bin anything may happen.
fn settled(curves: &[Vec<f64>], span: Duration) -> Settling {
    let median = |of: &mut dyn Iterator<Item = f64>| Summary::of(of).map_or(0.0, |s| s.median);
    let bins: Vec<f64> =
        (0..BINS).map(|bin| median(&mut curves.iter().map(|curve| curve[bin]))).collect();
    let (first, second) = bins.split_at(BINS / 2);
    let stays = median(&mut second.iter().copied()).max(f64::MIN_POSITIVE);
    let off = |&bin: &f64| (bin / stays - 1.0).abs() > SETTLED_WITHIN;
    let last = first.windows(2).rposition(|pair| pair.iter().all(off)).map_or(0, |at| at + 2);
    let start = first[..BINS / 100].iter().sum::<f64>() / (BINS / 100) as f64;
    let each = curves.iter().map(|curve| median(&mut curve[BINS / 2..].iter().copied()) / stays);
    let lasting = Summary::of(each).map_or((0.0, 0.0), |each| (each.min, each.max));
    Settling {
        ms: last as f64 * span.as_secs_f64() * 1e3 / BINS as f64,
        first: start / stays,
        stays: lasting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_settled_when_it_is_as_fast_as_it_stays() {
        let span = Duration::from_millis(200);
        let curve = |slow: usize| -> Vec<f64> {
            (0..BINS).map(|bin| if bin < slow { 50.0 } else { 100.0 }).collect()
        };
        let settling = settled(&[curve(30), curve(30), curve(90)], span);
        assert_eq!((settling.ms, settling.first), (30.0, 0.5));
        let fast = curve(0).iter().map(|speed| 3.0 * speed).collect();
        assert_eq!(settled(&[curve(0), curve(0), fast], span).stays, (1.0, 3.0));
        assert_eq!(settled(&[curve(0)], span), Settling { ms: 0.0, first: 1.0, stays: (1.0, 1.0) });
        let mut lonely = curve(0);
        lonely[60] = 10.0;
        assert_eq!(settled(&[lonely], span).ms, 0.0, "one bin is no state");
        assert_eq!(settled(&[curve(BINS)], span).ms, 0.0);
    }

    #[test]
    fn requests_fall_into_the_bin_in_which_they_end() {
        let bins = per_bin(
            [0, 999_999, 1_000_000, 199_999_999, 200_000_000].into_iter(),
            Duration::from_millis(200),
        );
        assert_eq!((bins[0], bins[1], bins[199]), (2.0, 1.0, 1.0));
        assert_eq!(bins.iter().sum::<f64>(), 4.0);
    }
}
