// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls of userfaultfd, and the scan of the page map that finds written pages.
//!
//! Layouts and numbers are those of `linux/userfaultfd.h` and `linux/fs.h`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::memory::PAGE_BYTES;

const API: u64 = 0xaa;
const SIGBUS: u64 = 1 << 7;
const EXACT_ADDRESS: u64 = 1 << 11;
const POISON: u64 = 1 << 14;
const PAGEFAULT_FLAG_WP: u64 = 1;
const WP_ASYNC: u64 = 1 << 15;
const MOVE: u64 = 1 << 16;
const USER_MODE_ONLY: libc::c_int = 1;

const IOC_NEW: libc::Ioctl = 0xaa00u32 as libc::Ioctl;
const IOC_API: libc::Ioctl = 0xc018_aa3fu32 as libc::Ioctl;
const IOC_REGISTER: libc::Ioctl = 0xc020_aa00u32 as libc::Ioctl;
const IOC_WAKE: libc::Ioctl = 0x8010_aa02u32 as libc::Ioctl;
const IOC_COPY: libc::Ioctl = 0xc028_aa03u32 as libc::Ioctl;
const IOC_MOVE: libc::Ioctl = 0xc028_aa05u32 as libc::Ioctl;
const IOC_WRITEPROTECT: libc::Ioctl = 0xc018_aa06u32 as libc::Ioctl;
const IOC_POISON: libc::Ioctl = 0xc020_aa08u32 as libc::Ioctl;
const IOC_PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610u32 as libc::Ioctl;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const COPY_WP: u64 = 2;
const PAGE_IS_WRITTEN: u64 = 2;
const PAGE_IS_PRESENT: u64 = 8;
const PAGE_IS_SWAPPED: u64 = 16;
const SCAN_WP_MATCHING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// Pages that a scan found, as addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub start: u64,
    pub end: u64,
    categories: u64,
}

/// A userfaultfd of this process.
#[derive(Debug)]
pub(crate) struct Uffd {
    descriptor: OwnedFd,
    features: u64,
    pagemap: Option<File>,
    /// The process's memory, where pages are looked at that the program may discard meanwhile.
    memory: Option<File>,
    /// Whether written pages are told from others.
    protects: bool,
    /// What the kernel refuses in tests.
    #[cfg(test)]
    pub refusals: Refusals,
}

/// Moves to a range of addresses that fail with an error number, for as long as there is one. Where
/// there is no memory, copies fail too.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Refusals(std::sync::Mutex<Option<(std::ops::Range<usize>, i32)>>);

#[cfg(test)]
impl Refusals {
    pub fn set(&self, refused: Option<(std::ops::Range<usize>, i32)>) {
        *self.0.lock().unwrap() = refused;
    }

    /// The outcome of a move that is to fail: the bytes before the first that is refused, and the
    /// error number.
    fn of(&self, number: libc::Ioctl, to: usize, bytes: usize) -> Option<(usize, i32)> {
        let refused = self.0.lock().unwrap();
        let (range, errno) = refused.as_ref()?;
        let fails = number == IOC_MOVE || *errno == libc::ENOMEM;
        let meets = fails && to < range.end && range.start < to + bytes;
        meets.then(|| (range.start.saturating_sub(to), *errno))
    }
}

/// Why a region cannot be had, in one line.
pub(crate) struct Missing(pub String);

impl Uffd {
    /// For faults that a thread handles, those of the kernel too, or that raise SIGBUS; `written`
    /// says that written pages must be told from others.
    pub fn new(kernel_too: bool, written: bool) -> Result<Uffd, Missing> {
        let offered = {
            let probe = descriptor(kernel_too)?;
            handshake(&probe, 0).map_err(|error| refused("handshake", error))?
        };
        let mut wanted = if kernel_too { EXACT_ADDRESS } else { SIGBUS };
        if written {
            wanted |= WP_ASYNC | PAGEFAULT_FLAG_WP;
            if offered & (WP_ASYNC | MOVE) != WP_ASYNC | MOVE {
                return Err(Missing(
                    "a region that is written to needs Linux 6.8 (UFFD_FEATURE_WP_ASYNC and \
                     UFFD_FEATURE_MOVE); this kernel can have read-only ones"
                        .into(),
                ));
            }
        }
        if kernel_too && offered & POISON == 0 {
            return Err(Missing(
                "faults handled by a thread need Linux 6.6 (UFFD_FEATURE_POISON): handle them inline".into(),
            ));
        }
        if offered & wanted != wanted {
            return Err(Missing(
                "this kernel's userfaultfd cannot raise SIGBUS (Linux 4.14)".into(),
            ));
        }
        wanted |= offered & (MOVE | POISON);
        let descriptor = descriptor(kernel_too)?;
        handshake(&descriptor, wanted).map_err(|error| refused("handshake", error))?;
        let needed = |name| proc_self(name).map(Some).map_err(|error| refused(name, error));
        let (pagemap, memory) = match written {
            true => (needed("/proc/self/pagemap")?, needed("/proc/self/mem")?),
            // Without it, what the program takes away itself is not noticed.
            false => (proc_self("/proc/self/pagemap").ok(), None),
        };
        Ok(Uffd {
            descriptor,
            features: wanted,
            pagemap,
            memory,
            protects: written,
            #[cfg(test)]
            refusals: Refusals::default(),
        })
    }

    /// Whether pages can be moved from one mapping to another.
    pub fn moves(&self) -> bool {
        self.features & MOVE != 0
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.descriptor.as_fd()
    }

    fn ioctl<T>(&self, number: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: an open userfaultfd and the structure that this number names. What it does to
        // memory is within ranges that the pager mapped for this.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), number, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has faults on absent pages of a range handled.
    pub fn register(&self, start: usize, bytes: usize) -> io::Result<()> {
        #[repr(C)]
        struct Register {
            start: u64,
            len: u64,
            mode: u64,
            ioctls: u64,
        }
        let mode = REGISTER_MISSING | if self.protects { REGISTER_WP } else { 0 };
        let mut register = Register { start: start as u64, len: bytes as u64, mode, ioctls: 0 };
        self.ioctl(IOC_REGISTER, &mut register)
    }

    /// Moves pages to a range that is absent; what was moved before an error is told in bytes.
    pub fn move_pages(&self, to: usize, from: usize, bytes: usize) -> Result<(), (usize, i32)> {
        self.transfer(IOC_MOVE, to, from, bytes, 0)
    }

    /// Copies pages to a range that is absent, protected against writing or not; what was copied
    /// before an error is told in bytes.
    pub fn copy_pages(
        &self,
        to: usize,
        from: usize,
        bytes: usize,
        protected: bool,
    ) -> Result<(), (usize, i32)> {
        self.transfer(IOC_COPY, to, from, bytes, if protected { COPY_WP } else { 0 })
    }

    fn transfer(
        &self,
        number: libc::Ioctl,
        to: usize,
        from: usize,
        bytes: usize,
        mode: u64,
    ) -> Result<(), (usize, i32)> {
        #[repr(C)]
        struct Transfer {
            to: u64,
            from: u64,
            len: u64,
            mode: u64,
            done: i64,
        }
        #[cfg(test)]
        if let Some((before, errno)) = self.refusals.of(number, to, bytes) {
            if before > 0 {
                self.transfer(number, to, from, before, mode)?;
            }
            return Err((before, errno));
        }
        let (to, from, len) = (to as u64, from as u64, bytes as u64);
        let mut transfer = Transfer { to, from, len, mode, done: 0 };
        self.ioctl(number, &mut transfer).map_err(|error| {
            (usize::try_from(transfer.done).unwrap_or(0), error.raw_os_error().unwrap_or(libc::EIO))
        })
    }

    /// Has writes to present pages noticed again, or says that they were written.
    pub fn protect(&self, start: usize, bytes: usize, on: bool) -> io::Result<()> {
        #[repr(C)]
        struct Protect {
            start: u64,
            len: u64,
            mode: u64,
        }
        let mut protect = Protect { start: start as u64, len: bytes as u64, mode: u64::from(on) };
        self.ioctl(IOC_WRITEPROTECT, &mut protect)
    }

    /// Wakes threads that wait for a page which is there.
    pub fn wake(&self, start: usize, bytes: usize) {
        let mut range = [start as u64, bytes as u64];
        let _ = self.ioctl(IOC_WAKE, &mut range);
    }

    /// Has accesses to absent pages raise SIGBUS; whether the kernel can.
    pub fn poison(&self, start: usize, bytes: usize) -> bool {
        #[repr(C)]
        struct Poison {
            start: u64,
            len: u64,
            mode: u64,
            updated: i64,
        }
        let mut poison = Poison { start: start as u64, len: bytes as u64, mode: 0, updated: 0 };
        self.features & POISON != 0 && self.ioctl(IOC_POISON, &mut poison).is_ok()
    }

    /// Finds pages, in memory or in swap, that were written since they were last protected, and
    /// protects them in the same step if `protect`. How many ranges were found, and where the scan
    /// ended.
    pub fn written(
        &self,
        start: usize,
        end: usize,
        protect: bool,
        found: &mut [Found],
    ) -> io::Result<(usize, usize)> {
        #[repr(C)]
        struct Scan {
            size: u64,
            flags: u64,
            start: u64,
            end: u64,
            walk_end: u64,
            vec: u64,
            vec_len: u64,
            max_pages: u64,
            category_inverted: u64,
            category_mask: u64,
            category_anyof_mask: u64,
            return_mask: u64,
        }
        let Some(pagemap) = self.pagemap.as_ref().filter(|_| self.protects) else {
            return Ok((0, end));
        };
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: if protect { SCAN_WP_MATCHING } else { 0 },
            start: start as u64,
            end: end as u64,
            walk_end: start as u64,
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN,
            // Asked for written ones alone, the kernel takes absent pages for such too.
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_WRITTEN,
        };
        // SAFETY: an open page map, the structure that this number names, and room for as many
        // ranges as it says.
        let rc = unsafe { libc::ioctl(pagemap.as_raw_fd(), IOC_PAGEMAP_SCAN, &mut scan) };
        match usize::try_from(rc) {
            Ok(count) => Ok((count, scan.walk_end as usize)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Copies a present page of a region that is written to; whether it was there. The program may
    /// discard it at this moment, and an access by the thread that handles faults would wait for
    /// itself.
    pub fn snapshot(&self, address: usize, into: &mut [u8]) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.read_exact_at(into, address as u64).is_ok())
    }

    /// Which pages of a run are there, in memory or in swap, a bit each. All, where that cannot be
    /// told.
    pub fn there(&self, start: usize, pages: usize) -> u32 {
        const IN_MEMORY_OR_SWAP: u64 = 3 << 62;
        const MOST: usize = 32;
        let Some(pagemap) = &self.pagemap else { return !0 };
        let mut entries = [0; MOST * 8];
        let entries = &mut entries[..pages.min(MOST) * 8];
        match pagemap.read_at(entries, (start / PAGE_BYTES * 8) as u64) {
            Ok(bytes) if bytes == entries.len() => {}
            _ => return !0,
        }
        let (entries, _) = entries.as_chunks();
        entries.iter().enumerate().fold(0, |there, (at, entry)| {
            let is_there = u64::from_ne_bytes(*entry) & IN_MEMORY_OR_SWAP != 0;
            there | u32::from(is_there) << at
        })
    }

    /// Whether nothing is at the address of a page. `false` where that cannot be told.
    pub fn is_empty(&self, address: usize) -> bool {
        self.there(address, 1) & 1 == 0
    }

    /// The addresses of faults that wait to be handled; how many were told.
    pub fn faults(&self, addresses: &mut [usize; Self::FAULTS]) -> usize {
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct Message {
            event: u8,
            padding: [u8; 7],
            flags: u64,
            address: u64,
            more: u64,
        }
        let none = Message { event: 0, padding: [0; 7], flags: 0, address: 0, more: 0 };
        let mut messages = [none; Self::FAULTS];
        let bytes = size_of_val(&messages);
        // SAFETY: an open userfaultfd and live room for so many bytes.
        let got =
            unsafe { libc::read(self.descriptor.as_raw_fd(), messages.as_mut_ptr().cast(), bytes) };
        let got = usize::try_from(got).unwrap_or(0) / size_of::<Message>();
        let mut told = 0;
        for message in messages[..got].iter().filter(|message| message.event == EVENT_PAGEFAULT) {
            addresses[told] = message.address as usize;
            told += 1;
        }
        told
    }

    /// Faults told at once.
    pub const FAULTS: usize = 16;
}

fn handshake(descriptor: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = [API, features, 0];
    // SAFETY: an open userfaultfd and the three words of its handshake.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), IOC_API, &mut api) } {
        0 => Ok(api[1]),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A new userfaultfd. Faults of the kernel's own accesses need a right that those of user mode do
/// not.
fn descriptor(kernel_too: bool) -> Result<OwnedFd, Missing> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mode = if kernel_too { 0 } else { USER_MODE_ONLY };
    // SAFETY: two flags.
    let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | mode) } as libc::c_int;
    let mut error = io::Error::last_os_error();
    if fd < 0 && error.raw_os_error() == Some(libc::EINVAL) && !kernel_too {
        // Before 5.11 the kernel knows no such mode.
        // SAFETY: as above.
        fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as libc::c_int;
        error = io::Error::last_os_error();
    }
    if fd < 0 {
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/dev/userfaultfd");
        if let Ok(device) = device {
            // SAFETY: the device's one command, which takes flags.
            fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, flags) };
        }
    }
    if fd >= 0 {
        // SAFETY: just made, and nobody else's.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    Err(Missing(match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no userfaultfd".into(),
        Some(libc::EPERM) if kernel_too => {
            "userfaultfd for faults of the kernel is not allowed here; \
             handle faults inline, give access to /dev/userfaultfd, or set \
             vm.unprivileged_userfaultfd=1"
                .into()
        }
        Some(libc::EPERM) => "userfaultfd is not allowed here (a seccomp filter, say)".into(),
        _ => format!("userfaultfd: {error}"),
    }))
}

fn refused(what: &str, error: io::Error) -> Missing {
    Missing(format!("userfaultfd: {what}: {error}"))
}

fn proc_self(path: &str) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_CLOEXEC).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Area;

    #[test]
    fn looking_at_a_page_that_was_discarded_neither_waits_nor_faults() {
        for kernel_too in [false, true] {
            let Ok(uffd) = Uffd::new(kernel_too, true) else {
                return println!("SKIP: no userfaultfd that tells written pages from others");
            };
            let area = Area::new(4).unwrap();
            uffd.register(area.start(), 4 * PAGE_BYTES).unwrap();
            let mut page = vec![0; PAGE_BYTES];
            assert!(!uffd.snapshot(area.at(1), &mut page));
        }
    }
}
