// SPDX-License-Identifier: MIT OR Apache-2.0
//! UMap, a pager in user space, where `make peers` has built it: a library that is loaded when it
//! is measured, because its licence and its language are not ours.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use anyhow::{Context, Result, ensure};

type Map =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

/// The library.
///
/// # Errors
/// It was not built; what to do.
pub(super) fn library() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    let path = own.with_file_name("libumap.so");
    match path.is_file() {
        true => Ok(path),
        false => Err("not measured: libumap.so is not beside this program (`make peers`)".into()),
    }
}

/// A file as memory by UMap.
pub(super) struct Umap {
    start: NonNull<u8>,
    bytes: usize,
    /// Whole pages of UMap's. Nothing reads what is behind the file.
    mapped_bytes: usize,
    unmap: Unmap,
    _file: File,
}

impl Umap {
    /// Maps a file, past the page cache, with at most `budget_bytes` of it in memory.
    pub(super) fn of(
        path: &Path,
        page_bytes: usize,
        budget_bytes: u64,
        writes: bool,
    ) -> Result<Self> {
        let name = path.display();
        let library = library().map_err(anyhow::Error::msg)?;
        let mut open = File::options();
        let file = open.read(true).write(writes).custom_flags(libc::O_DIRECT).open(path);
        let file = file.with_context(|| format!("open {name}"))?;
        let bytes = usize::try_from(file.metadata()?.len()).context("a file too long to map")?;
        let mapped_bytes = bytes.next_multiple_of(page_bytes);
        // It writes whole pages, and would make the file longer.
        ensure!(!writes || bytes == mapped_bytes, "{name} does not end with a whole page of UMap");
        let pages = budget_bytes / page_bytes as u64;
        ensure!(pages > 0, "{budget_bytes} bytes are no page of {page_bytes}");
        set(c"UMAP_PAGESIZE", page_bytes as u64)?;
        set(c"UMAP_BUFSIZE", pages)?;
        let library = CString::new(library.as_os_str().as_encoded_bytes())?;
        // SAFETY: a path that ends with NUL. The library's initialisers are those of UMap.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        ensure!(!handle.is_null(), "cannot load {}", library.to_string_lossy());
        let find = |name: &CStr| {
            // SAFETY: a library that was loaded and is never unloaded.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
            NonNull::new(at).with_context(|| format!("no {} in UMap", name.to_string_lossy()))
        };
        let (map, unmap) = (find(c"umap")?, find(c"uunmap")?);
        // SAFETY: the types that umap/umap.h of UMap 2.1 declares for these names.
        let (map, unmap) = unsafe {
            let map = std::mem::transmute::<*mut c_void, Map>(map.as_ptr());
            (map, std::mem::transmute::<*mut c_void, Unmap>(unmap.as_ptr()))
        };
        // SAFETY: UMap chooses where; the file stays open for as long as it is mapped.
        let start = unsafe {
            let access = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
            map(std::ptr::null_mut(), mapped_bytes, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        ensure!(start != libc::MAP_FAILED, "UMap does not map {name}");
        let start = NonNull::new(start.cast()).context("mapped at zero")?;
        Ok(Umap { start, bytes, mapped_bytes, unmap, _file: file })
    }

    /// Where it is, and how long the file is.
    pub(super) fn as_parts(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }
}

/// Sets what UMap reads when it is loaded.
fn set(name: &CStr, value: u64) -> Result<()> {
    let value = CString::new(value.to_string())?;
    // SAFETY: texts that end with NUL; this process has no second thread yet.
    let set = unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
    ensure!(set == 0, "cannot set {}", name.to_string_lossy());
    Ok(())
}

impl Drop for Umap {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length; nothing borrowed from it is left.
        unsafe { (self.unmap)(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}
