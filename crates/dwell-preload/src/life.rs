// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beginning with the process, beginning anew in a child, ending.
#![allow(unsafe_code)]

use std::env;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use dwell::seccomp::filters_in;
use dwell_host::settings::RunOrder;
use dwell_host::stats_page;

use crate::inside::{self, Inside};
use crate::raw::bare;
use crate::{HEAP, engine, own, paged, process, raw, real, report, stack, table};

/// Run by the loader before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Run by the loader when the program has ended by itself.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end_of_program;

extern "C" fn begin() {
    let errno = raw::errno();
    real::look_up_all();
    if let Some(order) = order() {
        // Calls of ours go straight through.
        inside::belong();
        if started(order).is_none() {
            process::switch_off();
        }
        inside::belong_no_more();
    }
    raw::set_errno(errno);
}

/// What `dwell run` says. Without it, or where it cannot be read, the program runs as if this
/// library were not there.
fn order() -> Option<RunOrder> {
    if shares_its_place() {
        return None;
    }
    let order: RunOrder = serde_json::from_str(&env::var(RunOrder::VARIABLE).ok()?).ok()?;
    if filters() > order.filters {
        return None;
    }
    let executable = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    order.settings.excludes_program(&executable).is_none().then_some(order)
}

/// How many seccomp filters the program begins with, by calls that its loader has just made too.
fn filters() -> u32 {
    let mut status = [0u8; 4096];
    let fd: i32 = bare!(SYS_openat, libc::AT_FDCWD, c"/proc/self/status".as_ptr(), libc::O_CLOEXEC);
    if fd < 0 {
        return 0;
    }
    let read: isize = bare!(SYS_read, fd, status.as_mut_ptr(), status.len());
    let _: i32 = bare!(SYS_close, fd);
    filters_in(&status[..usize::try_from(read).unwrap_or(0)])
}

/// Whether the program came with something else that stands before the C library, and counts on
/// being the only one: a sanitizer, or Valgrind.
fn shares_its_place() -> bool {
    const SANITIZERS: [&CStr; 5] =
        [c"__asan_init", c"__tsan_init", c"__msan_init", c"__hwasan_init", c"__lsan_init"];
    // SAFETY: a terminated name, which is only looked up.
    let is_there =
        |name: &&CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let loaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    let by_valgrind = loaded.as_bytes().windows(10).any(|part| part == b"/vgpreload");
    by_valgrind || SANITIZERS.iter().any(is_there)
}

fn started(order: RunOrder) -> Option<()> {
    let limit = own::limit();
    if limit < own::LEAST_LIMIT {
        let (why, least) = ("descriptors (RLIMIT_NOFILE)", own::LEAST_LIMIT);
        report::left_alone(&order, &format!("it may have {limit} {why}, fewer than {least}"));
        return None;
    }
    stack::find_end();
    inside::at_thread_end(before_thread_ends);
    report::keep_stderr(&order);
    // SAFETY: functions of this library, which stays loaded.
    let rc = unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child))
    };
    if rc != 0 {
        return None;
    }
    paged::begin(&order);
    engine::begin(order).ok()
}

unsafe extern "C" fn before_fork() {
    if inside::is_inside() {
        return;
    }
    // What other threads had half done when this process was forked behind this library's back
    // stays so in its children.
    if process::is_foreign() {
        return process::switch_off();
    }
    inside::before_fork();
    HEAP.hold();
}

unsafe extern "C" fn after_fork() {
    if !inside::is_inside() && !process::is_foreign() {
        HEAP.let_go();
        table::shared_with_others();
        inside::after_fork();
    }
}

unsafe extern "C" fn after_fork_in_child() {
    inside::end_sharing(0);
    if inside::is_inside() {
        return;
    }
    HEAP.let_go();
    inside::after_fork_in_child();
    paged::leave_child();
    if !process::is_on() {
        return engine::leave_child();
    }
    ENDED.store(false, Ordering::Relaxed);
    table::shared_with_others();
    engine::begin_in_child();
    if let Some(order) = process::order() {
        paged::begin_in_child(order);
    }
}

/// In a child that was forked past the C library's `fork`: other threads may have left anything
/// half done. The descriptors of one that borrows its parent's table stay the parent's.
pub fn leave_child(borrows_descriptors: bool) {
    let errno = raw::errno();
    paged::leave_child();
    match borrows_descriptors {
        true => process::switch_off(),
        false => engine::leave_child(),
    }
    raw::set_errno(errno);
}

/// Before the program forbids itself system calls, some of them perhaps on pain of death: from then
/// on it makes only those that it makes itself.
pub fn before_filter() {
    paged::end();
    inside::uncancelled(engine::retire);
}

/// Before the calling thread ends. Once the first has, the process lasts as long as its other
/// threads: none of them is to be the engine's.
pub fn before_thread_ends() {
    if !inside::is_inside() && process::is_on() && inside::is_first_thread() {
        before_alone();
    }
}

/// Before the process does what only one of one thread can: the engine's thread ends.
pub fn before_alone() {
    if !inside::is_inside() && process::is_on() {
        paged::end();
        inside::uncancelled(engine::rest);
    }
}

static ENDED: AtomicBool = AtomicBool::new(false);

extern "C" fn end_of_program() {
    end();
}

/// Tells what this process did. Afterwards everything goes straight on.
pub fn end() {
    // A process that was left alone, or is retired, may be killed for any call that is not its own.
    if process::order().is_none() || process::is_retired() || inside::is_inside() {
        return;
    }
    // A child that has this memory, and perhaps this thread's locals, ends for itself alone.
    if std::process::id() as i32 == process::id() {
        inside::uncancelled(told);
    }
}

fn told() {
    if ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    // The last thread of a process may have been taken down already.
    let Some(_inside) = Inside::enter_at_end() else { return };
    if process::is_ours() {
        tell_of_pager();
        tell();
    }
    process::switch_off();
}

/// Tells the run what this process did; in its first process, everybody what the run did.
fn tell() {
    let Some(order) = process::order() else { return };
    let is_root = order.root_pid == std::process::id();
    if is_root && !order.verbose && order.stats_file.is_none() {
        // Nobody hears.
        engine::leave();
        if let Some(dir) = &order.stats_dir {
            stats_page::end_run(dir, order.run_id);
        }
        return;
    }
    let own = engine::settle();
    if !is_root {
        return;
    }
    let all = order.stats_dir.as_deref().and_then(|dir| {
        let all = stats_page::gather(dir, order.run_id).ok();
        stats_page::end_run(dir, order.run_id);
        all
    });
    let Some(all) = all.or(own) else { return };
    if let Some(file) = &order.stats_file
        && let Err(error) = report::written(&all, file)
    {
        report::say(&format!("dwell: {}: {error}\n", file.display()));
    }
    if order.verbose {
        report::say(&stats_page::closing(&all));
    }
}

/// Says what the pager did in this process.
fn tell_of_pager() {
    let order = process::order().filter(|order| !order.quiet);
    if let Some(paging) = order.and_then(|order| order.pager.as_ref())
        && let Some(text) = paged::tell()
    {
        report::say_of_run(paging, &text);
    }
}
