// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of the requests is steered: what is held back goes the kernel's own way, counted so.

use std::sync::Arc;

use dwell::buffer::Aligned;
use dwell::parameters::DeviceParameters;
use dwell::policy::Spin;
use dwell::stats::Family;
use dwell::{File, Mode, Reason};
use dwell_policy::Profile;

fn open(share: &str) -> File {
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    let options = dwell::Options::new().policy(Arc::new(Spin)).parameters(parameters);
    options.steer(share.parse().unwrap()).open("emu:latency=20us,size=64KiB").unwrap()
}

fn read(file: &File, requests: usize) {
    let mut block = Aligned::new(4096);
    (0..requests).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
}

#[test]
fn a_request_that_is_held_back_blocks_and_is_timed_apart() {
    for whole in ["requests", "processes", "hosts"] {
        let none = open(&format!("0% of {whole}"));
        read(&none, 50);
        let mut pipeline = none.pipeline::<Aligned>(2).unwrap();
        pipeline.read_at(Aligned::new(4096), 0).map_err(|(error, _)| error).unwrap();
        while pipeline.next().is_some() {}
        drop(pipeline);
        let stats = none.stats();
        assert_eq!((stats.because(Reason::HeldBack), stats.requests()), (51, 51), "{stats:?}");
        assert!(stats.rows.iter().all(|row| row.mode == Mode::Block), "{stats:?}");
        assert_eq!(stats.latency.of(Family::Withheld).count(), 51);
        assert_eq!(stats.latency.of(Family::Blocked).count(), 0);

        let all = open(&format!("100% of {whole}"));
        read(&all, 50);
        let stats = all.stats();
        assert_eq!((stats.because(Reason::HeldBack), stats.requests()), (0, 50), "{stats:?}");
    }
}

#[test]
fn every_file_of_a_process_is_steered_or_none_is() {
    let steered = (0..20).map(|_| {
        let file = open("50% of processes");
        read(&file, 1);
        file.stats().because(Reason::HeldBack)
    });
    let held: u64 = steered.sum();
    assert!(held == 0 || held == 20, "{held}");
}
