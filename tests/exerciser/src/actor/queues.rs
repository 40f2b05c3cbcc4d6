// SPDX-License-Identifier: MIT OR Apache-2.0
//! An io_uring and a context of libaio of an actor's own.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, squeue};

use super::{fail, out_of_the_way};

/// One request, whatever carries it out.
pub struct Request {
    pub fd: i32,
    pub write: bool,
    pub at: i64,
    pub memory: *mut u8,
    pub bytes: u32,
}

#[derive(Default)]
pub struct Queues {
    ring: Option<IoUring>,
    context: Option<u64>,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Control {
    data: u64,
    key: u32,
    rwf: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    more: i64,
}

const DEPTH: usize = 16;

impl Queues {
    fn ring(&mut self) -> &mut IoUring {
        self.ring.get_or_insert_with(|| {
            let first = IoUring::new(DEPTH as u32).unwrap_or_else(|_| fail("io_uring_setup"));
            // SAFETY: a number.
            let fd = unsafe { libc::dup(first.as_raw_fd()) };
            let high = out_of_the_way(fd);
            // SAFETY: the descriptor is a duplicate of the ring that has these parameters.
            unsafe { IoUring::from_fd(high, first.params().clone()) }
                .unwrap_or_else(|_| fail("mapping a ring"))
        })
    }

    /// Sends entries and returns their results by place, without waiting in between.
    pub fn ring_all(&mut self, entries: &[squeue::Entry], beside: impl FnOnce()) -> Vec<i32> {
        let ring = self.ring();
        for (place, entry) in entries.iter().enumerate() {
            let entry = entry.clone().user_data(place as u64);
            // SAFETY: what the entry names lives until all completions are there.
            unsafe { ring.submission().push(&entry) }.unwrap_or_else(|_| fail("a full ring"));
        }
        if ring.submit().is_err() {
            fail("io_uring_enter");
        }
        beside();
        let mut results = vec![i32::MIN; entries.len()];
        let mut missing = entries.len();
        while missing > 0 {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => fail("io_uring_enter"),
                _ => {}
            }
            for completion in ring.completion() {
                results[completion.user_data() as usize] = completion.result();
                missing -= 1;
            }
        }
        results
    }

    /// One entry and its result.
    pub fn ring_one(&mut self, entry: squeue::Entry) -> i32 {
        self.ring_all(&[entry], || ())[0]
    }

    /// As [`Queues::ring_all`], by libaio.
    pub fn aio_all(&mut self, requests: &[Request], beside: impl FnOnce()) -> Vec<i32> {
        let context = *self.context.get_or_insert_with(|| {
            let mut context = 0u64;
            // SAFETY: a word for the context.
            if unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut context) } != 0 {
                fail("io_setup");
            }
            context
        });
        let controls: Vec<Control> = (requests.iter().enumerate())
            .map(|(place, request)| Control {
                data: place as u64,
                opcode: u16::from(request.write),
                fd: request.fd as u32,
                buffer: request.memory as u64,
                bytes: request.bytes.into(),
                offset: request.at,
                ..Control::default()
            })
            .collect();
        let mut results = vec![i32::MIN; requests.len()];
        let mut flying = 0;
        for (place, control) in controls.iter().enumerate() {
            let mut list = [&raw const *control];
            // SAFETY: one control block that lives until its event is taken.
            let sent = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()) };
            match sent {
                1 => flying += 1,
                _ => results[place] = -super::calls::errno(),
            }
        }
        beside();
        while flying > 0 {
            let mut event = Event::default();
            // SAFETY: room for one event, and no limit.
            let taken = unsafe {
                let limit = std::ptr::null::<libc::timespec>();
                libc::syscall(libc::SYS_io_getevents, context, 1, 1, &raw mut event, limit)
            };
            if taken == 1 {
                results[event.data as usize] = event.result as i32;
                flying -= 1;
            } else if super::calls::errno() != libc::EINTR {
                fail("io_getevents");
            }
        }
        results
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        if let Some(context) = self.context {
            // SAFETY: a context of ours with nothing in flight.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
    }
}
