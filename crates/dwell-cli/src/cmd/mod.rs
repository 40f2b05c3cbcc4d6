// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file per command: its arguments, what it calls, what it shows.

pub mod advise;
pub mod bench;
pub mod compare;
pub mod ctl;
pub mod daemon;
pub mod doctor;
pub mod explain;
pub mod figure;
pub mod lab;
pub mod nfs;
pub mod off;
pub mod probe;
pub mod profile;
pub mod run;
pub mod serve;
pub mod sim;
pub mod top;
pub mod trace;
