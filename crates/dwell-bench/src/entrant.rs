// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contenders that take part in a race.

use std::sync::Arc;

use anyhow::Result;
use dwell::monitor::SystemMonitor;

use crate::contender::{self, Contender};
use crate::subject::Subject;

/// A contender in a race, by the name under which its row is kept.
pub struct Entrant {
    /// Name of the row.
    pub name: String,
    /// The contender that the row measures.
    pub contender: Contender,
    /// For a contender that follows the load, the monitor that it asks: its batches begin with
    /// unmeasured requests until that monitor has seen it alone.
    pub monitor: Option<Arc<SystemMonitor>>,
}

impl Entrant {
    /// Opens a subject for a contender of this name.
    pub fn open(name: &str, subject: &Subject, monitor: &Arc<SystemMonitor>) -> Result<Self> {
        Ok(Entrant {
            name: name.into(),
            contender: Contender::open(name, subject, monitor)?,
            monitor: contender::follows_load(name).then(|| monitor.clone()),
        })
    }
}
