// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server says of itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::passthrough::DataPath;

/// What the channels of a daemon are doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Clients that have one.
    pub channels: u64,
    /// Threads that serve them.
    #[serde(default)]
    pub threads: u64,
    /// Grants of open files so far.
    pub grants: u64,
    /// Commands served so far.
    #[serde(default)]
    pub commands: u64,
    /// The commands by user and kind; subordinate users count as their owner.
    #[serde(default)]
    pub commands_by_user: BTreeMap<u32, BTreeMap<String, u64>>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The daemon's process.
    pub pid: u32,
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// Where.
    pub mount: PathBuf,
    /// Whether the backing directory is hidden.
    pub private: bool,
    /// Whether it serves every user, or its own alone.
    pub every_user: bool,
    /// Whether files can be mapped shared (Linux 6.6).
    pub shared_mappings: bool,
    /// How reads, writes and mappings reach the backing files.
    #[serde(default)]
    pub data_path: DataPath,
    /// Since when, in seconds of Unix time.
    pub since_unix_s: u64,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Files that the kernel knows.
    pub known_files: usize,
    /// Files that are open.
    pub open_files: usize,
    /// Directories that are open.
    pub open_directories: usize,
    /// The channels.
    pub channels: Channels,
    /// The kernel's requests, by kind.
    pub requests: BTreeMap<String, u64>,
}
