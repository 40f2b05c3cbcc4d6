// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cells, sums and differences of statistics, and what is read from them.

use super::*;

#[test]
fn every_way_has_a_cell_of_its_own() {
    let mut seen = std::collections::HashSet::new();
    for route in ROUTES {
        for mode in MODES {
            for why in Reason::ALL {
                assert!(seen.insert(cell(route, mode, why)));
            }
        }
    }
    assert_eq!(seen.len(), CELLS);
}

#[test]
fn an_expired_spin_is_not_a_switch_avoided() {
    let counters = Counters::default();
    let decision = Decision::new(Route::Interrupt, Mode::Spin, 0, Reason::Pays);
    counters.waited(&decision, &Outcome { expired: true, spun_ns: 5, ..Outcome::default() });
    counters.waited(&decision, &Outcome { spun_ns: 2, ..Outcome::default() });
    let stats = Stats::sum([&counters].into_iter());
    assert_eq!(stats.switches_avoided(), 1);
    assert_eq!(stats.because(Reason::SpinExpired), 1);
    assert_eq!(stats.spun_ns, 7);
}

#[test]
fn merged_statistics_can_be_taken_off_again_and_survive_json() {
    let counters = Counters::default();
    counters.decided(Route::Inline, Mode::Block, Reason::Unprobed);
    counters.moved(Kind::Read, 4096);
    counters.sampled(Family::Inline, 12_000);
    let first = Stats::sum([&counters].into_iter());
    counters.decided(Route::Polled, Mode::Hybrid { sleep_ns: 3 }, Reason::Pays);
    counters.took(Family::Spun, 8_000);
    counters.moved(Kind::Write, -5);
    let second = Stats::sum([&counters].into_iter());
    let between = second.since(&first);
    assert_eq!((between.requests(), between.errors, between.bytes_read), (1, 1, 0));
    assert_eq!((between.latency.spun.count(), between.latency.inline.count()), (1, 0));
    let mut sum = first.clone();
    sum.merge(&between);
    assert_eq!(sum, second);
    let text = serde_json::to_string(&second).unwrap();
    assert_eq!(serde_json::from_str::<Stats>(&text).unwrap(), second);
}

#[test]
fn a_family_of_which_few_were_timed_weighs_as_much_as_its_requests() {
    let counters = Counters::default();
    for request in 0..640 {
        let before = counters.decided(Route::Inline, Mode::Spin, Reason::VeryFast);
        assert_eq!(before, request);
        if before.is_multiple_of(64) {
            counters.sampled(Family::Inline, 1_000);
        }
    }
    for _ in 0..64 {
        counters.decided(Route::Interrupt, Mode::Spin, Reason::Pays);
        counters.took(Family::Spun, 50_000);
    }
    let all = Stats::sum([&counters].into_iter()).latencies();
    assert_eq!(all.count(), 704);
    assert!(all.percentile(0.9) < 1_100 && all.percentile(0.95) > 45_000);
}

#[test]
fn figures_from_elsewhere_never_overflow() {
    let row =
        Row { route: Route::Inline, mode: Mode::Spin, reason: Reason::Pays, requests: u64::MAX };
    let mut stats = Stats { rows: vec![row, row], spun_ns: u64::MAX, ..Stats::default() };
    stats.merge(&stats.clone());
    assert_eq!((stats.requests(), stats.spun_ns), (u64::MAX, u64::MAX));
}
