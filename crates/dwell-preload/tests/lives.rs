// SPDX-License-Identifier: MIT OR Apache-2.0
//! How programs begin, share their memory, give up rights and end: each goes as without the
//! library, and what it did is told.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::{Ended, Fast, Under, built, program, skip, untouched};

fn numbered_blocks(path: &Path) {
    let mut data = vec![0u8; 1 << 20];
    for (number, block) in data.chunks_mut(4096).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    fs::write(path, data).unwrap();
}

/// What a scenario came to under the library, after it was compared; `None` where it cannot run.
fn scenario(name: &str) -> Option<Ended> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let (fast, lives) = match (Fast::new(), PROGRAM.get_or_init(|| program("lives.c"))) {
        (Ok(fast), Ok(lives)) => (fast, lives),
        (Err(why), _) => {
            skip(why);
            return None;
        }
        (_, Err(why)) => {
            skip(why);
            return None;
        }
    };
    let file = fast.path().join("file");
    numbered_blocks(&file);
    let command = || {
        let mut command = Command::new(lives);
        command.arg(name).arg(&file).arg(fast.path().join("other"));
        command
    };
    let without = untouched(&mut command());
    let with = Under::policy("spin").run(&mut command());
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status, "{}", with.stderr);
    println!("{}{}", with.stdout, with.stderr);
    Some(with)
}

/// The same program built for or run by something that stands where the library would: it is left
/// alone, and goes as without.
fn alone(flags: &[&str], through: &[&str]) {
    let (fast, lives) = match (Fast::new(), built("lives.c", flags)) {
        (Ok(fast), Ok(lives)) => (fast, lives),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    numbered_blocks(&file);
    let command = || {
        let words = through.iter().map(OsStr::new);
        let mut words = words.chain([lives.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("children").arg(&file).arg("other");
        command
    };
    let without = untouched(&mut command());
    if !without.status.success() {
        return skip(format!("{through:?} {flags:?}: {}", without.stderr));
    }
    let with = Under::policy("spin").run(&mut command());
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status, "{}", with.stderr);
    assert_eq!(with.decided(), 0, "{}", with.stderr);
}

#[test]
fn a_child_with_thread_sanitizer_is_left_alone() {
    alone(&["-fsanitize=thread"], &[]);
}

#[test]
fn a_child_with_a_leak_sanitizer_is_left_alone() {
    alone(&["-fsanitize=leak"], &[]);
}

#[test]
fn a_program_under_valgrind_is_left_alone() {
    alone(&[], &["valgrind", "--quiet"]);
}

/// Whether 64 MiB were read, and by the kernel's count not half as much again.
fn counts_once(ended: &Ended) -> bool {
    const BYTES: u64 = 64 << 20;
    let run = ended.run.as_ref().unwrap();
    let on_storage = run.io.read_bytes;
    run.stats().bytes_read == BYTES
        && (BYTES..BYTES * 3 / 2).contains(&on_storage)
        && run.coverage().unwrap() > 0.6
}

macro_rules! scenarios {
    ($($test:ident: $name:ident, $ended:pat => $holds:expr;)*) => {$(
        #[test]
        fn $test() {
            let Some(ended) = scenario(stringify!($name)) else { return };
            let $ended = &ended;
            assert!($holds, "{}\n{}", ended.stdout, ended.stderr);
        }
    )*};
}

scenarios! {
    a_thread_without_thread_locals_does_not_crash:
        no_thread_locals, ended => ended.on_rings() == 400;
    a_child_in_this_memory_does_not_end_the_statistics:
        child_in_this_memory, ended => ended.on_rings() == 700;
    a_child_in_this_memory_that_is_waited_for_does_not_end_the_statistics:
        child_in_this_memory_waited_for, ended => ended.on_rings() == 700;
    a_child_in_this_memory_and_of_these_files_does_not_end_the_statistics:
        child_in_this_memory_with_files, ended => ended.on_rings() == 700;
    a_child_in_this_memory_does_not_disturb_requests_of_its_parent:
        child_in_this_memory_amid, ended => ended.on_rings() >= 300;
    a_main_thread_that_ends_alone_ends_the_process_and_is_told:
        main_ends_alone, ended => ended.on_rings() == 300;
    a_main_thread_that_ends_first_is_told_with_the_others:
        main_ends_first, ended => ended.on_rings() == 300;
    a_main_thread_that_is_cancelled_lets_the_process_end:
        main_is_cancelled, ended => ended.on_rings() == 300;
    a_filter_of_a_thread_does_not_kill_it_when_it_ends:
        thread_filtered, _ended => true;
    a_filter_that_allows_few_calls_does_not_kill_at_the_end:
        filtered_by_prctl, _ended => true;
    a_filter_that_a_program_begins_with_does_not_kill_it:
        begins_filtered, ended => ended.decided() == 0;
    a_filter_by_seccomp_that_allows_few_calls_does_not_kill_at_the_end:
        filtered_by_seccomp, _ended => true;
    a_descriptor_sent_by_sendmsg_is_shared_from_then_on:
        sends_by_sendmsg, ended => ended.on_rings() == 100;
    a_descriptor_sent_by_the_number_of_sendmsg_is_shared_from_then_on:
        sends_by_number, ended => ended.on_rings() == 100;
    a_descriptor_sent_by_sendmmsg_is_shared_from_then_on:
        sends_by_sendmmsg, ended => ended.on_rings() == 100;
    a_descriptor_sent_by_the_number_of_sendmmsg_is_shared_from_then_on:
        sends_many_by_number, ended => ended.on_rings() == 100;
    the_bytes_of_one_process_are_counted_once:
        reads_much, ended => counts_once(ended);
    the_bytes_of_a_child_that_was_waited_for_are_counted_once:
        a_childs_work, ended => counts_once(ended);
    the_bytes_of_an_orphan_are_counted_once:
        an_orphans_work, ended => counts_once(ended);
    a_process_of_one_thread_can_have_namespaces_of_its_own:
        unshares, ended => ended.on_rings() == 13 * 100;
}
