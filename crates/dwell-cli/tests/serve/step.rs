// SPDX-License-Identifier: MIT OR Apache-2.0
//! One operation of a program on a directory tree, and what came of it as text: bytes, attributes,
//! error.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, SeekFrom, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};

use crate::fixture::Dice;

/// Open files of a program that works below one directory.
pub struct Actor {
    root: PathBuf,
    open: Vec<Option<File>>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Open(usize, String, i32, u32),
    Close(usize),
    Read(usize, usize),
    ReadAt(usize, u64, usize),
    Write(usize, Vec<u8>),
    WriteAt(usize, u64, Vec<u8>),
    Seek(usize, i64, i32),
    SetLength(usize, u64),
    Truncate(String, u64),
    Allocate(usize, u32, u64, u64),
    Sync(usize),
    Unlink(String),
    RmDir(String),
    MkDir(String, u32),
    Pipe(String, u32),
    Rename(String, String, u32),
    Link(String, String),
    SymLink(String, String),
    ReadLink(String),
    Stat(String, bool),
    StatOpen(usize),
    Chmod(String, u32),
    ChmodOpen(usize, u32),
    Chown(String, u32, u32),
    Times(String, i64, i64),
    SetXattr(String, String, Vec<u8>, u32),
    GetXattr(String, String),
    ListXattr(String),
    RemoveXattr(String, String),
    List(String),
    Copy(usize, usize, u64, u64, usize),
    Map(usize, u64, Vec<u8>),
}

const NAMES: &[&str] =
    &["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "l", "a/x", "no/such", "d/../b"];

/// Slots for open files.
pub const SLOTS: usize = 6;

impl Step {
    pub fn any(dice: &mut Dice) -> Step {
        let name = |dice: &mut Dice| dice.of_these(NAMES).to_owned();
        let slot = |dice: &mut Dice| dice.below(SLOTS as u64) as usize;
        let place = |dice: &mut Dice| {
            let near = dice.below(20_000);
            if dice.below(4) == 0 { near / 4096 * 4096 } else { near }
        };
        let mode = |dice: &mut Dice| {
            dice.of_these(&[0o644, 0o600, 0o755, 0o7777, 0o0, 0o4711, 0o2755, 0o1777])
        };
        let data = |dice: &mut Dice| {
            let (byte, bytes) = (dice.below(256) as u8, dice.below(9000) as usize);
            (0..bytes).map(|at| byte.wrapping_add(at as u8)).collect::<Vec<u8>>()
        };
        let attribute = |dice: &mut Dice| {
            dice.of_these(&["user.a", "user.b", "trusted.c", "nonsense.d"]).to_owned()
        };
        match dice.below(46) {
            0..=7 => {
                let how =
                    dice.of_these(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
                let more = [0, libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL];
                let rest = [
                    0,
                    0,
                    libc::O_TRUNC,
                    libc::O_APPEND,
                    libc::O_DIRECTORY,
                    libc::O_NOFOLLOW,
                    libc::O_DSYNC,
                ];
                let flags = how | dice.of_these(&more) | dice.of_these(&rest);
                Step::Open(slot(dice), name(dice), flags, mode(dice))
            }
            8 => Step::Close(slot(dice)),
            9 | 10 => Step::Read(slot(dice), dice.below(9000) as usize),
            11 | 12 => Step::ReadAt(slot(dice), place(dice), dice.below(9000) as usize),
            13 | 14 => Step::Write(slot(dice), data(dice)),
            15..=17 => Step::WriteAt(slot(dice), place(dice), data(dice)),
            18 | 19 => {
                let from = [
                    libc::SEEK_SET,
                    libc::SEEK_CUR,
                    libc::SEEK_END,
                    libc::SEEK_DATA,
                    libc::SEEK_HOLE,
                ];
                Step::Seek(slot(dice), place(dice) as i64 - 2000, dice.of_these(&from))
            }
            20 => Step::SetLength(slot(dice), place(dice)),
            21 => Step::Truncate(name(dice), place(dice)),
            22 => Step::Allocate(
                slot(dice),
                dice.of_these(&[0, 1, 2, 3, 8, 16]),
                place(dice),
                place(dice),
            ),
            23 => Step::Sync(slot(dice)),
            24 | 25 => Step::Unlink(name(dice)),
            26 => Step::RmDir(name(dice)),
            27 | 28 => Step::MkDir(name(dice), mode(dice)),
            29 => Step::Pipe(name(dice), mode(dice)),
            30 | 31 => Step::Rename(name(dice), name(dice), dice.of_these(&[0, 0, 1, 2])),
            32 => Step::Link(name(dice), name(dice)),
            33 => Step::SymLink(
                dice.of_these(&["a", "d", "e/../a", "/nowhere/x", "l"]).to_owned(),
                name(dice),
            ),
            34 => Step::ReadLink(name(dice)),
            35 => Step::Stat(name(dice), dice.below(2) == 0),
            36 => Step::StatOpen(slot(dice)),
            37 => Step::Chmod(name(dice), mode(dice)),
            38 => Step::ChmodOpen(slot(dice), mode(dice)),
            39 => Step::Chown(name(dice), dice.below(3) as u32, dice.below(3) as u32),
            40 => Step::Times(name(dice), place(dice) as i64 - 5000, place(dice) as i64),
            41 => match dice.below(3) {
                0 => Step::ListXattr(name(dice)),
                1 => Step::RemoveXattr(name(dice), attribute(dice)),
                _ => Step::SetXattr(
                    name(dice),
                    attribute(dice),
                    data(dice)[..].iter().take(100).copied().collect(),
                    dice.below(3) as u32,
                ),
            },
            42 => Step::GetXattr(name(dice), attribute(dice)),
            43 => Step::List(dice.of_these(&["", "d", "d/e", "a"]).to_owned()),
            44 => Step::Copy(
                slot(dice),
                slot(dice),
                place(dice),
                place(dice),
                dice.below(20_000) as usize,
            ),
            _ => Step::Map(slot(dice), place(dice), data(dice)),
        }
    }
}

type Came = Result<String, Errno>;

impl Actor {
    pub fn below(root: &Path) -> Actor {
        Actor { root: root.to_owned(), open: (0..SLOTS).map(|_| None).collect() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn slot(&self, slot: usize) -> Result<&File, Errno> {
        self.open[slot].as_ref().ok_or(Errno::BADF)
    }

    /// What came of a step.
    pub fn take(&mut self, step: &Step) -> String {
        match self.came(step) {
            Ok(said) => said,
            Err(error) => format!("error {} ({error})", error.raw_os_error()),
        }
    }

    fn came(&mut self, step: &Step) -> Came {
        let none = |()| String::new();
        match step {
            Step::Open(slot, name, flags, mode) => {
                let file = open_raw(&self.at(name), *flags, *mode)?;
                let place = if flags & libc::O_CREAT != 0 {
                    shown(rustix::fs::fstat(&file)?)
                } else {
                    String::new()
                };
                self.open[*slot] = Some(file);
                Ok(place)
            }
            Step::Close(slot) => {
                self.open[*slot] = None;
                Ok(String::new())
            }
            Step::Read(slot, bytes) => {
                let mut room = vec![0; *bytes];
                let got = self.slot(*slot)?.read(&mut room).map_err(errno)?;
                Ok(sum(&room[..got]))
            }
            Step::ReadAt(slot, place, bytes) => {
                let mut room = vec![0; *bytes];
                let got = self.slot(*slot)?.read_at(&mut room, *place).map_err(errno)?;
                Ok(sum(&room[..got]))
            }
            Step::Write(slot, data) => Ok(rustix::io::write(self.slot(*slot)?, data)?.to_string()),
            Step::WriteAt(slot, place, data) => {
                let data = [std::io::IoSlice::new(data)];
                Ok(rustix::io::pwritev2(self.slot(*slot)?, &data, *place, ReadWriteFlags::empty())?
                    .to_string())
            }
            Step::Seek(slot, place, whence) => {
                let file = self.slot(*slot)?;
                // Places in a directory are its file system's own affair.
                if file.metadata().map_err(errno)?.is_dir() {
                    return Err(Errno::ISDIR);
                }
                let positive = u64::try_from(*place).map_err(|_| Errno::INVAL);
                let to = match *whence {
                    libc::SEEK_SET => SeekFrom::Start(positive?),
                    libc::SEEK_CUR => SeekFrom::Current(*place),
                    libc::SEEK_END => SeekFrom::End(*place),
                    libc::SEEK_DATA => SeekFrom::Data(positive?),
                    _ => SeekFrom::Hole(positive?),
                };
                Ok(rustix::fs::seek(file, to)?.to_string())
            }
            Step::SetLength(slot, bytes) => {
                rustix::fs::ftruncate(self.slot(*slot)?, *bytes).map(none)
            }
            Step::Truncate(name, bytes) => truncate(&self.at(name), *bytes).map(none),
            Step::Allocate(slot, mode, place, bytes) => {
                let mode = FallocateFlags::from_bits_retain(*mode);
                rustix::fs::fallocate(self.slot(*slot)?, mode, *place, *bytes).map(none)
            }
            Step::Sync(slot) => rustix::fs::fsync(self.slot(*slot)?).map(none),
            Step::Unlink(name) => {
                rustix::fs::unlinkat(CWD, self.at(name), AtFlags::empty()).map(none)
            }
            Step::RmDir(name) => {
                rustix::fs::unlinkat(CWD, self.at(name), AtFlags::REMOVEDIR).map(none)
            }
            Step::MkDir(name, mode) => {
                rustix::fs::mkdirat(CWD, self.at(name), Mode::from_raw_mode(*mode))?;
                Ok(shown(rustix::fs::lstat(self.at(name))?))
            }
            Step::Pipe(name, mode) => {
                rustix::fs::mknodat(
                    CWD,
                    self.at(name),
                    FileType::Fifo,
                    Mode::from_raw_mode(*mode),
                    0,
                )?;
                Ok(shown(rustix::fs::lstat(self.at(name))?))
            }
            Step::Rename(from, to, flags) => {
                let flags = RenameFlags::from_bits_retain(*flags);
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags).map(none)
            }
            Step::Link(from, to) => {
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())?;
                Ok(shown(rustix::fs::lstat(self.at(to))?))
            }
            Step::SymLink(to, name) => {
                rustix::fs::symlinkat(to.as_str(), CWD, self.at(name)).map(none)
            }
            Step::ReadLink(name) => {
                let to = rustix::fs::readlinkat(CWD, self.at(name), Vec::new())?;
                Ok(to.to_string_lossy().into_owned())
            }
            Step::Stat(name, follow) => {
                let at = self.at(name);
                Ok(shown(if *follow { rustix::fs::stat(at)? } else { rustix::fs::lstat(at)? }))
            }
            Step::StatOpen(slot) => Ok(shown(rustix::fs::fstat(self.slot(*slot)?)?)),
            Step::Chmod(name, mode) => rustix::fs::chmodat(
                CWD,
                self.at(name),
                Mode::from_raw_mode(*mode),
                AtFlags::empty(),
            )
            .map(none),
            Step::ChmodOpen(slot, mode) => {
                rustix::fs::fchmod(self.slot(*slot)?, Mode::from_raw_mode(*mode)).map(none)
            }
            Step::Chown(name, uid, gid) => {
                let (uid, gid) = (Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)));
                rustix::fs::chownat(CWD, self.at(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                    .map(none)
            }
            Step::Times(name, accessed, modified) => {
                let exact = |seconds| Timespec { tv_sec: seconds, tv_nsec: 12_345 };
                let times = Timestamps {
                    last_access: exact(*accessed),
                    last_modification: exact(*modified),
                };
                rustix::fs::utimensat(CWD, self.at(name), &times, AtFlags::SYMLINK_NOFOLLOW)?;
                let stat = rustix::fs::lstat(self.at(name))?;
                Ok(format!("{} {} {}", stat.st_atime, stat.st_mtime, stat.st_mtime_nsec))
            }
            Step::SetXattr(name, attribute, value, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                rustix::fs::lsetxattr(self.at(name), attribute.as_str(), value, flags).map(none)
            }
            Step::GetXattr(name, attribute) => {
                let mut room = [0; 200];
                let got = rustix::fs::lgetxattr(self.at(name), attribute.as_str(), &mut room[..])?;
                Ok(sum(&room[..got]))
            }
            Step::ListXattr(name) => {
                let mut room = [0; 1000];
                let got = rustix::fs::llistxattr(self.at(name), &mut room[..])?;
                let names: BTreeSet<&[u8]> = room[..got].split(|byte| *byte == 0).collect();
                Ok(format!("{names:?}"))
            }
            Step::RemoveXattr(name, attribute) => {
                rustix::fs::lremovexattr(self.at(name), attribute.as_str()).map(none)
            }
            Step::List(name) => {
                let entries = std::fs::read_dir(self.at(name)).map_err(errno)?;
                let named = |entry: std::io::Result<std::fs::DirEntry>| {
                    let entry = entry.map_err(errno)?;
                    Ok((entry.file_name(), format!("{:?}", entry.file_type().map_err(errno)?)))
                };
                Ok(format!("{:?}", entries.map(named).collect::<Result<BTreeSet<_>, Errno>>()?))
            }
            Step::Copy(from, to, at, into, bytes) => {
                let (mut at, mut into) = (*at, *into);
                let (from, to) = (self.slot(*from)?, self.slot(*to)?);
                let copied =
                    rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), *bytes)?;
                Ok(format!("{copied} {at} {into}"))
            }
            Step::Map(slot, place, data) => map(self.slot(*slot)?, *place, data),
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn open_raw(path: &Path, flags: i32, mode: u32) -> Result<File, Errno> {
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32) | rustix::fs::OFlags::CLOEXEC;
    // A pipe would wait for its other end.
    let flags = flags | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::from_raw_mode(mode)).map(File::from)
}

fn truncate(path: &Path, bytes: u64) -> Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte and outlives the call.
    match unsafe { libc::truncate(path.as_ptr(), bytes as i64) } {
        0 => Ok(()),
        _ => Err(errno(std::io::Error::last_os_error())),
    }
}

/// Writes through a shared mapping, and reads the file's pages before and after.
fn map(file: &File, place: u64, data: &[u8]) -> Came {
    let stat = rustix::fs::fstat(file)?;
    let length = stat.st_size as usize;
    if length == 0 {
        return Err(Errno::INVAL);
    }
    // Memory file systems fill holes where a mapping is read, others do not.
    let mut whole = vec![0; length];
    // By a descriptor that does not append.
    let again =
        std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    file.read_exact_at(&mut whole, 0)
        .and_then(|()| again?.write_all_at(&whole, 0))
        .map_err(errno)?;
    // SAFETY: a fresh mapping of a regular file that nobody else changes, unmapped below.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let start = libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        if start == libc::MAP_FAILED {
            return Err(errno(std::io::Error::last_os_error()));
        }
        let pages = std::slice::from_raw_parts_mut(start.cast::<u8>(), length);
        let before = sum(pages);
        let place = (place as usize).min(length);
        let bytes = data.len().min(length - place);
        pages[place..place + bytes].copy_from_slice(&data[..bytes]);
        let after = sum(pages);
        libc::munmap(start, length);
        Ok(format!("{before} {after}"))
    }
}

/// As short as it can be said that bytes are the same.
pub fn sum(data: &[u8]) -> String {
    let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} bytes {hash:016x}", data.len())
}

fn shown(stat: rustix::fs::Stat) -> String {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    // How long a directory is, is its file system's own affair.
    let bytes = if directory { 0 } else { stat.st_size };
    format!(
        "{:o} links {} owner {}:{} bytes {bytes}",
        stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid
    )
}

/// Everything below a directory, as text: names, attributes, contents, extended attributes.
pub fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut below = vec![PathBuf::new()];
    while let Some(name) = below.pop() {
        let at = root.join(&name);
        let Ok(stat) = rustix::fs::lstat(&at) else { continue };
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => sum(&std::fs::read(&at).unwrap_or_default()),
            FileType::Symlink => std::fs::read_link(&at).unwrap().display().to_string(),
            FileType::Directory => {
                let entries = std::fs::read_dir(&at).unwrap();
                below.extend(entries.map(|entry| name.join(entry.unwrap().file_name())));
                String::new()
            }
            _ => String::new(),
        };
        let mut room = [0; 1000];
        let attributes = rustix::fs::llistxattr(&at, &mut room[..]).unwrap_or(0);
        let attributes: BTreeSet<&[u8]> = room[..attributes].split(|byte| *byte == 0).collect();
        found.push(format!("{} {} {content} {attributes:?}", name.display(), shown(stat)));
    }
    found.sort();
    found
}
