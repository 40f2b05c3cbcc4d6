// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads on files, described by data: TOML files that a user can copy and edit.
//!
//! A [`WorkloadFile`] is read into [`Variant`]s, each with a [`spec::Spec`]. What every thread does
//! follows from the spec and a seed ([`stream::Stream`], no I/O); [`race`] plays it with one
//! contender after the other on the same files, which are put back in order between.

mod file;
mod place;
mod player;
mod race;
pub mod set;
pub mod size;
pub mod spec;
pub mod stream;
mod worker;

pub use file::{Variant, WorkloadFile};
pub use place::{Place, PlaceKind};
pub use race::{Plan, race, run};

use std::path::Path;

use anyhow::{Context, Result};

macro_rules! shipped {
    ($($name:literal),+ $(,)?) => {
        /// The shipped workloads: name and text.
        pub const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../workloads/", $name, ".toml")))),+];
    };
}
shipped! {
    "fileserver", "fileserver-light", "varmail", "varmail-light", "single-stream-read",
    "multi-stream-read", "postmark", "bonnie-write", "bonnie-rewrite", "bonnie-read",
    "whole-sequential", "whole-random", "seq-read", "rand-read", "seq-write", "rand-write",
}

/// A shipped workload by name.
///
/// # Errors
/// Another name; the known ones are named.
pub fn shipped(name: &str) -> Result<WorkloadFile> {
    let text = text_of(name)?;
    WorkloadFile::parse(name, text)
}

/// The text of a shipped workload, to copy and edit.
///
/// # Errors
/// Another name; the known ones are named.
pub fn text_of(name: &str) -> Result<&'static str> {
    let known = SHIPPED.iter().find(|(known, _)| *known == name);
    known.map(|(_, text)| *text).with_context(|| {
        let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
        format!("no workload {name:?}; there are {}", names.join(", "))
    })
}

/// A shipped workload by its name, or one from a file: what has a `/` or ends with `.toml` is a
/// file.
///
/// # Errors
/// Those of [`shipped`] and of [`WorkloadFile::load`].
pub fn find(name: &str) -> Result<WorkloadFile> {
    match name.contains('/') || name.ends_with(".toml") {
        true => WorkloadFile::load(Path::new(name)),
        false => shipped(name),
    }
}

/// Whether all names are of contenders that play workloads: policies, and `pread`.
///
/// # Errors
/// The first that is not.
pub fn check_names(names: &[String]) -> Result<()> {
    names.iter().try_for_each(|name| player::check_name(name))
}
