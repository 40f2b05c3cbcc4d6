// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of sysfs: files of one value.

use std::fs;
use std::path::Path;

/// Content of an attribute; `None` when absent, unreadable or empty.
pub(super) fn read(file: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(file).ok()?).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The bracketed choice of `a [b] c`, or a lone word.
pub(super) fn read_active(file: &Path) -> Option<String> {
    let text = read(file)?;
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    Some(bracketed.map_or_else(|| text.clone(), |(active, _)| active.to_owned()))
}
