// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys and values of the maps, as `bpf/maps.h` lays them out.

use aya::Pod;

/// Powers of two of a wait's length that are told apart.
pub const BUCKETS: usize = 28;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitKey {
    pub tgid: u32,
    pub device: u32,
    pub call: i16,
    pub operation: u8,
    pub size_bits: u8,
    pub iowait: u8,
    pub through_thread: u8,
    pub pad: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitSum {
    pub count: u64,
    pub nanos: u64,
    pub parts: [u64; 8],
    pub hops: u64,
    pub bytes: u64,
    pub latency: [u64; BUCKETS],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceKey {
    pub device: u32,
    pub operation: u8,
    pub size_bits: u8,
    pub pad: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceSum {
    pub count: u64,
    pub bytes: u64,
    pub queue_nanos: u64,
    pub device_nanos: u64,
    pub in_flight: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ThreadSum {
    pub first: u64,
    pub last: u64,
    pub waits: u64,
    pub nanos: u64,
    pub tgid: u32,
    pub pad: u32,
    pub name: [u8; 16],
}

// SAFETY: integers and arrays of them, laid out as C does without padding; every pattern of bytes
// is a value.
unsafe impl Pod for WaitKey {}
// SAFETY: as above.
unsafe impl Pod for WaitSum {}
// SAFETY: as above.
unsafe impl Pod for DeviceKey {}
// SAFETY: as above.
unsafe impl Pod for DeviceSum {}
// SAFETY: as above.
unsafe impl Pod for ThreadSum {}
