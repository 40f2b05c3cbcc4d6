// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a real NVMe driver does with polled and interrupt-driven reads, asserted as counts of
//! interrupts in the VM that `vm/test` boots; anywhere else every test here skips.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

const NVME: &str = "/dev/nvme0n1";
const BLOCK_BYTES: usize = 4096;
const READS: u64 = 200;

#[test]
fn polled_reads_raise_no_interrupt() {
    let Some(drive) = Drive::in_vm(&[Polling::Real]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "1");
    let mut ring = Ring::new(Completion::Polled);
    assert_eq!(drive.interrupts_during(|| drive.read_blocks(&mut ring, READS)), 0);
}

#[test]
fn interrupt_driven_reads_raise_one_interrupt_each() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else {
        return;
    };
    let mut ring = Ring::new(Completion::Interrupt);
    assert_eq!(drive.interrupts_during(|| drive.read_blocks(&mut ring, READS)), READS);
}

#[test]
fn without_poll_queues_an_older_kernel_fakes_polling_with_interrupts() {
    let Some(drive) = Drive::in_vm(&[Polling::Fake]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "0");
    let mut ring = Ring::new(Completion::Polled);
    assert_eq!(drive.interrupts_during(|| drive.read_blocks(&mut ring, READS)), READS);
}

#[test]
fn without_poll_queues_a_newer_kernel_refuses_polled_reads() {
    let Some(drive) = Drive::in_vm(&[Polling::Refused]) else { return };
    assert_eq!(drive.queue_attribute("io_poll"), "0");
    let mut ring = Ring::new(Completion::Polled);
    let mut block = AlignedBlock::zeroed();
    let interrupts = drive.interrupts_during(|| {
        let error = ring.read_at(&drive.file, block.bytes_mut(), 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
    });
    assert_eq!(interrupts, 0);
}

#[test]
fn a_flakey_device_fails_while_down_and_keeps_its_data() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else {
        return;
    };
    if !Flakey::available() {
        return skip("no dmsetup in the guest");
    }
    let flakey = Flakey::over(&drive, "dwell-flakey");
    let file = open_direct(&flakey.path());
    let mut ring = Ring::new(Completion::Interrupt);
    let mut block = AlignedBlock::zeroed();
    let written = AlignedBlock::filled_for(7);
    file.write_all_at(written.bytes(), 0).unwrap();

    flakey.go_down();
    let error = ring.read_at(&file, block.bytes_mut(), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "read by ring: {error}");
    let error = file.read_at(block.bytes_mut(), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "read by pread: {error}");
    let error = file.write_at(AlignedBlock::zeroed().bytes(), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "write: {error}");

    flakey.come_up();
    assert_eq!(ring.read_at(&file, block.bytes_mut(), 0).unwrap(), BLOCK_BYTES);
    assert!(block.bytes() == written.bytes(), "the data changed while the device was down");
}

#[test]
fn a_flakey_device_goes_away_with_its_guard() {
    let Some(drive) = Drive::in_vm(Polling::ANY) else {
        return;
    };
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
    let Some(_drive) = Drive::in_vm(Polling::ANY) else {
        return;
    };
    for device in ["/dev/nullb0", "/dev/ram0", "/dev/loop-control", "/dev/mapper/control"] {
        assert!(Path::new(device).exists(), "{device} is missing");
    }
}

fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// What this boot does with a polled read, as `vm/test` says in `DWELL_VM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polling {
    /// The drive has a poll queue.
    Real,
    /// It has none and the kernel completes the read by interrupt without a word.
    Fake,
    /// It has none and the kernel refuses the read.
    Refused,
}

impl Polling {
    const ANY: &[Polling] = &[Polling::Real, Polling::Fake, Polling::Refused];

    fn of_this_boot() -> Option<Polling> {
        match env::var("DWELL_VM").ok()?.as_str() {
            "poll" => Some(Polling::Real),
            "fake" => Some(Polling::Fake),
            "refused" => Some(Polling::Refused),
            other => panic!("DWELL_VM={other}: want poll, fake or refused"),
        }
    }
}

/// The VM's NVMe drive with a known pattern in its first blocks, held by one test at a time.
struct Drive {
    file: File,
    _alone: MutexGuard<'static, ()>,
}

impl Drive {
    const PATTERN_BLOCKS: u64 = 16;

    /// The drive, or a line that says why the test skips. The serial number keeps the tests, which
    /// overwrite the drive, off any drive that is not the VM's.
    fn in_vm(wanted: &[Polling]) -> Option<Drive> {
        static ALONE: Mutex<()> = Mutex::new(());
        let Some(polling) = Polling::of_this_boot() else {
            skip("not in the VM (vm/test boots it)");
            return None;
        };
        let serial = fs::read_to_string("/sys/block/nvme0n1/device/serial").unwrap_or_default();
        if serial.trim() != "dwell-vm" {
            skip("/dev/nvme0n1 is not the VM's drive");
            return None;
        }
        if !wanted.contains(&polling) {
            skip(&format!("wants a boot with polling {wanted:?}, this one has {polling:?}"));
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open_direct(Path::new(NVME));
        for index in 0..Self::PATTERN_BLOCKS {
            let block = AlignedBlock::filled_for(index);
            file.write_all_at(block.bytes(), index * BLOCK_BYTES as u64).unwrap();
        }
        Some(Drive { file, _alone: alone })
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
    fn read_blocks(&self, ring: &mut Ring, count: u64) {
        let mut block = AlignedBlock::zeroed();
        for read in 0..count {
            let index = read % Self::PATTERN_BLOCKS;
            let got = ring.read_at(&self.file, block.bytes_mut(), index * BLOCK_BYTES as u64);
            assert_eq!(got.unwrap_or_else(|e| panic!("read {read}: {e}")), BLOCK_BYTES);
            assert!(block.bytes() == AlignedBlock::filled_for(index).bytes(), "bytes of {index}");
        }
    }

    /// How many interrupts all queues of the drive raised, the admin queue's among them.
    fn interrupts_during(&self, work: impl FnOnce()) -> u64 {
        let before = settled_interrupts();
        work();
        settled_interrupts() - before
    }
}

/// The drive's interrupt count once nothing from before (a partition scan, say) still changes it.
fn settled_interrupts() -> u64 {
    let mut last = nvme_interrupts();
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(20));
        let now = nvme_interrupts();
        if now == last {
            return now;
        }
        last = now;
    }
    panic!("{NVME} raises interrupts without any request from this test");
}

/// Sums every processor's column in the lines of /proc/interrupts that belong to the drive.
fn nvme_interrupts() -> u64 {
    let table = fs::read_to_string("/proc/interrupts").unwrap();
    let mut lines = table.lines();
    let processors = lines.next().unwrap_or_default().split_whitespace().count();
    let counts: Vec<u64> = lines
        .filter(|line| line.contains("nvme0q"))
        .flat_map(|line| line.split_whitespace().skip(1).take(processors))
        .map(|count| count.parse().unwrap())
        .collect();
    assert!(!counts.is_empty(), "no nvme0q line in /proc/interrupts");
    counts.iter().sum()
}

fn open_direct(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One block in memory that O_DIRECT takes.
struct AlignedBlock {
    memory: Vec<u8>,
    start: usize,
}

impl AlignedBlock {
    fn zeroed() -> AlignedBlock {
        let memory = vec![0; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        AlignedBlock { memory, start }
    }

    fn filled_for(index: u64) -> AlignedBlock {
        let mut block = AlignedBlock::zeroed();
        for (i, byte) in block.bytes_mut().iter_mut().enumerate() {
            *byte = (i as u64 ^ (i as u64 >> 8) ^ (index + 1)) as u8;
        }
        block
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + BLOCK_BYTES]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Completion {
    Polled,
    Interrupt,
}

/// A ring with one request in flight.
struct Ring {
    uring: IoUring,
}

impl Ring {
    fn new(completion: Completion) -> Ring {
        let mut builder = IoUring::builder();
        if completion == Completion::Polled {
            builder.setup_iopoll();
        }
        Ring { uring: builder.build(4).unwrap_or_else(|e| panic!("io_uring_setup: {e}")) }
    }

    fn read_at(&mut self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let fd = types::Fd(file.as_raw_fd());
        let read =
            opcode::Read::new(fd, buffer.as_mut_ptr(), buffer.len() as u32).offset(offset).build();
        // SAFETY: the file and the exclusively borrowed buffer outlive the request: from here on
        // this function either returns with the completion or aborts the process.
        unsafe { self.uring.submission().push(&read).expect("the ring is empty") };
        let completion = loop {
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("io_uring_enter: {error}");
                    std::process::abort();
                }
            }
            if let Some(completion) = self.uring.completion().next() {
                break completion;
            }
        };
        match completion.result() {
            result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            result => Ok(result as usize),
        }
    }
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
