// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decisions, and the machine that carries them out.
//!
//! A thread that has asked a storage device for something can stay on the CPU until the answer
//! comes (*spin*), leave it (*block*), or sleep for most of the time and spin for the rest
//! (*hybrid*). A [`WaitPolicy`] chooses per request, before it is submitted; a [`WaitMachine`]
//! then says step by step what the waiting thread does. Both are pure: time, load and estimates
//! are arguments. The crate is `no_std`, allocates nothing and forbids unsafe code, so it cannot
//! do I/O, read a clock or start a thread, and it runs equally well in a page-fault handler and
//! in a simulator's virtual time.
//!
//! ```
//! use dwell_policy::{policy::SmartCon, *};
//!
//! let profile = Profile { class: DeviceClass::Fast, size_threshold_bytes: 64 << 10, ..Profile::default() };
//! let mut wait = Wait::new(Kind::Read, 4096, Some(&profile));
//! wait.routes = Routes::INLINE | Routes::INTERRUPT;
//!
//! let decision = SmartCon::default().choose(&wait);
//! assert_eq!((decision.mode, decision.reason), (Mode::Spin, Reason::Pays));
//!
//! wait.size_bytes = 128 << 10;
//! assert_eq!(SmartCon::default().choose(&wait).reason, Reason::Size);
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod arm;
mod decision;
mod estimate;
mod goal;
mod load;
mod machine;
pub mod policy;
mod profile;
pub mod regression;
mod request;
pub mod switchback;
mod wait;

pub use arm::{ARMS, Arm, Arms, Learned};
pub use decision::{Decision, MinComplete, Mode, Reason};
pub use estimate::{BUCKETS, Estimate, Estimator, Latency, Pace, bucket};
pub use goal::Goal;
pub use load::Load;
pub use machine::{Driver, Outcome, Step, WaitMachine, Woken, drive};
pub use policy::WaitPolicy;
pub use profile::{DeviceClass, Profile};
pub use request::{Backlog, Call, Kind, Route, Routes};
pub use wait::Wait;

/// Nanoseconds: a span, or a point on a monotonic clock that the caller chose.
pub type Ns = u64;
