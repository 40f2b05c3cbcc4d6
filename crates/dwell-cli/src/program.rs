// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that a command names, and whether a library can be loaded into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, PT_LOAD};
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::read::{ReadCache, ReadRef as _};
use rustix::fs::{Access, StatVfsMountFlags};

/// How many interpreters of interpreters the kernel follows.
const DEEPEST: u32 = 5;
/// How much of a script's first line the kernel reads.
const FIRST_LINE_BYTES: u64 = 256;
/// Where programs are looked for without `PATH`.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Why a command cannot be run, with the exit status that a shell gives.
#[derive(Debug)]
pub struct CannotRun {
    /// 127: there is no such program. 126: it is no program, or must not be run. 125: not the
    /// program's fault.
    pub status: u8,
    /// The problem.
    pub what: String,
}

impl CannotRun {
    fn new(status: u8, name: &OsStr, what: impl fmt::Display) -> Self {
        CannotRun { status, what: format!("{}: {what}", name.display()) }
    }

    /// What the system said when it should have become the program.
    pub fn refused(program: &Path, error: &io::Error) -> Self {
        let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        CannotRun::new(status, program.as_os_str(), error)
    }
}

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for CannotRun {}

/// A program that may be run.
#[derive(Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Why no library can be loaded into it; `None` when one can.
    pub closed: Option<String>,
    /// Whether the kernel knows its format; a shell runs what it does not.
    pub is_binary: bool,
}

/// Finds what a command names, as a shell does.
///
/// # Errors
/// A program that is missing, a directory, or not executable.
pub fn find(name: &OsStr) -> Result<Program, CannotRun> {
    let path = if name.as_bytes().contains(&b'/') {
        runnable(Path::new(name))?;
        PathBuf::from(name)
    } else {
        search(name, env::var_os("PATH"))?
    };
    let (closed, is_binary) = examine(&path, DEEPEST)?;
    Ok(Program { path, closed, is_binary })
}

fn search(name: &OsStr, path: Option<OsString>) -> Result<PathBuf, CannotRun> {
    let path = path.unwrap_or_else(|| USUAL_PATH.into());
    let mut refused = None;
    for dir in env::split_paths(&path).filter(|_| !name.is_empty()) {
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        let candidate = dir.join(name);
        match runnable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.status == 126 && !candidate.is_dir() => {
                refused = refused.or(Some(error));
            }
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| CannotRun::new(127, name, "command not found")))
}

fn runnable(path: &Path) -> Result<(), CannotRun> {
    let name = path.as_os_str();
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CannotRun::new(127, name, "no such file"))
        }
        Err(error) => Err(CannotRun::new(126, name, error)),
        Ok(facts) if facts.is_dir() => Err(CannotRun::new(126, name, "is a directory")),
        Ok(facts) if !facts.is_file() => Err(CannotRun::new(126, name, "is no program")),
        Ok(_) => rustix::fs::access(path, Access::EXEC_OK).map_err(|_| {
            CannotRun::new(126, name, "permission denied: it is not executable for this user")
        }),
    }
}

/// Why no library can be loaded into a program, and whether it is binary. One that cannot be read
/// may be run all the same, and is taken for an ordinary one.
fn examine(path: &Path, depth: u32) -> Result<(Option<String>, bool), CannotRun> {
    let Ok(mut file) = File::open(path) else {
        return Ok((raised(path), true));
    };
    let mut start = Vec::new();
    let _ = file.by_ref().take(FIRST_LINE_BYTES).read_to_end(&mut start);
    if start.starts_with(b"#!") {
        // The bits of a script are ignored; those of its interpreter count.
        let closed = script(path, &start, depth)?;
        return Ok((closed, true));
    }
    if !start.starts_with(b"\x7fELF") {
        return Ok((None, false));
    }
    let damaged = |error| CannotRun::new(126, path.as_os_str(), format!("damaged: {error}"));
    let elf = Elf::read(file).map_err(damaged)?;
    Ok((elf.closed().or_else(|| raised(path)), true))
}

fn script(path: &Path, start: &[u8], depth: u32) -> Result<Option<String>, CannotRun> {
    let line = start[2..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let word = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty());
    let Some(word) = word else {
        return Err(CannotRun::new(126, path.as_os_str(), "its first line names no interpreter"));
    };
    let interpreter = Path::new(OsStr::from_bytes(word));
    let failed = |what: &dyn fmt::Display| {
        let what = format!("its interpreter cannot be run: {what}");
        CannotRun::new(126, path.as_os_str(), what)
    };
    runnable(interpreter).map_err(|error| failed(&error))?;
    if depth == 0 {
        return Err(failed(&"too many interpreters of interpreters"));
    }
    let (closed, _) = examine(interpreter, depth - 1).map_err(|error| failed(&error))?;
    Ok(closed.map(|why| match why.starts_with("its interpreter") {
        true => why,
        false => format!("its interpreter {} is {why}, which", interpreter.display()),
    }))
}

/// What a program's header says of how it is loaded.
#[derive(Debug)]
struct Elf {
    is_64_bit: bool,
    machine: u16,
    /// What loads its libraries; `None` for a static program.
    loader: Option<PathBuf>,
    /// What it was built with that stands before the C library itself, and stands no other there.
    sanitizer: Option<&'static str>,
}

/// Names that the programs of sanitizers have or ask for, the last one of those whose sanitizer is
/// linked in.
const SANITIZERS: [(&str, &str); 6] = [
    ("__asan_init", "AddressSanitizer"),
    ("__tsan_init", "ThreadSanitizer"),
    ("__msan_init", "MemorySanitizer"),
    ("__hwasan_init", "HWAddressSanitizer"),
    ("__lsan_init", "LeakSanitizer"),
    ("__sanitizer_symbolize_code", "a sanitizer"),
];

impl Elf {
    fn read(file: File) -> object::Result<Elf> {
        let data = ReadCache::new(file);
        // The class is the byte after the magic number.
        match (&data).read_bytes_at(4, 1) {
            Ok([1]) => Self::of::<FileHeader32<Endianness>>(&data),
            _ => Self::of::<FileHeader64<Endianness>>(&data),
        }
    }

    fn of<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> object::Result<Elf> {
        let header = H::parse(data)?;
        let endian = header.endian()?;
        let mut loader = None;
        let segments = header.program_headers(endian, data)?;
        for segment in segments {
            if let Some(name) = segment.interpreter(endian, data)? {
                loader = Some(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        let names = Self::names::<H>(segments, endian, data).unwrap_or_default();
        let of_sanitizers = names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"__"));
        let place = |name: &[u8]| SANITIZERS.iter().position(|(its, _)| its.as_bytes() == name);
        let sanitizer = of_sanitizers.filter_map(place).min().map(|at| SANITIZERS[at].1);
        let machine = header.e_machine(endian).0;
        Ok(Elf { is_64_bit: header.is_class_64(), machine, loader, sanitizer })
    }

    /// The names that the loader resolves, each with a zero byte behind it; `None` where there are
    /// none to be found.
    fn names<'data, H: FileHeader<Endian = Endianness>>(
        segments: &[H::ProgramHeader],
        endian: Endianness,
        data: &'data ReadCache<File>,
    ) -> Option<&'data [u8]> {
        let dynamic = segments.iter().find_map(|one| one.dynamic(endian, data).ok().flatten())?;
        let value = |tag| dynamic.iter().find(|one| one.d_tag(endian) == tag);
        let [address, bytes] = [DT_STRTAB, DT_STRSZ].map(|tag| Some(value(tag)?.val(endian)));
        let (address, bytes) = (address?, bytes?);
        segments.iter().find_map(|segment| {
            let (offset, held) = segment.file_range(endian);
            let within = address.checked_sub(segment.p_vaddr(endian).into())?;
            let is_loaded = segment.p_type(endian) == PT_LOAD && within.checked_add(bytes)? <= held;
            is_loaded.then(|| data.read_bytes_at(offset.checked_add(within)?, bytes).ok()).flatten()
        })
    }

    /// Why a library of this program's own kind cannot be loaded into it.
    fn closed(&self) -> Option<String> {
        let own = File::open("/proc/self/exe").ok().and_then(|file| Elf::read(file).ok());
        let name = |elf: &Elf| elf.loader.as_deref().and_then(Path::file_name).map(OsStr::to_owned);
        match own {
            _ if !self.is_64_bit => Some("a 32-bit program".to_owned()),
            Some(own) if own.machine != self.machine => {
                Some("a program for another processor".to_owned())
            }
            _ if self.loader.is_none() => Some("a static program".to_owned()),
            Some(own) if own.loader.is_some() && name(&own) != name(self) => {
                let loader = self.loader.as_deref().unwrap_or(Path::new("")).display();
                Some(format!("a program of another C library ({loader})"))
            }
            _ => self.sanitizer.map(|sanitizer| format!("a program built with {sanitizer}")),
        }
    }
}

/// Whether the program would run with more rights than its caller has: its loader then ignores
/// what the caller wants loaded.
fn raised(path: &Path) -> Option<String> {
    let facts = fs::metadata(path).ok()?;
    let mounted = rustix::fs::statvfs(path).ok()?;
    if rustix::thread::no_new_privs().unwrap_or(false)
        || mounted.f_flag.contains(StatVfsMountFlags::NOSUID)
    {
        return None;
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    // Without the group's right to execute, the bit means mandatory locking.
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    if facts.mode() & libc::S_ISUID != 0 && facts.uid() != uid.as_raw() {
        return Some("a setuid program".to_owned());
    }
    if facts.mode() & setgid == setgid && facts.gid() != gid.as_raw() {
        return Some("a setgid program".to_owned());
    }
    let mut value = [0u8; 64];
    let capabilities = rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok();
    (capabilities && !uid.is_root()).then(|| "a program with file capabilities".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn put(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_command_is_found_as_a_shell_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("1"), dir.path().join("2"));
        fs::create_dir_all(first.join("tool")).unwrap();
        fs::create_dir(&second).unwrap();
        fs::write(first.join("closed"), "").unwrap();
        let tool = put(&second, "tool", b"true");
        let path = env::join_paths([&first, &second]).unwrap();
        let search = |name: &str| search(name.as_ref(), Some(path.clone()));
        assert_eq!(search("tool").unwrap(), tool);
        assert_eq!(search("closed").unwrap_err().status, 126);
        for name in ["missing", ""] {
            let error = search(name).unwrap_err();
            assert_eq!((error.status, error.what), (127, format!("{name}: command not found")));
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let examined = |name: &str, text: &str| {
            let path = put(dir.path(), name, text.as_bytes());
            examine(&path, DEEPEST)
        };
        assert_eq!(examined("a", "#! /bin/sh -e\n").unwrap(), (None, true));
        assert_eq!(examined("b", "echo\n").unwrap(), (None, false));
        let missing = examined("c", "#!/nonexistent x\n").unwrap_err();
        assert!(missing.status == 126 && missing.what.contains("/nonexistent: no such file"));
        assert!(examined("d", "#! \n").unwrap_err().what.contains("names no interpreter"));
        let own = dir.path().join("e").display().to_string();
        assert!(examined("e", &format!("#!{own}\n")).unwrap_err().what.contains("too many"));
    }

    #[test]
    fn a_damaged_or_foreign_program_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let own = fs::read("/proc/self/exe").unwrap();
        for bytes in 4..64 {
            let path = put(dir.path(), "short", &own[..bytes]);
            assert_eq!(examine(&path, DEEPEST).unwrap_err().status, 126, "{bytes}");
        }
        assert_eq!(examine(Path::new("/proc/self/exe"), DEEPEST).unwrap(), (None, true));
        let mut foreign = own.clone();
        foreign[18] ^= 0xff;
        let path = put(dir.path(), "foreign", &foreign);
        let (closed, _) = examine(&path, DEEPEST).unwrap();
        assert_eq!(closed.unwrap(), "a program for another processor");
        let loader = Elf::read(File::open("/proc/self/exe").unwrap()).unwrap().loader.unwrap();
        let loader = loader.as_os_str().as_bytes();
        let at = own.windows(loader.len()).position(|window| window == loader).unwrap();
        let mut musl = own;
        musl[at + loader.len() - 1] = b'1';
        let (closed, _) = examine(&put(dir.path(), "musl", &musl), DEEPEST).unwrap();
        assert!(closed.unwrap().starts_with("a program of another C library"));
    }
}
