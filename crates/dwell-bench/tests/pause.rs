// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spin hint is as a contender's name wants it while that contender is measured. It is one for
//! the whole process, so this test has a process of its own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dwell::dwell_policy::{Profile, Wait};
use dwell::parameters::DeviceParameters;
use dwell::{Decision, WaitPolicy, arch};
use dwell_bench::contender::Contender;
use dwell_bench::entrant::Entrant;
use dwell_bench::result::{Load, Requests, Setting};
use dwell_bench::run::{Course, race};
use dwell_bench::subject::Subject;

/// Remembers whether the hint was on when it was asked.
#[derive(Default)]
struct Witness(Mutex<Vec<bool>>);

impl WaitPolicy for Witness {
    fn name(&self) -> &str {
        "witness"
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.0.lock().unwrap().push(arch::pause());
        dwell::policy::Block.choose(wait)
    }
}

#[test]
fn the_hint_is_off_for_whom_it_is_off_and_on_again_after() {
    let subject = Subject {
        name: "test".into(),
        address: Path::new("emu:latency=2us,size=1MiB").into(),
        direct: false,
        write: false,
        parameters: DeviceParameters {
            profile: Some(Profile::default()),
            ..DeviceParameters::default()
        },
        profile: None,
        description: "test".into(),
        emulated: None,
        bytes: 1 << 20,
        block_bytes: 1,
    };
    let names = ["with", "without:pause=off"];
    let witnesses = names.map(|_| Arc::new(Witness::default()));
    let mut entrants: Vec<Entrant> = names
        .iter()
        .zip(&witnesses)
        .map(|(name, witness)| {
            let under = Contender::under(witness.clone(), &subject, subject.parameters, None);
            Entrant { name: name.to_string(), contender: under.unwrap(), monitor: None }
        })
        .collect();
    let setting = Setting::new(&subject, Load::Idle, Requests::random_reads());
    let batch = Duration::from_millis(2);
    let course =
        Course { subject: &subject, setting: &setting, size_bytes: 4096, rounds: 2, batch };
    let rows = race(&mut entrants, &course, None, &mut |_| {}).unwrap();
    assert!(arch::pause());
    let measured = |i: usize| rows[i].rounds.iter().map(|round| round.requests).sum::<u64>();
    for (i, wanted) in [(0, true), (1, false)] {
        let seen = witnesses[i].0.lock().unwrap();
        let as_wanted = seen.iter().filter(|on| **on == wanted).count() as u64;
        assert!(as_wanted >= measured(i), "{}: {as_wanted} of {}", names[i], seen.len());
    }
    // The unmeasured requests before the first round leave it on.
    let on = witnesses[1].0.lock().unwrap().iter().filter(|on| **on).count();
    assert!(on < 20, "{on}");
}
