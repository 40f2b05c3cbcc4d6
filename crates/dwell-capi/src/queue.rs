// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many requests in flight from one thread.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dwell::buffer::{IoBuf, IoBufMut};
use dwell::clock;
use dwell::pipeline::{Finished, Pipeline};

use crate::failure::{Failure, call};
use crate::file::{File, checked, opened};

/// Requests in flight on one file. It belongs to the thread that made it.
pub struct Queue {
    /// Dropped before `file`, to which it refers.
    pipeline: Pipeline<'static, Carried>,
    file: Arc<File>,
    depth: u32,
    thread: u64,
}

/// One finished request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Completion {
    /// What was passed with the request.
    pub user: *mut c_void,
    /// Bytes transferred (0 for a sync), or a negative error number such as -EIO.
    pub result: i64,
}

/// Memory of the caller's, lent until its request's completion is handed out.
struct Lent {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the caller of the queue promised that the memory stays until the completion.
unsafe impl Send for Lent {}
// SAFETY: as above; it does not move with this.
unsafe impl IoBuf for Lent {
    fn data(&self) -> (*const u8, usize) {
        (self.start, self.bytes)
    }
}

// SAFETY: as above; C's memory counts as initialised.
unsafe impl IoBufMut for Lent {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.start, self.bytes)
    }
}

/// A word of the caller's that is only handed back.
struct User(*mut c_void);

// SAFETY: nobody follows it.
unsafe impl Send for User {}

type Carried = (Lent, User);

/// A number for the calling thread that no other has, or had.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // Without a destructor it can be read as long as the thread runs.
        static THIS: Cell<u64> = const { Cell::new(0) };
    }
    THIS.with(|this| {
        if this.get() == 0 {
            this.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        this.get()
    })
}

impl Queue {
    fn full(&self) -> Failure {
        let path = self.file.file.path().display();
        let depth = self.depth;
        let what =
            format!("{path}: {depth} requests are in flight; take some with dwell_queue_wait");
        Failure::new(libc::EAGAIN, what)
    }

    fn refused(&self, error: dwell::Error) -> Failure {
        if self.pipeline.has_room() { error.into() } else { self.full() }
    }

    fn transfer(
        &mut self,
        submit: impl FnOnce(&mut Pipeline<'static, Carried>, Carried) -> Result<(), dwell::Error>,
        (start, bytes): (*const c_void, usize),
        user: *mut c_void,
    ) -> Result<c_int, Failure> {
        let bytes = checked(start, bytes)?;
        if !self.pipeline.has_room() {
            return Err(self.full());
        }
        let lent = Lent { start: start.cast_mut().cast(), bytes };
        match submit(&mut self.pipeline, (lent, User(user))) {
            Ok(()) => Ok(0),
            Err(error) => Err(self.refused(error)),
        }
    }

    fn take(
        &mut self,
        min: usize,
        out: &mut dyn FnMut(Completion),
        max: usize,
        until: Option<u64>,
    ) {
        let min = min.min(max).min(self.pipeline.len());
        for taken in 0..max {
            let next = match until {
                _ if taken >= min => self.pipeline.try_next(),
                Some(0) => self.pipeline.try_next(),
                Some(at) => {
                    let left_ns = at.saturating_sub(clock::now());
                    self.pipeline.next_within(Duration::from_nanos(left_ns))
                }
                None => self.pipeline.next(),
            };
            let Some(finished) = next else { return };
            out(completion(finished));
        }
    }
}

fn completion(finished: Finished<Carried>) -> Completion {
    let Finished { result, buffer, given_up, .. } = finished;
    // SAFETY: of what was lent, only the number that the program gave with it is looked at.
    let carried = buffer.or_else(|| given_up.map(|given_up| unsafe { given_up.into_inner() }));
    let result = match result {
        Ok(bytes) => bytes as i64,
        Err(error) => -i64::from(Failure::from(error).errno()),
    };
    Completion { user: carried.map_or(std::ptr::null_mut(), |(_, User(user))| user), result }
}

/// # Safety
/// `queue` is NULL, or came from dwell_queue_create, was not closed, and no other call uses it, for
/// as long as `'a`.
unsafe fn own<'a>(queue: *mut Queue) -> Result<&'a mut Queue, Failure> {
    if queue.is_null() {
        return Err(Failure::null("queue"));
    }
    // SAFETY: open; which thread made it never changes.
    let thread = unsafe { (*queue).thread };
    if thread != this_thread() {
        return Err(Failure::new(libc::EPERM, "a queue belongs to the thread that made it"));
    }
    // SAFETY: as the caller promised.
    Ok(unsafe { &mut *queue })
}

/// Makes a queue for several requests in flight on a file, for the calling thread alone. A thread
/// may have several.
///
/// file   stays open underneath until the queue is closed
/// depth  requests in flight at most, 1 to 4096
/// queue  receives the queue; close it with dwell_queue_close
///
/// Returns 0, or -1 with errno set: EINVAL for a NULL argument or a depth out of range, ENOMEM or
/// EMFILE where the system has no room for it.
///
/// # Safety
/// The pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_create(
    file: *mut File,
    depth: u32,
    queue: *mut *mut Queue,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { opened(file)? };
        if queue.is_null() {
            return Err(Failure::null("queue"));
        }
        if !(1..=4096).contains(&depth) {
            return Err(Failure::invalid(format!("depth is {depth}; a queue holds 1 to 4096")));
        }
        // SAFETY: it came from Arc::into_raw in `dwell_open` and is open.
        let file = unsafe {
            Arc::increment_strong_count(file.cast_const());
            Arc::from_raw(file.cast_const())
        };
        // SAFETY: what the Arc holds does not move, and the pipeline is dropped before the Arc.
        let pipeline = unsafe { &*Arc::as_ptr(&file) }.file.pipeline(depth)?;
        let made = Box::new(Queue { pipeline, file, depth, thread: this_thread() });
        // SAFETY: not NULL, so valid.
        unsafe { queue.write(Box::into_raw(made)) };
        Ok(0)
    })
}

/// Puts a read into the queue. It is sent by dwell_queue_submit or by the next wait.
///
/// The memory belongs to the request until its completion has been handed out, or the queue was
/// closed: it must stay where it is, and must not be read or written meanwhile.
///
/// buffer  receives the data; with DWELL_DIRECT a multiple of dwell_info.alignment
/// bytes   at most so many, up to 2 GiB less a page; with DWELL_DIRECT a multiple as well
/// offset  from where in the file, in bytes; with DWELL_DIRECT a multiple as well
/// user    comes back with the completion
///
/// Returns 0, or -1 with errno set: EAGAIN when as many requests are in flight as the queue holds,
/// EINVAL for a bad argument or what is misaligned, EPERM in another thread than the queue's.
///
/// # Safety
/// The queue is NULL or open and no other call uses it; the memory as told above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_read(
    queue: *mut Queue,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
    user: *mut c_void,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let queue = unsafe { own(queue)? };
        let read = |pipeline: &mut Pipeline<'static, Carried>, lent| {
            pipeline.read_at(lent, offset).map(drop).map_err(|(error, _)| error)
        };
        queue.transfer(read, (buffer, bytes), user)
    })
}

/// Puts a write into the queue. It is sent by dwell_queue_submit or by the next wait. Requests in
/// flight are carried out in any order.
///
/// The memory belongs to the request until its completion has been handed out, or the queue was
/// closed: it must stay where it is, and must not be written meanwhile.
///
/// buffer  the data; with DWELL_DIRECT a multiple of dwell_info.alignment
/// bytes   so many, up to 2 GiB less a page; with DWELL_DIRECT a multiple as well
/// offset  to where in the file, in bytes; with DWELL_DIRECT a multiple as well
/// user    comes back with the completion
///
/// Returns as dwell_queue_read. A file opened without DWELL_WRITE gives a completion with -EBADF.
///
/// # Safety
/// The queue is NULL or open and no other call uses it; the memory as told above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_write(
    queue: *mut Queue,
    buffer: *const c_void,
    bytes: usize,
    offset: u64,
    user: *mut c_void,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let queue = unsafe { own(queue)? };
        let write = |pipeline: &mut Pipeline<'static, Carried>, lent| {
            pipeline.write_at(lent, offset).map(drop).map_err(|(error, _)| error)
        };
        queue.transfer(write, (buffer, bytes), user)
    })
}

/// Puts a sync into the queue: it makes those writes durable that completed before.
///
/// data_only  not 0: less the metadata that no read needs, as fdatasync(2)
/// user       comes back with the completion
///
/// Returns as dwell_queue_read.
///
/// # Safety
/// The queue is NULL or open and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_sync(
    queue: *mut Queue,
    data_only: c_int,
    user: *mut c_void,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let queue = unsafe { own(queue)? };
        let sync = |pipeline: &mut Pipeline<'static, Carried>, carried| {
            let put = pipeline.sync_carrying(data_only != 0, carried);
            put.map(drop).map_err(|(error, _)| error)
        };
        queue.transfer(sync, (std::ptr::null(), 0), user)
    })
}

/// Sends what was put into the queue and not sent yet, without waiting.
///
/// Returns 0, or -1 with errno set: EINVAL for NULL, EPERM in another thread than the queue's.
///
/// # Safety
/// The queue is NULL or open and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_submit(queue: *mut Queue) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { own(queue)? }.pipeline.flush();
        Ok(0)
    })
}

/// Sends what is unsent and takes completions, waiting for them as the policy decided.
///
/// min         so many are waited for, or all that are in flight if those are fewer; 0 only looks
/// out         receives the completions
/// max         room in out; at least 1
/// timeout_ns  longest wait in nanoseconds; 0 only looks, a negative one waits without end
///
/// Returns the number of completions taken, fewer than min only when the time has passed, or -1
/// with errno set: EINVAL for a bad argument, EPERM in another thread than the queue's. A signal
/// does not end the wait. In a forked child every request of the parent's comes back with
/// -ECANCELED, and the parent keeps it.
///
/// # Safety
/// The queue is NULL or open and no other call uses it; out has room for max completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_wait(
    queue: *mut Queue,
    min: u32,
    out: *mut Completion,
    max: u32,
    timeout_ns: i64,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let queue = unsafe { own(queue)? };
        if out.is_null() {
            return Err(Failure::null("out"));
        }
        if max == 0 || min > max {
            let what = format!("min is {min}, max is {max}; max is at least 1 and not below min");
            return Err(Failure::invalid(what));
        }
        let until = match timeout_ns {
            0 => Some(0),
            span => u64::try_from(span).ok().map(|span| clock::now().saturating_add(span)),
        };
        // No more than a queue's depth can come, and that fits.
        let mut taken = 0;
        let mut put = |completion| {
            // SAFETY: there is room for max of them.
            unsafe { out.add(taken).write(completion) };
            taken += 1;
        };
        queue.take(min as usize, &mut put, max.min(8192) as usize, until);
        Ok(taken as c_int)
    })
}

/// Waits until all requests of the queue are completed, however long that takes, and closes it.
/// Afterwards all memory is the caller's again. Another thread than the queue's may close it only
/// once nothing is in flight and no completion is left to be taken.
///
/// Returns 0, or -1 with errno set: EINVAL for NULL; EPERM in another thread while something is in
/// flight, with the queue still open; else what the first request failed of whose completion was
/// not taken, with the queue closed.
///
/// # Safety
/// The queue is NULL or open, and no other call uses it or follows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_queue_close(queue: *mut Queue) -> c_int {
    call(-1, || {
        if queue.is_null() {
            return Err(Failure::null("queue"));
        }
        // SAFETY: open, and used by this call only.
        let idle = unsafe { (*queue).pipeline.is_empty() };
        if !idle {
            // SAFETY: as above.
            unsafe { own(queue)? };
        }
        // SAFETY: it came from Box::into_raw in `dwell_queue_create`, and is not used again.
        let mut queue = unsafe { Box::from_raw(queue) };
        let mut failed = None;
        while let Some(finished) = queue.pipeline.next() {
            failed = failed.or(finished.result.err());
        }
        failed.map_or(Ok(0), |error| Err(error.into()))
    })
}
