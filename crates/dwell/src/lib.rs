// SPDX-License-Identifier: MIT OR Apache-2.0
//! Under construction.
pub mod monitor;
