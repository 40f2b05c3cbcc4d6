// SPDX-License-Identifier: MIT OR Apache-2.0
//! libnfs: its asynchronous interface over one connection, in a loop of poll and nfs_service as its
//! examples have it. The library is looked for when it is asked for, so that this program is built
//! and runs without it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dwell_bench::result::Direction;
use dwell_bench::usage::{Cost, Meter, Scope};
use libloading::{Library, Symbol};

use super::{Client, Transfer};

/// Those whose functions have the arguments written down here; later ones have them in another
/// order.
const NAMES: [&str; 2] = ["libnfs.so.13", "libnfs.so.14"];
/// For so long a poll sleeps at most: timeouts of the library are looked at then.
const LOOK_MS: c_int = 100;

/// `nfs_context`, `nfsfh` and what callbacks are given: nothing here looks into them.
type Context_ = *mut c_void;
type File = *mut c_void;
type Callback = unsafe extern "C" fn(c_int, Context_, *mut c_void, *mut c_void);

/// `nfs_url`.
#[repr(C)]
struct Url {
    server: *mut c_char,
    path: *mut c_char,
    file: *mut c_char,
}

struct Libnfs {
    library: Library,
    version: String,
}

pub fn make() -> Result<Box<dyn Client>> {
    let mut failed = String::new();
    for name in NAMES {
        // SAFETY: the library's constructors are the C compiler's own.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let version = mapped(name).unwrap_or_else(|| name.to_owned());
                return Ok(Box::new(Libnfs { library, version }));
            }
            Err(error) => failed = error.to_string(),
        }
    }
    bail!("{} is not installed (package libnfs-dev): {failed}", NAMES.join(" or "))
}

/// The file that a library's name led to.
fn mapped(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let found =
        maps.split_whitespace().find_map(|word| word.rsplit('/').next()?.strip_prefix(name));
    found.map(|rest| format!("{name}{rest}"))
}

/// A function of the library.
macro_rules! function {
    ($library:expr, $name:literal, fn($($argument:ty),*) $(-> $result:ty)?) => {{
        // SAFETY: declared as in nfsc/libnfs.h of the versions in NAMES.
        let found: Result<Symbol<'_, unsafe extern "C" fn($($argument),*) $(-> $result)?>, _> =
            unsafe { $library.get(concat!($name, "\0").as_bytes()) };
        *found.with_context(|| concat!($name, " is missing in libnfs"))?
    }};
}

/// The functions that a transfer takes.
struct Functions {
    descriptor: unsafe extern "C" fn(Context_) -> c_int,
    events: unsafe extern "C" fn(Context_) -> c_int,
    service: unsafe extern "C" fn(Context_, c_int) -> c_int,
    error: unsafe extern "C" fn(Context_) -> *mut c_char,
    pread: unsafe extern "C" fn(Context_, File, u64, u64, Callback, *mut c_void) -> c_int,
    pwrite: unsafe extern "C" fn(
        Context_,
        File,
        u64,
        u64,
        *const c_void,
        Callback,
        *mut c_void,
    ) -> c_int,
    fsync: unsafe extern "C" fn(Context_, File) -> c_int,
    close: unsafe extern "C" fn(Context_, File) -> c_int,
    destroy: unsafe extern "C" fn(Context_),
}

/// A mounted export and an open file. Dropped, both are given up.
struct Mounted {
    functions: Functions,
    context: Context_,
    file: File,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: the context is live; the file, where there is one, is open in it; no request is
        // under way.
        unsafe {
            if !self.file.is_null() {
                (self.functions.close)(self.context, self.file);
            }
            (self.functions.destroy)(self.context);
        }
    }
}

impl Mounted {
    fn failure(&self, what: &str) -> anyhow::Error {
        // SAFETY: a live context, whose error is a string of its own or null.
        let said = unsafe {
            let said = (self.functions.error)(self.context);
            if said.is_null() { "".into() } else { CStr::from_ptr(said).to_string_lossy() }
        };
        anyhow!("{what}: {said}")
    }
}

impl Libnfs {
    fn mount(&self, transfer: &Transfer) -> Result<Mounted> {
        let library = &self.library;
        let functions = Functions {
            descriptor: function!(library, "nfs_get_fd", fn(Context_) -> c_int),
            events: function!(library, "nfs_which_events", fn(Context_) -> c_int),
            service: function!(library, "nfs_service", fn(Context_, c_int) -> c_int),
            error: function!(library, "nfs_get_error", fn(Context_) -> *mut c_char),
            pread: function!(
                library,
                "nfs_pread_async",
                fn(Context_, File, u64, u64, Callback, *mut c_void) -> c_int
            ),
            pwrite: function!(
                library,
                "nfs_pwrite_async",
                fn(Context_, File, u64, u64, *const c_void, Callback, *mut c_void) -> c_int
            ),
            fsync: function!(library, "nfs_fsync", fn(Context_, File) -> c_int),
            close: function!(library, "nfs_close", fn(Context_, File) -> c_int),
            destroy: function!(library, "nfs_destroy_context", fn(Context_)),
        };
        let init = function!(library, "nfs_init_context", fn() -> Context_);
        let parse =
            function!(library, "nfs_parse_url_full", fn(Context_, *const c_char) -> *mut Url);
        let forget = function!(library, "nfs_destroy_url", fn(*mut Url));
        let mount =
            function!(library, "nfs_mount", fn(Context_, *const c_char, *const c_char) -> c_int);
        let open =
            function!(library, "nfs_open", fn(Context_, *const c_char, c_int, *mut File) -> c_int);
        let create = function!(
            library,
            "nfs_create",
            fn(Context_, *const c_char, c_int, c_int, *mut File) -> c_int
        );

        let place = transfer.remote.place()?;
        let address = CString::new(format!(
            "nfs://{}{}/{}?nfsport={}&mountport={}",
            place.host, place.export, place.name, place.port, place.mount_port
        ))?;
        // SAFETY: no arguments.
        let context = unsafe { init() };
        ensure!(!context.is_null(), "no memory for a context");
        let mut mounted = Mounted { functions, context, file: null_mut() };
        // SAFETY: a live context and strings that outlive each call; the address's parts live until
        // it is destroyed, once.
        let (done, what) = unsafe {
            let url = parse(context, address.as_ptr());
            if url.is_null() {
                return Err(mounted.failure("the address"));
            }
            let mut done = mount(context, (*url).server, (*url).path);
            let mut what = "mounting";
            if done == 0 {
                what = "opening the file";
                done = match transfer.direction {
                    Direction::Read => {
                        open(context, (*url).file, libc::O_RDONLY, &mut mounted.file)
                    }
                    Direction::Write => create(
                        context,
                        (*url).file,
                        libc::O_RDWR | libc::O_CREAT,
                        0o644,
                        &mut mounted.file,
                    ),
                };
            }
            forget(url);
            (done, what)
        };
        if done == 0 { Ok(mounted) } else { Err(mounted.failure(what)) }
    }
}

/// A request that may be outstanding. It stays where it is, because the library keeps its address.
struct Slot<'t> {
    transfer: &'t Transfer,
    offset: Cell<u64>,
    is_busy: Cell<bool>,
    failed: Cell<Option<anyhow::Error>>,
}

/// What the library calls when a request is over.
unsafe extern "C" fn over(status: c_int, _: Context_, data: *mut c_void, slot: *mut c_void) {
    // SAFETY: the slot that the request was begun with, which outlives the context's last request.
    let slot = unsafe { &*slot.cast::<Slot<'_>>() };
    slot.is_busy.set(false);
    let (transfer, offset) = (slot.transfer, slot.offset.get());
    let checked = match (usize::try_from(status), transfer.direction) {
        (Err(_), _) => Err(anyhow!("error {} at byte {offset}", -status)),
        (Ok(bytes), Direction::Write) if bytes == transfer.size_bytes as usize => Ok(()),
        (Ok(bytes), Direction::Write) => {
            Err(anyhow!("{bytes} bytes were written at byte {offset}"))
        }
        // SAFETY: of a successful read, so many bytes are at `data` for as long as this call takes.
        (Ok(bytes), Direction::Read) => {
            let data = match bytes {
                0 => &[],
                _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) },
            };
            transfer.check(offset, data)
        }
    };
    slot.failed.set(checked.err());
}

impl Client for Libnfs {
    fn version(&self) -> Result<String> {
        Ok(self.version.clone())
    }

    fn settings(&self) -> Vec<String> {
        vec![
            "nfs_pread_async and nfs_pwrite_async, poll and nfs_service on one thread".into(),
            "one connection; neither read-ahead nor page cache, as by default".into(),
            "unstable writes, nfs_fsync at the end".into(),
        ]
    }

    fn serve(&mut self, transfer: &Transfer) -> Result<Cost> {
        let payload = transfer.payload();
        let slots: Vec<Slot<'_>> = (0..transfer.window)
            .map(|_| Slot {
                transfer,
                offset: Cell::new(0),
                is_busy: Cell::new(false),
                failed: Cell::new(None),
            })
            .collect();
        // After what its requests use, so that it is dropped before.
        let mounted = self.mount(transfer)?;
        let Mounted { functions, context, file } = &mounted;
        let (context, file) = (*context, *file);
        let size = u64::from(transfer.size_bytes);
        let mut offsets = transfer.offsets();
        let meter = Meter::start(Scope::Process);
        loop {
            for slot in slots.iter().filter(|slot| !slot.is_busy.get()) {
                if let Some(error) = slot.failed.take() {
                    return Err(error);
                }
                let Some(offset) = offsets.next() else { break };
                slot.offset.set(offset);
                slot.is_busy.set(true);
                let private = std::ptr::from_ref(slot).cast_mut().cast();
                // SAFETY: a live context and its open file; payload and slot outlive them.
                let begun = unsafe {
                    match transfer.direction {
                        Direction::Read => {
                            (functions.pread)(context, file, offset, size, over, private)
                        }
                        Direction::Write => {
                            let data = payload.as_ptr().cast();
                            (functions.pwrite)(context, file, offset, size, data, over, private)
                        }
                    }
                };
                if begun != 0 {
                    return Err(mounted.failure("beginning a request"));
                }
            }
            if slots.iter().all(|slot| !slot.is_busy.get()) {
                break;
            }
            // SAFETY: a live context; one pollfd.
            let serviced = unsafe {
                let (fd, events) = ((functions.descriptor)(context), (functions.events)(context));
                let mut polled = libc::pollfd { fd, events: events as i16, revents: 0 };
                if libc::poll(&mut polled, 1, LOOK_MS) < 0 {
                    return Err(std::io::Error::last_os_error()).context("poll");
                }
                (functions.service)(context, polled.revents.into())
            };
            if serviced < 0 {
                return Err(mounted.failure("the connection"));
            }
        }
        // SAFETY: a live context and its open file.
        if transfer.direction == Direction::Write
            && unsafe { (functions.fsync)(context, file) } != 0
        {
            return Err(mounted.failure("COMMIT"));
        }
        Ok(meter.stop())
    }
}
