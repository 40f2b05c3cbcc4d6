// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that this library stands before, as whoever comes behind it defines them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{iovec, mode_t, off64_t, pid_t, size_t, ssize_t};

/// A function found by its name behind this library.
pub struct Real<F> {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real { name, at: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function; `None` until it was looked up, or where this C library has none of that name.
    #[inline(always)]
    pub fn get(&self) -> Option<F> {
        let at = self.at.load(Ordering::Relaxed);
        // SAFETY: what the loader found under this name has the type that the name was given in
        // the list below.
        (!at.is_null()).then(|| unsafe { std::mem::transmute_copy(&at) })
    }

    /// The function, looked up now if need be. Not for those that may be called while the loader
    /// or an allocator is at work.
    pub fn find(&self) -> Option<F> {
        self.get().or_else(|| {
            self.look_up();
            self.get()
        })
    }

    fn look_up(&self) {
        // SAFETY: a terminated name.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
    }
}

macro_rules! functions {
    ($($name:ident: fn($($kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[allow(non_upper_case_globals)]
            pub static $name: Real<unsafe extern "C-unwind" fn($($kind),*) $(-> $result)?> = {
                let name = concat!(stringify!($name), "\0").as_bytes();
                match CStr::from_bytes_with_nul(name) {
                    Ok(name) => Real::new(name),
                    Err(_) => unreachable!(),
                }
            };
        )*

        /// Looks all of them up.
        pub fn look_up_all() {
            $($name.look_up();)*
        }
    };
}

type Path = *const c_char;
type Memory = *mut c_void;
type Data = *const c_void;
type Pieces = *const iovec;
type Stream = *mut c_void;
type Texts = *const *const c_char;

functions! {
    open: fn(Path, c_int, mode_t) -> c_int;
    open64: fn(Path, c_int, mode_t) -> c_int;
    openat: fn(c_int, Path, c_int, mode_t) -> c_int;
    openat64: fn(c_int, Path, c_int, mode_t) -> c_int;
    creat: fn(Path, mode_t) -> c_int;
    creat64: fn(Path, mode_t) -> c_int;
    __open_2: fn(Path, c_int) -> c_int;
    __open64_2: fn(Path, c_int) -> c_int;
    __openat_2: fn(c_int, Path, c_int) -> c_int;
    __openat64_2: fn(c_int, Path, c_int) -> c_int;
    close: fn(c_int) -> c_int;
    close_range: fn(c_uint, c_uint, c_int) -> c_int;
    closefrom: fn(c_int);
    dup: fn(c_int) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    fcntl: fn(c_int, c_int, size_t) -> c_int;
    fcntl64: fn(c_int, c_int, size_t) -> c_int;

    read: fn(c_int, Memory, size_t) -> ssize_t;
    write: fn(c_int, Data, size_t) -> ssize_t;
    pread: fn(c_int, Memory, size_t, off64_t) -> ssize_t;
    pread64: fn(c_int, Memory, size_t, off64_t) -> ssize_t;
    pwrite: fn(c_int, Data, size_t, off64_t) -> ssize_t;
    pwrite64: fn(c_int, Data, size_t, off64_t) -> ssize_t;
    readv: fn(c_int, Pieces, c_int) -> ssize_t;
    writev: fn(c_int, Pieces, c_int) -> ssize_t;
    preadv: fn(c_int, Pieces, c_int, off64_t) -> ssize_t;
    preadv64: fn(c_int, Pieces, c_int, off64_t) -> ssize_t;
    pwritev: fn(c_int, Pieces, c_int, off64_t) -> ssize_t;
    pwritev64: fn(c_int, Pieces, c_int, off64_t) -> ssize_t;
    preadv2: fn(c_int, Pieces, c_int, off64_t, c_int) -> ssize_t;
    preadv64v2: fn(c_int, Pieces, c_int, off64_t, c_int) -> ssize_t;
    pwritev2: fn(c_int, Pieces, c_int, off64_t, c_int) -> ssize_t;
    pwritev64v2: fn(c_int, Pieces, c_int, off64_t, c_int) -> ssize_t;
    __read_chk: fn(c_int, Memory, size_t, size_t) -> ssize_t;
    __pread_chk: fn(c_int, Memory, size_t, off64_t, size_t) -> ssize_t;
    __pread64_chk: fn(c_int, Memory, size_t, off64_t, size_t) -> ssize_t;
    fsync: fn(c_int) -> c_int;
    fdatasync: fn(c_int) -> c_int;
    lseek: fn(c_int, off64_t, c_int) -> off64_t;
    lseek64: fn(c_int, off64_t, c_int) -> off64_t;

    fopen: fn(Path, Path) -> Stream;
    fopen64: fn(Path, Path) -> Stream;
    freopen: fn(Path, Path, Stream) -> Stream;
    freopen64: fn(Path, Path, Stream) -> Stream;
    fclose: fn(Stream) -> c_int;
    popen: fn(Path, Path) -> Stream;
    pclose: fn(Stream) -> c_int;
    opendir: fn(Path) -> Stream;
    closedir: fn(Stream) -> c_int;
    socket: fn(c_int, c_int, c_int) -> c_int;
    socketpair: fn(c_int, c_int, c_int, *mut c_int) -> c_int;
    pipe: fn(*mut c_int) -> c_int;
    pipe2: fn(*mut c_int, c_int) -> c_int;
    accept: fn(c_int, Memory, Memory) -> c_int;
    accept4: fn(c_int, Memory, Memory, c_int) -> c_int;
    eventfd: fn(c_uint, c_int) -> c_int;
    epoll_create1: fn(c_int) -> c_int;
    memfd_create: fn(Path, c_uint) -> c_int;
    mkstemp: fn(*mut c_char) -> c_int;
    mkstemp64: fn(*mut c_char) -> c_int;
    mkostemp: fn(*mut c_char, c_int) -> c_int;
    mkostemp64: fn(*mut c_char, c_int) -> c_int;
    sendmsg: fn(c_int, *const libc::msghdr, c_int) -> ssize_t;
    sendmmsg: fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;

    posix_spawn: fn(*mut pid_t, Path, Data, Data, Texts, Texts) -> c_int;
    posix_spawnp: fn(*mut pid_t, Path, Data, Data, Texts, Texts) -> c_int;
    system: fn(Path) -> c_int;
    _Fork: fn() -> pid_t;
    clone: fn(Option<extern "C" fn(Memory) -> c_int>, Memory, c_int, Memory, Memory, Memory, Memory) -> c_int;
    pthread_exit: fn(Memory);
    unshare: fn(c_int) -> c_int;
    setns: fn(c_int, c_int) -> c_int;
    execve: fn(Path, Texts, Texts) -> c_int;
    execl: fn() -> c_int;
    execle: fn() -> c_int;
    execlp: fn() -> c_int;
    execv: fn(Path, Texts) -> c_int;
    execvp: fn(Path, Texts) -> c_int;
    execvpe: fn(Path, Texts, Texts) -> c_int;
    fexecve: fn(c_int, Texts, Texts) -> c_int;
    mmap: fn(Memory, size_t, c_int, c_int, c_int, off64_t) -> Memory;
    mmap64: fn(Memory, size_t, c_int, c_int, c_int, off64_t) -> Memory;
    munmap: fn(Memory, size_t) -> c_int;
    mremap: fn(Memory, size_t, size_t, c_int, Memory) -> Memory;
    mprotect: fn(Memory, size_t, c_int) -> c_int;
    madvise: fn(Memory, size_t, c_int) -> c_int;
    posix_madvise: fn(Memory, size_t, c_int) -> c_int;
    mlock: fn(Data, size_t) -> c_int;
    mlock2: fn(Data, size_t, c_uint) -> c_int;
    mlockall: fn(c_int) -> c_int;
    timerfd_create: fn(c_int, c_int) -> c_int;
    prctl: fn(c_int, size_t, size_t, size_t, size_t) -> c_int;
    _exit: fn(c_int);
    _Exit: fn(c_int);
    quick_exit: fn(c_int);
}
