// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a file becomes memory, as C says it and as the pager reads it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::mem::offset_of;

use dwell::policies;
use dwell_pager::{Access, Ahead, Backing, Faults, Granule, Otherwise};

use crate::failure::Failure;
use crate::options::path;
use crate::versioned::{self, Versioned};

/// Flag of dwell_map_options: the program writes, and what it writes is its own.
pub const DWELL_MAP_PRIVATE: u32 = 1;
/// Flag of dwell_map_options: the program writes, and what it writes goes to the file. The file
/// must have been opened with DWELL_WRITE.
pub const DWELL_MAP_SHARED: u32 = 2;
/// Flag of dwell_map_options: a thread of the library handles page faults, so that system calls may
/// be given memory whose pages are not there. Without it the faulting thread does, in a handler of
/// SIGBUS, which is cheaper.
pub const DWELL_MAP_THREAD: u32 = 4;
/// Flag of dwell_map_options: nothing is read ahead but what hints name.
pub const DWELL_MAP_NO_AHEAD: u32 = 8;
/// Flag of dwell_map_options: where userfaultfd is not to be had, mmap(2) will do; then there is no
/// budget, and nothing is counted.
pub const DWELL_MAP_OR_MMAP: u32 = 16;
/// Flag of dwell_map_options: mmap(2) where it is better than a region: the file fits in the
/// budget, is read through the page cache, or its device completes a read at once. See
/// dwell_region_why_mapped. All such regions with a budget of 0 share half of the memory that the
/// process can have.
pub const DWELL_MAP_AUTO: u32 = 32;

const FLAGS: u32 = DWELL_MAP_PRIVATE
    | DWELL_MAP_SHARED
    | DWELL_MAP_THREAD
    | DWELL_MAP_NO_AHEAD
    | DWELL_MAP_OR_MMAP
    | DWELL_MAP_AUTO;

/// How a file becomes memory. Start from DWELL_MAP_OPTIONS_INIT, so that fields of later versions
/// are zero, which always means "as usual".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MapOptions {
    /// sizeof(dwell_map_options).
    pub size: usize,
    /// DWELL_MAP_PRIVATE, DWELL_MAP_SHARED and so on, or-ed together; 0 for memory that is only
    /// read, whose faults the faulting thread handles.
    pub flags: u32,
    /// Most pages read ahead at once; 0 is as usual.
    pub ahead_pages: u32,
    /// Memory for pages, in bytes.
    pub budget_bytes: usize,
    /// What decides between busy-waiting and blocking while a page is read. NULL is "its", which
    /// blocks for threads of higher priority. Not kept after the call.
    pub policy: *const c_char,
    /// With DWELL_MAP_PRIVATE: a directory for an unnamed file that takes the written pages for
    /// which the budget has no room. NULL keeps them in memory. Not kept after the call.
    pub spill: *const c_char,
    /// Bytes that one fault reads: a power of two from 4096 to 2097152; 0 lets the accesses decide.
    pub granule_bytes: usize,
}

// SAFETY: it begins with its size; zeros and NULL pointers are valid.
unsafe impl Versioned for MapOptions {
    const NAME: &str = "dwell_map_options";
    const LEAST: usize = offset_of!(MapOptions, spill) + size_of::<*const c_char>();
}

/// # Safety
/// `options` points to as many bytes as its size says; its texts are zero-terminated.
pub(super) unsafe fn asked(options: *const MapOptions) -> Result<dwell_pager::Options, Failure> {
    if options.is_null() {
        return Err(Failure::null("options"));
    }
    // SAFETY: as the caller promised.
    let asked = unsafe { versioned::read(options)? };
    let on = |flag: u32| asked.flags & flag != 0;
    let both = on(DWELL_MAP_PRIVATE) && on(DWELL_MAP_SHARED);
    if asked.flags & !FLAGS != 0 || both {
        return Err(Failure::invalid(format!(
            "dwell_map_options: flags {:#x}; start from DWELL_MAP_OPTIONS_INIT, use only the flags of \
             dwell.h ({FLAGS:#x}), and one of DWELL_MAP_PRIVATE and DWELL_MAP_SHARED at most",
            asked.flags
        )));
    }
    if !asked.spill.is_null() && !on(DWELL_MAP_PRIVATE) {
        let what = "dwell_map_options: a spill directory is for DWELL_MAP_PRIVATE alone";
        return Err(Failure::invalid(what));
    }
    let access = if on(DWELL_MAP_SHARED) {
        Access::Shared
    } else if on(DWELL_MAP_PRIVATE) {
        // SAFETY: a zero-terminated text, as the caller promised.
        let spill = (!asked.spill.is_null()).then(|| unsafe { path(asked.spill) }.to_owned());
        Access::Private { spill }
    } else {
        Access::ReadOnly
    };
    let mut options = match asked.budget_bytes {
        0 if on(DWELL_MAP_AUTO) => dwell_pager::Options::auto(),
        bytes => dwell_pager::Options::new(bytes),
    };
    options = options.access(access);
    if on(DWELL_MAP_AUTO) {
        options = options.backing(Backing::Auto);
    }
    if asked.granule_bytes > 0 {
        options = options.granule(Granule::Bytes(asked.granule_bytes));
    }
    if on(DWELL_MAP_THREAD) {
        options = options.faults(Faults::Thread);
    }
    if on(DWELL_MAP_OR_MMAP) {
        options = options.otherwise(Otherwise::Map);
    }
    if on(DWELL_MAP_NO_AHEAD) {
        options = options.ahead(Ahead::Nothing);
    } else if asked.ahead_pages > 0 {
        options = options.ahead(Ahead::UpTo(asked.ahead_pages));
    }
    if !asked.policy.is_null() {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(asked.policy) }.to_string_lossy();
        let policy = policies::by_name(&name).ok_or_else(|| {
            let known = policies::names().join(", ");
            Failure::invalid(format!("no such policy: {name:?}; there are {known}"))
        })?;
        options = options.policy(policy);
    }
    Ok(options)
}
