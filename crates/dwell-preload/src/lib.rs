// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts Dwell beneath programs that do not know of it: `libdwell_preload.so`.
//!
//! The loader puts this library before the C library of a program that `dwell run` starts. It
//! stands before the functions that open, read, write and close, and hands requests on files of
//! fast devices to [`dwell::File`]; everything else goes straight on, after one look at a table of
//! descriptors. It keeps nothing of a file: descriptors, positions and locks are the kernel's, so a
//! call that does not come by here does no harm.
//!
//! What a program may do at any moment decides how this is built:
//!
//! - A signal handler may make requests, and may leave by `longjmp`. So the engine is entered with
//!   all signals blocked, and calls that are made without entering hold nothing (`inside`).
//! - The program's allocator may be what was interrupted, or may itself be reading a file. So this
//!   library has an allocator of its own.
//! - A process may fork, with or without its memory. So a child begins anew (`life`), and a child
//!   that borrows its parent's memory passes everything straight on. One that was forked past the
//!   C library's `fork` passes all on too: other threads may have left anything half done.
//! - Numbers of descriptors are used again. So each request that is decided looks at what its
//!   descriptor is now (`serve`), and each number has an epoch (`table`).
#![deny(unsafe_code)]

mod account;
mod engine;
mod futex;
mod heap;
mod hooks;
mod inside;
mod life;
mod older;
mod own;
mod paged;
mod process;
mod raw;
mod real;
mod report;
mod serve;
mod served;
mod stack;
mod table;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();
