// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a thread learns of its requests, and how they count, when the queue does not serve them.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::fake::{Answer, Fake, State};
use common::{Fixed, check, executor, fast};
use dwell::dwell_policy::{Estimate, Wait};
use dwell::stats::Family;
use dwell::{Decision, File, Reason, Route, WaitPolicy};

/// Decides as a [`Fixed`], and notes what was known each time.
struct Noting(Fixed, Arc<Mutex<Vec<Estimate>>>);

impl WaitPolicy for Noting {
    fn name(&self) -> &str {
        "noting"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.1.lock().unwrap().push(wait.estimate);
        self.0.choose(wait)
    }
}

const CALL: Duration = Duration::from_millis(1);
const CALL_NS: u64 = CALL.as_nanos() as u64;

/// A file whose calls take a millisecond, and what its policy was told.
fn noting(
    fixed: Fixed,
    change: impl FnOnce(&mut State),
) -> (File<Fake>, Arc<Mutex<Vec<Estimate>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let fake = Fake::new(4096, 1).with(change).with(|state| state.call_takes = CALL);
    (fake.open(fast(), Noting(fixed, told.clone())), told)
}

/// Two requests were served by calls that each took a millisecond, and the second was decided for
/// knowing that.
fn both_were_calls(file: &File<Fake>, told: &Mutex<Vec<Estimate>>, what: &str) {
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2, "{what}");
    assert_eq!(told[1].spun.mean_ns, 0, "{what}: nobody has spun");
    assert!(told[1].blocked.mean_ns >= CALL_NS, "{what}: {:?}", told[1]);
    let stats = file.stats();
    let inline = stats.count(Route::Inline, "block");
    assert_eq!((stats.requests(), inline), (2, 2), "{what}: {stats:?}");
    assert_eq!(stats.because(Reason::NoQueue), 2, "{what}: {stats:?}");
    let latency = stats.latency;
    assert_eq!(latency.of(Family::Blocked).count() + latency.of(Family::Spun).count(), 0, "{what}");
}

#[test]
fn where_no_queue_is_to_be_had_no_latency_of_zero_is_learned() {
    for fixed in [Fixed::spin(), Fixed::block()] {
        for (what, room) in [("no queue", None), ("a full one", Some(0))] {
            let (file, told) = noting(fixed, |state| {
                state.no_queue = room.is_none();
                state.room = room.unwrap_or(u32::MAX);
            });
            for at in [0, 100] {
                let mut buffer = vec![0; 100];
                file.read_exact_at(&mut buffer, at).unwrap();
                check(&buffer, at, 1);
            }
            both_were_calls(&file, &told, what);
        }
    }
}

#[test]
fn a_request_that_a_ring_refused_is_learned_and_counted_as_the_call_that_served_it() {
    for errno in [libc::EAGAIN, libc::EINTR] {
        for fixed in [Fixed::spin(), Fixed::block()] {
            let refuse = |state: &mut State| state.queued.extend([Answer::Refused(errno); 2]);
            let (file, told) = noting(fixed, refuse);
            for at in [0, 100] {
                file.read_exact_at(&mut [0; 100], at).unwrap();
            }
            both_were_calls(&file, &told, "a blocking call");
        }
        let refuse = |state: &mut State| state.queued.extend([Answer::Refused(errno); 2]);
        let (file, told) = noting(Fixed::block(), refuse);
        let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
        for at in [0, 100] {
            pipeline.read_at(vec![0; 100], at).unwrap();
            check(&pipeline.next().unwrap().buffer.unwrap(), at, 1);
        }
        both_were_calls(&file, &told, "a pipeline");

        let (file, told) = noting(Fixed::block(), refuse);
        let (file, executor) = (Arc::new(file), executor());
        let reader = executor.file(file.clone()).unwrap();
        for at in [0, 100] {
            let (result, buffer) = executor.block_on(reader.read_at(vec![0; 100], at));
            assert_eq!(result.unwrap(), 100);
            check(&buffer, at, 1);
        }
        both_were_calls(&file, &told, "an executor");
    }
}
