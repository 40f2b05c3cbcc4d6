// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files and their blocking requests.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use dwell::file::MAX_TRANSFER_BYTES;
use dwell::parameters::DeviceParameters;
use dwell::policy::Block;
use libc::{iovec, ssize_t};

use crate::failure::{Failure, call};
use crate::options::{Asked, Options, path};
use crate::places;

/// An open file, block device or address. Threads may share one.
pub struct File {
    pub(crate) file: Arc<dwell::File>,
    pub(crate) policy: CString,
    /// The device beneath it, in words; what is known of it.
    pub(crate) device: CString,
    /// Why nothing is known of the device.
    pub(crate) note: Option<CString>,
    /// What it was opened with, of the caller, the settings and a profile.
    options: dwell::Options,
}

fn text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

impl File {
    /// At an address, or over a descriptor that was opened there.
    fn open(
        address: &Path,
        asked: Asked,
        lent: Option<BorrowedFd<'static>>,
    ) -> Result<File, Failure> {
        dwell_channel::client::register();
        let Asked { mut options, policy, profiles } = asked;
        let found = profiles.beneath_opened(address, &options);
        let settings = places::settings();
        let (device, note) = match (found, settings) {
            (Ok(beneath), Ok(settings)) => {
                let settings = settings.asked("dwell_options.policy", policy);
                let executable = std::env::current_exe().ok();
                let opening = settings.opening(address, &beneath, executable.as_deref())?;
                if opening.leaves_open() {
                    let monitor = places::monitor(&settings).map_err(|error| {
                        let errno = error.raw_os_error().unwrap_or(libc::EIO);
                        Failure::new(errno, format!("starting the system monitor: {error}"))
                    })?;
                    options = options.monitor(monitor);
                }
                options = opening.applied_to(options);
                let note = opening.left_alone.or_else(|| unprobed(address, &opening.parameters));
                (beneath.device.as_ref().map(ToString::to_string), note)
            }
            // An error there stops no program: requests pass through. Opening reports an error in
            // the address.
            (Err(error), _) => {
                options = options.policy(Arc::new(Block));
                (None, Some(error.to_string()))
            }
            (_, Err(error)) => {
                options = options.policy(Arc::new(Block));
                (None, Some(error.to_string()))
            }
        };
        let file = Arc::new(match lent {
            Some(descriptor) => options.open_borrowed(descriptor, address)?,
            None => options.open(address)?,
        });
        let policy = text(file.policy().name());
        let device = text(device.unwrap_or_default());
        Ok(File { file, policy, device, note: note.map(text), options })
    }

    fn beside(&self, lent: BorrowedFd<'static>, path: &Path) -> Result<File, Failure> {
        let options = self.options.clone();
        let file = Arc::new(options.open_borrowed(lent, path)?);
        if file.device() != self.file.device() {
            let (path, beside) = (path.display(), self.file.path().display());
            let what = format!("{path}: not on the device of {beside}; use dwell_fdopen");
            return Err(Failure::new(libc::EXDEV, what));
        }
        let (policy, device) = (self.policy.clone(), self.device.clone());
        Ok(File { file, policy, device, note: self.note.clone(), options })
    }
}

fn unprobed(address: &Path, parameters: &DeviceParameters) -> Option<String> {
    parameters.profile.is_none().then(|| {
        let path = address.display();
        format!("{path}: its device has no profile for this kernel; dwell probe {path} makes one")
    })
}

/// The file behind a handle.
///
/// # Safety
/// `file` is NULL or came from dwell_open and was not closed, for as long as `'a`.
pub(crate) unsafe fn opened<'a>(file: *const File) -> Result<&'a File, Failure> {
    // SAFETY: as the caller promised.
    unsafe { file.as_ref() }.ok_or_else(|| Failure::null("file"))
}

/// Opens a file or block device, or the address of a scheme ("emu:z-nand", "mem:/dev/shm/data",
/// "chan:/mnt/served/data"). A file under a mount of `dwell serve` is reached through a channel.
///
/// The policy decides every request, from the device's profile (`dwell probe PATH`) and the
/// machine's load. A thread of this library watches that load until the last such file is closed.
/// Without a profile "adaptive" finds out for itself; under any other policy every request is then
/// one ordinary system call, and dwell_file_info says why.
///
/// path     a path or an address
/// options  how to open; NULL to read through the page cache with the policy "adaptive"
/// file     receives the file; close it with dwell_close
///
/// Returns 0, or -1 with errno set: E2BIG for options of a later version; else what open(2) says.
/// EINVAL stands for a NULL path or file, a bad option, an unknown policy or a directory.
/// DWELL_DIRECT where the file system has no direct I/O gives EINVAL too.
///
/// # Safety
/// The pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_open(
    path: *const c_char,
    options: *const Options,
    file: *mut *mut File,
) -> c_int {
    call(-1, || {
        if path.is_null() || file.is_null() {
            return Err(Failure::null(if path.is_null() { "path" } else { "file" }));
        }
        // SAFETY: as the caller promised.
        let opened = unsafe { File::open(self::path(path), Asked::of(options)?, None)? };
        // SAFETY: not NULL, so valid.
        unsafe { file.write(Arc::into_raw(Arc::new(opened)).cast_mut()) };
        Ok(0)
    })
}

/// Makes a file of a descriptor that the caller has opened. Reading or writing, and past the page
/// cache or not, is as it was opened. dwell_close leaves it open.
///
/// descriptor  stays open until the file and its queues are closed
/// path        at which it was opened: settings and errors name it
/// options     policy and profiles, with flags of 0; NULL for those of dwell_open
/// file        receives the file; close it with dwell_close
///
/// Returns 0, or -1 with errno set: EBADF for a descriptor that is not open, EINVAL for flags, else
/// as dwell_open.
///
/// # Safety
/// The pointers are NULL or valid; the descriptor stays open as long as it says above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_fdopen(
    descriptor: c_int,
    path: *const c_char,
    options: *const Options,
    file: *mut *mut File,
) -> c_int {
    call(-1, || {
        if path.is_null() || file.is_null() {
            return Err(Failure::null(if path.is_null() { "path" } else { "file" }));
        }
        // SAFETY: as the caller promised.
        let (path, asked) = unsafe { (self::path(path), Asked::of(options)?) };
        let flagged = asked.options.write
            || asked.options.create
            || asked.options.direct
            || asked.options.sync;
        if flagged {
            let what = "dwell_fdopen: flags are those of the descriptor; let them be 0";
            return Err(Failure::invalid(what));
        }
        // SAFETY: as the caller promised.
        let external = File::open(path, asked, Some(unsafe { lent(descriptor, path)? }))?;
        // SAFETY: not NULL, so valid.
        unsafe { file.write(Arc::into_raw(Arc::new(external)).cast_mut()) };
        Ok(0)
    })
}

/// As dwell_fdopen, for a file on a device of which one is open. Policy, profile and what the
/// settings say are those of the open file. They are not looked up again, so this takes
/// microseconds where dwell_fdopen takes some hundred.
///
/// beside      the file that is open; it may be closed before the other
/// descriptor  stays open until the file and its queues are closed
/// path        at which it was opened: errors name it
/// file        receives the file; close it with dwell_close
///
/// Returns 0, or -1 with errno set: EXDEV for a file on another device, else as dwell_fdopen.
///
/// # Safety
/// The file is NULL or open; the other pointers are NULL or valid; the descriptor stays open as
/// long as it says above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_fdopen_beside(
    beside: *const File,
    descriptor: c_int,
    path: *const c_char,
    file: *mut *mut File,
) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let beside = unsafe { opened(beside)? };
        if path.is_null() || file.is_null() {
            return Err(Failure::null(if path.is_null() { "path" } else { "file" }));
        }
        // SAFETY: as the caller promised.
        let path = unsafe { self::path(path) };
        // SAFETY: as the caller promised.
        let external = beside.beside(unsafe { lent(descriptor, path)? }, path)?;
        // SAFETY: not NULL, so valid.
        unsafe { file.write(Arc::into_raw(Arc::new(external)).cast_mut()) };
        Ok(0)
    })
}

/// # Safety
/// The descriptor stays open for as long as what is returned is used.
unsafe fn lent(descriptor: c_int, path: &Path) -> Result<BorrowedFd<'static>, Failure> {
    if descriptor < 0 {
        let what = format!("{}: descriptor {descriptor} is not open", path.display());
        return Err(Failure::new(libc::EBADF, what));
    }
    // SAFETY: not -1; as the caller promised.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// Closes a file. Its queues stay usable and keep it open underneath until they are closed too.
/// Nothing is made durable by it: see dwell_sync.
///
/// file  no other call on it may be in progress, nor follow
///
/// Returns 0, or -1 with errno EINVAL for NULL.
///
/// # Safety
/// The file is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_close(file: *mut File) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { opened(file)? };
        // SAFETY: it came from Arc::into_raw when it was opened, and is not used again.
        drop(unsafe { Arc::from_raw(file.cast_const()) });
        Ok(0)
    })
}

/// Reads at an offset, waiting as the policy decides. Any memory will do: where direct I/O wants
/// alignment, an aligned buffer goes between.
///
/// buffer  receives the data
/// bytes   at most so many; more than 2 GiB less a page are not read at once
/// offset  from where in the file, in bytes
///
/// Returns the number of bytes read, fewer than asked for only at the end of the file and 0 behind
/// it, or -1 with errno set as by pread(2). A signal does not end the call.
///
/// # Safety
/// The file is NULL or open; `bytes` bytes at `buffer` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_read_at(
    file: *mut File,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
) -> ssize_t {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        let buffer: &mut [u8] = match checked(buffer, bytes)? {
            0 => &mut [],
            // SAFETY: so many bytes are the caller's to be written.
            bytes => unsafe { std::slice::from_raw_parts_mut(buffer.cast(), bytes) },
        };
        Ok(file.file.read_at(buffer, offset)? as ssize_t)
    })
}

/// Writes at an offset, waiting as the policy decides.
///
/// buffer  the data; any memory will do
/// bytes   so many; with DWELL_DIRECT a multiple of dwell_info.alignment
/// offset  to where in the file, in bytes; with DWELL_DIRECT a multiple as well
///
/// Returns the number of bytes written, or -1 with errno set as by pwrite(2): EBADF for a file
/// opened without DWELL_WRITE, EINVAL for what direct I/O cannot write.
///
/// # Safety
/// The file is NULL or open; `bytes` bytes at `buffer` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_write_at(
    file: *mut File,
    buffer: *const c_void,
    bytes: usize,
    offset: u64,
) -> ssize_t {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        let buffer: &[u8] = match checked(buffer, bytes)? {
            0 => &[],
            // SAFETY: so many bytes are there to be read.
            bytes => unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) },
        };
        Ok(file.file.write_at(buffer, offset)? as ssize_t)
    })
}

/// Reads at an offset into several pieces of memory, in order, as one request.
///
/// pieces  receive the data
/// count   how many, at most 1024; together at most 2 GiB less a page
/// offset  from where in the file, in bytes
///
/// Returns as dwell_read_at, and EINVAL for too many pieces or bytes.
///
/// # Safety
/// The file is NULL or open; `count` pieces are readable, and their memory writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_readv_at(
    file: *mut File,
    pieces: *const iovec,
    count: c_int,
    offset: u64,
) -> ssize_t {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        // SAFETY: as above.
        let pieces = unsafe { pieces_of(pieces, count)? };
        let piece = |piece: &iovec| {
            // SAFETY: the caller's memory, checked to be there.
            IoSliceMut::new(unsafe { slice_mut(piece) })
        };
        let mut pieces: Vec<_> = pieces.iter().map(piece).collect();
        Ok(file.file.read_vectored_at(&mut pieces, offset)? as ssize_t)
    })
}

/// Writes several pieces of memory at an offset, in order, as one request.
///
/// pieces  the data
/// count   how many, at most 1024; together at most 2 GiB less a page
/// offset  to where in the file, in bytes
///
/// Returns as dwell_write_at, and EINVAL for too many pieces or bytes.
///
/// # Safety
/// The file is NULL or open; `count` pieces and their memory are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_writev_at(
    file: *mut File,
    pieces: *const iovec,
    count: c_int,
    offset: u64,
) -> ssize_t {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        // SAFETY: as above.
        let pieces = unsafe { pieces_of(pieces, count)? };
        let piece = |piece: &iovec| {
            // SAFETY: the caller's memory, checked to be there.
            IoSlice::new(unsafe { slice(piece) })
        };
        let pieces: Vec<_> = pieces.iter().map(piece).collect();
        Ok(file.file.write_vectored_at(&pieces, offset)? as ssize_t)
    })
}

/// Makes all completed writes durable, data and metadata, as fsync(2).
///
/// Returns 0, or -1 with errno set.
///
/// # Safety
/// The file is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_sync(file: *mut File) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { opened(file)? }.file.sync()?;
        Ok(0)
    })
}

/// Makes all completed writes durable, less the metadata that no read needs, as fdatasync(2).
///
/// Returns 0, or -1 with errno set.
///
/// # Safety
/// The file is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_sync_data(file: *mut File) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        unsafe { opened(file)? }.file.sync_data()?;
        Ok(0)
    })
}

/// Bytes of one transfer; memory that is not there cannot hold any.
pub(crate) fn checked(buffer: *const c_void, bytes: usize) -> Result<usize, Failure> {
    if buffer.is_null() && bytes > 0 {
        return Err(Failure::null("buffer"));
    }
    Ok(bytes.min(MAX_TRANSFER_BYTES))
}

/// # Safety
/// `count` pieces are readable, for as long as `'a`.
unsafe fn pieces_of<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec], Failure> {
    const MOST: usize = libc::UIO_MAXIOV as usize;
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or_else(|| {
        Failure::invalid(format!("count is {count}; pieces of one request are 0 to {MOST}"))
    })?;
    if count == 0 {
        return Ok(&[]);
    }
    if pieces.is_null() {
        return Err(Failure::null("pieces"));
    }
    // SAFETY: as the caller promised.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    for (at, piece) in pieces.iter().enumerate() {
        if piece.iov_base.is_null() && piece.iov_len > 0 {
            return Err(Failure::null(&format!("pieces[{at}].iov_base")));
        }
        if piece.iov_len > MAX_TRANSFER_BYTES {
            let most = MAX_TRANSFER_BYTES;
            return Err(Failure::invalid(format!(
                "pieces[{at}] has {} bytes; at most {most} go in one request: split it",
                piece.iov_len
            )));
        }
    }
    Ok(pieces)
}

fn base(piece: &iovec) -> *mut u8 {
    if piece.iov_len == 0 { ptr::dangling_mut() } else { piece.iov_base.cast() }
}

/// # Safety
/// The piece's memory is readable, and nobody writes it, for as long as `'a`.
unsafe fn slice<'a>(piece: &iovec) -> &'a [u8] {
    // SAFETY: as the caller promised.
    unsafe { std::slice::from_raw_parts(base(piece), piece.iov_len) }
}

/// # Safety
/// The piece's memory is writable, and nobody else uses it, for as long as `'a`.
unsafe fn slice_mut<'a>(piece: &iovec) -> &'a mut [u8] {
    // SAFETY: as the caller promised.
    unsafe { std::slice::from_raw_parts_mut(base(piece), piece.iov_len) }
}
