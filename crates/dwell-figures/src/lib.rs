// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of the papers and of Dwell itself: one experiment each, and what it is held to.
//!
//! An experiment measures with the bench and saves what it found as a [`figure::FigureResult`].
//! Nothing links this crate but the command.

pub mod experiments;
pub mod figure;
