// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory larger than DRAM: an opened source as ordinary memory under a byte budget.
//!
//! The thread that meets an absent page handles the fault itself, waits for the device by the wait
//! machine, and uses the wait: it reads ahead, follows the program's hints and moves out what was
//! not used lately. A thread of lower priority than what could run next gives the CPU away instead.
#![deny(unsafe_code)]

mod advice;
mod ahead;
mod board;
mod budget;
mod evict;
mod fault;
mod frames;
mod futex;
mod granule;
mod group;
mod hand_back;
mod hints;
mod immutable;
mod map;
mod mask;
mod memory;
mod open;
mod options;
mod pages;
mod peers;
mod pin;
mod read;
mod region;
mod regions;
mod registered;
mod shared;
mod shares;
mod signal;
mod stack;
mod stages;
mod stats;
mod steal;
mod sync;
mod thread;
mod thread_queue;
mod thread_queues;
mod uffd;

pub use advice::Advice;
pub use board::Board;
pub use budget::Budget;
pub use immutable::{Mutable, check_immutable};
pub use map::{Mmap, MmapMut, MmapOptions, Plain, map};
pub use memory::PAGE_BYTES;
pub use options::{Access, Ahead, Backing, Faults, Granule, Options, Otherwise};
pub use pin::Pin;
pub use region::Region;
pub use registered::Registered;
pub use stages::Stages;
pub use stats::Statistics;
