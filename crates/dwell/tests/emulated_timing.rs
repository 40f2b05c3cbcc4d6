// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulated device's timing, in virtual time: no test here reads a clock.

use dwell::emulated::{Fault, NEVER, Spec, Timing};
use dwell_policy::{Kind, Ns};
use proptest::collection::vec;
use proptest::prelude::*;

fn timing(address: &str) -> Timing {
    Timing::new(&address.parse::<Spec>().unwrap())
}

fn admit(timing: &Timing, now: Ns, kind: Kind, bytes: u64) -> Ns {
    timing.admit(now, timing.number(), kind, bytes)
}

#[test]
fn a_lone_request_takes_latency_and_transfer() {
    let device = timing("emu:latency=5us,write-latency=8us,bandwidth=1GB/s");
    assert_eq!(admit(&device, 0, Kind::Read, 4096), 5_000 + 4_096);
    assert_eq!(admit(&device, 100_000, Kind::Write, 1_000), 100_000 + 8_000 + 1_000);
    assert_eq!(admit(&device, 200_000, Kind::Sync, 0), 208_000);
}

#[test]
fn more_requests_than_servers_wait_for_a_free_one() {
    let device = timing("emu:latency=10us,parallel=2");
    let due: Vec<Ns> = (0..5).map(|_| admit(&device, 0, Kind::Read, 512)).collect();
    assert_eq!(due, [10_000, 10_000, 20_000, 20_000, 30_000]);
    // Freed servers are idle again.
    assert_eq!(admit(&device, 50_000, Kind::Read, 512), 60_000);
}

#[test]
fn together_requests_never_exceed_the_bandwidth() {
    let device = timing("emu:latency=1us,parallel=64,bandwidth=1GB/s");
    let due: Vec<Ns> = (0..4).map(|_| admit(&device, 0, Kind::Read, 10_000)).collect();
    assert_eq!(due, [11_000, 20_000, 30_000, 40_000]);
}

#[test]
fn a_sync_follows_everything_before_it() {
    let device = timing("emu:latency=10us,parallel=2,bandwidth=1GB/s");
    let last = (0..5).map(|_| admit(&device, 0, Kind::Write, 100)).max().unwrap();
    assert!(admit(&device, 0, Kind::Sync, 0) >= 30_000 + 10_000);
    assert!(last < 40_000);
}

#[test]
fn a_stall_holds_what_comes_in_it_and_ends() {
    let device = timing("emu:latency=1us,parallel=8,stall-after=2,stall-for=50ms");
    assert_eq!(admit(&device, 0, Kind::Read, 1), 1_000);
    assert_eq!(admit(&device, 0, Kind::Read, 1), 1_000);
    assert_eq!(admit(&device, 500, Kind::Read, 1), 50_001_500);
    assert_eq!(admit(&device, 10_000_000, Kind::Sync, 0), 50_001_500 + 1_000);
    assert_eq!(admit(&device, 60_000_000, Kind::Read, 1), 60_001_000);
    let dead = timing("emu:latency=1us,stall-after=1,stall-for=forever");
    assert_eq!(admit(&dead, 0, Kind::Read, 1), 1_000);
    assert_eq!(admit(&dead, 0, Kind::Read, 1), NEVER);
}

#[test]
fn faults_fall_on_their_numbers() {
    let device = timing("emu:latency=1us,error-every=4,short-every=6");
    let faults: Vec<Fault> = (1..=12).map(|number| device.fault(number)).collect();
    let short = |at: &usize| faults[*at - 1] == Fault::Short;
    let error = |at: &usize| faults[*at - 1] == Fault::Error;
    assert_eq!((1..=12).filter(error).collect::<Vec<_>>(), [4, 8, 12]);
    assert_eq!((1..=12).filter(short).collect::<Vec<_>>(), [6]);
}

/// Latencies of requests that never wait for each other.
fn latencies(address: &str, count: u64) -> Vec<Ns> {
    let device = timing(address);
    let mut all: Vec<Ns> = (0..count)
        .map(|at| admit(&device, at * 1_000_000_000, Kind::Read, 0) - at * 1_000_000_000)
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn distributions_keep_their_mean_and_their_shape() {
    let mean = |all: &[Ns]| all.iter().sum::<Ns>() / all.len() as Ns;
    for address in [
        "emu:latency=100us",
        "emu:latency=100us,distribution=uniform,jitter=40%",
        "emu:latency=100us,distribution=exponential",
        "emu:latency=100us,distribution=exponential,jitter=30%",
        "emu:latency=100us,distribution=lognormal,jitter=50%",
    ] {
        let all = latencies(address, 20_000);
        assert!(mean(&all).abs_diff(100_000) < 3_000, "{address}: {}", mean(&all));
    }
    let uniform = latencies("emu:latency=100us,jitter=40%", 10_000);
    assert!(uniform[0] >= 60_000 && uniform[0] < 61_000);
    assert!(uniform[9_999] <= 140_000 && uniform[9_999] > 139_000);
    let exponential = latencies("emu:latency=100us,distribution=exponential,jitter=30%", 10_000);
    assert!(exponential[0] >= 70_000);
    let bimodal = latencies("emu:latency=100us,tail=20x", 20_000);
    let tail = bimodal.iter().filter(|&&ns| ns == 2_000_000).count();
    assert!((150..250).contains(&tail), "{tail}");
    assert_eq!(bimodal.iter().filter(|&&ns| ns == 100_000).count() + tail, 20_000);
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_times(
        seed in any::<u64>(),
        arrivals in vec((0u64..50_000, 0u64..100_000), 1..100),
    ) {
        let address = format!("emu:nand,seed={seed}");
        let (one, other) = (timing(&address), timing(&address));
        let mut now = 0;
        for (gap, bytes) in arrivals {
            now += gap;
            prop_assert_eq!(
                admit(&one, now, Kind::Read, bytes),
                admit(&other, now, Kind::Read, bytes)
            );
        }
    }

    #[test]
    fn no_load_beats_the_servers_or_the_link(
        arrivals in vec((0u64..20_000, 1u64..200_000), 1..200),
        parallel in 1u32..20,
    ) {
        let device = timing(&format!("emu:latency=7us,parallel={parallel},bandwidth=1GB/s"));
        let (mut now, mut bytes_so_far, mut due) = (0, 0, Vec::new());
        for (gap, bytes) in arrivals {
            now += gap;
            bytes_so_far += bytes;
            let done = admit(&device, now, Kind::Read, bytes);
            prop_assert!(done >= now + 7_000 + bytes, "faster than alone");
            prop_assert!(done >= bytes_so_far, "more than the bandwidth");
            due.push(now.max(done - bytes));
        }
        // At most `parallel` requests are in the medium at a time.
        for (at, &done) in due.iter().enumerate() {
            let rank = at as u64 / u64::from(parallel) + 1;
            let latest = *due[..=at].iter().max().unwrap();
            prop_assert!(latest >= rank * 7_000, "{done}");
        }
    }

    #[test]
    fn absurd_figures_saturate(now in any::<u64>(), bytes in any::<u64>()) {
        let device = timing("emu:latency=60s,tail=1000000x,bandwidth=1B/s,stall-after=0,stall-for=9s");
        for _ in 0..3 {
            prop_assert!(admit(&device, now, Kind::Write, bytes) <= NEVER);
        }
    }
}

#[test]
fn threads_share_servers_and_link_without_losing_any_time() {
    let device = timing("emu:latency=3us,parallel=3,bandwidth=1GB/s");
    let due = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own: Vec<Ns> = (0..3_000).map(|_| admit(&device, 0, Kind::Read, 100)).collect();
                due.lock().unwrap().extend(own);
            });
        }
    });
    let due = due.into_inner().unwrap();
    // 12,000 requests on 3 servers: exactly 4,000 rounds, whatever the interleaving.
    assert_eq!(due.iter().max(), Some(&(4_000 * 3_000 + 100)));
    assert_eq!(due.len(), 12_000);
}
