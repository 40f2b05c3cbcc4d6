// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor and its users.

use super::*;

#[test]
fn a_field_out_of_range_is_named() {
    for (config, field) in [
        (Config { window: Duration::from_millis(49), ..Config::default() }, "window"),
        (Config { window: Duration::from_millis(1001), ..Config::default() }, "window"),
        (Config { threshold: Some(1.1), ..Config::default() }, "threshold"),
        (Config { hysteresis: f32::NAN, ..Config::default() }, "hysteresis"),
        (Config { spin_cap: Some(-0.1), ..Config::default() }, "spin_cap"),
        (Config { turn: Duration::ZERO, ..Config::default() }, "turn"),
    ] {
        let error = SystemMonitor::start(config).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
}

#[test]
fn all_users_of_a_process_find_one_monitor_and_its_thread_ends_soon_after_the_last() {
    let (a, b) = (SystemMonitor::shared().unwrap(), SystemMonitor::shared().unwrap());
    assert!(Arc::ptr_eq(&a, &b));
    let (monitor, threads_own, reader) = (Arc::downgrade(&a), Arc::downgrade(&a.core), a.reader());
    drop((a, b));
    // One that comes at once finds the same, and keeps it.
    let next = SystemMonitor::shared().unwrap();
    assert!(Weak::ptr_eq(&monitor, &Arc::downgrade(&next)));
    drop(next);
    let began = Instant::now();
    while threads_own.strong_count() > 0 && began.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(monitor.upgrade().is_none() && threads_own.upgrade().is_none());
    // The reader outlives the thread.
    reader.note_request();
    reader.load();
    // Another configuration gets another monitor, unless somebody still uses the first.
    let first = SystemMonitor::shared().unwrap();
    let otherwise = || Config { spin_cap: Some(0.5), ..Config::default() };
    assert!(Arc::ptr_eq(&first, &SystemMonitor::shared_with(otherwise()).unwrap()));
    drop(first);
    let second = SystemMonitor::shared_with(otherwise()).unwrap();
    assert_eq!(second.config, otherwise());
    // One that was ended is nobody's any more.
    second.end();
    drop(second);
    let third = SystemMonitor::shared_with(otherwise()).unwrap();
    assert!(!third.stop.load(Relaxed));
}

#[test]
fn a_first_spin_is_allowed_within_the_window_in_which_it_is_wanted() {
    let page = std::env::temp_dir().join(format!("dwell-first-spin-{}", std::process::id()));
    let config = Config {
        window: Duration::from_secs(1),
        threshold: Some(1.0),
        host_page: Some(page.clone()),
        ..Config::default()
    };
    let started = Instant::now();
    let monitor = SystemMonitor::start(config).unwrap();
    thread::sleep(Duration::from_millis(60));
    let load = monitor.sample_once();
    let _ = std::fs::remove_file(&page);
    assert_eq!(monitor.alone_because(), None);
    assert!(!load.may_spin && monitor.permit().leased() == 0 && monitor.spinner_limit() >= 1);

    let samples = monitor.cost().samples;
    monitor.permit().want();
    let began = Instant::now();
    while !monitor.reader().load().may_spin && began.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    let since = monitor.cost().samples - samples;
    assert!(monitor.permit().try_spin().is_some());
    assert_eq!(monitor.permit().leased(), 1);
    if started.elapsed() < Duration::from_millis(400) {
        assert_eq!(since, 0, "no window ended meanwhile");
    }
}

#[test]
fn nobody_spins_unasked_before_the_first_window_and_alone_the_budget_is_all_ours() {
    let config =
        Config { window: Duration::from_secs(1), threshold: Some(1.0), ..Config::default() };
    let monitor = SystemMonitor::start(config).unwrap();
    assert!(!monitor.reader().load().may_spin && monitor.permit().try_spin().is_none());
    assert!(monitor.alone_because().unwrap().contains("no host page"));
    thread::sleep(Duration::from_millis(60));
    let load = monitor.sample_once();
    assert!(load.may_spin && monitor.reader().load().may_spin);
    assert!(monitor.spinner_limit() >= 1 && monitor.permit().leased() >= 1);
    assert!(monitor.permit().try_spin().is_some());
}
