// SPDX-License-Identifier: MIT OR Apache-2.0
//! One request of the program: to the engine, or straight on.
#![allow(unsafe_code)]

use std::ffi::c_void;

use dwell::external;
use dwell::file::MAX_TRANSFER_BYTES;
use dwell::queue::{Action, Io};
use dwell::source::Source;
use dwell::stats::Settled;
use dwell::{File, Kind, clock};
use libc::{c_int, iovec};

use crate::engine::Server;
use crate::inside::{self, Seldom};
use crate::raw::set_errno;
use crate::stack::{self, STACK_BYTES};
use crate::table::{self, Moving, Treatment, Word};
use crate::{account, engine, process, raw, served};

/// Memory of a request, as the program named it. Nobody but the kernel looks at it.
#[derive(Clone, Copy)]
pub enum Memory {
    /// One piece.
    Plain(*mut c_void, usize),
    /// An array of so many pieces.
    Pieces(*const iovec, c_int),
    /// None.
    Nothing,
}

/// Most pieces of a request that is decided.
const MOST_PIECES: usize = 64;
const NO_PIECE: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Lets a request of the program go to the engine or, by `straight`, to the kernel. `at` is its
/// offset; `None` for where the descriptor stands.
#[inline(always)]
pub fn serve(
    fd: c_int,
    action: Action,
    memory: Memory,
    at: Option<u64>,
    straight: impl Fn() -> isize,
) -> isize {
    let word = table::word(fd);
    if word.treatment() == Treatment::Pass {
        return passed(straight);
    }
    // The call is made here if it can be: after a system call many CPUs mispredict each return.
    if let Some(settled) = settled(fd, word, action.kind(), memory, at.is_none()) {
        let result = straight();
        settled.done(if result < 0 { -raw::errno() } else { result as i32 });
        return result;
    }
    serve_decided(fd, word, action, memory, at, &straight)
}

/// Settles a request of which only the call is left to make; `None` for one that has to be decided
/// or timed.
#[inline(never)]
fn settled(
    fd: c_int,
    word: Word,
    kind: Kind,
    memory: Memory,
    moves: bool,
) -> Option<Settled<'static>> {
    let decides = word.treatment() == Treatment::Decide && !(kind == Kind::Write && word.copies());
    if !decides || inside::is_inside() || !process::is_on() || !inside::is_ready() {
        return None;
    }
    let bytes = bytes_of(memory);
    let settled = match engine::server_of(word)? {
        Server::Device(file) => match file.trusts(kind, table::heat(fd)) {
            None if !process::is_shadow() => file.repeats(kind, bytes),
            trusted => trusted,
        },
        Server::Served(file) => file.repeats(kind, bytes),
    }?;
    if moves {
        table::about_to_move(fd, word, inside::thread_number());
    }
    Some(settled)
}

/// The bytes of a request; 0 where only a look at the program's array would tell.
fn bytes_of(memory: Memory) -> usize {
    match memory {
        Memory::Plain(_, bytes) => bytes,
        Memory::Pieces(..) | Memory::Nothing => 0,
    }
}

/// Makes a call that is not decided, and counts it.
#[inline(always)]
pub fn passed(straight: impl Fn() -> isize) -> isize {
    let result = straight();
    account::note(result);
    result
}

/// Makes a call on a device whose files are not open yet.
fn timed(word: Word, straight: &dyn Fn() -> isize) -> isize {
    if !word.direct() && !Seldom::Timed.is_due() {
        return straight();
    }
    let started = clock::now();
    let result = straight();
    engine::took(word, result, clock::now() - started);
    result
}

fn serve_decided(
    fd: c_int,
    mut word: Word,
    action: Action,
    memory: Memory,
    at: Option<u64>,
    straight: &dyn Fn() -> isize,
) -> isize {
    if inside::is_inside() || !process::is_on() {
        return straight();
    }
    if word.treatment() == Treatment::Unknown && !engine::leaves_alone() {
        word = inside::uncancelled(|| engine::classify(fd, None));
    }
    if at.is_none() && word.treatment() != Treatment::Pass {
        table::about_to_move(fd, word, inside::thread_number());
    }
    let server = match word.treatment() {
        Treatment::Decide if action.kind() == Kind::Write && word.copies() => None,
        Treatment::Decide => match engine::server_of(word) {
            None if engine::is_worth_opening(word) => inside::uncancelled(|| engine::open(word)),
            None if action.kind() != Kind::Sync => return passed(|| timed(word, straight)),
            open => open,
        },
        _ => None,
    };
    let Some(server) = server else { return passed(straight) };
    if inside::is_ready()
        && let Some(result) = untouched(server, fd, action.kind(), memory, straight)
    {
        return returned(result);
    }
    inside::cancellation_point();
    let is_served = matches!(server, Server::Served(_));
    let request = Request { fd, word, action, memory, at, is_served };
    let decided = || match server {
        Server::Device(file) => request.decided(file, straight),
        Server::Served(file) => request.decided(file, straight),
    };
    // A thread's first request makes what all of them need, and may come on a small signal stack.
    let done = inside::uncancelled(|| match inside::has_served() {
        true => decided(),
        false => {
            let done = stack::on_its_own(STACK_BYTES, decided).flatten();
            inside::now_has_served();
            done
        }
    });
    match done {
        Some(result) => result,
        None => passed(straight),
    }
}

/// Serves by `straight` what is expected to be in the page cache, and what the policy leaves to the
/// kernel whatever came before: neither takes more than a look.
#[inline]
fn untouched(
    server: Server,
    fd: c_int,
    kind: Kind,
    memory: Memory,
    straight: &dyn Fn() -> isize,
) -> Option<i32> {
    let call = || match straight() {
        -1 => -raw::errno(),
        done => done as i32,
    };
    if kind == Kind::Read
        && let Server::Device(file) = server
        && let Some(result) = file.read_trusted(table::heat(fd), call)
    {
        return Some(result);
    }
    if process::is_shadow() || Seldom::LongWay.is_due() {
        return None;
    }
    let bytes = bytes_of(memory);
    match server {
        Server::Device(file) => file.left(kind, bytes, call),
        // The queue knows whether a sync is a message or a call.
        Server::Served(_) if kind == Kind::Sync => None,
        Server::Served(file) => file.left(kind, bytes, call),
    }
}

fn returned(result: i32) -> isize {
    if result < 0 {
        set_errno(-result);
        return -1;
    }
    result as isize
}

/// A request on a descriptor whose requests are decided.
struct Request {
    fd: c_int,
    word: Word,
    action: Action,
    memory: Memory,
    at: Option<u64>,
    /// Its file is under a served mount.
    is_served: bool,
}

impl Request {
    /// Has it decided and served; `None` where it is the kernel's after all.
    fn decided<S: Source>(&self, file: &File<S>, straight: &dyn Fn() -> isize) -> Option<isize>
    where
        S::Queue: Send,
    {
        match self.memory {
            Memory::Pieces(..) => self.decided_in_pieces(file, straight),
            Memory::Plain(..) | Memory::Nothing => self.decided_with(&mut [], file, straight),
        }
    }

    /// The pieces take a kilobyte of stack, and requests without may come on a signal handler's.
    #[inline(never)]
    fn decided_in_pieces<S: Source>(
        &self,
        file: &File<S>,
        straight: &dyn Fn() -> isize,
    ) -> Option<isize>
    where
        S::Queue: Send,
    {
        self.decided_with(&mut [NO_PIECE; MOST_PIECES], file, straight)
    }

    fn decided_with<S: Source>(
        &self,
        pieces: &mut [iovec],
        file: &File<S>,
        straight: &dyn Fn() -> isize,
    ) -> Option<isize>
    where
        S::Queue: Send,
    {
        let inside = engine::enter()?;
        let shadow = process::is_shadow();
        let moving = match self.at {
            None if !shadow => Some(Moving::begin(self.fd, self.word, inside::thread_number())?),
            _ => None,
        };
        let (at, length) = self.checked()?;
        let io = self.io(at, pieces)?.of_length(length);
        let heat = table::heat(self.fd);
        if shadow {
            let would = file.would_decide(&io);
            drop(inside);
            let started = clock::now();
            let result = straight();
            let latency_ns = clock::now() - started;
            let errno = raw::errno();
            if let Some(_inside) = engine::enter() {
                let result = if result < 0 { -errno } else { result as i32 };
                file.observed(&would, &io, heat, result, latency_ns);
            }
            set_errno(errno);
            return Some(result);
        }
        let result = file.request_amid(&io, heat);
        if let Some(moving) = &moving
            && result > 0
        {
            // SAFETY: the program asked for a read or write there, which moves it.
            moving.land(|| unsafe { external::stand_at(self.fd, at + result as u64) });
        }
        drop(moving);
        drop(inside);
        Some(returned(result))
    }

    /// Whether the descriptor still is what the table says: where in it the request goes, and how
    /// long its file is, as far as that matters. Someone may have closed it in a way that this
    /// library does not see, and opened another thing of the same number.
    fn checked(&self) -> Option<(u64, u64)> {
        let kind = self.action.kind();
        let is_kernels = || self.is_served && served::only_kernel_writes(self.fd);
        if kind == Kind::Write && (self.word.appends() || is_kernels()) {
            return None;
        }
        let found = self.looked_at(kind);
        if found.is_none() {
            table::renew(self.fd);
        }
        found
    }

    fn looked_at(&self, kind: Kind) -> Option<(u64, u64)> {
        if self.is_served {
            // A grant of what had this number before is gone since its close, and without one the
            // daemon is asked through the descriptor. What does not depend on where a descriptor
            // stands is the same call then.
            let looks = self.at.is_none() && kind != Kind::Sync || Seldom::CloseLook.is_due();
            if looks && !engine::still_served(self.fd, self.word) {
                return None;
            }
            if kind == Kind::Sync {
                return Some((0, u64::MAX));
            }
            // SAFETY: the number is the one that the program's call has.
            let at = self.at.or_else(|| unsafe { external::position(self.fd) })?;
            return Some((at, u64::MAX));
        }
        if kind == Kind::Sync {
            return Some((0, u64::MAX));
        }
        // Only the kernel knows where a write at the end of a file ended.
        if kind == Kind::Write && self.at.is_none() && raw::appends(self.fd) {
            return None;
        }
        let length = match kind == Kind::Write || Seldom::CloseLook.is_due() {
            true => Some(engine::still(self.fd, self.word)?),
            false => None,
        };
        let at = match (self.at, length) {
            (Some(at), Some(_)) => at,
            (at, _) => {
                // SAFETY: as above.
                let position = unsafe { external::position(self.fd) }?;
                at.unwrap_or(position)
            }
        };
        Some((at, length.unwrap_or(u64::MAX)))
    }

    fn io(&self, at: u64, pieces: &mut [iovec]) -> Option<Io> {
        let (action, fd) = (self.action, self.fd);
        match self.memory {
            // SAFETY: the number is the one that the program's call has.
            Memory::Nothing => Some(unsafe { Io::sync(fd, action == Action::DataSync) }),
            Memory::Plain(memory, bytes) => {
                // Of more than it moves at once the kernel looks at all whether it can be memory,
                // and then cuts it short.
                if bytes == 0 || bytes > MAX_TRANSFER_BYTES || !stack::can_be(memory, bytes) {
                    return None;
                }
                // SAFETY: the program lends this memory until its call returns, and where it does
                // not, the kernel says so: nobody else touches it.
                Some(unsafe { Io::plain(action, fd, memory.cast(), bytes as u32, at) })
            }
            Memory::Pieces(from, count) => {
                let (count, bytes) = copied(from, count, pieces)?;
                // SAFETY: as above; the array is a copy that outlives the request.
                Some(unsafe { Io::vectored(action, fd, pieces.as_ptr(), count, bytes, at) })
            }
        }
    }
}

/// Copies `size` bytes of the program's memory, which may not be there at all.
///
/// # Safety
/// `into` has room for them, and whatever bytes come are valid there.
unsafe fn copy(from: *const c_void, into: *mut c_void, size: usize) -> bool {
    let local = iovec { iov_base: into, iov_len: size };
    let remote = iovec { iov_base: from.cast_mut(), iov_len: size };
    // SAFETY: the kernel writes at most `size` bytes to where there is room, and says where there
    // is nothing to read.
    let done = unsafe {
        // Of whole words: the last goes by the stack, where something may lie above a shorter one.
        let (process, one, flags) = (process::id(), 1usize, 0usize);
        libc::syscall(libc::SYS_process_vm_readv, process, &local, one, &remote, one, flags)
    };
    done == size as i64
}

/// A word of the program's memory, where it is there.
pub fn word_at(at: *const c_void) -> Option<u64> {
    let errno = raw::errno();
    let mut word = 0u64;
    // SAFETY: room for a word, of which any bytes are valid.
    let there = unsafe { copy(at, (&raw mut word).cast(), size_of::<u64>()) };
    set_errno(errno);
    there.then_some(word)
}

/// Whether a message may carry descriptors.
pub fn carries_more(message: *const libc::msghdr) -> bool {
    let errno = raw::errno();
    // SAFETY: zero bytes are a message of nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // SAFETY: room for a header, of which any bytes are valid.
    let there =
        unsafe { copy(message.cast(), (&raw mut header).cast(), size_of::<libc::msghdr>()) };
    set_errno(errno);
    !there || header.msg_controllen > 0
}

/// Copies the program's array; how many pieces, and their bytes.
fn copied(from: *const iovec, count: c_int, into: &mut [iovec]) -> Option<(u32, u32)> {
    let count = usize::try_from(count).ok().filter(|count| (1..=into.len()).contains(count))?;
    // SAFETY: the array has room for as many, of which any bytes are valid.
    if !unsafe { copy(from.cast(), into.as_mut_ptr().cast(), count * size_of::<iovec>()) } {
        return None;
    }
    let bytes = into[..count].iter().try_fold(0usize, |sum, piece| {
        let can_be = stack::can_be(piece.iov_base, piece.iov_len);
        sum.checked_add(piece.iov_len).filter(|sum| can_be && *sum <= MAX_TRANSFER_BYTES)
    })?;
    (bytes > 0).then_some((count as u32, bytes as u32))
}
