// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor in virtual time: what runs when, and what the thread does meanwhile, as text.

#[path = "../common/mod.rs"]
mod common;
mod stage;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::fast;
use dwell::Mode;
use dwell::dwell_policy::Profile;
use dwell::parameters::DeviceParameters;
use stage::Stage;

#[test]
fn a_blocked_request_is_slept_for_and_a_spun_one_spun_for() {
    let schedule = |mode| {
        let stage = Stage::new(&[], true);
        let (file, a) = (stage.device(20_000, mode), stage.actor("a"));
        let scene = stage.executor.spawn(async move { a.reads(&file).await });
        stage.play(vec![scene])
    };
    assert_eq!(schedule(Mode::Block), "sleep to 20000, a read at 25000");
    assert_eq!(schedule(Mode::Spin), "a read at 20000");
    assert_eq!(schedule(Mode::Hybrid { sleep_ns: 9_000 }), "sleep to 9000, a read at 20000");
}

#[test]
fn the_request_due_first_decides_for_all() {
    let schedule = |first: Mode, second: Mode| {
        let stage = Stage::new(&[], true);
        let (near, far) = (stage.device(20_000, first), stage.device(60_000, second));
        let (a, b) = (stage.actor("a"), stage.actor("b"));
        let scenes = vec![
            stage.executor.spawn(async move { b.reads(&far).await }),
            stage.executor.spawn(async move { a.reads(&near).await }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(Mode::Spin, Mode::Block),
        "a read at 20000, spin 20000, sleep to 60000, b read at 65000"
    );
    assert_eq!(
        schedule(Mode::Block, Mode::Spin),
        "sleep to 20000, a read at 25000, b read at 60000"
    );
}

#[test]
fn a_timer_ends_a_spin_and_a_sleep_and_what_comes_later_goes_on() {
    let schedule = |mode| {
        let stage = Stage::new(&[], true);
        let (file, a, b) = (stage.device(40_000, mode), stage.actor("a"), stage.actor("b"));
        let scenes = vec![
            stage.executor.spawn(async move { a.reads(&file).await }),
            stage.executor.spawn(async move {
                for at in [10_000, 30_000, 12_000] {
                    b.tasks.sleep_until(at).await;
                    b.says("woke");
                }
            }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(Mode::Block),
        "sleep to 10000, b woke at 15000, sleep to 30000, b woke at 35000, b woke at 35000, \
         sleep to 40000, a read at 45000"
    );
    assert_eq!(
        schedule(Mode::Spin),
        "b woke at 10500, b woke at 30000, b woke at 30000, a read at 40000"
    );
}

#[test]
fn an_arrival_on_a_socket_ends_a_sleep_for_storage() {
    let stage = Stage::new(&[(8_000, 0), (50_000, 0)], true);
    let (file, a, b) = (stage.device(30_000, Mode::Block), stage.actor("a"), stage.actor("b"));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = stage.executor.watch(socket).unwrap();
    let scenes = vec![
        stage.executor.spawn(async move { a.reads(&file).await }),
        stage.executor.spawn(async move {
            assert!(socket.get().as_fd().try_clone_to_owned().is_ok());
            for _ in 0..2 {
                socket.readable(1).await;
                b.says("heard");
                let would_block = || io::Error::from(io::ErrorKind::WouldBlock);
                socket.try_read_with(|_| io::Result::<()>::Err(would_block())).unwrap_err();
            }
        }),
    ];
    assert_eq!(
        stage.play(scenes),
        "sleep to 8000, b heard at 13000, sleep to 30000, a read at 35000, sleep to 50000, \
         b heard at 55000"
    );
}

/// A word that nobody changes until somebody is heard.
#[derive(Default)]
struct Word(AtomicU32);

impl AsRef<AtomicU32> for Word {
    fn as_ref(&self) -> &AtomicU32 {
        &self.0
    }
}

#[test]
fn a_ring_that_was_chosen_and_not_slept_in_is_not_slept_in_later() {
    let schedule = |latency_ns| {
        let stage = Stage::new(&[(50_000, 0)], true);
        let file = stage.ring(latency_ns);
        let (a, b, c) = (stage.actor("a"), stage.actor("b"), stage.actor("c"));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = stage.executor.watch(socket).unwrap();
        let word = Arc::new(Word::default());
        let seen = word.clone();
        let scenes = vec![
            stage.executor.spawn(async move { a.reads(&file).await }),
            // Because of the word, the thread looks once more after it has chosen the ring.
            stage.executor.spawn(async move {
                b.tasks.changed(seen, 0).await;
                b.says("saw");
            }),
            stage.executor.spawn(async move {
                socket.readable(1).await;
                c.says("heard");
                word.0.store(1, Ordering::Release);
            }),
        ];
        stage.play(scenes)
    };
    assert_eq!(
        schedule(20_000),
        "sleep to 20000, a read at 25000, sleep to 50000, c heard at 55000, b saw at 55000"
    );
    // The completion came while the ring was being chosen: the last look finds it. The arrival ends
    // the next sleep.
    assert_eq!(schedule(1_000), "a read at 2000, sleep to 50000, c heard at 55000, b saw at 55000");
}

#[test]
fn a_source_that_wakes_nobody_is_napped_for_ever_longer() {
    let stage = Stage::new(&[], true);
    let file = stage.device_that(300_000, Mode::Block, false, fast());
    let a = stage.actor("a");
    let scene = stage.executor.spawn(async move { a.reads(&file).await });
    // Naps of 50, 100 and 200 µs, each with the wake-up and the looks that follow.
    assert_eq!(
        stage.play(vec![scene]),
        "spin 1500, sleep to 51500, spin 1500, sleep to 158000, spin 1500, sleep to 364500, \
         a read at 369500"
    );
}

#[test]
fn a_deep_queue_is_slept_for_until_enough_has_come() {
    let profile = Profile { switch_ns: 20_000, ..fast().profile.unwrap() };
    let parameters = DeviceParameters { profile: Some(profile), ..fast() };
    let stage = Stage::new(&[], true);
    let file = stage.device_that(64_000, Mode::Block, true, parameters);
    let mut scenes = Vec::new();
    for task in 0..32 {
        let (file, tasks) = (file.clone(), stage.executor.handle());
        scenes.push(stage.executor.spawn(async move {
            // They begin 2 µs apart and stay so.
            tasks.sleep_until(task * 2_000).await;
            for _ in 0..20 {
                file.read_at(vec![0; 512], 0).await.0.unwrap();
            }
        }));
    }
    let (asked, counts) = (stage.asked.clone(), stage.executor.handle());
    let story = stage.play(scenes);
    let counts = counts.counts();
    assert_eq!(counts.completions, 640);
    let asked = asked.lock().unwrap();
    assert_eq!((asked[0], asked.iter().max()), (1, Some(&8)), "a quarter of 32 at most: {story}");
    assert!(counts.parks < 640 / 4, "{counts:?}");
}

#[test]
fn tasks_that_are_always_ready_do_not_starve_the_rest() {
    let stage = Stage::new(&[(1_000, 0)], true);
    let (file, a, b) = (stage.device(10_000, Mode::Block), stage.actor("a"), stage.actor("b"));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = stage.executor.watch(socket).unwrap();
    let (busy, clock) = (stage.executor.handle(), stage.clock.clone());
    let works = stage.executor.spawn(async move {
        for _ in 0..50 {
            clock.fetch_add(1_000, Ordering::Relaxed);
            busy.yield_now().await;
        }
    });
    let scenes = vec![
        works,
        stage.executor.spawn(async move { a.reads(&file).await }),
        stage.executor.spawn(async move {
            socket.readable(1).await;
            b.says("heard");
        }),
    ];
    assert_eq!(stage.play(scenes), "a read at 12000, b heard at 21000");
}

#[test]
fn a_schedule_is_the_same_every_time() {
    let play = || {
        let stage = Stage::new(&[(3_000, 0), (9_000, 0), (100_000, 0)], true);
        let files = [
            (7_000, Mode::Spin),
            (31_000, Mode::Block),
            (15_000, Mode::Hybrid { sleep_ns: 4_000 }),
        ];
        let mut scenes = Vec::new();
        for (name, (latency_ns, mode)) in ["a", "b", "c"].into_iter().zip(files) {
            let (file, actor) = (stage.device(latency_ns, mode), stage.actor(name));
            scenes.push(stage.executor.spawn(async move {
                for round in 0..5 {
                    actor.reads(&file).await;
                    actor.tasks.sleep(Duration::from_nanos(round * 3_000)).await;
                }
            }));
        }
        stage.play(scenes)
    };
    let first = play();
    assert_eq!(first, play());
    assert_eq!(first.matches("read").count(), 15);
}
