// SPDX-License-Identifier: MIT OR Apache-2.0
//! What CPU time is worth.

/// What a nanosecond of CPU time is worth, in nanoseconds of latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Goal {
    /// CPU time is free: the shortest latency wins.
    Latency,
    /// A tenth: a core may be spun away for a latency that is shorter by a tenth.
    #[default]
    Balanced,
    /// As much as latency.
    Efficient,
}

impl Goal {
    /// All goals.
    pub const ALL: [Goal; 3] = [Goal::Latency, Goal::Balanced, Goal::Efficient];

    /// The word used in settings and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Goal::Latency => "latency",
            Goal::Balanced => "balanced",
            Goal::Efficient => "efficient",
        }
    }

    /// A goal by its word.
    pub fn by_name(name: &str) -> Option<Goal> {
        Goal::ALL.into_iter().find(|goal| goal.as_str() == name)
    }

    /// Nanoseconds of latency that a nanosecond of CPU time is worth.
    pub const fn cpu_price(self) -> f64 {
        match self {
            Goal::Latency => 0.0,
            Goal::Balanced => 0.1,
            Goal::Efficient => 1.0,
        }
    }
}

impl core::fmt::Display for Goal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.as_str())
    }
}
