// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices in the VM: a drive whose writes are recorded, and a memory disk on which a cut is
//! looked at.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::log::{Entry, parse};

const DRIVE: &str = "/dev/nvme0n1";
/// Whatever is checked is mounted from here.
const CHECKED: &str = "/dev/ram0";
const NAME: &str = "dwell-power";
const LOG: &str = "/tmp/power-log";
/// Bytes of the drive that are used.
pub const BYTES: usize = 16 << 20;
const LOG_BYTES: u64 = 160 << 20;

/// Why nothing can be tested here, if so: the drive would be overwritten.
pub fn missing() -> Option<&'static str> {
    let serial = fs::read_to_string("/sys/block/nvme0n1/device/serial").unwrap_or_default();
    if serial.trim() != "dwell-vm" {
        return Some("not in the VM (vm/test boots it)");
    }
    let works = |program: &str, argument: &str| {
        Command::new(program).arg(argument).output().is_ok_and(|out| out.status.success())
    };
    if !works("dmsetup", "version") {
        return Some("no dmsetup in the guest");
    }
    if !works("mkfs.ext4", "-V") {
        return Some("no mkfs.ext4 in the guest");
    }
    let targets = Command::new("dmsetup").arg("targets").output().map(|out| out.stdout);
    if !String::from_utf8_lossy(&targets.unwrap_or_default()).contains("log-writes") {
        return Some("the guest's kernel has no dm-log-writes");
    }
    None
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {told}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An ext4 on the drive, mounted, every write to which is recorded.
pub struct Recorded {
    at: PathBuf,
    start: Vec<u8>,
    log_device: String,
}

impl Recorded {
    /// Makes the file system and begins to record.
    pub fn mount(at: &Path) -> Recorded {
        let make =
            ["-q", "-F", "-b", "4096", "-O", "^resize_inode", "-E", "lazy_itable_init=0,nodiscard"];
        let blocks = (BYTES / 4096).to_string();
        run("mkfs.ext4", &[&make[..], &[DRIVE, &blocks]].concat());
        let mut start = vec![0; BYTES];
        File::open(DRIVE).and_then(|drive| drive.read_exact_at(&mut start, 0)).unwrap();

        let log = File::create(LOG).unwrap();
        log.set_len(LOG_BYTES).unwrap();
        let log_device = run("losetup", &["-f"]);
        run("losetup", &[&log_device, LOG]);
        let table = format!("0 {} log-writes {DRIVE} {log_device}", BYTES / 512);
        run("dmsetup", &["create", NAME, "--table", &table]);
        fs::create_dir_all(at).unwrap();
        mount_ext4(&format!("/dev/mapper/{NAME}"), at).unwrap();
        Recorded { at: at.to_owned(), start, log_device }
    }

    /// Ends recording: the medium as it was at the start, and what came to it since.
    pub fn end(mut self) -> (Vec<u8>, Vec<Entry>) {
        // A server's threads let go of its files a moment after it has ended.
        let mut tries = 0;
        while let Err(error) = unmount(&self.at, UnmountFlags::empty()) {
            assert!(error == rustix::io::Errno::BUSY && tries < 3000, "{error}");
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        run("dmsetup", &["remove", NAME]);
        run("losetup", &["-d", &self.log_device]);
        (std::mem::take(&mut self.start), parse(&fs::read(LOG).unwrap()).unwrap())
    }
}

impl Drop for Recorded {
    /// Clears away what a test that failed left, so that the next one can run.
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        for (program, arguments) in
            [("dmsetup", ["remove", NAME]), ("losetup", ["-d", &self.log_device])]
        {
            let _ = Command::new(program).args(arguments).output();
        }
        let _ = fs::remove_file(LOG);
    }
}

fn mount_ext4(device: &str, at: &Path) -> io::Result<()> {
    Ok(mount(device, at, "ext4", MountFlags::NOATIME, None)?)
}

/// Hands `look` the directory in which an image is mounted, its journal replayed, as after a power
/// cut.
pub fn looked_at<T>(image: &[u8], look: impl FnOnce(&Path) -> T) -> T {
    let at = Path::new("/tmp/after-the-cut");
    fs::create_dir_all(at).unwrap();
    let disk = File::options().write(true).open(CHECKED).unwrap();
    disk.write_all_at(image, 0).unwrap();
    drop(disk);
    mount_ext4(CHECKED, at).expect("the file system survives the cut");
    let seen = look(at);
    unmount(at, UnmountFlags::empty()).unwrap();
    seen
}

/// Marks the record: what the device has made durable up to now stands before the mark.
pub struct Marker(File);

/// `struct dm_ioctl` and a `struct dm_target_msg` with its text behind it.
#[repr(C)]
struct Message {
    version: [u32; 3],
    data_bytes: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event: u32,
    padding: u32,
    device: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    fill: [u8; 7],
    sector: u64,
    text: [u8; 64],
}

impl Marker {
    /// For the device that is being recorded.
    pub fn new() -> io::Result<Marker> {
        Ok(Marker(File::options().read(true).write(true).open("/dev/mapper/control")?))
    }

    /// Says `text`, one word of at most 50 bytes.
    pub fn mark(&self, text: &str) -> io::Result<()> {
        const HEAD_BYTES: u32 = 312;
        // _IOWR(0xfd, DM_TARGET_MSG_CMD, struct dm_ioctl)
        const TARGET_MESSAGE: libc::c_ulong =
            3 << 30 | (HEAD_BYTES as libc::c_ulong) << 16 | 0xfd << 8 | 14;
        let text = format!("mark {text}");
        let mut message = Message {
            version: [4, 0, 0],
            data_bytes: size_of::<Message>() as u32,
            data_start: HEAD_BYTES,
            target_count: 0,
            open_count: 0,
            flags: 0,
            event: 0,
            padding: 0,
            device: 0,
            name: [0; 128],
            uuid: [0; 129],
            fill: [0; 7],
            sector: 0,
            text: [0; 64],
        };
        message.name[..NAME.len()].copy_from_slice(NAME.as_bytes());
        message.text[..text.len()].copy_from_slice(text.as_bytes());
        // SAFETY: the kernel reads and writes `data_bytes` bytes of the structure, which is that
        // long.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), TARGET_MESSAGE as _, &raw mut message) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
