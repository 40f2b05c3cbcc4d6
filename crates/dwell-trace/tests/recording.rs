// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real programs under the Valgrind tool: counts that are known beforehand, children, threads,
//! limits.

use std::path::{Path, PathBuf};
use std::process::Command;

use dwell_trace::record::{Outcome, Recorded, Recording, TOOL, record};
use dwell_trace::registers::operands;
use dwell_trace::{AccessKind, Event, Reader};

/// The tool's directory beside whatever cargo builds, or why there is none.
fn tool_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let dir = exe.ancestors().map(|dir| dir.join("valgrind")).find(|dir| dir.join(TOOL).exists());
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIP: valgrind is not installed");
        return None;
    }
    if dir.is_none() {
        println!("SKIP: the Valgrind tool is not built (make trace-tool)");
    }
    dir
}

fn plan(dir: &Path, command: &[&str]) -> Option<Recording> {
    Some(Recording {
        command: command.iter().map(Into::into).collect(),
        out: dir.join("trace.dwt"),
        skip: 0,
        limit: None,
        children: false,
        tool_dir: tool_dir()?,
    })
}

fn recorded(plan: &Recording) -> Outcome {
    record(plan, &mut |_| true).unwrap()
}

/// Compiles C or assembly; `None` where there is no compiler.
fn built(dir: &Path, name: &str, source: &str, options: &[&str]) -> Option<String> {
    let (file, program) = (dir.join(name), dir.join("program"));
    std::fs::write(&file, source).unwrap();
    let made = Command::new("cc").args(options).arg("-o").arg(&program).arg(&file).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIP: cc cannot build {name}");
        return None;
    }
    Some(program.to_str().unwrap().to_owned())
}

/// 2 + 5 × 1000 + 4 + 16 + 4 instructions: Valgrind counts each turn of a repeated string
/// instruction, and the one that finds nothing left.
const KNOWN: &str = r#"
.globl _start
_start:
  movl $1000, %ecx
  leaq numbers(%rip), %rdi
1:
  movq -8(%rdi,%rcx,8), %rax
  addq $1, %rax
  movq %rax, -8(%rdi,%rcx,8)
  decl %ecx
  jnz 1b
  addl $1, (%rdi)
  lock incq 8(%rdi)
  movl $16, %ecx
  nop
  rep stosb
  movl $60, %eax
  xorl %edi, %edi
  nop
  syscall
.bss
.align 4096
numbers: .skip 8000
"#;

#[test]
fn a_program_with_known_counts_is_recorded_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-nostdlib", "-static", "-no-pie"];
    let Some(program) = built(dir.path(), "known.s", KNOWN, &options) else { return };
    let Some(plan) = plan(dir.path(), &[&program]) else { return };
    let outcome = recorded(&plan);
    assert!(outcome.status.success() && outcome.traces.len() == 1, "{outcome:?}");
    assert!(!outcome.traces[0].killed);
    let mut trace = Reader::open(&plan.out).unwrap();
    assert_eq!(trace.about().command, std::slice::from_ref(&program));
    let operands = operands(trace.dictionary());
    let (mut loads, mut stores, mut modified) = (Vec::new(), Vec::new(), Vec::new());
    let (mut instructions, mut repeated, mut calls) = (0u64, 0u64, Vec::new());
    while let Some(event) = trace.next_event().unwrap() {
        let run = match event {
            Event::Block(run) => run,
            Event::Syscall(number) => {
                calls.push(number);
                continue;
            }
            Event::Thread(_) => continue,
        };
        for executed in run.instructions() {
            assert!(operands[executed.number].known, "{executed:x?}");
            let bytes = trace_bytes(&executed, run);
            if bytes == [0xf3, 0xaa] {
                repeated += 1;
            } else {
                instructions += 1;
            }
            for (site, &address) in executed.sites.iter().zip(executed.addresses) {
                match site.kind {
                    AccessKind::Load => loads.push((address, site.size)),
                    AccessKind::Store => stores.push((address, site.size)),
                    AccessKind::Modify => modified.push((address, site.size)),
                }
            }
        }
    }
    assert_eq!(instructions, 2 + 5 * 1000 + 4 + 4);
    assert!((16..=17).contains(&repeated), "{repeated}");
    assert_eq!(calls, [60]);
    let first = loads.last().unwrap().0;
    assert_eq!(first % 4096, 0);
    let descending: Vec<_> = (0..1000).rev().map(|i| (first + 8 * i, 8)).collect();
    assert_eq!(loads, descending);
    assert_eq!(stores[..1000], descending);
    let bytes: Vec<_> = (0..16).map(|i| (first + i, 1)).collect();
    assert_eq!(stores[1000..], bytes);
    assert_eq!(modified, [(first, 4), (first + 8, 8)]);
    skipping_and_limiting(&plan, trace.instructions());
}

fn trace_bytes<'a>(executed: &dwell_trace::Executed<'_>, run: dwell_trace::Run<'a>) -> &'a [u8] {
    run.dictionary().bytes_of(executed.instruction)
}

/// The skipped and the recorded instructions make up the whole.
fn skipping_and_limiting(plan: &Recording, whole: u64) {
    let skipping = Recording { skip: 2000, ..plan.clone() };
    let outcome = recorded(&skipping);
    let skipped = outcome.traces[0].about.skipped_instructions;
    assert!((2000..2020).contains(&skipped), "{skipped}");
    assert_eq!(skipped + outcome.traces[0].written.instructions, whole);

    let limited = Recording { limit: Some(1000), ..plan.clone() };
    let outcome = recorded(&limited);
    let instructions = outcome.traces[0].written.instructions;
    assert!((1000..1020).contains(&instructions), "{instructions}");
    let trace = Reader::open(&plan.out).unwrap();
    assert_eq!((trace.instructions(), trace.cut_short_at()), (instructions, None));
}

#[test]
fn a_program_of_the_system_is_recorded_whole() {
    let dir = tempfile::tempdir().unwrap();
    let Some(plan) = plan(dir.path(), &["/bin/true"]) else { return };
    let outcome = recorded(&plan);
    assert!(outcome.status.success());
    let mut trace = Reader::open(&plan.out).unwrap();
    assert!(trace.instructions() > 10_000, "{}", trace.instructions());
    let info = dwell_trace::info::info(&mut trace, true, &mut |_| {}).unwrap();
    assert_eq!(info.instructions, trace.instructions());
    assert_eq!(info.mix.decoded, info.instructions, "every instruction has a meaning");
    assert!(info.mix.memory > info.instructions / 10 && info.mix.branches > 0);
    assert!(info.mix.calls >= info.mix.returns);
    assert!(info.syscalls.contains_key(&231), "exit_group: {:?}", info.syscalls);
    assert!(info.data_pages > 10 && info.lines.one_in == 1);
}

#[test]
fn a_limit_ends_a_program_that_would_run_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut plan) = plan(dir.path(), &["/bin/sh", "-c", "while :; do :; done"]) else {
        return;
    };
    plan.limit = Some(300_000);
    let outcome = recorded(&plan);
    let instructions = outcome.traces[0].written.instructions;
    assert!((300_000..300_200).contains(&instructions), "{instructions}");
}

#[test]
fn a_recording_can_be_ended_by_its_starter() {
    let dir = tempfile::tempdir().unwrap();
    let Some(plan) = plan(dir.path(), &["/bin/sh", "-c", "while :; do :; done"]) else { return };
    let outcome = record(&plan, &mut |instructions| instructions < 500_000).unwrap();
    assert!(outcome.traces[0].written.instructions >= 500_000);
}

#[test]
fn a_command_is_named_up_to_the_first_argument_that_finds_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let long = "a".repeat(5000);
    let Some(plan) = plan(dir.path(), &["/bin/true", "kept", &long, "left out"]) else { return };
    assert_eq!(recorded(&plan).traces[0].about.command, ["/bin/true", "kept"]);
}

#[test]
fn children_are_recorded_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let script = "/bin/true; /bin/echo said; :";
    let Some(mut plan) = plan(dir.path(), &["/bin/sh", "-c", script]) else { return };
    assert_eq!(recorded(&plan).traces.len(), 1);
    plan.children = true;
    let outcome = recorded(&plan);
    // The shell, two forks of it, and what each of them became.
    assert_eq!(outcome.traces.len(), 5, "{outcome:?}");
    let shell = outcome.traces[0].about.pid;
    let named = |program: &str| {
        let child = |t: &&Recorded| t.about.command[0] == program && t.about.pid != shell;
        outcome.traces.iter().filter(child).count()
    };
    assert_eq!(named("/bin/true") + named("/bin/echo"), 2, "{outcome:?}");
    for recorded in &outcome.traces {
        let mut trace = Reader::open(&recorded.path).unwrap();
        while trace.next_event().unwrap().is_some() {}
        assert_eq!(trace.instruction(), recorded.written.instructions);
        let parent = recorded.about.parent_pid;
        assert!(recorded.about.pid == shell || parent == shell, "{recorded:?}");
        assert!(!recorded.killed, "{recorded:?}");
    }
}

#[test]
fn threads_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    // A thread that ends before another begins would have its number.
    let source = "#include <pthread.h>
        static pthread_barrier_t all;
        static void *work(void *n) { pthread_barrier_wait(&all); for (volatile int i = 0; i < 1000; i++); return n; }
        int main(void) { pthread_t t[3]; pthread_barrier_init(&all, 0, 3); for (int i = 0; i < 3; i++) pthread_create(t + i, 0, work, 0);
          for (int i = 0; i < 3; i++) pthread_join(t[i], 0); return 0; }";
    let Some(program) = built(dir.path(), "threads.c", source, &["-pthread"]) else { return };
    let Some(plan) = plan(dir.path(), &[&program]) else { return };
    recorded(&plan);
    let mut trace = Reader::open(&plan.out).unwrap();
    let info = dwell_trace::info::info(&mut trace, true, &mut |_| {}).unwrap();
    assert_eq!(info.threads, 4);
}

#[test]
fn a_killed_program_leaves_what_it_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    // By another process: Valgrind lets a program end in order that kills itself.
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; \
                  /bin/sh -c \"kill -9 $$\"; while :; do :; done";
    let Some(plan) = plan(dir.path(), &["/bin/sh", "-c", script]) else { return };
    let outcome = recorded(&plan);
    assert!(outcome.traces[0].killed && !outcome.status.success(), "{outcome:?}");
    assert_eq!(Reader::open(&plan.out).unwrap().cut_short_at(), None);
}

#[test]
fn a_program_that_cannot_be_recorded_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let Some(missing) = plan(dir.path(), &["/no/such/program"]) else { return };
    let told = record(&missing, &mut |_| true).unwrap_err().to_string();
    assert!(told.contains("/no/such/program") && told.contains("no such command"), "{told}");
    let tool = Recording { tool_dir: "/nowhere".into(), ..missing };
    let told = record(&tool, &mut |_| true).unwrap_err().to_string();
    assert!(told.contains("make trace-tool"), "{told}");
}
