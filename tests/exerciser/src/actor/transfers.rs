// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes by every call that there is, alone and in batches.

use io_uring::{opcode, types};

use super::Actor;
use super::calls::{fd, of, of_negative};
use super::memory::Arena;
use super::queues::Request;
use crate::operation::{BatchBy, By, Part, Transfer};
use crate::pattern;
use crate::record::{SPILLED, Seen};

impl Actor {
    pub(super) fn transfer(&mut self, transfer: &Transfer) -> Seen {
        let fd = fd(transfer.slot);
        let length = transfer.length();
        let memory = match transfer.claim {
            0 => self.memory.piece(0, length, transfer.skew.into()),
            _ => self.memory.last(length),
        };
        match transfer.write {
            true => pattern::fill(memory, transfer.seed),
            false => memory.fill(0x3c),
        }
        let start = memory.as_mut_ptr();
        let count = if transfer.claim > 0 { transfer.claim as usize } else { length };
        let seen = self.request(transfer, fd, start, count);
        let mut seen = seen;
        // SAFETY: the piece again, which nobody else uses.
        let memory = unsafe { std::slice::from_raw_parts(start, length) };
        if !transfer.write && seen.ret > 0 {
            let read = &memory[..length.min(seen.ret as usize)];
            seen.digest = pattern::digest(read);
            self.dump(read);
        }
        if transfer.claim == 0 && Arena::is_spilled(start, length) {
            seen.more |= SPILLED;
        }
        seen
    }

    fn request(&mut self, transfer: &Transfer, fd: i32, start: *mut u8, count: usize) -> Seen {
        let Transfer { write, at, by, rwf, .. } = *transfer;
        let mut pieces = Vec::new();
        let mut place = start;
        for bytes in &transfer.pieces {
            let iov_len = *bytes as usize;
            pieces.push(libc::iovec { iov_base: place.cast(), iov_len });
            // SAFETY: within the piece of memory, whose length is the sum.
            place = unsafe { place.add(iov_len) };
        }
        let (iov, iovs) = (pieces.as_ptr(), pieces.len() as i32);
        let to = start.cast::<libc::c_void>();
        let from = start.cast_const().cast::<libc::c_void>();
        // SAFETY: memory of at least `length` bytes behind `start`; a count beyond that is the
        // script's wish, and what lies behind is nobody's.
        unsafe {
            match (by, at, write) {
                (By::Plain | By::Wide, None, false) => of(libc::read(fd, to, count) as i64),
                (By::Plain | By::Wide, None, true) => of(libc::write(fd, from, count) as i64),
                (By::Plain, Some(at), false) => of(libc::pread(fd, to, count, at) as i64),
                (By::Plain, Some(at), true) => of(libc::pwrite(fd, from, count, at) as i64),
                (By::Wide, Some(at), false) => of(libc::pread64(fd, to, count, at) as i64),
                (By::Wide, Some(at), true) => of(libc::pwrite64(fd, from, count, at) as i64),
                (By::Vector, None, false) => of(libc::readv(fd, iov, iovs) as i64),
                (By::Vector, None, true) => of(libc::writev(fd, iov, iovs) as i64),
                (By::Vector, Some(at), false) => of(libc::preadv(fd, iov, iovs, at) as i64),
                (By::Vector, Some(at), true) => of(libc::pwritev(fd, iov, iovs, at) as i64),
                (By::Vector2, at, false) => {
                    of(libc::preadv2(fd, iov, iovs, at.unwrap_or(-1), rwf) as i64)
                }
                (By::Vector2, at, true) => {
                    of(libc::pwritev2(fd, iov, iovs, at.unwrap_or(-1), rwf) as i64)
                }
                (By::Raw, None, false) => of(libc::syscall(libc::SYS_read, fd, to, count)),
                (By::Raw, None, true) => of(libc::syscall(libc::SYS_write, fd, from, count)),
                (By::Raw, Some(at), false) => {
                    of(libc::syscall(libc::SYS_pread64, fd, to, count, at))
                }
                (By::Raw, Some(at), true) => {
                    of(libc::syscall(libc::SYS_pwrite64, fd, from, count, at))
                }
                (By::Uring, at, false) => {
                    let entry = opcode::Read::new(types::Fd(fd), start, count as u32);
                    let entry = entry.offset(at.unwrap_or(-1) as u64).rw_flags(rwf).build();
                    of_negative(self.queues.ring_one(entry))
                }
                (By::Uring, at, true) => {
                    let entry = opcode::Write::new(types::Fd(fd), start, count as u32);
                    let entry = entry.offset(at.unwrap_or(-1) as u64).rw_flags(rwf).build();
                    of_negative(self.queues.ring_one(entry))
                }
                (By::Aio, at, write) => {
                    let (at, bytes) = (at.unwrap_or(0), count as u32);
                    let request = Request { fd, write, at, memory: start, bytes };
                    of_negative(self.queues.aio_all(&[request], || ())[0])
                }
            }
        }
    }

    pub(super) fn batch(
        &mut self,
        slot: u8,
        by: BatchBy,
        parts: &[Part],
        beside: Option<u64>,
    ) -> Seen {
        let fd = fd(slot);
        let mut at = 0;
        let mut requests = Vec::new();
        for part in parts {
            let memory = self.memory.piece(at, part.bytes as usize, 0);
            match part.write {
                true => pattern::fill(memory, part.seed),
                false => memory.fill(0x3c),
            }
            at = at.next_multiple_of(4096) + memory.len() + 1024;
            let (memory, bytes) = (memory.as_mut_ptr(), part.bytes);
            requests.push(Request { fd, write: part.write, at: part.at as i64, memory, bytes });
        }
        let mut byte = 0u8;
        let mut read = -2;
        let plain = || {
            if let Some(at) = beside {
                // SAFETY: a byte of memory.
                read = unsafe { libc::pread(fd, (&raw mut byte).cast(), 1, at as i64) };
            }
        };
        let results = match by {
            BatchBy::Aio => self.queues.aio_all(&requests, plain),
            BatchBy::Uring => {
                let entries: Vec<_> = (requests.iter())
                    .map(|one| match one.write {
                        true => opcode::Write::new(types::Fd(fd), one.memory, one.bytes)
                            .offset(one.at as u64)
                            .build(),
                        false => opcode::Read::new(types::Fd(fd), one.memory, one.bytes)
                            .offset(one.at as u64)
                            .build(),
                    })
                    .collect();
                self.queues.ring_all(&entries, plain)
            }
        };
        // A request may come back with less than was asked for; programs ask for the rest.
        let finished = |request: &Request, done: i32| {
            let mut done = done;
            while done >= 0 && (done as u32) < request.bytes {
                let (at, left) =
                    (request.at + i64::from(done), (request.bytes - done as u32) as usize);
                // SAFETY: the rest of the request's memory.
                let more = unsafe {
                    let memory = request.memory.add(done as usize);
                    match request.write {
                        true => libc::pwrite(request.fd, memory.cast(), left, at),
                        false => libc::pread(request.fd, memory.cast(), left, at),
                    }
                };
                if more <= 0 {
                    break;
                }
                done += more as i32;
            }
            done
        };
        let results: Vec<i32> =
            (requests.iter().zip(results)).map(|(request, done)| finished(request, done)).collect();
        // What every one returned, and what was read.
        let mut told = Vec::new();
        let mut seen = Seen::ok(0);
        for (request, result) in requests.iter().zip(&results) {
            match *result {
                ..0 => seen.errno = -result,
                _ => seen.ret += 1,
            }
            told.extend(i64::from(*result).to_le_bytes());
            if !request.write && *result > 0 {
                // SAFETY: what was just read into memory of the arena.
                told.extend(unsafe {
                    std::slice::from_raw_parts(request.memory, *result as usize)
                });
            }
            if Arena::is_spilled(request.memory, request.bytes as usize) {
                seen.more |= SPILLED;
            }
        }
        if read >= 0 {
            told.extend([read as u8, byte]);
        }
        seen.digest = pattern::digest(&told);
        self.dump(&told);
        if seen.ret == 0 && seen.errno != 0 { Seen::error(seen.errno) } else { seen }
    }
}
