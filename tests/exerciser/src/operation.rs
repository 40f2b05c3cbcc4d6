// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations that actors carry out, one per line of a script.

use serde::{Deserialize, Serialize};

/// Descriptors of a process by the number that a script gives them.
pub type Slot = u8;
/// Files by the number that a script gives them.
pub type Name = u8;

/// How many slots a process has.
pub const SLOTS: usize = 32;
/// How many mappings a process has.
pub const MAPS: usize = 16;
/// How many names there are, of private files and of those below.
pub const NAMES: usize = 16;
/// A file of a fixed size, of which each actor owns a range.
pub const SHARED: Name = 13;
/// A file to which all actors append records.
pub const RECORDS: Name = 14;
/// A file whose blocks all actors overwrite.
pub const BLOCKS: Name = 15;
/// Bytes of [`SHARED`] that one actor owns.
pub const RANGE_BYTES: u64 = 64 << 10;
/// Bytes of a record of [`RECORDS`].
pub const RECORD_BYTES: usize = 64;
/// Bytes of a block of [`BLOCKS`].
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of [`BLOCKS`].
pub const BLOCK_COUNT: u64 = 4;
/// Most processes of a script.
pub const PROCESSES: usize = 5;
/// Most threads of a process.
pub const THREADS: usize = 4;

/// The path of a name, relative to the directory of the run.
pub fn path(name: Name) -> String {
    match name {
        0..8 => format!("f{name}"),
        8..13 => format!("d/f{name}"),
        SHARED => "shared".into(),
        RECORDS => "records".into(),
        _ => "blocks".into(),
    }
}

/// By which call a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenBy {
    /// `open` with a relative path.
    Open,
    /// `open64` with an absolute path.
    Absolute,
    /// `openat`.
    Openat,
    /// `syscall(SYS_openat)`.
    Raw,
    /// An `IORING_OP_OPENAT`.
    Uring,
    /// `fopen` flags have no place here; `creat`, whose flags are its own.
    Creat,
}

/// By which call a descriptor is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseBy {
    /// `close`.
    Close,
    /// `syscall(SYS_close)`.
    Raw,
    /// `close_range` of one descriptor.
    Range,
    /// An `IORING_OP_CLOSE`, of which no library hears.
    Uring,
    /// `fclose` of a stream made by `fdopen`, which closes inside the C library.
    Stream,
}

/// By which call a descriptor is duplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DupBy {
    /// `dup`.
    Dup,
    /// `fcntl(F_DUPFD)`.
    Fcntl,
    /// `syscall(SYS_dup)`.
    Raw,
}

/// By which call bytes are read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// `read`, `write`, `pread`, `pwrite`.
    Plain,
    /// `pread64`, `pwrite64`; at the position, `read` and `write`.
    Wide,
    /// `readv`, `writev`, `preadv`, `pwritev`.
    Vector,
    /// `preadv2`, `pwritev2`.
    Vector2,
    /// `syscall`.
    Raw,
    /// One request of an io_uring.
    Uring,
    /// One request of libaio, by offset only.
    Aio,
}

/// By which call a file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncBy {
    /// `fsync`.
    Fsync,
    /// `fdatasync`.
    Fdatasync,
    /// `sync_file_range` of everything.
    Range,
    /// `syncfs`.
    Syncfs,
    /// An `IORING_OP_FSYNC`.
    Uring,
}

/// By which call bytes go from file to file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyBy {
    /// `copy_file_range`.
    CopyFileRange,
    /// `sendfile`, to the position of the target.
    Sendfile,
    /// `splice` into a pipe and out of it.
    Splice,
}

/// The call that asks for the attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatBy {
    /// `fstat` or `stat`.
    Stat,
    /// `statx` with a forced sync.
    Statx,
}

/// How many requests are given to the kernel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchBy {
    /// An io_uring.
    Uring,
    /// libaio.
    Aio,
}

/// One request of a [`Op::Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Whether it writes.
    pub write: bool,
    /// Where.
    pub at: u64,
    /// How many bytes.
    pub bytes: u32,
    /// The seed of the bytes written.
    pub seed: u64,
}

/// Reads or writes bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Of which descriptor.
    pub slot: Slot,
    /// Whether it writes.
    pub write: bool,
    /// Where; nothing for the descriptor's own position.
    pub at: Option<i64>,
    /// Lengths of the pieces of memory; calls without pieces take their sum.
    pub pieces: Vec<u32>,
    /// By which call.
    pub by: By,
    /// `RWF_*`, for [`By::Vector2`] and [`By::Uring`].
    pub rwf: i32,
    /// The seed of the bytes written.
    pub seed: u64,
    /// How far the memory lies behind the beginning of a page.
    pub skew: u16,
    /// The count that the call is given where it is more than there is memory; 0 otherwise.
    pub claim: u64,
}

impl Transfer {
    /// Bytes of memory that there are.
    pub fn length(&self) -> usize {
        self.pieces.iter().map(|piece| *piece as usize).sum()
    }
}

/// What an actor does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields are the arguments of the calls that the variants are named after.
pub enum Op {
    /// Opens a file.
    Open { slot: Slot, name: Name, flags: i32, by: OpenBy },
    /// Opens a file without a name in the directory (`O_TMPFILE`).
    OpenUnnamed { slot: Slot },
    /// Closes a descriptor.
    Close { slot: Slot, by: CloseBy },
    /// Duplicates a descriptor to the lowest free number.
    Dup { from: Slot, to: Slot, by: DupBy },
    /// `dup2` onto the number that another slot has or had.
    DupOver { from: Slot, to: Slot },
    /// Sets `O_APPEND` and `O_DIRECT` by `fcntl(F_SETFL)`.
    SetFlags { slot: Slot, flags: i32 },
    /// `fcntl(F_GETFL)`.
    GetFlags { slot: Slot },
    /// Reads or writes.
    Transfer(Transfer),
    /// Several requests at once, and a plain read of the byte at `beside` before they are waited
    /// for.
    Batch { slot: Slot, by: BatchBy, parts: Vec<Part>, beside: Option<u64> },
    /// `lseek`.
    Seek { slot: Slot, whence: i32, to: i64 },
    /// `truncate`.
    Truncate { name: Name, to: i64 },
    /// `ftruncate`.
    Ftruncate { slot: Slot, to: i64 },
    /// `fallocate`.
    Fallocate { slot: Slot, mode: i32, at: i64, bytes: i64 },
    /// `renameat2`.
    Rename { from: Name, to: Name, flags: u32 },
    /// `unlink`.
    Unlink { name: Name },
    /// `link`.
    Link { from: Name, to: Name },
    /// `mmap`.
    Map { map: u8, slot: Slot, shared: bool, write: bool, at: u64, bytes: u64 },
    /// `munmap`.
    Unmap { map: u8 },
    /// Reads mapped memory.
    Peek { map: u8, at: u64, bytes: u32 },
    /// Writes mapped memory.
    Poke { map: u8, at: u64, bytes: u32, seed: u64 },
    /// `msync` of the whole mapping.
    Msync { map: u8, flags: i32 },
    /// Makes a file durable.
    Sync { slot: Slot, by: SyncBy },
    /// `posix_fadvise` of the whole file.
    Advise { slot: Slot, advice: i32 },
    /// Copies between files.
    Copy { from: Slot, to: Slot, from_at: Option<i64>, to_at: Option<i64>, bytes: u64, by: CopyBy },
    /// Attributes of an open file.
    StatOpen { slot: Slot, by: StatBy },
    /// Attributes of a file by name.
    StatName { name: Name, by: StatBy },
    /// Appends one record to [`RECORDS`], beside others that do.
    Record { slot: Slot, seed: u64 },
    /// Overwrites or reads one block of [`BLOCKS`], beside others that do.
    Block { slot: Slot, block: u64, write: bool, seed: u64 },
    /// Forks; the child is this process of the script.
    Fork { child: u8 },
    /// Kills a child and waits for its end.
    Kill { child: u8 },
    /// Kills the server beneath and starts it again.
    Disturb,
}

/// One operation and its actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Which process of the script.
    pub process: u8,
    /// Which of its threads.
    pub thread: u8,
    /// What it does.
    pub op: Op,
}

/// In which order lines of different actors are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// One after the other, as they stand: all of them may touch all files.
    Serial,
    /// Each actor as fast as it can: actors own files and ranges.
    Free,
}

/// A whole sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// In which order.
    pub order: Order,
    /// The operations and their actors.
    pub lines: Vec<Line>,
}

impl Op {
    /// The name under which it is counted.
    pub fn kind(&self) -> String {
        match self {
            Op::Open { by, flags, .. } => match flags & libc::O_PATH {
                0 => format!("open {by:?}"),
                _ => "open O_PATH".into(),
            },
            Op::OpenUnnamed { .. } => "open O_TMPFILE".into(),
            Op::Close { by, .. } => format!("close {by:?}"),
            Op::Dup { by, .. } => format!("dup {by:?}"),
            Op::DupOver { .. } => "dup2".into(),
            Op::SetFlags { .. } => "F_SETFL".into(),
            Op::GetFlags { .. } => "F_GETFL".into(),
            Op::Transfer(transfer) => {
                let what = if transfer.write { "write" } else { "read" };
                let place = if transfer.at.is_some() { "at" } else { "on" };
                let more = match transfer.rwf {
                    _ if transfer.claim > 0 => " overlong".into(),
                    0 => String::new(),
                    flags => format!(" rwf {flags:#x}"),
                };
                format!("{what} {place} {:?}{more}", transfer.by)
            }
            Op::Batch { by, .. } => format!("batch {by:?}"),
            Op::Seek { whence, .. } => {
                let names = ["SET", "CUR", "END", "DATA", "HOLE"];
                format!("lseek {}", names.get(*whence as usize).unwrap_or(&"?"))
            }
            Op::Truncate { .. } => "truncate".into(),
            Op::Ftruncate { .. } => "ftruncate".into(),
            Op::Fallocate { mode, .. } => format!("fallocate {mode:#x}"),
            Op::Rename { flags, .. } => format!("rename {flags}"),
            Op::Unlink { .. } => "unlink".into(),
            Op::Link { .. } => "link".into(),
            Op::Map { shared: true, .. } => "mmap shared".into(),
            Op::Map { .. } => "mmap private".into(),
            Op::Unmap { .. } => "munmap".into(),
            Op::Peek { .. } => "memory read".into(),
            Op::Poke { .. } => "memory write".into(),
            Op::Msync { .. } => "msync".into(),
            Op::Sync { by, .. } => format!("sync {by:?}"),
            Op::Advise { .. } => "fadvise".into(),
            Op::Copy { by, .. } => format!("copy {by:?}"),
            Op::StatOpen { by, .. } => format!("fstat {by:?}"),
            Op::StatName { by, .. } => format!("stat {by:?}"),
            Op::Record { .. } => "append shared record".into(),
            Op::Block { write: true, .. } => "overlapping write".into(),
            Op::Block { .. } => "overlapping read".into(),
            Op::Fork { .. } => "fork".into(),
            Op::Kill { .. } => "kill".into(),
            Op::Disturb => "server killed".into(),
        }
    }

    /// Whether later lines mean something else without it: it changes what slots and mappings stand
    /// for.
    pub fn is_structural(&self) -> bool {
        matches!(
            self,
            Op::Open { .. }
                | Op::OpenUnnamed { .. }
                | Op::Close { .. }
                | Op::Dup { .. }
                | Op::DupOver { .. }
                | Op::SetFlags { .. }
                | Op::Map { .. }
                | Op::Unmap { .. }
                | Op::Fork { .. }
        )
    }

    /// Kinds that some file systems refuse every time, so that success is not asked of them.
    pub fn may_always_fail(kind: &str) -> bool {
        let everywhere = ["fallocate 0x0", "fallocate 0x1", "fallocate 0x3"];
        kind.starts_with("fallocate") && !everywhere.contains(&kind)
            || kind.ends_with("rwf 0x8")
            || kind.ends_with("overlong")
    }
}
