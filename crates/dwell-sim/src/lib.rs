// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulator of processes that page from a fast device, and of five ways to spend the wait.
//!
//! It is the apparatus of "How to Steal CPU Idle Time When Synchronous I/O Mode Becomes Promising"
//! (DAC 2024, doi 10.1145/3649329.3655929). The machine is a CPU with caches, four-level page
//! tables, DRAM sized to the working set, and an ultra-low-latency device behind a link. Time
//! slices are round-robin by nice value. The policies are Async, Sync, Sync_Runahead, Sync_Prefetch
//! and ITS. Time is virtual and counted in nanoseconds; the same programs, parameters and seed give
//! the same report, byte for byte. Whether a process that waits for a page spins or blocks is
//! decided by `dwell-policy` and carried out by its wait machine.
//!
//! Programs are anything that tells its executed instructions ([`Source`]): a recorded trace, or
//! one of the synthetic ones of [`synthetic`].
#![forbid(unsafe_code)]

mod ahead;
pub mod assign;
mod batch;
mod cache;
pub mod columns;
mod device;
pub mod flat;
mod frames;
mod held;
pub mod isa;
mod machine;
pub mod model;
pub mod params;
pub mod policy;
mod preexecute;
mod program;
pub mod report;
mod rng;
mod runs;
mod sched;
mod stack;
pub mod summary;
mod survey;
pub mod synthetic;
mod table;
mod timeline;
mod tlb;
pub mod trace;
pub mod wait;
mod words;

pub use batch::{Batch, BatchError, Entry as BatchEntry, OpenTrace};
pub use cache::{Cache, Found, Line};
pub use held::Held;
pub use machine::{Machine, SimError, Task};
pub use params::Params;
pub use policy::{Policy, PolicyKind};
pub use program::{Access, Dictionary, Executed, Program, ProgramError, Source, Tape};
pub use report::Report;
pub use rng::Rng;
pub use runs::{Kept, Plan, Progress, Runs, resume, simulate};
pub use sched::slice_ns;
pub use stack::Curve;
pub use survey::{Survey, survey};
pub use timeline::{Event, Timeline};
