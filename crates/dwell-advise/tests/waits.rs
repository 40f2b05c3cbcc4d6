// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a child does to a device is what is seen of it. On this machine the device is a loop
//! device; in the VM (`DWELL_VM` is set) it is an NVMe drive.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dwell_advise::{Error, Follow, Issued, Operation, Seen, Tracer};

/// Names what a child is to do, and tells it from the test.
const WORK: &str = "DWELL_ADVISE_WORK";
const BLOCK: usize = 4096;
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

#[repr(align(4096))]
struct Page([u8; BLOCK]);

#[test]
#[ignore = "a child of the other tests"]
fn child_of_the_test() {
    let Some(work) = std::env::var_os(WORK) else { return };
    let path = PathBuf::from(std::env::var_os("DWELL_ADVISE_DEVICE").unwrap());
    match work.to_str().unwrap() {
        "read" => read(&open(&path, libc::O_DIRECT)),
        "write" => write(&open(&path, libc::O_DIRECT)),
        "sync" => sync(&open(&path, 0)),
        "fault" => fault(&open(&path, 0)),
        "ring" => ring(&open(&path, libc::O_DIRECT)),
        "threads" => threads(&path),
        "pipes" => pipes(),
        "ring of sockets" => ring_of_sockets(),
        "first CPU" => on_cpu(0),
        "second CPU" => on_cpu(1),
        other => panic!("{other}"),
    }
}

fn open(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Every block once, in an order that reading ahead does not guess.
fn blocks() -> impl Iterator<Item = u64> {
    (0..REQUESTS).map(|i| i * 4099 % 8000 * BLOCK as u64)
}

fn read(file: &File) {
    let mut page = Page([0; BLOCK]);
    blocks().for_each(|offset| file.read_exact_at(&mut page.0, offset).unwrap());
}

fn write(file: &File) {
    let page = Page([7; BLOCK]);
    blocks().for_each(|offset| file.write_all_at(&page.0, offset).unwrap());
}

fn sync(file: &File) {
    for offset in blocks().take(50) {
        file.write_all_at(&[9; BLOCK], offset).unwrap();
        file.sync_data().unwrap();
    }
}

fn fault(file: &File) {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
    // What the child before left in the page cache would not be waited for.
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let length = 32 << 20;
    // SAFETY: a new mapping of the device, which nothing else in this process maps or reads.
    unsafe {
        let start =
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
        madvise(start, length, Advice::Random).unwrap();
        for offset in blocks() {
            std::hint::black_box(start.cast::<u8>().add(offset as usize).read_volatile());
        }
    }
}

fn ring(file: &File) {
    use std::os::fd::AsRawFd as _;
    let mut ring = io_uring::IoUring::new(8).unwrap();
    let mut page = Page([0; BLOCK]);
    for offset in blocks() {
        let read = io_uring::opcode::Read::new(
            io_uring::types::Fd(file.as_raw_fd()),
            page.0.as_mut_ptr(),
            BLOCK as u32,
        );
        // SAFETY: the page and the file live until the completion, which is awaited.
        unsafe { ring.submission().push(&read.offset(offset).build()).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), BLOCK as i32);
    }
}

/// Another thread answers each byte, and io_uring waits for the answers.
fn ring_of_sockets() {
    if io_uring::IoUring::new(8).is_err() {
        return println!("SKIP: no io_uring");
    }
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;
    let (mut own, mut other) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while other.read(&mut byte).unwrap() == 1 {
            std::thread::sleep(std::time::Duration::from_micros(200));
            other.write_all(&byte).unwrap();
        }
    });
    let mut ring = io_uring::IoUring::new(8).unwrap();
    let mut byte = [0];
    for _ in 0..REQUESTS {
        own.write_all(b"x").unwrap();
        let socket = io_uring::types::Fd(own.as_raw_fd());
        let receive = io_uring::opcode::Recv::new(socket, byte.as_mut_ptr(), 1).build();
        // SAFETY: the byte lives until the completion, which is awaited.
        unsafe { ring.submission().push(&receive).unwrap() };
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), 1);
    }
    own.shutdown(std::net::Shutdown::Both).unwrap();
    echo.join().unwrap();
}

/// Two threads, each in a process of its own, read.
fn threads(path: &Path) {
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child_of_the_test", "--ignored", "--nocapture"])
                .env(WORK, "read")
                .env("DWELL_ADVISE_DEVICE", path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
}

/// Reads a file on the machine's own disk, on one CPU. Another may have the disk's interrupts.
fn on_cpu(cpu: usize) {
    // SAFETY: a set of zeros is one, and this thread's own.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus);
    }
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let direct = open(file.path(), libc::O_DIRECT);
    let pages: Vec<Page> = (0..256).map(|_| Page([5; BLOCK])).collect();
    // SAFETY: the pages' own bytes.
    let bytes = unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), 256 * BLOCK) };
    (0..32).for_each(|at| direct.write_all_at(bytes, at * bytes.len() as u64).unwrap());
    for _ in 0..4 {
        read(&direct);
        fault(file.as_file());
    }
}

fn pipes() {
    let (mut read, mut write) = io::pipe().unwrap();
    let (mut back, mut answer) = io::pipe().unwrap();
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while read.read(&mut byte).unwrap() == 1 {
            answer.write_all(&byte).unwrap();
        }
    });
    for _ in 0..REQUESTS {
        write.write_all(b"x").unwrap();
        back.read_exact(&mut [0]).unwrap();
    }
    drop(write);
    echo.join().unwrap();
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
        let Some(Watched { seen, .. }) = seen(cpu) else { return };
        let reads = seen.waits.iter().filter(|wait| {
            let by_read = matches!(wait.issued, Issued::Call | Issued::Fault);
            by_read && matches!(wait.operation, Operation::Read | Operation::Other)
        });
        let (mut all, mut unexplained) = (0, 0);
        for wait in reads {
            all += wait.count;
            unexplained += if wait.device == "page cache" { wait.count } else { 0 };
        }
        assert!(unexplained * 50 <= all, "{unexplained} of {all}: {seen:#?}");
    }
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
