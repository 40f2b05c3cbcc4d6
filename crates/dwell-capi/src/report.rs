// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters of an open file, and what its requests did.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::offset_of;
use std::ptr;
use std::sync::OnceLock;

use dwell::latency::Histogram;
use dwell::policy::NAMES;
use dwell::source::Source;
use dwell::{DeviceClass, Mode, Reason, Route};

use crate::failure::{Failure, call};
use crate::file::{File, opened};
use crate::versioned::{self, Versioned};

/// Version of this header: major.
#[allow(dead_code, reason = "for the header")]
pub const DWELL_VERSION_MAJOR: u32 = 0;
/// Version of this header: minor.
#[allow(dead_code, reason = "for the header")]
pub const DWELL_VERSION_MINOR: u32 = 1;
/// Version of this header: patch.
#[allow(dead_code, reason = "for the header")]
pub const DWELL_VERSION_PATCH: u32 = 0;

/// dwell_info.device_class: nothing is known; every request is one ordinary system call.
pub const DWELL_CLASS_UNPROBED: u32 = 0;
/// dwell_info.device_class: served on the caller's CPU; every request is one ordinary system call.
pub const DWELL_CLASS_VERY_FAST: u32 = 1;
/// dwell_info.device_class: about as long as a context switch takes; every request is decided.
pub const DWELL_CLASS_FAST: u32 = 2;
/// dwell_info.device_class: blocking always pays; every request is one ordinary system call.
pub const DWELL_CLASS_MAINSTREAM: u32 = 3;

/// Places in dwell_stats.by_reason.
pub const DWELL_REASONS: usize = 32;

/// Facts about an open file. Set size to sizeof(dwell_info) before the call; afterwards it is the
/// bytes that this version of the library fills.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    /// sizeof(dwell_info).
    pub size: usize,
    /// Length of the file or capacity of the device now, in bytes.
    pub length_bytes: u64,
    /// What direct I/O through a queue demands memory, length and offset to be multiples of, in
    /// bytes; 1 for a file opened without DWELL_DIRECT.
    pub alignment: u32,
    /// DWELL_CLASS_UNPROBED, _VERY_FAST, _FAST or _MAINSTREAM.
    pub device_class: u32,
    /// Name of the policy. The texts of this structure are valid until the file is closed.
    pub policy: *const c_char,
    /// The device beneath the file, in words; "" where it is not known.
    pub device: *const c_char,
    /// Why the device's class is not known, and what to do; NULL where it is.
    pub note: *const c_char,
}

// SAFETY: it begins with its size; zeros and NULL are valid.
unsafe impl Versioned for Info {
    const NAME: &str = "dwell_info";
    const LEAST: usize = offset_of!(Info, note) + size_of::<*const c_char>();
}

/// How long requests of one kind took, from submission to completion, in nanoseconds. Percentiles
/// are within 1/16 of what they were.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Latency {
    /// How many were measured; of inline calls and cached reads only one in some is.
    pub measured: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// Nine in ten took no longer.
    pub p90_ns: u64,
    /// 99 in a hundred took no longer.
    pub p99_ns: u64,
    /// 999 in a thousand took no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    fn of(latency: &Histogram) -> Latency {
        Latency {
            measured: latency.count(),
            mean_ns: latency.mean_ns(),
            p50_ns: latency.percentile(0.5),
            p90_ns: latency.percentile(0.9),
            p99_ns: latency.percentile(0.99),
            p999_ns: latency.percentile(0.999),
            max_ns: latency.max_ns(),
        }
    }
}

/// What the requests of one file did, over all threads and queues since it was opened. Set size
/// to sizeof(dwell_stats) before the call; afterwards it is the bytes that this version of the
/// library fills.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stats {
    /// sizeof(dwell_stats).
    pub size: usize,
    /// Requests: the sum of the three routes.
    pub requests: u64,
    /// Requests served by an ordinary system call.
    pub inline_calls: u64,
    /// Requests on a queue whose thread busy-waited.
    pub spun: u64,
    /// Requests on a queue whose thread blocked.
    pub blocked: u64,
    /// Requests on a queue whose thread slept for a stated time and then busy-waited.
    pub hybrid: u64,
    /// Requests of spun whose thread spun until the completion came: each saved what
    /// blocking costs.
    pub switches_avoided: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Time spent busy-waiting, in nanoseconds.
    pub spun_ns: u64,
    /// Time asleep on a timer, in nanoseconds.
    pub slept_ns: u64,
    /// Time asleep until a completion came, in nanoseconds.
    pub parked_ns: u64,
    /// Requests by the reason of their decision; dwell_reason_name names the places.
    pub by_reason: [u64; DWELL_REASONS],
    /// Latency of ordinary system calls.
    pub inline_latency: Latency,
    /// Latency of requests on a queue whose thread blocked.
    pub blocked_latency: Latency,
    /// Latency of requests on a queue whose thread busy-waited, after a sleep or without.
    pub spun_latency: Latency,
    /// Latency of reads that the page cache served.
    pub cached_latency: Latency,
}

// SAFETY: it begins with its size; the rest are numbers.
unsafe impl Versioned for Stats {
    const NAME: &str = "dwell_stats";
    const LEAST: usize = offset_of!(Stats, cached_latency) + size_of::<Latency>();
}

const _: () = assert!(Reason::ALL.len() <= DWELL_REASONS);

/// Tells what is known of an open file.
///
/// info  its size is set by the caller; receives the facts
///
/// Returns 0, or -1 with errno set: EINVAL for NULL or a wrong size, else what fstat(2) says.
///
/// # Safety
/// The file is NULL or open; info is NULL or as long as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_file_info(file: *const File, info: *mut Info) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        if info.is_null() {
            return Err(Failure::null("info"));
        }
        let class = file.file.parameters().profile.map(|profile| profile.class);
        let told = Info {
            size: size_of::<Info>(),
            length_bytes: file.file.bytes()?,
            alignment: file.file.source().alignment(),
            device_class: match class {
                None => DWELL_CLASS_UNPROBED,
                Some(DeviceClass::VeryFast) => DWELL_CLASS_VERY_FAST,
                Some(DeviceClass::Fast) => DWELL_CLASS_FAST,
                Some(DeviceClass::Mainstream) => DWELL_CLASS_MAINSTREAM,
            },
            policy: file.policy.as_ptr(),
            device: file.device.as_ptr(),
            note: file.note.as_deref().map_or(ptr::null(), CStr::as_ptr),
        };
        // SAFETY: as the caller promised.
        unsafe { versioned::write(info, &told)? };
        Ok(0)
    })
}

/// Tells what the requests of a file did so far.
///
/// stats  its size is set by the caller; receives the numbers
///
/// Returns 0, or -1 with errno EINVAL for NULL or a wrong size.
///
/// # Safety
/// The file is NULL or open; stats is NULL or as long as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dwell_file_stats(file: *const File, stats: *mut Stats) -> c_int {
    call(-1, || {
        // SAFETY: as the caller promised.
        let file = unsafe { opened(file)? };
        if stats.is_null() {
            return Err(Failure::null("stats"));
        }
        // SAFETY: as the caller promised.
        unsafe { versioned::write(stats, &told(&file.file.stats()))? };
        Ok(0)
    })
}

fn told(stats: &dwell::Stats) -> Stats {
    let mut told = Stats {
        size: size_of::<Stats>(),
        requests: stats.requests(),
        inline_calls: 0,
        spun: 0,
        blocked: 0,
        hybrid: 0,
        switches_avoided: stats.switches_avoided(),
        bytes_read: stats.bytes_read,
        bytes_written: stats.bytes_written,
        syncs: stats.syncs,
        errors: stats.errors,
        spun_ns: stats.spun_ns,
        slept_ns: stats.slept_ns,
        parked_ns: stats.parked_ns,
        by_reason: [0; DWELL_REASONS],
        inline_latency: Latency::of(&stats.latency.inline),
        blocked_latency: Latency::of(&stats.latency.blocked),
        spun_latency: Latency::of(&stats.latency.spun),
        cached_latency: Latency::of(&stats.latency.cached),
    };
    for row in &stats.rows {
        *match (row.route, row.mode) {
            (Route::Inline, _) => &mut told.inline_calls,
            (_, Mode::Spin) => &mut told.spun,
            (_, Mode::Block) => &mut told.blocked,
            (_, Mode::Hybrid { .. }) => &mut told.hybrid,
        } += row.requests;
        told.by_reason[row.reason as usize] += row.requests;
    }
    told
}

/// Texts that C may keep: the one of that number.
fn name(
    names: &'static OnceLock<Vec<CString>>,
    all: impl FnOnce() -> Vec<&'static str>,
    number: u32,
) -> *const c_char {
    let made = || all().into_iter().map(|name| CString::new(name).unwrap_or_default()).collect();
    let names = names.get_or_init(made);
    names.get(number as usize).map_or(ptr::null(), |name| name.as_ptr())
}

/// Why requests counted in dwell_stats.by_reason[reason] were decided as they were: "pays",
/// "cpu-busy", "cached" and so on.
///
/// Returns a text that is valid for ever, or NULL where this version has no such reason.
#[unsafe(no_mangle)]
pub extern "C" fn dwell_reason_name(reason: u32) -> *const c_char {
    static REASONS: OnceLock<Vec<CString>> = OnceLock::new();
    name(&REASONS, || Reason::ALL.iter().map(|reason| reason.as_str()).collect(), reason)
}

/// The policies that dwell_options can name: the one of that number, from 0.
///
/// Returns a text that is valid for ever, or NULL from the number on that there is none of.
#[unsafe(no_mangle)]
pub extern "C" fn dwell_policy_name(number: u32) -> *const c_char {
    static POLICIES: OnceLock<Vec<CString>> = OnceLock::new();
    name(&POLICIES, || NAMES.to_vec(), number)
}

/// Version of the library that runs, such as "0.1.0"; a text that is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn dwell_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_named_by_its_number() {
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(at, *reason as usize);
        }
    }

    #[test]
    fn the_header_has_the_version_of_the_package() {
        let header = [DWELL_VERSION_MAJOR, DWELL_VERSION_MINOR, DWELL_VERSION_PATCH];
        let header = header.map(|part| part.to_string()).join(".");
        assert_eq!(header, env!("CARGO_PKG_VERSION"));
    }
}
