// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a workload's file says, and what is wrong with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::size::{BLOCK_BYTES, Size};

/// Largest single request, in bytes.
pub const MOST_IO_BYTES: u64 = 16 << 20;

/// One workload with all its values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// What it is like, in one line.
    pub about: String,
    /// Where its numbers are from.
    #[serde(default)]
    pub source: String,
    /// File system of a device made for it.
    #[serde(default)]
    pub file_system: FileSystemKind,
    /// Whether the page cache is bypassed. All sizes are then rounded up to whole blocks of 4 KiB.
    #[serde(default = "yes")]
    pub direct: bool,
    /// Whether every write is durable when it returns.
    #[serde(default)]
    pub sync: bool,
    /// Share of the set that is used, above 0 to 1; less where the device holds less.
    #[serde(default = "whole")]
    pub scale: f64,
    /// The files.
    pub files: Vec<FileSet>,
    /// The groups of threads that use them.
    pub threads: Vec<Threads>,
}

/// A file system to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystemKind {
    /// With a journal.
    #[default]
    Ext4,
    /// Without.
    Ext2,
}

impl FileSystemKind {
    /// Its name in the kernel and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            FileSystemKind::Ext4 => "ext4",
            FileSystemKind::Ext2 => "ext2",
        }
    }
}

/// Many files of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSet {
    /// Name that threads refer to; also the directory.
    pub name: String,
    /// Files that there can be at once.
    pub count: u64,
    /// Size of each when it is written whole.
    pub size_bytes: Size,
    /// Most entries of one directory.
    #[serde(default = "wide")]
    pub directory_width: u64,
    /// Share of them that is there at the start, 0–1.
    #[serde(default = "whole")]
    pub preallocated: f64,
    /// What the scale makes smaller.
    #[serde(default)]
    pub scaled: Scaled,
}

/// What a scale makes smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaled {
    /// How many files there are.
    #[default]
    Count,
    /// How large they are.
    Size,
}

/// Threads that do the same. They share out the set: of `n` threads on it, the first has the first
/// file and every `n`th after it, and so on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threads {
    /// How many.
    pub instances: u32,
    /// The set that they use.
    pub files: String,
    /// Largest request, in bytes.
    pub io_bytes: u64,
    /// Passes through the loop that make a round; without, a round is a span of time.
    #[serde(default)]
    pub loops: Option<u64>,
    /// What each does, over and over.
    pub r#loop: Vec<Op>,
}

/// One operation. Those that name no file work on the thread's open file; where none is open, any
/// of its files is opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// Opens any file that is there.
    Open,
    /// Makes any file that is not there, empty.
    Create,
    /// Closes the open file.
    Close,
    /// Deletes any file that is there, except the last one.
    Delete,
    /// Asks for size and times of any file that is there.
    Stat,
    /// Reads the open file from end to end.
    ReadWhole {
        /// In which order.
        #[serde(default)]
        order: WholeOrder,
    },
    /// Writes the open file from its start to the size that is its own.
    WriteWhole,
    /// Writes at the end of the open file.
    Append {
        /// How much.
        bytes: Size,
    },
    /// One request of `io_bytes` within the open file.
    Read {
        /// Where.
        #[serde(default)]
        order: Order,
    },
    /// One request of `io_bytes` within the open file.
    Write {
        /// Where.
        #[serde(default)]
        order: Order,
    },
    /// Makes the open file durable.
    Fsync,
    /// Makes the open file's data durable.
    Fdatasync,
    /// One or the other; where that one has no file to delete or to make, the other.
    Either {
        /// How often the first: in so many of ten cases, 0–10.
        bias: u32,
        /// The one.
        first: Vec<Op>,
        /// The other.
        second: Vec<Op>,
    },
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// After the one before it; after the end of the file, to its start.
    #[default]
    Sequential,
    /// To a random multiple of its size.
    Random,
    /// To where the last one was.
    Again,
}

/// In which order a whole file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WholeOrder {
    /// From the start.
    #[default]
    Sequential,
    /// The first block, the last, the second, the last but one, and so on to the middle.
    Inward,
}

fn yes() -> bool {
    true
}

fn whole() -> f64 {
    1.0
}

fn wide() -> u64 {
    1_000_000
}

impl Op {
    /// The word by which it is counted.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Create => "create",
            Op::Close => "close",
            Op::Delete => "delete",
            Op::Stat => "stat",
            Op::ReadWhole { .. } => "read-whole",
            Op::WriteWhole => "write-whole",
            Op::Append { .. } => "append",
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Fsync => "fsync",
            Op::Fdatasync => "fdatasync",
            Op::Either { .. } => "either",
        }
    }
}

fn any(ops: &[Op], is_it: &impl Fn(&Op) -> bool) -> bool {
    ops.iter().any(|op| match op {
        Op::Either { first, second, .. } => any(first, is_it) || any(second, is_it),
        op => is_it(op),
    })
}

impl Threads {
    /// Whether they change the files that they use.
    pub fn writes(&self) -> bool {
        let changes = |op: &Op| {
            matches!(
                op,
                Op::Create | Op::Delete | Op::WriteWhole | Op::Append { .. } | Op::Write { .. }
            )
        };
        any(&self.r#loop, &changes)
    }

    fn check(&self, spec: &Spec) -> Result<(), (&'static str, String)> {
        let wrong = |field, what: String| Err((field, what));
        if !(1..=1024).contains(&self.instances) {
            return wrong("instances", format!("{}: 1 to 1024 is wanted", self.instances));
        }
        if spec.set(&self.files).is_none() {
            let known: Vec<&str> = spec.files.iter().map(|set| set.name.as_str()).collect();
            let what = format!("there is no set {:?}; there are {}", self.files, known.join(", "));
            return wrong("files", what);
        }
        if !(1..=MOST_IO_BYTES).contains(&self.io_bytes) {
            let what = format!("{} bytes: 1 to {MOST_IO_BYTES} is wanted", self.io_bytes);
            return wrong("io_bytes", what);
        }
        if spec.direct && !self.io_bytes.is_multiple_of(BLOCK_BYTES) {
            let what = format!(
                "{} bytes: a multiple of {BLOCK_BYTES} is wanted, or `direct = false`",
                self.io_bytes
            );
            return wrong("io_bytes", what);
        }
        if self.loops == Some(0) {
            return wrong("loops", "0 does nothing: 1 or more is wanted".into());
        }
        if self.r#loop.is_empty() {
            return wrong("loop", "no operation: name one at least".into());
        }
        let has = |wanted: Op| any(&self.r#loop, &|op| *op == wanted);
        if has(Op::Create) != has(Op::Delete) {
            let what = "create and delete go together, or the set runs full or empty";
            return wrong("loop", what.into());
        }
        self.check_ops(&self.r#loop).map_err(|what| ("loop", what))
    }

    fn check_ops(&self, ops: &[Op]) -> Result<(), String> {
        ops.iter().try_for_each(|op| match op {
            Op::Append { bytes } => bytes.check().map_err(|what| format!("append: {what}")),
            Op::Either { bias, .. } if *bias > 10 => {
                Err(format!("either: bias {bias}: 0 to 10 is wanted"))
            }
            Op::Either { first, second, .. } if first.is_empty() || second.is_empty() => {
                Err("either: first and second want an operation each".into())
            }
            Op::Either { first, second, .. } => {
                self.check_ops(first).and_then(|()| self.check_ops(second))
            }
            _ => Ok(()),
        })
    }
}

impl FileSet {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || !self.name.chars().all(plain) {
            let what = format!("{:?}: letters, digits, - and _ make a name", self.name);
            return Err(("name", what));
        }
        if !(1..=10_000_000).contains(&self.count) {
            return Err(("count", format!("{}: 1 to 10000000 is wanted", self.count)));
        }
        self.size_bytes.check().map_err(|what| ("size_bytes", what))?;
        if self.directory_width < 2 {
            let what = format!("{}: 2 or more is wanted", self.directory_width);
            return Err(("directory_width", what));
        }
        if !(0.0..=1.0).contains(&self.preallocated) {
            return Err(("preallocated", format!("{}: 0 to 1 is wanted", self.preallocated)));
        }
        Ok(())
    }
}

impl Spec {
    /// The set of this name.
    pub fn set(&self, name: &str) -> Option<&FileSet> {
        self.files.iter().find(|set| set.name == name)
    }

    /// Threads that use a set.
    pub fn threads_on(&self, set: &str) -> u64 {
        let users = self.threads.iter().filter(|threads| threads.files == set);
        users.map(|threads| u64::from(threads.instances)).sum()
    }

    /// Bytes that the files take, as they are expected to be at the fullest.
    pub fn bytes(&self) -> u64 {
        let of = |set: &FileSet| {
            let block = BLOCK_BYTES as f64;
            let rounding = if matches!(set.size_bytes, Size::Fixed(_)) { 0.0 } else { block };
            set.count as f64 * (set.size_bytes.mean() + rounding).max(block)
        };
        self.files.iter().map(of).sum::<f64>() as u64
    }

    /// The same with a share `scale` of the files, or of their size. A set keeps the files that its
    /// threads need: two each, or as many as it has.
    pub fn scaled(&self, scale: f64) -> Self {
        let mut spec = Spec { scale, ..self.clone() };
        for set in &mut spec.files {
            match set.scaled {
                Scaled::Size => set.size_bytes = set.size_bytes.scaled(scale),
                Scaled::Count => {
                    let needed = (2 * self.threads_on(&set.name)).max(1);
                    let share = (set.count as f64 * scale) as u64;
                    set.count = share.max(needed).min(set.count);
                }
            }
        }
        spec
    }

    /// Checks the workload; the error names the field and says what is wanted there.
    pub fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || !self.name.chars().all(plain) {
            return Err(format!("name: {:?}: letters, digits, -, _ and . make a name", self.name));
        }
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            return Err(format!("scale: {}: above 0 to 1 is wanted", self.scale));
        }
        let mut names = BTreeMap::new();
        for (at, set) in self.files.iter().enumerate() {
            set.check().map_err(|(field, what)| format!("files[{at}].{field}: {what}"))?;
            if let Some(first) = names.insert(set.name.as_str(), at) {
                return Err(format!("files[{at}].name: files[{first}] is called so already"));
            }
            let threads = self.threads_on(&set.name);
            if threads == 0 {
                return Err(format!("files[{at}].name: no thread uses the set {:?}", set.name));
            }
            if set.count < threads {
                let count = set.count;
                return Err(format!("files[{at}].count: {count} for {threads} threads on the set"));
            }
        }
        if self.threads.is_empty() {
            return Err("threads: none: name one at least".into());
        }
        for (at, threads) in self.threads.iter().enumerate() {
            threads
                .check(self)
                .map_err(|(field, what)| format!("threads[{at}].{field}: {what}"))?;
            let creates = any(&threads.r#loop, &|op| *op == Op::Create);
            let few = self
                .set(&threads.files)
                .is_some_and(|set| set.count < 2 * self.threads_on(&set.name));
            if creates && few {
                let files = &threads.files;
                return Err(format!(
                    "threads[{at}].instances: those who create need two files each in {files:?}"
                ));
            }
        }
        Ok(())
    }
}
