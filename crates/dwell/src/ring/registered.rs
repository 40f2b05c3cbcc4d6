// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory and a file that the kernel looks up once, and not for each request.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;

use super::Ring;
use super::entry::entry;
use crate::buffer::{Pool, PoolRef};
use crate::queue::{Action, Io};
use crate::seccomp;

/// What a ring has registered.
#[derive(Default)]
pub(super) struct Registered {
    file: Option<RawFd>,
    /// The kernel's table of pools, once there is one.
    pools: Option<Vec<Entered>>,
    /// Filters that the process had by then.
    filters: u32,
}

/// A pool in the table.
struct Entered {
    start: usize,
    bytes: usize,
    pool: PoolRef,
}

impl Entered {
    /// Whether a request's memory is part of the pool, and not of what came in a dropped pool's
    /// place.
    fn has(&self, memory: *mut u8, bytes: u32) -> bool {
        let before = (memory as usize).wrapping_sub(self.start);
        before < self.bytes && bytes as usize <= self.bytes - before && self.pool.is_used()
    }
}

impl Registered {
    /// A request as an entry that names what is registered.
    pub fn entry(&self, io: &Io) -> Entry {
        match self.file == Some(io.target()) {
            true => entry(io, Fd(0), self.buffer(io)).flags(Flags::FIXED_FILE),
            false => entry(io, Fd(io.target()), self.buffer(io)),
        }
    }

    fn buffer(&self, io: &Io) -> Option<u16> {
        let pools = self.pools.as_ref()?;
        if !matches!(io.action(), Action::Read | Action::Write) {
            return None;
        }
        let at = pools.iter().position(|pool| pool.has(io.memory(), io.bytes()));
        at.map(|at| at as u16)
    }
}

impl Ring {
    /// Pools that a ring can have registered.
    const MOST_POOLS: usize = 16;

    /// Has the kernel pin the memory of a pool now, and not for each request. It stays pinned until
    /// the ring is gone, or the pool is and another takes its place.
    ///
    /// # Errors
    /// What the kernel refuses, and more pools than a ring can have.
    pub fn register_pool(&mut self, pool: &Pool) -> io::Result<()> {
        if !self.usable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (memory, bytes) = pool.memory();
        let refused = |error| explained(error, bytes);
        let submitter = self.uring.submitter();
        let pools = match &mut self.registered.pools {
            Some(pools) => pools,
            none => {
                submitter.register_buffers_sparse(Self::MOST_POOLS as u32).map_err(refused)?;
                self.registered.filters = seccomp::filters();
                none.insert(Vec::new())
            }
        };
        if bytes == 0 || pools.iter().any(|other| other.pool.is_of(pool)) {
            return Ok(());
        }
        let unused = pools.iter().position(|other| !other.pool.is_used());
        let at = unused.unwrap_or(pools.len());
        if at == Self::MOST_POOLS {
            let what = format!("{at} pools are registered, as many as a ring can have");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
        }
        let iovec = libc::iovec { iov_base: memory.cast(), iov_len: bytes };
        // SAFETY: the pool's memory. Requests with it keep the pool, and no other names its place.
        let update = unsafe { submitter.register_buffers_update(at as u32, &[iovec], None) };
        update.map_err(refused)?;
        let entered = Entered { start: memory as usize, bytes, pool: pool.by_ref() };
        match pools.get_mut(at) {
            Some(place) => *place = entered,
            None => pools.push(entered),
        }
        Ok(())
    }

    /// Has the kernel look this descriptor up now, and not for each request. Its number may not
    /// become another file's as long as the ring lives.
    ///
    /// # Errors
    /// What the kernel refuses, and a second descriptor.
    pub fn register_file(&mut self, file: RawFd) -> io::Result<()> {
        if !self.usable() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        match self.registered.file {
            Some(other) if other == file => Ok(()),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => {
                self.uring.submitter().register_files(&[file])?;
                self.registered.filters = seccomp::filters();
                self.registered.file = Some(file);
                Ok(())
            }
        }
    }

    /// Gives back what is registered. The kernel ends a ring some time after it was closed, and
    /// keeps memory pinned and a file open until then.
    pub(super) fn unregister(&mut self) {
        let Registered { file, pools, filters } = std::mem::take(&mut self.registered);
        if file.is_none() && pools.is_none() {
            return;
        }
        // The kernel would wait for requests that are in flight. A filter that was installed since
        // may kill for the call.
        if self.backlog.requests > 0 || self.broken.is_some() || seccomp::filters() != filters {
            return;
        }
        if file.is_some() {
            let _ = self.uring.submitter().unregister_files();
        }
        if pools.is_some() {
            let _ = self.uring.submitter().unregister_buffers();
        }
    }
}

/// What the kernel means by its refusal of a pool of so many bytes.
fn explained(error: io::Error, bytes: usize) -> io::Error {
    let (kind, what) = match error.raw_os_error() {
        Some(libc::ENOMEM) => (
            io::ErrorKind::OutOfMemory,
            format!(
                "a pool of {bytes} bytes is more than this user may still lock; raise `ulimit -l`"
            ),
        ),
        Some(libc::EFAULT) => (
            io::ErrorKind::InvalidInput,
            format!("a pool of {bytes} bytes; the kernel registers at most 1 GiB at once"),
        ),
        Some(libc::EINVAL) => (
            io::ErrorKind::Unsupported,
            "registered buffers need Linux 5.19 or later; go on without".to_owned(),
        ),
        _ => return error,
    };
    io::Error::new(kind, what)
}

#[cfg(test)]
mod tests {
    use io_uring::opcode;

    use super::*;

    #[test]
    fn an_entry_names_what_is_registered_and_nothing_that_lies_half_outside() {
        let pool = Pool::new(2, 4096);
        let (start, bytes) = pool.memory();
        let entered = Entered { start: start as usize, bytes, pool: pool.by_ref() };
        let (file, pools) = (Some(7), Some(vec![entered]));
        let registered = Registered { file, pools, filters: 0 };
        let opcode_of = |action, at: usize, bytes| {
            // SAFETY: nobody serves it.
            let io = unsafe { Io::plain(action, 7, start.wrapping_add(at), bytes, 0) };
            registered.entry(&io).get_opcode() as u8
        };
        assert_eq!(opcode_of(Action::Read, 0, 4096), opcode::ReadFixed::CODE);
        assert_eq!(opcode_of(Action::Write, 4096, 4096), opcode::WriteFixed::CODE);
        assert_eq!(opcode_of(Action::Read, 4096, 4097), opcode::Read::CODE);
        assert_eq!(opcode_of(Action::Write, 8192, 1), opcode::Write::CODE);
        assert_eq!(opcode_of(Action::Read, usize::MAX, 2), opcode::Read::CODE);
        let buffer = pool.take();
        drop(pool);
        assert_eq!(opcode_of(Action::Read, 0, 4096), opcode::ReadFixed::CODE);
        drop(buffer);
        assert_eq!(opcode_of(Action::Read, 0, 4096), opcode::Read::CODE);
    }

    #[test]
    fn the_kernels_reason_to_refuse_a_pool_is_said_in_words() {
        let said = |errno| explained(io::Error::from_raw_os_error(errno), 4096);
        assert!(said(libc::ENOMEM).to_string().contains("ulimit -l"));
        assert!(said(libc::EFAULT).to_string().contains("at most 1 GiB"));
        assert_eq!(said(libc::EINVAL).kind(), io::ErrorKind::Unsupported);
        assert_eq!(said(libc::EPERM).raw_os_error(), Some(libc::EPERM));
    }
}
