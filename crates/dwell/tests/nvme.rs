// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a real NVMe driver does with polled and interrupt-driven reads, asserted as counts of
//! interrupts in the VM that `vm/test` boots; anywhere else every test here skips.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::vm::{Polling, settled_interrupts};
use common::{BLOCK, Fixed, check, fill, skip};
use dwell::buffer::Aligned;
use dwell::policy::SmartCon;
use dwell::queue::{Action, Io, Queue};
use dwell::source::Source;
use dwell::{File, Mode, Options, Reason, Route, WaitPolicy};

const NVME: &str = "/dev/nvme0n1";
const READS: u64 = 200;
const POLLED: Route = Route::Polled;

#[test]
fn polled_reads_raise_no_interrupt() {
    let Some(drive) = Drive::in_vm(&[Polling::Real]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "1");
    for mode in [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 30_000 }] {
        let file = drive.open(Fixed { route: POLLED, mode, ..Fixed::spin() });
        assert_eq!(drive.interrupts_during(|| drive.read_blocks(&file, READS)), 0, "{mode:?}");
        assert_eq!(file.stats().count(POLLED, mode.as_str()), READS);
    }
}

#[test]
fn a_polled_pipeline_raises_no_interrupt() {
    let Some(drive) = Drive::in_vm(&[Polling::Real]) else { return };
    let file = drive.open(Fixed { route: POLLED, ..Fixed::spin() });
    let interrupts = drive.interrupts_during(|| {
        let mut pipeline = file.pipeline::<Aligned>(8).unwrap();
        let (mut sent, mut done) = (0, 0);
        while done < READS {
            while sent < READS && pipeline.has_room() {
                let at = sent % Drive::PATTERN_BLOCKS * BLOCK as u64;
                pipeline.read_at(Aligned::new(BLOCK), at).map_err(|(e, _)| e).unwrap();
                sent += 1;
            }
            let finished = pipeline.next().unwrap();
            assert_eq!(finished.result.unwrap(), BLOCK);
            done += 1;
        }
    });
    assert_eq!(interrupts, 0);
}

#[test]
fn interrupt_driven_reads_raise_one_interrupt_each() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else { return };
    let inline = Fixed { route: Route::Inline, ..Fixed::block() };
    for fixed in [Fixed::spin(), Fixed::block(), inline] {
        let file = drive.open(fixed);
        let raised = drive.interrupts_during(|| drive.read_blocks(&file, READS));
        assert_eq!(raised, READS, "{fixed:?}");
        assert_eq!(file.stats().count(fixed.route, fixed.mode.as_str()), READS);
    }
}

#[test]
fn a_request_that_blocks_leaves_the_polled_ring() {
    let Some(drive) = Drive::in_vm(&[Polling::Real]) else { return };
    let file = drive.open(SmartCon::default());
    assert_eq!(drive.interrupts_during(|| drive.read_blocks(&file, READS)), 0);
    assert_eq!(file.stats().count(POLLED, "spin"), READS);

    let mut large = Aligned::new(128 << 10);
    let raised = drive.interrupts_during(|| {
        (0..READS).for_each(|_| file.read_exact_at(&mut large, 0).unwrap());
    });
    assert!(raised >= READS, "{raised} interrupts for {READS} reads that block");
    assert_eq!(file.stats().because(Reason::Size), READS);
    check(&large[..Drive::PATTERN_BYTES as usize], 0, Drive::SEED);
}

#[test]
fn without_poll_queues_an_older_kernel_fakes_polling_with_interrupts() {
    let Some(drive) = Drive::in_vm(&[Polling::Fake]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "0");
    let file = drive.open(Fixed { route: POLLED, ..Fixed::spin() });
    assert_eq!(drive.interrupts_during(|| drive.read_blocks(&file, READS)), READS);
    assert_eq!(file.stats().count(POLLED, "spin"), READS);
}

#[test]
fn without_poll_queues_a_newer_kernel_refuses_polled_reads() {
    let Some(drive) = Drive::in_vm(&[Polling::Refused]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "0");
    let file = drive.open(Fixed { route: POLLED, ..Fixed::spin() });
    let mut block = Aligned::new(BLOCK);
    let interrupts = drive.interrupts_during(|| {
        let mut queue = file.source().queue(1).unwrap();
        let (target, memory) = (file.source().target(), block.as_mut_ptr());
        // SAFETY: the buffer outlives the loop below, which ends with the completion.
        let io = unsafe { Io::plain(Action::Read, target, memory, BLOCK as u32, 0) };
        queue.submit(io, POLLED).map_err(|_| "full").unwrap();
        queue.flush();
        let mut result = 0;
        while queue.poll(&mut |completion| result = completion.result) == 0 {}
        assert_eq!(result, -libc::EOPNOTSUPP);
    });
    assert_eq!(interrupts, 0);
}

#[test]
fn refused_polling_is_served_all_the_same_and_not_tried_again() {
    let Some(drive) = Drive::in_vm(&[Polling::Refused]) else { return };
    let file = drive.open(Fixed { route: POLLED, ..Fixed::spin() });
    drive.read_blocks(&file, READS);
    assert!(!file.source().routes().has(POLLED));
    let stats = file.stats();
    assert_eq!((stats.count(POLLED, "spin"), stats.count(Route::Inline, "block")), (0, READS));
    assert_eq!((stats.requests(), stats.errors), (READS, 0));
}

#[test]
fn a_flakey_device_fails_while_down_and_keeps_its_data() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else { return };
    if !Flakey::available() {
        return skip("no dmsetup in the guest");
    }
    let flakey = Flakey::over(&drive, "dwell-flakey");
    let path = flakey.path();
    let mut block = Aligned::new(BLOCK);
    for (seed, fixed) in (70..).zip(Fixed::all()) {
        let file = open(&path, fixed);
        let at = 3 * BLOCK as u64;
        fill(&mut block, at, seed);
        file.write_all_at(&block, at).unwrap();

        flakey.go_down();
        let mut other = Aligned::new(BLOCK);
        for error in
            [file.read_at(&mut other, at), file.write_at(&other, at)].map(Result::unwrap_err)
        {
            assert_eq!(error.errno(), Some(libc::EIO), "{fixed:?}: {error}");
            let told = error.to_string();
            assert!(
                told.contains("/dev/mapper/dwell-flakey") && told.contains("byte 12288"),
                "{told}"
            );
        }
        let mut pipeline = file.pipeline::<Aligned>(2).unwrap();
        pipeline.read_at(Aligned::new(BLOCK), at).map_err(|(e, _)| e).unwrap();
        assert_eq!(pipeline.next().unwrap().result.unwrap_err().errno(), Some(libc::EIO));
        assert_eq!(file.stats().errors, 3, "{fixed:?}");

        flakey.come_up();
        file.read_exact_at(&mut other, at).unwrap();
        check(&other, at, seed);
    }
}

#[test]
fn a_flakey_device_goes_away_with_its_guard() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else { return };
    if !Flakey::available() {
        return skip("no dmsetup in the guest");
    }
    let flakey = Flakey::over(&drive, "dwell-dropped");
    let path = flakey.path();
    assert!(path.exists());
    drop(flakey);
    assert!(!path.exists(), "{} is still there", path.display());
}

#[test]
fn the_guest_has_the_other_devices() {
    let Some(_drive) = Drive::in_vm(Polling::ANY) else { return };
    for device in ["/dev/nullb0", "/dev/ram0", "/dev/loop-control", "/dev/mapper/control"] {
        assert!(Path::new(device).exists(), "{device} is missing");
    }
}

/// The VM's NVMe drive with a known pattern in its first blocks, held by one test at a time.
struct Drive {
    _alone: MutexGuard<'static, ()>,
}

impl Drive {
    const SEED: u64 = 5;
    const PATTERN_BLOCKS: u64 = 16;
    const PATTERN_BYTES: u64 = Self::PATTERN_BLOCKS * BLOCK as u64;

    /// The drive, or a line that says why the test skips.
    fn in_vm(wanted: &[Polling]) -> Option<Drive> {
        static ALONE: Mutex<()> = Mutex::new(());
        if let Err(why) = Polling::of_this_boot(wanted) {
            skip(why);
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let drive = Drive { _alone: alone };
        let mut pattern = Aligned::new(Self::PATTERN_BYTES as usize);
        fill(&mut pattern, 0, Self::SEED);
        drive.open(dwell::policy::Block).write_all_at(&pattern, 0).unwrap();
        Some(drive)
    }

    /// The drive by this policy, with polling known to be real.
    fn open(&self, policy: impl WaitPolicy + 'static) -> File {
        open(Path::new(NVME), policy)
    }

    fn queue_attribute(&self, name: &str) -> String {
        let path = format!("/sys/block/nvme0n1/queue/{name}");
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")).trim().to_owned()
    }

    fn sectors(&self) -> u64 {
        let path = "/sys/block/nvme0n1/size";
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    /// Reads so many blocks one after the other and checks the bytes of each.
    fn read_blocks(&self, file: &File, count: u64) {
        let mut block = Aligned::new(BLOCK);
        for read in 0..count {
            let at = read % Self::PATTERN_BLOCKS * BLOCK as u64;
            file.read_exact_at(&mut block, at)
                .unwrap_or_else(|error| panic!("read {read}: {error}"));
            check(&block, at, Self::SEED);
        }
    }

    /// How many interrupts all queues of the drive raised, the admin queue's among them.
    fn interrupts_during(&self, work: impl FnOnce()) -> u64 {
        let before = settled_interrupts();
        work();
        settled_interrupts() - before
    }
}

fn open(path: &Path, policy: impl WaitPolicy + 'static) -> File {
    let parameters = Fixed { route: POLLED, ..Fixed::spin() }.parameters();
    let options =
        Options::new().write(true).direct(true).parameters(parameters).policy(Arc::new(policy));
    options.open(path).unwrap_or_else(|error| panic!("{error}"))
}

/// A dm-flakey device that is removed on drop. Its up and down intervals are 0 or 1 s, one of each,
/// so it is either up or down for good and no test depends on time.
struct Flakey<'a> {
    drive: &'a Drive,
    name: &'static str,
}

impl<'a> Flakey<'a> {
    fn available() -> bool {
        Command::new("dmsetup").arg("version").output().is_ok_and(|out| out.status.success())
    }

    fn over(drive: &'a Drive, name: &'static str) -> Flakey<'a> {
        let flakey = Flakey { drive, name };
        dmsetup(&["create", name, "--table", &flakey.table(1, 0)]).unwrap();
        flakey
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(self.name)
    }

    fn go_down(&self) {
        self.load(&self.table(0, 1));
    }

    fn come_up(&self) {
        self.load(&self.table(1, 0));
    }

    fn load(&self, table: &str) {
        dmsetup(&["reload", self.name, "--table", table]).unwrap();
        dmsetup(&["resume", self.name]).unwrap();
    }

    fn table(&self, up_s: u32, down_s: u32) -> String {
        format!("0 {} flakey {NVME} 0 {up_s} {down_s}", self.drive.sectors())
    }
}

impl Drop for Flakey<'_> {
    fn drop(&mut self) {
        if let Err(message) = dmsetup(&["remove", "--retry", self.name]) {
            eprintln!("{message}");
        }
    }
}

fn dmsetup(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("dmsetup").args(arguments).output().map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(format!("dmsetup {}: {}", arguments.join(" "), message.trim()))
}
