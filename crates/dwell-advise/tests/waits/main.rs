// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a child does to a device is what is seen of it. On this machine the device is a loop
//! device; in the VM (`DWELL_VM` is set) it is an NVMe drive.

mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dwell_advise::{Error, Follow, Issued, Operation, Seen, Tracer};

/// Names what a child is to do, and tells it from the test.
const WORK: &str = "DWELL_ADVISE_WORK";
const REQUESTS: u64 = 500;

/// A block device of 32 MiB or more, which goes with this value.
struct Device {
    path: PathBuf,
    _image: Option<tempfile::NamedTempFile>,
}

impl Device {
    fn any() -> Option<Device> {
        if std::env::var_os("DWELL_VM").is_some() {
            return Some(Device { path: "/dev/nvme0n1".into(), _image: None });
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(32 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output();
        let made = made.ok().filter(|made| made.status.success())?;
        let path = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        Some(Device { path, _image: Some(image) })
    }

    fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self._image.is_some() {
            let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }
}

/// What was seen of a child.
struct Watched {
    device: Device,
    seen: Seen,
    /// How often its threads slept for what it was asked to do. A completion that comes before its
    /// thread sleeps is no wait, and on an overloaded machine the device may be that quick.
    slept: u64,
}

/// Sleeps of a child that are not for its requests.
const OTHER_SLEEPS: u64 = 20;

/// Follows a child that does `work` on `device`. `None` where this machine cannot trace or has no
/// device.
fn seen(work: &str) -> Option<Watched> {
    seen_by(Tracer::start, work)
}

/// The same without BPF.
fn seen_by_tracepoints(work: &str) -> Option<Watched> {
    seen_by(Tracer::start_by_tracepoints, work)
}

#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn seen_by(start: fn(Follow) -> dwell_advise::Result<Tracer>, work: &str) -> Option<Watched> {
    let device = Device::any();
    if device.is_none() {
        println!("SKIP: no loop device can be made here (root is needed)");
    }
    let device = device?;
    let mut tracer = match start(Follow::Children) {
        Ok(tracer) => tracer,
        Err(
            error @ (Error::PidNamespace
            | Error::Forbidden(_)
            | Error::LockedDown
            | Error::NoTypes
            | Error::Io { .. }),
        ) => {
            println!("SKIP: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_of_the_test", "--ignored", "--nocapture"])
        .env(WORK, work)
        .env("DWELL_ADVISE_DEVICE", &device.path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    tracer.started().unwrap();
    let (mut status, mut used) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: a child of this process, and room for what is told of it.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, used.as_mut_ptr()) };
    assert!(waited > 0 && status == 0, "{work}: {status}");
    // SAFETY: zeroed before, and filled in by the kernel.
    let slept = unsafe { used.assume_init() }.ru_nvcsw as u64;
    let slept = slept.saturating_sub(OTHER_SLEEPS);
    Some(Watched { device, seen: tracer.finish().unwrap(), slept })
}

/// Waits for the device, for one operation and way, and their time in nanoseconds.
fn counted(device: &Device, seen: &Seen, operation: Operation, issued: Issued) -> (u64, u64) {
    let of = seen.waits.iter().filter(|wait| {
        wait.device == device.name() && wait.operation == operation && wait.issued == issued
    });
    of.fold((0, 0), |(count, ns), wait| (count + wait.count, ns + wait.parts.total_ns()))
}

/// Most of what the child slept for is seen.
fn expect_most(watched: &Watched, operation: Operation, issued: Issued, asked: u64) {
    let Watched { device, seen, slept } = watched;
    let (count, _) = counted(device, seen, operation, issued);
    let least = asked.min(*slept) / 2;
    assert!(
        count >= least && count <= asked + asked / 10,
        "{count} of {asked}, slept {slept} times: {seen:#?}"
    );
}

#[test]
#[ignore = "a child of the other tests"]
fn child_of_the_test() {
    let (Ok(what), Some(device)) = (std::env::var(WORK), std::env::var_os("DWELL_ADVISE_DEVICE"))
    else {
        return;
    };
    work::work(&what, Path::new(&device));
}

#[test]
fn direct_reads_are_seen() {
    let Some(watched) = seen("read") else { return };
    expect_most(&watched, Operation::Read, Issued::Call, REQUESTS);
    let Watched { device, seen, .. } = watched;
    let load = seen.devices.iter().find(|load| {
        load.device == device.name() && load.operation == Operation::Read && load.size_bytes == 4096
    });
    assert_eq!(load.unwrap().count, REQUESTS);
}

#[test]
fn a_request_that_another_cpu_completes_as_its_thread_falls_asleep_is_waited_for() {
    if std::env::var_os("DWELL_VM").is_some() {
        return println!("SKIP: the guest has no disk of its own with files");
    }
    for cpu in ["first CPU", "second CPU"] {
        // Others who use the disk at that moment can hold up a read before it is a request.
        let mut tries = 3;
        loop {
            let Some(Watched { seen, .. }) = seen(cpu) else { return };
            let (all, unexplained) = reads_and_unexplained(&seen);
            tries -= 1;
            if unexplained * 50 <= all {
                break;
            }
            assert!(tries > 0, "{unexplained} of {all}: {seen:#?}");
        }
    }
}

/// Waits for reads, and those of them without a request.
fn reads_and_unexplained(seen: &Seen) -> (u64, u64) {
    let reads = seen.waits.iter().filter(|wait| {
        let by_read = matches!(wait.issued, Issued::Call | Issued::Fault);
        by_read && matches!(wait.operation, Operation::Read | Operation::Other)
    });
    reads.fold((0, 0), |(all, unexplained), wait| {
        let is_unexplained = wait.device == "page cache";
        (all + wait.count, unexplained + if is_unexplained { wait.count } else { 0 })
    })
}

#[test]
fn direct_writes_are_seen() {
    let Some(watched) = seen("write") else { return };
    expect_most(&watched, Operation::Write, Issued::Call, REQUESTS);
}

#[test]
fn page_faults_are_seen() {
    let Some(watched) = seen("fault") else { return };
    expect_most(&watched, Operation::Read, Issued::Fault, REQUESTS);
}

#[test]
fn waits_by_io_uring_are_seen() {
    let Some(watched) = seen("ring") else { return };
    expect_most(&watched, Operation::Read, Issued::IoUring, REQUESTS);
}

#[test]
fn waits_by_libaio_are_seen() {
    let Some(watched) = seen("libaio") else { return };
    expect_most(&watched, Operation::Read, Issued::Libaio, REQUESTS);
    let Some(watched) = seen_by_tracepoints("libaio") else { return };
    expect_most(&watched, Operation::Read, Issued::Libaio, REQUESTS);
}

/// Reads that many blocks of the device that it is given, in the order of the other children.
const IN_C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    int file = open(words[1], O_RDONLY | O_DIRECT);
    void *page = aligned_alloc(4096, 4096);
    for (long i = 0; i < 500; i++)
        if (pread(file, page, 4096, i * 4099 % 8000 * 4096) != 4096) return 1;
    return count != 2;
}
"#;

const IN_GO: &str = r#"
package main

import (
	"os"
	"syscall"
)

func main() {
	file, err := os.OpenFile(os.Args[1], os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		panic(err)
	}
	page, err := syscall.Mmap(-1, 0, 4096, 3, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for i := int64(0); i < 500; i++ {
		if _, err := file.ReadAt(page, i*4099%8000*4096); err != nil {
			panic(err)
		}
	}
}
"#;

/// Follows a program of another language, which a command makes: no library of it can be replaced.
fn waits_of_a_program_are_seen(source: (&str, &str), compiler: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(source.0), source.1).unwrap();
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-o", "reader", source.0]);
    command.current_dir(directory.path()).env("GOCACHE", directory.path().join("cache"));
    match command.output() {
        Ok(made) if made.status.success() => {}
        Ok(made) => return println!("SKIP: {}", String::from_utf8_lossy(&made.stderr).trim()),
        Err(error) => return println!("SKIP: {}: {error}", compiler[0]),
    }
    let program = directory.path().join("reader");
    let Some(watched) = seen(program.to_str().unwrap()) else { return };
    expect_most(&watched, Operation::Read, Issued::Call, REQUESTS);
}

#[test]
fn waits_of_a_static_program_are_seen() {
    waits_of_a_program_are_seen(("reader.c", IN_C), &["cc", "-static"]);
}

#[test]
fn waits_of_a_go_program_are_seen() {
    waits_of_a_program_are_seen(("reader.go", IN_GO), &["go", "build"]);
}

#[test]
fn synced_writes_are_seen() {
    let Some(Watched { device, seen, slept }) = seen("sync") else { return };
    let synced: u64 = seen
        .waits
        .iter()
        .filter(|wait| wait.device == device.name() && wait.issued == Issued::Sync)
        .map(|wait| wait.count)
        .sum();
    assert!(synced >= slept.min(50) / 2, "slept {slept} times: {seen:#?}");
}

#[test]
fn the_parts_of_a_wait_add_up_and_most_is_explained() {
    let Some(Watched { device, seen, .. }) = seen("read") else { return };
    let waits = seen.waits.iter().filter(|wait| wait.device == device.name());
    for wait in waits {
        let whole = wait.latency.iter().sum::<u64>();
        assert_eq!(whole, wait.count);
        assert!(wait.parts.device_ns > 0, "{wait:?}");
        assert!(wait.parts.other_ns < wait.parts.total_ns() / 4, "{wait:?}");
    }
}

#[test]
fn the_children_of_a_child_are_followed() {
    let Some(watched) = seen("threads") else { return };
    expect_most(&watched, Operation::Read, Issued::Call, 2 * REQUESTS);
}

#[test]
fn a_process_is_followed_after_its_first_thread_has_ended() {
    for watched in [seen("without a leader"), seen_by_tracepoints("without a leader")] {
        let Some(watched) = watched else { continue };
        expect_most(&watched, Operation::Read, Issued::Call, REQUESTS);
    }
}

#[test]
#[ignore = "a child of the next test"]
fn in_a_pid_namespace_nothing_is_traced() {
    for start in [Tracer::start, Tracer::start_by_tracepoints] {
        assert!(matches!(start(Follow::Everything), Err(Error::PidNamespace)));
    }
}

#[test]
fn a_pid_namespace_is_named_and_not_traced_by_numbers_that_are_others_there() {
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--"]);
    unshare.arg(std::env::current_exe().unwrap());
    let test = ["--exact", "in_a_pid_namespace_nothing_is_traced", "--ignored"];
    match unshare.args(test).output() {
        Ok(done) if done.status.success() => {}
        // Root alone may make one, and a guest without util-linux has no such command.
        Ok(done) if String::from_utf8_lossy(&done.stderr).contains("unshare") => {
            println!("SKIP: {}", String::from_utf8_lossy(&done.stderr).trim());
        }
        Err(error) => println!("SKIP: unshare: {error}"),
        Ok(done) => panic!("{done:?}"),
    }
}

#[test]
fn waits_for_pipes_are_no_waits_for_storage() {
    let Some(Watched { device, seen, .. }) = seen("pipes") else { return };
    assert_eq!(counted(&device, &seen, Operation::Read, Issued::Call), (0, 0));
    assert!(seen.other_waits >= REQUESTS, "{seen:#?}");
}

#[test]
fn waits_of_io_uring_for_sockets_are_no_waits_for_storage() {
    for start in [Tracer::start, Tracer::start_by_tracepoints] {
        let Some(Watched { seen, .. }) = seen_by(start, "ring of sockets") else { return };
        let by_ring = seen.waits.iter().filter(|wait| wait.issued == Issued::IoUring);
        // A disk of the machine may complete a request of somebody at that moment.
        assert!(by_ring.map(|wait| wait.count).sum::<u64>() < REQUESTS / 10, "{seen:#?}");
        assert!(seen.other_waits >= REQUESTS, "{seen:#?}");
    }
}

#[test]
fn nothing_is_lost_and_nothing_is_dropped_unsaid() {
    let Some(Watched { seen, .. }) = seen("read") else { return };
    assert!(seen.notes.is_empty(), "{:?}", seen.notes);
}

#[test]
fn tracepoints_show_the_same_waits() {
    let Some(watched) = seen_by_tracepoints("read") else { return };
    expect_most(&watched, Operation::Read, Issued::Call, REQUESTS);
    let Watched { device, seen, .. } = watched;
    let load = seen.devices.iter().find(|load| {
        load.device == device.name() && load.operation == Operation::Read && load.size_bytes == 4096
    });
    assert_eq!(load.unwrap().count, REQUESTS);
    for wait in seen.waits.iter().filter(|wait| wait.device == device.name()) {
        assert!(wait.parts.device_ns > 0, "{wait:?}");
        assert!(wait.parts.other_ns < wait.parts.total_ns() / 4, "{wait:?}");
    }
    assert!(
        seen.notes.iter().any(|note| note.contains("by tracepoints instead")),
        "{:?}",
        seen.notes
    );
}

#[test]
fn tracepoints_tell_faults_rings_and_pipes_apart() {
    let Some(watched) = seen_by_tracepoints("fault") else { return };
    expect_most(&watched, Operation::Read, Issued::Fault, REQUESTS);
    let Some(watched) = seen_by_tracepoints("ring") else { return };
    expect_most(&watched, Operation::Read, Issued::IoUring, REQUESTS);
    let Some(Watched { device, seen, .. }) = seen_by_tracepoints("pipes") else { return };
    assert_eq!(counted(&device, &seen, Operation::Read, Issued::Call), (0, 0));
    assert!(seen.other_waits >= REQUESTS, "{seen:#?}");
}

#[test]
fn tracepoints_follow_the_children_of_a_child() {
    let Some(watched) = seen_by_tracepoints("threads") else { return };
    expect_most(&watched, Operation::Read, Issued::Call, 2 * REQUESTS);
}

#[test]
fn a_process_that_is_not_there_is_named() {
    let error = Tracer::start(Follow::Process(u32::MAX)).err().unwrap();
    assert_eq!(error.to_string(), "process 4294967295 does not exist; look it up with pgrep");
}

#[test]
fn a_thread_is_refused_and_its_process_named() {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: asks for a number.
        tell.send(unsafe { libc::gettid() } as u32).unwrap();
        let _ = ended.recv();
    });
    let (id, process) = (told.recv().unwrap(), std::process::id());
    for start in [Tracer::start, Tracer::start_by_tracepoints] {
        let error = start(Follow::Process(id)).err().unwrap();
        assert_eq!(error.to_string(), format!("{id} is a thread of process {process}; give that"));
    }
    drop(end);
    thread.join().unwrap();
}
