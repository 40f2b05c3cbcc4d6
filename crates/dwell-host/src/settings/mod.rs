// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings: what a person has said about devices, files and programs, layer over layer, and where
//! each of them was said.
//!
//! Faces find and read the files; here is what they mean.
//!
//! ```
//! use dwell_host::settings::{DeviceNames, Settings};
//!
//! let system = Settings::parse("policy = \"block\"", "/etc/dwell/dwell.toml")?;
//! let user = Settings::parse("[[device]]\nmatch = \"nvme*\"\npolicy = \"spin\"", "mine.toml")?;
//! let settings = system.under(user);
//! let effective = settings.for_device(&DeviceNames::new(["nvme0n1"]));
//! assert_eq!(effective.policy.to_string(), "spin (mine.toml:3)");
//! # Ok::<(), dwell_host::settings::SettingsError>(())
//! ```

mod effective;
mod file;
mod layer;
mod names;
mod opening;
mod order;
mod pattern;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use dwell_policy::policy::CpuSignal;
use dwell_policy::{DeviceClass, Goal};
use serde::{Deserialize, Serialize};

use dwell::share::Share;
pub use effective::{Effective, General};
pub use file::SettingsError;
pub use layer::LayerError;
pub use names::DeviceNames;
pub use opening::Opening;
pub use order::{Paging, RunOrder};
pub use pattern::Pattern;

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Nowhere: Dwell's own choice.
    Default,
    /// In a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// On the command line.
    Option(
        /// The option, such as `--policy`.
        String,
    ),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.pad("default"),
            Origin::File { path, line } => f.pad(&format!("{}:{line}", path.display())),
            Origin::Option(option) => f.pad(option),
        }
    }
}

/// A value, and where it was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Set<T> {
    /// The value.
    pub value: T,
    /// Where it was said.
    pub origin: Origin,
}

impl<T> Set<T> {
    /// A value that nobody said.
    pub fn default(value: T) -> Self {
        Set { value, origin: Origin::Default }
    }

    /// A value of a command line's option, such as `--policy`.
    pub fn option(option: &str, value: T) -> Self {
        Set { value, origin: Origin::Option(option.to_owned()) }
    }
}

impl<T: fmt::Display> fmt::Display for Set<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ({})", self.value, self.origin))
    }
}

/// Which policy waits, and with which parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Name of the policy.
    pub policy: Option<Set<String>>,
    /// What CPU time is worth to `adaptive`.
    pub goal: Option<Set<Goal>>,
    /// `smartcon`'s CPU threshold, 0–1.
    pub cpu_threshold: Option<Set<f32>>,
    /// Largest number of requests ahead at which `smartcon` still spins.
    pub queue_limit: Option<Set<u32>>,
    /// Which utilisation `smartcon` holds against the CPU threshold.
    pub cpu_signal: Option<Set<CpuSignal>>,
    /// Which part of the requests is steered.
    pub steer: Option<Set<Share>>,
}

impl Waiting {
    /// Itself beneath `over`, which wins where it says anything.
    fn under(self, over: Waiting) -> Waiting {
        Waiting {
            policy: over.policy.or(self.policy),
            goal: over.goal.or(self.goal),
            cpu_threshold: over.cpu_threshold.or(self.cpu_threshold),
            queue_limit: over.queue_limit.or(self.queue_limit),
            cpu_signal: over.cpu_signal.or(self.cpu_signal),
            steer: over.steer.or(self.steer),
        }
    }
}

/// The settings for the devices that a pattern matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRule {
    /// Matched against each of a device's names.
    pub pattern: Set<Pattern>,
    /// Its policy.
    #[serde(default)]
    pub waiting: Waiting,
    /// The class it is taken for, whatever the probe found.
    #[serde(default)]
    pub class: Option<Set<DeviceClass>>,
    /// Size threshold in bytes, in place of the probe's.
    #[serde(default)]
    pub size_threshold_bytes: Option<Set<u64>>,
    /// What the size threshold may be at most, in bytes.
    #[serde(default)]
    pub largest_threshold_bytes: Option<Set<u64>>,
    /// Whether its requests go straight to the kernel.
    #[serde(default)]
    pub exclude: Option<Set<bool>>,
}

/// What has been said, in one layer or in all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The policy of devices of which nothing is said.
    pub waiting: Waiting,
    /// How long a process is left alone when it begins, in milliseconds.
    pub leave_alone_ms: Option<Set<u32>>,
    /// Whether decisions are recorded only.
    pub shadow: Option<Set<bool>>,
    /// CPU time that busy-waiting may use at most, 0–1 of the CPUs that a process may run on.
    pub spin_cap: Option<Set<f32>>,
    /// Whether a device that is added is probed.
    pub probe_on_add: Option<Set<bool>>,
    /// Of which devices something is said, in the order of saying: a later one wins.
    pub devices: Vec<DeviceRule>,
    /// Files that are left alone.
    pub excluded_paths: Vec<Set<Pattern>>,
    /// Programs that are left alone.
    pub excluded_programs: Vec<Set<Pattern>>,
}

impl Settings {
    /// Takes the text of the file `origin`.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key, a value of the wrong type or out of range, an unknown
    /// policy or class: file, line, key, and what is allowed.
    pub fn parse(text: &str, origin: impl AsRef<Path>) -> Result<Self, SettingsError> {
        file::parse(text, origin.as_ref())
    }

    /// Itself beneath `over`, which wins where both say something of the same thing. Exclusions
    /// add up.
    #[must_use]
    pub fn under(mut self, over: Settings) -> Settings {
        self.devices.extend(over.devices);
        self.excluded_paths.extend(over.excluded_paths);
        self.excluded_programs.extend(over.excluded_programs);
        Settings {
            waiting: self.waiting.under(over.waiting),
            leave_alone_ms: over.leave_alone_ms.or(self.leave_alone_ms),
            shadow: over.shadow.or(self.shadow),
            spin_cap: over.spin_cap.or(self.spin_cap),
            probe_on_add: over.probe_on_add.or(self.probe_on_add),
            ..self
        }
    }

    /// The pattern by which a file is left alone, if it is. The path is absolute.
    pub fn excludes_path(&self, path: &Path) -> Option<&Set<Pattern>> {
        self.excluded_paths.iter().find(|pattern| pattern.value.matches_path(path))
    }

    /// The pattern by which a program is left alone, if it is. The path is that of its executable.
    pub fn excludes_program(&self, executable: &Path) -> Option<&Set<Pattern>> {
        self.excluded_programs.iter().find(|pattern| pattern.value.matches_path(executable))
    }
}
