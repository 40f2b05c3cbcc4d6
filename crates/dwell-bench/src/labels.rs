// SPDX-License-Identifier: MIT OR Apache-2.0
//! What tells a row from others, as columns of a table.

use serde_json::Value;

use crate::result::Row;

/// Headings of what may be missing, in order; the first two never are.
pub(crate) const TEXTS: [&str; 6] =
    ["device", "load", "scheduler", "workload", "pattern", "direction"];

/// A row's setting, size and contender.
pub(crate) struct Labels {
    /// In the order of [`TEXTS`].
    pub texts: [Option<String>; 6],
    /// Queue depth, in requests.
    pub depth: Option<u32>,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Policy or hand-written loop.
    pub contender: String,
}

impl Labels {
    /// Those of a row.
    pub fn of(row: &Row) -> Self {
        // The words are those of the JSON.
        let setting = serde_json::to_value(&row.setting).unwrap_or_default();
        Labels {
            texts: TEXTS.map(|name| setting.get(name).and_then(Value::as_str).map(str::to_owned)),
            depth: setting.get("depth").and_then(Value::as_u64).map(|depth| depth as u32),
            size_bytes: row.size_bytes,
            contender: row.policy.clone(),
        }
    }

    /// Headings of [`Labels::cells`].
    pub fn headings() -> impl Iterator<Item = String> {
        TEXTS.into_iter().chain(["depth", "size_bytes", "contender"]).map(str::to_owned)
    }

    /// As text, empty where something is missing.
    pub fn cells(&self) -> impl Iterator<Item = String> {
        let depth = self.depth.map(|depth| depth.to_string()).unwrap_or_default();
        let texts = self.texts.iter().map(|text| text.clone().unwrap_or_default());
        texts.chain([depth, self.size_bytes.to_string(), self.contender.clone()])
    }
}
