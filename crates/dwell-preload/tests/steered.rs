// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is steered from outside while it runs.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Fast, Under, program, skip};
use dwell::ledger::{Entry, list, order};
use dwell::{Mode, Reason, Route};

#[test]
fn orders_take_effect_at_once_in_a_program_that_runs() {
    let (fast, phases) = match (Fast::new(), program("phases.c")) {
        (Ok(fast), Ok(phases)) => (fast, phases),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let under = Under::policy("spin");
    let mut command = under.command(Command::new(phases).arg(&file));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut phase = || {
        writeln!(input, "go").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "done");
    };
    phase();
    let ledgers = under.ledgers();
    let [Entry { pid, .. }] = list(&ledgers).unwrap()[..] else { panic!("one process") };
    for said in ["policy=block", "off", "on", "policy=spin"] {
        order(&ledgers, pid, said).unwrap();
        phase();
    }
    drop(input);
    let ended = under.ended(child.wait_with_output().unwrap());
    assert!(ended.status.success(), "{}", ended.stderr);
    let run = ended.run.as_ref().unwrap();
    let requests = |route, mode, why| {
        let rows = run.stats().rows;
        let row = rows.iter().find(|row| (row.route, row.mode, row.why) == (route, mode, why));
        row.map_or(0, |row| row.requests)
    };
    // Spun in the first phase and the last, blocked in the second and, when on again, the fourth.
    assert_eq!(ended.on_rings(), 200, "{}", ended.stderr);
    assert_eq!(requests(Route::Inline, Mode::Block, Reason::Fixed), 200, "{}", ended.stderr);
    assert!(run.passed.bytes >= 100 * 4096, "the third passed: {}", ended.stderr);
}

#[test]
fn a_program_that_has_just_begun_is_left_alone() {
    let (fast, phases) = match (Fast::new(), program("phases.c")) {
        (Ok(fast), Ok(phases)) => (fast, phases),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    const ALONE: Duration = Duration::from_secs(3);
    let under = Under::policy("spin").leaving_alone_for(ALONE.as_millis() as u32);
    let mut command = under.command(Command::new(phases).arg("stand").arg(&file));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut phase = || {
        writeln!(input, "go").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "done");
    };
    phase();
    assert!(list(&under.ledgers()).unwrap_or_default().is_empty(), "a ledger already");
    std::thread::sleep(ALONE);
    // What was opened then is the same thread's still.
    phase();
    drop(input);
    let ended = under.ended(child.wait_with_output().unwrap());
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!((ended.decided(), ended.on_rings()), (100, 100), "{}", ended.stderr);
    assert!(ended.run.unwrap().passed.bytes >= 100 * 4096);
}
