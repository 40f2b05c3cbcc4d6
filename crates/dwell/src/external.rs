// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that somebody else opened: one source for all descriptors of a device.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use dwell_policy::{Kind, Route, Routes};

use crate::kernel::{self, KernelQueue};
use crate::parameters::DeviceParameters;
use crate::queue::{Action, Io};
use crate::ring::SpinMethod;
use crate::source::Source;

/// All descriptors of one device that are read and written in one manner, direct or buffered. None
/// of them belongs to it: each request names its own as [`Io::target`], and one that was closed
/// meanwhile fails as the system call would.
///
/// Requests are made by bare system calls, and nothing here touches their memory: where it is not
/// what their maker said, the kernel answers `EFAULT`. Nor is anything aligned for direct I/O: the
/// kernel answers `EINVAL`.
#[derive(Debug)]
pub struct External {
    method: SpinMethod,
    direct: bool,
    polled: AtomicBool,
    no_cache_first: AtomicBool,
}

impl External {
    /// The direct or the buffered descriptors of a device of which so much is known.
    pub fn new(parameters: &DeviceParameters, direct: bool) -> Self {
        External {
            method: parameters.method,
            direct,
            polled: AtomicBool::new(direct && parameters.polled),
            no_cache_first: AtomicBool::new(direct),
        }
    }
}

impl Source for External {
    type Queue = KernelQueue;

    fn queue(&self, depth: u32) -> io::Result<KernelQueue> {
        KernelQueue::own(depth, self.method)
    }

    fn call_queue(&self) -> io::Result<KernelQueue> {
        Ok(KernelQueue::of_thread(self.method))
    }

    #[inline]
    fn routes(&self) -> Routes {
        kernel::offered(self.polled.load(Ordering::Relaxed))
    }

    #[inline]
    fn routes_alone(&self, kind: Kind) -> Routes {
        kernel::alone(self.routes(), kind, !self.direct, !self.caches())
    }

    #[inline]
    fn call(&self, io: &Io) -> i32 {
        call(io, 0)
    }

    #[inline]
    fn caches(&self) -> bool {
        !self.no_cache_first.load(Ordering::Relaxed)
    }

    fn cached(&self, io: &Io) -> Option<i32> {
        kernel::found_in_cache(call(io, libc::RWF_NOWAIT), &self.no_cache_first)
    }

    fn ends(&self, io: &Io, result: i32) -> bool {
        // SAFETY: whoever made the request answers for its target.
        let status = unsafe { status(io.target()) };
        status.is_ok_and(|status| {
            status.st_mode & libc::S_IFMT == libc::S_IFREG
                && io.offset() + result as u64 >= status.st_size as u64
        })
    }

    /// As far as the request says how long its file is.
    #[inline]
    fn grows(&self, io: &Io) -> bool {
        io.action().kind() == Kind::Write
            && io.offset().saturating_add(u64::from(io.bytes())) > io.length()
    }

    fn refused(&self, route: Route) {
        if route == Route::Polled {
            self.polled.store(false, Ordering::Relaxed);
        }
    }

    /// None of its own.
    fn target(&self) -> i32 {
        -1
    }

    fn bytes(&self) -> io::Result<u64> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "many descriptors have no one length"))
    }
}

/// What the system says of an open descriptor.
///
/// # Errors
/// What it refuses.
///
/// # Safety
/// The number is the caller's to use, or that of whoever asks the caller. One that is not open is
/// refused.
pub unsafe fn status(descriptor: i32) -> io::Result<libc::stat> {
    // SAFETY: a zeroed stat is a valid buffer for fstat.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer; a number that is no descriptor is refused.
    match unsafe { libc::fstat(descriptor, &mut status) } {
        0 => Ok(status),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where a descriptor stands, in bytes; `None` where it stands nowhere: what cannot be read by
/// offset is none of a device's.
///
/// # Safety
/// As [`status`].
#[inline]
pub unsafe fn position(descriptor: i32) -> Option<u64> {
    // SAFETY: asks where a descriptor stands and moves nothing.
    let at = unsafe { libc::syscall(libc::SYS_lseek, descriptor, 0, libc::SEEK_CUR) };
    u64::try_from(at).ok()
}

/// Moves a descriptor, as a read or write where it stands does. A ring's request cannot do that:
/// the kernel forgets to move what completes later. So it is made by offset, and this follows;
/// nobody else may move what is open there meanwhile.
///
/// # Safety
/// As [`status`].
pub unsafe fn stand_at(descriptor: i32, offset: u64) {
    // SAFETY: moves a descriptor, which touches no memory.
    unsafe { libc::syscall(libc::SYS_lseek, descriptor, offset, libc::SEEK_SET) };
}

/// One system call, once.
#[inline]
fn call(io: &Io, flags: libc::c_int) -> i32 {
    let (fd, offset) = (io.target(), io.offset());
    // SAFETY: the kernel checks the memory that the request names; whoever made the request
    // promised that nothing else uses it until this returns.
    let done = unsafe {
        match io.action() {
            Action::Sync => libc::syscall(libc::SYS_fsync, fd),
            Action::DataSync => libc::syscall(libc::SYS_fdatasync, fd),
            Action::Read | Action::Write if flags == 0 => {
                let (memory, bytes) = (io.memory(), io.bytes() as usize);
                let number = match io.action() {
                    Action::Read => libc::SYS_pread64,
                    _ => libc::SYS_pwrite64,
                };
                libc::syscall(number, fd, memory, bytes, offset)
            }
            action => {
                let alone = libc::iovec { iov_base: io.memory().cast(), iov_len: io.bytes() as _ };
                let (iovecs, pieces) = match io.pieces() {
                    0 => (&raw const alone, 1),
                    pieces => (io.iovecs(), pieces),
                };
                // What asks for no flag needs no call that may be missing, or forbidden.
                let number = match (action.kind(), flags) {
                    (Kind::Write, 0) => libc::SYS_pwritev,
                    (Kind::Write, _) => libc::SYS_pwritev2,
                    (_, 0) => libc::SYS_preadv,
                    _ => libc::SYS_preadv2,
                };
                // The offset goes in two words; 64-bit kernels read it all from the first.
                libc::syscall(number, fd, iovecs, pieces, offset, offset >> 32, flags)
            }
        }
    };
    match done {
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        done => done as i32,
    }
}
