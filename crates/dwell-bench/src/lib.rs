// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dwell's experiments: loads, test devices, paired statistics, tables, reports and figures.
//!
//! A measurement is a set of *rounds*: every wait policy runs once per round, one after the other,
//! so that whatever disturbs the machine disturbs all of them. Ratios are taken within a round
//! ([`stats::Paired`]), and a run is kept as JSON ([`result::Run`]) from which the terminal table
//! ([`table`]) and the HTML report ([`report`]) are made. [`verdict`] judges an interval.

pub mod advised;
pub mod batch;
pub mod bundle;
pub mod chart;
pub mod compare;
pub mod conditions;
pub mod contender;
pub mod counters;
pub mod day;
pub mod entrant;
mod events;
pub mod fixture;
pub mod keep;
mod labels;
mod lane;
pub mod latency;
pub mod loads;
pub mod machine;
mod measure;
pub mod nfs;
pub mod pager;
pub mod pairs;
pub mod parent;
pub mod program;
pub mod quiet;
pub mod raw;
pub mod report;
pub mod result;
pub mod run;
#[doc(hidden)]
pub mod sample;
mod samples;
pub mod settling;
pub mod sheet;
pub mod simulator;
pub mod sources;
pub mod stand;
pub mod stats;
pub mod subject;
pub mod table;
pub mod trial;
pub mod units;
pub mod usage;
pub mod verdict;
pub mod waits;
pub mod workload;
