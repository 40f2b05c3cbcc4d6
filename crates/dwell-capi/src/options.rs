// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a file is to be opened.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use dwell::policies;
use dwell_host::profile::ProfileStore;

use crate::failure::Failure;
use crate::places;
use crate::versioned::{self, Versioned};

/// Flag of dwell_options: writes are wanted too.
pub const DWELL_WRITE: u32 = 1;
/// Flag of dwell_options: a missing file is made, with the permissions 0666 less the umask.
pub const DWELL_CREATE: u32 = 2;
/// Flag of dwell_options: the page cache is bypassed (O_DIRECT).
pub const DWELL_DIRECT: u32 = 4;
/// Flag of dwell_options: a write returns only when its data is durable (O_DSYNC).
pub const DWELL_SYNC: u32 = 8;

const FLAGS: u32 = DWELL_WRITE | DWELL_CREATE | DWELL_DIRECT | DWELL_SYNC;

/// How a file is to be opened. Start from DWELL_OPTIONS_INIT, so that fields of later versions
/// are zero, which always means "as usual".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    /// sizeof(dwell_options).
    pub size: usize,
    /// DWELL_WRITE, DWELL_CREATE, DWELL_DIRECT, DWELL_SYNC, or-ed together.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// What decides between busy-waiting and blocking: "adaptive", "smartcon", "predictive",
    /// "block", "spin" or "hybrid". NULL is what the settings (dwell.toml) say of the device, else
    /// "adaptive". Not kept after the call.
    pub policy: *const c_char,
    /// Directory with the profiles that `dwell probe` made. NULL is where that command keeps
    /// them: $DWELL_PROFILES, else dwell/profiles in $XDG_STATE_HOME or ~/.local/state (not for
    /// root), then /var/lib/dwell/profiles. Not kept after the call.
    pub profiles: *const c_char,
}

// SAFETY: it begins with its size; zero flags and NULL pointers are valid.
unsafe impl Versioned for Options {
    const NAME: &str = "dwell_options";
    const LEAST: usize = offset_of!(Options, profiles) + size_of::<*const c_char>();
}

/// What the options ask for, checked.
pub(crate) struct Asked {
    pub options: dwell::Options,
    pub policy: Option<String>,
    pub profiles: ProfileStore,
}

impl Asked {
    /// # Safety
    /// `options` is NULL, or points to as many bytes as its size says; its texts are
    /// zero-terminated.
    pub unsafe fn of(options: *const Options) -> Result<Asked, Failure> {
        let asked = if options.is_null() {
            Options {
                size: size_of::<Options>(),
                flags: 0,
                reserved: 0,
                policy: ptr::null(),
                profiles: ptr::null(),
            }
        } else {
            // SAFETY: as the caller promised.
            unsafe { versioned::read(options) }?
        };
        if asked.flags & !FLAGS != 0 || asked.reserved != 0 {
            let (flags, reserved) = (asked.flags, asked.reserved);
            return Err(Failure::invalid(format!(
                "dwell_options: flags {flags:#x} and reserved {reserved:#x}; start from \
                 DWELL_OPTIONS_INIT and use only the flags of dwell.h ({FLAGS:#x})"
            )));
        }
        let on = |flag: u32| asked.flags & flag != 0;
        let opened = dwell::Options::new()
            .write(on(DWELL_WRITE))
            .create(on(DWELL_CREATE))
            .direct(on(DWELL_DIRECT))
            .sync(on(DWELL_SYNC));
        let mut policy = None;
        if !asked.policy.is_null() {
            // SAFETY: a zero-terminated text, as the caller promised.
            let name = unsafe { CStr::from_ptr(asked.policy) }.to_string_lossy();
            if policies::by_name(&name).is_none() {
                let known = policies::names().join(", ");
                let what = format!("no such policy: {name:?}; there are {known}");
                return Err(Failure::invalid(what));
            }
            policy = Some(name.into_owned());
        }
        let profiles = if asked.profiles.is_null() {
            places::profiles()
        } else {
            // SAFETY: as above.
            ProfileStore::new(unsafe { path(asked.profiles) })
        };
        Ok(Asked { options: opened, policy, profiles })
    }
}

/// # Safety
/// `text` is zero-terminated and outlives what is returned.
pub(crate) unsafe fn path<'a>(text: *const c_char) -> &'a Path {
    // SAFETY: as the caller promised.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}
